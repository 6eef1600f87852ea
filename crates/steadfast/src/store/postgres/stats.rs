//! How the outbox is doing, on PostgreSQL. Every count reads an index in its order and stops at a limit, so that a million
//! rows cost no more than a hundred thousand.

use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};
use uuid::Uuid;

use super::{Names, PostgresStore, Store};
use crate::clock::{Offset, Timestamp};
use crate::error::Result;
use crate::outbox::stats::{
    COUNT_MAX, CountedKind, FinishedRow, KINDS_MAX, NEAR_MAX, OLDEST_MAX, PublishedRow, SAMPLE_MAX, SizeRow, TableSize,
};

/// The kinds that a node has known or that a row of the queue has, found by one step in the index for each.
const NAMES: &str = "
    WITH RECURSIVE used AS (
        (SELECT kind FROM steadfast.queue ORDER BY kind LIMIT 1)
        UNION ALL
        SELECT (SELECT q.kind FROM steadfast.queue AS q WHERE q.kind > u.kind ORDER BY q.kind LIMIT 1)
        FROM used AS u
        WHERE u.kind IS NOT NULL
    )
    (SELECT kind FROM used WHERE kind IS NOT NULL LIMIT $1)
    UNION
    (SELECT kind FROM steadfast.kinds ORDER BY kind LIMIT $1)";

/// One row for each of these kinds. They are told, and not looked for in the same statement: the planner would expect a
/// hundred of them, and compile a statement that is over sooner than that.
///
/// What is visible has been due since then, or is leased, and then it is among the first; what is not is due later, or waits for
/// an earlier row of its chain, and only the row itself tells. What is dead is visible at infinity.
const KINDS: &str = "
    WITH clock AS MATERIALIZED (
        SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now
    )
    SELECT n.kind, visible.count AS visible, later.count AS later, dead.count AS dead, first.leased, near.waiting,
           (extract(epoch FROM c.now - least(first.began, near.due_at)) * 1000000)::bigint AS oldest,
           (extract(epoch FROM c.now - least(first.due_at, near.due_at)) * 1000000)::bigint AS lag,
           (extract(epoch FROM c.now - k.seen_at) * 1000000)::bigint AS seen,
           (extract(epoch FROM coalesce(k.paused_at, u.paused_at)) * 1000000)::bigint AS paused_at,
           coalesce(k.paused_by, u.paused_by) AS paused_by, coalesce(k.paused_reason, u.paused_reason) AS paused_reason, k.queue,
           EXISTS (SELECT FROM steadfast.targets AS t WHERE t.name = split_part(n.kind, '@', 1)) AS is_target
    FROM clock AS c
    CROSS JOIN unnest($2::text[]) AS n (kind)
    LEFT JOIN steadfast.kinds AS k ON k.kind = n.kind
    LEFT JOIN steadfast.queues AS u ON u.name = k.queue
    CROSS JOIN LATERAL (
        SELECT count(*) AS count
        FROM (SELECT FROM steadfast.queue AS q
              WHERE q.kind = n.kind AND q.visible_at <= c.now
              ORDER BY q.visible_at LIMIT $3) AS part) AS visible
    CROSS JOIN LATERAL (
        SELECT count(*) AS count
        FROM (SELECT FROM steadfast.queue AS q
              WHERE q.kind = n.kind AND q.visible_at > c.now AND q.visible_at < 'infinity'
              ORDER BY q.visible_at LIMIT $3) AS part) AS later
    CROSS JOIN LATERAL (
        SELECT count(*) AS count
        FROM (SELECT FROM steadfast.queue AS q
              WHERE q.kind = n.kind AND q.visible_at = 'infinity'
              ORDER BY q.visible_at LIMIT $3) AS part) AS dead
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE is_leased)       AS leased,
               min(due_at)                             AS began,
               min(due_at) FILTER (WHERE NOT is_leased) AS due_at
        FROM (SELECT q.due_at, q.state = 'leased' AND q.leased_until > c.now AS is_leased
              FROM steadfast.queue AS q
              WHERE q.kind = n.kind AND q.visible_at <= c.now
              ORDER BY q.visible_at LIMIT $4) AS part) AS first
    CROSS JOIN LATERAL (
        SELECT count(*) AS waiting, min(due_at) AS due_at
        FROM (SELECT q.due_at FROM steadfast.queue AS q
              WHERE q.kind = n.kind AND q.visible_at > c.now AND q.visible_at < 'infinity'
              ORDER BY q.visible_at LIMIT $4) AS part
        WHERE part.due_at <= c.now) AS near
    ORDER BY n.kind";

/// Counts the rows of the queue, kind by kind.
pub(super) async fn kinds(pool: &PgPool, names: &Names, offset: Offset) -> Result<Vec<CountedKind>> {
    let fail = |error| PostgresStore::error(error, "counting the rows of the queue");
    let kinds: Vec<String> = sqlx::query_scalar(names.sql(NAMES))
        .bind(KINDS_MAX)
        .fetch_all(pool)
        .await
        .map_err(fail)?;
    let rows = sqlx::query(names.sql(KINDS))
        .bind(offset.0)
        .bind(kinds)
        .bind(COUNT_MAX + 1)
        .bind(NEAR_MAX + 1)
        .fetch_all(pool)
        .await
        .map_err(fail)?;
    rows.iter().map(read_kind).collect()
}

