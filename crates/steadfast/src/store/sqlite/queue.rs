//! Leased rows on SQLite: each step is a turn on the writer, and a look that finds nothing is none.
//!
//! Whoever has a turn is alone, so nothing that is read in it can change before it is written.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::json;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection, SqlitePool};
use uuid::Uuid;

use super::writer::Turn;
use super::{Names, SqliteStore, Store};
use crate::clock::{Offset, Timestamp, micros};
use crate::error::{Code, Error, Result};
use crate::lease::Lease;
use crate::outbox::{Message, Origin};
use crate::queue::{Back, Buried, Claim, Claimed, Claims, Done, SUSPECT_ATTEMPTS, Wanted};
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
        let mut log = database.as_os_str().to_owned();
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
        SELECT (SELECT min(q.visible_at) FROM steadfast_queue AS q WHERE q.kind = w.value) AS visible_at,
               (SELECT min(q.visible_at) FROM steadfast_queue AS q WHERE q.kind = w.value AND q.visible_at > $2) AS next_at
        FROM json_each($1) AS w
        JOIN steadfast_kinds AS k ON k.kind = w.value AND k.paused_at IS NULL",
    );
    let now = offset.now().0;
    let rows: Vec<(Option<i64>, Option<i64>)> = sqlx::query_as(statement)
        .bind(encode_kinds(claim))
        .bind(now)
        .fetch_all(readers)
        .await
        .map_err(|error| SqliteStore::error(error, "looking for rows that are due"))?;
    let next_at = rows.iter().filter_map(|(_, next)| *next).filter(|at| *at < NEVER).min();
    Ok(Glance {
        is_due: rows
            .iter()
            .any(|(visible_at, _)| visible_at.is_some_and(|at| at <= now)),
        next_in: next_at.map(|at| duration(at - now)),
    })
}

/// Claims rows that are due, and those whose lease has expired: both are visible.
///
/// A row of a chain is left alone while an earlier one is there, and is not looked at again for a while: the next one not
/// before the lease of the first could have expired, those behind it longer. Who ends a row shows the one behind it
/// ([`show_heads`]); nobody puts it off meanwhile, so there is no need to look at `freed`.
pub(super) async fn claim(turn: &mut Turn, names: &Names, claim: &Claim<'_>, offset: Offset) -> Result<Claims> {
    let mut claims = Claims::default();
    let now = offset.now().0;
    let mut suspects_left = i64::from(claim.takes_suspect);
    for place in due_kinds(turn, names, claim, now).await? {
        let Some(wanted) = claim.wanted.get(place) else {
            continue;
        };
        claim_kind(turn, names, claim, wanted, now, &mut suspects_left, &mut claims).await?;
    }
    Ok(claims)
}

