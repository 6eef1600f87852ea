//! Our tables on SQLite: a prefix of our own, with a migration table of its own.

use sqlx::SqlitePool;

use super::{AppliedMigration, CommitError, Migration, Names, Seal, SqliteStore, Store};
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
CREATE TABLE IF NOT EXISTS steadfast_migrations (
    version    INTEGER NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at INTEGER NOT NULL  -- microseconds since 1970
);
";

pub(super) const RECORD: &str = "\
INSERT INTO steadfast_migrations (version, name, applied_at)
VALUES ($1, $2, CAST(strftime('%s', 'now') AS INTEGER) * 1000000)";

/// The last migration that ran; `None` if there is no migration table.
pub(super) async fn version(pool: &SqlitePool, names: &Names) -> Result<Option<i64>> {
    if !has_table(pool, names).await? {
        return Ok(None);
    }
    sqlx::query_scalar(names.sql("SELECT max(version) FROM steadfast_migrations"))
        .fetch_one(pool)
        .await
        .map_err(|error| SqliteStore::error(error, "reading the version of the tables"))
}

/// What has run, in order; nothing if there is no migration table.
pub(super) async fn applied(pool: &SqlitePool, names: &Names) -> Result<Vec<AppliedMigration>> {
    if !has_table(pool, names).await? {
        return Ok(Vec::new());
    }
    let rows: Vec<(i64, String, i64)> =
        sqlx::query_as(names.sql("SELECT version, name, applied_at FROM steadfast_migrations ORDER BY version"))
            .fetch_all(pool)
            .await
            .map_err(|error| SqliteStore::error(error, "reading which migrations ran"))?;
    let applied = |(version, name, applied_at)| AppliedMigration {
        version,
        name,
        applied_at: Timestamp(applied_at),
    };
    Ok(rows.into_iter().map(applied).collect())
}

async fn has_table(pool: &SqlitePool, names: &Names) -> Result<bool> {
    sqlx::query_scalar("SELECT count(*) > 0 FROM sqlite_schema WHERE type = 'table' AND name = $1")
        .bind(format!("{}_migrations", names.name()))
        .fetch_one(pool)
        .await
        .map_err(|error| SqliteStore::error(error, "looking for the tables"))
}

/// Runs what is missing in one transaction: whoever has the write lock is alone.
pub(super) async fn run(store: &SqliteStore) -> Result<usize> {
    let fail = |error| SqliteStore::error(error, "running the migrations");
    // Should anything below fail, the turn is dropped, and what it did undone.
    let mut turn = store.writer.take_turn(true).await?;
    sqlx::raw_sql(store.names.sql(BOOTSTRAP))
        .execute(&mut *turn)
        .await
        .map_err(fail)?;
    let done: Option<i64> = sqlx::query_scalar(store.names.sql("SELECT max(version) FROM steadfast_migrations"))
        .fetch_one(&mut *turn)
        .await
        .map_err(fail)?;
    let missing = ALL.iter().filter(|migration| migration.version > done.unwrap_or(0));
    let mut count = 0;
    for migration in missing {
        sqlx::raw_sql(store.names.sql(migration.sql))
            .execute(&mut *turn)
            .await
            .map_err(fail)?;
        sqlx::query(store.names.sql(RECORD))
            .bind(migration.version)
            .bind(migration.name)
            .execute(&mut *turn)
            .await
            .map_err(fail)?;
        count += 1;
    }
    store.seal(&mut turn, &Seal::NOTHING).await?;
    match turn.commit().await {
        Ok(()) => Ok(count),
        Err(CommitError::Refused(error) | CommitError::Unknown(error)) => Err(error),
    }
}
