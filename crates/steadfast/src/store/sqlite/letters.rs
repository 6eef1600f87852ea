//! Deliveries on SQLite, as people ask for them and change them: read by a reader, changed in a turn, in which one is alone.

use serde_json::json;
use sqlx::{Sqlite, SqliteConnection};
use uuid::Uuid;

use super::super::letters::{
    Among, AttemptRow, DeliveryFilter, DeliveryKey, DeliveryRow, GroupRow, Letters, MessageRow, Replacement,
    bind_filter, letters_end, parse, read_attempt, read_delivery, read_group, read_message,
};
use super::SqliteStore;
use super::queue::show_heads;
use crate::clock::Offset;
use crate::error::Result;

/// The columns of a row of the queue.
macro_rules! columns {
    () => {
        "
        SELECT q.item, q.kind, q.state, q.attempts, q.chain, q.number,
               q.due_at AS due_at,
               CASE WHEN q.state = 'leased' THEN q.leased_until END AS leased_until,
               q.holder, NULL AS finished_at, NULL AS detail, q.cancel_at AS cancel_at, q.cancel_by, q.cancel_reason,
               m.type AS event_type, m.ordering_key,
               m.created_at AS created_at, m.expires_at AS expires_at,
               f.at AS failed_at, f.code, f.message, f.fingerprint,
               k.queue, m.unique_key "
    };
}

/// The columns of a row of the history.
macro_rules! columns_of_history {
    () => {
        "
        SELECT q.item, q.kind, q.state, q.attempts, NULL AS chain,
               NULL AS number, NULL AS due_at, NULL AS leased_until, NULL AS holder,
               q.finished_at AS finished_at, q.detail, NULL AS cancel_at, NULL AS cancel_by, NULL AS cancel_reason,
               m.type AS event_type,
               m.ordering_key, m.created_at AS created_at, m.expires_at AS expires_at,
               f.at AS failed_at, f.code, f.message, f.fingerprint,
               k.queue, m.unique_key "
    };
}

/// Rows with their message and their last failure.
macro_rules! rows {
    ($table:literal) => {
        concat!(
            "
        FROM ",
            $table,
            " AS q
        LEFT JOIN steadfast_messages AS m ON m.id = q.item
        LEFT JOIN steadfast_kinds AS k ON k.kind = q.kind
        LEFT JOIN steadfast_failures AS f
          ON f.item = q.item AND f.kind = q.kind
         AND f.epoch = (SELECT max(l.epoch) FROM steadfast_failures AS l WHERE l.item = q.item AND l.kind = q.kind) "
        )
    };
}

/// What waits, as far as a filter says for what.
macro_rules! pending {
    () => {
        "q.state = 'pending'
          AND ($14 IS NULL OR q.due_at <= $14)
          AND ($15 IS NULL OR q.due_at > $15)
          AND ($16 IS NULL OR (q.attempts > 0) = $16)"
    };
}

