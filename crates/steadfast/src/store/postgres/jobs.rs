//! Queues and unique keys on PostgreSQL.

use std::time::Duration;

use sqlx::{PgConnection, Postgres, Row};
use uuid::Uuid;

use super::outbox::due_columns;
use super::{Names, PostgresStore, Store};
use crate::clock::{Offset, micros};
use crate::error::Result;
use crate::outbox::{FUTURE_MAX, When};
use crate::store::jobs::{Jobs, QueueRow, QueueStateRow, UniqueHolder, UniqueWish};

/// How many keys are forgotten by one statement.
const FORGOTTEN_AT_ONCE: i64 = 1_000;

/// Writes which queues there are, and their limits. One that begins to have another rate begins with all of it.
pub(super) async fn declare(store: &PostgresStore, names: &Names, queues: &[QueueRow], offset: Offset) -> Result<()> {
    let statement = names.sql(
        "
        INSERT INTO steadfast.queues AS u (name, running_max, key_running_max, rate_count, rate_every, declared_at)
        SELECT q.name, q.running_max, q.key_running_max, q.rate_count, q.rate_every * interval '1 microsecond',
               clock_timestamp() + $1 * interval '1 microsecond'
        FROM unnest($2::text[], $3::integer[], $4::integer[], $5::integer[], $6::bigint[])
             AS q (name, running_max, key_running_max, rate_count, rate_every)
        ORDER BY q.name
        ON CONFLICT ON CONSTRAINT queues_one DO UPDATE
        SET running_max     = excluded.running_max,
            key_running_max = excluded.key_running_max,
            tokens          = CASE WHEN u.rate_count = excluded.rate_count AND u.rate_every = excluded.rate_every THEN u.tokens END,
            rate_count      = excluded.rate_count,
            rate_every      = excluded.rate_every,
            declared_at     = excluded.declared_at",
    );
    let number = |number: Option<u32>| number.map(|number| i32::try_from(number).unwrap_or(i32::MAX));
    sqlx::query(statement)
        .bind(offset.0)
        .bind(queues.iter().map(|queue| &*queue.name).collect::<Vec<_>>())
        .bind(queues.iter().map(|queue| number(queue.running_max)).collect::<Vec<_>>())
        .bind(
            queues
                .iter()
                .map(|queue| number(queue.key_running_max))
                .collect::<Vec<_>>(),
        )
        .bind(
            queues
                .iter()
                .map(|queue| number(queue.rate.map(|rate| rate.0)))
                .collect::<Vec<_>>(),
        )
        .bind(
            queues
                .iter()
                .map(|queue| queue.rate.map(|rate| micros(rate.1)))
                .collect::<Vec<_>>(),
        )
        .execute(&store.pool)
        .await
        .map(drop)
        .map_err(|error| PostgresStore::error(error, "declaring queues"))
}

