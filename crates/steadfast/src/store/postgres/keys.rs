//! Keys on PostgreSQL: the claim rides in the message that begins the transaction, one statement stores the outcome, and
//! one looks from outside.

use sha2::{Digest, Sha256};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, PgExecutor, PgPool, Row, SqlSafeStr, SqlStr};

use super::super::names::lock_number;
use super::{Begin, Begun, LookUp, Names, PostgresStore, Settlement, Store};
use crate::clock::{Offset, Timestamp, micros};
use crate::command::{Fingerprint, Key, KeyColumns, KeyFilter, KeyState, Record, Stored};
use crate::error::{Code, Error, Result};
use crate::page;

/// What the claim says by the SQLSTATE of its error, since a message that begins has no other answer.
pub(super) const ENDED: &str = "SFC02";
pub(super) const IN_FLIGHT: &str = "SFC03";
pub(super) const EXPIRED: &str = "SFC04";

/// The server's word for a prepared statement that its connection does not have (yet).
pub(super) const NOT_PREPARED: &str = "26000";
const PREPARED_ALREADY: &str = "42P05";

/// Claims a key: `$1` its hash, `$2` its lock, `$3` the clock's offset; and has the server end a transaction whose client
/// has gone silent (`$4`), or has closed its connection in the middle of a statement (`$5`); without that, a key stays
/// claimed for as long as the statement runs.
///
/// Its snapshot is older than its lock: a duplicate that commits in between is not seen here. The settle's primary
/// key sees it.
const CLAIM: &str = "
    SELECT set_config('sf.transaction', 'open', true),
           set_config('idle_in_transaction_session_timeout', $4, true),
           CASE WHEN $5 <> '0' THEN set_config('client_connection_check_interval', $5, true) END,
           CASE WHEN pg_current_xact_id_if_assigned() IS NOT NULL
                THEN steadfast.refuse('SFC01', 'the connection is in a transaction that somebody left open')
                WHEN k.expires_at > clock_timestamp() + $3 * interval '1 microsecond'
                THEN steadfast.refuse('SFC02', 'the command has ended before; its answer is replayed')
                WHEN NOT pg_try_advisory_xact_lock($2)
                THEN steadfast.refuse('SFC03', 'the command is in flight')
                WHEN k.hash IS NOT NULL
                THEN steadfast.refuse('SFC04', 'the record has expired, and makes room')
           END
    FROM (SELECT 1) AS one
    LEFT JOIN steadfast.keys AS k ON k.hash = $1";

/// The claim as a prepared statement of the server, by a name of its own: a call of it can stand in a message of
/// several statements, and costs neither parsing nor planning.
pub(super) struct PreparedClaim {
    name: String,
    prepare: SqlStr,
}

impl PreparedClaim {
    pub(super) fn new(names: &Names) -> Self {
        let claim = names.rename(CLAIM);
        // A connection may have statements of other instances, or of another version of this one.
        let name = format!("sf_claim_{:016x}", lock_number(&Sha256::digest(&claim)));
        let prepare = format!("PREPARE {name} (bytea, bigint, bigint, text, text) AS {claim}");
        Self {
            name,
            prepare: AssertSqlSafe(prepare).into_sql_str(),
        }
    }

    /// The message that begins and claims. Only digits and hexadecimal digits are put into it.
    pub(super) fn begin(&self, names: &Names, begin: &Begin, watch_millis: u32) -> SqlStr {
        let idle_limit = begin.idle_limit.as_millis().min(i32::MAX as u128);
        let statement = match &begin.key {
            Some(key) => {
                let (hash, lock) = (u128::from_be_bytes(key.hash), lock_of(names, key));
                let (name, offset) = (&self.name, begin.offset.0);
                format!(
                    "BEGIN ISOLATION LEVEL READ COMMITTED; \
                     EXECUTE {name}('\\x{hash:032x}', {lock}, {offset}, '{idle_limit}', '{watch_millis}')"
                )
            }
            None => begin_without_key(idle_limit, watch_millis),
        };
        AssertSqlSafe(statement).into_sql_str()
    }

    /// Makes the statement known to a connection.
    pub(super) async fn prepare(&self, conn: &mut PgConnection) -> Result<()> {
        match sqlx::raw_sql(self.prepare.clone()).execute(conn).await {
            Ok(_) => Ok(()),
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(PREPARED_ALREADY) => Ok(()),
            Err(error) => Err(PostgresStore::error(error, "preparing the claim")),
        }
    }
}

