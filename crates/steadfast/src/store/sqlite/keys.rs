//! Keys on SQLite: a look and a write, both in the transaction of a command.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::{Names, Settlement, SqliteStore, Store, TransactionId};
use crate::clock::Timestamp;
use crate::command::{Fingerprint, Key, Record, Stored};
use crate::error::Result;

/// The record of a key, by the writer or by a reader.
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

/// Writes the key with its outcome, once, at the end. An expired record of the same key makes room.
pub(super) async fn settle(
    conn: &mut SqliteConnection,
    names: &Names,
    settlement: &Settlement<'_>,
) -> Result<Option<TransactionId>> {
    let statement = names.sql(
        "
        INSERT INTO steadfast_keys
               (hash, scope, tenant, owner, operation, value, fingerprint,
                state, status, headers, body, format, created_at, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
        ON CONFLICT (hash) DO UPDATE
        SET fingerprint = excluded.fingerprint,
            state       = excluded.state,
            status      = excluded.status,
            headers     = excluded.headers,
            body        = excluded.body,
            format      = excluded.format,
            created_at  = excluded.created_at,
            expires_at  = excluded.expires_at
        WHERE steadfast_keys.expires_at <= excluded.created_at",
    );
    let Settlement { key, stored, .. } = settlement;
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
        .bind(settlement.now.0)
        .bind(settlement.expires_at.0)
        .execute(conn)
        .await
        .map_err(|error| SqliteStore::error(error, "storing the outcome with its key"))?;
    Ok((written.rows_affected() == 1).then_some(TransactionId(None)))
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
