//! The audit table on PostgreSQL.

use sqlx::PgConnection;

use super::{Names, PostgresStore, Store};
use crate::audit::AuditEntry;
use crate::clock::Offset;
use crate::error::Result;

/// Appends an entry in the transaction it is about.
pub(super) async fn append(conn: &mut PgConnection, names: &Names, entry: &AuditEntry, offset: Offset) -> Result<()> {
    let statement = names.sql(
        "
        INSERT INTO steadfast.audit (at, actor, action, subject, reason)
        VALUES (clock_timestamp() + $1 * interval '1 microsecond', $2, $3, $4, $5)",
    );
    sqlx::query(statement)
        .bind(offset.0)
        .bind(&entry.actor)
        .bind(&entry.action)
        .bind(&entry.subject)
        .bind(&entry.reason)
        .execute(conn)
        .await
        .map(drop)
        .map_err(|error| PostgresStore::error(error, "writing an audit entry"))
}
