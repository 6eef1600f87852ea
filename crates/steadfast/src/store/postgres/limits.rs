//! Queues with limits on PostgreSQL: how many of their jobs run at once on all nodes together, in all and for each key, and how many begin
//! within a time.
//!
//! Whoever claims from such a queue has its row locked first, in a statement of its own: what the next one reads is the truth until
//! COMMIT. Each job that runs has a *slot*. Nobody gives a slot back: it is free when no row has the lease that it was taken for, so
//! finishing, renewing and dying cost nothing here, and nobody has to be alive to free it.

use std::sync::Arc;

use sqlx::postgres::PgListener;
use sqlx::{Acquire, Connection};

use super::queue::{bind_claim, claim_statement, put_letters_in_line, put_off, read_claims};
use super::{Names, PostgresStore, Store};
use crate::clock::Offset;
use crate::error::Result;
use crate::queue::{Claim, Claims, is_key};

/// Claims from the queues `$13`, which are locked. Each row has a place by the turns of its kind, `$14` and `$15`, and among those of a
/// kind the one that has waited longest comes first; as many begin as may.
///
/// What its key has no room for is put off, and shown by whoever ends a job of that key: then it stands behind those that have
/// waited meanwhile, so that keys take turns.
///
/// A lease that has expired keeps its slot until its row is claimed again, for whoever has it may still be at work. So these are
/// found by their slots, and need no other.
pub(super) const CLAIM: &str = claim_statement! {
    wanted: "WHERE w.queue = ANY ($13)",
    looks: "
    ), held AS MATERIALIZED (
        SELECT s.queue, q.*
        FROM steadfast.slots AS s
        CROSS JOIN LATERAL (
            SELECT item, kind, chain
            FROM steadfast.queue
            WHERE item = s.item AND kind || '' = s.kind AND epoch = s.epoch AND state = 'leased'
            LIMIT 1) AS q
        WHERE s.queue = ANY ($13)
    ), limits AS MATERIALIZED (
        SELECT u.name, u.key_running_max, u.rate_count, u.rate_every, t.tokens,
               -- The least of those that there are; if there are none, there is room for any number.
               CASE WHEN u.running_max IS NOT NULL OR u.rate_count IS NOT NULL
                    THEN greatest(least(u.running_max - (SELECT count(*) FROM held AS h WHERE h.queue = u.name),
                                        floor(t.tokens)), 0) END AS room
        FROM steadfast.queues AS u
        CROSS JOIN LATERAL (
            SELECT least(u.rate_count,
                         u.tokens + greatest(extract(epoch FROM (SELECT now FROM clock) - u.tokens_at), 0)
                                    / extract(epoch FROM u.rate_every) * u.rate_count) AS tokens) AS t
        WHERE u.name = ANY ($13)
    ), late AS MATERIALIZED (
        SELECT q.*
        FROM held AS h
        CROSS JOIN LATERAL (
            SELECT ctid AS place, item, kind, state, epoch, attempts, chain, number, due_at, visible_at, cancel_at
            FROM steadfast.queue
            WHERE item = h.item AND kind || '' = h.kind AND state = 'leased' AND leased_until <= (SELECT now FROM clock)
            LIMIT 1
            FOR UPDATE SKIP LOCKED) AS q
    ), turns AS MATERIALIZED (
        SELECT * FROM unnest($2::text[], $14::bigint[], $15::bigint[]) AS t (kind, since, step)
    ), found AS MATERIALIZED (
        SELECT w.queue, t.since + t.step * row_number() OVER (PARTITION BY w.kind ORDER BY next.visible_at, next.item) AS line,
               next.*
        FROM wanted AS w
        JOIN turns AS t ON t.kind = w.kind
        JOIN limits AS l ON l.name = w.queue
        CROSS JOIN LATERAL (
            SELECT ctid AS place, item, kind, state, epoch, attempts, chain, number, due_at, visible_at, cancel_at
            FROM steadfast.queue
            WHERE kind = w.kind AND visible_at <= (SELECT now FROM clock)
              AND (state = 'pending'
                   -- It was claimed when its queue had no limits, or was another one.
                   OR (state = 'leased' AND leased_until <= (SELECT now FROM clock)
                       AND NOT EXISTS (SELECT FROM held AS h WHERE h.item = queue.item AND h.kind = queue.kind)))
            ORDER BY visible_at
            LIMIT least(w.room, l.room)
            FOR UPDATE SKIP LOCKED) AS next
    ), freed AS MATERIALIZED (
        SELECT w.queue, t.since + t.step AS line, next.*
        FROM unnest($6::text[]) AS f (chain)
        CROSS JOIN LATERAL (
            SELECT ctid AS place, item, kind, state, epoch, attempts, chain, number, due_at, visible_at, cancel_at
            FROM steadfast.queue
            WHERE chain = f.chain AND number <= extract(epoch FROM (SELECT now FROM clock)) * 1000000
              AND state = 'pending' AND visible_at > (SELECT now FROM clock) AND left(chain, 1) = '/'
              AND kind || '' IN (SELECT kind FROM wanted)
            ORDER BY number
            LIMIT 1
            FOR UPDATE SKIP LOCKED) AS next
        JOIN wanted AS w ON w.kind = next.kind
        JOIN turns AS t ON t.kind = next.kind
        JOIN limits AS l ON l.name = w.queue
        WHERE l.room > 0 OR l.room IS NULL
    ), by_key AS MATERIALIZED (
        SELECT f.*, l.room,
               coalesce(f.chain IS NOT NULL
                        AND row_number() OVER (PARTITION BY f.queue, f.chain ORDER BY f.line, f.visible_at, f.item)
                            > l.key_running_max
                              - (SELECT count(*) FROM held AS h WHERE h.queue = f.queue AND h.chain = f.chain),
                        false) AS has_to_wait
        FROM (SELECT * FROM found UNION ALL SELECT * FROM freed) AS f
        JOIN limits AS l ON l.name = f.queue
    ), due AS MATERIALIZED (
        SELECT place, item, kind, state, epoch, attempts, chain, number, due_at, visible_at, cancel_at, has_to_wait
        FROM (SELECT b.*,
                     row_number() OVER (PARTITION BY b.queue, b.has_to_wait ORDER BY b.line, b.visible_at, b.item) AS turn
              FROM by_key AS b) AS b
        WHERE b.has_to_wait OR b.room IS NULL OR b.turn <= b.room
        UNION ALL
        SELECT l.*, false
        FROM late AS l
        JOIN wanted AS w ON w.kind = l.kind
        WHERE l.attempts < w.suspect_from
    ), suspect AS MATERIALIZED (
        SELECT l.*, false AS has_to_wait
        FROM late AS l
        JOIN wanted AS w ON w.kind = l.kind
        WHERE l.attempts >= w.suspect_from
        LIMIT $7
    ), turn AS MATERIALIZED (
        SELECT w.kind, l.room > 0 IS NOT false AND count(f.item) >= least(w.room, l.room) AS is_full
        FROM wanted AS w
        JOIN limits AS l ON l.name = w.queue
        LEFT JOIN found AS f ON f.kind = w.kind
        GROUP BY w.kind, w.room, l.room",
    // A row of `freed` is to be shown, too.
    plain: "NOT has_to_wait AND state = 'pending' AND visible_at <= (SELECT now FROM clock)",
    odd: "SELECT * FROM due
              WHERE has_to_wait OR state <> 'pending' OR visible_at > (SELECT now FROM clock)
              UNION ALL
              SELECT * FROM suspect",
    // It waits for longer each time, since whoever makes room shows it.
    ahead: "SELECT CASE WHEN l.has_to_wait THEN 2 ELSE 0 END AS count",
    also: ", taken AS (
        SELECT w.queue, c.item, c.kind, c.epoch
        FROM (SELECT item, kind, epoch FROM plain
              UNION ALL
              SELECT item, kind, epoch FROM judged WHERE verdict IN ('claim', 'cancel')) AS c
        JOIN wanted AS w ON w.kind = c.kind
    ), slotted AS (
        INSERT INTO steadfast.slots (queue, item, kind, epoch)
        SELECT queue, item, kind, epoch FROM taken
        ON CONFLICT ON CONSTRAINT slots_one DO UPDATE SET epoch = excluded.epoch
    ), vacated AS (
        DELETE FROM steadfast.slots AS s
        WHERE s.queue = ANY ($13)
          AND NOT EXISTS (SELECT FROM held AS h WHERE h.item = s.item AND h.kind = s.kind)
          AND NOT EXISTS (SELECT FROM taken AS t WHERE t.item = s.item AND t.kind = s.kind)
    ), spent AS (
        UPDATE steadfast.queues AS u
        SET tokens    = l.tokens - (SELECT count(*) FROM taken AS t WHERE t.queue = u.name),
            tokens_at = (SELECT now FROM clock)
        FROM limits AS l
        WHERE u.name = ANY ($13) AND l.name = u.name AND l.rate_count IS NOT NULL
    )",
    next_at: "(SELECT min((SELECT now FROM clock) + l.rate_every * ((1 - l.tokens + t.count) / l.rate_count))
             FROM limits AS l
             CROSS JOIN LATERAL (SELECT count(*) FROM taken AS t WHERE t.queue = l.name) AS t
             WHERE l.tokens - t.count < 1)",
    // Of which queues and of which keys there may be no more for now.
    said: "ARRAY(SELECT l.name
                 FROM limits AS l
                 WHERE l.room <= (SELECT count(*) FROM taken AS t WHERE t.queue = l.name)
                 UNION ALL
                 SELECT DISTINCT chain FROM odd WHERE verdict = 'wait')"
};

