//! Keys on PostgreSQL: two statements in the transaction of a command, one for a look from outside.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Row};

use super::super::names::lock_number;
use super::{Claim, LookUp, Names, Opening, PostgresStore, Settlement, Store, TransactionId};
use crate::clock::Timestamp;
use crate::command::{Fingerprint, Key, Record, Stored};
use crate::error::{Code, Error, Result};

/// Looks at a transaction that has no key to claim.
pub(super) async fn open(conn: &mut PgConnection) -> Result<Opening> {
    let statement = "
        SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
               (extract(epoch FROM now()) * 1000000)::bigint             AS began,
               pg_current_xact_id_if_assigned() IS NOT NULL              AS is_used";
    let row = sqlx::query(statement)
        .fetch_one(conn)
        .await
        .map_err(|error| PostgresStore::error(error, "opening the transaction"))?;
    Ok(Opening {
        now: Timestamp(get(&row, "now")?),
        began: Timestamp(get(&row, "began")?),
        is_used: get(&row, "is_used")?,
    })
}

/// Takes the key's lock and looks at its record in one round trip.
///
/// The statement's snapshot is older than its lock: a duplicate that commits in between is not seen here. The
/// settle's primary key sees it.
pub(super) async fn claim(conn: &mut PgConnection, names: &Names, key: &Key) -> Result<Claim> {
    let statement = names.sql(
        "
        SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
               (extract(epoch FROM now()) * 1000000)::bigint             AS began,
               pg_current_xact_id_if_assigned() IS NOT NULL              AS is_used,
               pg_try_advisory_xact_lock($2)                             AS is_ours,
               (extract(epoch FROM k.expires_at) * 1000000)::bigint      AS expires_at,
               k.fingerprint, k.state, k.status, k.headers, k.body, k.format
        FROM (SELECT 1) AS one
        LEFT JOIN steadfast.keys AS k ON k.hash = $1",
    );
    let row = sqlx::query(statement)
        .bind(&key.hash[..])
        .bind(lock_number(&key.hash) ^ names.lock_salt)
        .fetch_one(conn)
        .await
        .map_err(|error| PostgresStore::error(error, "claiming the key"))?;
    Ok(Claim {
        look_up: read_look_up(&row)?,
        began: Timestamp(get(&row, "began")?),
        is_used: get(&row, "is_used")?,
        is_ours: get(&row, "is_ours")?,
    })
}

/// Writes the key with its outcome, once, at the end. An expired record of the same key makes room.
///
/// It compares when the transaction began: had the handler ended it, the key would be stored in another one
/// than the business rows.
pub(super) async fn settle(
    conn: &mut PgConnection,
    names: &Names,
    settlement: &Settlement<'_>,
) -> Result<Option<TransactionId>> {
    let statement = names.sql(
        "
        INSERT INTO steadfast.keys AS k
               (hash, scope, tenant, owner, operation, value, fingerprint,
                state, status, headers, body, format, created_at, expires_at)
        SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
               timestamptz 'epoch' + $13 * interval '1 microsecond',
               timestamptz 'epoch' + $14 * interval '1 microsecond'
        WHERE (extract(epoch FROM now()) * 1000000)::bigint = $15
        ON CONFLICT ON CONSTRAINT keys_one_outcome DO UPDATE
        SET fingerprint = excluded.fingerprint,
            state       = excluded.state,
            status      = excluded.status,
            headers     = excluded.headers,
            body        = excluded.body,
            format      = excluded.format,
            created_at  = excluded.created_at,
            expires_at  = excluded.expires_at
        WHERE k.expires_at <= excluded.created_at
        RETURNING pg_current_xact_id()::text",
    );
    let Settlement { key, stored, .. } = settlement;
    let row = sqlx::query(statement)
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
        .bind(settlement.began.0)
        .fetch_optional(&mut *conn)
        .await
        .map_err(|error| PostgresStore::error(error, "storing the outcome with its key"))?;
    match row {
        Some(row) => Ok(Some(TransactionId(Some(get(&row, 0)?)))),
        None => check_same(conn, settlement.began).await.map(|()| None),
    }
}

/// Fails if this is not the transaction that began then, because the handler has ended that one.
pub(super) async fn check_same(conn: &mut PgConnection, began: Timestamp) -> Result<()> {
    let now_began: i64 = sqlx::query_scalar("SELECT (extract(epoch FROM now()) * 1000000)::bigint")
        .fetch_one(conn)
        .await
        .map_err(|error| PostgresStore::error(error, "ending the transaction"))?;
    if Timestamp(now_began) == began {
        return Ok(());
    }
    Err(Error::new(
        Code::TransactionBroken,
        "the handler ended the transaction itself, so what it wrote could not commit as one; leave COMMIT and ROLLBACK \
         to the toolkit and use tx.savepoint(..) for a part that may fail",
    ))
}

/// The record of a key, read outside any transaction.
pub(super) async fn look_up(pool: &PgPool, names: &Names, key: &Key) -> Result<LookUp> {
    let statement = names.sql(
        "
        SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
               (extract(epoch FROM k.expires_at) * 1000000)::bigint      AS expires_at,
               k.fingerprint, k.state, k.status, k.headers, k.body, k.format
        FROM (SELECT 1) AS one
        LEFT JOIN steadfast.keys AS k ON k.hash = $1",
    );
    let row = sqlx::query(statement)
        .bind(&key.hash[..])
        .fetch_one(pool)
        .await
        .map_err(|error| PostgresStore::error(error, "looking a key up"))?;
    read_look_up(&row)
}

/// Whether a transaction may still commit. It never proves that one did: after a crash of the server the id of
/// a lost transaction is handed out again, and then describes a stranger.
pub(super) async fn is_running(pool: &PgPool, transaction: &TransactionId) -> Result<bool> {
    let status: Result<Option<String>, _> = sqlx::query_scalar("SELECT pg_xact_status($1::text::xid8)")
        .bind(&transaction.0)
        .fetch_one(pool)
        .await;
    match status {
        Ok(status) => Ok(status.as_deref() == Some("in progress")),
        // "is in the future": the server crashed and has forgotten it, so it is not running.
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("22023") => Ok(false),
        Err(error) => Err(PostgresStore::error(error, "asking about a transaction")),
    }
}

fn read_look_up(row: &PgRow) -> Result<LookUp> {
    Ok(LookUp {
        now: Timestamp(get(row, "now")?),
        record: read_record(row)?,
    })
}

fn read_record(row: &PgRow) -> Result<Option<Record>> {
    let Some(expires_at) = get::<Option<i64>, _>(row, "expires_at")? else {
        return Ok(None);
    };
    Ok(Some(Record {
        fingerprint: Fingerprint(get(row, "fingerprint")?),
        expires_at: Timestamp(expires_at),
        stored: Stored {
            format: get(row, "format")?,
            state: get(row, "state")?,
            status: get(row, "status")?,
            headers: get(row, "headers")?,
            body: get(row, "body")?,
        },
    }))
}

fn get<'r, T, I>(row: &'r PgRow, column: I) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    I: sqlx::ColumnIndex<PgRow>,
{
    row.try_get(column)
        .map_err(|error| PostgresStore::error(error, "reading a key"))
}