/// The places of the wanted kinds that have something to do.
async fn due_kinds(conn: &mut SqliteConnection, names: &Names, claim: &Claim<'_>, now: i64) -> Result<Vec<usize>> {
    let statement = names.sql(
        "
        SELECT w.key
        FROM json_each($1) AS w
        JOIN steadfast_kinds AS k ON k.kind = w.value AND k.paused_at IS NULL
        WHERE EXISTS (SELECT 1 FROM steadfast_queue AS q WHERE q.kind = w.value AND q.visible_at <= $2)",
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

/// Makes the first row of each chain visible, if it is due.
async fn show_heads(conn: &mut SqliteConnection, names: &Names, chains: &[&str]) -> Result<()> {
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

async fn claim_kind(
    conn: &mut SqliteConnection,
    names: &Names,
    claim: &Claim<'_>,
    wanted: &Wanted,
    now: i64,
    suspects_left: &mut i64,
    claims: &mut Claims,
) -> Result<()> {
    let fail = |error| SqliteStore::error(error, "claiming rows");
    let candidates = names.sql(
        "
        WITH due AS MATERIALIZED (
            SELECT q.item, q.state, q.epoch, q.attempts, q.chain, q.due_at, q.began_at, q.visible_at, false AS is_suspect,
                   (SELECT count(*)
                    FROM (SELECT 1 FROM steadfast_queue AS earlier
                          WHERE earlier.chain = q.chain AND earlier.number < q.number
                          LIMIT 2)) AS ahead
            FROM steadfast_queue AS q
            WHERE q.kind = $1 AND q.visible_at <= $2 AND NOT (q.state = 'leased' AND q.attempts >= $5)
            ORDER BY q.visible_at
            LIMIT $3
        )
        SELECT * FROM due
        UNION ALL
        SELECT * FROM (
            SELECT q.item, q.state, q.epoch, q.attempts, q.chain, q.due_at, q.began_at, q.visible_at, true AS is_suspect,
                   0 AS ahead
            FROM steadfast_queue AS q
            WHERE q.kind = $1 AND q.state = 'leased' AND q.attempts >= $5
              -- It has its turn when those that have waited longer have had theirs; to look further is to read all of them.
              AND q.visible_at < (SELECT CASE WHEN count(*) < $3 THEN $2 + 1 ELSE max(visible_at) END FROM due)
            ORDER BY q.visible_at
            LIMIT $4)",
    );
    let rows = sqlx::query(candidates)
        .bind(&*wanted.kind)
        .bind(now)
        .bind(i64::from(wanted.room))
        .bind(*suspects_left)
        .bind(SUSPECT_ATTEMPTS.min(i32::try_from(wanted.attempts_max).unwrap_or(i32::MAX) - 1))
        .fetch_all(&mut *conn)
        .await
        .map_err(fail)?;
    let mut changes = Vec::with_capacity(rows.len());
    let (mut taken, mut expired, mut buried) = (Vec::new(), Vec::new(), Vec::new());
    for row in &rows {
        let (item, epoch, attempts): (String, i64, i32) =
            (get(row, "item")?, get(row, "epoch")?, get(row, "attempts")?);
        let has_expired = get::<&str>(row, "state")? == "leased";
        let is_suspect: bool = get(row, "is_suspect")?;
        if has_expired {
            expired.push(json!({ "item": item, "epoch": epoch, "attempts": attempts }));
        }
        *suspects_left -= i64::from(is_suspect);
        let ahead: i64 = get(row, "ahead")?;
        if ahead > 0 {
            // The longer it has waited, the longer it is left alone.
            const WAIT_MAX: i64 = 5 * 60 * 1_000_000;
            let waited = now - get::<i64>(row, "due_at")?;
            let lease = micros(wanted.lease);
            let wait = if ahead == 1 {
                lease
            } else {
                waited.max(lease).min(WAIT_MAX)
            };
            changes.push(json!({ "item": item, "visible_at": now.saturating_add(wait) }));
        } else if has_expired && attempts.unsigned_abs() >= wanted.attempts_max {
            let leaves_chain = i32::from(wanted.dead_make_room);
            changes.push(json!({ "item": item, "visible_at": NEVER, "state": "dead", "leaves_chain": leaves_chain }));
            buried.push(Buried {
                lease: Lease {
                    item: parse(&item)?,
                    kind: wanted.kind.clone(),
                    epoch: epoch + 1,
                    token: 0,
                },
                chain: get::<Option<String>>(row, "chain")?.map(Arc::from),
            });
        } else {
            let until = now.saturating_add(micros(wanted.lease));
            changes.push(json!({ "item": item, "visible_at": until, "state": "leased" }));
            let began_at = get::<Option<i64>>(row, "began_at")?.unwrap_or(now);
            taken.push(Taken {
                item,
                epoch: epoch + 1,
                attempt: attempts.unsigned_abs() + 1,
                elapsed: duration(now - began_at),
                due_for: duration(now - get::<i64>(row, "due_at")?),
                chain: get::<Option<String>>(row, "chain")?.map(Arc::from),
                is_suspect,
            });
        }
    }
    claims.looked_at += rows.len();
    if changes.is_empty() {
        return Ok(());
    }
    if !expired.is_empty() {
        note_expired(conn, names, &wanted.kind, &expired, now).await?;
    }
    let change = names.sql(
        "
        UPDATE steadfast_queue AS q
        SET visible_at = c.value ->> 'visible_at',
            state      = coalesce(c.value ->> 'state', q.state),
            epoch      = q.epoch + (c.value ->> 'state' IS NOT NULL),
            attempts   = q.attempts + (coalesce(c.value ->> 'state', '') = 'leased'),
            token      = CASE WHEN c.value ->> 'state' = 'leased' THEN $3 ELSE 0 END,
            holder     = CASE WHEN c.value ->> 'state' = 'leased' THEN $4 END,
            chain      = CASE WHEN c.value ->> 'leaves_chain' = 1 THEN NULL ELSE q.chain END,
            began_at   = coalesce(q.began_at, CASE WHEN c.value ->> 'state' = 'leased' THEN $5 END)
        FROM json_each($1) AS c
        -- By the primary key: with the plus the index on kinds is none, by which all rows of the kind would be read.
        WHERE q.item = c.value ->> 'item' AND +q.kind = $2",
    );
    sqlx::query(change)
        .bind(serde_json::Value::from(changes).to_string())
        .bind(&*wanted.kind)
        .bind(claim.token)
        .bind(claim.holder)
        .bind(now)
        .execute(&mut *conn)
        .await
        .map_err(fail)?;
    if wanted.dead_make_room {
        let left: Vec<_> = buried.iter().filter_map(|buried| buried.chain.as_deref()).collect();
        show_heads(conn, names, &left).await?;
    }
    claims.buried.extend(buried);
    read_messages(conn, names, claim, wanted, taken, now, claims).await
}

/// A row that was claimed, before its message is read.
struct Taken {
    item: String,
    epoch: i64,
    attempt: u32,
    elapsed: Duration,
    due_for: Duration,
    chain: Option<Arc<str>>,
    is_suspect: bool,
}

async fn read_messages(
    conn: &mut SqliteConnection,
    names: &Names,
    claim: &Claim<'_>,
    wanted: &Wanted,
    taken: Vec<Taken>,
    now: i64,
    claims: &mut Claims,
) -> Result<()> {
    let statement = names.sql(
        "
        SELECT t.key AS place, m.type, m.version, m.source, m.ordering_key, m.correlation_id, m.causation_id, m.traceparent,
               m.payload, m.created_at, coalesce(m.expires_at <= $2, false) AS has_expired
        FROM json_each($1) AS t
        JOIN steadfast_messages AS m ON m.id = t.value",
    );
    let items: Vec<_> = taken.iter().map(|taken| &*taken.item).collect();
    let rows = sqlx::query(statement)
        .bind(json!(items).to_string())
        .bind(now)
        .fetch_all(conn)
        .await
        .map_err(|error| SqliteStore::error(error, "reading messages"))?;
    let mut taken: Vec<_> = taken.into_iter().map(Some).collect();
    for row in &rows {
        let place = usize::try_from(get::<i64>(row, "place")?).unwrap_or_default();
        let Some(taken) = taken.get_mut(place).and_then(Option::take) else {
            continue;
        };
        let text = |column| Ok::<_, Error>(get::<Option<&str>>(row, column)?.map(Arc::from));
        let item = parse(&taken.item)?;
        claims.rows.push(Claimed {
            lease: Lease {
                item,
                kind: wanted.kind.clone(),
                epoch: taken.epoch,
                token: claim.token,
            },
            attempt: taken.attempt,
            elapsed: taken.elapsed,
            due_for: taken.due_for,
            chain: taken.chain,
            is_suspect: taken.is_suspect,
            message: Message {
                id: item,
                event_type: get::<&str>(row, "type")?.into(),
                version: get(row, "version")?,
                created_at: Timestamp(get(row, "created_at")?),
                has_expired: get(row, "has_expired")?,
                ordering_key: text("ordering_key")?,
                origin: Origin {
                    source: get::<&str>(row, "source")?.into(),
                    correlation_id: text("correlation_id")?,
                    causation_id: text("causation_id")?,
                    traceparent: text("traceparent")?,
                },
                payload: Bytes::from(get::<Vec<u8>>(row, "payload")?),
            },
        });
    }
    for orphan in taken.into_iter().flatten() {
        telemetry::message_missing(&orphan.item);
    }
    Ok(())
}

async fn note_expired(
    conn: &mut SqliteConnection,
    names: &Names,
    kind: &str,
    expired: &[serde_json::Value],
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

/// Renews leases, and says which of them are still held.
pub(super) async fn renew(
    conn: &mut SqliteConnection,
    names: &Names,
    leases: &[(&Lease, Duration)],
    offset: Offset,
) -> Result<Vec<(Uuid, String)>> {
    let statement = names.sql(
        "
        UPDATE steadfast_queue AS q
        SET visible_at = $2 + (l.value ->> 'lease')
        FROM json_each($1) AS l
        WHERE q.item = l.value ->> 'item' AND q.kind = l.value ->> 'kind'
          AND q.epoch = l.value ->> 'epoch' AND q.token = l.value ->> 'token' AND q.state = 'leased'
        RETURNING item, kind",
    );
    let encode = |(lease, length): &(&Lease, Duration)| with(lease, json!({ "lease": micros(*length) }));
    let rows: Vec<(String, String)> = sqlx::query_as(statement)
        .bind(serde_json::Value::from_iter(leases.iter().map(encode)).to_string())
        .bind(offset.now().0)
        .fetch_all(conn)
        .await
        .map_err(|error| SqliteStore::error(error, "renewing leases"))?;
    rows.into_iter().map(|(item, kind)| Ok((parse(&item)?, kind))).collect()
}

/// Moves rows to the history, and says which of them were still held.
pub(super) async fn finish(
    conn: &mut SqliteConnection,
    names: &Names,
    done: &[Done<'_>],
    offset: Offset,
) -> Result<Vec<(Uuid, String)>> {
    let encode = |done: &Done<'_>| with(done.lease, json!({ "state": done.state, "detail": done.detail }));
    let done = serde_json::Value::from_iter(done.iter().map(encode)).to_string();
    let kept = names.sql(
        "
        INSERT INTO steadfast_history (finished_at, attempts, item, state, kind, detail)
        SELECT $2, q.attempts, q.item, d.value ->> 'state', q.kind, d.value ->> 'detail'
        FROM json_each($1) AS d
        JOIN steadfast_queue AS q
          ON q.item = d.value ->> 'item' AND q.kind = d.value ->> 'kind'
         AND q.epoch = d.value ->> 'epoch' AND q.token = d.value ->> 'token' AND q.state = 'leased'
        RETURNING item, kind",
    );
    let rows: Vec<(String, String)> = sqlx::query_as(kept)
        .bind(&done)
        .bind(offset.now().0)
        .fetch_all(&mut *conn)
        .await
        .map_err(|error| SqliteStore::error(error, "finishing rows"))?;
    let gone = names.sql(
        "
        DELETE FROM steadfast_queue
        WHERE (item, kind) IN (SELECT d.value ->> 0, d.value ->> 1 FROM json_each($1) AS d)
        RETURNING chain",
    );
    let chains: Vec<Option<String>> = sqlx::query_scalar(gone)
        .bind(json!(rows).to_string())
        .fetch_all(&mut *conn)
        .await
        .map_err(|error| SqliteStore::error(error, "finishing rows"))?;
    let chains: Vec<_> = chains.iter().flatten().map(String::as_str).collect();
    show_heads(conn, names, &chains).await?;
    rows.into_iter().map(|(item, kind)| Ok((parse(&item)?, kind))).collect()
}

/// Puts rows back, or buries them, and says which of them were still held.
pub(super) async fn put_back(
    conn: &mut SqliteConnection,
    names: &Names,
    back: &[Back<'_>],
    offset: Offset,
) -> Result<Vec<(Uuid, String)>> {
    let now = offset.now().0;
    let left: Vec<_> = back.iter().filter_map(|back| back.leaves_chain).collect();
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
            }),
        )
    };
    let back = serde_json::Value::from_iter(back.iter().map(encode)).to_string();
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
        .bind(&back)
        .bind(now)
        .execute(&mut *conn)
        .await
        .map_err(|error| SqliteStore::error(error, "noting failures"))?;
    let returned = names.sql(
        "
        UPDATE steadfast_queue AS q
        SET state      = CASE WHEN b.value ->> 'at' IS NULL THEN 'dead' ELSE 'pending' END,
            due_at     = coalesce(b.value ->> 'at', q.due_at),
            visible_at = coalesce(b.value ->> 'at', $2),
            attempts   = q.attempts - (b.value ->> 'gives_back'),
            chain      = CASE WHEN b.value ->> 'leaves_chain' = 1 THEN NULL ELSE q.chain END,
            token      = 0,
            holder     = NULL
        FROM json_each($1) AS b
        WHERE q.item = b.value ->> 'item' AND q.kind = b.value ->> 'kind'
          AND q.epoch = b.value ->> 'epoch' AND q.token = b.value ->> 'token' AND q.state = 'leased'
        RETURNING item, kind",
    );
    let rows: Vec<(String, String)> = sqlx::query_as(returned)
        .bind(&back)
        .bind(NEVER)
        .fetch_all(&mut *conn)
        .await
        .map_err(|error| SqliteStore::error(error, "putting rows back"))?;
    show_heads(conn, names, &left).await?;
    rows.into_iter().map(|(item, kind)| Ok((parse(&item)?, kind))).collect()
}

/// Says that a node knows these kinds, now.
pub(super) async fn see_kinds(
    conn: &mut SqliteConnection,
    names: &Names,
    kinds: &[Arc<str>],
    offset: Offset,
) -> Result<()> {
    let statement = names.sql(
        "
        INSERT INTO steadfast_kinds (kind, seen_at, paused_at, paused_by, paused_reason)
        SELECT k.value, $2, p.paused_at, p.paused_by, p.paused_reason
        FROM json_each($1) AS k
        -- A version that nobody knew before is paused if its target is.
        LEFT JOIN steadfast_kinds AS p ON p.kind = substr(k.value, 1, instr(k.value || '@', '@') - 1)
        WHERE true
        ON CONFLICT (kind) DO UPDATE SET seen_at = excluded.seen_at",
    );
    let kinds: Vec<_> = kinds.iter().map(|kind| &**kind).collect();
    sqlx::query(statement)
        .bind(json!(kinds).to_string())
        .bind(offset.now().0)
        .execute(conn)
        .await
        .map(drop)
        .map_err(|error| SqliteStore::error(error, "saying which kinds are known"))
}

/// A lease, with what is said about its row.
fn with(lease: &Lease, mut what: serde_json::Value) -> serde_json::Value {
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
