//! The shop on SQLite: what only this database needs, and its copy of what opens it.

use std::path::Path;
use std::str::FromStr;

use sqlx::sqlite::SqliteConnectOptions;

use crate::StartError;
use crate::across::Across;
use crate::banner::Whereabouts;

#[path = "open/mod.rs"]
pub(crate) mod open;

/// The database this copy is compiled for.
pub(crate) type Db = sqlx::Sqlite;

/// Where the shop keeps its things when nobody says otherwise.
pub(crate) const DEFAULT_URL: &str = "sqlite://.steadfast/shop.db";

/// Where a warehouse keeps its.
pub(crate) const DEFAULT_WAREHOUSE_URL: &str = "sqlite://.steadfast/warehouse.db";

/// Counts those of the tables in an array of JSON that are there.
const COUNT_TABLES: &str = "
    SELECT count(*) FROM sqlite_schema
    WHERE type = 'table' AND name IN (SELECT value FROM json_each($1))";

/// Makes this transaction the only one that creates tables: on SQLite every writer is alone already.
const BE_ALONE: &str = "SELECT 1";

/// Makes the directory of the database file, so that a first run needs no preparation.
pub(crate) fn make_directory(url: &str) -> Result<(), StartError> {
    let options = SqliteConnectOptions::from_str(url).map_err(|error| {
        format!("the database URL cannot be read: {error}; write sqlite://FILE, as in {DEFAULT_URL}")
    })?;
    let directory = options.get_filename().parent().unwrap_or(Path::new(""));
    std::fs::create_dir_all(directory).map_err(|error| {
        format!(
            "the directory {} of the database cannot be made: {error}; choose another by --database-url sqlite://FILE",
            directory.display()
        )
        .into()
    })
}

/// Refuses what only processes without a common file need.
fn check_across(across: Option<&Across>) -> Result<(), StartError> {
    match across {
        None => Ok(()),
        Some(_) => Err(
            "--push-across is for shops on PostgreSQL; those that share a SQLite file see what is written to it".into(),
        ),
    }
}

/// Where a person finds what the shop wrote.
fn whereabouts(options: &SqliteConnectOptions) -> Whereabouts {
    let file = options.get_filename().display();
    Whereabouts {
        place: format!("the SQLite file {file}"),
        client: format!("sqlite3 -box {file}"),
        records: "steadfast_idempotency_records",
        messages: "steadfast_outbox_messages",
        jobs: "steadfast_jobs",
        inbox: "steadfast_inbox",
    }
}
