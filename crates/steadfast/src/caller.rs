//! The caller's own transaction: we write what must commit with it and leave ending it to the caller.

use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::audit::AuditEntry;
use crate::command::{
    AsyncOnce, Claimant, CommandOptions, Owner, Reply, Wish, execute, keeping_options, read_outcome, value_outcome,
};
use crate::error::{Code, Error, Result};
use crate::failure::Failure;
use crate::job::{CallerEnqueue, Job};
use crate::outbox::{Event, NewMessage, Origin, Published};
use crate::steadfast::Steadfast;
use crate::store::batches::Batches;
use crate::store::{self, Begun, Database, Settlement, Store};

/// Our rows in a transaction that you opened: [`Steadfast::on`].
///
/// We never commit, repeat or roll back a transaction we did not open. Whether what we wrote exists is decided
/// by your COMMIT.
///
/// ```
/// # use steadfast::{AuditEntry, Owner, Steadfast, sqlx::{self, Sqlite}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
/// # let owner = Owner::new("tenant-1", "user-a");
/// let mut tx = sf.pool().begin_with("BEGIN IMMEDIATE").await?;
/// let reply = sf
///     .on(&mut tx)
///     .command("orders.place", "key-1")
///     .owner(&owner)
///     .run_once(async |db| {
///         sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY)").execute(db).await?;
///         Ok("placed".to_owned())
///     })
///     .await?;
/// sf.on(&mut tx).audit(&AuditEntry::new("me", "orders.place", "key-1")).await?;
/// tx.commit().await?; // the key, the answer, the entry and the table: all of it, or nothing
/// assert_eq!(reply.value, "placed");
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing happens until something is written"]
pub struct Caller<'c, Db: Database> {
    steadfast: &'c Steadfast<Db>,
    conn: &'c mut Db::Connection,
    is_assumed: bool,
    correlation_id: Option<&'c str>,
    traceparent: Option<&'c str>,
}

impl<'c, Db: Database> Caller<'c, Db> {
    pub(crate) fn new(steadfast: &'c Steadfast<Db>, conn: &'c mut Db::Connection) -> Self {
        Self {
            steadfast,
            conn,
            is_assumed: false,
            correlation_id: None,
            traceparent: None,
        }
    }

    /// Trusts you that the connection is in a transaction: for one opened by a raw `BEGIN`, which sqlx does not see.
    pub fn assume_transaction(mut self) -> Self {
        self.is_assumed = true;
        self
    }

    /// What the event that is published here is all about: see [`Tx::set_correlation_id`](crate::Tx::set_correlation_id).
    pub fn correlation_id(mut self, id: &'c str) -> Self {
        self.correlation_id = Some(id);
        self
    }

    /// The trace that it is part of: see [`Tx::set_traceparent`](crate::Tx::set_traceparent).
    pub fn traceparent(mut self, traceparent: &'c str) -> Self {
        self.traceparent = Some(traceparent);
        self
    }

    /// An idempotent command in your transaction.
    pub fn command(self, operation: &'c str, key: &'c str) -> CallerCommand<'c, Db> {
        CallerCommand {
            caller: self,
            wish: Wish {
                operation,
                value: key.into(),
                ..Wish::default()
            },
            options: CommandOptions::default(),
        }
    }

    /// Writes an audit entry that commits with your transaction.
    ///
    /// # Errors
    /// SF024 if the connection is in no transaction.
    pub async fn audit(self, entry: &AuditEntry) -> Result<()> {
        self.check()?;
        self.steadfast
            .ask("is there a transaction")
            .check_guest(self.conn)
            .await?;
        let offset = self.steadfast.clock().ahead();
        self.steadfast
            .ask("append to the audit")
            .append_audit(self.conn, entry, offset)
            .await
    }

    /// Writes an event that commits with your transaction. It is delivered soon after, and at once if you call
    /// [`Published::wake`] then.
    ///
    /// An event that [lives in this process](Event::IN_PROCESS) only cannot be published here: nobody tells us of your
    /// commit.
    ///
    /// # Errors
    /// SF024 if the connection is in no transaction, SF032 if the event cannot be published.
    pub async fn publish<E: Event>(self, event: &E) -> Result<Published<Db>> {
        if E::IN_PROCESS {
            return Err(Error::new(
                Code::EventInvalid,
                format!(
                    "the event {} lives in this process only, and nobody would tell of your commit; publish it by tx.publish, or \
                     remove `in_process`",
                    E::TYPE
                ),
            ));
        }
        let steadfast = self.steadfast.clone();
        let id = self.write(|origin| NewMessage::of(event, origin)).await?;
        Ok(Published::new(id, steadfast))
    }

    /// Writes a job that commits with your transaction. It is run soon after, and at once if you call [`Enqueued::wake`](crate::Enqueued::wake) then.
    ///
    /// # Errors
    /// SF024 if the connection is in no transaction, SF032 if the job cannot be enqueued.
    pub fn enqueue<J: Job>(self, job: &'c J) -> CallerEnqueue<'c, Db, J> {
        CallerEnqueue::new(self, job)
    }

    pub(crate) fn steadfast(&self) -> &Steadfast<Db> {
        self.steadfast
    }

    /// Writes a message in the caller's transaction.
    pub(crate) async fn write(self, write: impl FnOnce(&Origin) -> Result<NewMessage>) -> Result<Uuid> {
        let steadfast = self.steadfast;
        let (message, conn) = self.begin_writing(write).await?;
        let (id, batch, offset) = (message.id, message.batch, steadfast.clock().ahead());
        let store = steadfast.ask("publish");
        store.publish_as_guest(&mut *conn, &[message], offset).await?;
        if let Some(batch) = batch {
            let store = steadfast.ask("join batches");
            store.join_batches(conn, &[(id, batch)]).await?;
        }
        Ok(id)
    }

    /// A message that can be written in the caller's transaction, and its connection.
    pub(crate) async fn begin_writing(
        self,
        write: impl FnOnce(&Origin) -> Result<NewMessage>,
    ) -> Result<(NewMessage, &'c mut Db::Connection)> {
        self.check()?;
        let mut origin = Origin::of(self.steadfast.own_source().clone());
        if let Some(id) = self.correlation_id {
            origin.set_correlation_id(id)?;
        }
        if let Some(traceparent) = self.traceparent {
            origin.set_traceparent(traceparent)?;
        }
        let message = write(&origin)?;
        self.steadfast
            .ask("is there a transaction")
            .check_guest(self.conn)
            .await?;
        Ok((message, self.conn))
    }

    fn check(&self) -> Result<()> {
        if self.is_assumed || store::transaction_depth::<Db>(self.conn) > 0 {
            return Ok(());
        }
        Err(Error::new(
            Code::NotInTransaction,
            "sf.on(..) was given a connection that is in no transaction, so its rows would not commit with yours; pass \
             `&mut *tx` of an open sqlx transaction, or add .assume_transaction() if you sent BEGIN yourself",
        ))
    }
}

