//! Records of the inbox on SQLite, and the messages that consumers keep.

use std::sync::Arc;

use serde_json::json;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite, SqliteConnection};
use uuid::Uuid;

use super::SqliteStore;
use super::queue::{NEVER, put_letters_in_line};
use crate::clock::{Offset, micros};
use crate::error::Result;
use crate::store::inbox::{CountedRecords, Inbox, KeptRow, RecordFilter, RecordKey, RecordRow};

impl Inbox<Sqlite> for SqliteStore {
    /// Whoever has the turn is alone. A record of an earlier turn may not be durable yet: who ends with nothing to do waits for
    /// that, as everybody does who rolls back.
    async fn claim_messages(
        &self,
        conn: &mut SqliteConnection,
        keys: &[&RecordKey],
        offset: Offset,
    ) -> Result<Vec<RecordKey>> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast_inbox (received_at, consumer, source, message_id)
            SELECT $2, k.value ->> 0, k.value ->> 1, k.value ->> 2
            FROM json_each($1) AS k
            WHERE true
            ON CONFLICT (consumer, source, message_id) DO NOTHING
            RETURNING consumer, source, message_id",
        );
        let encode = |key: &&RecordKey| json!([&*key.consumer, &*key.source, &*key.message_id]);
        let rows: Vec<(String, String, String)> = sqlx::query_as(statement)
            .bind(serde_json::Value::from_iter(keys.iter().map(encode)).to_string())
            .bind(offset.now().0)
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

    async fn keep_messages(&self, conn: &mut SqliteConnection, kept: &[KeptRow<'_>], offset: Offset) -> Result<u64> {
        let now = offset.now().0;
        let mut count = 0;
        for kept in kept {
            if self.is_new(conn, kept, now).await? {
                self.keep(conn, kept, now).await?;
                count += 1;
            }
        }
        Ok(count)
    }

    async fn forget_targets(&self, consumers: &[Arc<str>]) -> Result<()> {
        let mut turn = self.writer.take_turn(false).await?;
        let names: Vec<_> = consumers.iter().map(|consumer| &**consumer).collect();
        let statement = "DELETE FROM steadfast_targets WHERE name IN (SELECT value FROM json_each($1))";
        sqlx::query(self.names.sql(statement))
            .bind(json!(names).to_string())
            .execute(&mut *turn)
            .await
            .map_err(Self::fail("removing targets"))?;
        self.end_turn(turn).await
    }

    async fn list_records(&self, filter: &RecordFilter, limit: u32) -> Result<Vec<RecordRow>> {
        let statement = self.names.sql(
            "
            SELECT consumer, source, message_id, item, received_at
            FROM steadfast_inbox
            WHERE ($1 IS NULL OR (consumer, source, message_id) > ($1, $2, $3))
              AND ($4 IS NULL OR consumer = $4)
              AND ($5 IS NULL OR source = $5)
              AND ($6 IS NULL OR message_id = $6)
              AND ($7 IS NULL OR received_at >= $7)
              AND ($8 IS NULL OR received_at <= $8)
            ORDER BY consumer, source, message_id
            LIMIT $9",
        );
        let (consumer, source, message_id) = filter.after.clone().map_or((None, None, None), |(one, two, three)| {
            (Some(one), Some(two), Some(three))
        });
        let rows: Vec<SqliteRow> = sqlx::query(statement)
            .bind(consumer)
            .bind(source)
            .bind(message_id)
            .bind(&filter.consumer)
            .bind(&filter.source)
            .bind(&filter.message_id)
            .bind(filter.since.map(|since| since.0))
            .bind(filter.until.map(|until| until.0))
            .bind(i64::from(limit))
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("reading the inbox"))?;
        let read = |row: &SqliteRow| {
            let item: Option<&str> = row.try_get("item")?;
            Ok(RecordRow {
                consumer: row.try_get("consumer")?,
                source: row.try_get("source")?,
                message_id: row.try_get("message_id")?,
                received_at: row.try_get("received_at")?,
                item: item.and_then(|item| Uuid::parse_str(item).ok()),
            })
        };
        let records: sqlx::Result<_> = rows.iter().map(read).collect();
        records.map_err(Self::fail("reading the inbox"))
    }

    async fn count_records(&self, limit: u32) -> Result<Vec<CountedRecords>> {
        let statement = self.names.sql(
            "
            SELECT consumer, source, count(*), min(received_at), max(received_at)
            FROM (SELECT consumer, source, received_at FROM steadfast_inbox LIMIT $1) AS looked
            GROUP BY consumer, source
            ORDER BY consumer, source",
        );
        let rows: Vec<(String, String, i64, i64, i64)> = sqlx::query_as(statement)
            .bind(i64::from(limit))
            .fetch_all(&self.readers)
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

impl SqliteStore {
    /// Writes the record of a message that is kept, if it has one, and says whether it was not there.
    async fn is_new(&self, conn: &mut SqliteConnection, kept: &KeptRow<'_>, now: i64) -> Result<bool> {
        let Some(key) = kept.record else {
            return Ok(true);
        };
        let statement = self.names.sql(
            "
            INSERT INTO steadfast_inbox (received_at, consumer, source, message_id, item)
            VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT (consumer, source, message_id) DO NOTHING",
        );
        sqlx::query(statement)
            .bind(now)
            .bind(&*key.consumer)
            .bind(&*key.source)
            .bind(&*key.message_id)
            .bind(kept.item.to_string())
            .execute(conn)
            .await
            .map(|written| written.rows_affected() > 0)
            .map_err(Self::fail("keeping a message"))
    }

    /// Writes a message, and its row of the queue. One that is there already, for another consumer or from an earlier time, is
    /// as new as this one from now on. What differs in nothing from a dead letter is that one, and has come once more: its attempts
    /// say how often, and its broker has a copy of it already, or will have.
    async fn keep(&self, conn: &mut SqliteConnection, kept: &KeptRow<'_>, now: i64) -> Result<()> {
        let say = self.names.sql(
            "
            INSERT INTO steadfast_messages
                   (created_at, version, id, type, source, content_type, correlation_id, causation_id, traceparent,
                    ordering_key, headers, payload)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
            ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at",
        );
        let item = kept.item.to_string();
        sqlx::query(say)
            .bind(now)
            .bind(kept.version)
            .bind(&*item)
            .bind(kept.event_type)
            .bind(kept.source)
            .bind(kept.content_type)
            .bind(kept.correlation_id)
            .bind(kept.causation_id)
            .bind(kept.traceparent)
            .bind(kept.ordering_key)
            .bind(&*kept.headers)
            .bind(kept.payload)
            .execute(&mut *conn)
            .await
            .map_err(Self::fail("keeping a message"))?;
        let queue = self.names.sql(
            "
            INSERT INTO steadfast_queue (due_at, item, kind, visible_at, began_at, epoch, attempts, state, letters)
            VALUES ($1, $2, $3, $4, $5,
                    -- A message that was here before goes on counting: its failures are still known.
                    coalesce((SELECT max(f.epoch) FROM steadfast_failures AS f WHERE f.item = $2 AND f.kind = $3), 0) + $6,
                    $6, $7, $8)
            ON CONFLICT (item, kind) DO NOTHING",
        );
        let (due_at, visible_at) = match kept.after {
            Some(after) => (now.saturating_add(micros(after)), now.saturating_add(micros(after))),
            None => (now, NEVER),
        };
        let queued = sqlx::query(queue)
            .bind(due_at)
            .bind(&*item)
            .bind(&*kept.kind)
            .bind(visible_at)
            .bind(kept.failure.as_ref().map(|_| now))
            .bind(i64::from(kept.failure.is_some()))
            .bind(if kept.after.is_some() { "pending" } else { "dead" })
            .bind(kept.letters)
            .execute(&mut *conn)
            .await
            .map_err(Self::fail("keeping a message"))?;
        let is_new = queued.rows_affected() > 0;
        if is_new && kept.after.is_none() {
            put_letters_in_line(conn, &self.names, std::iter::once((&*item, &*kept.kind)), now).await?;
        }
        let is_noted = is_new || kept.after.is_none() && self.came_again(conn, &item, kept).await?;
        let Some(failure) = kept.failure.as_ref().filter(|_| is_noted) else {
            return Ok(());
        };
        let note = self.names.sql(
            "
            INSERT INTO steadfast_failures (at, epoch, attempt, item, kind, failure, code, message, fingerprint)
            SELECT $1, q.epoch, q.attempts, q.item, q.kind, $4, $5, $6, $7
            FROM steadfast_queue AS q
            WHERE q.item = $2 AND q.kind = $3
            ON CONFLICT DO NOTHING",
        );
        sqlx::query(note)
            .bind(now)
            .bind(&*item)
            .bind(&*kept.kind)
            .bind(&*failure.failure)
            .bind(&*failure.code)
            .bind(&*failure.message)
            .bind(&*failure.fingerprint)
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("keeping a message"))
    }

    /// Says of a dead letter that it has come once more, unless somebody has requeued it.
    async fn came_again(&self, conn: &mut SqliteConnection, item: &str, kept: &KeptRow<'_>) -> Result<bool> {
        let statement = self.names.sql(
            "
            UPDATE steadfast_queue
            SET epoch = epoch + 1, attempts = attempts + $3
            WHERE item = $1 AND kind = $2 AND state = 'dead'",
        );
        sqlx::query(statement)
            .bind(item)
            .bind(&*kept.kind)
            .bind(i64::from(kept.failure.is_some()))
            .execute(conn)
            .await
            .map(|updated| updated.rows_affected() > 0)
            .map_err(Self::fail("keeping a message"))
    }
}
