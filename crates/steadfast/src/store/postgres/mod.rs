//! PostgreSQL 13 and later: our schema beside the user's tables, on the user's own pool.
//!
//! READ COMMITTED is the contract. Guarantees rest on the primary key of `keys` and on row locks; the advisory
//! lock only makes meeting a duplicate cheap.

mod audit;
mod keys;
mod migrations;

use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, SqlSafeStr};
use tokio::sync::OnceCell;

use super::{
    Claim, CommitError, Guard, LookUp, Migration, Names, Opening, Settlement, Store, TransactionId, begin_transaction,
    classify_common, commit_transaction, rollback_transaction,
};
use crate::audit::AuditEntry;
use crate::clock::Timestamp;
use crate::command::Key;
use crate::error::{Code, Error, Result};

/// How long a request waits for a connection of a pool that we opened. Short, so that a caller learns that the
/// database is away while it still listens.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server may take to answer COMMIT before its connection is given up and another one is asked.
const COMMIT_LIMIT: Duration = Duration::from_secs(10);

/// Makes the server look once a second, also in the middle of a statement, whether its client is still there.
const WATCH_CLIENT: &str = "; SET LOCAL client_connection_check_interval = 1000";

pub struct PostgresStore {
    pool: PgPool,
    names: Arc<Names>,
    /// Whether the server can notice in the middle of a statement that its client is gone (PostgreSQL 14, on most systems).
    watches_clients: OnceCell<bool>,
}

impl PostgresStore {
    /// Tries the setting until a server has taken or refused it: version 13 does not know it, some systems cannot do it.
    async fn watches_clients(&self, conn: &mut PgConnection) -> bool {
        let ask = async || match sqlx::query("SELECT set_config('client_connection_check_interval', '1000', true)")
            .execute(conn)
            .await
        {
            Ok(_) => Ok(true),
            Err(sqlx::Error::Database(error)) if matches!(error.code().as_deref(), Some("42704" | "22023")) => {
                Ok(false)
            }
            Err(error) => Err(error),
        };
        *self.watches_clients.get_or_try_init(ask).await.unwrap_or(&false)
    }

    /// An error of taking a connection: sqlx goes on trying to connect until the time is over, and then says only that.
    fn acquire_error(pool: &PgPool, error: sqlx::Error) -> Error {
        match Self::error(error, "taking a connection from the pool") {
            error
                if error.code() == Code::ConnectionLost
                    || (error.code() == Code::PoolExhausted && pool.size() == 0) =>
            {
                Error::new(Code::Unreachable, "PostgreSQL does not accept connections").with_source(error)
            }
            error => error,
        }
    }

    fn fail(what: &str) -> impl FnOnce(sqlx::Error) -> Error + '_ {
        move |error| Self::error(error, what)
    }
}

impl Store<Postgres> for PostgresStore {
    const BOOTSTRAP: &'static str = migrations::BOOTSTRAP;
    const RECORD_MIGRATION: &'static str = migrations::RECORD;
    const MIGRATIONS: &'static [Migration] = migrations::ALL;

    async fn connect(url: &str) -> Result<(PgPool, Guard)> {
        let options: PgConnectOptions = url.parse().map_err(Self::fail("reading the database URL"))?;
        let pool = PgPoolOptions::new()
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .connect_lazy_with(options);
        drop(
            pool.acquire()
                .await
                .map_err(|error| Self::acquire_error(&pool, error))?,
        );
        Ok((pool, Guard::default()))
    }

    fn new(pool: PgPool, names: Arc<Names>, _: Arc<Guard>) -> Result<Self> {
        Ok(Self {
            pool,
            names,
            watches_clients: OnceCell::new(),
        })
    }

    fn pool(&self) -> &PgPool {
        &self.pool
    }

