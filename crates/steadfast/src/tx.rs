//! One database transaction and all that commits with it.

use std::fmt;
use std::future::Future;
use std::time::{Duration, SystemTime};

use sqlx::pool::PoolConnection;

use crate::audit::AuditEntry;
use crate::clock::Timestamp;
use crate::command::AsyncOnce;
use crate::error::{Code, Error, Result};
use crate::failure::Failure;
use crate::steadfast::Steadfast;
use crate::store::{self, Database, Store};

/// How long a ROLLBACK may take. It is quick, unless something else is running on the connection.
const ROLLBACK_LIMIT: Duration = Duration::from_secs(1);

/// The transaction a handler works in: [`db`](Self::db) is the sqlx connection.
///
/// Only the corridor begins and ends it. What is dropped without an end, by a panic, a time limit or a caller
/// that went away, is rolled back, and its connection is closed rather than given to the next borrower.
pub struct Tx<Db: Database> {
    steadfast: Steadfast<Db>,
    conn: PoolConnection<Db>,
    now: Timestamp,
    /// Whether the connection is in no transaction any more, so that the pool may have it back.
    is_ended: bool,
}

impl<Db: Database> Tx<Db> {
    pub(crate) fn new(steadfast: Steadfast<Db>, conn: PoolConnection<Db>) -> Self {
        Self {
            steadfast,
            conn,
            now: Timestamp(0),
            is_ended: false,
        }
    }

    /// The sqlx connection, inside the transaction. Queries run on it; a nested `begin` is a savepoint.
    pub fn db(&mut self) -> &mut Db::Connection {
        self.ask("tx.db()")
    }

    /// The connection for a statement of this name: tests may crash before it.
    pub(crate) fn ask(&mut self, statement: &'static str) -> &mut Db::Connection {
        self.steadfast.ask(statement);
        &mut self.conn
    }

    /// The connection for a store that was asked already.
    pub(crate) fn conn(&mut self) -> &mut Db::Connection {
        &mut self.conn
    }

    /// The transaction's one instant: the database's time when it began.
    pub fn now(&self) -> SystemTime {
        self.now.into()
    }

    /// Runs a part that may fail without failing the whole: on `Err` its writes are undone, and only its.
    ///
    /// # Errors
    /// What the part returned, or a transient failure if the savepoint itself could not be set or ended.
    pub fn savepoint<T, F>(&mut self, part: F) -> impl Future<Output = Result<T, Failure>> + Send
    where
        T: Send,
        for<'t> F: AsyncFnOnce(&'t mut Tx<Db>) -> Result<T, Failure>
            + AsyncOnce<&'t mut Tx<Db>, Result<T, Failure>, Fut: Send>
            + Send,
    {
        async move {
            store::begin_savepoint::<Db>(self.ask("set a savepoint")).await?;
            let ended = part(self).await;
            match &ended {
                Ok(_) => store::release_savepoint::<Db>(self.ask("release the savepoint")).await?,
                Err(_) => store::rollback_savepoint::<Db>(self.ask("roll back to the savepoint")).await?,
            }
            ended
        }
    }

    /// Writes an audit entry that commits with everything else.
    ///
    /// # Errors
    /// If the database refuses it.
    pub async fn audit(&mut self, entry: &AuditEntry) -> Result<()> {
        let store = self.steadfast.ask("append to the audit");
        store.append_audit(&mut self.conn, entry, self.now).await
    }

    /// Takes the transaction's instant from the first look at it, and refuses one that is not new.
    ///
    /// sqlx 0.9 may hand out a connection with somebody's open transaction (its issue 4393). An empty one is
    /// harmless; one that has written would commit a stranger's rows with ours.
    pub(crate) fn open(&mut self, now: Timestamp, is_used: bool) -> Result<()> {
        if is_used {
            return Err(Error::new(
                Code::ConnectionLost,
                "the pool handed out a connection inside a transaction that was left open; it was closed. Somewhere a \
                 future is dropped while it begins a transaction (sqlx issue 4393)",
            ));
        }
        self.now = self.steadfast.clock().at(now);
        Ok(())
    }

    pub(crate) fn timestamp(&self) -> Timestamp {
        self.now
    }

    /// Fails if the handler left a savepoint open: COMMIT would then only release that.
    pub(crate) fn check_depth(&self, expected: usize) -> Result<()> {
        let depth = store::transaction_depth::<Db>(&self.conn);
        if depth == expected {
            return Ok(());
        }
        Err(Error::new(
            Code::TransactionBroken,
            "the handler left a nested transaction open, or ended more than it began; commit or roll back every `begin` of its own",
        ))
    }

    pub(crate) async fn commit(&mut self) -> Result<(), store::CommitError> {
        self.check_depth(1).map_err(store::CommitError::Refused)?;
        self.steadfast.ask("commit").commit(&mut self.conn).await?;
        self.steadfast.commit_applied()?;
        self.is_ended = true;
        Ok(())
    }

    /// Ends the transaction and gives the connection back. One that cannot do that, or not soon (a statement that the
    /// handler gave up on still runs), is closed.
    pub(crate) async fn rollback(mut self) {
        let rolled_back = tokio::time::timeout(ROLLBACK_LIMIT, async {
            while store::transaction_depth::<Db>(&self.conn) > 1 {
                store::rollback_savepoint::<Db>(&mut self.conn).await.ok()?;
            }
            self.steadfast.ask("roll back").rollback(&mut self.conn).await.ok()
        })
        .await;
        self.is_ended = matches!(rolled_back, Ok(Some(())));
    }
}

impl<Db: Database> Drop for Tx<Db> {
    fn drop(&mut self) {
        if !self.is_ended {
            self.steadfast.store().abandon();
            self.conn.close_on_drop();
        }
    }
}

impl<Db: Database> fmt::Debug for Tx<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("now", &self.now).finish_non_exhaustive()
    }
}
