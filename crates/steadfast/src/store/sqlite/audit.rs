//! The audit table on SQLite.

use sqlx::SqliteConnection;

use super::{Names, SqliteStore, Store};
use crate::audit::AuditEntry;
use crate::clock::Offset;
use crate::error::Result;

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