impl Jobs<Postgres> for PostgresStore {
    async fn list_queues(&self) -> Result<Vec<QueueStateRow>> {
        let statement = self.names.sql(
            "
            SELECT u.name, u.running_max::bigint, u.key_running_max::bigint, u.rate_count::bigint,
                   (extract(epoch FROM u.rate_every) * 1000000)::bigint AS rate_every,
                   u.tokens, (extract(epoch FROM u.tokens_at) * 1000000)::bigint AS tokens_at,
                   (extract(epoch FROM u.paused_at) * 1000000)::bigint  AS paused_at, u.paused_by, u.paused_reason,
                   (SELECT count(*)
                    FROM steadfast.slots AS s
                    JOIN steadfast.queue AS q ON q.item = s.item AND q.kind = s.kind AND q.epoch = s.epoch
                    WHERE s.queue = u.name AND q.state = 'leased') AS held
            FROM steadfast.queues AS u
            ORDER BY u.name",
        );
        let rows = sqlx::query(statement)
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("listing queues"))?;
        let read = |row: &sqlx::postgres::PgRow| -> sqlx::Result<QueueStateRow> {
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
            FROM steadfast.queue AS q
            JOIN steadfast.slots AS s ON s.item = q.item AND s.kind = q.kind AND s.epoch = q.epoch
            WHERE q.chain = $1 AND q.state = 'leased'",
        );
        sqlx::query_scalar(statement)
            .bind(chain)
            .fetch_one(&self.pool)
            .await
            .map_err(Self::fail("counting what runs of a key"))
    }

    async fn pause_queue(
        &self,
        conn: &mut PgConnection,
        name: &str,
        pause: Option<(&str, &str)>,
        offset: Offset,
    ) -> Result<()> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast.queues (name, declared_at, paused_at, paused_by, paused_reason)
            SELECT $2, c.now, CASE WHEN $3::text IS NOT NULL THEN c.now END, $3, $4
            FROM (SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now) AS c
            ON CONFLICT ON CONSTRAINT queues_one DO UPDATE
            SET paused_at     = excluded.paused_at,
                paused_by     = excluded.paused_by,
                paused_reason = excluded.paused_reason",
        );
        sqlx::query(statement)
            .bind(offset.0)
            .bind(name)
            .bind(pause.map(|(by, _)| by))
            .bind(pause.map(|(_, reason)| reason))
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("pausing a queue"))
    }

    async fn take_unique(
        &self,
        conn: &mut PgConnection,
        wish: &UniqueWish<'_>,
        offset: Offset,
    ) -> Result<UniqueHolder> {
        // To write the same key again changes nothing, and locks the row.
        let statement = self.names.sql(
            "
            INSERT INTO steadfast.unique_jobs AS u (key, item, kind, taken_at, held_until)
            SELECT $2, $3, $4, c.now, c.now + $5 * interval '1 microsecond'
            FROM (SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now) AS c
            ON CONFLICT ON CONSTRAINT unique_jobs_one DO UPDATE SET key = excluded.key
            RETURNING item, kind, coalesce(held_until > clock_timestamp() + $1 * interval '1 microsecond', false)",
        );
        let (item, kind, is_held) = sqlx::query_as(statement)
            .bind(offset.0)
            .bind(wish.key)
            .bind(wish.item)
            .bind(wish.kind)
            .bind(wish.held_for.map(micros))
            .fetch_one(conn)
            .await
            .map_err(Self::fail("taking a unique key"))?;
        Ok(UniqueHolder { item, kind, is_held })
    }

    async fn hand_over_unique(&self, conn: &mut PgConnection, wish: &UniqueWish<'_>, offset: Offset) -> Result<()> {
        let statement = self.names.sql(
            "
            UPDATE steadfast.unique_jobs
            SET item = $3, kind = $4, taken_at = c.now, held_until = c.now + $5 * interval '1 microsecond'
            FROM (SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now) AS c
            WHERE key = $2",
        );
        sqlx::query(statement)
            .bind(offset.0)
            .bind(wish.key)
            .bind(wish.item)
            .bind(wish.kind)
            .bind(wish.held_for.map(micros))
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("handing a unique key over"))
    }

    async fn lock_unique(&self, conn: &mut PgConnection, key: &str) -> Result<Option<(Uuid, String)>> {
        let statement = self
            .names
            .sql("SELECT item, kind FROM steadfast.unique_jobs WHERE key = $1 FOR UPDATE");
        sqlx::query_as(statement)
            .bind(key)
            .fetch_optional(conn)
            .await
            .map_err(Self::fail("locking a unique key"))
    }

    async fn unique_keys(&self, conn: &mut PgConnection, items: &[Uuid]) -> Result<Vec<(Uuid, String)>> {
        let statement = self.names.sql(
            "SELECT id, unique_key FROM steadfast.messages WHERE id = ANY ($1) AND unique_key IS NOT NULL ORDER BY unique_key, id",
        );
        sqlx::query_as(statement)
            .bind(items)
            .fetch_all(conn)
            .await
            .map_err(Self::fail("reading unique keys"))
    }

    async fn lock_row(&self, conn: &mut PgConnection, item: Uuid, kind: &str) -> Result<Option<String>> {
        let statement = self
            .names
            .sql("SELECT state FROM steadfast.queue WHERE item = $1 AND kind = $2 FOR UPDATE");
        sqlx::query_scalar(statement)
            .bind(item)
            .bind(kind)
            .fetch_optional(conn)
            .await
            .map_err(Self::fail("locking a job"))
    }

    async fn reschedule(
        &self,
        conn: &mut PgConnection,
        rows: &[(Uuid, String)],
        due: When,
        offset: Offset,
    ) -> Result<()> {
        let (delay, due_at) = due_columns(due);
        let statement = self.names.sql(
            "
            UPDATE steadfast.queue AS q
            SET due_at = d.due_at, visible_at = d.due_at,
                number = CASE left(q.chain, 1) WHEN '/' THEN (extract(epoch FROM d.due_at) * 1000000)::bigint ELSE q.number END
            FROM unnest($2::uuid[], $3::text[]) AS r (item, kind),
                 (SELECT greatest(c.now, coalesce(timestamptz 'epoch' + $5 * interval '1 microsecond',
                                                  c.now + $4 * interval '1 microsecond')) AS due_at
                  FROM (SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now) AS c) AS d
            WHERE q.item = r.item AND q.kind = r.kind AND q.state = 'pending'",
        );
        sqlx::query(statement)
            .bind(offset.0)
            .bind(rows.iter().map(|(item, _)| *item).collect::<Vec<_>>())
            .bind(rows.iter().map(|(_, kind)| &**kind).collect::<Vec<_>>())
            .bind(delay)
            .bind(due_at)
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("rescheduling jobs"))
    }

    async fn snooze(
        &self,
        conn: &mut PgConnection,
        rows: &[(Uuid, String)],
        time: Duration,
        offset: Offset,
    ) -> Result<()> {
        let statement = self.names.sql(
            "
            UPDATE steadfast.queue AS q
            SET due_at = d.due_at, visible_at = d.due_at,
                number = CASE left(q.chain, 1) WHEN '/' THEN (extract(epoch FROM d.due_at) * 1000000)::bigint ELSE q.number END
            FROM (SELECT p.item, p.kind,
                         least(greatest(p.due_at, c.now) + $4 * interval '1 microsecond', c.now + $5 * interval '1 microsecond') AS due_at
                  FROM (SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now) AS c,
                       unnest($2::uuid[], $3::text[]) AS r (item, kind)
                  JOIN steadfast.queue AS p ON p.item = r.item AND p.kind = r.kind) AS d
            WHERE q.item = d.item AND q.kind = d.kind AND q.state = 'pending'",
        );
        sqlx::query(statement)
            .bind(offset.0)
            .bind(rows.iter().map(|(item, _)| *item).collect::<Vec<_>>())
            .bind(rows.iter().map(|(_, kind)| &**kind).collect::<Vec<_>>())
            .bind(micros(time))
            .bind(micros(FUTURE_MAX))
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("snoozing jobs"))
    }

    async fn forget_uniques(&self, offset: Offset) -> Result<u64> {
        let statement = self.names.sql(
            "
            DELETE FROM steadfast.unique_jobs AS d
            USING (SELECT u.key, u.item
                   FROM steadfast.unique_jobs AS u
                   WHERE coalesce(u.held_until, u.taken_at) <= clock_timestamp() + $1 * interval '1 microsecond'
                     AND NOT EXISTS (SELECT FROM steadfast.queue AS q WHERE q.item = u.item AND q.kind = u.kind)
                   LIMIT $2) AS s
            -- Whoever has got the key meanwhile is another one.
            WHERE d.key = s.key AND d.item = s.item",
        );
        let forgotten = sqlx::query(statement)
            .bind(offset.0)
            .bind(FORGOTTEN_AT_ONCE)
            .execute(&self.pool)
            .await
            .map_err(Self::fail("forgetting unique keys"))?;
        Ok(forgotten.rows_affected())
    }
}
