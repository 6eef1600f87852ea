//! SQLite: one writer connection of our own in the user's file, and the user's pool to read with.
//!
//! Every write transaction begins IMMEDIATE: a deferred one that reads first and then writes fails at once when
//! another process has committed in between, whatever the busy timeout says. Waiting happens in one place,
//! for the writer, so a process never meets its own lock.

mod audit;
mod gate;
mod keys;
mod migrations;

use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{SqlStr, Sqlite, SqliteConnection, SqlitePool};

use super::{
    Claim, CommitError, Guard, LookUp, Migration, Names, Opening, Settlement, Store, TransactionId, begin_transaction,
    classify_common, commit_transaction, rollback_transaction,
};
use crate::audit::AuditEntry;
use crate::clock::{Clock, Timestamp};
use crate::command::Key;
use crate::error::{Code, Error, Result};

use gate::Gate;

/// How long a command waits for the writer, and the writer for another process. Longer than a healthy
/// transaction, shorter than the patience of a client.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Readers of a pool that we opened. They do not block anybody; more than this only costs memory.
const READERS_MAX: u32 = 8;

pub struct SqliteStore {
    readers: SqlitePool,
    writer: SqlitePool,
    gate: Arc<Gate>,
    names: Arc<Names>,
    _guard: Arc<Guard>,
}

impl SqliteStore {
    fn fail(what: &str) -> impl FnOnce(sqlx::Error) -> Error + '_ {
        move |error| Self::error(error, what)
    }
}

impl Store<Sqlite> for SqliteStore {
    const BOOTSTRAP: &'static str = migrations::BOOTSTRAP;
    const RECORD_MIGRATION: &'static str = migrations::RECORD;
    const MIGRATIONS: &'static [Migration] = migrations::ALL;

    async fn connect(url: &str) -> Result<(SqlitePool, Guard)> {
        let mut options: SqliteConnectOptions = url.parse().map_err(Self::fail("reading the database URL"))?;
        let mut guard = Guard::default();
        if is_in_memory(&options) {
            // One connection cannot carry the writer and the readers, so "in memory" is a private file.
            let directory = tempfile::tempdir().map_err(|error| {
                Error::new(
                    Code::ConfigurationInvalid,
                    "no directory for a temporary database can be made",
                )
                .with_source(error)
            })?;
            options = SqliteConnectOptions::new().filename(directory.path().join("memory.db"));
            guard.directory = Some(directory);
        }
        let pool = SqlitePoolOptions::new()
            .max_connections(READERS_MAX)
            .acquire_timeout(BUSY_TIMEOUT)
            .connect_with(settings(options).create_if_missing(true))
            .await
            .map_err(Self::fail("opening the database file"))?;
        Ok((pool, guard))
    }

    fn new(pool: SqlitePool, names: Arc<Names>, guard: Arc<Guard>) -> Result<Self> {
        let options = pool.connect_options();
        if is_in_memory(&options) {
            return Err(Error::new(
                Code::ConfigurationInvalid,
                "a pool on sqlite::memory: cannot be shared with a writer; open it by Steadfast::connect(\"sqlite::memory:\"), \
                 which keeps a private file and deletes it at the end",
            ));
        }
        // A user who is less patient with the pool is less patient with the writer too.
        let patience = pool.options().get_acquire_timeout().min(BUSY_TIMEOUT);
        let gate = Arc::new(Gate::default());
        let watched = gate.clone();
        let writer = SqlitePoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .acquire_timeout(patience)
            .after_connect(move |conn, _| {
                let gate = watched.clone();
                Box::pin(async move { gate.install(conn).await })
            })
            .connect_lazy_with(settings((*options).clone()).busy_timeout(patience));
        Ok(Self {
            readers: pool,
            writer,
            gate,
            names,
            _guard: guard,
        })
    }

    fn pool(&self) -> &SqlitePool {
        &self.readers
    }

