//! What removes keys and messages on PostgreSQL, and counts them.
//!
//! There is no index on expiry: every command would pay for it. Purging walks through the pages of the table
//! instead, a stretch at a time, each a short statement that passes by whatever is locked. The BRIN index on the age of
//! messages would not do: where rows come and go, its ranges know the newest row they have, but not the oldest.

use std::ops::Range;
use std::time::Duration;

use sqlx::{PgConnection, PgPool, SqlStr};

use super::{Aged, Aging, Doomed, Names, PostgresStore, Quota, Settlement, Store};
use crate::clock::{Offset, micros};
use crate::error::Result;

/// How many pages of the table one statement looks at: two megabytes, some thousands of rows, a few milliseconds.
pub(super) const STEP: i64 = 256;

/// The pages that keys are on.
pub(super) async fn places(pool: &PgPool, names: &Names) -> Result<Range<i64>> {
    let pages: i64 = sqlx::query_scalar(
        names.sql("SELECT pg_relation_size('steadfast.keys') / current_setting('block_size')::bigint"),
    )
    .fetch_one(pool)
    .await
    .map_err(|error| PostgresStore::error(error, "looking at the size of the table of keys"))?;
    Ok(0..pages)
}

/// Deletes the doomed on these pages, as a transaction of its own.
pub(super) async fn delete(pool: &PgPool, names: &Names, pages: Range<i64>, doomed: &Doomed<'_>) -> Result<u64> {
    let (first, end) = (format!("({},0)", pages.start), format!("({},0)", pages.end));
    let query = match doomed {
        Doomed::Expired(offset) => sqlx::query(names.sql(
            "
            WITH doomed AS (
                SELECT ctid FROM steadfast.keys
                WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
                  AND expires_at <= (SELECT clock_timestamp() + $3 * interval '1 microsecond')
                FOR UPDATE SKIP LOCKED)
            DELETE FROM steadfast.keys AS k USING doomed WHERE k.ctid = doomed.ctid",
        ))
        .bind(first)
        .bind(end)
        .bind(offset.0),
        Doomed::OwnedBy(owner) => sqlx::query(names.sql(
            "
            DELETE FROM steadfast.keys
            WHERE ctid >= $1::text::tid AND ctid < $2::text::tid AND tenant = $3 AND owner = $4",
        ))
        .bind(first)
        .bind(end)
        .bind(owner.tenant())
        .bind(owner.user()),
    };
    query
        .execute(pool)
        .await
        .map(|deleted| deleted.rows_affected())
        .map_err(|error| PostgresStore::error(error, "deleting keys"))
}

/// Counts those on these pages that have expired.
pub(super) async fn count_expired(pool: &PgPool, names: &Names, pages: Range<i64>, offset: Offset) -> Result<u64> {
    let statement = names.sql(
        "
        SELECT count(*) FROM steadfast.keys
        WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
          AND expires_at <= (SELECT clock_timestamp() + $3 * interval '1 microsecond')",
    );
    let count: i64 = sqlx::query_scalar(statement)
        .bind(format!("({},0)", pages.start))
        .bind(format!("({},0)", pages.end))
        .bind(offset.0)
        .fetch_one(pool)
        .await
        .map_err(|error| PostgresStore::error(error, "counting expired keys"))?;
    Ok(count.unsigned_abs())
}

/// The pages that the rows of an aging table are on.
pub(super) async fn aged_stretches(pool: &PgPool, names: &Names, table: Aging) -> Result<Vec<Range<i64>>> {
    let statement = names.sql(match table {
        Aging::Messages => "SELECT pg_relation_size('steadfast.messages') / current_setting('block_size')::bigint",
        Aging::History => "SELECT pg_relation_size('steadfast.history') / current_setting('block_size')::bigint",
        Aging::Entries => "SELECT pg_relation_size('steadfast.entries') / current_setting('block_size')::bigint",
        Aging::Streams => "SELECT pg_relation_size('steadfast.streams') / current_setting('block_size')::bigint",
        Aging::Inbox => "SELECT pg_relation_size('steadfast.inbox') / current_setting('block_size')::bigint",
        Aging::Ticks => "SELECT pg_relation_size('steadfast.ticks') / current_setting('block_size')::bigint",
    });
    let pages: i64 = sqlx::query_scalar(statement)
        .fetch_one(pool)
        .await
        .map_err(|error| PostgresStore::error(error, "looking at the size of the outbox"))?;
    let starts = (0..).map(|stretch| stretch * STEP).take_while(|first| *first < pages);
    Ok(starts.map(|first| first..pages.min(first + STEP)).collect())
}

