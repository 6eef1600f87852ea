//! Targets and kinds on PostgreSQL, for those who look after them.

use sqlx::{PgConnection, Postgres};

use super::super::letters::{KindRow, TargetLine, Targets, read_kind};
use super::PostgresStore;
use crate::clock::Offset;
use crate::error::Result;

impl Targets<Postgres> for PostgresStore {
    async fn list_targets(&self) -> Result<Vec<TargetLine>> {
        let statement = self.names.sql(
            "
            SELECT name, pattern, (extract(epoch FROM since) * 1000000)::bigint
            FROM steadfast.targets
            ORDER BY name, pattern",
        );
        sqlx::query_as(statement)
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("listing targets"))
    }

    async fn list_kinds(&self, limit: u32) -> Result<Vec<KindRow>> {
        // From one kind of the queue to the next by its index, however many rows each of them has.
        let statement = self.names.sql(
            "
            WITH RECURSIVE queued (kind) AS (
                (SELECT kind FROM steadfast.queue ORDER BY kind LIMIT 1)
                UNION ALL
                SELECT (SELECT q.kind FROM steadfast.queue AS q WHERE q.kind > queued.kind ORDER BY q.kind LIMIT 1)
                FROM queued
                WHERE queued.kind IS NOT NULL)
            SELECT a.kind, (extract(epoch FROM k.seen_at) * 1000000)::bigint AS seen_at,
                   (extract(epoch FROM k.paused_at) * 1000000)::bigint AS paused_at, k.paused_by, k.paused_reason,
                   (SELECT count(*)
                    FROM (SELECT 1 FROM steadfast.queue AS q
                          WHERE q.kind = a.kind AND q.visible_at < 'infinity' LIMIT $1) AS waiting) AS waiting,
                   (SELECT count(*)
                    FROM (SELECT 1 FROM steadfast.queue AS q
                          WHERE q.kind = a.kind AND q.visible_at = 'infinity' LIMIT $1) AS dead) AS dead
            FROM (SELECT kind FROM queued WHERE kind IS NOT NULL
                  UNION SELECT kind FROM steadfast.kinds
                  UNION SELECT name FROM steadfast.targets) AS a
            LEFT JOIN steadfast.kinds AS k ON k.kind = a.kind
            ORDER BY a.kind",
        );
        let rows = sqlx::query(statement)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("listing kinds"))?;
        rows.iter().map(read_kind).collect()
    }

    async fn pause_kinds(
        &self,
        conn: &mut PgConnection,
        target: &str,
        pause: Option<(&str, &str)>,
        offset: Offset,
    ) -> Result<u64> {
        let statement = self.names.sql(
            "
            UPDATE steadfast.kinds
            SET paused_at     = CASE WHEN $3::text IS NOT NULL THEN clock_timestamp() + $1 * interval '1 microsecond' END,
                paused_by     = $3,
                paused_reason = $4
            WHERE kind = $2 OR left(kind, length($2) + 1) = $2 || '@'",
        );
        sqlx::query(statement)
            .bind(offset.0)
            .bind(target)
            .bind(pause.map(|(operator, _)| operator))
            .bind(pause.map(|(_, reason)| reason))
            .execute(conn)
            .await
            .map(|changed| changed.rows_affected())
            .map_err(Self::fail("pausing a target"))
    }

    async fn remove_target(&self, conn: &mut PgConnection, target: &str) -> Result<bool> {
        let statement = self.names.sql(
            "
            WITH known AS (
                DELETE FROM steadfast.kinds WHERE kind = $1 OR left(kind, length($1) + 1) = $1 || '@' RETURNING 1
            ), gone AS (
                DELETE FROM steadfast.targets WHERE name = $1 RETURNING 1
            )
            SELECT (SELECT count(*) FROM known) + (SELECT count(*) FROM gone)",
        );
        let gone: i64 = sqlx::query_scalar(statement)
            .bind(target)
            .fetch_one(conn)
            .await
            .map_err(Self::fail("removing a target"))?;
        Ok(gone > 0)
    }
}
