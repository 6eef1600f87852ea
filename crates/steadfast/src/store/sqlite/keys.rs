//! Keys on SQLite: a look and a write, both in the transaction of a command.
//!
//! A command of ours seals its turn in the call that stores the outcome: each call is a trip to the connection's thread.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqlStr, SqliteConnection, SqlitePool};

use super::outbox::{self, publish_statement};
use super::writer::{Savepoint, Turn};
use super::{Names, Settlement, SqliteStore, Store};
use crate::clock::{Offset, Timestamp};
use crate::command::{Fingerprint, Key, KeyColumns, KeyFilter, KeyState, Record, Stored};
use crate::error::Result;
use crate::outbox::NewMessage;
use crate::page;

/// Writes a key with its outcome, and a message with it if there is one. `$1` is for messages as a list, `$2` the time.
macro_rules! settle {
    () => {
        "
        INSERT INTO steadfast_keys
               (hash, scope, tenant, owner, operation, value, fingerprint, state, status, headers, body, format,
                created_at, expires_at)
        VALUES ($3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $2, $15)"
    };
    (with_message) => {
        "
        INSERT INTO steadfast_settlements
               (hash, scope, tenant, owner, operation, value, fingerprint, state, status, headers, body, format,
                created_at, key_expires_at,
                id, type, version, source, correlation_id, causation_id, traceparent, ordering_key, redacted, payload,
                expires_at, due_at, kind, chain)
        VALUES ($3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $2, $15,
                $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29)"
    };
}

/// A statement that also seals the turn.
macro_rules! and_seal {
    ($turn:ident, $($statement:tt)+) => {
        match $turn.savepoint {
            Savepoint::Even => concat!($($statement)+, "; RELEASE sf_even; SAVEPOINT sf_odd"),
            Savepoint::Odd => concat!($($statement)+, "; RELEASE sf_odd; SAVEPOINT sf_even"),
        }
    };
}

/// The record of a key.
pub(super) async fn look_up(conn: &mut SqliteConnection, names: &Names, key: &Key) -> Result<Option<Record>> {
    let statement = names.sql(
        "
        SELECT expires_at, fingerprint, state, status, headers, body, format
        FROM steadfast_keys
        WHERE hash = $1",
    );
    sqlx::query(statement)
        .bind(&key.hash[..])
        .fetch_optional(conn)
        .await
        .map_err(|error| SqliteStore::error(error, "looking a key up"))?
        .map(|row| read_record(&row))
        .transpose()
}

/// Takes a key in a transaction: the live record, if there is one. An expired one makes room.
pub(super) async fn claim(
    conn: &mut SqliteConnection,
    names: &Names,
    key: &Key,
    offset: Offset,
) -> Result<Option<Record>> {
    match look_up(conn, names, key).await? {
        Some(record) if !record.is_live(offset.now()) => {
            remove(conn, names, key).await?;
            Ok(None)
        }
        record => Ok(record),
    }
}

/// Removes the record of a key: an expired one that makes room, or one that an operator evicts.
pub(super) async fn remove(conn: &mut SqliteConnection, names: &Names, key: &Key) -> Result<bool> {
    sqlx::query(names.sql("DELETE FROM steadfast_keys WHERE hash = $1"))
        .bind(&key.hash[..])
        .execute(conn)
        .await
        .map(|removed| removed.rows_affected() > 0)
        .map_err(|error| SqliteStore::error(error, "removing a key"))
}

/// Writes the key with its outcome, once, at the end, and seals the turn. False: the key is there already.
///
/// One message goes into the same statement, as most commands publish one or none: who waits for the thread of the
/// connection is woken for each statement, and JSON takes as long to read as a row to write.
pub(super) async fn settle(turn: &mut Turn, names: &Names, settlement: &Settlement<'_>) -> Result<bool> {
    let statement = match settlement.messages {
        [] => and_seal!(turn, settle!()),
        [_] => and_seal!(turn, settle!(with_message)),
        _ => and_seal!(turn, publish_statement!(), ";", settle!()),
    };
    let is_settled = write(turn, names.sql(statement), settlement, settlement.messages).await?;
    if is_settled {
        turn.has_sealed();
    }
    Ok(is_settled)
}