/// Those that fit a filter.
macro_rules! fitting {
    ($table:literal, $state:expr) => {
        concat!(
            rows!($table),
            "
        WHERE ",
            $state,
            "
          AND (q.item, q.kind) > ($1, $2)
          AND ($3 IS NULL OR q.kind = $3 OR substr(q.kind, 1, length($3) + 1) = $3 || '@')
          AND ($4 IS NULL OR m.type = $4)
          AND ($5 IS NULL OR m.ordering_key = $5)
          AND ($6 IS NULL OR f.code = $6)
          AND ($7 IS NULL OR f.fingerprint = $7)
          AND ($8 IS NULL OR m.created_at >= $8)
          AND ($9 IS NULL OR (coalesce(m.created_at <= $9, true) AND (f.at IS NULL OR f.at <= $9)))
          AND ($11 IS NULL OR coalesce(m.expires_at > $11, true))
          -- By the ids that messages from elsewhere have here; a copy for a broker is nothing that anybody handles.
          AND ($12 IS NULL OR substr(q.kind, -length('",
            letters_end!(),
            "')) = '",
            letters_end!(),
            "'
               OR q.item < '00000000-0000-8000-0000-000000000000' OR q.item >= '00000000-0000-9000-0000-000000000000'
               OR coalesce(m.created_at > $12, true))
          AND ($13 IS NULL OR (substr(q.kind, 1, 4) = 'job:') = $13)
          AND ($17 IS NULL OR q.item IN (SELECT item FROM steadfast_members WHERE batch = $17))
          AND ($18 IS NULL
               OR CASE instr(q.kind, '/') WHEN 0 THEN k.queue
                  ELSE substr(q.kind, instr(q.kind, '/') + 1, instr(q.kind || '!', '!') - instr(q.kind, '/') - 1) END = $18)
          AND ($19 IS NULL OR CASE instr(q.kind, '!') WHEN 0 THEN 'normal' ELSE substr(q.kind, instr(q.kind, '!') + 1) END = $19) "
        )
    };
}

/// One statement for each place that rows may be in, so that each is read by the index that fits.
macro_rules! among {
    ($among:expr, $begin:ident, $begin_of_history:ident, $end:literal) => {
        match $among {
            Among::Queue => concat!($begin!(), fitting!("steadfast_queue", "true"), $end),
            Among::Pending => concat!($begin!(), fitting!("steadfast_queue", pending!()), $end),
            Among::Leased => concat!($begin!(), fitting!("steadfast_queue", "q.state = 'leased'"), $end),
            Among::Dead => concat!(
                $begin!(),
                fitting!("steadfast_queue", "q.visible_at = 9223372036854775807"),
                $end
            ),
            Among::NotLeased => concat!($begin!(), fitting!("steadfast_queue", "q.state <> 'leased'"), $end),
            Among::History("skipped") => {
                concat!(
                    $begin_of_history!(),
                    fitting!("steadfast_history", "q.state = 'skipped'"),
                    $end
                )
            }
            Among::History("completed") => {
                concat!(
                    $begin_of_history!(),
                    fitting!("steadfast_history", "q.state = 'completed'"),
                    $end
                )
            }
            Among::History("cancelled") => {
                concat!(
                    $begin_of_history!(),
                    fitting!("steadfast_history", "q.state = 'cancelled'"),
                    $end
                )
            }
            Among::History("discarded") => {
                concat!(
                    $begin_of_history!(),
                    fitting!("steadfast_history", "q.state = 'discarded'"),
                    $end
                )
            }
            Among::History(_) => {
                concat!(
                    $begin_of_history!(),
                    fitting!("steadfast_history", "q.state = 'delivered'"),
                    $end
                )
            }
        }
    };
}

macro_rules! counting {
    () => {
        "SELECT count(*) FROM (SELECT 1 "
    };
}

impl Letters<Sqlite> for SqliteStore {
    async fn list_deliveries(&self, filter: &DeliveryFilter, limit: u32) -> Result<Vec<DeliveryRow>> {
        let statement = among!(
            filter.among,
            columns,
            columns_of_history,
            "ORDER BY q.item, q.kind LIMIT $10"
        );
        let rows = bind_filter!(sqlx::query(self.names.sql(statement)), filter, limit)
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("listing deliveries"))?;
        rows.iter().map(read_delivery).collect()
    }

    async fn count_deliveries(&self, filter: &DeliveryFilter, limit: u32) -> Result<i64> {
        let statement = among!(filter.among, counting, counting, "LIMIT $10) AS counted");
        bind_filter!(sqlx::query_scalar(self.names.sql(statement)), filter, limit)
            .fetch_one(&self.readers)
            .await
            .map_err(Self::fail("counting deliveries"))
    }

    async fn group_dead(&self, filter: &DeliveryFilter, limit: u32) -> Result<Vec<GroupRow>> {
        let statement = concat!(
            "
        SELECT g.*,
               (SELECT message FROM steadfast_failures AS e
                WHERE e.item = g.example AND e.fingerprint = g.fingerprint
                ORDER BY e.epoch DESC LIMIT 1) AS message
        FROM (SELECT fingerprint, min(code) AS code, count(*) AS count, min(item) AS example,
                     group_concat(DISTINCT substr(kind || '@', 1, instr(kind || '@', '@') - 1)) AS targets,
                     min(failed_at) AS first_at, max(failed_at) AS last_at
              FROM (",
            columns!(),
            fitting!("steadfast_queue", "q.visible_at = 9223372036854775807"),
            "
                    AND f.fingerprint IS NOT NULL
                    LIMIT $10) AS dead
              GROUP BY fingerprint
              ORDER BY count(*) DESC, fingerprint
              LIMIT 100) AS g
        ORDER BY g.count DESC, g.fingerprint"
        );
        let rows = bind_filter!(sqlx::query(self.names.sql(statement)), filter, limit)
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("grouping dead letters"))?;
        rows.iter().map(read_group).collect()
    }

    async fn deliveries_of(&self, item: Uuid) -> Result<Vec<DeliveryRow>> {
        let statement = concat!(
            columns!(),
            rows!("steadfast_queue"),
            "WHERE q.item = $1 UNION ALL ",
            columns_of_history!(),
            rows!("steadfast_history"),
            "WHERE q.item = $1 ORDER BY 2"
        );
        let rows = sqlx::query(self.names.sql(statement))
            .bind(item.to_string())
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("reading the deliveries of a message"))?;
        rows.iter().map(read_delivery).collect()
    }

    async fn read_messages(&self, ids: &[Uuid]) -> Result<Vec<MessageRow>> {
        let statement = self.names.sql(
            "
            SELECT id, type AS event_type, version, content_type,
                   created_at, expires_at,
                   ordering_key, correlation_id, causation_id, traceparent, headers, redacted, payload
            FROM steadfast_messages
            WHERE id IN (SELECT value FROM json_each($1))
            ORDER BY id",
        );
        let rows = sqlx::query(statement)
            .bind(json!(ids.iter().map(Uuid::to_string).collect::<Vec<_>>()).to_string())
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("reading messages"))?;
        rows.iter().map(read_message).collect()
    }

    async fn read_attempts(&self, ids: &[Uuid], limit: u32) -> Result<Vec<AttemptRow>> {
        let statement = self.names.sql(
            "
            SELECT item, kind, at, attempt, failure, code, message, fingerprint
            FROM steadfast_failures
            WHERE item IN (SELECT value FROM json_each($1))
            ORDER BY item, kind, epoch
            LIMIT $2",
        );
        let rows = sqlx::query(statement)
            .bind(json!(ids.iter().map(Uuid::to_string).collect::<Vec<_>>()).to_string())
            .bind(i64::from(limit))
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("reading failed attempts"))?;
        rows.iter().map(read_attempt).collect()
    }

    async fn message_ids(&self, first: Uuid, last: Uuid, limit: u32) -> Result<Vec<Uuid>> {
        let statement = self
            .names
            .sql("SELECT id FROM steadfast_messages WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3");
        let ids: Vec<String> = sqlx::query_scalar(statement)
            .bind(first.to_string())
            .bind(last.to_string())
            .bind(i64::from(limit))
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("looking for messages"))?;
        ids.iter().map(|id| parse(id)).collect()
    }

    async fn head_of(&self, chain: &str, number: i64) -> Result<Option<Uuid>> {
        let statement = self
            .names
            .sql("SELECT item FROM steadfast_queue WHERE chain = $1 AND number < $2 ORDER BY number LIMIT 1");
        let head: Option<String> = sqlx::query_scalar(statement)
            .bind(chain)
            .bind(number)
            .fetch_optional(&self.readers)
            .await
            .map_err(Self::fail("looking at a chain"))?;
        head.as_deref().map(parse).transpose()
    }

    async fn lock_delivery(
        &self,
        conn: &mut SqliteConnection,
        item: Uuid,
        target: &str,
    ) -> Result<Option<DeliveryRow>> {
        let statement = concat!(
            columns!(),
            rows!("steadfast_queue"),
            "WHERE q.item = $1 AND (q.kind = $2 OR substr(q.kind, 1, length($2) + 1) = $2 || '@')"
        );
        let row = sqlx::query(self.names.sql(statement))
            .bind(item.to_string())
            .bind(target)
            .fetch_optional(conn)
            .await
            .map_err(Self::fail("locking a delivery"))?;
        row.as_ref().map(read_delivery).transpose()
    }

    async fn lock_deliveries(
        &self,
        conn: &mut SqliteConnection,
        filter: &DeliveryFilter,
        limit: u32,
    ) -> Result<Vec<DeliveryRow>> {
        let statement = match filter.among {
            Among::Pending => concat!(
                columns!(),
                fitting!("steadfast_queue", pending!()),
                "ORDER BY q.item, q.kind LIMIT $10"
            ),
            Among::NotLeased => concat!(
                columns!(),
                fitting!("steadfast_queue", "q.state <> 'leased'"),
                "ORDER BY q.item, q.kind LIMIT $10"
            ),
            _ => concat!(
                columns!(),
                fitting!("steadfast_queue", "q.visible_at = 9223372036854775807"),
                "ORDER BY q.item, q.kind LIMIT $10"
            ),
        };
        let rows = bind_filter!(sqlx::query(self.names.sql(statement)), filter, limit)
            .fetch_all(conn)
            .await
            .map_err(Self::fail("locking deliveries"))?;
        rows.iter().map(read_delivery).collect()
    }

    async fn requeue(&self, conn: &mut SqliteConnection, rows: &[DeliveryKey], offset: Offset) -> Result<()> {
        let statement = self.names.sql(
            "
            UPDATE steadfast_queue
            SET state = 'pending', attempts = 0, began_at = NULL, due_at = $2, visible_at = $2, token = 0, holder = NULL,
                number = CASE substr(chain, 1, 1) WHEN '/' THEN $2 ELSE number END,
                cancel_at = NULL, cancel_by = NULL, cancel_reason = NULL
            WHERE (item, kind) IN (SELECT r.value ->> 0, r.value ->> 1 FROM json_each($1) AS r) AND state <> 'leased'",
        );
        sqlx::query(statement)
            .bind(encode(rows))
            .bind(offset.now().0)
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("requeuing deliveries"))
    }

    async fn request_cancel(
        &self,
        conn: &mut SqliteConnection,
        (item, kind): &DeliveryKey,
        operator: &str,
        reason: &str,
        offset: Offset,
    ) -> Result<()> {
        let statement = self.names.sql(
            "
            UPDATE steadfast_queue
            SET cancel_at = $1, cancel_by = $4, cancel_reason = $5
            WHERE item = $2 AND kind = $3 AND state = 'leased'",
        );
        sqlx::query(statement)
            .bind(offset.now().0)
            .bind(item.to_string())
            .bind(kind)
            .bind(operator)
            .bind(reason)
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("asking for the end of a job"))
    }

    async fn end_deliveries(
        &self,
        conn: &mut SqliteConnection,
        rows: &[DeliveryKey],
        state: &'static str,
        detail: &str,
        offset: Offset,
    ) -> Result<()> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast_history (finished_at, attempts, item, state, kind, detail)
            SELECT $2, q.attempts, q.item, $3, q.kind, $4
            FROM json_each($1) AS r
            JOIN steadfast_queue AS q ON q.item = r.value ->> 0 AND q.kind = r.value ->> 1 AND q.state <> 'leased';
            DELETE FROM steadfast_queue
            WHERE (item, kind) IN (SELECT r.value ->> 0, r.value ->> 1 FROM json_each($1) AS r) AND state <> 'leased'",
        );
        sqlx::query(statement)
            .bind(encode(rows))
            .bind(offset.now().0)
            .bind(state)
            .bind(detail)
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("ending deliveries"))
    }

    async fn free_chains(&self, conn: &mut SqliteConnection, chains: &[String]) -> Result<()> {
        let chains: Vec<_> = chains.iter().map(String::as_str).collect();
        show_heads(conn, &self.names, &chains).await
    }

    async fn replace_message(
        &self,
        conn: &mut SqliteConnection,
        replacement: &Replacement<'_>,
        offset: Offset,
    ) -> Result<()> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast_messages
                   (created_at, version, id, type, source, content_type, correlation_id, causation_id, traceparent,
                    ordering_key, headers, redacted, payload, kind)
            SELECT $1, m.version, $3, m.type, m.source, m.content_type, m.correlation_id, m.id, m.traceparent,
                   m.ordering_key, $5, m.redacted, $6, m.kind
            FROM steadfast_messages AS m
            WHERE m.id = $2;
            INSERT INTO steadfast_queue (visible_at, due_at, number, epoch, item, state, kind, chain)
            SELECT $1, $1, q.number, q.epoch, $3, 'pending', q.kind, q.chain
            FROM steadfast_queue AS q
            WHERE q.item = $2 AND q.kind = $4",
        );
        sqlx::query(statement)
            .bind(offset.now().0)
            .bind(replacement.old.to_string())
            .bind(replacement.new.to_string())
            .bind(replacement.kind)
            .bind(&replacement.headers)
            .bind(replacement.payload.as_bytes())
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("writing an edited message"))
    }
}

/// Rows as a list of pairs.
fn encode(rows: &[DeliveryKey]) -> String {
    let pairs: Vec<_> = rows.iter().map(|(item, kind)| (item.to_string(), kind)).collect();
    json!(pairs).to_string()
}
