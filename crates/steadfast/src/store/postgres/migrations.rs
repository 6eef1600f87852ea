//! Our tables on PostgreSQL: a schema of our own with a migration table of its own.

use sqlx::{PgExecutor, PgPool, Postgres, SqlStr};

use super::{AppliedMigration, CommitError, Migration, Names, PostgresStore, Store, begin_transaction};
use crate::clock::Timestamp;
use crate::error::Result;

pub(super) const ALL: &[Migration] = &[
    Migration {
        version: 1,
        name: "keys",
        sql: include_str!("migrations/0001_keys.sql"),
    },
    Migration {
        version: 2,
        name: "audit",
        sql: include_str!("migrations/0002_audit.sql"),
    },
    Migration {
        version: 3,
        name: "claim",
        sql: include_str!("migrations/0003_claim.sql"),
    },
    Migration {
        version: 4,
        name: "purge",
        sql: include_str!("migrations/0004_purge.sql"),
    },
    Migration {
        version: 5,
        name: "breakers",
        sql: include_str!("migrations/0005_breakers.sql"),
    },
    Migration {
        version: 6,
        name: "queue",
        sql: include_str!("migrations/0006_queue.sql"),
    },
    Migration {
        version: 7,
        name: "operations",
        sql: include_str!("migrations/0007_operations.sql"),
    },
    Migration {
        version: 8,
        name: "streams",
        sql: include_str!("migrations/0008_streams.sql"),
    },
    Migration {
        version: 9,
        name: "inbox",
        sql: include_str!("migrations/0009_inbox.sql"),
    },
    Migration {
        version: 10,
        name: "letters",
        sql: include_str!("migrations/0010_letters.sql"),
    },
    Migration {
        version: 11,
        name: "jobs",
        sql: include_str!("migrations/0011_jobs.sql"),
    },
    Migration {
        version: 12,
        name: "queues",
        sql: include_str!("migrations/0012_queues.sql"),
    },
    Migration {
        version: 13,
        name: "schedules",
        sql: include_str!("migrations/0013_schedules.sql"),
    },
    Migration {
        version: 14,
        name: "runs",
        sql: include_str!("migrations/0014_runs.sql"),
    },
    Migration {
        version: 15,
        name: "finish",
        sql: include_str!("migrations/0015_finish.sql"),
    },
];

pub(super) const BOOTSTRAP: &str = "\
CREATE SCHEMA IF NOT EXISTS steadfast;
CREATE TABLE IF NOT EXISTS steadfast.migrations (
    version    bigint      NOT NULL PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
";

pub(super) const RECORD: &str = "INSERT INTO steadfast.migrations (version, name) VALUES ($1, $2)";

/// A migration is our own code, so only a dead client sits idle in it.
const BEGIN: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '60s'";

/// The last migration that ran; `None` if there is no migration table.
pub(super) async fn version(pool: &PgPool, names: &Names) -> Result<Option<i64>> {
    if !has_table(pool, names).await? {
        return Ok(None);
    }
    sqlx::query_scalar(names.sql("SELECT max(version) FROM steadfast.migrations"))
        .fetch_one(pool)
        .await
        .map_err(|error| PostgresStore::error(error, "reading the version of the tables"))
}

/// What has run, in order; nothing if there is no migration table.
pub(super) async fn applied(pool: &PgPool, names: &Names) -> Result<Vec<AppliedMigration>> {
    if !has_table(pool, names).await? {
        return Ok(Vec::new());
    }
    let statement = names.sql(
        "
        SELECT version, name, (extract(epoch FROM applied_at) * 1000000)::bigint
        FROM steadfast.migrations
        ORDER BY version",
    );
    let rows: Vec<(i64, String, i64)> = sqlx::query_as(statement)
        .fetch_all(pool)
        .await
        .map_err(|error| PostgresStore::error(error, "reading which migrations ran"))?;
    let applied = |(version, name, applied_at)| AppliedMigration {
        version,
        name,
        applied_at: Timestamp(applied_at),
    };
    Ok(rows.into_iter().map(applied).collect())
}

async fn has_table<'e>(executor: impl PgExecutor<'e>, names: &Names) -> Result<bool> {
    sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
        .bind(format!("{}.migrations", names.quoted()))
        .fetch_one(executor)
        .await
        .map_err(|error| PostgresStore::error(error, "looking for the tables"))
}

/// Runs what is missing in one transaction, under a lock that ends with it: two deployments at once are one.
pub(super) async fn run(store: &PostgresStore) -> Result<usize> {
    let fail = |error| PostgresStore::error(error, "running the migrations");
    let mut conn = store.acquire().await?;
    begin_transaction::<Postgres>(&mut conn, SqlStr::from_static(BEGIN))
        .await
        .map_err(fail)?;
    // Should anything below fail, the transaction is open: such a connection must not be borrowed again.
    conn.close_on_drop();
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))")
        .bind(format!("{}.migrations", store.names.name()))
        .execute(&mut *conn)
        .await
        .map_err(fail)?;
    // A deployment role may own the tables without the right to create a schema, so what is there is left alone.
    if !has_table(&mut *conn, &store.names).await? {
        sqlx::raw_sql(store.names.sql(BOOTSTRAP))
            .execute(&mut *conn)
            .await
            .map_err(fail)?;
    }
    let done: Option<i64> = sqlx::query_scalar(store.names.sql("SELECT max(version) FROM steadfast.migrations"))
        .fetch_one(&mut *conn)
        .await
        .map_err(fail)?;
    let missing = ALL.iter().filter(|migration| migration.version > done.unwrap_or(0));
    let mut count = 0;
    for migration in missing {
        sqlx::raw_sql(store.names.sql(migration.sql))
            .execute(&mut *conn)
            .await
            .map_err(fail)?;
        sqlx::query(store.names.sql(RECORD))
            .bind(migration.version)
            .bind(migration.name)
            .execute(&mut *conn)
            .await
            .map_err(fail)?;
        count += 1;
    }
    match store.commit(&mut conn).await {
        Ok(()) => Ok(count),
        Err(CommitError::Refused(error) | CommitError::Unknown(error)) => Err(error),
    }
}
