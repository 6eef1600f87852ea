//! Bulk operations on SQLite.

use sqlx::{Sqlite, SqliteConnection};
use uuid::Uuid;

use super::super::letters::{OperationRow, Operations, read_operation};
use super::SqliteStore;
use crate::clock::Offset;
use crate::error::Result;

macro_rules! columns {
    () => {
        "
        SELECT id, verb, filter, operator, reason, state, expected, done, batches, cursor_item, cursor_kind, created_at,
               updated_at
        FROM steadfast_operations "
    };
}

impl Operations<Sqlite> for SqliteStore {
    async fn insert_operation(&self, conn: &mut SqliteConnection, row: &OperationRow) -> Result<()> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast_operations
                   (created_at, updated_at, expected, id, cursor_item, cursor_kind, verb, filter, operator, reason, state)
            VALUES ($1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        );
        sqlx::query(statement)
            .bind(row.created_at)
            .bind(row.expected)
            .bind(row.id.to_string())
            .bind(row.cursor.0.to_string())
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

    async fn lock_operation(&self, conn: &mut SqliteConnection, id: Uuid) -> Result<Option<OperationRow>> {
        let row = sqlx::query(self.names.sql(concat!(columns!(), "WHERE id = $1")))
            .bind(id.to_string())
            .fetch_optional(conn)
            .await
            .map_err(Self::fail("reading a bulk operation"))?;
        row.as_ref().map(read_operation).transpose()
    }

    async fn save_operation(&self, conn: &mut SqliteConnection, row: &OperationRow, offset: Offset) -> Result<i64> {
        let statement = self.names.sql(
            "
            UPDATE steadfast_operations
            SET updated_at = $1, done = $3, batches = $4, cursor_item = $5, cursor_kind = $6, state = $7
            WHERE id = $2
            RETURNING updated_at",
        );
        sqlx::query_scalar(statement)
            .bind(offset.now().0)
            .bind(row.id.to_string())
            .bind(row.done)
            .bind(row.batches)
            .bind(row.cursor.0.to_string())
            .bind(&row.cursor.1)
            .bind(&row.state)
            .fetch_one(conn)
            .await
            .map_err(Self::fail("writing how far a bulk operation has come"))
    }

    async fn list_operations(&self, first: Uuid, last: Uuid, limit: u32) -> Result<Vec<OperationRow>> {
        let statement = concat!(columns!(), "WHERE id BETWEEN $1 AND $2 ORDER BY id DESC LIMIT $3");
        let rows = sqlx::query(self.names.sql(statement))
            .bind(first.to_string())
            .bind(last.to_string())
            .bind(i64::from(limit))
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("listing bulk operations"))?;
        rows.iter().map(read_operation).collect()
    }

    async fn drop_lease(&self, conn: &mut SqliteConnection, name: &str) -> Result<()> {
        sqlx::query(self.names.sql("DELETE FROM steadfast_leases WHERE name = $1"))
            .bind(name)
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("forgetting a lease"))
    }
}