/// The messages on these pages that nobody waits for. `OFFSET 0` has the queue asked for each of them by its primary key:
/// otherwise all of it might be read for every stretch.
macro_rules! finished_messages {
    ($columns:literal) => {
        concat!(
            "SELECT ",
            $columns,
            " FROM steadfast.messages AS m
             WHERE m.ctid >= $1::text::tid AND m.ctid < $2::text::tid
               AND m.created_at <= (SELECT clock_timestamp() + ($3 - $4) * interval '1 microsecond')
               AND NOT EXISTS (SELECT FROM steadfast.queue AS q WHERE q.item = m.id OFFSET 0)"
        )
    };
}

/// The rows on these pages whose number, which is a moment too, is old.
macro_rules! old_numbers {
    ($table:literal, $number:literal) => {
        concat!(
            "FROM steadfast.",
            $table,
            " WHERE ctid >= $1::text::tid AND ctid < $2::text::tid AND ",
            $number,
            " <= (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $3 - $4)"
        )
    };
}

/// The old records on these pages, but for those of messages that are still to be worked on, or dead: their duplicates must not
/// be taken for new ones.
macro_rules! old_records {
    () => {
        "FROM steadfast.inbox AS i
         WHERE i.ctid >= $1::text::tid AND i.ctid < $2::text::tid
           AND i.received_at <= (SELECT clock_timestamp() + ($3 - $4) * interval '1 microsecond')
           AND (i.item IS NULL OR NOT EXISTS (SELECT FROM steadfast.queue AS q WHERE q.item = i.item OFFSET 0))"
    };
}

/// The old ticks on these pages.
macro_rules! old_ticks {
    () => {
        "FROM steadfast.ticks
         WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
           AND tick <= (SELECT clock_timestamp() + ($3 - $4) * interval '1 microsecond')"
    };
}

/// Deletes what nobody waits for on these pages, as a transaction of its own.
pub(super) async fn delete_aged(
    pool: &PgPool,
    names: &Names,
    table: Aging,
    pages: Range<i64>,
    aged: Aged,
) -> Result<u64> {
    let statement = names.sql(match table {
        Aging::Messages => concat!(
            "
            WITH doomed AS MATERIALIZED (",
            finished_messages!("m.ctid, m.id"),
            " FOR UPDATE OF m SKIP LOCKED
            ), gone AS (
                DELETE FROM steadfast.messages WHERE ctid = ANY (ARRAY (SELECT ctid FROM doomed))
                RETURNING 1
            ), forgotten AS (
                DELETE FROM steadfast.failures
                WHERE ctid = ANY (ARRAY (
                    SELECT f.ctid
                    FROM doomed AS d
                    CROSS JOIN LATERAL (SELECT ctid FROM steadfast.failures WHERE item = d.id OFFSET 0) AS f))
            ), untold AS (
                DELETE FROM steadfast.reports
                WHERE ctid = ANY (ARRAY (
                    SELECT r.ctid
                    FROM doomed AS d
                    CROSS JOIN LATERAL (SELECT ctid FROM steadfast.reports WHERE item = d.id OFFSET 0) AS r))
            ), unsaid AS (
                DELETE FROM steadfast.lines
                WHERE ctid = ANY (ARRAY (
                    SELECT l.ctid
                    FROM doomed AS d
                    CROSS JOIN LATERAL (SELECT ctid FROM steadfast.lines WHERE item = d.id OFFSET 0) AS l))
            ), parted AS (
                DELETE FROM steadfast.members
                WHERE ctid = ANY (ARRAY (
                    SELECT m.ctid
                    FROM doomed AS d
                    -- A batch is known for as long as the job that waits for it, or if there is none as its jobs.
                    CROSS JOIN LATERAL (
                        SELECT ctid FROM steadfast.members WHERE batch = d.id
                        UNION ALL
                        SELECT ctid FROM steadfast.members AS o
                        WHERE o.item = d.id AND NOT EXISTS (SELECT FROM steadfast.messages AS w WHERE w.id = o.batch)
                        OFFSET 0) AS m))
            )
            SELECT count(*) FROM gone"
        ),
        Aging::History => {
            "
            WITH gone AS (
                DELETE FROM steadfast.history
                WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
                  AND finished_at <= (SELECT clock_timestamp() + ($3 - $4) * interval '1 microsecond')
                RETURNING 1)
            SELECT count(*) FROM gone"
        }
        Aging::Entries => concat!(
            "WITH gone AS (DELETE ",
            old_numbers!("entries", "number"),
            " RETURNING 1) SELECT count(*) FROM gone"
        ),
        Aging::Streams => concat!(
            "WITH gone AS (DELETE ",
            old_numbers!("streams", "last"),
            " RETURNING 1) SELECT count(*) FROM gone"
        ),
        Aging::Inbox => concat!(
            "WITH gone AS (DELETE ",
            old_records!(),
            " RETURNING 1) SELECT count(*) FROM gone"
        ),
        Aging::Ticks => concat!(
            "WITH gone AS (DELETE ",
            old_ticks!(),
            " RETURNING 1) SELECT count(*) FROM gone"
        ),
    });
    on_pages(pool, statement, pages, aged, "deleting what is old").await
}