/// The message that begins and claims nothing: words of its own for what the claim says by functions, which the server need not plan. In
/// a transaction that somebody left open, in which anything was asked, `NOT DEFERRABLE` comes too late and is an error.
fn begin_without_key(idle_limit: u128, watch_millis: u32) -> String {
    let mut message = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED NOT DEFERRABLE; SET LOCAL sf.transaction = 'open'; \
         SET LOCAL idle_in_transaction_session_timeout = {idle_limit}"
    );
    if watch_millis > 0 {
        message.push_str(&format!(
            "; SET LOCAL client_connection_check_interval = {watch_millis}"
        ));
    }
    message
}

/// The advisory lock that stands for a key. Two keys may share one: then one of them is told to come back, never more.
fn lock_of(names: &Names, key: &Key) -> i64 {
    lock_number(&key.hash) ^ names.lock_salt
}

/// Claims a key in the caller's transaction, in one statement.
///
/// Its snapshot is older than its lock: a duplicate that commits in between is not seen here. The settle's primary
/// key sees it.
pub(super) async fn claim_as_guest(
    conn: &mut PgConnection,
    names: &Names,
    key: &Key,
    offset: Offset,
) -> Result<Begun<()>> {
    let statement = names.sql(
        "
        SELECT pg_try_advisory_xact_lock($2)                                              AS is_ours,
               set_config('sf.transaction', 'open', true)                                 AS opened,
               k.expires_at > clock_timestamp() + $3 * interval '1 microsecond'           AS is_live,
               (extract(epoch FROM k.expires_at) * 1000000)::bigint                       AS expires_at,
               k.fingerprint, k.state, k.status, k.headers, k.body, k.format
        FROM (SELECT 1) AS one
        LEFT JOIN steadfast.keys AS k ON k.hash = $1",
    );
    let row = sqlx::query(statement)
        .bind(&key.hash[..])
        .bind(lock_of(names, key))
        .bind(offset.0)
        .fetch_one(&mut *conn)
        .await
        .map_err(|error| PostgresStore::error(error, "claiming the key"))?;
    let is_live: Option<bool> = get(&row, "is_live")?;
    match read_record(&row)? {
        Some(record) if is_live == Some(true) => return Ok(Begun::Ended(record)),
        _ if !get::<bool, _>(&row, "is_ours")? => return Ok(Begun::InFlight),
        Some(_) => make_room(conn, names, key, offset).await?,
        None => {}
    }
    Ok(Begun::Ours(()))
}

/// Writes the key with its outcome, once, at the end.
///
/// It asks whether the transaction is the one that claimed the key: had the handler ended that, the key would be
/// stored in another one than the business rows.
pub(super) async fn settle(conn: &mut PgConnection, names: &Names, settlement: &Settlement<'_>) -> Result<bool> {
    let statement = names.sql(
        "
        INSERT INTO steadfast.keys
               (hash, scope, tenant, owner, operation, value, fingerprint,
                state, status, headers, body, format, created_at, expires_at)
        SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
               clock_timestamp() + $13 * interval '1 microsecond',
               clock_timestamp() + $14 * interval '1 microsecond'
        WHERE current_setting('sf.transaction', true) = 'open'",
    );
    let Settlement { key, stored, .. } = settlement;
    let settled = sqlx::query(statement)
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
        .bind(settlement.offset.0)
        .bind(settlement.offset.0.saturating_add(micros(settlement.retention)))
        .execute(conn)
        .await;
    judge(settled.map(|settled| settled.rows_affected() == 1))
}

/// What storing a key came to: whether its row was written, or what went wrong.
pub(super) fn judge(settled: sqlx::Result<bool>) -> Result<bool> {
    match settled {
        Ok(true) => Ok(true),
        Ok(false) => Err(ended_by_handler()),
        // The primary key has judged: a duplicate committed first. The transaction is aborted, as it should be.
        Err(sqlx::Error::Database(error))
            if error.is_unique_violation() && error.constraint() == Some("keys_one_outcome") =>
        {
            Ok(false)
        }
        Err(error) => Err(PostgresStore::error(error, "storing the outcome with its key")),
    }
}

/// Fails if this is not the transaction that was begun for the handler, because the handler has ended that one.
pub(super) async fn check_same(conn: &mut PgConnection) -> Result<()> {
    let is_open: bool = sqlx::query_scalar("SELECT coalesce(current_setting('sf.transaction', true), '') = 'open'")
        .fetch_one(conn)
        .await
        .map_err(|error| PostgresStore::error(error, "ending the transaction"))?;
    if is_open { Ok(()) } else { Err(ended_by_handler()) }
}

