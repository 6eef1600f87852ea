//! Messages on PostgreSQL: written with everything else that ends a transaction, in the same statement.

use sha2::{Digest, Sha256};
use sqlx::PgConnection;

use super::super::names::lock_number;
use super::keys;
use super::{Names, PostgresStore, Settlement, Store};
use crate::clock::{Offset, micros};
use crate::error::Result;
use crate::lease::Lease;
use crate::outbox::{NewMessage, TargetRow, When};
use crate::queue::done_word;

/// The time of the statement, by the clock of the test or the lab: `$1` is how far that is ahead. It is the time at which the server
/// got the statement, not that of the transaction, and every part of the statement sees the same.
macro_rules! now {
    () => {
        "(statement_timestamp() + $1 * interval '1 microsecond')"
    };
}

/// When a message is due: so long after now, or at a time, unless that has passed.
macro_rules! due {
    ($delay:literal, $at:literal) => {
        concat!(
            "greatest(",
            now!(),
            ", coalesce(timestamptz 'epoch' + ",
            $at,
            " * interval '1 microsecond', ",
            now!(),
            " + ",
            $delay,
            " * interval '1 microsecond'))"
        )
    };
}

/// A time, in microseconds since 1970.
macro_rules! micros_of {
    ($time:expr) => {
        concat!("(extract(epoch FROM ", $time, ") * 1000000)::bigint")
    };
}

/// Writes messages, and a row of the queue for what each is for: a job has one, an event one for each target that wants it, whichever
/// process declared that. `$2` are the locks of the ordering keys, sorted, and the rest has a place for each message.
///
/// Numbers are taken when the locks are held, and the locks are held until COMMIT: so among messages of one key the order
/// of numbers is the order of commits.
///
/// Two arrays are read by a query of their own. The server would plan the statement anew for every transaction if it could
/// see how short they are, which takes longer than all the rest.
macro_rules! publish {
    () => {
        concat!(
            "
        WITH locked AS MATERIALIZED (
            SELECT pg_advisory_xact_lock(l.lock) FROM unnest((SELECT $2::bigint[])) AS l (lock)
        ), input AS MATERIALIZED (
            SELECT nextval('steadfast.numbers') AS number, i.*
            FROM (SELECT count(*) FROM locked) AS first,
                 unnest((SELECT $3::uuid[]), $4::text[], $5::integer[], $6::bigint[], $7::bigint[], $8::text[], $9::text[],
                        $10::text[], $11::text[], $12::text[], $13::bytea[], $14::text[], $15::text[], $16::text[], $17::bigint[],
                        $18::text[], $19::text[])
                 AS i (id, type, version, delay, expires_after, ordering_key, redacted,
                       correlation_id, causation_id, traceparent, payload, source, patterns, kind, due_at, chain, unique_key)
        ), said AS (
            INSERT INTO steadfast.messages
                   (number, created_at, expires_at, version, id, type, source, content_type, correlation_id, causation_id,
                    traceparent, ordering_key, redacted, payload, kind, unique_key)
            SELECT i.number, ",
            now!(),
            ", ",
            now!(),
            " + i.expires_after * interval '1 microsecond', i.version, i.id, i.type, i.source,
                   'application/json', i.correlation_id, i.causation_id, i.traceparent, i.ordering_key, i.redacted, i.payload,
                   i.kind, i.unique_key
            FROM input AS i
        ), sent AS (
            INSERT INTO steadfast.queue (visible_at, due_at, number, item, state, kind, chain)
            SELECT ",
            due!("i.delay", "i.due_at"),
            ", ",
            due!("i.delay", "i.due_at"),
            ",
                   CASE WHEN i.chain IS NOT NULL THEN ",
            micros_of!(due!("i.delay", "i.due_at")),
            " WHEN i.ordering_key IS NOT NULL THEN i.number END,
                   i.id, 'pending',
                   t.name || CASE WHEN t.is_versioned AND i.version > 1 THEN '@' || i.version ELSE '' END,
                   coalesce(i.chain, t.name || ' ' || i.ordering_key)
            FROM input AS i
            CROSS JOIN LATERAL (
                SELECT DISTINCT name, is_versioned
                FROM steadfast.targets
                WHERE i.kind IS NULL AND pattern = ANY (string_to_array(i.patterns, ' '))
                UNION ALL
                SELECT i.kind, false WHERE i.kind IS NOT NULL) AS t
        )"
        )
    };
}

