//! Keys on SQLite: a look and a write, both in the transaction of a command.
//!
//! A command of ours sets its turn's savepoint in the same call that looks the key up, and releases it in the one that
//! stores the outcome: each call is a trip to the connection's thread.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqlStr, SqliteConnection};

use super::{Names, Settlement, SqliteStore, Store};
use crate::clock::{Offset, Timestamp};
use crate::command::{Fingerprint, Key, Record, Stored};
use crate::error::Result;

macro_rules! look_up {
    () => {
        "
        SELECT expires_at, fingerprint, state, status, headers, body, format
        FROM steadfast_keys
        WHERE hash = $1"
    };
}

macro_rules! settle {
    () => {
        "
        INSERT INTO steadfast_keys
               (hash, scope, tenant, owner, operation, value, fingerprint,
                state, status, headers, body, format, created_at, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
    };
}

/// The record of a key, by a reader.
pub(super) async fn look_up(conn: &mut SqliteConnection, names: &Names, key: &Key) -> Result<Option<Record>> {
    find(conn, names.sql(look_up!()), key).await
}

/// Opens a turn and takes its key: the live record, if there is one. An expired one makes room.
pub(super) async fn claim(
    conn: &mut SqliteConnection,
    names: &Names,
    key: &Key,
    offset: Offset,
) -> Result<Option<Record>> {
    let record = find(conn, names.sql(concat!("SAVEPOINT sf_turn;", look_up!())), key).await?;
    make_room(conn, names, key, offset, record).await
}

/// The same in the caller's transaction.
pub(super) async fn claim_as_guest(
    conn: &mut SqliteConnection,
    names: &Names,
    key: &Key,
    offset: Offset,
) -> Result<Option<Record>> {
    let record = look_up(conn, names, key).await?;
    make_room(conn, names, key, offset, record).await
}

async fn find(conn: &mut SqliteConnection, statement: SqlStr, key: &Key) -> Result<Option<Record>> {
    sqlx::query(statement)
        .bind(&key.hash[..])
        .fetch_optional(conn)
        .await
        .map_err(|error| SqliteStore::error(error, "looking a key up"))?
        .map(|row| read_record(&row))
        .transpose()
}

async fn make_room(
    conn: &mut SqliteConnection,
    names: &Names,
    key: &Key,
    offset: Offset,
    record: Option<Record>,
) -> Result<Option<Record>> {
    match record {
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

/// Writes the key with its outcome, once, at the end, and closes the turn. False: the key is there already.
pub(super) async fn settle(conn: &mut SqliteConnection, names: &Names, settlement: &Settlement<'_>) -> Result<bool> {
    write(conn, names.sql(concat!(settle!(), "; RELEASE sf_turn")), settlement).await
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
    let written = sqlx::query(statement)
        .bind(&key.hash[..])
        .bind(key.scope.as_str())
        .bind(&key.tenant)
        .bind(&key.user)
        .bind(&key.operation)
        .bind(&key.value)
        .bind(&settlement.fingerprint.0)
        .bind(&stored.state)
        .bind(stored.status)
        .bind(&stored.headers)
        .bind(&stored.body)
        .bind(stored.format)
        .bind(now.0)
        .bind(now.after(settlement.retention).0)
        .execute(conn)
        .await;
    match written {
        Ok(_) => Ok(true),
        // The primary key has judged: a duplicate committed first.
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Ok(false),
        Err(error) => Err(SqliteStore::error(error, "storing the outcome with its key")),
    }
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