/// Counts what nobody waits for on these pages.
pub(super) async fn count_aged(
    pool: &PgPool,
    names: &Names,
    table: Aging,
    pages: Range<i64>,
    aged: Aged,
) -> Result<u64> {
    let statement = names.sql(match table {
        Aging::Messages => finished_messages!("count(*)"),
        Aging::History => {
            "
            SELECT count(*) FROM steadfast.history
            WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
              AND finished_at <= (SELECT clock_timestamp() + ($3 - $4) * interval '1 microsecond')"
        }
        Aging::Entries => concat!("SELECT count(*) ", old_numbers!("entries", "number")),
        Aging::Streams => concat!("SELECT count(*) ", old_numbers!("streams", "last")),
        Aging::Inbox => concat!("SELECT count(*) ", old_records!()),
        Aging::Ticks => concat!("SELECT count(*) ", old_ticks!()),
    });
    on_pages(pool, statement, pages, aged, "counting what is old").await
}

async fn on_pages(pool: &PgPool, statement: SqlStr, pages: Range<i64>, aged: Aged, what: &str) -> Result<u64> {
    let count: i64 = sqlx::query_scalar(statement)
        .bind(format!("({},0)", pages.start))
        .bind(format!("({},0)", pages.end))
        .bind(aged.offset.0)
        .bind(micros(aged.retention))
        .fetch_one(pool)
        .await
        .map_err(|error| PostgresStore::error(error, what))?;
    Ok(count.unsigned_abs())
}

/// Counts a key that is about to be stored. False: its owner has no room left.
pub(super) async fn charge(
    conn: &mut PgConnection,
    names: &Names,
    settlement: &Settlement<'_>,
    quota: Quota,
) -> Result<bool> {
    let statement = names.sql(
        "
        INSERT INTO steadfast.usage AS u (tenant, owner, keys, bytes)
        VALUES ($1, $2, 1, $3)
        ON CONFLICT ON CONSTRAINT usage_one_owner DO UPDATE
        SET keys = u.keys + 1, bytes = u.bytes + excluded.bytes
        WHERE u.keys < $4 AND u.bytes + excluded.bytes <= $5",
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
        .map_err(|error| PostgresStore::error(error, "counting a key"))
}

/// Takes a lease, or renews one's own. `None`: somebody else holds it.
pub(super) async fn take_lease(
    pool: &PgPool,
    names: &Names,
    name: &str,
    holder: &str,
    ttl: Duration,
    offset: Offset,
) -> Result<Option<i64>> {
    let statement = names.sql(
        "
        INSERT INTO steadfast.leases AS l (name, holder, token, expires_at)
        SELECT $1, $2, 1, now.at + $3 * interval '1 microsecond'
        FROM (SELECT clock_timestamp() + $4 * interval '1 microsecond' AS at) AS now
        ON CONFLICT ON CONSTRAINT leases_one_holder DO UPDATE
        SET holder     = excluded.holder,
            token      = l.token + 1,
            expires_at = excluded.expires_at
        WHERE l.holder = excluded.holder OR l.expires_at <= excluded.expires_at - $3 * interval '1 microsecond'
        RETURNING token",
    );
    sqlx::query_scalar(statement)
        .bind(name)
        .bind(holder)
        .bind(micros(ttl))
        .bind(offset.0)
        .fetch_optional(pool)
        .await
        .map_err(|error| PostgresStore::error(error, "taking a lease"))
}

/// Gives a lease back before its time.
pub(super) async fn release_lease(pool: &PgPool, names: &Names, name: &str, holder: &str) -> Result<()> {
    let statement = names.sql("UPDATE steadfast.leases SET expires_at = '-infinity' WHERE name = $1 AND holder = $2");
    sqlx::query(statement)
        .bind(name)
        .bind(holder)
        .execute(pool)
        .await
        .map(drop)
        .map_err(|error| PostgresStore::error(error, "releasing a lease"))
}
