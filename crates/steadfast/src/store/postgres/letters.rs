//! Deliveries on PostgreSQL, as people ask for them and change them.
//!
//! Pages go by the primary key of the queue, those of the dead by an index of their own. Statements with a filter are planned
//! each time for what they ask: a plan for any filter would read everything. What changes a row locks it first, so that nobody
//! claims it meanwhile.

use sqlx::{PgConnection, Postgres};
use uuid::Uuid;

use super::super::letters::{
    Among, AttemptRow, DeliveryFilter, DeliveryKey, DeliveryRow, GroupRow, Letters, MessageRow, Replacement,
    bind_filter, letters_end, read_attempt, read_delivery, read_group, read_message,
};
use super::PostgresStore;
use crate::clock::Offset;
use crate::error::Result;

/// The columns of a row of the queue.
macro_rules! columns {
    () => {
        "
        SELECT q.item::text AS item, q.kind, q.state, q.attempts::bigint AS attempts, q.chain, q.number,
               (extract(epoch FROM q.due_at) * 1000000)::bigint AS due_at,
               CASE WHEN q.state = 'leased' THEN (extract(epoch FROM q.leased_until) * 1000000)::bigint END AS leased_until,
               q.holder, NULL::bigint AS finished_at, NULL::text AS detail,
               (extract(epoch FROM q.cancel_at) * 1000000)::bigint AS cancel_at, q.cancel_by, q.cancel_reason,
               m.type AS event_type, m.ordering_key,
               (extract(epoch FROM m.created_at) * 1000000)::bigint AS created_at,
               (extract(epoch FROM m.expires_at) * 1000000)::bigint AS expires_at,
               (extract(epoch FROM f.at) * 1000000)::bigint AS failed_at, f.code, f.message, f.fingerprint,
               k.queue, m.unique_key "
    };
}

/// The columns of a row of the history.
macro_rules! columns_of_history {
    () => {
        "
        SELECT q.item::text AS item, q.kind, q.state, q.attempts::bigint AS attempts, NULL::text AS chain,
               NULL::bigint AS number, NULL::bigint AS due_at, NULL::bigint AS leased_until, NULL::text AS holder,
               (extract(epoch FROM q.finished_at) * 1000000)::bigint AS finished_at, q.detail,
               NULL::bigint AS cancel_at, NULL::text AS cancel_by, NULL::text AS cancel_reason, m.type AS event_type,
               m.ordering_key, (extract(epoch FROM m.created_at) * 1000000)::bigint AS created_at,
               (extract(epoch FROM m.expires_at) * 1000000)::bigint AS expires_at,
               (extract(epoch FROM f.at) * 1000000)::bigint AS failed_at, f.code, f.message, f.fingerprint,
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
        LEFT JOIN steadfast.messages AS m ON m.id = q.item
        LEFT JOIN steadfast.kinds AS k ON k.kind = q.kind
        LEFT JOIN LATERAL (
            SELECT at, code, message, fingerprint
            FROM steadfast.failures
            WHERE item = q.item AND kind = q.kind
            ORDER BY epoch DESC
            LIMIT 1) AS f ON true "
        )
    };
}

