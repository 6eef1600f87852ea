//! How the outbox is doing, on SQLite, by a reader. Every count reads an index in its order and stops at a limit, so that a
//! million rows cost no more than a hundred thousand.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqlitePool};
use uuid::Uuid;

use super::queue::NEVER;
use super::{Names, SqliteStore, Store};
use crate::clock::{Offset, Timestamp};
use crate::error::{Error, Result};
use crate::outbox::stats::{
    COUNT_MAX, CountedKind, FinishedRow, KINDS_MAX, NEAR_MAX, OLDEST_MAX, PublishedRow, SAMPLE_MAX, SizeRow, TableSize,
};

/// One row for each kind that a node has known or that a row of the queue has.
///
/// What is visible has been due since then; what is not is leased, is due later, or waits for an earlier row of its chain,
/// and only the row itself tells. What is dead is never visible.
const KINDS: &str = "
    WITH RECURSIVE used (kind) AS (
        SELECT min(kind) FROM steadfast_queue
        UNION ALL
        SELECT (SELECT min(q.kind) FROM steadfast_queue AS q WHERE q.kind > u.kind)
        FROM used AS u
        WHERE u.kind IS NOT NULL
    ), named (kind) AS (
        SELECT kind FROM (SELECT kind FROM used WHERE kind IS NOT NULL LIMIT $2)
        UNION
        SELECT kind FROM (SELECT kind FROM steadfast_kinds ORDER BY kind LIMIT $2)
    )
    SELECT n.kind,
           (SELECT count(*) FROM (SELECT 1 FROM steadfast_queue AS q
                                  WHERE q.kind = n.kind AND q.visible_at <= $1 LIMIT $3))          AS visible,
           (SELECT count(*) FROM (SELECT 1 FROM steadfast_queue AS q
                                  WHERE q.kind = n.kind AND q.visible_at > $1 AND q.visible_at < $5 LIMIT $3)) AS later,
           (SELECT count(*) FROM (SELECT 1 FROM steadfast_queue AS q
                                  WHERE q.kind = n.kind AND q.visible_at = $5 LIMIT $3))           AS dead,
           (SELECT json_array(coalesce(sum(is_leased), 0), min(due_at), min(iif(is_leased, NULL, due_at)))
            FROM (SELECT q.due_at, q.state = 'leased' AND q.leased_until > $1 AS is_leased FROM steadfast_queue AS q
                  WHERE q.kind = n.kind AND q.visible_at <= $1
                  ORDER BY q.visible_at LIMIT $4))                                                 AS first,
           (SELECT json_array(count(*), min(due_at))
            FROM (SELECT q.due_at FROM steadfast_queue AS q
                  WHERE q.kind = n.kind AND q.visible_at > $1 AND q.visible_at < $5
                  ORDER BY q.visible_at LIMIT $4)
            WHERE due_at <= $1)                                                                    AS near,
           $1 - k.seen_at AS seen, coalesce(k.paused_at, u.paused_at) AS paused_at, coalesce(k.paused_by, u.paused_by) AS paused_by,
           coalesce(k.paused_reason, u.paused_reason) AS paused_reason, k.queue,
           EXISTS (SELECT 1 FROM steadfast_targets AS t
                   WHERE t.name = CASE instr(n.kind, '@') WHEN 0 THEN n.kind
                                  ELSE substr(n.kind, 1, instr(n.kind, '@') - 1) END) AS is_target
    FROM named AS n
    LEFT JOIN steadfast_kinds AS k ON k.kind = n.kind
    LEFT JOIN steadfast_queues AS u ON u.name = k.queue
    ORDER BY n.kind";

/// Counts the rows of the queue, kind by kind.
pub(super) async fn kinds(readers: &SqlitePool, names: &Names, offset: Offset) -> Result<Vec<CountedKind>> {
    let now = offset.now().0;
    let rows = sqlx::query(names.sql(KINDS))
        .bind(now)
        .bind(KINDS_MAX)
        .bind(COUNT_MAX + 1)
        .bind(NEAR_MAX + 1)
        .bind(NEVER)
        .fetch_all(readers)
        .await
        .map_err(|error| SqliteStore::error(error, "counting the rows of the queue"))?;
    rows.iter().map(|row| read_kind(row, now)).collect()
}