/// Claims rows of these queues.
pub(super) async fn claim(
    listener: &mut PgListener,
    names: &Names,
    claim: &Claim<'_>,
    queues: &[String],
    offset: Offset,
) -> Result<Claims> {
    let fail = |error| PostgresStore::error(error, "claiming rows of queues with limits");
    let conn = listener.acquire().await.map_err(fail)?;
    // Whoever hangs with the lock keeps the others from this queue for a while, and from nothing else.
    let begin = "BEGIN; SET LOCAL lock_timeout = '1s'; SET LOCAL idle_in_transaction_session_timeout = '10s'";
    let mut tx = conn.begin_with(begin).await.map_err(fail)?;
    // One that was paused meanwhile is left alone: whoever paused it has waited for those who had it locked.
    let lock = "SELECT name FROM steadfast.queues WHERE name = ANY ($1) AND paused_at IS NULL ORDER BY name FOR UPDATE";
    let lock = sqlx::query_scalar(names.sql(lock)).bind(queues);
    let queues: Vec<String> = lock.fetch_all(&mut *tx).await.map_err(fail)?;
    let turns = claim.wanted.iter().map(|wanted| wanted.turns);
    let rows = bind_claim(sqlx::query(names.sql(CLAIM)), claim, offset)
        .bind(queues)
        .bind(turns.clone().map(|turns| turns.from).collect::<Vec<_>>())
        .bind(turns.map(|turns| turns.step).collect::<Vec<_>>())
        .fetch_all(&mut *tx)
        .await
        .map_err(fail)?;
    tx.commit().await.map_err(fail)?;
    let (mut claims, said) = read_claims(&rows, claim)?;
    let said = said.into_iter().map(Arc::from);
    (claims.full_keys, claims.held_up) = said.partition(|name| is_key(name));
    Ok(claims)
}
