//! Leased rows on SQLite: each step is a turn on the writer, and a look that finds nothing is none.
//!
//! Whoever has a turn is alone, so nothing that is read in it can change before it is written.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection, SqlitePool};
use uuid::Uuid;

use super::limits::{Limit, Limits};
use super::writer::Turn;
use super::{Names, SqliteStore, Store};
use crate::clock::{Offset, Timestamp, micros};
use crate::error::{Code, Error, Result};
use crate::lease::Lease;
use crate::outbox::{Message, Origin};
use crate::queue::{
    Back, Buried, Cancel, Claim, Claimed, Claims, Done, KnownKind, PARKED_AT_ONCE, PutBack, SUSPECT_ATTEMPTS,
    Untouched, Wanted, is_key,
};
use crate::telemetry;

/// How often the file is looked at for what other processes have written. It is one call of the system, no statement.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The visible time of a row that is never looked at.
pub(super) const NEVER: i64 = i64::MAX;

/// How the engine hears of other processes: by the log of the file, which every commit changes.
pub(crate) struct Link {
    log: PathBuf,
    seen: Option<(SystemTime, u64)>,
}

impl Link {
    pub(super) fn new(database: &std::path::Path) -> Self {
        // SQLite has it beside the file itself, wherever the way to it leads.
        let database = database.canonicalize().unwrap_or_else(|_| database.to_owned());
        let mut log = database.into_os_string();
        log.push("-wal");
        let mut link = Self {
            log: log.into(),
            seen: None,
        };
        link.seen = link.look();
        link
    }

    fn look(&self) -> Option<(SystemTime, u64)> {
        let log = std::fs::metadata(&self.log).ok()?;
        Some((log.modified().ok()?, log.len()))
    }

