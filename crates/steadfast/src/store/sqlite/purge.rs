//! What removes keys and messages on SQLite, and counts them.
//!
//! There is no index on expiry: every command would pay for it. Purging walks through the rows in the order they were
//! written in, a stretch at a time, each a turn on the writer like any other.

use std::ops::Range;
use std::time::Duration;

use sqlx::{SqliteConnection, SqlitePool};

use super::{Aged, Aging, Doomed, Names, Quota, Settlement, SqliteStore, Store};
use crate::clock::{Offset, Timestamp};
use crate::error::Result;

/// How many row numbers one turn looks at: a few milliseconds.
pub(super) const STEP: i64 = 5_000;

/// The row numbers of keys.
pub(super) async fn places(readers: &SqlitePool, names: &Names) -> Result<Range<i64>> {
    let (first, last): (i64, i64) =
        sqlx::query_as(names.sql("SELECT coalesce(min(rowid), 0), coalesce(max(rowid), -1) FROM steadfast_keys"))
            .fetch_one(readers)
            .await
            .map_err(|error| SqliteStore::error(error, "looking at the size of the table of keys"))?;
    Ok(first..last.saturating_add(1))
}

/// Deletes the doomed among these rows.
pub(super) async fn delete(
    conn: &mut SqliteConnection,
    names: &Names,
    rows: Range<i64>,
    doomed: &Doomed<'_>,
) -> Result<u64> {
    let query = match doomed {
        Doomed::Expired(offset) => {
            sqlx::query(names.sql("DELETE FROM steadfast_keys WHERE rowid >= $1 AND rowid < $2 AND expires_at <= $3"))
                .bind(rows.start)
                .bind(rows.end)
                .bind(offset.now().0)
        }
        Doomed::OwnedBy(owner) => sqlx::query(
            names.sql("DELETE FROM steadfast_keys WHERE rowid >= $1 AND rowid < $2 AND tenant = $3 AND owner = $4"),
        )
        .bind(rows.start)
        .bind(rows.end)
        .bind(owner.tenant())
        .bind(owner.user()),
    };
    query
        .execute(conn)
        .await
        .map(|deleted| deleted.rows_affected())
        .map_err(|error| SqliteStore::error(error, "deleting keys"))
}

/// Counts those among these rows that have expired.
pub(super) async fn count_expired(
    readers: &SqlitePool,
    names: &Names,
    rows: Range<i64>,
    offset: Offset,
) -> Result<u64> {
    let statement =
        names.sql("SELECT count(*) FROM steadfast_keys WHERE rowid >= $1 AND rowid < $2 AND expires_at <= $3");
    let count: i64 = sqlx::query_scalar(statement)
        .bind(rows.start)
        .bind(rows.end)
        .bind(offset.now().0)
        .fetch_one(readers)
        .await
        .map_err(|error| SqliteStore::error(error, "counting expired keys"))?;
    Ok(count.unsigned_abs())
}