    async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1")
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(Self::fail("asking PostgreSQL whether it is there"))
    }

    async fn begin(&self, idle_limit: Duration) -> Result<PoolConnection<Postgres>> {
        // The server ends a transaction whose client has gone silent, or has closed its connection in the middle of a
        // statement; without that, a key stays claimed for as long as the statement runs. One message carries all of
        // it, and digits are the only thing put into the text.
        let idle_limit = i32::try_from(idle_limit.as_millis()).unwrap_or(i32::MAX);
        let mut statement = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = {idle_limit}"
        );
        let mut stale_connections_left = self.pool.options().get_max_connections();
        loop {
            let mut conn = self
                .pool
                .acquire()
                .await
                .map_err(|error| Self::acquire_error(&self.pool, error))?;
            if self.watches_clients(&mut conn).await && !statement.ends_with(WATCH_CLIENT) {
                statement.push_str(WATCH_CLIENT);
            }
            let begun = begin_transaction::<Postgres>(&mut conn, AssertSqlSafe(statement.as_str()).into_sql_str());
            match begun.await {
                Ok(()) => return Ok(conn),
                Err(error) => {
                    // Either its socket is stale (the server was restarted: all of the pool may be), or somebody
                    // left a transaction open on it. Nobody should get it again.
                    conn.close_on_drop();
                    if stale_connections_left == 0 {
                        return Err(Self::error(error, "beginning a transaction"));
                    }
                    stale_connections_left -= 1;
                }
            }
        }
    }

    async fn open(&self, conn: &mut PgConnection) -> Result<Opening> {
        keys::open(conn).await
    }

    async fn check_guest(&self, _: &mut PgConnection) -> Result<()> {
        // An aborted transaction refuses every statement, and the settle compares when it began.
        Ok(())
    }

    fn check_intact(&self) -> Result<()> {
        // Only the server knows; the settle asks it.
        Ok(())
    }

    async fn seal(&self, conn: &mut PgConnection, began: Timestamp) -> Result<()> {
        // COMMIT of an aborted transaction "succeeds" with the tag ROLLBACK; any statement before it fails.
        keys::check_same(conn, began).await
    }

    async fn commit(&self, conn: &mut PgConnection) -> Result<(), CommitError> {
        let Ok(committed) = tokio::time::timeout(COMMIT_LIMIT, commit_transaction::<Postgres>(conn)).await else {
            let message = format!("the server did not answer COMMIT within {COMMIT_LIMIT:?}");
            return Err(CommitError::Unknown(Error::new(Code::ConnectionLost, message)));
        };
        committed.map_err(|error| {
            let code = match Self::classify(&error) {
                Code::ConnectionLost => {
                    return CommitError::Unknown(Self::error(error, "committing"));
                }
                Code::Database => Code::CommitRefused,
                code => code,
            };
            CommitError::Refused(Error::new(code, code.title()).with_source(error))
        })
    }

    async fn rollback(&self, conn: &mut PgConnection) -> Result<()> {
        rollback_transaction::<Postgres>(conn)
            .await
            .map_err(Self::fail("rolling back"))
    }

    fn abandon(&self) {
        // The server notices by itself that its client is gone: see `begin`.
    }

    async fn is_running(&self, transaction: &TransactionId) -> Result<bool> {
        keys::is_running(&self.pool, transaction).await
    }

    async fn glance(&self, _: &Key) -> Result<Option<LookUp>> {
        // The claim looks in the same round trip; looking before it would cost every first execution one more.
        Ok(None)
    }

    async fn look_up(&self, key: &Key) -> Result<LookUp> {
        keys::look_up(&self.pool, &self.names, key).await
    }

    async fn claim_key(&self, conn: &mut PgConnection, key: &Key) -> Result<Claim> {
        keys::claim(conn, &self.names, key).await
    }

    async fn settle_key(&self, conn: &mut PgConnection, settlement: &Settlement<'_>) -> Result<Option<TransactionId>> {
        keys::settle(conn, &self.names, settlement).await
    }

    async fn append_audit(&self, conn: &mut PgConnection, entry: &AuditEntry, at: Timestamp) -> Result<()> {
        audit::append(conn, &self.names, entry, at).await
    }

    async fn schema_version(&self) -> Result<Option<i64>> {
        migrations::version(&self.pool, &self.names).await
    }

    fn names(&self) -> &Names {
        &self.names
    }

    async fn migrate(&self) -> Result<usize> {
        migrations::run(self).await
    }

    fn classify(error: &sqlx::Error) -> Code {
        let Some(state) = error.as_database_error().and_then(|error| error.code()) else {
            return classify_common(error);
        };
        match &*state {
            "40001" | "40P01" => Code::Conflict,
            "55P03" => Code::Locked,
            "25006" => Code::ReadOnly,
            "53100" => Code::Full,
            "53300" => Code::PoolExhausted,
            "25P02" => Code::TransactionBroken,
            // Ended by a time limit of the server: idle in transaction, or its statement_timeout.
            "25P03" | "57014" => Code::TimeLimit,
            "42P01" | "3F000" => Code::TablesMissing,
            // Connection exceptions, and a server that is starting or stopping.
            state if state.starts_with("08") || state.starts_with("57P") => Code::ConnectionLost,
            _ => Code::Database,
        }
    }
}