/// An idempotent command in the caller's own transaction: [`Caller::command`].
#[must_use = "a command does nothing until it is run"]
pub struct CallerCommand<'c, Db: Database> {
    caller: Caller<'c, Db>,
    wish: Wish<'c>,
    options: CommandOptions,
}

impl<'c, Db: Database> CallerCommand<'c, Db> {
    /// Who asks. Needed unless the scope is global.
    pub fn owner(mut self, owner: &'c Owner) -> Self {
        self.wish.owner = Some(owner);
        self
    }

    /// What is asked for: the same key with another input is refused.
    pub fn input(mut self, input: &impl Serialize) -> Self {
        self.wish.input = Some(serde_json::to_vec(input));
        self
    }

    keeping_options!();

    /// Runs the command in your transaction, or answers with what its first execution returned.
    ///
    /// Whether to wait, to repeat and how long it may take is yours to decide here, since the transaction is; failures are
    /// never stored. After an `Err` roll back: the handler may have written something.
    ///
    /// # Errors
    /// SF024 if the connection is in no transaction, otherwise as [`Command::run`](crate::Command::run).
    pub fn run_once<T, F>(self, handler: F) -> impl Future<Output = Result<Reply<T>>> + Send
    where
        T: Serialize + DeserializeOwned + Send,
        for<'t> F: AsyncFnOnce(&'t mut Db::Connection) -> Result<T, Failure>
            + AsyncOnce<&'t mut Db::Connection, Result<T, Failure>, Fut: Send>
            + Send,
    {
        async move {
            self.caller.check()?;
            let Caller { steadfast, conn, .. } = self.caller;
            let claimant = self.wish.claim(self.options)?;
            let Claimant { key, input, options } = &claimant;

            let offset = steadfast.clock().ahead();
            match steadfast.ask("claim the key").claim_as_guest(conn, key, offset).await? {
                Begun::Ours(()) => {}
                Begun::Ended(record) => {
                    let value = read_outcome(&execute::read(steadfast, &claimant, record)?)?;
                    return Ok(Reply { value, replayed: true });
                }
                Begun::InFlight => return Err(execute::in_flight()),
            }
            let value = handler(conn).await.map_err(|failure| Error::failed(failure, false))?;
            steadfast.ask("is there a transaction").check_guest(conn).await?;
            let outcome = value_outcome(&value, options.answer_limit)?;
            let settlement = Settlement {
                key,
                fingerprint: input.fingerprint(),
                stored: &outcome.store(&steadfast.place(key, input.fingerprint()))?,
                offset,
                retention: options.retention,
                messages: &[],
            };
            if let Some(quota) = steadfast.quota() {
                let store = steadfast.ask("charge the owner");
                quota.charge::<Db>(store, conn, &settlement).await?;
            }
            match steadfast
                .ask("settle the key")
                .settle_as_guest(conn, &settlement)
                .await?
            {
                true => Ok(Reply { value, replayed: false }),
                false => Err(execute::in_flight()),
            }
        }
    }
}