fn read_kind(row: &PgRow) -> Result<CountedKind> {
    Ok(CountedKind {
        kind: get(row, "kind")?,
        visible: get(row, "visible")?,
        later: get(row, "later")?,
        leased: get(row, "leased")?,
        waiting: get(row, "waiting")?,
        dead: get(row, "dead")?,
        oldest: get(row, "oldest")?,
        lag: get(row, "lag")?,
        seen: get(row, "seen")?,
        paused_at: get(row, "paused_at")?,
        paused_by: get(row, "paused_by")?,
        paused_reason: get(row, "paused_reason")?,
        is_target: get(row, "is_target")?,
        queue: get(row, "queue")?,
    })
}

/// Counts the rows that have left the queue since then, kind by kind; `first` is the id of the first message that was
/// published since then. The time is bound as a value: the plan depends on how recent it is.
pub(super) async fn finished_since(
    pool: &PgPool,
    names: &Names,
    since: Timestamp,
    first: Uuid,
) -> Result<Vec<FinishedRow>> {
    let statement = names.sql(
        "
        SELECT kind, count(*), count(*) FILTER (WHERE item >= $2)
        FROM (SELECT kind, item FROM steadfast.history
              WHERE finished_at > to_timestamp($1::double precision / 1000000)
              LIMIT $3) AS part
        GROUP BY kind",
    );
    let rows: Vec<(String, i64, i64)> = sqlx::query_as(statement)
        .bind(since.0)
        .bind(first)
        .bind(COUNT_MAX + 1)
        .fetch_all(pool)
        .await
        .map_err(|error| PostgresStore::error(error, "counting finished rows"))?;
    let read = |(kind, count, fresh)| FinishedRow { kind, count, fresh };
    Ok(rows.into_iter().map(read).collect())
}

/// Counts messages from this one on, and their rows that are still to do.
pub(super) async fn published_since(pool: &PgPool, names: &Names, first: Uuid) -> Result<PublishedRow> {
    let statement = names.sql(
        "
        SELECT (SELECT count(*) FROM (SELECT FROM steadfast.messages WHERE id >= $1 ORDER BY id LIMIT $2) AS part),
               (SELECT count(*) FROM (SELECT FROM steadfast.queue
                                      WHERE item >= $1 AND state <> 'dead' ORDER BY item LIMIT $2) AS part),
               (SELECT avg(pg_column_size(payload))::bigint
                FROM (SELECT payload FROM steadfast.messages ORDER BY id DESC LIMIT $3) AS part)",
    );
    let (messages, rows, payload_bytes): (i64, i64, Option<i64>) = sqlx::query_as(statement)
        .bind(first)
        .bind(COUNT_MAX + 1)
        .bind(SAMPLE_MAX)
        .fetch_one(pool)
        .await
        .map_err(|error| PostgresStore::error(error, "counting messages"))?;
    Ok(PublishedRow {
        messages,
        rows,
        payload_bytes,
    })
}

/// How large the tables are, by the server's own figures, and how old the oldest message is that could have gone.
pub(super) async fn size(pool: &PgPool, names: &Names, offset: Offset) -> Result<SizeRow> {
    let fail = |error| PostgresStore::error(error, "looking at the size of the outbox");
    let tables: Vec<(String, i64, i64)> = sqlx::query_as(
        "
        SELECT c.relname::text, c.reltuples::bigint, pg_total_relation_size(c.oid)
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname IN ('messages', 'queue', 'history', 'failures')
        ORDER BY array_position(ARRAY['messages', 'queue', 'history', 'failures'], c.relname::text)",
    )
    .bind(names.name())
    .fetch_all(pool)
    .await
    .map_err(fail)?;
    let oldest = names.sql(
        "
        SELECT (extract(epoch FROM clock_timestamp() - min(m.created_at)) * 1000000)::bigint + $1
        FROM (SELECT id, created_at FROM steadfast.messages ORDER BY id LIMIT $2) AS m
        WHERE NOT EXISTS (SELECT FROM steadfast.queue AS q WHERE q.item = m.id OFFSET 0)",
    );
    let oldest_finished: Option<i64> = sqlx::query_scalar(oldest)
        .bind(offset.0)
        .bind(OLDEST_MAX)
        .fetch_one(pool)
        .await
        .map_err(fail)?;
    let read = |(name, rows, bytes): (String, i64, i64)| TableSize {
        name,
        rows: u64::try_from(rows).ok(),
        bytes: u64::try_from(bytes).ok(),
    };
    Ok(SizeRow {
        tables: tables.into_iter().map(read).collect(),
        oldest_finished,
    })
}

fn get<'r, T>(row: &'r PgRow, column: &str) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(column)
        .map_err(|error| PostgresStore::error(error, "reading the counts of a kind"))
}