pub(super) fn ended_by_handler() -> Error {
    Error::new(
        Code::TransactionBroken,
        "the handler ended the transaction itself, so what it wrote could not commit as one; leave COMMIT and ROLLBACK \
         to the toolkit and use tx.savepoint(..) for a part that may fail",
    )
}

/// Removes the record of a key if it has expired.
pub(super) async fn make_room(conn: &mut PgConnection, names: &Names, key: &Key, offset: Offset) -> Result<()> {
    let statement = names.sql(
        "
        DELETE FROM steadfast.keys
        WHERE hash = $1 AND expires_at <= clock_timestamp() + $2 * interval '1 microsecond'",
    );
    sqlx::query(statement)
        .bind(&key.hash[..])
        .bind(offset.0)
        .execute(conn)
        .await
        .map(drop)
        .map_err(|error| PostgresStore::error(error, "removing an expired key"))
}

/// Removes the record of a key that an operator evicts.
pub(super) async fn remove(conn: &mut PgConnection, names: &Names, key: &Key) -> Result<bool> {
    sqlx::query(names.sql("DELETE FROM steadfast.keys WHERE hash = $1"))
        .bind(&key.hash[..])
        .execute(conn)
        .await
        .map(|removed| removed.rows_affected() > 0)
        .map_err(|error| PostgresStore::error(error, "removing a key"))
}

/// When the transaction began, which is what `now()` says as long as it lasts.
pub(super) async fn began(conn: &mut PgConnection) -> Result<Timestamp> {
    sqlx::query_scalar("SELECT (extract(epoch FROM now()) * 1000000)::bigint")
        .fetch_one(conn)
        .await
        .map(Timestamp)
        .map_err(|error| PostgresStore::error(error, "asking for the time"))
}

/// What the time is.
pub(super) async fn now<'e>(executor: impl PgExecutor<'e>) -> Result<Timestamp> {
    sqlx::query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        .fetch_one(executor)
        .await
        .map(Timestamp)
        .map_err(|error| PostgresStore::error(error, "asking for the time"))
}

/// The record of a key, read outside any transaction.
pub(super) async fn look_up<'e>(executor: impl PgExecutor<'e>, names: &Names, key: &Key) -> Result<LookUp> {
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
        .fetch_one(executor)
        .await
        .map_err(|error| PostgresStore::error(error, "looking a key up"))?;
    read_look_up(&row)
}

/// Whether a transaction that has claimed this key may still commit: then it has the key's lock, which is given back after
/// what it wrote can be seen. A server in recovery may have commits to replay, and does not know yet.
pub(super) async fn is_running(pool: &PgPool, names: &Names, key: &Key) -> Result<bool> {
    sqlx::query_scalar("SELECT pg_is_in_recovery() OR NOT pg_try_advisory_xact_lock($1)")
        .bind(lock_of(names, key))
        .fetch_one(pool)
        .await
        .map_err(|error| PostgresStore::error(error, "asking about a transaction"))
}

/// Keys without their answers, in the order of their hashes.
pub(super) async fn list(pool: &PgPool, names: &Names, filter: &KeyFilter) -> Result<Vec<KeyColumns>> {
    let statement = names.sql(
        "
        SELECT hash, scope, tenant, owner, operation, value, state, status,
               (extract(epoch FROM created_at) * 1000000)::bigint             AS created_at,
               (extract(epoch FROM expires_at) * 1000000)::bigint             AS expires_at,
               (octet_length(headers) + octet_length(body))::bigint           AS answer_bytes
        FROM steadfast.keys
        WHERE hash >= $1 AND hash <= $2
          AND ($3::text IS NULL OR operation = $3)
          AND ($4::text IS NULL OR tenant = $4)
          AND ($5::text IS NULL OR owner = $5)
          AND ($6::text IS NULL OR state = $6)
          AND ($7::bigint IS NULL OR created_at >= timestamptz 'epoch' + $7 * interval '1 microsecond')
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
        .fetch_all(pool)
        .await
        .map_err(|error| PostgresStore::error(error, "listing keys"))?;
    rows.iter().map(read_columns).collect()
}

fn read_columns(row: &PgRow) -> Result<KeyColumns> {
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