/// What waits, as far as a filter says for what.
macro_rules! pending {
    () => {
        "q.state = 'pending'
          AND ($14::bigint IS NULL OR q.due_at <= timestamptz 'epoch' + $14 * interval '1 microsecond')
          AND ($15::bigint IS NULL OR q.due_at > timestamptz 'epoch' + $15 * interval '1 microsecond')
          AND ($16::boolean IS NULL OR (q.attempts > 0) = $16)"
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
          AND (q.item, q.kind) > ($1::text::uuid, $2::text)
          AND ($3::text IS NULL OR q.kind = $3 OR left(q.kind, length($3) + 1) = $3 || '@')
          AND ($4::text IS NULL OR m.type = $4)
          AND ($5::text IS NULL OR m.ordering_key = $5)
          AND ($6::text IS NULL OR f.code = $6)
          AND ($7::text IS NULL OR f.fingerprint = $7)
          AND ($8::bigint IS NULL OR m.created_at >= timestamptz 'epoch' + $8 * interval '1 microsecond')
          AND ($9::bigint IS NULL
               OR (coalesce(m.created_at <= timestamptz 'epoch' + $9 * interval '1 microsecond', true)
                   AND (f.at IS NULL OR f.at <= timestamptz 'epoch' + $9 * interval '1 microsecond')))
          AND ($11::bigint IS NULL
               OR coalesce(m.expires_at > timestamptz 'epoch' + $11 * interval '1 microsecond', true))
          -- By the ids that messages from elsewhere have here; a copy for a broker is nothing that anybody handles.
          AND ($12::bigint IS NULL OR right(q.kind, length('",
            letters_end!(),
            "')) = '",
            letters_end!(),
            "'
               OR q.item < '00000000-0000-8000-0000-000000000000' OR q.item >= '00000000-0000-9000-0000-000000000000'
               OR coalesce(m.created_at > timestamptz 'epoch' + $12 * interval '1 microsecond', true))
          AND ($13::boolean IS NULL OR (left(q.kind, 4) = 'job:') = $13)
          AND ($17::text IS NULL OR q.item IN (SELECT item FROM steadfast.members WHERE batch = $17::text::uuid))
          AND ($18::text IS NULL OR coalesce(nullif(split_part(split_part(q.kind, '/', 2), '!', 1), ''), k.queue) = $18)
          AND ($19::text IS NULL OR coalesce(nullif(split_part(q.kind, '!', 2), ''), 'normal') = $19) "
        )
    };
}

/// One statement for each place that rows may be in, so that each is read by the index that fits.
macro_rules! among {
    ($among:expr, $begin:ident, $begin_of_history:ident, $end:literal) => {
        match $among {
            Among::Queue => concat!($begin!(), fitting!("steadfast.queue", "true"), $end),
            Among::Pending => concat!($begin!(), fitting!("steadfast.queue", pending!()), $end),
            Among::Leased => concat!($begin!(), fitting!("steadfast.queue", "q.state = 'leased'"), $end),
            Among::Dead => concat!(
                $begin!(),
                fitting!("steadfast.queue", "q.visible_at = 'infinity'"),
                $end
            ),
            Among::NotLeased => concat!($begin!(), fitting!("steadfast.queue", "q.state <> 'leased'"), $end),
            Among::History("skipped") => {
                concat!(
                    $begin_of_history!(),
                    fitting!("steadfast.history", "q.state = 'skipped'"),
                    $end
                )
            }
            Among::History("completed") => {
                concat!(
                    $begin_of_history!(),
                    fitting!("steadfast.history", "q.state = 'completed'"),
                    $end
                )
            }
            Among::History("cancelled") => {
                concat!(
                    $begin_of_history!(),
                    fitting!("steadfast.history", "q.state = 'cancelled'"),
                    $end
                )
            }
            Among::History("discarded") => {
                concat!(
                    $begin_of_history!(),
                    fitting!("steadfast.history", "q.state = 'discarded'"),
                    $end
                )
            }
            Among::History(_) => {
                concat!(
                    $begin_of_history!(),
                    fitting!("steadfast.history", "q.state = 'delivered'"),
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

impl Letters<Postgres> for PostgresStore {
    async fn list_deliveries(&self, filter: &DeliveryFilter, limit: u32) -> Result<Vec<DeliveryRow>> {
        let statement = among!(
            filter.among,
            columns,
            columns_of_history,
            "ORDER BY q.item, q.kind LIMIT $10::bigint"
        );
        let rows = bind_filter!(sqlx::query(self.names.sql(statement)), filter, limit)
            .persistent(false)
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("listing deliveries"))?;
        rows.iter().map(read_delivery).collect()
    }

    async fn count_deliveries(&self, filter: &DeliveryFilter, limit: u32) -> Result<i64> {
        let statement = among!(filter.among, counting, counting, "LIMIT $10::bigint) AS counted");
        bind_filter!(sqlx::query_scalar(self.names.sql(statement)), filter, limit)
            .persistent(false)
            .fetch_one(&self.pool)
            .await
            .map_err(Self::fail("counting deliveries"))
    }

    async fn group_dead(&self, filter: &DeliveryFilter, limit: u32) -> Result<Vec<GroupRow>> {
        let statement = concat!(
            "
        SELECT g.*,
               (SELECT message FROM steadfast.failures AS e
                WHERE e.item = g.example::uuid AND e.fingerprint = g.fingerprint
                ORDER BY e.epoch DESC LIMIT 1) AS message
        FROM (SELECT fingerprint, min(code) AS code, count(*) AS count, min(item) AS example,
                     string_agg(DISTINCT split_part(kind, '@', 1), ',' ORDER BY split_part(kind, '@', 1)) AS targets,
                     min(failed_at) AS first_at, max(failed_at) AS last_at
              FROM (",
            columns!(),
            fitting!("steadfast.queue", "q.visible_at = 'infinity'"),
            "
                    AND f.fingerprint IS NOT NULL
                    LIMIT $10::bigint) AS dead
              GROUP BY fingerprint
              ORDER BY count(*) DESC, fingerprint
              LIMIT 100) AS g
        ORDER BY g.count DESC, g.fingerprint"
        );
        let rows = bind_filter!(sqlx::query(self.names.sql(statement)), filter, limit)
            .persistent(false)
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("grouping dead letters"))?;
        rows.iter().map(read_group).collect()
    }

    async fn deliveries_of(&self, item: Uuid) -> Result<Vec<DeliveryRow>> {
        let statement = concat!(
            columns!(),
            rows!("steadfast.queue"),
            "WHERE q.item = $1 UNION ALL ",
            columns_of_history!(),
            rows!("steadfast.history"),
            "WHERE q.item = $1 ORDER BY 2"
        );
        let rows = sqlx::query(self.names.sql(statement))
            .bind(item)
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("reading the deliveries of a message"))?;
        rows.iter().map(read_delivery).collect()
    }

    async fn read_messages(&self, ids: &[Uuid]) -> Result<Vec<MessageRow>> {
        let statement = self.names.sql(
            "
            SELECT id::text AS id, type AS event_type, version::bigint AS version, content_type,
                   (extract(epoch FROM created_at) * 1000000)::bigint AS created_at,
                   (extract(epoch FROM expires_at) * 1000000)::bigint AS expires_at,
                   ordering_key, correlation_id, causation_id, traceparent, headers, redacted, payload
            FROM steadfast.messages
            WHERE id = ANY($1)
            ORDER BY id",
        );
        let rows = sqlx::query(statement)
            .bind(ids)
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("reading messages"))?;
        rows.iter().map(read_message).collect()
    }

    async fn read_attempts(&self, ids: &[Uuid], limit: u32) -> Result<Vec<AttemptRow>> {
        let statement = self.names.sql(
            "
            SELECT item::text AS item, kind, (extract(epoch FROM at) * 1000000)::bigint AS at, attempt::bigint AS attempt,
                   failure, code, message, fingerprint
            FROM steadfast.failures
            WHERE item = ANY($1)
            ORDER BY failures.item, kind, epoch
            LIMIT $2",
        );
        let rows = sqlx::query(statement)
            .bind(ids)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("reading failed attempts"))?;
        rows.iter().map(read_attempt).collect()
    }

    async fn message_ids(&self, first: Uuid, last: Uuid, limit: u32) -> Result<Vec<Uuid>> {
        let statement = self
            .names
            .sql("SELECT id FROM steadfast.messages WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3");
        sqlx::query_scalar(statement)
            .bind(first)
            .bind(last)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("looking for messages"))
    }

    async fn head_of(&self, chain: &str, number: i64) -> Result<Option<Uuid>> {
        let statement = self
            .names
            .sql("SELECT item FROM steadfast.queue WHERE chain = $1 AND number < $2 ORDER BY number LIMIT 1");
        sqlx::query_scalar(statement)
            .bind(chain)
            .bind(number)
            .fetch_optional(&self.pool)
            .await
            .map_err(Self::fail("looking at a chain"))
    }

    async fn lock_delivery(&self, conn: &mut PgConnection, item: Uuid, target: &str) -> Result<Option<DeliveryRow>> {
        let statement = concat!(
            columns!(),
            rows!("steadfast.queue"),
            "WHERE q.item = $1 AND (q.kind = $2 OR left(q.kind, length($2) + 1) = $2 || '@') FOR UPDATE OF q"
        );
        let row = sqlx::query(self.names.sql(statement))
            .bind(item)
            .bind(target)
            .fetch_optional(conn)
            .await
            .map_err(Self::fail("locking a delivery"))?;
        row.as_ref().map(read_delivery).transpose()
    }

    async fn lock_deliveries(
        &self,
        conn: &mut PgConnection,
        filter: &DeliveryFilter,
        limit: u32,
    ) -> Result<Vec<DeliveryRow>> {
        // What is worked on right now was locked by its claim for a moment only, and is leased when we get it.
        let statement = match filter.among {
            Among::Pending => concat!(
                columns!(),
                fitting!("steadfast.queue", pending!()),
                "ORDER BY q.item, q.kind LIMIT $10::bigint FOR UPDATE OF q"
            ),
            Among::NotLeased => concat!(
                columns!(),
                fitting!("steadfast.queue", "q.state <> 'leased'"),
                "ORDER BY q.item, q.kind LIMIT $10::bigint FOR UPDATE OF q"
            ),
            _ => concat!(
                columns!(),
                fitting!("steadfast.queue", "q.visible_at = 'infinity'"),
                "ORDER BY q.item, q.kind LIMIT $10::bigint FOR UPDATE OF q"
            ),
        };
        let rows = bind_filter!(sqlx::query(self.names.sql(statement)), filter, limit)
            .persistent(false)
            .fetch_all(conn)
            .await
            .map_err(Self::fail("locking deliveries"))?;
        rows.iter().map(read_delivery).collect()
    }

    async fn requeue(&self, conn: &mut PgConnection, rows: &[DeliveryKey], offset: Offset) -> Result<()> {
        let statement = self.names.sql(
            "
            UPDATE steadfast.queue AS q
            SET state = 'pending', attempts = 0, began_at = NULL, due_at = c.now, visible_at = c.now, token = 0, holder = NULL,
                number = CASE left(q.chain, 1) WHEN '/' THEN (extract(epoch FROM c.now) * 1000000)::bigint ELSE q.number END,
                cancel_at = NULL, cancel_by = NULL, cancel_reason = NULL
            FROM unnest($2::uuid[], $3::text[]) AS r (item, kind),
                 (SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now) AS c
            WHERE q.item = r.item AND q.kind = r.kind AND q.state <> 'leased'",
        );
        sqlx::query(statement)
            .bind(offset.0)
            .bind(items(rows))
            .bind(kinds(rows))
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("requeuing deliveries"))
    }

    async fn request_cancel(
        &self,
        conn: &mut PgConnection,
        (item, kind): &DeliveryKey,
        operator: &str,
        reason: &str,
        offset: Offset,
    ) -> Result<()> {
        let statement = self.names.sql(
            "
            UPDATE steadfast.queue
            SET cancel_at = clock_timestamp() + $1 * interval '1 microsecond', cancel_by = $4, cancel_reason = $5
            WHERE item = $2 AND kind = $3 AND state = 'leased'",
        );
        sqlx::query(statement)
            .bind(offset.0)
            .bind(item)
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
        conn: &mut PgConnection,
        rows: &[DeliveryKey],
        state: &'static str,
        detail: &str,
        offset: Offset,
    ) -> Result<()> {
        let statement = self.names.sql(
            "
            WITH gone AS (
                DELETE FROM steadfast.queue AS q
                USING unnest($2::uuid[], $3::text[]) AS r (item, kind)
                WHERE q.item = r.item AND q.kind = r.kind AND q.state <> 'leased'
                RETURNING q.item, q.kind, q.attempts)
            INSERT INTO steadfast.history (finished_at, attempts, item, state, kind, detail)
            SELECT clock_timestamp() + $1 * interval '1 microsecond', attempts, item, $4, kind, $5 FROM gone",
        );
        sqlx::query(statement)
            .bind(offset.0)
            .bind(items(rows))
            .bind(kinds(rows))
            .bind(state)
            .bind(detail)
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("ending deliveries"))
    }

    async fn free_chains(&self, conn: &mut PgConnection, chains: &[String]) -> Result<()> {
        // Whether the row is put off is not asked: a claim may just be doing it, and is waited for.
        let statement = self.names.sql(
            "
            UPDATE steadfast.queue AS q
            SET visible_at = q.due_at
            FROM (SELECT head.item, head.kind
                  FROM unnest($1::text[]) AS f (chain)
                  CROSS JOIN LATERAL (
                      SELECT item, kind FROM steadfast.queue WHERE chain = f.chain ORDER BY number LIMIT 1) AS head
                  ORDER BY head.item, head.kind) AS h
            WHERE q.item = h.item AND q.kind = h.kind AND q.state = 'pending'",
        );
        sqlx::query(statement)
            .bind(chains)
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("letting chains go on"))
    }

    async fn replace_message(
        &self,
        conn: &mut PgConnection,
        replacement: &Replacement<'_>,
        offset: Offset,
    ) -> Result<()> {
        let statement = self.names.sql(
            "
            WITH clock AS MATERIALIZED (
                SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now
            ), said AS (
                INSERT INTO steadfast.messages
                       (number, created_at, version, id, type, source, content_type, correlation_id,
                        causation_id, traceparent, ordering_key, headers, redacted, payload, kind)
                SELECT nextval('steadfast.numbers'), c.now, m.version, $3, m.type, m.source, m.content_type,
                       m.correlation_id, m.id::text, m.traceparent, m.ordering_key, $5, m.redacted, $6, m.kind
                FROM steadfast.messages AS m, clock AS c
                WHERE m.id = $2
                RETURNING id
            )
            INSERT INTO steadfast.queue (visible_at, due_at, number, epoch, item, state, kind, chain)
            SELECT c.now, c.now, q.number, q.epoch, s.id, 'pending', q.kind, q.chain
            FROM steadfast.queue AS q, clock AS c, said AS s
            WHERE q.item = $2 AND q.kind = $4",
        );
        sqlx::query(statement)
            .bind(offset.0)
            .bind(replacement.old)
            .bind(replacement.new)
            .bind(replacement.kind)
            .bind(&replacement.headers)
            .bind(replacement.payload.as_bytes())
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("writing an edited message"))
    }
}

fn items(rows: &[DeliveryKey]) -> Vec<Uuid> {
    rows.iter().map(|(item, _)| *item).collect()
}

fn kinds(rows: &[DeliveryKey]) -> Vec<&str> {
    rows.iter().map(|(_, kind)| &**kind).collect()
}
