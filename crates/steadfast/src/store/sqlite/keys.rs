//! Keys on SQLite: a look and a write, both in the transaction of a command.
//!
//! A command of ours seals its turn in the call that stores the outcome: each call is a trip to the connection's thread.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqlStr, SqliteConnection, SqlitePool};

use super::outbox::{self, publish_statements};
use super::writer::{Savepoint, Turn};
use super::{Names, Settlement, SqliteStore, Store};
use crate::clock::{Offset, Timestamp};
use crate::command::{Fingerprint, Key, KeyColumns, KeyFilter, KeyState, Record, Stored};
use crate::error::Result;
use crate::page;

macro_rules! settle {
    () => {
        "
        INSERT INTO steadfast_keys
               (hash, scope, tenant, owner, operation, value, fingerprint,
                state, status, headers, body, format, created_at, expires_at)
        VALUES ($3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $2, $15)"
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
pub(super) async fn settle(turn: &mut Turn, names: &Names, settlement: &Settlement<'_>) -> Result<bool> {
    let statement = match (turn.savepoint, settlement.messages.is_empty()) {
        (Savepoint::Even, true) => concat!(settle!(), "; RELEASE sf_even; SAVEPOINT sf_odd"),
        (Savepoint::Odd, true) => concat!(settle!(), "; RELEASE sf_odd; SAVEPOINT sf_even"),
        (Savepoint::Even, false) => concat!(
            publish_statements!(),
            ";",
            settle!(),
            "; RELEASE sf_even; SAVEPOINT sf_odd"
        ),
        (Savepoint::Odd, false) => concat!(
            publish_statements!(),
            ";",
            settle!(),
            "; RELEASE sf_odd; SAVEPOINT sf_even"
        ),
    };
    let is_settled = write(turn, names.sql(statement), settlement).await?;
    if is_settled {
        turn.has_sealed();
    }
    Ok(is_settled)
}

/// The same in the caller's transaction.
pub(super) async fn settle_as_guest(
    conn: &mut SqliteConnection,
    names: &Names,
    settlement: &Settlement<'_>,
) -> Result<bool> {
    write(conn, names.sql(settle!()), settlement).await
}

async fn write(conn: &mut SqliteConnection, statement: SqlStr, settlement: &Settlement<'_>) -> Result<bool> {
    let Settlement { key, stored, .. } = settlement;
    let now = settlement.offset.now();
    let messages = (!settlement.messages.is_empty()).then(|| outbox::encode(settlement.messages));
    let written = sqlx::query(statement)
        .bind(messages)
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
        .bind(now.after(settlement.retention).0)
        .execute(conn)
        .await;
    match written {
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