    async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1 FROM sqlite_schema")
            .execute(&self.readers)
            .await
            .map(drop)
            .map_err(Self::fail("asking SQLite whether it is there"))
    }

    async fn begin(&self, _idle_limit: Duration) -> Result<PoolConnection<Sqlite>> {
        let mut conn = self.writer.acquire().await.map_err(|error| match error {
            sqlx::Error::PoolTimedOut => Error::new(
                Code::PoolExhausted,
                "other commands of this process held the one connection that writes for too long",
            )
            .with_source(error),
            error => Self::error(error, "taking the connection that writes"),
        })?;
        match begin_transaction::<Sqlite>(&mut conn, SqlStr::from_static("BEGIN IMMEDIATE")).await {
            Ok(()) => {
                self.gate.begin();
                Ok(conn)
            }
            Err(error) => {
                let error = Self::error(error, "beginning a transaction");
                if error.code() != Code::Locked {
                    // Whatever is wrong with it, the next command should not find out again.
                    conn.close_on_drop();
                }
                Err(error)
            }
        }
    }

    async fn open(&self, _: &mut SqliteConnection) -> Result<Opening> {
        Ok(Opening {
            now: Clock::machine(),
            began: Timestamp(0),
            is_used: false,
        })
    }

    async fn check_guest(&self, conn: &mut SqliteConnection) -> Result<()> {
        // BEGIN fails inside a transaction, and so tells that there is one.
        match sqlx::raw_sql("BEGIN").execute(&mut *conn).await {
            Err(error) if error.to_string().contains("within a transaction") => Ok(()),
            Err(error) => Err(Self::error(error, "looking at the transaction")),
            Ok(_) => {
                sqlx::raw_sql("ROLLBACK")
                    .execute(conn)
                    .await
                    .map_err(Self::fail("looking at the transaction"))?;
                Err(Error::new(
                    Code::TransactionBroken,
                    "SQLite has rolled your transaction back (the disk was full, or a statement said OR ROLLBACK), and you went \
                     on; nothing of ours was written. Return the error of a failed statement",
                ))
            }
        }
    }

    fn check_intact(&self) -> Result<()> {
        self.gate.check()
    }

    async fn seal(&self, _: &mut SqliteConnection, _began: Timestamp) -> Result<()> {
        self.gate.check()
    }

    async fn commit(&self, conn: &mut SqliteConnection) -> Result<(), CommitError> {
        self.gate.check().map_err(CommitError::Refused)?;
        let committed = {
            let _open = self.gate.open();
            commit_transaction::<Sqlite>(conn).await
        };
        committed.map_err(|error| {
            let code = Self::classify(&error);
            let is_constraint = error
                .as_database_error()
                .is_some_and(|error| error.kind() != sqlx::error::ErrorKind::Other);
            match code {
                _ if is_constraint => CommitError::Refused(
                    Error::new(Code::CommitRefused, Code::CommitRefused.title()).with_source(error),
                ),
                Code::Locked | Code::ReadOnly => CommitError::Refused(Self::error(error, "committing")),
                // A failed write or sync may or may not have left the commit in the log: the key will tell.
                _ => CommitError::Unknown(Self::error(error, "committing")),
            }
        })
    }

    async fn rollback(&self, conn: &mut SqliteConnection) -> Result<()> {
        if self.gate.check().is_err() {
            // SQLite has rolled back by itself (disk full, OR ROLLBACK); there is nothing left to end.
            return Err(Error::new(Code::TransactionBroken, "the transaction is gone already"));
        }
        rollback_transaction::<Sqlite>(conn)
            .await
            .map_err(Self::fail("rolling back"))
    }

    fn abandon(&self) {
        self.gate.abandon();
    }

    async fn is_running(&self, _: &TransactionId) -> Result<bool> {
        // The connection that ran it is closed, and nobody else could have taken it over.
        Ok(false)
    }

    async fn glance(&self, key: &Key) -> Result<Option<LookUp>> {
        // A reader never waits for the writer: a completed key is replayed while others write.
        self.look_up(key).await.map(Some)
    }

    async fn look_up(&self, key: &Key) -> Result<LookUp> {
        let mut conn = self
            .readers
            .acquire()
            .await
            .map_err(Self::fail("waiting for a reader"))?;
        Ok(LookUp {
            now: Clock::machine(),
            record: keys::look_up(&mut conn, &self.names, key).await?,
        })
    }

    async fn claim_key(&self, conn: &mut SqliteConnection, key: &Key) -> Result<Claim> {
        let now = Clock::machine();
        Ok(Claim {
            look_up: LookUp {
                now,
                record: keys::look_up(conn, &self.names, key).await?,
            },
            began: now,
            // The writer is ours alone, and a caller's own transaction may be used.
            is_used: false,
            // Whoever holds the write lock of the file is alone.
            is_ours: true,
        })
    }

    async fn settle_key(
        &self,
        conn: &mut SqliteConnection,
        settlement: &Settlement<'_>,
    ) -> Result<Option<TransactionId>> {
        keys::settle(conn, &self.names, settlement).await
    }

    async fn append_audit(&self, conn: &mut SqliteConnection, entry: &AuditEntry, at: Timestamp) -> Result<()> {
        audit::append(conn, &self.names, entry, at).await
    }

    async fn schema_version(&self) -> Result<Option<i64>> {
        migrations::version(&self.readers, &self.names).await
    }

    fn names(&self) -> &Names {
        &self.names
    }

    async fn migrate(&self) -> Result<usize> {
        migrations::run(self).await
    }

    fn classify(error: &sqlx::Error) -> Code {
        let Some(code) = error.as_database_error().and_then(|error| error.code()) else {
            return classify_common(error);
        };
        // The low byte of an extended result code is the primary one.
        match code.parse::<u32>().map(|code| code & 0xff) {
            Ok(5 | 6) => Code::Locked,
            Ok(8) => Code::ReadOnly,
            Ok(13) => Code::Full,
            Ok(10 | 14) => Code::Unreachable,
            Ok(1) if error.to_string().contains("no such table") => Code::TablesMissing,
            _ => Code::Database,
        }
    }
}

fn settings(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
}

fn is_in_memory(options: &SqliteConnectOptions) -> bool {
    let name = options.get_filename().to_string_lossy();
    // `?mode=memory` leaves the name alone, and only the debug form of the options tells.
    name.is_empty() || name.contains(":memory:") || format!("{options:?}").contains("in_memory: true")
}
