//! The audit table on PostgreSQL.

use sqlx::{PgConnection, PgPool};

use super::{Names, PostgresStore, Store};
use crate::audit::{AuditEntry, AuditFilter, AuditRow};
use crate::clock::Offset;
use crate::error::Result;
use crate::page;

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

/// Entries, newest first.
pub(super) async fn list(pool: &PgPool, names: &Names, filter: &AuditFilter) -> Result<Vec<AuditRow>> {
    let statement = names.sql(
        "
        SELECT id, (extract(epoch FROM at) * 1000000)::bigint, actor, action, subject, reason
        FROM steadfast.audit
        WHERE id < $1
          AND ($2::text IS NULL OR actor = $2)
          AND ($3::text IS NULL OR action = $3)
          AND ($4::bigint IS NULL OR at >= timestamptz 'epoch' + $4 * interval '1 microsecond')
        ORDER BY id DESC
        LIMIT $5",
    );
    sqlx::query_as(statement)
        .bind(filter.before)
        .bind(&filter.actor)
        .bind(&filter.action)
        .bind(filter.since.map(|since| since.0))
        .bind(i64::from(page::rows_wanted(filter.limit)))
        .fetch_all(pool)
        .await
        .map_err(|error| PostgresStore::error(error, "reading the audit"))
}
