//! Opening the database that the settings name, with no more rights than the verb needs.

use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Postgres, Sqlite};
use steadfast::{Builder, Steadfast};

use crate::Context;
use crate::error::{CliError, Exit, Result};

/// How long a person waits for a file that somebody else has locked.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a verb does to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// The file is made if it is not there.
    Create,
}

/// Runs something with the builder of whichever database the settings name: it is compiled for both.
macro_rules! on_database {
    ($context:expr, $access:expr, $builder:ident => $work:expr) => {
        match $context.config.engine()? {
            $crate::options::Engine::Sqlite => {
                let $builder = $crate::database::open_sqlite($context, $access);
                $work
            }
            $crate::options::Engine::Postgres => {
                let $builder = $crate::database::open_postgres($context).await;
                $work
            }
        }
    };
}
pub(crate) use on_database;

/// Opens a file. Whoever only reads cannot change it, and nobody makes one by mistyping its name.
pub(crate) fn open_sqlite(context: &Context, access: Access) -> Result<Builder<Sqlite>> {
    let options: SqliteConnectOptions = context.config.database_url()?.parse().map_err(|error| {
        CliError::new(Exit::Usage, "the database URL cannot be read", "write sqlite://FILE").because(&error)
    })?;
    let file = options.get_filename().to_owned();
    if access != Access::Create && !file.exists() {
        return Err(CliError::new(
            Exit::Failed,
            format!("the database file {} does not exist", file.display()),
            "look at the path: it counts from the current directory; `steadfast migrate up` makes a new file",
        ));
    }
    let options = options
        .read_only(access == Access::Read)
        .create_if_missing(access == Access::Create)
        .busy_timeout(PATIENCE);
    let pool = SqlitePoolOptions::new()
        .acquire_timeout(PATIENCE)
        .connect_lazy_with(options);
    Ok(Steadfast::builder(pool).schema(context.config.schema())?)
}

/// Connects to a server. What may be done there is the role's business.
pub(crate) async fn open_postgres(context: &Context) -> Result<Builder<Postgres>> {
    let builder = Steadfast::connect(context.config.database_url()?).await?;
    Ok(builder.schema(context.config.schema())?)
}