/// The same for one message that has no ordering key, as most transactions have it: there is nothing to lock, and each place is a
/// value. An executor that starts fewer parts is a tenth of the whole transaction.
macro_rules! publish_one {
    () => {
        concat!(
            "
        WITH said AS (
            INSERT INTO steadfast.messages
                   (number, created_at, expires_at, version, id, type, source, content_type, correlation_id, causation_id,
                    traceparent, ordering_key, redacted, payload)
            VALUES (nextval('steadfast.numbers'), ",
            now!(),
            ", ",
            now!(),
            " + $7 * interval '1 microsecond', $5, $3, $4, $14,
                    'application/json', $10, $11, $12, $8, $9, $13)
        ), sent AS (
            INSERT INTO steadfast.queue (visible_at, due_at, item, state, kind)
            SELECT ",
            now!(),
            " + $6 * interval '1 microsecond', ",
            now!(),
            " + $6 * interval '1 microsecond', $3, 'pending',
                   t.name || CASE WHEN t.is_versioned AND $5 > 1 THEN '@' || $5 ELSE '' END
            FROM (SELECT DISTINCT name, is_versioned
                  FROM steadfast.targets
                  WHERE pattern = ANY ((SELECT string_to_array($15, ' '))::text[])) AS t
        )"
        )
    };
}

