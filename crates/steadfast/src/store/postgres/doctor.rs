//! What endangers a PostgreSQL database: how durable its commits are, who stands between, and what the role may do.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::{PgConnection, Postgres, Row, SqlStr};

use super::{Names, PostgresStore, Store, begin_transaction, keys, rollback_transaction};
use crate::clock::micros;
use crate::doctor::Check;
use crate::error::{Error, Result};

/// How far two clocks may be apart before people who compare their logs are misled. Nothing of ours depends on it.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(5);

/// The first version with TID range scans, which make the purge read a page once, and with a look at the client's
/// connection in the middle of a statement.
const VERSION_WANTED: i32 = 14;
const VERSION_MIN: i32 = 13;

/// What a service needs on each table, as `docs/guide/grants.sql` says.
const RIGHTS: [(&str, &[&str]); 6] = [
    ("migrations", &["SELECT"]),
    ("keys", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("leases", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("usage", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("breakers", &["SELECT", "INSERT", "UPDATE"]),
    ("audit", &["INSERT"]),
];

pub(super) async fn examine(store: &PostgresStore) -> Result<Vec<Check>> {
    let mut conn = store.acquire().await?;
    let mut checks = settings(&mut conn).await?;
    checks.push(clock(&mut conn).await?);
    checks.extend(rights(&mut conn, &store.names).await?);
    let watches = store.watch_millis(&mut conn).await > 0;
    checks.push(client_check(watches));
    checks.push(pooler(store, &mut conn).await?);
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
               pg_is_in_recovery()                                  AS is_standby",
    )
    .fetch_one(conn)
    .await
    .map_err(fail)?;
    let word = |column: &str| row.try_get::<String, _>(column).map_err(fail);
    Ok(vec![
        version(row.try_get("version").map_err(fail)?),
        standby(row.try_get("is_standby").map_err(fail)?),
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

fn standby(is_standby: bool) -> Check {
    if is_standby {
        return Check::warn(
            "primary",
            "the server is a standby: it can be read, and refuses commands (SF113)",
            "point the service at the primary, for example with target_session_attrs in front of it",
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
    let (mut missing, mut has_tables) = (Vec::new(), false);
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
/// A connection that is asked between transactions, while another one is inside of one, shows it: either the two share a
/// process, or the first has got another one. A pooler with one process to spare for each client cannot be told from none.
async fn pooler(store: &PostgresStore, conn: &mut PgConnection) -> Result<Check> {
    let first = process(conn).await?;
    let mut other = store.acquire().await?;
    // Should anything below fail, or be dropped, the transaction is open: such a connection must not be borrowed again.
    other.close_on_drop();
    begin_transaction::<Postgres>(&mut other, SqlStr::from_static("BEGIN"))
        .await
        .map_err(fail)?;
    let others = process(&mut other).await?;
    let again = process(conn).await?;
    rollback_transaction::<Postgres>(&mut other).await.map_err(fail)?;
    Ok(if first == others || first != again {
        Check::warn(
            "pooler",
            "a pooler in transaction mode stands between: two connections shared a server process",
            "use a pooler in session mode, or connect directly; transaction mode is not tested",
        )
    } else {
        Check::ok("pooler", "each connection has a server process of its own")
    })
}

async fn process(conn: &mut PgConnection) -> Result<i32> {
    sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(conn)
        .await
        .map_err(fail)
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
        let verdicts = [12, 13, 14, 18].map(|major| version(major).verdict);
        assert_eq!(verdicts, [Verdict::Fail, Verdict::Warn, Verdict::Ok, Verdict::Ok]);
    }

    #[test]
    fn the_rights_are_those_of_the_guide() {
        let grants = include_str!("../../../../../docs/guide/grants.sql");
        for (table, needed) in RIGHTS {
            let tables = format!("steadfast.{table}");
            let line = grants
                .lines()
                .find(|line| line.contains("GRANT") && line.contains(&tables));
            let line = line.unwrap_or_else(|| panic!("{table} is not granted"));
            assert!(line.starts_with(&format!("GRANT {} ON", needed.join(", "))), "{line}");
        }
    }
}
