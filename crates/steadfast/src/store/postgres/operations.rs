//! Bulk operations on PostgreSQL.

use sqlx::{PgConnection, Postgres};
use uuid::Uuid;

use super::super::letters::{OperationRow, Operations, read_operation};
use super::PostgresStore;
use crate::clock::Offset;
use crate::error::Result;

macro_rules! columns {
    () => {
        "
        SELECT id::text AS id, verb, filter, operator, reason, state, expected, done, batches,
               cursor_item::text AS cursor_item, cursor_kind,
               (extract(epoch FROM created_at) * 1000000)::bigint AS created_at,
               (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at
        FROM steadfast.operations "
    };
}

impl Operations<Postgres> for PostgresStore {
    async fn insert_operation(&self, conn: &mut PgConnection, row: &OperationRow) -> Result<()> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast.operations
                   (created_at, updated_at, expected, id, cursor_item, cursor_kind, verb, filter, operator, reason, state)
            VALUES (timestamptz 'epoch' + $1 * interval '1 microsecond', timestamptz 'epoch' + $1 * interval '1 microsecond',
                    $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        );
        sqlx::query(statement)
            .bind(row.created_at)
            .bind(row.expected)
            .bind(row.id)
            .bind(row.cursor.0)
            .bind(&row.cursor.1)
            .bind(&row.verb)
            .bind(&row.filter)
            .bind(&row.operator)
            .bind(&row.reason)
            .bind(&row.state)
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("writing a bulk operation"))
    }

    async fn lock_operation(&self, conn: &mut PgConnection, id: Uuid) -> Result<Option<OperationRow>> {
        let row = sqlx::query(
            self.names
                .sql(concat!(columns!(), "WHERE operations.id = $1 FOR UPDATE")),
        )
        .bind(id)
        .fetch_optional(conn)
        .await
        .map_err(Self::fail("reading a bulk operation"))?;
        row.as_ref().map(read_operation).transpose()
    }

    async fn save_operation(&self, conn: &mut PgConnection, row: &OperationRow, offset: Offset) -> Result<i64> {
        let statement = self.names.sql(
            "
            UPDATE steadfast.operations
            SET updated_at = clock_timestamp() + $1 * interval '1 microsecond',
                done = $3, batches = $4, cursor_item = $5, cursor_kind = $6, state = $7
            WHERE id = $2
            RETURNING (extract(epoch FROM updated_at) * 1000000)::bigint",
        );
        sqlx::query_scalar(statement)
            .bind(offset.0)
            .bind(row.id)
            .bind(row.done)
            .bind(row.batches)
            .bind(row.cursor.0)
            .bind(&row.cursor.1)
            .bind(&row.state)
            .fetch_one(conn)
            .await
            .map_err(Self::fail("writing how far a bulk operation has come"))
    }

    async fn list_operations(&self, first: Uuid, last: Uuid, limit: u32) -> Result<Vec<OperationRow>> {
        let statement = concat!(
            columns!(),
            "WHERE operations.id BETWEEN $1 AND $2 ORDER BY operations.id DESC LIMIT $3"
        );
        let rows = sqlx::query(self.names.sql(statement))
            .bind(first)
            .bind(last)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("listing bulk operations"))?;
        rows.iter().map(read_operation).collect()
    }

    async fn drop_lease(&self, conn: &mut PgConnection, name: &str) -> Result<()> {
        sqlx::query(self.names.sql("DELETE FROM steadfast.leases WHERE name = $1"))
            .bind(name)
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("forgetting a lease"))
    }
}