/// The same in the caller's transaction, which has its messages already.
pub(super) async fn settle_as_guest(
    conn: &mut SqliteConnection,
    names: &Names,
    settlement: &Settlement<'_>,
) -> Result<bool> {
    write(conn, names.sql(settle!()), settlement, &[]).await
}

async fn write(
    conn: &mut SqliteConnection,
    statement: SqlStr,
    settlement: &Settlement<'_>,
    messages: &[NewMessage],
) -> Result<bool> {
    let Settlement { key, stored, .. } = settlement;
    let now = settlement.offset.now();
    let mut query = sqlx::query(statement)
        .bind((messages.len() > 1).then(|| outbox::encode(messages, now)))
        .bind(now.0)
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
        .bind(now.after(settlement.retention).0);
    if let [message] = messages {
        query = query
            .bind(message.id.to_string())
            .bind(&*message.event_type)
            .bind(message.version)
            .bind(&*message.origin.source)
            .bind(message.origin.correlation_id.as_deref())
            .bind(message.origin.causation_id.as_deref())
            .bind(message.origin.traceparent.as_deref())
            .bind(message.ordering_key.as_deref())
            .bind(message.redacted.as_deref())
            .bind(message.payload.as_bytes())
            .bind(message.expires_after.map(|after| now.after(after).0))
            .bind(outbox::when_due(message.due, now).0)
            .bind(message.kind.as_deref())
            .bind(message.chain.as_deref());
    }
    match query.execute(conn).await {
        Ok(_) => Ok(true),
        // The primary key has judged: a duplicate committed first.
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() && is_of_keys(&*error) => Ok(false),
        Err(error) => Err(SqliteStore::error(error, "storing the outcome with its key")),
    }
}

/// Whether it is the table of keys that refuses a duplicate.
fn is_of_keys(error: &dyn sqlx::error::DatabaseError) -> bool {
    error.message().contains("_keys.hash")
}

/// Keys without their answers, in the order of their hashes.
pub(super) async fn list(readers: &SqlitePool, names: &Names, filter: &KeyFilter) -> Result<Vec<KeyColumns>> {
    let statement = names.sql(
        "
        SELECT hash, scope, tenant, owner, operation, value, state, status, created_at, expires_at,
               length(headers) + length(body) AS answer_bytes
        FROM steadfast_keys
        WHERE hash >= $1 AND hash <= $2
          AND ($3 IS NULL OR operation = $3)
          AND ($4 IS NULL OR tenant = $4)
          AND ($5 IS NULL OR owner = $5)
          AND ($6 IS NULL OR state = $6)
          AND ($7 IS NULL OR created_at >= $7)
        ORDER BY hash
        LIMIT $8",
    );
    let [first, last] = filter.bounds();
    let rows = sqlx::query(statement)
        .bind(first)
        .bind(last)
        .bind(&filter.operation)
        .bind(&filter.tenant)
        .bind(&filter.user)
        .bind(filter.state.map(KeyState::as_str))
        .bind(filter.since.map(|since| since.0))
        .bind(i64::from(page::rows_wanted(filter.limit)))
        .fetch_all(readers)
        .await
        .map_err(|error| SqliteStore::error(error, "listing keys"))?;
    rows.iter().map(read_columns).collect()
}

fn read_columns(row: &SqliteRow) -> Result<KeyColumns> {
    Ok(KeyColumns {
        hash: get(row, "hash")?,
        scope: get(row, "scope")?,
        tenant: get(row, "tenant")?,
        user: get(row, "owner")?,
        operation: get(row, "operation")?,
        value: get(row, "value")?,
        state: get(row, "state")?,
        status: get(row, "status")?,
        answer_bytes: get(row, "answer_bytes")?,
        created_at: Timestamp(get(row, "created_at")?),
        expires_at: Timestamp(get(row, "expires_at")?),
    })
}

fn read_record(row: &SqliteRow) -> Result<Record> {
    Ok(Record {
        fingerprint: Fingerprint(get(row, "fingerprint")?),
        expires_at: Timestamp(get(row, "expires_at")?),
        stored: Stored {
            format: get(row, "format")?,
            state: get(row, "state")?,
            status: get(row, "status")?,
            headers: get(row, "headers")?,
            body: get(row, "body")?,
        },
    })
}

fn get<'r, T>(row: &'r SqliteRow, column: &str) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(column)
        .map_err(|error| SqliteStore::error(error, "reading a key"))
}
