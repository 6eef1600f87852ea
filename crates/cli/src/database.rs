//! Opening the database that the settings name, with no more rights than the verb needs.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Postgres, Sqlite};
use steadfast::{Builder, Database, Steadfast};

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
    let url = context.config.database_url()?;
    let options: SqliteConnectOptions = url.parse().map_err(|error| {
        CliError::new(Exit::Usage, "the database URL cannot be read", "write sqlite://FILE").because(&error)
    })?;
    if names_no_file(url) {
        return Err(CliError::new(
            Exit::Usage,
            "the database URL names no file",
            "write sqlite://FILE: a database in memory is seen only by the process that made it",
        ));
    }
    let beside = context.config.database_directory().unwrap_or(Path::new(""));
    let file = beside.join(options.get_filename());
    check_file(&file, access)?;
    let options = options
        .filename(&file)
        .read_only(access == Access::Read)
        .create_if_missing(access == Access::Create)
        .busy_timeout(PATIENCE);
    let pool = SqlitePoolOptions::new()
        .acquire_timeout(PATIENCE)
        .connect_lazy_with(options);
    with_settings(context, Steadfast::builder(pool))
}

fn names_no_file(url: &str) -> bool {
    let name = url.trim_start_matches("sqlite:").trim_start_matches("//");
    name.is_empty() || name.starts_with('?') || name.contains(":memory:") || name.contains("mode=memory")
}

/// Fails with what is in the way, since SQLite would say little more than that there is something.
fn check_file(file: &Path, access: Access) -> Result<()> {
    let wrong = |what: &str, help: &str| {
        let what = format!("the database file {} {what}", file.display());
        Err(CliError::new(Exit::Failed, what, help))
    };
    match fs::metadata(file) {
        Ok(found) if found.is_dir() => wrong("is a directory", "name a file in it"),
        Ok(_) => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            wrong("cannot be looked at", "look at your rights on the directories above it")
                .map_err(|told| told.because(&error))
        }
        Err(_) if access != Access::Create => wrong(
            "does not exist",
            "look at the path: one from steadfast.toml counts from there, any other from the current directory; `steadfast \
             migrate up` makes a new file",
        ),
        Err(_) => match file.parent() {
            Some(directory) if directory != Path::new("") && !directory.is_dir() => wrong(
                "cannot be made: its directory does not exist",
                "make the directory, or look at the path",
            ),
            _ => Ok(()),
        },
    }
}

/// Connects to a server. What may be done there is the role's business.
pub(crate) async fn open_postgres(context: &Context) -> Result<Builder<Postgres>> {
    let builder = Steadfast::connect(context.config.database_url()?).await?;
    with_settings(context, builder)
}

fn with_settings<Db: Database>(context: &Context, builder: Builder<Db>) -> Result<Builder<Db>> {
    let wrong = |name: &str, retention: &str, error: &steadfast::Error| {
        let what = format!("{retention:?} is not a setting of {name}");
        CliError::new(Exit::Usage, what, "write a duration from 1m to 36500d").because(&error.what())
    };
    let retention = context.config.message_retention();
    let builder = builder
        .message_retention(retention)
        .map_err(|error| wrong("message-retention", retention, &error))?;
    let retention = context.config.inbox_retention();
    let builder = builder
        .inbox_retention(retention)
        .map_err(|error| wrong("inbox-retention", retention, &error))?;
    Ok(builder.schema(context.config.schema())?)
}
