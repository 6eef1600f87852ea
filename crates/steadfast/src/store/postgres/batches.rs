//! Batches on PostgreSQL.

use sqlx::{PgConnection, Postgres};
use uuid::Uuid;

use super::super::batches::{BatchLook, Batches, Member, counted};
use super::PostgresStore;
use crate::clock::{Offset, Timestamp};
use crate::error::Result;
use crate::job::BatchCounts;

impl Batches<Postgres> for PostgresStore {
    async fn join_batches(&self, conn: &mut PgConnection, members: &[Member]) -> Result<()> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast.members (item, batch)
            SELECT m.item, m.batch FROM unnest($1::uuid[], $2::uuid[]) AS m (item, batch)",
        );
        sqlx::query(statement)
            .bind(members.iter().map(|(item, _)| *item).collect::<Vec<_>>())
            .bind(members.iter().map(|(_, batch)| *batch).collect::<Vec<_>>())
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
            SELECT EXISTS (
                       SELECT
                       FROM (SELECT item FROM steadfast.members WHERE batch = $1 ORDER BY item DESC) AS m
                       CROSS JOIN LATERAL (
                           SELECT FROM steadfast.queue WHERE item = m.item AND state <> 'dead' OFFSET 0) AS q
                       LIMIT 1),
                   (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $2",
        );
        let (is_open, now): (bool, i64) = sqlx::query_as(statement)
            .bind(batch)
            .bind(offset.0)
            .fetch_one(&self.pool)
            .await
            .map_err(Self::fail("looking at a batch"))?;
        Ok(BatchLook::new(is_open, since, now))
    }

    async fn count_batch(&self, batch: Uuid) -> Result<BatchCounts> {
        let statement = self.names.sql(
            "
            WITH bounds AS MATERIALIZED (
                SELECT (SELECT item FROM steadfast.members WHERE batch = $1 ORDER BY item LIMIT 1)      AS first,
                       (SELECT item FROM steadfast.members WHERE batch = $1 ORDER BY item DESC LIMIT 1) AS last
            ), ended AS MATERIALIZED (
                -- By a range of ids: the index on them is coarse, and has only that.
                SELECT item, state
                FROM steadfast.history
                WHERE item >= (SELECT first FROM bounds) AND item <= (SELECT last FROM bounds)
            )
            SELECT coalesce(q.state, e.state), count(*)
            FROM steadfast.members AS m
            LEFT JOIN steadfast.queue AS q ON q.item = m.item
            LEFT JOIN ended AS e ON e.item = m.item
            WHERE m.batch = $1
            GROUP BY 1",
        );
        let states: Vec<(Option<String>, i64)> = sqlx::query_as(statement)
            .bind(batch)
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("counting a batch"))?;
        Ok(counted(&states))
    }
}