    /// Waits until somebody has written to the file.
    pub(super) async fn woken(&mut self) {
        loop {
            let seen = self.look();
            if seen != self.seen {
                self.seen = seen;
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Counts what was written until now as seen.
    pub(super) fn has_seen(&mut self) {
        self.seen = self.look();
    }
}

/// What a look without a turn finds: whether there is something to do, and how long until the next row is visible.
pub(super) struct Glance {
    pub(super) is_due: bool,
    pub(super) next_in: Option<Duration>,
}

/// Looks whether there is something to do, by a reader.
pub(super) async fn glance(readers: &SqlitePool, names: &Names, claim: &Claim<'_>, offset: Offset) -> Result<Glance> {
    let statement = names.sql(
        "
        SELECT EXISTS (SELECT 1 FROM steadfast_queue AS q
                       WHERE q.kind = w.value AND q.visible_at <= $2
                         AND (q.state <> 'leased' OR q.leased_until <= $2)) AS is_due,
               (SELECT min(q.visible_at) FROM steadfast_queue AS q WHERE q.kind = w.value AND q.visible_at > $2) AS next_at
        FROM json_each($1) AS w
        JOIN steadfast_kinds AS k ON k.kind = w.value AND k.paused_at IS NULL
        LEFT JOIN steadfast_queues AS u ON u.name = k.queue
        WHERE u.paused_at IS NULL",
    );
    let now = offset.now().0;
    let rows: Vec<(bool, Option<i64>)> = sqlx::query_as(statement)
        .bind(encode_kinds(claim))
        .bind(now)
        .fetch_all(readers)
        .await
        .map_err(|error| SqliteStore::error(error, "looking for rows that are due"))?;
    let next_at = rows.iter().filter_map(|(_, next)| *next).filter(|at| *at < NEVER).min();
    Ok(Glance {
        is_due: rows.iter().any(|(is_due, _)| *is_due),
        next_in: next_at.map(|at| duration(at - now)),
    })
}

/// Claims rows that are due, and those whose lease has expired: both are visible. A lease leaves a row where it is in the index, so
/// that claiming writes nothing but the row itself; the next claim passes it by.
///
/// A row of a chain is left alone while an earlier one is there, and is not looked at again for a while: the next one not
/// before the lease of the first could have expired, those behind it longer. Who ends a row shows the one behind it
/// ([`show_heads`]); nobody puts it off meanwhile, so there is no need to look at `freed`.
pub(super) async fn claim(turn: &mut Turn, names: &Names, claim: &Claim<'_>, offset: Offset) -> Result<Claims> {
    let mut claims = Claims::default();
    let now = offset.now().0;
    let mut suspects_left = i64::from(claim.takes_suspect);
    let mut limits = Limits::read(turn, names, claim, now).await?;
    let places = due_kinds(turn, names, claim, now).await?;
    let due: Vec<_> = places.into_iter().filter_map(|place| claim.wanted.get(place)).collect();
    limits.divide(turn, names, &due, now).await?;
    for wanted in due {
        let limit = limits.of(wanted);
        claim_kind(turn, names, claim, wanted, now, limit, &mut suspects_left, &mut claims).await?;
    }
    limits.write(turn, names, now, &mut claims).await?;
    Ok(claims)
}

/// The places of the wanted kinds that have something to do.
async fn due_kinds(conn: &mut SqliteConnection, names: &Names, claim: &Claim<'_>, now: i64) -> Result<Vec<usize>> {
    let statement = names.sql(
        "
        SELECT w.key
        FROM json_each($1) AS w
        JOIN steadfast_kinds AS k ON k.kind = w.value AND k.paused_at IS NULL
        LEFT JOIN steadfast_queues AS u ON u.name = k.queue
        WHERE u.paused_at IS NULL
          AND EXISTS (SELECT 1 FROM steadfast_queue AS q
                      WHERE q.kind = w.value AND q.visible_at <= $2
                        AND (q.state <> 'leased' OR q.leased_until <= $2))
        -- As they were asked for: the first come first.
        ORDER BY w.key",
    );
    let places: Vec<i64> = sqlx::query_scalar(statement)
        .bind(encode_kinds(claim))
        .bind(now)
        .fetch_all(conn)
        .await
        .map_err(|error| SqliteStore::error(error, "claiming rows"))?;
    Ok(places
        .into_iter()
        .filter_map(|place| usize::try_from(place).ok())
        .collect())
}

fn encode_kinds(claim: &Claim<'_>) -> String {
    let kinds: Vec<_> = claim.wanted.iter().map(|wanted| &*wanted.kind).collect();
    json!(kinds).to_string()
}

/// Makes the rows of each key visible that have waited longest for its limit, behind those of other keys that wait.
async fn show_keys(conn: &mut SqliteConnection, names: &Names, keys: &[&str], now: i64) -> Result<()> {
    let statement = names.sql(
        "
        UPDATE steadfast_queue
        SET visible_at = $2
        WHERE (item, kind) IN (SELECT item, kind FROM steadfast_queue
                               WHERE chain = $1 AND number <= $2 AND state = 'pending' AND visible_at > max(due_at, $2)
                               ORDER BY number
                               -- One more than has ended: should one have been put off just when there was room, it comes back.
                               LIMIT 2)",
    );
    for key in keys {
        sqlx::query(statement.clone())
            .bind(*key)
            .bind(now)
            .execute(&mut *conn)
            .await
            .map_err(|error| SqliteStore::error(error, "letting a key go on"))?;
    }
    Ok(())
}

/// Makes the first row of each chain visible, if it is due.
pub(super) async fn show_heads(conn: &mut SqliteConnection, names: &Names, chains: &[&str]) -> Result<()> {
    if chains.is_empty() {
        return Ok(());
    }
    let statement = names.sql(
        "
        UPDATE steadfast_queue AS q
        SET visible_at = q.due_at
        FROM json_each($1) AS f
        WHERE q.chain = f.value AND q.state = 'pending' AND q.visible_at > q.due_at
          AND q.number = (SELECT min(head.number) FROM steadfast_queue AS head WHERE head.chain = f.value)",
    );
    sqlx::query(statement)
        .bind(json!(chains).to_string())
        .execute(conn)
        .await
        .map(drop)
        .map_err(|error| SqliteStore::error(error, "looking at chains"))
}

/// Whether a row `q` of the queue `$queue` with limits takes a place if it is claimed at `$2`. One whose lease has expired has one.
macro_rules! may_begin {
    ($queue:literal) => {
        concat!(
            "(q.state = 'pending'
              -- It was claimed when its queue had no limits, or was another one.
              OR (q.state = 'leased' AND q.leased_until <= $2
                  AND NOT EXISTS (SELECT 1 FROM steadfast_slots AS s
                                  WHERE s.queue = ",
            $queue,
            " AND s.item = q.item AND s.kind = q.kind AND s.epoch = q.epoch)))"
        )
    };
}
pub(super) use may_begin;

/// The rows of a kind `$1` that can be claimed at `$2`: of those that are due at most `$3`, and of the suspect ones at most `$4`.
macro_rules! candidates {
    ($due:expr, $suspect:literal) => {
        concat!(
            "
        WITH due AS MATERIALIZED (
            SELECT q.item, q.state, q.epoch, q.attempts, q.chain, q.due_at, q.began_at, q.visible_at, q.cancel_at,
                   false AS has_slot,
                   (SELECT count(*)
                    FROM (SELECT 1 FROM steadfast_queue AS earlier
                          WHERE earlier.chain = q.chain AND earlier.number < q.number AND substr(q.chain, 1, 1) <> '/'
                          LIMIT 2)) AS ahead
            FROM steadfast_queue AS q
            WHERE q.kind = $1 AND q.visible_at <= $2 AND ",
            $due,
            "
            ORDER BY q.visible_at
            LIMIT $3
        ),
        suspects AS (
            SELECT q.item, q.state, q.epoch, q.attempts, q.chain, q.due_at, q.began_at, q.visible_at, q.cancel_at,
                   true AS has_slot,
                   0 AS ahead
            FROM ",
            $suspect,
            "
        )
        SELECT d.*, m.type, m.version, m.source, m.ordering_key, m.correlation_id, m.causation_id, m.traceparent, m.payload,
               m.created_at, coalesce(m.expires_at <= $2, false) AS has_expired
        FROM (SELECT * FROM due UNION ALL SELECT * FROM suspects) AS d
        LEFT JOIN steadfast_messages AS m ON m.id = d.item AND d.ahead = 0"
        )
    };
}

const CANDIDATES: &str = candidates!(
    "(q.state <> 'leased' OR (q.leased_until <= $2 AND q.attempts < $5))",
    "steadfast_queue AS q
            WHERE q.kind = $1 AND q.state = 'leased' AND q.leased_until <= $2 AND q.attempts >= $5
              -- It has its turn when those that have waited longer have had theirs; to look further is to read all of them.
              AND q.visible_at < (SELECT CASE WHEN count(*) < $3 THEN $2 + 1 ELSE max(visible_at) END FROM due)
            ORDER BY q.visible_at
            LIMIT $4"
);

/// The same for a queue `$6` with limits. A lease that has expired keeps its slot until its row is claimed again, for whoever has it
/// may still be at work; so these are found by their slots, however little room there is.
const LIMITED_CANDIDATES: &str = candidates!(
    may_begin!("$6"),
    "steadfast_slots AS s
            CROSS JOIN steadfast_queue AS q ON q.item = s.item AND q.kind = s.kind AND q.epoch = s.epoch
            WHERE s.queue = $6 AND s.kind = $1 AND q.state = 'leased' AND q.leased_until <= $2
              AND (q.attempts < $5 OR q.item = (SELECT x.item
                                                FROM steadfast_slots AS y
                                                CROSS JOIN steadfast_queue AS x ON x.item = y.item AND x.kind = y.kind
                                                WHERE y.queue = $6 AND y.kind = $1 AND x.state = 'leased'
                                                  AND x.leased_until <= $2 AND x.attempts >= $5 AND $4 > 0
                                                LIMIT 1))"
);

#[expect(
    clippy::too_many_arguments,
    reason = "it is one step of a loop, and has what that has"
)]
async fn claim_kind(
    conn: &mut SqliteConnection,
    names: &Names,
    claim: &Claim<'_>,
    wanted: &Wanted,
    now: i64,
    mut limit: Option<&mut Limit>,
    suspects_left: &mut i64,
    claims: &mut Claims,
) -> Result<()> {
    let (candidates, room) = match &limit {
        None => (CANDIDATES, i64::from(wanted.room)),
        Some(limit) => (LIMITED_CANDIDATES, limit.room(wanted)),
    };
    let suspect_from = SUSPECT_ATTEMPTS.min(i32::try_from(wanted.attempts_max).unwrap_or(i32::MAX) - 1);
    let mut candidates = sqlx::query(names.sql(candidates))
        .bind(&*wanted.kind)
        .bind(now)
        .bind(room)
        .bind(*suspects_left)
        .bind(suspect_from);
    if limit.is_some() {
        candidates = candidates.bind(wanted.queue.as_deref());
    }
    let rows = candidates
        .fetch_all(&mut *conn)
        .await
        .map_err(|error| SqliteStore::error(error, "claiming rows"))?;
    let found = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    let is_full = match &limit {
        None => found >= room,
        Some(limit) => limit.is_full(wanted, found),
    };
    if is_full {
        claims.full.push(wanted.kind.clone());
    }
    let mut changes = Changes::default();
    for row in &rows {
        let (item, attempts): (&str, i32) = (get(row, "item")?, get(row, "attempts")?);
        let has_expired = get::<&str>(row, "state")? == "leased";
        if has_expired {
            let epoch: i64 = get(row, "epoch")?;
            let expired = json!({ "item": item, "epoch": epoch, "attempts": attempts });
            changes.expired.push(expired);
        }
        let is_suspect = has_expired && attempts >= suspect_from;
        *suspects_left -= i64::from(is_suspect);
        let chain: Option<&str> = get(row, "chain")?;
        // What its key has no room for waits for longer each time, since whoever makes room shows it.
        let has_slot: bool = get(row, "has_slot")?;
        let has_to_wait = !has_slot && limit.as_mut().is_some_and(|limit| !limit.admit(chain));
        let ahead = if has_to_wait { 2 } else { get(row, "ahead")? };
        if ahead > 0 {
            let waited = now - get::<i64>(row, "due_at")?;
            let wait = parked_for(ahead, waited, micros(wanted.lease));
            changes.parked.insert(item.to_owned(), now.saturating_add(wait).into());
            claims.waiting += 1;
            claims.full_keys.extend(text(row, "chain")?.filter(|_| has_to_wait));
        } else if has_expired && attempts.unsigned_abs() >= wanted.attempts_max && !is_cancelled(row)? {
            changes.buried.push(Buried {
                lease: read_lease(row, wanted, 0)?,
                chain: text(row, "chain")?,
            });
        } else {
            changes.taken.push(item.to_owned());
            if let Some(limit) = &mut limit {
                limit.take(item, wanted, get::<i64>(row, "epoch")? + 1, has_slot);
            }
            match get::<Option<&str>>(row, "type")? {
                Some(_) => claims.rows.push(read_claimed(row, claim, wanted, is_suspect, now)?),
                None => telemetry::message_missing(item),
            }
        }
    }
    changes.write(conn, names, claim, wanted, now).await?;
    claims.buried.extend(changes.buried);
    Ok(())
}

/// How long a row is left alone that has others ahead of it: the longer it has waited, the longer.
fn parked_for(ahead: i64, waited: i64, lease: i64) -> i64 {
    const WAIT_MAX: i64 = 5 * 60 * 1_000_000;
    match ahead {
        1 => lease,
        _ => waited.max(lease).min(WAIT_MAX),
    }
}

/// What becomes of the rows that a claim has found, as JSON: SQLite reads a list of scalars quickly, and objects slowly.
#[derive(Default)]
struct Changes {
    taken: Vec<String>,
    /// Until when they are left alone.
    parked: Map<String, Value>,
    expired: Vec<Value>,
    buried: Vec<Buried>,
}

impl Changes {
    async fn write(
        &self,
        conn: &mut SqliteConnection,
        names: &Names,
        claim: &Claim<'_>,
        wanted: &Wanted,
        now: i64,
    ) -> Result<()> {
        let fail = |error| SqliteStore::error(error, "claiming rows");
        if !self.expired.is_empty() {
            note_expired(conn, names, &wanted.kind, &self.expired, now).await?;
        }
        // By the primary key: with the plus the index on kinds is none, by which all rows of the kind would be read.
        if !self.taken.is_empty() {
            let take = names.sql(
                "
                UPDATE steadfast_queue
                SET state = 'leased', epoch = epoch + 1, attempts = attempts + 1, token = $3, holder = $4, leased_until = $5,
                    began_at = coalesce(began_at, $6)
                WHERE item IN (SELECT value FROM json_each($1)) AND +kind = $2",
            );
            let take = sqlx::query(take)
                .bind(json!(self.taken).to_string())
                .bind(&*wanted.kind);
            let take = take.bind(claim.token).bind(claim.holder);
            let take = take.bind(now.saturating_add(micros(wanted.lease))).bind(now);
            take.execute(&mut *conn).await.map_err(fail)?;
        }
        write_parked(conn, names, &wanted.kind, &self.parked).await?;
        if !self.buried.is_empty() {
            let bury = names.sql(
                "
                UPDATE steadfast_queue
                SET state = 'dead', epoch = epoch + 1, token = 0, holder = NULL, visible_at = $3,
                    chain = CASE WHEN $4 THEN NULL ELSE chain END,
                    number = CASE substr(chain, 1, 1) WHEN '/' THEN $3 ELSE number END
                WHERE item IN (SELECT value FROM json_each($1)) AND +kind = $2",
            );
            let items: Vec<_> = self.buried.iter().map(|buried| buried.lease.item.to_string()).collect();
            let bury = sqlx::query(bury).bind(json!(items).to_string()).bind(&*wanted.kind);
            let bury = bury.bind(NEVER).bind(wanted.dead_make_room);
            bury.execute(&mut *conn).await.map_err(fail)?;
            let dead = items.iter().map(|item| (&**item, &*wanted.kind));
            put_letters_in_line(conn, names, dead, now).await?;
        }
        let chains = self.buried.iter().filter_map(|buried| buried.chain.as_deref());
        let (keys, chains): (Vec<_>, Vec<_>) = chains.partition(|chain| is_key(chain));
        show_keys(conn, names, &keys, now).await?;
        let left: Vec<_> = chains.into_iter().filter(|_| wanted.dead_make_room).collect();
        show_heads(conn, names, &left).await
    }
}

/// Puts a letter in line for each of these rows, which have died, whose broker has dead letters of its own. What is in line already is
/// not there twice.
pub(super) async fn put_letters_in_line(
    conn: &mut SqliteConnection,
    names: &Names,
    dead: impl Iterator<Item = (&str, &str)>,
    now: i64,
) -> Result<()> {
    let statement = names.sql(
        "
        INSERT INTO steadfast_queue (due_at, item, kind, visible_at, epoch, state)
        SELECT $2, q.item, q.letters, $2,
               -- An earlier letter of this message has left its failures.
               coalesce((SELECT max(f.epoch) FROM steadfast_failures AS f
                         WHERE f.item = q.item AND f.kind = q.letters), 0),
               'pending'
        FROM json_each($1) AS d
        -- CROSS: in this order, or all rows of the queue would be read.
        CROSS JOIN steadfast_queue AS q ON q.item = d.value ->> 0 AND q.kind = d.value ->> 1
        WHERE q.state = 'dead' AND q.letters IS NOT NULL
        ON CONFLICT (item, kind) DO NOTHING",
    );
    let dead = Value::from_iter(dead.map(|(item, kind)| json!([item, kind])));
    if dead.as_array().is_none_or(Vec::is_empty) {
        return Ok(());
    }
    sqlx::query(statement)
        .bind(dead.to_string())
        .bind(now)
        .execute(conn)
        .await
        .map(drop)
        .map_err(|error| SqliteStore::error(error, "putting letters in line"))
}

/// Whether somebody wants it no more: then it is claimed to be ended, and not dead.
fn is_cancelled(row: &SqliteRow) -> Result<bool> {
    Ok(get::<Option<i64>>(row, "cancel_at")?.is_some())
}

/// A row that is ours from now on.
fn read_claimed(row: &SqliteRow, claim: &Claim<'_>, wanted: &Wanted, is_suspect: bool, now: i64) -> Result<Claimed> {
    let attempts: i32 = get(row, "attempts")?;
    let began_at = get::<Option<i64>>(row, "began_at")?.unwrap_or(now);
    let lease = read_lease(row, wanted, claim.token)?;
    Ok(Claimed {
        attempt: attempts.unsigned_abs() + 1,
        elapsed: duration(now - began_at),
        due_for: duration(now - get::<i64>(row, "due_at")?),
        chain: text(row, "chain")?,
        is_suspect,
        cancel: Cancel::found(is_cancelled(row)?),
        message: Arc::new(Message {
            id: lease.item,
            event_type: get::<&str>(row, "type")?.into(),
            version: get(row, "version")?,
            created_at: Timestamp(get(row, "created_at")?),
            has_expired: get(row, "has_expired")?,
            ordering_key: text(row, "ordering_key")?,
            origin: Origin {
                source: get::<&str>(row, "source")?.into(),
                correlation_id: text(row, "correlation_id")?,
                causation_id: text(row, "causation_id")?,
                traceparent: text(row, "traceparent")?,
            },
            payload: Bytes::from(get::<Vec<u8>>(row, "payload")?),
            elsewhere: None,
        }),
        lease,
    })
}

/// The lease that the row has from now on.
fn read_lease(row: &SqliteRow, wanted: &Wanted, token: i64) -> Result<Lease> {
    Ok(Lease {
        item: parse(get(row, "item")?)?,
        kind: wanted.kind.clone(),
        epoch: get::<i64>(row, "epoch")? + 1,
        token,
    })
}

async fn note_expired(
    conn: &mut SqliteConnection,
    names: &Names,
    kind: &str,
    expired: &[Value],
    now: i64,
) -> Result<()> {
    let statement = names.sql(
        "
        INSERT INTO steadfast_failures (at, epoch, attempt, item, kind, failure, code, message, fingerprint)
        SELECT $3, e.value ->> 'epoch', e.value ->> 'attempts', e.value ->> 'item', $2, 'unknown', 'lease_expired',
               'the process that worked on it died, hung or was cut off from the database', 'lease_expired'
        FROM json_each($1) AS e
        WHERE true
        ON CONFLICT DO NOTHING",
    );
    sqlx::query(statement)
        .bind(json!(expired).to_string())
        .bind(kind)
        .bind(now)
        .execute(conn)
        .await
        .map(drop)
        .map_err(|error| SqliteStore::error(error, "noting expired leases"))
}

/// Renews leases, and says which of them are lost, and which rows were cancelled. Whoever has the turn is alone, so nothing is ever
/// busy.
pub(super) async fn renew(
    conn: &mut SqliteConnection,
    names: &Names,
    leases: &[(&Lease, Duration)],
    offset: Offset,
) -> Result<(Untouched, Vec<(Uuid, String)>)> {
    let statement = names.sql(
        "
        UPDATE steadfast_queue AS q
        SET leased_until = $2 + (l.value ->> 'lease')
        FROM json_each($1) AS l
        WHERE q.item = l.value ->> 'item' AND q.kind = l.value ->> 'kind'
          AND q.epoch = l.value ->> 'epoch' AND q.token = l.value ->> 'token' AND q.state = 'leased'
        RETURNING item, kind, cancel_at IS NOT NULL",
    );
    let encode = |(lease, length): &(&Lease, Duration)| with(lease, json!({ "lease": micros(*length) }));
    let rows: Vec<(String, String, bool)> = sqlx::query_as(statement)
        .bind(Value::from_iter(leases.iter().map(encode)).to_string())
        .bind(offset.now().0)
        .fetch_all(conn)
        .await
        .map_err(|error| SqliteStore::error(error, "renewing leases"))?;
    let cancelled = rows.iter().filter(|(.., is_cancelled)| *is_cancelled);
    let cancelled = cancelled.map(|(item, kind, _)| Ok((parse(item)?, kind.clone())));
    let cancelled = cancelled.collect::<Result<_>>()?;
    let held: Vec<_> = rows.into_iter().map(|(item, kind, _)| (item, kind)).collect();
    Ok((lost(leases.iter().map(|(lease, _)| *lease), &held), cancelled))
}

/// Those of the leases whose rows are not among these.
fn lost<'l>(leases: impl ExactSizeIterator<Item = &'l Lease>, held: &[(String, String)]) -> Untouched {
    if leases.len() == held.len() {
        return Untouched::default();
    }
    let held: HashSet<_> = held.iter().map(|(item, kind)| (&**item, &**kind)).collect();
    let is_lost = |lease: &&Lease| !held.contains(&(&*lease.item.to_string(), &*lease.kind));
    let lost = leases.filter(is_lost);
    Untouched {
        lost: lost.map(|lease| (lease.item, lease.kind.to_string())).collect(),
        busy: Vec::new(),
    }
}

/// Moves rows to the history, and says which of them were lost.
///
/// Rows that were claimed together have one token, which no other claim has: those of a kind are told by it alone, and the epoch, which
/// is another one for each, is not compared.
pub(super) async fn finish(
    conn: &mut SqliteConnection,
    names: &Names,
    done: &[Done<'_>],
    offset: Offset,
) -> Result<Untouched> {
    let statement = names.sql(
        "
        INSERT INTO steadfast_history (finished_at, attempts, item, state, kind, detail)
        SELECT $2, q.attempts, q.item, $3, q.kind, d.value
        FROM json_each($1) AS d
        -- CROSS: in this order, or all rows of the kind would be read.
        CROSS JOIN steadfast_queue AS q
           ON q.item = d.key AND q.kind = $4 AND q.token = $5 AND q.state = 'leased' AND NOT ($6 AND q.cancel_at IS NOT NULL);

        DELETE FROM steadfast_queue
        WHERE item IN (SELECT key FROM json_each($1)) AND +kind = $4 AND token = $5 AND state = 'leased'
          AND NOT ($6 AND cancel_at IS NOT NULL)
        RETURNING item, chain",
    );
    let mut alike: BTreeMap<_, Map<_, _>> = BTreeMap::new();
    for Done {
        lease,
        state,
        detail,
        yields,
        ..
    } in done
    {
        let alike = alike.entry((&lease.kind, lease.token, *state, *yields)).or_default();
        alike.insert(lease.item.to_string(), json!(detail));
    }
    let mut held = Vec::with_capacity(done.len());
    let mut chains = Vec::new();
    for ((kind, token, state, yields), details) in alike {
        let rows: Vec<(String, Option<String>)> = sqlx::query_as(statement.clone())
            .bind(Value::from(details).to_string())
            .bind(offset.now().0)
            .bind(state)
            .bind(&**kind)
            .bind(token)
            .bind(yields)
            .fetch_all(&mut *conn)
            .await
            .map_err(|error| SqliteStore::error(error, "finishing rows"))?;
        for (item, chain) in rows {
            held.push((item, kind.to_string()));
            chains.extend(chain);
        }
    }
    let (keys, chains): (Vec<_>, Vec<_>) = chains.iter().map(String::as_str).partition(|chain| is_key(chain));
    show_keys(conn, names, &keys, offset.now().0).await?;
    show_heads(conn, names, &chains).await?;
    Ok(lost(done.iter().map(|done| done.lease), &held))
}

/// Puts off rows that have others ahead of them, among the first [`PARKED_AT_ONCE`] that are due: for as long as a claim would.
///
/// A claim puts off as many as it has room for. Behind a chain that is long, others would wait until it has passed it by.
pub(super) async fn park(
    conn: &mut SqliteConnection,
    names: &Names,
    kind: &str,
    full_keys: &[Arc<str>],
    lease: Duration,
    offset: Offset,
) -> Result<()> {
    let fail = |error| SqliteStore::error(error, "putting off rows that wait");
    let statement = names.sql(
        "
        SELECT d.item, d.due_at,
               CASE WHEN d.chain IN (SELECT value FROM json_each($4)) THEN 2
                    WHEN substr(d.chain, 1, 1) <> '/'
                    THEN (SELECT count(*)
                          FROM (SELECT 1 FROM steadfast_queue AS earlier
                                WHERE earlier.chain = d.chain AND earlier.number < d.number
                                LIMIT 2))
               END AS ahead
        FROM (SELECT item, chain, number, due_at
              FROM steadfast_queue
              WHERE kind = $1 AND visible_at <= $2 AND state = 'pending'
              ORDER BY visible_at
              LIMIT $3) AS d
        WHERE ahead > 0",
    );
    let now = offset.now().0;
    let full_keys = still_full(conn, names, full_keys).await?;
    let rows: Vec<(String, i64, i64)> = sqlx::query_as(statement)
        .bind(kind)
        .bind(now)
        .bind(PARKED_AT_ONCE)
        .bind(json!(full_keys).to_string())
        .fetch_all(&mut *conn)
        .await
        .map_err(fail)?;
    let parked = rows.into_iter().map(|(item, due_at, ahead)| {
        let wait = parked_for(ahead, now - due_at, micros(lease));
        (item, now.saturating_add(wait).into())
    });
    write_parked(conn, names, kind, &parked.collect()).await
}

/// Those of the keys that have no room for more. A job of one may have ended since it was said to be full, and has shown the next: that is
/// not put off again.
async fn still_full(conn: &mut SqliteConnection, names: &Names, keys: &[Arc<str>]) -> Result<Vec<String>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let statement = names.sql(
        "
        SELECT k.value
        FROM json_each($1) AS k
        JOIN steadfast_queues AS u ON u.name = substr(k.value, 2, instr(k.value, ' ') - 2)
        WHERE (SELECT count(*) FROM steadfast_queue AS q
               WHERE q.chain = k.value AND q.state = 'leased') >= u.key_running_max",
    );
    let keys: Vec<_> = keys.iter().map(|key| &**key).collect();
    sqlx::query_scalar(statement)
        .bind(json!(keys).to_string())
        .fetch_all(conn)
        .await
        .map_err(|error| SqliteStore::error(error, "counting what runs of a key"))
}

async fn write_parked(
    conn: &mut SqliteConnection,
    names: &Names,
    kind: &str,
    parked: &Map<String, Value>,
) -> Result<()> {
    if parked.is_empty() {
        return Ok(());
    }
    let statement = names.sql(
        "
        UPDATE steadfast_queue AS q
        SET visible_at = p.value, token = 0, holder = NULL
        FROM json_each($1) AS p
        -- By the primary key: with the plus the index on kinds is none, by which all rows of the kind would be read.
        WHERE q.item = p.key AND +q.kind = $2",
    );
    sqlx::query(statement)
        .bind(json!(parked).to_string())
        .bind(kind)
        .execute(conn)
        .await
        .map(drop)
        .map_err(|error| SqliteStore::error(error, "putting off rows that wait"))
}

/// Puts rows back, or buries them, ends those that were cancelled, and says which of them were lost.
pub(super) async fn put_back(
    conn: &mut SqliteConnection,
    names: &Names,
    back: &[Back<'_>],
    offset: Offset,
) -> Result<PutBack> {
    let now = offset.now().0;
    let left: Vec<_> = back.iter().filter_map(|back| back.leaves_chain).collect();
    let keys: Vec<_> = back.iter().filter_map(|back| back.key).collect();
    let encode = |back: &Back<'_>| {
        let at = back.after.map(|after| now.saturating_add(micros(after)));
        let failure = back.failure.as_ref();
        with(
            back.lease,
            json!({
                "at": at,
                "gives_back": i32::from(back.gives_attempt_back),
                "leaves_chain": i32::from(back.leaves_chain.is_some()),
                "attempt": failure.map(|failure| failure.attempt),
                "failure": failure.map(|failure| &failure.failure),
                "code": failure.map(|failure| &failure.code),
                "message": failure.map(|failure| &failure.message),
                "fingerprint": failure.map(|failure| &failure.fingerprint),
                "cancelled": back.cancelled,
            }),
        )
    };
    let encoded = Value::from_iter(back.iter().map(encode)).to_string();
    let noted = names.sql(
        "
        INSERT INTO steadfast_failures (at, epoch, attempt, item, kind, failure, code, message, fingerprint)
        SELECT $2, q.epoch, b.value ->> 'attempt', q.item, q.kind, b.value ->> 'failure', b.value ->> 'code',
               b.value ->> 'message', b.value ->> 'fingerprint'
        FROM json_each($1) AS b
        JOIN steadfast_queue AS q
          ON q.item = b.value ->> 'item' AND q.kind = b.value ->> 'kind'
         AND q.epoch = b.value ->> 'epoch' AND q.token = b.value ->> 'token' AND q.state = 'leased'
        WHERE b.value ->> 'attempt' IS NOT NULL",
    );
    sqlx::query(noted)
        .bind(&encoded)
        .bind(now)
        .execute(&mut *conn)
        .await
        .map_err(|error| SqliteStore::error(error, "noting failures"))?;
    let returned = names.sql(
        "
        UPDATE steadfast_queue AS q
        SET state      = CASE WHEN b.value ->> 'at' IS NULL THEN 'dead' ELSE 'pending' END,
            due_at     = CASE WHEN b.value ->> 'at' > $3 THEN b.value ->> 'at' ELSE q.due_at END,
            visible_at = CASE WHEN b.value ->> 'at' IS NULL THEN $2
                              WHEN b.value ->> 'at' > $3 THEN b.value ->> 'at'
                              ELSE q.visible_at END,
            attempts   = q.attempts - (b.value ->> 'gives_back'),
            -- The age of a row counts from the first attempt that counts.
            began_at   = CASE WHEN b.value ->> 'gives_back' = 1 AND q.attempts = 1 THEN NULL ELSE q.began_at END,
            chain      = CASE WHEN b.value ->> 'leaves_chain' = 1 THEN NULL ELSE q.chain END,
            -- Those of a key stand there by their time.
            number     = CASE WHEN coalesce(substr(q.chain, 1, 1), '') <> '/' OR b.value ->> 'at' <= $3 THEN q.number
                              ELSE coalesce(b.value ->> 'at', $2) END,
            token      = 0,
            holder     = NULL
        FROM json_each($1) AS b
        WHERE q.item = b.value ->> 'item' AND q.kind = b.value ->> 'kind'
          AND q.epoch = b.value ->> 'epoch' AND q.token = b.value ->> 'token' AND q.state = 'leased'
          AND q.cancel_at IS NULL AND b.value ->> 'cancelled' IS NULL
        RETURNING item, kind, state",
    );
    let rows: Vec<(String, String, String)> = sqlx::query_as(returned)
        .bind(&encoded)
        .bind(NEVER)
        .bind(now)
        .fetch_all(&mut *conn)
        .await
        .map_err(|error| SqliteStore::error(error, "putting rows back"))?;
    let dead = rows.iter().filter(|(_, _, state)| state == "dead");
    put_letters_in_line(conn, names, dead.map(|(item, kind, _)| (&**item, &**kind)), now).await?;
    show_keys(conn, names, &keys, now).await?;
    show_heads(conn, names, &left).await?;
    let mut held: Vec<_> = rows.into_iter().map(|(item, kind, _)| (item, kind)).collect();
    let mut cancelled = Vec::new();
    if held.len() < back.len() {
        // Those that are left were cancelled, or are lost.
        for (item, kind) in end_cancelled(conn, names, &encoded, now).await? {
            cancelled.push((parse(&item)?, kind.clone()));
            held.push((item, kind));
        }
    }
    Ok(PutBack {
        untouched: lost(back.iter().map(|back| back.lease), &held),
        cancelled,
    })
}

/// Moves those of the rows that were cancelled to the history, and says which these are.
async fn end_cancelled(
    conn: &mut SqliteConnection,
    names: &Names,
    back: &str,
    now: i64,
) -> Result<Vec<(String, String)>> {
    let statement = names.sql(
        "
        INSERT INTO steadfast_history (finished_at, attempts, item, state, kind, detail)
        SELECT $2, q.attempts - (b.value ->> 'gives_back'), q.item, 'cancelled', q.kind,
               coalesce(q.cancel_reason, b.value ->> 'cancelled')
        FROM json_each($1) AS b
        -- CROSS: in this order, or all rows of the queue would be read.
        CROSS JOIN steadfast_queue AS q
           ON q.item = b.value ->> 'item' AND q.kind = b.value ->> 'kind'
          AND q.epoch = b.value ->> 'epoch' AND q.token = b.value ->> 'token' AND q.state = 'leased'
        WHERE q.cancel_at IS NOT NULL OR b.value ->> 'cancelled' IS NOT NULL;

        DELETE FROM steadfast_queue AS q
        WHERE q.state = 'leased'
          AND EXISTS (SELECT 1 FROM json_each($1) AS b
                      WHERE q.item = b.value ->> 'item' AND q.kind = b.value ->> 'kind'
                        AND q.epoch = b.value ->> 'epoch' AND q.token = b.value ->> 'token'
                        AND (q.cancel_at IS NOT NULL OR b.value ->> 'cancelled' IS NOT NULL))
          AND q.item IN (SELECT b.value ->> 'item' FROM json_each($1) AS b)
        RETURNING item, kind, chain",
    );
    let rows: Vec<(String, String, Option<String>)> = sqlx::query_as(statement)
        .bind(back)
        .bind(now)
        .fetch_all(&mut *conn)
        .await
        .map_err(|error| SqliteStore::error(error, "ending cancelled rows"))?;
    let chains: Vec<_> = rows.iter().filter_map(|(_, _, chain)| chain.as_deref()).collect();
    show_heads(conn, names, &chains).await?;
    Ok(rows.into_iter().map(|(item, kind, _)| (item, kind)).collect())
}

/// Says that a node knows these kinds, now.
pub(super) async fn see_kinds(
    conn: &mut SqliteConnection,
    names: &Names,
    kinds: &[KnownKind],
    offset: Offset,
) -> Result<()> {
    let statement = names.sql(
        "
        INSERT INTO steadfast_kinds (kind, seen_at, queue, paused_at, paused_by, paused_reason)
        SELECT k.value ->> 0, $2, k.value ->> 1, p.paused_at, p.paused_by, p.paused_reason
        FROM json_each($1) AS k
        -- A version that nobody knew before is paused if its target is.
        LEFT JOIN steadfast_kinds AS p ON p.kind = substr(k.value ->> 0, 1, instr((k.value ->> 0) || '@', '@') - 1)
        WHERE true
        ON CONFLICT (kind) DO UPDATE SET seen_at = excluded.seen_at, queue = excluded.queue",
    );
    let kinds = Value::from_iter(kinds.iter().map(|kind| json!([&*kind.name, kind.queue.as_deref()])));
    sqlx::query(statement)
        .bind(kinds.to_string())
        .bind(offset.now().0)
        .execute(conn)
        .await
        .map(drop)
        .map_err(|error| SqliteStore::error(error, "saying which kinds are known"))
}

/// A lease, with what is said about its row.
fn with(lease: &Lease, mut what: Value) -> Value {
    what["item"] = lease.item.to_string().into();
    what["kind"] = (*lease.kind).into();
    what["epoch"] = lease.epoch.into();
    what["token"] = lease.token.into();
    what
}

fn parse(item: &str) -> Result<Uuid> {
    item.parse()
        .map_err(|error| Error::new(Code::Database, format!("{item:?} is not the id of a row")).with_source(error))
}

fn text(row: &SqliteRow, column: &str) -> Result<Option<Arc<str>>> {
    Ok(get::<Option<&str>>(row, column)?.map(Arc::from))
}

fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

fn get<'r, T>(row: &'r SqliteRow, column: &str) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(column)
        .map_err(|error| SqliteStore::error(error, "reading a row of the queue"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Turns;

    #[cfg(unix)]
    #[test]
    fn the_log_is_beside_the_file_that_a_link_leads_to() {
        let directory = tempfile::tempdir().expect("a directory");
        let real = directory.path().canonicalize().expect("a path").join("real.db");
        std::fs::write(&real, "").expect("a file");
        let link = directory.path().join("link.db");
        std::os::unix::fs::symlink(&real, &link).expect("a link");
        assert_eq!(Link::new(&link).log, real.with_file_name("real.db-wal"));
    }

    #[tokio::test]
    async fn what_is_written_while_a_claim_commits_is_heard() {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Happened;
        impl crate::Event for Happened {
            const TYPE: &'static str = "test.happened";
        }
        let sf = crate::Steadfast::<sqlx::Sqlite>::open("sqlite::memory:")
            .await
            .expect("a database");
        let hear = async |_: &crate::EventCx, _: Happened| Ok(());
        sf.reaction::<Happened>("test.hear").run_outside(hear);
        sf.declare().await.expect("declared");
        let publishing = sf.transact(async |tx| Ok(tx.publish(&Happened)?));
        publishing.await.expect("published");
        let wanted = Wanted {
            queue: None,
            kind: "test.hear".into(),
            room: 10,
            turns: Turns { from: 0, step: 1 },
            attempts_max: 1,
            lease: Duration::from_secs(30),
            dead_make_room: false,
        };
        let claim = Claim {
            wanted: &[wanted],
            freed: &[],
            takes_suspect: true,
            token: 7,
            holder: "test",
        };
        let mut link = sf.store().open_link().await.expect("a link");
        let claiming = sf.store().claim(&mut link, &claim, sf.clock().ahead());
        assert_eq!(claiming.await.expect("claimed").rows.len(), 1);
        // Nobody can tell whose commit it was that came last: its own, or that of somebody who wrote just after it.
        let woken = tokio::time::timeout(Duration::from_secs(5), sf.store().woken(&mut link)).await;
        woken.expect("it is heard").expect("no error");
        let claiming = sf.store().claim(&mut link, &claim, sf.clock().ahead());
        assert!(claiming.await.expect("looked").rows.is_empty());
        let woken = tokio::time::timeout(Duration::from_millis(100), sf.store().woken(&mut link)).await;
        assert!(woken.is_err(), "a look that finds nothing writes nothing");
    }
}
