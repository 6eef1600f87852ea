//! Batches on SQLite.

use serde_json::json;
use sqlx::{Sqlite, SqliteConnection};
use uuid::Uuid;

use super::super::batches::{BatchLook, Batches, Member, counted};
use super::SqliteStore;
use crate::clock::{Offset, Timestamp};
use crate::error::Result;
use crate::job::BatchCounts;

impl Batches<Sqlite> for SqliteStore {
    async fn join_batches(&self, conn: &mut SqliteConnection, members: &[Member]) -> Result<()> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast_members (item, batch)
            SELECT m.value ->> 0, m.value ->> 1 FROM json_each($1) AS m",
        );
        let members: Vec<_> = members
            .iter()
            .map(|(item, batch)| (item.to_string(), batch.to_string()))
            .collect();
        sqlx::query(statement)
            .bind(json!(members).to_string())
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("writing which jobs belong together"))
    }

    /// From the newest on: those that were enqueued first have ended first, as a rule. One statement, which sees what committed before
    /// it and nothing else: a job that ends and one that it enqueued in that transaction are never both missed.
    async fn look_at_batch(&self, batch: Uuid, since: Timestamp, offset: Offset) -> Result<BatchLook> {
        let statement = self.names.sql(
            "
            SELECT EXISTS (SELECT 1
                           FROM steadfast_members AS m
                           -- CROSS: in this order, or all rows of the queue would be read.
                           CROSS JOIN steadfast_queue AS q ON q.item = m.item AND q.state <> 'dead'
                           WHERE m.batch = $1
                           ORDER BY m.item DESC
                           LIMIT 1)",
        );
        let is_open: bool = sqlx::query_scalar(statement)
            .bind(batch.to_string())
            .fetch_one(&self.readers)
            .await
            .map_err(Self::fail("looking at a batch"))?;
        Ok(BatchLook::new(is_open, since, offset.now().0))
    }

    async fn count_batch(&self, batch: Uuid) -> Result<BatchCounts> {
        let statement = self.names.sql(
            "
            SELECT coalesce(q.state, h.state), count(*)
            FROM steadfast_members AS m
            LEFT JOIN steadfast_queue AS q ON q.item = m.item
            LEFT JOIN steadfast_history AS h ON h.item = m.item
            WHERE m.batch = $1
            GROUP BY 1",
        );
        let states: Vec<(Option<String>, i64)> = sqlx::query_as(statement)
            .bind(batch.to_string())
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("counting a batch"))?;
        Ok(counted(&states))
    }
}
