//! The audit table on SQLite.

use sqlx::{SqliteConnection, SqlitePool};

use super::{Names, SqliteStore, Store};
use crate::audit::{AuditEntry, AuditFilter, AuditRow};
use crate::clock::Offset;
use crate::error::Result;
use crate::page;

/// Appends an entry in the transaction it is about.
pub(super) async fn append(
    conn: &mut SqliteConnection,
    names: &Names,
    entry: &AuditEntry,
    offset: Offset,
) -> Result<()> {
    let statement = names.sql(
        "
        INSERT INTO steadfast_audit (at, actor, action, subject, reason)
        VALUES ($1, $2, $3, $4, $5)",
    );
    sqlx::query(statement)
        .bind(offset.now().0)
        .bind(&entry.actor)
        .bind(&entry.action)
        .bind(&entry.subject)
        .bind(&entry.reason)
        .execute(conn)
        .await
        .map(drop)
        .map_err(|error| SqliteStore::error(error, "writing an audit entry"))
}

/// Entries, newest first.
pub(super) async fn list(readers: &SqlitePool, names: &Names, filter: &AuditFilter) -> Result<Vec<AuditRow>> {
    let statement = names.sql(
        "
        SELECT id, at, actor, action, subject, reason
        FROM steadfast_audit
        WHERE id < $1
          AND ($2 IS NULL OR actor = $2)
          AND ($3 IS NULL OR action = $3)
          AND ($4 IS NULL OR at >= $4)
        ORDER BY id DESC
        LIMIT $5",
    );
    sqlx::query_as(statement)
        .bind(filter.before)
        .bind(&filter.actor)
        .bind(&filter.action)
        .bind(filter.since.map(|since| since.0))
        .bind(i64::from(page::rows_wanted(filter.limit)))
        .fetch_all(readers)
        .await
        .map_err(|error| SqliteStore::error(error, "reading the audit"))
}
