//! Records of the inbox on PostgreSQL, and the messages that consumers keep.

use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, Row};

use super::PostgresStore;
use super::queue::put_letters_in_line;
use crate::clock::{Offset, micros};
use crate::error::Result;
use crate::store::inbox::{CountedRecords, Inbox, KeptRow, RecordFilter, RecordKey, RecordRow};

impl Inbox<Postgres> for PostgresStore {
    /// A record of another transaction that has not ended is waited for. If that one commits, its record was there.
    ///
    /// The arrays are read by queries of their own: see `publish!` in `outbox.rs`.
    async fn claim_messages(
        &self,
        conn: &mut PgConnection,
        keys: &[&RecordKey],
        offset: Offset,
    ) -> Result<Vec<RecordKey>> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast.inbox (received_at, consumer, source, message_id)
            SELECT c.now, k.consumer, k.source, k.message_id
            FROM (SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now) AS c,
                 unnest((SELECT $2::text[]), (SELECT $3::text[]), (SELECT $4::text[])) AS k (consumer, source, message_id)
            ON CONFLICT ON CONSTRAINT inbox_one DO NOTHING
            RETURNING consumer, source, message_id",
        );
        let rows: Vec<(String, String, String)> = sqlx::query_as(statement)
            .bind(offset.0)
            .bind(keys.iter().map(|key| &*key.consumer).collect::<Vec<_>>())
            .bind(keys.iter().map(|key| &*key.source).collect::<Vec<_>>())
            .bind(keys.iter().map(|key| &*key.message_id).collect::<Vec<_>>())
            .fetch_all(conn)
            .await
            .map_err(Self::fail("claiming messages"))?;
        let key = |(consumer, source, message_id): (String, String, String)| RecordKey {
            consumer: consumer.into(),
            source: source.into(),
            message_id: message_id.into(),
        };
        Ok(rows.into_iter().map(key).collect())
    }

    /// A message that is there already, for another consumer or from an earlier time, is written anew: the purge, which may
    /// just be about to delete it, then leaves it alone. What differs in nothing from a dead letter is that one, and has come once
    /// more: its attempts say how often, and its broker has a copy of it already, or will have.
    async fn keep_messages(&self, conn: &mut PgConnection, kept: &[KeptRow<'_>], offset: Offset) -> Result<u64> {
        let statement = self.names.sql(concat!(
            "
            WITH clock AS MATERIALIZED (
                SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now
            ), input AS MATERIALIZED (
                SELECT i.*
                FROM unnest($2::text[], $3::text[], $4::text[], $5::uuid[], $6::text[], $7::text[], $8::integer[],
                            $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[],
                            $16::bytea[], $17::bigint[], $18::integer[], $19::text[], $20::text[], $21::text[],
                            $22::text[], $23::text[])
                     WITH ORDINALITY
                     AS i (consumer, record_source, message_id, item, kind, type, version, source, content_type,
                           correlation_id, causation_id, traceparent, ordering_key, headers, payload, after, attempt,
                           failure, code, message, fingerprint, letters, place)
            ), new AS (
                INSERT INTO steadfast.inbox (received_at, consumer, source, message_id, item)
                SELECT c.now, i.consumer, i.record_source, i.message_id, i.item
                FROM input AS i, clock AS c
                WHERE i.consumer IS NOT NULL
                ORDER BY i.place
                ON CONFLICT ON CONSTRAINT inbox_one DO NOTHING
                RETURNING consumer, source, message_id
            ), fresh AS MATERIALIZED (
                -- A message that was here before goes on counting: its failures are still known.
                SELECT i.*, coalesce((SELECT max(x.epoch) FROM steadfast.failures AS x
                                      WHERE x.item = i.item AND x.kind = i.kind), 0) AS epoch
                FROM input AS i
                LEFT JOIN new AS n
                       ON n.consumer = i.consumer AND n.source = i.record_source AND n.message_id = i.message_id
                WHERE i.consumer IS NULL OR n.consumer IS NOT NULL
            ), said AS (
                INSERT INTO steadfast.messages AS m
                       (number, created_at, version, id, type, source, content_type, correlation_id, causation_id,
                        traceparent, ordering_key, headers, payload)
                SELECT nextval('steadfast.numbers'), c.now, f.version, f.item, f.type, f.source, f.content_type,
                       f.correlation_id, f.causation_id, f.traceparent, f.ordering_key, f.headers, f.payload
                FROM (SELECT DISTINCT ON (item) * FROM fresh ORDER BY item, place) AS f, clock AS c
                ON CONFLICT ON CONSTRAINT messages_one DO UPDATE SET created_at = excluded.created_at
            ), once AS MATERIALIZED (
                SELECT DISTINCT ON (item, kind)
                       *, CASE WHEN consumer IS NULL THEN count(*) OVER (PARTITION BY item, kind) ELSE 1 END AS times
                FROM fresh
                ORDER BY item, kind, place
            ), queued AS (
                INSERT INTO steadfast.queue AS q
                       (due_at, item, kind, visible_at, began_at, epoch, attempts, state, letters)
                SELECT c.now + coalesce(f.after, 0) * interval '1 microsecond', f.item, f.kind,
                       CASE WHEN f.after IS NULL THEN 'infinity' ELSE c.now + f.after * interval '1 microsecond' END,
                       CASE WHEN f.attempt IS NOT NULL THEN c.now END,
                       f.epoch + CASE WHEN f.attempt IS NULL THEN 0 ELSE 1 END,
                       CASE WHEN f.attempt IS NULL THEN 0 ELSE f.times END,
                       CASE WHEN f.after IS NULL THEN 'dead' ELSE 'pending' END,
                       f.letters
                FROM once AS f, clock AS c
                ON CONFLICT ON CONSTRAINT queue_one DO UPDATE
                SET epoch = q.epoch + 1, attempts = q.attempts + excluded.attempts
                WHERE q.state = 'dead' AND excluded.state = 'dead'
                -- A row that was only updated has been locked before.
                RETURNING q.item, q.kind, q.epoch, q.attempts, q.state, q.letters, q.xmax = 0 AS is_new
            ), buried AS (
                SELECT * FROM queued WHERE is_new
            ), noted AS (
                INSERT INTO steadfast.failures (at, epoch, attempt, item, kind, failure, code, message, fingerprint)
                SELECT c.now, q.epoch, q.attempts, f.item, f.kind, f.failure, f.code, f.message, f.fingerprint
                FROM once AS f
                JOIN queued AS q ON q.item = f.item AND q.kind = f.kind, clock AS c
                WHERE f.attempt IS NOT NULL
                ON CONFLICT DO NOTHING
            ), ",
            put_letters_in_line!("buried"),
            "
            SELECT count(*) FROM fresh"
        ));
        let records = || kept.iter().map(|kept| kept.record);
        let failures = || kept.iter().map(|kept| kept.failure.as_ref());
        let fresh: i64 = sqlx::query_scalar(statement)
            .bind(offset.0)
            .bind(records().map(|key| key.map(|key| &*key.consumer)).collect::<Vec<_>>())
            .bind(records().map(|key| key.map(|key| &*key.source)).collect::<Vec<_>>())
            .bind(records().map(|key| key.map(|key| &*key.message_id)).collect::<Vec<_>>())
            .bind(kept.iter().map(|kept| kept.item).collect::<Vec<_>>())
            .bind(kept.iter().map(|kept| &*kept.kind).collect::<Vec<_>>())
            .bind(kept.iter().map(|kept| kept.event_type).collect::<Vec<_>>())
            .bind(kept.iter().map(|kept| count(kept.version)).collect::<Vec<_>>())
            .bind(kept.iter().map(|kept| kept.source).collect::<Vec<_>>())
            .bind(kept.iter().map(|kept| kept.content_type).collect::<Vec<_>>())
            .bind(kept.iter().map(|kept| kept.correlation_id).collect::<Vec<_>>())
            .bind(kept.iter().map(|kept| kept.causation_id).collect::<Vec<_>>())
            .bind(kept.iter().map(|kept| kept.traceparent).collect::<Vec<_>>())
            .bind(kept.iter().map(|kept| kept.ordering_key).collect::<Vec<_>>())
            .bind(kept.iter().map(|kept| &*kept.headers).collect::<Vec<_>>())
            .bind(kept.iter().map(|kept| kept.payload).collect::<Vec<_>>())
            .bind(kept.iter().map(|kept| kept.after.map(micros)).collect::<Vec<_>>())
            .bind(failures().map(|row| row.map(|row| row.attempt)).collect::<Vec<_>>())
            .bind(failures().map(|row| row.map(|row| &*row.failure)).collect::<Vec<_>>())
            .bind(failures().map(|row| row.map(|row| &*row.code)).collect::<Vec<_>>())
            .bind(failures().map(|row| row.map(|row| &*row.message)).collect::<Vec<_>>())
            .bind(
                failures()
                    .map(|row| row.map(|row| &*row.fingerprint))
                    .collect::<Vec<_>>(),
            )
            .bind(kept.iter().map(|kept| kept.letters).collect::<Vec<_>>())
            .fetch_one(conn)
            .await
            .map_err(Self::fail("keeping messages"))?;
        Ok(fresh.unsigned_abs())
    }

    async fn forget_targets(&self, consumers: &[Arc<str>]) -> Result<()> {
        sqlx::query(self.names.sql("DELETE FROM steadfast.targets WHERE name = ANY ($1)"))
            .bind(consumers.iter().map(|consumer| &**consumer).collect::<Vec<_>>())
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(Self::fail("removing targets"))
    }

    async fn list_records(&self, filter: &RecordFilter, limit: u32) -> Result<Vec<RecordRow>> {
        let statement = self.names.sql(
            "
            SELECT consumer, source, message_id, item,
                   (extract(epoch FROM received_at) * 1000000)::bigint AS received_at
            FROM steadfast.inbox
            WHERE ($1::text IS NULL OR (consumer, source, message_id) > ($1, $2, $3))
              AND ($4::text IS NULL OR consumer = $4)
              AND ($5::text IS NULL OR source = $5)
              AND ($6::text IS NULL OR message_id = $6)
              AND ($7::bigint IS NULL OR received_at >= to_timestamp(0) + $7 * interval '1 microsecond')
              AND ($8::bigint IS NULL OR received_at <= to_timestamp(0) + $8 * interval '1 microsecond')
            ORDER BY consumer, source, message_id
            LIMIT $9",
        );
        let (consumer, source, message_id) = filter.after.clone().map_or((None, None, None), |(one, two, three)| {
            (Some(one), Some(two), Some(three))
        });
        let rows: Vec<PgRow> = sqlx::query(statement)
            .bind(consumer)
            .bind(source)
            .bind(message_id)
            .bind(&filter.consumer)
            .bind(&filter.source)
            .bind(&filter.message_id)
            .bind(filter.since.map(|since| since.0))
            .bind(filter.until.map(|until| until.0))
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("reading the inbox"))?;
        let read = |row: &PgRow| {
            Ok(RecordRow {
                consumer: row.try_get("consumer")?,
                source: row.try_get("source")?,
                message_id: row.try_get("message_id")?,
                received_at: row.try_get("received_at")?,
                item: row.try_get("item")?,
            })
        };
        let records: sqlx::Result<_> = rows.iter().map(read).collect();
        records.map_err(Self::fail("reading the inbox"))
    }

    async fn count_records(&self, limit: u32) -> Result<Vec<CountedRecords>> {
        let statement = self.names.sql(
            "
            SELECT consumer, source, count(*),
                   (extract(epoch FROM min(received_at)) * 1000000)::bigint,
                   (extract(epoch FROM max(received_at)) * 1000000)::bigint
            FROM (SELECT consumer, source, received_at FROM steadfast.inbox LIMIT $1) AS looked
            GROUP BY consumer, source
            ORDER BY consumer, source",
        );
        let rows: Vec<(String, String, i64, i64, i64)> = sqlx::query_as(statement)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("counting the inbox"))?;
        let read = |(consumer, source, count, oldest, newest)| CountedRecords {
            consumer,
            source,
            count,
            oldest,
            newest,
        };
        Ok(rows.into_iter().map(read).collect())
    }
}

fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
