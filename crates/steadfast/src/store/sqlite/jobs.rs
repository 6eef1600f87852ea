//! Queues and unique keys on SQLite.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{Row, Sqlite, SqliteConnection};
use uuid::Uuid;

use super::outbox::when_due;
use super::{Names, SqliteStore, Store};
use crate::clock::{Offset, micros};
use crate::error::{Code, Error, Result};
use crate::outbox::{FUTURE_MAX, When};
use crate::store::jobs::{Jobs, QueueRow, QueueStateRow, UniqueHolder, UniqueWish};

/// How many keys are forgotten by one statement.
const FORGOTTEN_AT_ONCE: i64 = 1_000;

/// Writes which queues there are, and their limits. One that begins to have another rate begins with all of it.
pub(super) async fn declare(
    conn: &mut SqliteConnection,
    names: &Names,
    queues: &[QueueRow],
    offset: Offset,
) -> Result<()> {
    let statement = names.sql(
        "
        INSERT INTO steadfast_queues AS u (name, running_max, key_running_max, rate_count, rate_every, declared_at)
        VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (name) DO UPDATE
        SET running_max     = excluded.running_max,
            key_running_max = excluded.key_running_max,
            tokens          = CASE WHEN u.rate_count = excluded.rate_count AND u.rate_every = excluded.rate_every THEN u.tokens END,
            rate_count      = excluded.rate_count,
            rate_every      = excluded.rate_every,
            declared_at     = excluded.declared_at",
    );
    for queue in queues {
        sqlx::query(statement.clone())
            .bind(&*queue.name)
            .bind(queue.running_max)
            .bind(queue.key_running_max)
            .bind(queue.rate.map(|rate| rate.0))
            .bind(queue.rate.map(|rate| micros(rate.1)))
            .bind(offset.now().0)
            .execute(&mut *conn)
            .await
            .map_err(|error| SqliteStore::error(error, "declaring queues"))?;
    }
    Ok(())
}

