//! Targets and kinds on SQLite, for those who look after them.

use sqlx::{Sqlite, SqliteConnection};

use super::super::letters::{KindRow, TargetLine, Targets, read_kind};
use super::SqliteStore;
use crate::clock::Offset;
use crate::error::Result;

impl Targets<Sqlite> for SqliteStore {
    async fn list_targets(&self) -> Result<Vec<TargetLine>> {
        let statement = self.names.sql(
            "
            SELECT name, pattern, since
            FROM steadfast_targets
            ORDER BY name, pattern",
        );
        sqlx::query_as(statement)
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("listing targets"))
    }

    async fn list_kinds(&self, limit: u32) -> Result<Vec<KindRow>> {
        // From one kind of the queue to the next by its index, however many rows each of them has.
        let statement = self.names.sql(
            "
            WITH RECURSIVE queued (kind) AS (
                SELECT (SELECT kind FROM steadfast_queue ORDER BY kind LIMIT 1)
                UNION ALL
                SELECT (SELECT q.kind FROM steadfast_queue AS q WHERE q.kind > queued.kind ORDER BY q.kind LIMIT 1)
                FROM queued
                WHERE queued.kind IS NOT NULL)
            SELECT a.kind, k.seen_at AS seen_at,
                   k.paused_at AS paused_at, k.paused_by, k.paused_reason,
                   (SELECT count(*)
                    FROM (SELECT 1 FROM steadfast_queue AS q
                          WHERE q.kind = a.kind AND q.visible_at < 9223372036854775807 LIMIT $1) AS waiting) AS waiting,
                   (SELECT count(*)
                    FROM (SELECT 1 FROM steadfast_queue AS q
                          WHERE q.kind = a.kind AND q.visible_at = 9223372036854775807 LIMIT $1) AS dead) AS dead
            FROM (SELECT kind FROM queued WHERE kind IS NOT NULL
                  UNION SELECT kind FROM steadfast_kinds
                  UNION SELECT name FROM steadfast_targets) AS a
            LEFT JOIN steadfast_kinds AS k ON k.kind = a.kind
            ORDER BY a.kind",
        );
        let rows = sqlx::query(statement)
            .bind(i64::from(limit))
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("listing kinds"))?;
        rows.iter().map(read_kind).collect()
    }

    async fn pause_kinds(
        &self,
        conn: &mut SqliteConnection,
        target: &str,
        pause: Option<(&str, &str)>,
        offset: Offset,
    ) -> Result<u64> {
        let statement = self.names.sql(
            "
            UPDATE steadfast_kinds
            SET paused_at     = CASE WHEN $3 IS NOT NULL THEN $1 END,
                paused_by     = $3,
                paused_reason = $4
            WHERE kind = $2 OR substr(kind, 1, length($2) + 1) = $2 || '@'",
        );
        sqlx::query(statement)
            .bind(offset.now().0)
            .bind(target)
            .bind(pause.map(|(operator, _)| operator))
            .bind(pause.map(|(_, reason)| reason))
            .execute(conn)
            .await
            .map(|changed| changed.rows_affected())
            .map_err(Self::fail("pausing a target"))
    }

    async fn remove_target(&self, conn: &mut SqliteConnection, target: &str) -> Result<bool> {
        let gone = [
            "DELETE FROM steadfast_kinds WHERE kind = $1 OR substr(kind, 1, length($1) + 1) = $1 || '@'",
            "DELETE FROM steadfast_targets WHERE name = $1",
        ];
        let mut count = 0;
        for statement in gone {
            let deleted = sqlx::query(self.names.sql(statement))
                .bind(target)
                .execute(&mut *conn)
                .await;
            count += deleted.map_err(Self::fail("removing a target"))?.rows_affected();
        }
        Ok(count > 0)
    }
}