/// The same for one job: nobody is looked for who wants it.
macro_rules! enqueue_one {
    () => {
        concat!(
            "
        WITH said AS (
            INSERT INTO steadfast.messages
                   (number, created_at, version, id, type, source, content_type, correlation_id, causation_id,
                    traceparent, redacted, payload, kind, unique_key)
            VALUES (nextval('steadfast.numbers'), ",
            now!(),
            ", $5, $3, $4, $14, 'application/json', $10, $11, $12, $9, $13, $16, $19)
        ), sent AS (
            INSERT INTO steadfast.queue (visible_at, due_at, number, item, state, kind, chain)
            VALUES (",
            due!("$6", "$17"),
            ", ",
            due!("$6", "$17"),
            ", CASE WHEN $18 IS NOT NULL THEN ",
            micros_of!(due!("$6", "$17")),
            " END, $3, 'pending', $16, $18)
        )"
        )
    };
}

/// The statement that writes these messages and ends like this.
macro_rules! publishing {
    ($names:expr, $messages:expr, $($end:tt)*) => {
        $names.sql(match find_plain($messages) {
            Some(NewMessage { kind: None, .. }) => concat!(publish_one!(), $($end)*),
            Some(_) => concat!(enqueue_one!(), $($end)*),
            None => concat!(publish!(), $($end)*),
        })
    };
}

/// The one message, if it is one that has no ordering key.
fn find_plain(messages: &[NewMessage]) -> Option<&NewMessage> {
    match messages {
        [message] if message.ordering_key.is_none() => Some(message),
        _ => None,
    }
}

/// The fields of messages, in their places: each as it is, or a list of each.
macro_rules! bind_messages {
    ($query:expr, $names:expr, $messages:expr, $offset:expr) => {{
        let messages: &[NewMessage] = $messages;
        let query = $query.bind($offset.0).bind(locks($names, messages));
        match find_plain(messages) {
            Some(message) => bind_fields!(query, message, one),
            None => bind_fields!(query, messages, many),
        }
    }};
}

macro_rules! bind_fields {
    ($query:expr, $messages:expr, $shape:ident) => {
        $query
            .bind($shape($messages, |message| message.id))
            .bind($shape($messages, |message| &*message.event_type))
            .bind($shape($messages, |message| {
                i32::try_from(message.version).unwrap_or(i32::MAX)
            }))
            .bind($shape($messages, |message| due_columns(message.due).0))
            .bind($shape($messages, |message| message.expires_after.map(micros)))
            .bind($shape($messages, |message| message.ordering_key.as_deref()))
            .bind($shape($messages, |message| message.redacted.as_deref()))
            .bind($shape($messages, |message| message.origin.correlation_id.as_deref()))
            .bind($shape($messages, |message| message.origin.causation_id.as_deref()))
            .bind($shape($messages, |message| message.origin.traceparent.as_deref()))
            .bind($shape($messages, |message| message.payload.as_bytes()))
            .bind($shape($messages, |message| &*message.origin.source))
            .bind($shape($messages, |message| patterns(&message.event_type)))
            .bind($shape($messages, |message| message.kind.as_deref()))
            .bind($shape($messages, |message| due_columns(message.due).1))
            .bind($shape($messages, |message| message.chain.as_deref()))
            .bind($shape($messages, |message| message.unique_key.as_deref()))
    };
}

/// A field of the one message.
fn one<'m, T>(message: &'m NewMessage, field: impl Fn(&'m NewMessage) -> T) -> T {
    field(message)
}

/// A field of each message.
fn many<'m, T>(messages: &'m [NewMessage], field: impl Fn(&'m NewMessage) -> T) -> Vec<T> {
    messages.iter().map(field).collect()
}

/// How long after it was written something is due, and at which time, if that is given: in microseconds, since 1970.
pub(super) fn due_columns(due: When) -> (i64, Option<i64>) {
    match due {
        When::After(delay) => (micros(delay), None),
        When::At(at) => (0, Some(at.0)),
    }
}

/// Every pattern that means an event of this type, with spaces between them.
fn patterns(event_type: &str) -> String {
    let mut patterns = format!("{event_type} *");
    for (dot, _) in event_type.match_indices('.') {
        patterns.extend([" ", &event_type[..=dot], "*"]);
    }
    patterns
}

/// The advisory locks of the ordering keys, each once and in order, so that two who want the same ones do not wait for
/// each other.
fn locks(names: &Names, messages: &[NewMessage]) -> Vec<i64> {
    let keys = messages.iter().filter_map(|message| message.ordering_key.as_deref());
    let mut locks: Vec<_> = keys
        .map(|key| lock_number(&Sha256::new().chain_update("ordering ").chain_update(key).finalize()) ^ names.lock_salt)
        .collect();
    locks.sort_unstable();
    locks.dedup();
    locks
}

/// Writes messages, and fails unless this is the transaction that was begun for the handler.
pub(super) async fn publish(
    conn: &mut PgConnection,
    names: &Names,
    messages: &[NewMessage],
    offset: Offset,
) -> Result<()> {
    let statement = publishing!(
        names,
        messages,
        "SELECT coalesce(current_setting('sf.transaction', true), '') = 'open'"
    );
    let is_open: bool = bind_messages!(sqlx::query_scalar(statement), names, messages, offset)
        .fetch_one(conn)
        .await
        .map_err(|error| PostgresStore::error(error, "writing messages"))?;
    if is_open { Ok(()) } else { Err(keys::ended_by_handler()) }
}

/// Writes messages into the transaction of a caller.
pub(super) async fn publish_as_guest(
    conn: &mut PgConnection,
    names: &Names,
    messages: &[NewMessage],
    offset: Offset,
) -> Result<()> {
    let statement = publishing!(names, messages, "SELECT 1");
    bind_messages!(sqlx::query(statement), names, messages, offset)
        .execute(conn)
        .await
        .map(drop)
        .map_err(|error| PostgresStore::error(error, "writing messages"))
}

/// Writes messages and the key with its outcome: see [`keys::settle`].
pub(super) async fn settle(conn: &mut PgConnection, names: &Names, settlement: &Settlement<'_>) -> Result<bool> {
    let statement = publishing!(
        names,
        settlement.messages,
        "
        INSERT INTO steadfast.keys
               (hash, scope, tenant, owner, operation, value, fingerprint,
                state, status, headers, body, format, created_at, expires_at)
        SELECT $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, ",
        now!(),
        ", ",
        now!(),
        " + $32 * interval '1 microsecond'
        WHERE current_setting('sf.transaction', true) = 'open'"
    );
    let Settlement { key, stored, .. } = settlement;
    let query = bind_messages!(sqlx::query(statement), names, settlement.messages, settlement.offset);
    let settled = query
        .bind(&key.hash[..])
        .bind(key.scope.as_str())
        .bind(&*key.tenant)
        .bind(&*key.user)
        .bind(&*key.operation)
        .bind(&*key.value)
        .bind(&settlement.fingerprint.0)
        .bind(&stored.state)
        .bind(stored.status)
        .bind(&stored.headers)
        .bind(&stored.body)
        .bind(stored.format)
        .bind(micros(settlement.retention))
        .execute(conn)
        .await;
    keys::judge(settled.map(|settled| settled.rows_affected() == 1))
}

/// Writes messages, and moves one row to the history: see [`queue::settle`](super::queue::settle).
pub(super) async fn settle_row(
    conn: &mut PgConnection,
    names: &Names,
    lease: &Lease,
    messages: &[NewMessage],
    offset: Offset,
) -> Result<bool> {
    let statement = publishing!(
        names,
        messages,
        "
        SELECT coalesce(current_setting('sf.transaction', true), '') = 'open',
               steadfast.finish_row($1, $20, $21, $22, $23, $24)"
    );
    let (is_open, is_finished): (bool, bool) = bind_messages!(sqlx::query_as(statement), names, messages, offset)
        .bind(lease.item)
        .bind(&*lease.kind)
        .bind(lease.epoch)
        .bind(lease.token)
        .bind(done_word(&lease.kind))
        .fetch_one(conn)
        .await
        .map_err(|error| PostgresStore::error(error, "finishing a row"))?;
    if !is_open {
        return Err(keys::ended_by_handler());
    }
    Ok(is_finished)
}

/// Writes where messages go.
pub(super) async fn declare(store: &PostgresStore, targets: &[TargetRow], offset: Offset) -> Result<()> {
    let statement = store.names.sql(
        "
        INSERT INTO steadfast.targets (name, pattern, is_versioned, since)
        SELECT name, pattern, is_versioned, clock_timestamp() + $1 * interval '1 microsecond'
        FROM unnest($2::text[], $3::text[], $4::boolean[]) AS t (name, pattern, is_versioned)
        ORDER BY name, pattern
        ON CONFLICT ON CONSTRAINT targets_one DO UPDATE SET is_versioned = excluded.is_versioned",
    );
    sqlx::query(statement)
        .bind(offset.0)
        .bind(targets.iter().map(|target| &*target.name).collect::<Vec<_>>())
        .bind(targets.iter().map(|target| &*target.pattern).collect::<Vec<_>>())
        .bind(targets.iter().map(|target| target.is_versioned).collect::<Vec<_>>())
        .execute(&store.pool)
        .await
        .map(drop)
        .map_err(|error| PostgresStore::error(error, "declaring targets"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::fits;

    #[test]
    fn an_event_is_meant_by_its_type_by_each_beginning_of_it_and_by_a_star() {
        let event_type = "order.line.placed";
        let all = patterns(event_type);
        let mut all: Vec<_> = all.split(' ').collect();
        assert!(all.iter().all(|pattern| fits(pattern, event_type)));
        all.sort_unstable();
        assert_eq!(all, ["*", "order.*", "order.line.*", "order.line.placed"]);
        assert_eq!(patterns("paid"), "paid *");
    }
}