impl Jobs<Sqlite> for SqliteStore {
    async fn list_queues(&self) -> Result<Vec<QueueStateRow>> {
        let statement = self.names.sql(
            "
            SELECT u.name, u.running_max, u.key_running_max, u.rate_count, u.rate_every, u.tokens, u.tokens_at, u.paused_at,
                   u.paused_by, u.paused_reason,
                   (SELECT count(*)
                    FROM steadfast_slots AS s
                    CROSS JOIN steadfast_queue AS q ON q.item = s.item AND q.kind = s.kind AND q.epoch = s.epoch
                    WHERE s.queue = u.name AND q.state = 'leased') AS held
            FROM steadfast_queues AS u
            ORDER BY u.name",
        );
        let rows = sqlx::query(statement)
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("listing queues"))?;
        let read = |row: &sqlx::sqlite::SqliteRow| -> sqlx::Result<QueueStateRow> {
            Ok(QueueStateRow {
                name: row.try_get("name")?,
                running_max: row.try_get("running_max")?,
                key_running_max: row.try_get("key_running_max")?,
                rate_count: row.try_get("rate_count")?,
                rate_every: row.try_get("rate_every")?,
                tokens: row.try_get("tokens")?,
                tokens_at: row.try_get("tokens_at")?,
                paused_at: row.try_get("paused_at")?,
                paused_by: row.try_get("paused_by")?,
                paused_reason: row.try_get("paused_reason")?,
                held: row.try_get("held")?,
            })
        };
        rows.iter()
            .map(read)
            .collect::<sqlx::Result<_>>()
            .map_err(Self::fail("listing queues"))
    }

    async fn held_by_key(&self, chain: &str) -> Result<i64> {
        let statement = self.names.sql(
            "
            SELECT count(*)
            FROM steadfast_queue AS q
            JOIN steadfast_slots AS s ON s.item = q.item AND s.kind = q.kind AND s.epoch = q.epoch
            WHERE q.chain = $1 AND q.state = 'leased'",
        );
        sqlx::query_scalar(statement)
            .bind(chain)
            .fetch_one(&self.readers)
            .await
            .map_err(Self::fail("counting what runs of a key"))
    }

    async fn pause_queue(
        &self,
        conn: &mut SqliteConnection,
        name: &str,
        pause: Option<(&str, &str)>,
        offset: Offset,
    ) -> Result<()> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast_queues (name, declared_at, paused_at, paused_by, paused_reason)
            VALUES ($1, $2, CASE WHEN $3 IS NOT NULL THEN $2 END, $3, $4)
            ON CONFLICT (name) DO UPDATE
            SET paused_at     = excluded.paused_at,
                paused_by     = excluded.paused_by,
                paused_reason = excluded.paused_reason",
        );
        sqlx::query(statement)
            .bind(name)
            .bind(offset.now().0)
            .bind(pause.map(|(by, _)| by))
            .bind(pause.map(|(_, reason)| reason))
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("pausing a queue"))
    }

    async fn take_unique(
        &self,
        conn: &mut SqliteConnection,
        wish: &UniqueWish<'_>,
        offset: Offset,
    ) -> Result<UniqueHolder> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast_unique_jobs (key, item, kind, taken_at, held_until)
            VALUES ($1, $2, $3, $4, $4 + $5)
            ON CONFLICT (key) DO UPDATE SET key = excluded.key
            RETURNING item, kind, coalesce(held_until > $4, false)",
        );
        let (item, kind, is_held): (String, String, bool) = sqlx::query_as(statement)
            .bind(wish.key)
            .bind(wish.item.to_string())
            .bind(wish.kind)
            .bind(offset.now().0)
            .bind(wish.held_for.map(micros))
            .fetch_one(conn)
            .await
            .map_err(Self::fail("taking a unique key"))?;
        let item = parse(&item)?;
        Ok(UniqueHolder { item, kind, is_held })
    }

    async fn hand_over_unique(&self, conn: &mut SqliteConnection, wish: &UniqueWish<'_>, offset: Offset) -> Result<()> {
        let statement = self.names.sql(
            "
            UPDATE steadfast_unique_jobs
            SET item = $2, kind = $3, taken_at = $4, held_until = $4 + $5
            WHERE key = $1",
        );
        sqlx::query(statement)
            .bind(wish.key)
            .bind(wish.item.to_string())
            .bind(wish.kind)
            .bind(offset.now().0)
            .bind(wish.held_for.map(micros))
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("handing a unique key over"))
    }

    async fn lock_unique(&self, conn: &mut SqliteConnection, key: &str) -> Result<Option<(Uuid, String)>> {
        // Whoever has the turn is alone.
        let statement = self
            .names
            .sql("SELECT item, kind FROM steadfast_unique_jobs WHERE key = $1");
        let found: Option<(String, String)> = sqlx::query_as(statement)
            .bind(key)
            .fetch_optional(conn)
            .await
            .map_err(Self::fail("locking a unique key"))?;
        found.map(|(item, kind)| Ok((parse(&item)?, kind))).transpose()
    }

    async fn unique_keys(&self, conn: &mut SqliteConnection, items: &[Uuid]) -> Result<Vec<(Uuid, String)>> {
        let statement = self.names.sql(
            "
            SELECT m.id, m.unique_key
            FROM json_each($1) AS i
            CROSS JOIN steadfast_messages AS m ON m.id = i.value
            WHERE m.unique_key IS NOT NULL
            ORDER BY m.unique_key, m.id",
        );
        let rows: Vec<(String, String)> = sqlx::query_as(statement)
            .bind(json!(items.iter().map(Uuid::to_string).collect::<Vec<_>>()).to_string())
            .fetch_all(conn)
            .await
            .map_err(Self::fail("reading unique keys"))?;
        rows.into_iter().map(|(item, key)| Ok((parse(&item)?, key))).collect()
    }

    async fn lock_row(&self, conn: &mut SqliteConnection, item: Uuid, kind: &str) -> Result<Option<String>> {
        // Whoever has the turn is alone.
        let statement = self
            .names
            .sql("SELECT state FROM steadfast_queue WHERE item = $1 AND kind = $2");
        sqlx::query_scalar(statement)
            .bind(item.to_string())
            .bind(kind)
            .fetch_optional(conn)
            .await
            .map_err(Self::fail("locking a job"))
    }

    async fn reschedule(
        &self,
        conn: &mut SqliteConnection,
        rows: &[(Uuid, String)],
        due: When,
        offset: Offset,
    ) -> Result<()> {
        let statement = self.names.sql(
            "
            UPDATE steadfast_queue
            SET due_at = $2, visible_at = $2, number = CASE substr(chain, 1, 1) WHEN '/' THEN $2 ELSE number END
            WHERE (item, kind) IN (SELECT r.value ->> 0, r.value ->> 1 FROM json_each($1) AS r) AND state = 'pending'",
        );
        let rows = Value::from_iter(rows.iter().map(|(item, kind)| json!([item.to_string(), kind])));
        sqlx::query(statement)
            .bind(rows.to_string())
            .bind(when_due(due, offset.now()).0)
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("rescheduling jobs"))
    }

    async fn snooze(
        &self,
        conn: &mut SqliteConnection,
        rows: &[(Uuid, String)],
        time: Duration,
        offset: Offset,
    ) -> Result<()> {
        let statement = self.names.sql(
            "
            UPDATE steadfast_queue
            SET due_at     = min(max(due_at, $2) + $3, $4),
                visible_at = min(max(due_at, $2) + $3, $4),
                number     = CASE substr(chain, 1, 1) WHEN '/' THEN min(max(due_at, $2) + $3, $4) ELSE number END
            WHERE (item, kind) IN (SELECT r.value ->> 0, r.value ->> 1 FROM json_each($1) AS r) AND state = 'pending'",
        );
        let rows = Value::from_iter(rows.iter().map(|(item, kind)| json!([item.to_string(), kind])));
        let now = offset.now();
        sqlx::query(statement)
            .bind(rows.to_string())
            .bind(now.0)
            .bind(micros(time))
            .bind(now.after(FUTURE_MAX).0)
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("snoozing jobs"))
    }

    async fn forget_uniques(&self, offset: Offset) -> Result<u64> {
        let statement = self.names.sql(
            "
            DELETE FROM steadfast_unique_jobs
            WHERE key IN (
                SELECT u.key
                FROM steadfast_unique_jobs AS u
                WHERE coalesce(u.held_until, u.taken_at) <= $1
                  AND NOT EXISTS (SELECT 1 FROM steadfast_queue AS q WHERE q.item = u.item AND q.kind = u.kind)
                LIMIT $2)",
        );
        let mut turn = self.writer.take_turn(false).await?;
        let forgotten = sqlx::query(statement)
            .bind(offset.now().0)
            .bind(FORGOTTEN_AT_ONCE)
            .execute(&mut *turn)
            .await
            .map_err(Self::fail("forgetting unique keys"))?;
        self.end_turn(turn).await?;
        Ok(forgotten.rows_affected())
    }
}

fn parse(item: &str) -> Result<Uuid> {
    item.parse()
        .map_err(|error| Error::new(Code::Database, format!("{item:?} is not the id of a job")).with_source(error))
}
