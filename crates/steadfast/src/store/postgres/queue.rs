//! Leased rows on PostgreSQL, over a connection that belongs to the engine: handlers cannot keep it waiting.
//!
//! The same connection hears the announcements of other processes, so that an idle engine has one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions, PgRow};
use sqlx::{PgConnection, PgExecutor, Row};
use uuid::Uuid;

use super::{Names, PostgresStore, Store};
use crate::clock::{Offset, Timestamp, micros};
use crate::error::{Code, Error, Result};
use crate::lease::Lease;
use crate::outbox::{Message, Origin};
use crate::queue::{
    Back, Buried, Cancel, Claim, Claimed, Claims, Done, KEY, KnownKind, PARKED_AT_ONCE, PutBack, SUSPECT_ATTEMPTS,
    Untouched, Wanted, done_word,
};
use crate::telemetry;

/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The same for a connection that can be done without. A server that has no room for it is asked again until then, and meanwhile
/// what has ended is not said.
const SECOND_LIMIT: Duration = Duration::from_secs(1);

/// How the server plans the statements of the engine: once, by the index whose columns they name. What it knows of the size of
/// the queue is of no use. The queue is empty most of the time, and a plan that is best then reads all of a backlog.
pub(crate) const PLANNER: [(&str, &str); 7] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_sort", "off"),
    ("enable_mergejoin", "off"),
    // Rows that are looked up one by one say so themselves, by LATERAL.
    ("enable_nestloop", "off"),
    // What is switched off counts as dear, and for dear statements the server would compile machine code.
    ("jit", "off"),
];

/// What the engine says, by name, for those who look at how the server goes about it.
#[cfg(feature = "testing")]
pub(crate) const STATEMENTS: &[(&str, &str)] = &[
    ("claim", CLAIM),
    ("claim_in_queues", CLAIM_IN_QUEUES),
    ("claim_limited", super::limits::CLAIM),
    ("finish", FINISH),
    ("renew", RENEW),
    ("put_back", PUT_BACK),
];

/// The engine's connection, and its ear.
pub(crate) struct Link {
    listener: PgListener,
}

/// Connects. Behind a pooler in transaction mode nothing is ever heard on it; polling finds everything all the same.
pub(super) async fn open(store: &PostgresStore, channel: Option<&str>) -> Result<Link> {
    let options = (*store.pool.connect_options()).clone();
    let opened = match listen(channel, options.clone().options(PLANNER)).await {
        // Poolers refuse what they do not know. It is slower with a backlog then, and nothing worse.
        Err(sqlx::Error::Database(_)) => listen(channel, options).await,
        opened => opened,
    };
    let listener = opened.map_err(|error| PostgresStore::error(error, "opening the connection of the engine"))?;
    Ok(Link { listener })
}

/// Opens a connection that belongs to no pool, and listens.
pub(super) async fn listen(channel: Option<&str>, options: PgConnectOptions) -> sqlx::Result<PgListener> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .test_before_acquire(false)
        .acquire_timeout(channel.map_or(SECOND_LIMIT, |_| CONNECT_LIMIT))
        .connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await?;
    // Whoever hears finds out by himself that a connection is lost, and opens another one.
    listener.eager_reconnect(false);
    listener.ignore_pool_close_event(true);
    if let Some(channel) = channel {
        listener.listen(channel).await?;
    }
    Ok(listener)
}

/// Waits until another process announces something, and says whose rows were cancelled. It may be dropped at any time.
pub(super) async fn woken(link: &mut Link) -> Result<Vec<String>> {
    match link.listener.try_recv().await {
        Ok(Some(first)) => {
            let rest = std::iter::from_fn(|| link.listener.next_buffered());
            let holders = std::iter::once(first).chain(rest);
            let holders = holders.map(|heard| heard.payload().to_owned());
            Ok(holders.filter(|holder| !holder.is_empty()).collect())
        }
        Ok(None) => Err(Error::new(
            Code::ConnectionLost,
            "the connection of the engine was lost",
        )),
        Err(error) => Err(PostgresStore::error(error, "listening")),
    }
}

/// Tells every process that listens that there may be something to do; for the one with this name, with its own rows.
pub(super) async fn announce<'e>(executor: impl PgExecutor<'e>, names: &Names, holder: &str) -> Result<()> {
    sqlx::query("SELECT pg_notify($1, $2)")
        .bind(channel(names))
        .bind(holder)
        .execute(executor)
        .await
        .map(drop)
        .map_err(|error| PostgresStore::error(error, "announcing"))
}

pub(super) fn channel(names: &Names) -> String {
    format!("{}_queue", names.name())
}

