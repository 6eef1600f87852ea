//! What endangers a PostgreSQL database: how durable its commits are, who stands between, and what the role may do.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::{Connection, PgConnection, Row};

use super::{Names, PostgresStore, Store, keys};
use crate::clock::micros;
use crate::doctor::Check;
use crate::error::{Error, Result};

/// How far two clocks may be apart before people who compare their logs are misled. Nothing of ours depends on it.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(5);

/// The first version with TID range scans, which make the purge read a page once, and with a look at the client's
/// connection in the middle of a statement.
const VERSION_WANTED: i32 = 14;
const VERSION_MIN: i32 = 13;

/// How long a server may take to tell its processes, before somebody else must be using them up.
const PROCESS_LIMIT: Duration = Duration::from_secs(5);

/// What to do about a pooler in transaction mode.
pub(super) const POOLER_REMEDY: &str = "use a pooler in session mode, or connect directly: in transaction mode a connection meets what others have prepared";

/// What a service needs on each table, as `docs/guide/grants.sql` says.
const RIGHTS: [(&str, &[&str]); 24] = [
    ("migrations", &["SELECT"]),
    ("keys", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("leases", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("usage", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("breakers", &["SELECT", "INSERT", "UPDATE"]),
    ("audit", &["INSERT"]),
    ("messages", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("queue", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("history", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("failures", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("kinds", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("targets", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("operations", &["SELECT", "INSERT", "UPDATE"]),
    ("streams", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("entries", &["SELECT", "INSERT", "DELETE"]),
    ("queues", &["SELECT", "INSERT", "UPDATE"]),
    ("slots", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("unique_jobs", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("schedules", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("ticks", &["SELECT", "INSERT", "DELETE"]),
    ("inbox", &["SELECT", "INSERT", "DELETE"]),
    ("reports", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("lines", &["SELECT", "INSERT", "DELETE"]),
    ("members", &["SELECT", "INSERT", "DELETE"]),
];

pub(super) async fn examine(store: &PostgresStore) -> Result<Vec<Check>> {
    let mut conn = store.acquire().await?;
    let pooler = pooler(store).await?;
    // Behind a pooler the rest may fail, and then it must still be told why.
    let looked = look(store, &mut conn).await;
    let mut checks = looked.unwrap_or_else(|error| vec![Check::failed("settings", &error)]);
    checks.push(pooler);
    Ok(checks)
}

async fn look(store: &PostgresStore, conn: &mut PgConnection) -> Result<Vec<Check>> {
    let mut checks = settings(conn).await?;
    checks.push(clock(conn).await?);
    checks.extend(rights(conn, &store.names).await?);
    let watches = store.watch_millis(conn).await > 0;
    checks.push(client_check(watches));
    Ok(checks)
}

fn fail(error: sqlx::Error) -> Error {
    PostgresStore::error(error, "looking at the server")
}

async fn settings(conn: &mut PgConnection) -> Result<Vec<Check>> {
    let row = sqlx::query(
        "
        SELECT current_setting('server_version_num')::int / 10000   AS version,
               current_setting('fsync')                             AS fsync,
               current_setting('full_page_writes')                  AS full_page_writes,
               current_setting('synchronous_commit')                AS synchronous_commit,
               current_setting('default_transaction_isolation')     AS isolation,
               current_setting('default_transaction_read_only')     AS read_only,
               pg_is_in_recovery()                                  AS is_standby",
    )
    .fetch_one(conn)
    .await
    .map_err(fail)?;
    let word = |column: &str| row.try_get::<String, _>(column).map_err(fail);
    Ok(vec![
        version(row.try_get("version").map_err(fail)?),
        primary(row.try_get("is_standby").map_err(fail)?, &word("read_only")?),
        must_not_be_off(
            "fsync",
            &word("fsync")?,
            "`ALTER SYSTEM SET fsync = on` and reload: without it a crash of the machine may ruin the whole database",
        ),
        must_not_be_off(
            "full_page_writes",
            &word("full_page_writes")?,
            "`ALTER SYSTEM SET full_page_writes = on` and reload: without it a crash may leave half-written pages",
        ),
        must_not_be_off(
            "synchronous_commit",
            &word("synchronous_commit")?,
            "`ALTER SYSTEM SET synchronous_commit = on` and reload (or ALTER ROLE): without it a crash of the server may lose \
             commands that were answered",
        ),
        isolation(&word("isolation")?),
    ])
}

fn version(major: i32) -> Check {
    let found = format!("PostgreSQL {major}");
    match major {
        VERSION_WANTED.. => Check::ok("version", found),
        VERSION_MIN.. => Check::warn(
            "version",
            format!("{found}: each step of the purge reads the whole table, and a client that is gone is noticed late"),
            "upgrade to PostgreSQL 14 or later",
        ),
        _ => Check::fail(
            "version",
            format!("{found} is too old"),
            "upgrade to PostgreSQL 14 or later",
        ),
    }
}

fn primary(is_standby: bool, read_only: &str) -> Check {
    if is_standby {
        return Check::warn(
            "primary",
            "the server is a standby: it can be read, and refuses commands (SF113)",
            "point the service at the primary, for example with target_session_attrs in front of it",
        );
    }
    if read_only == "on" {
        return Check::warn(
            "primary",
            "transactions are read-only by default: the server can be read, and refuses commands (SF113)",
            "`ALTER ROLE … SET default_transaction_read_only = off` for the service's role",
        );
    }
    Check::ok("primary", "the server is a primary")
}

fn must_not_be_off(name: &'static str, value: &str, fix: &str) -> Check {
    let found = format!("{name} is {value}");
    if value == "off" {
        Check::fail(name, found, fix)
    } else {
        Check::ok(name, found)
    }
}

fn isolation(default: &str) -> Check {
    let found = format!("transactions are {default} by default");
    if default == "read committed" {
        return Check::ok("isolation", found);
    }
    let fix = "nothing, unless you use `sf.on(..)`: Steadfast's own transactions are READ COMMITTED whatever the default, your \
               own ones meet more conflicts (SF117)";
    Check::warn("isolation", found, fix)
}

/// How far the server's clock is from this machine's, half a round trip allowed for.
async fn clock(conn: &mut PgConnection) -> Result<Check> {
    let asked = SystemTime::now();
    let server = keys::now(conn).await?;
    let trip = asked.elapsed().unwrap_or_default();
    let here = asked.duration_since(UNIX_EPOCH).unwrap_or_default() + trip / 2;
    let difference = Duration::from_micros(server.0.abs_diff(micros(here)));
    let found = format!(
        "the server's clock and this machine's are {:.1} s apart",
        difference.as_secs_f64()
    );
    Ok(if difference <= CLOCK_DIFFERENCE_MAX + trip {
        Check::ok("clock", found)
    } else {
        let fix = "let both follow NTP: retention counts by the server's clock alone, but logs of both will not match";
        Check::warn("clock", found, fix)
    })
}

/// What this role may not do that a service must; nothing where there are no tables.
async fn rights(conn: &mut PgConnection, names: &Names) -> Result<Option<Check>> {
    let (mut missing, mut has_tables) = (rights_around(conn, names).await?, false);
    for (table, needed) in RIGHTS {
        for right in needed {
            let may: Option<bool> = sqlx::query_scalar(
                "
                SELECT has_table_privilege(c.oid, $3)
                FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                WHERE n.nspname = $1 AND c.relname = $2",
            )
            .bind(names.name())
            .bind(table)
            .bind(right)
            .fetch_optional(&mut *conn)
            .await
            .map_err(fail)?;
            has_tables |= may.is_some();
            if may == Some(false) {
                missing.push(format!("{right} {table}"));
            }
        }
    }
    let check = if missing.is_empty() {
        Check::ok("rights", "the role may do what a service needs")
    } else {
        Check::warn(
            "rights",
            format!("the role may not {}", missing.join(", ")),
            "for a role that only looks, nothing; for a service's role run docs/guide/grants.sql",
        )
    };
    Ok(has_tables.then_some(check))
}

/// Those that are not on a table: to enter the schema, and to call what refuses a command while it begins.
async fn rights_around(conn: &mut PgConnection, names: &Names) -> Result<Vec<String>> {
    let (schema, function): (Option<bool>, Option<bool>) = sqlx::query_as(
        "
        SELECT (SELECT has_schema_privilege(n.oid, 'USAGE') FROM pg_namespace AS n WHERE n.nspname = $1),
               (SELECT has_function_privilege(p.oid, 'EXECUTE')
                FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
                WHERE n.nspname = $1 AND p.proname = 'refuse')",
    )
    .bind(names.name())
    .fetch_one(conn)
    .await
    .map_err(fail)?;
    let mut missing = Vec::new();
    if schema == Some(false) {
        missing.push(format!("USAGE {}", names.name()));
    }
    if function == Some(false) {
        missing.push("EXECUTE refuse".to_owned());
    }
    Ok(missing)
}

fn client_check(watches: bool) -> Check {
    if watches {
        return Check::ok(
            "client_check",
            "the server notices a client that is gone in the middle of a statement",
        );
    }
    Check::warn(
        "client_check",
        "client_connection_check_interval is not supported: a client that dies in the middle of a statement keeps its key \
         until the statement ends",
        "run PostgreSQL 14 or later on Linux, macOS or a BSD, or set statement_timeout for the service's role",
    )
}

/// Looks for a pooler that gives a connection another server process for each transaction.
///
/// Two connections show it, one of them inside of a transaction: either they share a process, or the idle one gets another
/// than before. A pooler with a process to spare for each client cannot be told from none.
async fn pooler(store: &PostgresStore) -> Result<Check> {
    let Ok(is_shared) = tokio::time::timeout(PROCESS_LIMIT, share_a_process(store)).await else {
        return Ok(Check::warn(
            "pooler",
            "two more connections did not get a server process each",
            "if a pooler stands between, give it more of them: in session mode each connection of a service needs one",
        ));
    };
    Ok(if is_shared? {
        Check::warn(
            "pooler",
            "a pooler in transaction mode stands between: connections share server processes",
            POOLER_REMEDY,
        )
    } else {
        Check::ok("pooler", "each connection has a server process of its own")
    })
}

/// Whether two connections do. They are not of the pool: it may have only one, and what is left open here is closed.
async fn share_a_process(store: &PostgresStore) -> Result<bool> {
    let options = store.pool.connect_options();
    let mut idle = PgConnection::connect_with(&options).await.map_err(fail)?;
    let mut busy = PgConnection::connect_with(&options).await.map_err(fail)?;
    let first = process(&mut idle).await?;
    sqlx::raw_sql("BEGIN").execute(&mut busy).await.map_err(fail)?;
    let is_shared = process(&mut busy).await? == first || process(&mut idle).await? != first;
    sqlx::raw_sql("ROLLBACK").execute(&mut busy).await.map_err(fail)?;
    // The process that has just become free is the first to be handed out.
    Ok(is_shared || process(&mut idle).await? != first)
}

async fn process(conn: &mut PgConnection) -> Result<i32> {
    // Not prepared: a pooler in transaction mode may hand the statement to a process that does not know it.
    let row = sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(conn).await;
    row.and_then(|row| row.try_get(0)).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn what_a_crash_would_cost_is_a_failure_and_a_limit_is_a_warning() {
        assert_eq!(must_not_be_off("fsync", "off", "").verdict, Verdict::Fail);
        assert_eq!(
            must_not_be_off("synchronous_commit", "remote_write", "").verdict,
            Verdict::Ok
        );
        assert_eq!(isolation("serializable").verdict, Verdict::Warn);
        assert_eq!(isolation("read committed").verdict, Verdict::Ok);
        assert_eq!(primary(true, "off").verdict, Verdict::Warn);
        assert_eq!(primary(false, "on").verdict, Verdict::Warn);
        assert_eq!(primary(false, "off").verdict, Verdict::Ok);
        let verdicts = [12, 13, 14, 18].map(|major| version(major).verdict);
        assert_eq!(verdicts, [Verdict::Fail, Verdict::Warn, Verdict::Ok, Verdict::Ok]);
    }

    #[test]
    fn the_rights_are_those_of_the_guide() {
        let grants = include_str!("../../../../../docs/guide/grants.sql");
        for (table, needed) in RIGHTS {
            let tables = format!("steadfast.{table}");
            let names = |grant: &str| grant.split([' ', ',', '\n']).any(|word| word == tables);
            let grant = grants.split(';').find(|grant| names(grant));
            let grant = grant.unwrap_or_else(|| panic!("{table} is not granted"));
            assert!(grant.contains(&format!("GRANT {} ON", needed.join(", "))), "{grant}");
        }
    }
}