fn read_kind(row: &SqliteRow, now: i64) -> Result<CountedKind> {
    let list = |column| Ok::<serde_json::Value, Error>(serde_json::from_str(get(row, column)?).unwrap_or_default());
    // How many are leased, since when the oldest was due, and the oldest of those that nobody has.
    let first = list("first")?;
    // How many wait, and since when the oldest of them was due.
    let near = list("near")?;
    let age = |due: &serde_json::Value| {
        let times = [due.as_i64(), near[1].as_i64()].into_iter().flatten();
        times.min().map(|due_at| now - due_at)
    };
    Ok(CountedKind {
        kind: get(row, "kind")?,
        visible: get(row, "visible")?,
        later: get(row, "later")?,
        leased: first[0].as_i64().unwrap_or_default(),
        waiting: near[0].as_i64().unwrap_or_default(),
        dead: get(row, "dead")?,
        oldest: age(&first[1]),
        lag: age(&first[2]),
        seen: get(row, "seen")?,
        paused_at: get(row, "paused_at")?,
        paused_by: get(row, "paused_by")?,
        paused_reason: get(row, "paused_reason")?,
        is_target: get(row, "is_target")?,
        queue: get(row, "queue")?,
    })
}

/// Counts the rows that have left the queue since then, kind by kind; `first` is the id of the first message that was
/// published since then. Rows are numbered as they end, so only the last ones are looked at.
pub(super) async fn finished_since(
    readers: &SqlitePool,
    names: &Names,
    since: Timestamp,
    first: Uuid,
) -> Result<Vec<FinishedRow>> {
    let statement = names.sql(
        "
        SELECT kind, count(*), sum(item >= $2)
        FROM steadfast_history
        WHERE rowid >= (SELECT max(rowid) FROM steadfast_history) - $3 AND finished_at > $1
        GROUP BY kind",
    );
    let rows: Vec<(String, i64, i64)> = sqlx::query_as(statement)
        .bind(since.0)
        .bind(first.to_string())
        .bind(COUNT_MAX)
        .fetch_all(readers)
        .await
        .map_err(|error| SqliteStore::error(error, "counting finished rows"))?;
    let read = |(kind, count, fresh)| FinishedRow { kind, count, fresh };
    Ok(rows.into_iter().map(read).collect())
}

/// Counts messages from this one on, and their rows that are still to do.
pub(super) async fn published_since(readers: &SqlitePool, names: &Names, first: Uuid) -> Result<PublishedRow> {
    let statement = names.sql(
        "
        SELECT (SELECT count(*) FROM (SELECT 1 FROM steadfast_messages WHERE id >= $1 ORDER BY id LIMIT $2)),
               (SELECT count(*) FROM (SELECT 1 FROM steadfast_queue
                                      WHERE item >= $1 AND state <> 'dead' ORDER BY item LIMIT $2)),
               (SELECT CAST(avg(length(payload)) AS INTEGER)
                FROM (SELECT payload FROM steadfast_messages ORDER BY number DESC LIMIT $3))",
    );
    let (messages, rows, payload_bytes): (i64, i64, Option<i64>) = sqlx::query_as(statement)
        .bind(first.to_string())
        .bind(COUNT_MAX + 1)
        .bind(SAMPLE_MAX)
        .fetch_one(readers)
        .await
        .map_err(|error| SqliteStore::error(error, "counting messages"))?;
    Ok(PublishedRow {
        messages,
        rows,
        payload_bytes,
    })
}

/// How large the file is, how many rows there are by their numbers, and how old the oldest message is that could have gone.
/// How much of the file a table has is not known without reading all of it.
pub(super) async fn size(readers: &SqlitePool, names: &Names, offset: Offset) -> Result<SizeRow> {
    let statement = names.sql(
        "
        SELECT (SELECT max(number) - min(number) + 1 FROM steadfast_messages),
               (SELECT max(rowid) - min(rowid) + 1 FROM steadfast_history),
               (SELECT p.page_count * s.page_size FROM pragma_page_count() AS p, pragma_page_size() AS s),
               (SELECT $1 - min(m.created_at)
                FROM (SELECT id, created_at FROM steadfast_messages ORDER BY number LIMIT $2) AS m
                WHERE NOT EXISTS (SELECT 1 FROM steadfast_queue AS q WHERE q.item = m.id))",
    );
    let (messages, history, bytes, oldest_finished): (Option<i64>, Option<i64>, i64, Option<i64>) =
        sqlx::query_as(statement)
            .bind(offset.now().0)
            .bind(OLDEST_MAX)
            .fetch_one(readers)
            .await
            .map_err(|error| SqliteStore::error(error, "looking at the size of the outbox"))?;
    let table = |name: &str, rows: Option<i64>| TableSize {
        name: name.to_owned(),
        rows: Some(rows.unwrap_or_default().unsigned_abs()),
        bytes: None,
    };
    let file = TableSize {
        name: "(file)".to_owned(),
        rows: None,
        bytes: Some(bytes.unsigned_abs()),
    };
    Ok(SizeRow {
        tables: vec![table("messages", messages), table("history", history), file],
        oldest_finished,
    })
}

fn get<'r, T>(row: &'r SqliteRow, column: &str) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(column)
        .map_err(|error| SqliteStore::error(error, "reading the counts of a kind"))
}
