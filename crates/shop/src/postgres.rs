//! The shop on PostgreSQL: what only this database needs, and its copy of what opens it.

use sqlx::postgres::PgConnectOptions;

use crate::StartError;
use crate::across::Across;
use crate::banner::Whereabouts;

#[path = "open/mod.rs"]
pub(crate) mod open;

/// The database this copy is compiled for.
pub(crate) type Db = sqlx::Postgres;

/// Counts those of the tables in an array of JSON that are there.
const COUNT_TABLES: &str = "
    SELECT count(*)
    FROM json_array_elements_text(CAST($1 AS json)) AS wanted (name)
    WHERE to_regclass(name) IS NOT NULL";

/// Makes this transaction the only one that creates tables. Two CREATE TABLE IF NOT EXISTS at once may both find nothing,
/// and one of them then fails on a unique index of the catalogue. The number is "shop" in ASCII.
const BE_ALONE: &str = "SELECT pg_advisory_xact_lock(1936224112)";

/// Any number of shops may share a server, wherever they are.
#[allow(clippy::unnecessary_wraps, reason = "SQLite refuses it")]
fn check_across(_: Option<&Across>) -> Result<(), StartError> {
    Ok(())
}

/// Where a person finds what the shop wrote. Built from the parts of the URL, so that the password stays out of it.
fn whereabouts(options: &PgConnectOptions) -> Whereabouts {
    let (host, port, user) = (options.get_host(), options.get_port(), options.get_username());
    let database = options.get_database().unwrap_or(user);
    Whereabouts {
        place: format!("the PostgreSQL database {database} on {host}:{port}"),
        client: format!("psql -h {host} -p {port} -U {user} -d {database} -c"),
        records: "steadfast.idempotency_records",
        messages: "steadfast.outbox_messages",
        jobs: "steadfast.jobs",
        inbox: "steadfast.inbox",
    }
}