/// Shows the row behind each one that leaves its chain, in the commit in which it leaves: nobody has to be alive to tell. A chain that
/// begins with `/` is a key with a limit: the row that has waited longest comes behind those of other keys that wait.
macro_rules! show_next {
    ($gone:literal) => {
        concat!(
            "shown AS (
            UPDATE steadfast.queue AS q
            SET visible_at = CASE left(q.chain, 1)
                                 WHEN '/' THEN statement_timestamp() + $1 * interval '1 microsecond'
                                 ELSE q.due_at END
            -- By the primary key: a join may be planned as a scan.
            WHERE q.item = ANY (ARRAY(
                      SELECT next.item
                      FROM ",
            $gone,
            " AS g
                      CROSS JOIN LATERAL (
                          SELECT item
                          FROM steadfast.queue
                          WHERE chain = g.chain AND number > g.number
                          ORDER BY number
                          LIMIT 1) AS next
                      WHERE g.chain IS NOT NULL AND left(g.chain, 1) <> '/'
                      UNION ALL
                      SELECT next.item
                      FROM (SELECT chain, count(*) FROM ",
            $gone,
            " WHERE left(chain, 1) = '/' GROUP BY chain) AS g
                      CROSS JOIN LATERAL (
                          SELECT item
                          FROM steadfast.queue
                          WHERE chain = g.chain AND state = 'pending' AND visible_at > due_at
                            AND number <= extract(epoch FROM statement_timestamp()) * 1000000 + $1
                          ORDER BY number
                          -- One more than has ended: should one have been put off just when there was room, it comes back.
                          LIMIT g.count + 1) AS next))
              AND coalesce(q.chain, '') = ANY (ARRAY(SELECT chain FROM ",
            $gone,
            "))
              AND q.state = 'pending' AND q.visible_at > q.due_at
        )"
        )
    };
}

/// Puts a letter in line for each of these rows that has died and whose broker has dead letters of its own. What is in line already
/// is not there twice.
macro_rules! put_letters_in_line {
    ($rows:literal) => {
        concat!(
            "lettered AS (
            INSERT INTO steadfast.queue (due_at, item, kind, visible_at, epoch, state)
            SELECT c.now, r.item, r.letters, c.now,
                   -- An earlier letter of this message has left its failures.
                   coalesce((SELECT max(x.epoch) FROM steadfast.failures AS x
                             WHERE x.item = r.item AND x.kind = r.letters), 0),
                   'pending'
            FROM ",
            $rows,
            " AS r, clock AS c
            WHERE r.state = 'dead' AND r.letters IS NOT NULL
            ON CONFLICT ON CONSTRAINT queue_one DO NOTHING
        )"
        )
    };
}
pub(super) use put_letters_in_line;

/// Locks those of the leases `$2` to `$5` that are still held and that nobody else is just writing. A transaction that has finished its
/// row waits for whatever it likes before it commits; the leases of all other rows do not wait for it.
macro_rules! free {
    () => {
        "free AS MATERIALIZED (
            SELECT q.item, q.kind
            FROM steadfast.queue AS q,
                 unnest($2::uuid[], $3::text[], $4::bigint[], $5::bigint[]) AS l (item, kind, epoch, token)
            WHERE q.item = ANY ($2) AND q.item = l.item AND q.kind || '' = l.kind
              AND q.epoch = l.epoch AND q.token = l.token AND q.state = 'leased'
            FOR UPDATE OF q SKIP LOCKED
        )"
    };
}