/// Where the next stretch of a table begins, from one to the next.
macro_rules! starts {
    ($table:literal, $number:literal) => {
        concat!(
            "
            WITH RECURSIVE starts (first) AS (
                SELECT min(",
            $number,
            ") FROM steadfast_",
            $table,
            "
                UNION ALL
                SELECT (SELECT min(",
            $number,
            ") FROM steadfast_",
            $table,
            " WHERE ",
            $number,
            " >= s.first + $1)
                FROM starts AS s WHERE s.first IS NOT NULL)
            SELECT first FROM starts WHERE first IS NOT NULL"
        )
    };
}

/// The row numbers of an aging table. Numbers never come again, and a dead letter may have an old one: the gaps behind it are
/// passed by.
pub(super) async fn aged_stretches(readers: &SqlitePool, names: &Names, table: Aging) -> Result<Vec<Range<i64>>> {
    let statement = names.sql(match table {
        Aging::Messages => starts!("messages", "number"),
        Aging::History => starts!("history", "rowid"),
        Aging::Entries => starts!("entries", "rowid"),
        Aging::Streams => starts!("streams", "rowid"),
        Aging::Inbox => starts!("inbox", "rowid"),
        Aging::Ticks => starts!("ticks", "rowid"),
    });
    let starts: Vec<i64> = sqlx::query_scalar(statement)
        .bind(STEP)
        .fetch_all(readers)
        .await
        .map_err(|error| SqliteStore::error(error, "looking at the size of the outbox"))?;
    Ok(starts
        .into_iter()
        .map(|first| first..first.saturating_add(STEP))
        .collect())
}

/// What nobody waits for among these rows.
macro_rules! finished_messages {
    () => {
        "FROM steadfast_messages AS m
         WHERE m.number >= $1 AND m.number < $2 AND m.created_at <= $3
           AND NOT EXISTS (SELECT 1 FROM steadfast_queue AS q WHERE q.item = m.id)"
    };
}
macro_rules! finished_deliveries {
    () => {
        "FROM steadfast_history WHERE rowid >= $1 AND rowid < $2 AND finished_at <= $3"
    };
}
macro_rules! old_entries {
    () => {
        "FROM steadfast_entries WHERE rowid >= $1 AND rowid < $2 AND number <= $3"
    };
}
macro_rules! old_streams {
    () => {
        "FROM steadfast_streams WHERE rowid >= $1 AND rowid < $2 AND last <= $3"
    };
}
/// The old records among these rows, but for those of messages that are still to be worked on, or dead: their duplicates must not
/// be taken for new ones.
macro_rules! old_records {
    () => {
        "FROM steadfast_inbox
         WHERE rowid >= $1 AND rowid < $2 AND received_at <= $3
           AND (item IS NULL OR NOT EXISTS (SELECT 1 FROM steadfast_queue AS q WHERE q.item = steadfast_inbox.item))"
    };
}

macro_rules! old_ticks {
    () => {
        "FROM steadfast_ticks WHERE rowid >= $1 AND rowid < $2 AND tick <= $3"
    };
}

/// Deletes what nobody waits for among these rows. Whoever has the turn is alone, so both statements find the same.
pub(super) async fn delete_aged(
    conn: &mut SqliteConnection,
    names: &Names,
    table: Aging,
    rows: Range<i64>,
    aged: Aged,
) -> Result<u64> {
    let until = aged.offset.now().before(aged.retention).0;
    let statements: &[&'static str] = match table {
        Aging::Messages => &[
            concat!(
                "DELETE FROM steadfast_failures WHERE item IN (SELECT m.id ",
                finished_messages!(),
                ")"
            ),
            concat!(
                "DELETE FROM steadfast_reports WHERE item IN (SELECT m.id ",
                finished_messages!(),
                ")"
            ),
            concat!(
                "DELETE FROM steadfast_lines WHERE item IN (SELECT m.id ",
                finished_messages!(),
                ")"
            ),
            // A batch is known for as long as the job that waits for it, or if there is none as its jobs.
            concat!(
                "DELETE FROM steadfast_members WHERE batch IN (SELECT m.id ",
                finished_messages!(),
                ")"
            ),
            concat!(
                "DELETE FROM steadfast_members
                 WHERE NOT EXISTS (SELECT 1 FROM steadfast_messages AS w WHERE w.id = steadfast_members.batch)
                   AND item IN (SELECT m.id ",
                finished_messages!(),
                ")"
            ),
            concat!(
                "DELETE FROM steadfast_messages WHERE number IN (SELECT m.number ",
                finished_messages!(),
                ")"
            ),
        ],
        Aging::History => &[concat!("DELETE ", finished_deliveries!())],
        Aging::Entries => &[concat!("DELETE ", old_entries!())],
        Aging::Streams => &[concat!("DELETE ", old_streams!())],
        Aging::Inbox => &[concat!("DELETE ", old_records!())],
        Aging::Ticks => &[concat!("DELETE ", old_ticks!())],
    };
    let mut deleted = 0;
    for statement in statements {
        let gone = sqlx::query(names.sql(statement))
            .bind(rows.start)
            .bind(rows.end)
            .bind(until)
            .execute(&mut *conn)
            .await
            .map_err(|error| SqliteStore::error(error, "deleting what is old"))?;
        deleted = gone.rows_affected();
    }
    Ok(deleted)
}

/// Counts what nobody waits for among these rows.
pub(super) async fn count_aged(
    readers: &SqlitePool,
    names: &Names,
    table: Aging,
    rows: Range<i64>,
    aged: Aged,
) -> Result<u64> {
    let statement = names.sql(match table {
        Aging::Messages => concat!("SELECT count(*) ", finished_messages!()),
        Aging::History => concat!("SELECT count(*) ", finished_deliveries!()),
        Aging::Entries => concat!("SELECT count(*) ", old_entries!()),
        Aging::Streams => concat!("SELECT count(*) ", old_streams!()),
        Aging::Inbox => concat!("SELECT count(*) ", old_records!()),
        Aging::Ticks => concat!("SELECT count(*) ", old_ticks!()),
    });
    let count: i64 = sqlx::query_scalar(statement)
        .bind(rows.start)
        .bind(rows.end)
        .bind(aged.offset.now().before(aged.retention).0)
        .fetch_one(readers)
        .await
        .map_err(|error| SqliteStore::error(error, "counting what is old"))?;
    Ok(count.unsigned_abs())
}

/// Counts a key that is about to be stored. False: its owner has no room left.
pub(super) async fn charge(
    conn: &mut SqliteConnection,
    names: &Names,
    settlement: &Settlement<'_>,
    quota: Quota,
) -> Result<bool> {
    let statement = names.sql(
        "
        INSERT INTO steadfast_usage (tenant, owner, keys, bytes)
        VALUES ($1, $2, 1, $3)
        ON CONFLICT (tenant, owner) DO UPDATE
        SET keys = keys + 1, bytes = bytes + excluded.bytes
        WHERE keys < $4 AND bytes + excluded.bytes <= $5",
    );
    sqlx::query(statement)
        .bind(&*settlement.key.tenant)
        .bind(&*settlement.key.user)
        .bind(settlement.stored.size())
        .bind(quota.keys)
        .bind(quota.bytes)
        .execute(conn)
        .await
        .map(|counted| counted.rows_affected() > 0)
        .map_err(|error| SqliteStore::error(error, "counting a key"))
}

/// Takes a lease, or renews one's own. `None`: somebody else holds it.
pub(super) async fn take_lease(
    conn: &mut SqliteConnection,
    names: &Names,
    name: &str,
    holder: &str,
    ttl: Duration,
    offset: Offset,
) -> Result<Option<i64>> {
    let statement = names.sql(
        "
        INSERT INTO steadfast_leases (name, holder, token, expires_at)
        VALUES ($1, $2, 1, $3)
        ON CONFLICT (name) DO UPDATE
        SET holder     = excluded.holder,
            token      = token + 1,
            expires_at = excluded.expires_at
        WHERE holder = excluded.holder OR expires_at <= $4
        RETURNING token",
    );
    let now = offset.now();
    sqlx::query_scalar(statement)
        .bind(name)
        .bind(holder)
        .bind(now.after(ttl).0)
        .bind(now.0)
        .fetch_optional(conn)
        .await
        .map_err(|error| SqliteStore::error(error, "taking a lease"))
}

/// Gives a lease back before its time.
pub(super) async fn release_lease(conn: &mut SqliteConnection, names: &Names, name: &str, holder: &str) -> Result<()> {
    let statement = names.sql("UPDATE steadfast_leases SET expires_at = $3 WHERE name = $1 AND holder = $2");
    sqlx::query(statement)
        .bind(name)
        .bind(holder)
        .bind(Timestamp::MIN.0)
        .execute(conn)
        .await
        .map(drop)
        .map_err(|error| SqliteStore::error(error, "releasing a lease"))
}