/// Those of the leases `$2` to `$5` that a statement has left as they are, and whether they are busy, if rows were passed by that
/// are. What was there when the statement began may be gone by now; that is found out the next time. Usually there are none, and
/// nothing is compared.
macro_rules! untouched {
    ($touched:literal, $passes_by:literal) => {
        concat!(
            "SELECT l.item, l.kind,
               ",
            $passes_by,
            " AND EXISTS (SELECT FROM steadfast.queue AS q
                       WHERE q.item = l.item AND q.kind || '' = l.kind
                         AND q.epoch = l.epoch AND q.token = l.token AND q.state = 'leased') AS is_busy
        FROM unnest($2::uuid[], $3::text[], $4::bigint[], $5::bigint[]) AS l (item, kind, epoch, token)
        WHERE (SELECT count(*) FROM ",
            $touched,
            ") < cardinality($2)
          AND NOT EXISTS (SELECT FROM ",
            $touched,
            " AS t WHERE t.item = l.item AND t.kind = l.kind)"
        )
    };
}

/// How long a row is left alone that has others ahead of it, of which one or more than one are counted: the longer it has
/// waited, the longer.
macro_rules! put_off {
    ($ahead:literal, $lease:literal, $due_at:literal) => {
        concat!(
            "CASE ",
            $ahead,
            " WHEN 1 THEN ",
            $lease,
            "
              ELSE least(greatest(c.now - ",
            $due_at,
            ", ",
            $lease,
            "), interval '5 minutes') END"
        )
    };
}

pub(super) use put_off;

/// A claim: what is wanted, where is looked for it, which of what was found is `plain`, how many rows are ahead of the others, and what
/// else is written and said.
macro_rules! claim_statement {
    (
        wanted: $wanted:expr,
        looks: $looks:expr,
        plain: $plain:literal,
        odd: $odd:literal,
        ahead: $ahead:literal,
        also: $also:expr,
        next_at: $next_at:literal,
        said: $said:literal
    ) => {
        concat!(
            "
    WITH clock AS MATERIALIZED (
        SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now,
               set_config('synchronous_commit', 'off', true)     AS is_light
    ), wanted AS MATERIALIZED (
        SELECT w.kind, w.room, w.attempts_max, w.lease * interval '1 microsecond' AS lease, w.dead_make_room,
               w.queue, w.place, least($10, w.attempts_max - 1) AS suspect_from
        FROM unnest($2::text[], $3::integer[], $4::integer[], $5::bigint[], $11::boolean[], $12::text[])
             WITH ORDINALITY AS w (kind, room, attempts_max, lease, dead_make_room, queue, place)
        JOIN steadfast.kinds AS k ON k.kind = w.kind AND k.paused_at IS NULL
        ",
            $wanted,
            $looks,
            "
    ), plain AS (
        UPDATE steadfast.queue AS q
        SET state = 'leased', epoch = q.epoch + 1, attempts = q.attempts + 1, token = $8, holder = $9,
            leased_until = c.now + w.lease, began_at = coalesce(q.began_at, c.now)
        FROM wanted AS w, clock AS c
        WHERE q.ctid = ANY (ARRAY(SELECT place FROM due WHERE ",
            $plain,
            ")) AND q.kind || '' = w.kind
        RETURNING q.item, q.kind, q.epoch, q.attempts, q.chain, q.began_at, q.due_at,
                  CASE WHEN q.cancel_at IS NULL THEN 'claim' ELSE 'cancel' END AS verdict, false AS is_suspect
    ), odd AS MATERIALIZED (
        SELECT DISTINCT ON (l.item, l.kind)
               l.item, l.kind, l.state, l.epoch, l.attempts, l.due_at, l.chain, w.lease, w.dead_make_room,
               l.state = 'leased' AND l.attempts >= w.suspect_from AS is_suspect,
               ahead.count AS ahead,
               CASE WHEN ahead.count > 0                                     THEN 'wait'
                    -- What was cancelled is claimed to be ended, and not dead.
                    WHEN l.state = 'leased' AND l.attempts >= w.attempts_max AND l.cancel_at IS NULL THEN 'bury'
                    ELSE 'claim' END AS verdict
        FROM (",
            $odd,
            ") AS l
        JOIN wanted AS w ON w.kind = l.kind
        CROSS JOIN LATERAL (",
            $ahead,
            ") AS ahead
    ), judged AS (
        UPDATE steadfast.queue AS q
        SET state        = CASE o.verdict WHEN 'claim' THEN 'leased' WHEN 'bury' THEN 'dead' ELSE q.state END,
            epoch        = q.epoch + CASE o.verdict WHEN 'wait' THEN 0 ELSE 1 END,
            attempts     = q.attempts + CASE o.verdict WHEN 'claim' THEN 1 ELSE 0 END,
            token        = CASE o.verdict WHEN 'claim' THEN $8 ELSE 0 END,
            holder       = CASE o.verdict WHEN 'claim' THEN $9 END,
            leased_until = CASE o.verdict WHEN 'claim' THEN c.now + o.lease ELSE q.leased_until END,
            began_at     = coalesce(q.began_at, CASE o.verdict WHEN 'claim' THEN c.now END),
            chain        = CASE WHEN o.verdict = 'bury' AND o.dead_make_room THEN NULL ELSE q.chain END,
            number       = CASE WHEN o.verdict = 'bury' AND left(q.chain, 1) = '/' THEN 9223372036854775807 ELSE q.number END,
            visible_at   = CASE o.verdict
                               -- A row of `freed` may have been put off: from now on its lease hides it.
                               WHEN 'claim' THEN least(q.visible_at, c.now)
                               WHEN 'bury'  THEN 'infinity'
                               ELSE c.now + ",
            put_off!("o.ahead", "o.lease", "o.due_at"),
            " END
        FROM odd AS o, clock AS c
        -- By the primary key, and not by the index on kinds, which does not see this comparison.
        WHERE q.item = ANY (ARRAY(SELECT item FROM odd)) AND q.item = o.item AND q.kind || '' = o.kind
        RETURNING q.item, q.kind, q.epoch, q.attempts, o.chain, q.began_at, q.due_at,
                  CASE WHEN q.cancel_at IS NOT NULL AND o.verdict = 'claim' THEN 'cancel' ELSE o.verdict END AS verdict,
                  o.is_suspect, q.state, q.letters
    ), ",
            put_letters_in_line!("judged"),
            ", noted AS (
        INSERT INTO steadfast.failures (at, epoch, attempt, item, kind, failure, code, message, fingerprint)
        SELECT c.now, o.epoch, o.attempts, o.item, o.kind, 'unknown', 'lease_expired',
               'the process that worked on it died, hung or was cut off from the database', 'lease_expired'
        FROM odd AS o, clock AS c
        WHERE o.state = 'leased'
        ON CONFLICT DO NOTHING
    )",
            $also,
            "
    -- What is said once comes first, on a row of its own.
    SELECT now, ARRAY(SELECT kind FROM turn WHERE is_full) AS full_kinds,
           (SELECT count(*) FROM odd WHERE verdict = 'wait') AS waiting,
           least((SELECT min(next.visible_at)
            FROM wanted AS w
            CROSS JOIN LATERAL (
                SELECT visible_at
                FROM steadfast.queue
                WHERE kind = w.kind AND visible_at > (SELECT now FROM clock) AND visible_at < 'infinity'
                ORDER BY visible_at
                LIMIT 1) AS next), ",
            $next_at,
            ") AS next_at,
           ",
            $said,
            ",
           is_light, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM clock
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL,
           c.verdict, c.item, c.kind, c.epoch, c.chain, c.attempts, c.began_at, c.due_at, c.is_suspect,
           m.type, m.version, m.created_at, m.expires_at, m.ordering_key, m.source, m.correlation_id, m.causation_id,
           m.traceparent, m.payload
    FROM (SELECT * FROM plain
          UNION ALL
          SELECT item, kind, epoch, attempts, chain, began_at, due_at, verdict, is_suspect
          FROM judged
          WHERE verdict <> 'wait') AS c
    LEFT JOIN LATERAL (
        SELECT *
        FROM steadfast.messages
        WHERE id = c.item AND c.verdict <> 'bury'
        LIMIT 1) AS m ON true"
        )
    };
}
pub(super) use claim_statement;

/// Claims rows that are due, and those whose lease has expired: both are visible. One statement for all kinds.
///
/// A lease leaves the row where it is in the index, so claiming writes nothing but the row itself, and the next claim passes it
/// by. Most rows are `plain`: nothing is ahead of them, and nobody has had them. They are found again by their place, which
/// cannot change while they are locked. (A row that was put back between the beginning of this statement and its lock is
/// left to the next one.) The rest is `odd`, and judged one by one.
///
/// A row of a chain is left alone while an earlier one is there, and is not looked at again for a while: the next one not
/// before the lease of the first could have expired, those behind it longer. Who ends a row shows the one behind it
/// ([`show_next`]), and looks at it directly (`freed`), in case another claim was just putting it off. Numbers of a chain
/// are committed in their order, so whoever sees a row sees the earlier ones too. The rows of `freed` are waited for,
/// before any other row is locked.
///
/// A row that is suspect has its turn when those that have waited longer have had theirs (`turn`): to look for one beyond
/// that would be to read the whole backlog, each time.
///
/// It need not survive a crash of the server: a claim that is lost is made again.
macro_rules! claim_due {
    ($wanted:literal, $said:literal) => {
        claim_statement! {
            wanted: $wanted,
            looks: "    ), freed AS MATERIALIZED (
        SELECT ctid AS place, item, kind, state, epoch, attempts, chain, number, due_at, visible_at, cancel_at
        FROM steadfast.queue
        WHERE item = ANY (ARRAY(
                  SELECT head.item
                  FROM unnest($6::text[]) AS f (chain)
                  CROSS JOIN LATERAL (
                      SELECT item, state
                      FROM steadfast.queue
                      WHERE chain = f.chain
                      ORDER BY number
                      LIMIT 1) AS head
                  -- What others have leased is theirs to lock.
                  WHERE head.state = 'pending'))
          -- Not as a condition from which it follows that there is a chain: it would be an index for all that have one.
          AND coalesce(chain, '') = ANY ($6) AND state = 'pending' AND due_at <= (SELECT now FROM clock)
          AND kind || '' IN (SELECT kind FROM wanted)
        ORDER BY item
        FOR UPDATE
    ), due AS MATERIALIZED (
        SELECT next.*
        FROM (SELECT count(*) FROM freed) AS first
        CROSS JOIN wanted AS w
        CROSS JOIN LATERAL (
            SELECT ctid AS place, item, kind, state, epoch, attempts, chain, number, due_at, visible_at, cancel_at
            FROM steadfast.queue
            WHERE kind = w.kind AND visible_at <= (SELECT now FROM clock)
              AND (state <> 'leased' OR (leased_until <= (SELECT now FROM clock) AND attempts < w.suspect_from))
            ORDER BY visible_at
            LIMIT w.room
            FOR UPDATE SKIP LOCKED) AS next
    ), turn AS MATERIALIZED (
        SELECT w.kind, w.suspect_from,
               count(d.item) >= w.room AS is_full,
               CASE WHEN count(d.item) < w.room THEN (SELECT now FROM clock) + interval '1 microsecond'
                    ELSE max(d.visible_at) END AS until
        FROM wanted AS w
        LEFT JOIN due AS d ON d.kind = w.kind
        GROUP BY w.kind, w.suspect_from, w.room
    ), suspect AS MATERIALIZED (
        SELECT next.*
        FROM turn AS t
        CROSS JOIN LATERAL (
            SELECT ctid AS place, item, kind, state, epoch, attempts, chain, number, due_at, visible_at, cancel_at
            FROM steadfast.queue
            WHERE kind = t.kind AND visible_at < t.until
              AND state = 'leased' AND leased_until <= (SELECT now FROM clock) AND attempts >= t.suspect_from
            ORDER BY visible_at
            LIMIT 1
            FOR UPDATE SKIP LOCKED) AS next
        LIMIT $7",
            plain: "chain IS NULL AND state = 'pending'",
            odd: "SELECT * FROM freed
              UNION ALL
              SELECT * FROM due WHERE chain IS NOT NULL OR state <> 'pending'
              UNION ALL
              SELECT * FROM suspect",
            ahead: "
            SELECT count(*)
            FROM (SELECT FROM steadfast.queue AS earlier
                  WHERE earlier.chain = l.chain AND earlier.number < l.number AND left(l.chain, 1) <> '/'
                  LIMIT 2) AS earlier",
            also: "",
            next_at: "NULL",
            said: $said
        }
    };
}

/// Claims for works that have hands of their own.
const CLAIM: &str = claim_due!("", "NULL");

/// The same if some rows stand in queues: those of a queue that is paused are left alone, and of those with limits it is only said whether
/// any is due. To claim them takes more ([`limits`](super::limits)).
const CLAIM_IN_QUEUES: &str = claim_due!(
    "LEFT JOIN steadfast.queues AS u ON u.name = w.queue
        WHERE u.paused_at IS NULL
          AND u.running_max IS NULL AND u.key_running_max IS NULL AND u.rate_count IS NULL",
    "ARRAY(SELECT DISTINCT w.queue
                 FROM unnest($2::text[], $12::text[]) AS w (kind, queue)
                 JOIN steadfast.queues AS u ON u.name = w.queue
                 JOIN steadfast.kinds AS k ON k.kind = w.kind AND k.paused_at IS NULL
                 CROSS JOIN LATERAL (
                     SELECT FROM steadfast.queue AS q
                     WHERE q.kind = w.kind AND q.visible_at <= (SELECT now FROM clock)
                       AND (q.state <> 'leased' OR q.leased_until <= (SELECT now FROM clock))
                     ORDER BY q.visible_at
                     LIMIT 1) AS due
                 WHERE u.paused_at IS NULL
                   AND (u.running_max IS NOT NULL OR u.key_running_max IS NOT NULL OR u.rate_count IS NOT NULL))"
);

/// Claims what is wanted; what stands in queues with limits in a transaction of its own, if anything of it is due.
pub(super) async fn claim(link: &mut Link, names: &Names, claim: &Claim<'_>, offset: Offset) -> Result<Claims> {
    let has_queues = claim.wanted.iter().any(|wanted| wanted.queue.is_some());
    let statement = if has_queues { CLAIM_IN_QUEUES } else { CLAIM };
    let rows = bind_claim(sqlx::query(names.sql(statement)), claim, offset)
        .fetch_all(&mut link.listener)
        .await
        .map_err(|error| PostgresStore::error(error, "claiming rows"))?;
    let (mut claims, mut limited) = read_claims(&rows, claim)?;
    // A key that has room again may have nothing but rows that were put off.
    let of_keys = claim.freed.iter().filter_map(|chain| queue_of_key(chain));
    limited.extend(of_keys.map(str::to_owned));
    limited.sort_unstable();
    limited.dedup();
    if limited.is_empty() {
        return Ok(claims);
    }
    let claim = Claim {
        // One of them is worked on at a time, wherever it stands.
        takes_suspect: claim.takes_suspect && !claims.rows.iter().any(|row| row.is_suspect),
        ..*claim
    };
    match super::limits::claim(&mut link.listener, names, &claim, &limited, offset).await {
        Ok(more) => claims.add(more),
        // What was claimed already is worked on all the same, and what has died has made way.
        Err(error) if !claims.rows.is_empty() || !claims.buried.is_empty() => telemetry::limited_not_claimed(&error),
        Err(error) => return Err(error),
    }
    Ok(claims)
}

/// The queue of a chain that is a key with a limit.
fn queue_of_key(chain: &str) -> Option<&str> {
    Some(chain.strip_prefix(KEY)?.split_once(' ')?.0)
}

pub(super) type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// Binds what every claim has.
pub(super) fn bind_claim<'q>(query: Query<'q>, claim: &Claim<'q>, offset: Offset) -> Query<'q> {
    let column = |of: fn(&Wanted) -> i32| claim.wanted.iter().map(of).collect::<Vec<i32>>();
    let leases = claim.wanted.iter().map(|wanted| micros(wanted.lease));
    query
        .bind(offset.0)
        .bind(claim.wanted.iter().map(|wanted| &*wanted.kind).collect::<Vec<_>>())
        .bind(column(|wanted| count(wanted.room)))
        .bind(column(|wanted| count(wanted.attempts_max)))
        .bind(leases.collect::<Vec<_>>())
        .bind(claim.freed.iter().map(|chain| &**chain).collect::<Vec<_>>())
        .bind(i64::from(claim.takes_suspect))
        .bind(claim.token)
        .bind(claim.holder)
        .bind(SUSPECT_ATTEMPTS)
        .bind(
            claim
                .wanted
                .iter()
                .map(|wanted| wanted.dead_make_room)
                .collect::<Vec<_>>(),
        )
        .bind(
            claim
                .wanted
                .iter()
                .map(|wanted| wanted.queue.as_deref())
                .collect::<Vec<_>>(),
        )
}

/// Reads what a claim came to, and what it said of queues.
pub(super) fn read_claims(rows: &[PgRow], claim: &Claim<'_>) -> Result<(Claims, Vec<String>)> {
    let Some((first, rows)) = rows.split_first() else {
        return Err(Error::new(Code::Database, "a claim said nothing"));
    };
    let mut texts = Texts(claim.wanted.iter().map(|wanted| wanted.kind.clone()).collect());
    let mut columns = Columns::of(first);
    let now = columns.time()?;
    let full: Vec<String> = columns.next()?;
    let mut claims = Claims {
        full: full.iter().map(|kind| texts.share(kind)).collect(),
        waiting: usize::try_from(columns.next::<i64>()?).unwrap_or_default(),
        next_in: until(now, columns.time()?),
        ..Claims::default()
    };
    let queues: Option<Vec<String>> = columns.next()?;
    for row in rows {
        let mut columns = Columns {
            row,
            next: FIRST_OF_ROW,
        };
        let verdict = columns.next::<&str>()?;
        let is_dead = verdict == "bury";
        let lease = Lease {
            item: columns.next()?,
            kind: texts.share(columns.next()?),
            epoch: columns.next()?,
            token: if is_dead { 0 } else { claim.token },
        };
        let chain = columns.text()?;
        if is_dead {
            claims.buried.push(Buried { lease, chain });
        } else {
            let cancel = Cancel::found(verdict == "cancel");
            let claimed = read_claimed(lease, chain, cancel, columns, now, &mut texts)?;
            claims.rows.extend(claimed);
        }
    }
    Ok((claims, queues.unwrap_or_default()))
}

/// The rest of the columns, in the order of the statement; `None`: the message is gone.
fn read_claimed(
    lease: Lease,
    chain: Option<Arc<str>>,
    cancel: Cancel,
    mut columns: Columns<'_>,
    now: Option<Timestamp>,
    texts: &mut Texts,
) -> Result<Option<Claimed>> {
    let attempt = columns.next::<i32>()?.unsigned_abs();
    let elapsed = until(columns.time()?, now).unwrap_or_default();
    let due_for = until(columns.time()?, now).unwrap_or_default();
    let is_suspect = columns.next()?;
    let Some(event_type) = columns.next::<Option<&str>>()? else {
        telemetry::message_missing(&lease.item.to_string());
        return Ok(None);
    };
    let message = Message {
        id: lease.item,
        event_type: texts.share(event_type),
        version: columns.next::<i32>()?.unsigned_abs(),
        created_at: columns.time()?.unwrap_or(Timestamp(0)),
        has_expired: columns.time()?.is_some_and(|expires_at| Some(expires_at) <= now),
        ordering_key: columns.text()?,
        origin: Origin {
            source: texts.share(columns.next()?),
            correlation_id: columns.text()?,
            causation_id: columns.text()?,
            traceparent: columns.text()?,
        },
        payload: Bytes::from(columns.next::<Vec<u8>>()?),
        elsewhere: None,
    };
    Ok(Some(Claimed {
        lease,
        attempt,
        elapsed,
        due_for,
        chain,
        is_suspect,
        cancel,
        message: message.into(),
    }))
}

/// The column of [`CLAIM`] with which that begins which is said of a row.
const FIRST_OF_ROW: usize = 5;

/// Reads the columns of a row one after another: a hundred thousand rows a second are not looked up by name. Nor are their types
/// compared, which are those of our own statement.
struct Columns<'r> {
    row: &'r PgRow,
    next: usize,
}

impl<'r> Columns<'r> {
    fn of(row: &'r PgRow) -> Self {
        Self { row, next: 0 }
    }

    fn next<T>(&mut self) -> Result<T>
    where
        T: sqlx::Decode<'r, sqlx::Postgres>,
    {
        self.next += 1;
        self.row.try_get_unchecked(self.next - 1).map_err(unreadable)
    }

    fn text(&mut self) -> Result<Option<Arc<str>>> {
        Ok(self.next::<Option<&str>>()?.map(Arc::from))
    }

    /// A time is sent as microseconds since 2000, and taken as such: there is nothing to compute for each row.
    fn time(&mut self) -> Result<Option<Timestamp>> {
        const YEAR_2000: i64 = 946_684_800 * 1_000_000;
        Ok(self
            .next::<Option<i64>>()?
            .map(|micros| Timestamp(micros.saturating_add(YEAR_2000))))
    }
}

fn unreadable(error: sqlx::Error) -> Error {
    PostgresStore::error(error, "reading a row of the queue")
}

/// Texts that are the same in many rows, each kept once.
struct Texts(Vec<Arc<str>>);

impl Texts {
    /// How many are remembered: a service has few types of events.
    const MAX: usize = 32;

    fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.iter().find(|known| &***known == text) {
            return known.clone();
        }
        let new: Arc<str> = text.into();
        if self.0.len() < Self::MAX {
            self.0.push(new.clone());
        }
        new
    }
}

/// How long a time is before another one.
fn until(from: Option<Timestamp>, to: Option<Timestamp>) -> Option<Duration> {
    Some(duration(to?.0 - from?.0))
}

/// Renews the leases `$2` to `$5` by `$6`.
const RENEW: &str = concat!(
    "
        WITH clock AS MATERIALIZED (
            SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now,
                   set_config('synchronous_commit', 'off', true)     AS is_light
        ), ",
    free!(),
    ", renewed AS (
            UPDATE steadfast.queue AS q
            SET leased_until = c.now + l.lease * interval '1 microsecond'
            FROM free AS f,
                 unnest($2::uuid[], $3::text[], $6::bigint[]) AS l (item, kind, lease),
                 clock AS c
            WHERE q.item = ANY (ARRAY(SELECT item FROM free)) AND q.item = f.item AND q.kind || '' = f.kind
              AND l.item = f.item AND l.kind = f.kind
            RETURNING q.item, q.kind, q.cancel_at
        )
        SELECT u.*, false AS is_cancelled FROM (",
    untouched!("renewed", "true"),
    ") AS u
        UNION ALL
        SELECT item, kind, false, true FROM renewed WHERE cancel_at IS NOT NULL"
);

/// Rows that a statement has left as they are, and rows that were cancelled.
type Told = (Untouched, Vec<(Uuid, String)>);

/// Renews leases, and says which rows it has left as they are, and which were cancelled.
pub(super) async fn renew(
    link: &mut Link,
    names: &Names,
    leases: &[(&Lease, Duration)],
    offset: Offset,
) -> Result<Told> {
    let statement = names.sql(RENEW);
    let rows = sqlx::query_as(statement)
        .bind(offset.0)
        .bind(leases.iter().map(|(lease, _)| lease.item).collect::<Vec<_>>())
        .bind(leases.iter().map(|(lease, _)| &*lease.kind).collect::<Vec<_>>())
        .bind(leases.iter().map(|(lease, _)| lease.epoch).collect::<Vec<_>>())
        .bind(leases.iter().map(|(lease, _)| lease.token).collect::<Vec<_>>())
        .bind(leases.iter().map(|(_, length)| micros(*length)).collect::<Vec<_>>())
        .fetch_all(&mut link.listener)
        .await
        .map_err(|error| PostgresStore::error(error, "renewing leases"))?;
    Ok(read_told(rows))
}

/// Whether each of these is busy, and whether it was cancelled.
fn read_told(rows: Vec<(Uuid, String, bool, bool)>) -> Told {
    let (cancelled, untouched): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(.., is_cancelled)| *is_cancelled);
    let untouched = untouched
        .into_iter()
        .map(|(item, kind, is_busy, _)| (item, kind, is_busy));
    let cancelled = cancelled.into_iter().map(|(item, kind, ..)| (item, kind));
    (read_untouched(untouched.collect()), cancelled.collect())
}

fn read_untouched(rows: Vec<(Uuid, String, bool)>) -> Untouched {
    let mut untouched = Untouched::default();
    for (item, kind, is_busy) in rows {
        let part = if is_busy {
            &mut untouched.busy
        } else {
            &mut untouched.lost
        };
        part.push((item, kind));
    }
    untouched
}

/// Moves rows to the history, and says which of them it has left as they are.
///
/// Hardly ever is somebody else just writing one of them. To lock them first would cost every delivery an entry in the log; so they
/// are waited for, and passed by only if that has been in vain.
pub(super) async fn finish(link: &mut Link, names: &Names, done: &[Done<'_>], offset: Offset) -> Result<Untouched> {
    let passes_by = done.iter().any(|done| done.was_busy);
    match finish_those(link, names, done, passes_by, offset).await {
        Err(error) if error.code() == Code::Locked && !passes_by => finish_those(link, names, done, true, offset).await,
        finished => finished,
    }
}

/// Moves the rows of the leases `$2` to `$5` to the history, as `$6` and with `$7`; `$8`: but for those that somebody is just writing.
const FINISH: &str = concat!(
    "
        WITH clock AS MATERIALIZED (
            SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now,
                   set_config('lock_timeout', '100ms', true)         AS is_patient
        ), ",
    free!(),
    ", gone AS (
            DELETE FROM steadfast.queue AS q
            USING unnest($2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[])
                  AS d (item, kind, epoch, token, state, detail),
                  clock AS c
            WHERE q.item = ANY ($2) AND q.item = d.item AND q.kind || '' = d.kind
              AND q.epoch = d.epoch AND q.token = d.token AND q.state = 'leased'
              AND (NOT $8 OR (q.item, q.kind) IN (SELECT item, kind FROM free))
            RETURNING q.item, q.kind, q.attempts, q.chain, q.number, d.state, d.detail, c.now
        ), kept AS (
            INSERT INTO steadfast.history (finished_at, attempts, item, state, kind, detail)
            SELECT g.now, g.attempts, g.item, g.state, g.kind, g.detail
            FROM gone AS g
            -- The newest first: each row that goes beyond those before it changes the indexes on the whole range.
            ORDER BY g.item DESC
        ), ",
    show_next!("gone"),
    "
        ",
    untouched!("gone", "$8")
);

async fn finish_those(
    link: &mut Link,
    names: &Names,
    done: &[Done<'_>],
    passes_by: bool,
    offset: Offset,
) -> Result<Untouched> {
    let statement = names.sql(FINISH);
    let rows = sqlx::query_as(statement)
        .bind(offset.0)
        .bind(done.iter().map(|done| done.lease.item).collect::<Vec<_>>())
        .bind(done.iter().map(|done| &*done.lease.kind).collect::<Vec<_>>())
        .bind(done.iter().map(|done| done.lease.epoch).collect::<Vec<_>>())
        .bind(done.iter().map(|done| done.lease.token).collect::<Vec<_>>())
        .bind(done.iter().map(|done| done.state).collect::<Vec<_>>())
        .bind(done.iter().map(|done| done.detail).collect::<Vec<_>>())
        .bind(passes_by)
        .fetch_all(&mut link.listener)
        .await
        .map_err(|error| PostgresStore::error(error, "finishing rows"))?;
    Ok(read_untouched(rows))
}

/// Puts off rows that have others ahead of them, among the first [`PARKED_AT_ONCE`] that are due: for as long as a claim would.
///
/// A claim puts off as many as it has room for. Behind a chain that is long, others would wait until it has passed it by.
pub(super) async fn park(
    link: &mut Link,
    names: &Names,
    kind: &str,
    full_keys: &[Arc<str>],
    lease: Duration,
    offset: Offset,
) -> Result<()> {
    let statement = names.sql(concat!(
        "
        WITH clock AS MATERIALIZED (
            SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now,
                   set_config('synchronous_commit', 'off', true)     AS is_light
        ), due AS MATERIALIZED (
            SELECT item, chain, number
            FROM steadfast.queue
            WHERE kind = $2 AND visible_at <= (SELECT now FROM clock WHERE is_light IS NOT NULL) AND state = 'pending'
            ORDER BY visible_at
            LIMIT $4
        ), waiting AS MATERIALIZED (
            SELECT d.item, ahead.count AS ahead
            FROM due AS d
            CROSS JOIN LATERAL (
                SELECT count(*)
                FROM (SELECT FROM steadfast.queue AS earlier
                      WHERE earlier.chain = d.chain AND earlier.number < d.number AND left(d.chain, 1) <> '/'
                      LIMIT 2) AS earlier) AS ahead
            WHERE ahead.count > 0
            UNION ALL
            SELECT d.item, 2
            FROM due AS d
            WHERE d.chain = ANY ($5)
        ), locked AS MATERIALIZED (
            SELECT item, kind
            FROM steadfast.queue
            WHERE item = ANY (ARRAY(SELECT item FROM waiting)) AND kind || '' = $2
              AND state = 'pending' AND visible_at <= (SELECT now FROM clock)
            FOR UPDATE SKIP LOCKED
        )
        UPDATE steadfast.queue AS q
        SET visible_at = c.now + ",
        put_off!("w.ahead", "($3 * interval '1 microsecond')", "q.due_at"),
        "
        FROM locked AS l
        JOIN waiting AS w ON w.item = l.item,
             clock AS c
        WHERE q.item = ANY (ARRAY(SELECT item FROM locked)) AND q.item = l.item AND q.kind || '' = l.kind"
    ));
    sqlx::query(statement)
        .bind(offset.0)
        .bind(kind)
        .bind(micros(lease))
        .bind(PARKED_AT_ONCE)
        .bind(full_keys.iter().map(|key| &**key).collect::<Vec<_>>())
        .execute(&mut link.listener)
        .await
        .map(drop)
        .map_err(|error| PostgresStore::error(error, "putting off rows that wait"))
}

/// Puts the rows of the leases `$2` to `$5` back, to be due after `$6`, with what is to be noted of each.
const PUT_BACK: &str = concat!(
        "
        WITH clock AS MATERIALIZED (
            SELECT clock_timestamp() + $1 * interval '1 microsecond' AS now
        ), ",
        free!(),
        ", ended AS (
            DELETE FROM steadfast.queue AS q
            USING unnest($2::uuid[], $3::text[], $7::boolean[], $9::integer[], $10::text[], $11::text[], $12::text[], $13::text[],
                         $14::text[])
                  AS b (item, kind, gives_back, attempt, failure, code, message, fingerprint, cancelled)
            WHERE q.item = ANY (ARRAY(SELECT item FROM free)) AND (q.item, q.kind) IN (SELECT item, kind FROM free)
              AND q.item = b.item AND q.kind || '' = b.kind
              AND (q.cancel_at IS NOT NULL OR b.cancelled IS NOT NULL)
            RETURNING q.item, q.kind, q.epoch, q.number, q.chain, q.attempts - CASE WHEN b.gives_back THEN 1 ELSE 0 END AS attempts,
                      coalesce(q.cancel_reason, b.cancelled) AS detail,
                      b.attempt, b.failure, b.code, b.message, b.fingerprint
        ), kept AS (
            INSERT INTO steadfast.history (finished_at, attempts, item, state, kind, detail)
            SELECT c.now, e.attempts, e.item, 'cancelled', e.kind, e.detail FROM ended AS e, clock AS c
        ), back AS (
            UPDATE steadfast.queue AS q
            SET state      = CASE WHEN b.after IS NULL THEN 'dead' ELSE 'pending' END,
                due_at     = CASE WHEN b.after > 0 THEN c.now + b.after * interval '1 microsecond' ELSE q.due_at END,
                visible_at = CASE WHEN b.after IS NULL THEN 'infinity'
                                  WHEN b.after > 0 THEN c.now + b.after * interval '1 microsecond'
                                  ELSE least(q.visible_at, c.now) END,
                attempts   = q.attempts - CASE WHEN b.gives_back THEN 1 ELSE 0 END,
                -- The age of a row counts from the first attempt that counts.
                began_at   = CASE WHEN b.gives_back AND q.attempts = 1 THEN NULL ELSE q.began_at END,
                chain      = CASE WHEN b.leaves IS NULL THEN q.chain END,
                -- Those of a key stand there by their time.
                number     = CASE WHEN coalesce(left(q.chain, 1), '') <> '/' OR b.after = 0 THEN q.number
                                  WHEN b.after IS NULL THEN 9223372036854775807
                                  ELSE (extract(epoch FROM c.now) * 1000000)::bigint + b.after END,
                token      = 0,
                holder     = NULL
            FROM unnest($2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::boolean[], $8::text[],
                        $9::integer[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[])
                 AS b (item, kind, epoch, token, after, gives_back, leaves, attempt, failure, code, message, fingerprint, cancelled),
                 clock AS c
            WHERE q.item = ANY (ARRAY(SELECT item FROM free)) AND (q.item, q.kind) IN (SELECT item, kind FROM free)
              AND q.item = b.item AND q.kind || '' = b.kind
              AND q.cancel_at IS NULL AND b.cancelled IS NULL
            RETURNING q.item, q.kind, q.epoch, q.number, q.state, q.letters,
                      CASE left(q.chain, 1) WHEN '/' THEN q.chain ELSE b.leaves END AS chain,
                      b.attempt, b.failure, b.code, b.message, b.fingerprint
        ), noted AS (
            INSERT INTO steadfast.failures (at, epoch, attempt, item, kind, failure, code, message, fingerprint)
            SELECT c.now, b.epoch, b.attempt, b.item, b.kind, b.failure, b.code, b.message, b.fingerprint
            FROM (SELECT item, kind, epoch, attempt, failure, code, message, fingerprint FROM back
                  UNION ALL
                  SELECT item, kind, epoch, attempt, failure, code, message, fingerprint FROM ended) AS b, clock AS c
            WHERE b.attempt IS NOT NULL
        ), let_go AS (
            SELECT item, kind, chain, number FROM back
            UNION ALL
            SELECT item, kind, chain, number FROM ended
        ), ",
        put_letters_in_line!("back"),
        ", ",
        show_next!("let_go"),
        "
        SELECT u.*, false AS is_cancelled FROM (",
        untouched!("let_go", "true"),
        ") AS u
        UNION ALL
        SELECT item, kind, false, true FROM ended"
);

/// Puts rows back, or buries them, ends those that were cancelled, and says which of them it has left as they are.
///
/// A row that is cancelled after this has begun to look, and before it has the lock, is left as it is, as if it were busy: it is asked for
/// again.
pub(super) async fn put_back(link: &mut Link, names: &Names, back: &[Back<'_>], offset: Offset) -> Result<PutBack> {
    let statement = names.sql(PUT_BACK);
    let failures = || back.iter().map(|back| back.failure.as_ref());
    let rows = sqlx::query_as(statement)
        .bind(offset.0)
        .bind(back.iter().map(|back| back.lease.item).collect::<Vec<_>>())
        .bind(back.iter().map(|back| &*back.lease.kind).collect::<Vec<_>>())
        .bind(back.iter().map(|back| back.lease.epoch).collect::<Vec<_>>())
        .bind(back.iter().map(|back| back.lease.token).collect::<Vec<_>>())
        .bind(back.iter().map(|back| back.after.map(micros)).collect::<Vec<_>>())
        .bind(back.iter().map(|back| back.gives_attempt_back).collect::<Vec<_>>())
        .bind(back.iter().map(|back| back.leaves_chain).collect::<Vec<_>>())
        .bind(failures().map(|row| row.map(|row| row.attempt)).collect::<Vec<_>>())
        .bind(failures().map(|row| row.map(|row| &*row.failure)).collect::<Vec<_>>())
        .bind(failures().map(|row| row.map(|row| &*row.code)).collect::<Vec<_>>())
        .bind(failures().map(|row| row.map(|row| &*row.message)).collect::<Vec<_>>())
        .bind(
            failures()
                .map(|row| row.map(|row| &*row.fingerprint))
                .collect::<Vec<_>>(),
        )
        .bind(back.iter().map(|back| back.cancelled).collect::<Vec<_>>())
        .fetch_all(&mut link.listener)
        .await
        .map_err(|error| PostgresStore::error(error, "putting rows back"))?;
    let (untouched, cancelled) = read_told(rows);
    Ok(PutBack { untouched, cancelled })
}

/// Says that a node knows these kinds, now.
pub(super) async fn see_kinds(link: &mut Link, names: &Names, kinds: &[KnownKind], offset: Offset) -> Result<()> {
    see(&mut link.listener, names, kinds, offset).await
}

pub(super) async fn see<'e>(
    executor: impl PgExecutor<'e>,
    names: &Names,
    kinds: &[KnownKind],
    offset: Offset,
) -> Result<()> {
    let statement = names.sql(
        "
        INSERT INTO steadfast.kinds (kind, seen_at, queue, paused_at, paused_by, paused_reason)
        SELECT k.kind, clock_timestamp() + $1 * interval '1 microsecond', k.queue, p.paused_at, p.paused_by, p.paused_reason
        FROM unnest($2::text[], $3::text[]) AS k (kind, queue)
        -- A version that nobody knew before is paused if its target is.
        LEFT JOIN steadfast.kinds AS p ON p.kind = split_part(k.kind, '@', 1)
        ORDER BY k.kind
        ON CONFLICT ON CONSTRAINT kinds_one DO UPDATE SET seen_at = excluded.seen_at, queue = excluded.queue",
    );
    sqlx::query(statement)
        .bind(offset.0)
        .bind(kinds.iter().map(|kind| &*kind.name).collect::<Vec<_>>())
        .bind(kinds.iter().map(|kind| kind.queue.as_deref()).collect::<Vec<_>>())
        .execute(executor)
        .await
        .map(drop)
        .map_err(|error| PostgresStore::error(error, "saying which kinds are known"))
}

/// Moves one row to the history in the transaction of what was done, and fails unless this is the transaction that was
/// begun for it. False: the lease is lost, or the row was cancelled.
pub(super) async fn settle(conn: &mut PgConnection, names: &Names, lease: &Lease, offset: Offset) -> Result<bool> {
    let statement = names.sql(
        "SELECT coalesce(current_setting('sf.transaction', true), '') = 'open', steadfast.finish_row($1, $2, $3, $4, $5, $6)",
    );
    let (is_open, is_finished): (bool, bool) = sqlx::query_as(statement)
        .bind(offset.0)
        .bind(lease.item)
        .bind(&*lease.kind)
        .bind(lease.epoch)
        .bind(lease.token)
        .bind(done_word(&lease.kind))
        .fetch_one(conn)
        .await
        .map_err(|error| PostgresStore::error(error, "finishing a row"))?;
    if !is_open {
        return Err(super::keys::ended_by_handler());
    }
    Ok(is_finished)
}

fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
