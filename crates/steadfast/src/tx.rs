//! One database transaction and all that commits with it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::audit::AuditEntry;
use crate::clock::{Offset, Timestamp};
use crate::command::{AsyncOnce, AsyncSave, Key};
use crate::error::{Code, Error, Result};
use crate::failure::Failure;
use crate::job::{Enqueue, Job, JobCx, JobId};
use crate::lease::Lease;
use crate::outbox::{Aggregate, Event, EventCx, MessageId, NewMessage, Origin, Publications};
use crate::steadfast::Steadfast;
use crate::store::batches::Batches;
use crate::store::{self, Database, LookUp, Seal, Settlement, Store};

/// How long a ROLLBACK may take, and a look after it. They are quick, unless something else is running on the connection.
const ROLLBACK_LIMIT: Duration = Duration::from_secs(1);

/// The transaction a handler works in: [`db`](Self::db) is the sqlx connection.
///
/// Only the corridor begins and ends it. What is dropped without an end, by a panic, a time limit or a caller
/// that went away, is rolled back, before anybody else gets its connection.
pub struct Tx<Db: Database> {
    steadfast: Steadfast<Db>,
    key: Option<Key>,
    /// `None` only while it is dropped.
    held: Option<<Db::Store as Store<Db>>::Held>,
    /// When the transaction began, once somebody has asked.
    began: Option<Timestamp>,
    /// What was published, and is written with the end.
    published: Publications,
    /// Whether rows of the queue were written before the end.
    has_rows: bool,
    /// What the events that are published here belong to.
    origin: Origin,
    event: Option<EventCx>,
    job: Option<Arc<JobCx<Db>>>,
    /// Whether the transaction has ended, so that others may have the connection.
    is_ended: bool,
    /// Cancelled when what became of the transaction is no longer ours to decide.
    ended: CancellationToken,
    /// Where it is rolled back when it is dropped, which may be anywhere.
    runtime: Option<Handle>,
}

impl<Db: Database> Tx<Db> {
    pub(crate) fn new(steadfast: Steadfast<Db>, key: Option<Key>, held: <Db::Store as Store<Db>>::Held) -> Self {
        Self {
            origin: Origin::of(steadfast.own_source().clone()),
            steadfast,
            key,
            held: Some(held),
            began: None,
            published: Publications::default(),
            has_rows: false,
            event: None,
            job: None,
            is_ended: false,
            ended: CancellationToken::new(),
            runtime: Handle::try_current().ok(),
        }
    }

    /// The sqlx connection, inside the transaction. Queries run on it; a nested `begin` is a savepoint.
    pub fn db(&mut self) -> &mut Db::Connection {
        self.ask("tx.db()")
    }

    /// The key of the command that runs in this transaction; `None` if there is none, as in [`Steadfast::transact`].
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// The delivery that runs in this transaction, if it is a reaction's.
    pub fn event(&self) -> Option<&EventCx> {
        self.event.as_ref()
    }

    /// The job that runs in this transaction, if it is one.
    pub fn job(&self) -> Option<&JobCx<Db>> {
        self.job.as_deref()
    }

    /// What is published and enqueued here was brought about by this job.
    pub(crate) fn belongs_to_job(&mut self, cx: Arc<JobCx<Db>>) {
        self.origin.follow(cx.message());
        self.job = Some(cx);
    }

    /// What is published here was brought about by this delivery.
    pub(crate) fn belongs_to(&mut self, cx: &EventCx) {
        self.origin.follow(cx.message());
        self.event = Some(cx.clone());
    }

    /// What a request says about itself, for the events that are published here.
    #[cfg(feature = "axum")]
    pub(crate) fn read_origin(&mut self, headers: &http::HeaderMap) {
        self.origin.read(headers);
    }

    /// What this is all about: the events that are published here carry it, and so does everything that they lead to.
    ///
    /// Requests bring it along in `X-Correlation-Id` or `X-Request-Id`, and reactions have that of their event. Without
    /// any, it is the id of the event.
    ///
    /// # Errors
    /// SF032 if it is not 1 to 255 printable ASCII characters.
    pub fn set_correlation_id(&mut self, id: &str) -> Result<()> {
        self.origin.set_correlation_id(id)
    }

    /// The trace this is part of, as W3C Trace Context writes it: the events that are published here carry it on.
    ///
    /// Requests bring it along in `traceparent`, and reactions have that of their event.
    ///
    /// # Errors
    /// SF032 if it is no `traceparent`.
    pub fn set_traceparent(&mut self, traceparent: &str) -> Result<()> {
        self.origin.set_traceparent(traceparent)
    }

    /// Publishes an event: it is written with the end of this transaction, in the same statement, and delivered after it.
    /// If nothing is committed, nobody ever hears of it.
    ///
    /// A [`savepoint`](Self::savepoint) that fails takes what was published in it along. One that you set yourself, by a
    /// `begin` on [`db`](Self::db), does not.
    ///
    /// # Errors
    /// SF032 if the event is too large, cannot be written as JSON, or is one too many.
    pub fn publish<E: Event>(&mut self, event: &E) -> Result<MessageId> {
        let message = NewMessage::of(event, &self.origin.or_command(self.key.as_ref()))?;
        self.published.add(message, E::IN_PROCESS)
    }

    /// Enqueues a job: it is written with the end of this transaction, in the same statement, and run after it. If nothing is
    /// committed, nobody ever hears of it. What was enqueued in a [`savepoint`](Self::savepoint) that fails goes with it.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use steadfast::{Failure, Job, SqliteTx};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct SendReceipt { order_id: i64 }
    /// # impl Job for SendReceipt { const NAME: &'static str = "receipt.send"; }
    /// async fn place(tx: &mut SqliteTx, order_id: i64) -> Result<(), Failure> {
    ///     tx.enqueue(&SendReceipt { order_id }).delay("10m").await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// SF032 if the job is too large, cannot be written as JSON, is due more than ten years ahead, or is one too many.
    pub fn enqueue<'t, J: Job>(&'t mut self, job: &'t J) -> Enqueue<'t, Db, J> {
        Enqueue::new(self, job)
    }

    /// Puts a job into its envelope.
    pub(crate) fn write_job(&self, write: impl FnOnce(&Origin) -> Result<NewMessage>) -> Result<NewMessage> {
        write(&self.origin.or_command(self.key.as_ref()))
    }

    pub(crate) fn add_job(&mut self, write: impl FnOnce(&Origin) -> Result<NewMessage>) -> Result<JobId> {
        let message = self.write_job(write)?;
        let id = JobId::of(message.id);
        self.published.add(message, false)?;
        Ok(id)
    }

    /// Saves an aggregate, and then publishes what it has raised. If saving fails, the aggregate keeps its events.
    ///
    /// # Errors
    /// What saving failed with, or SF032 if an event cannot be published.
    pub fn save<A, F>(&mut self, aggregate: &mut A, save: F) -> impl Future<Output = Result<(), Failure>> + Send
    where
        A: Aggregate + Send + Sync,
        for<'a, 't> F: AsyncFnOnce(&'a A, &'t mut Db::Connection) -> Result<(), Failure>
            + AsyncSave<&'a A, &'t mut Db::Connection, Result<(), Failure>, Fut: Send>
            + Send,
    {
        async move {
            save(aggregate, self.db()).await?;
            let mark = self.published.mark();
            let origin = self.origin.or_command(self.key.as_ref());
            for raised in aggregate.raised().iter() {
                let added = raised
                    .message(&origin)
                    .and_then(|message| self.published.add(message, raised.is_in_process()));
                if let Err(error) = added {
                    self.published.go_back(mark);
                    return Err(error.into());
                }
            }
            aggregate.raised().clear();
            Ok(())
        }
    }

    /// Forgets what was published: what published it is undone.
    pub(crate) fn unpublish(&mut self) {
        self.published.clear();
    }

    /// The connection for a statement of this name: tests may crash before it.
    pub(crate) fn ask(&mut self, statement: &'static str) -> &mut Db::Connection {
        self.steadfast.ask(statement);
        &mut *held(&mut self.held)
    }

    /// The store, the connection and the clock, for a statement of this name.
    pub(crate) fn parts(&mut self, statement: &'static str) -> (&Db::Store, &mut Db::Connection, Offset) {
        let store = self.steadfast.ask(statement);
        (store, &mut *held(&mut self.held), self.steadfast.clock().ahead())
    }

    /// Tells when the transaction has ended, for those who gave it away.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// The transaction's one instant: the database's time when it began. Asking PostgreSQL for it costs a round trip, once.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn now(&mut self) -> Result<SystemTime> {
        let began = match self.began {
            Some(began) => began,
            None => {
                self.steadfast
                    .ask("ask for the time")
                    .began(held(&mut self.held))
                    .await?
            }
        };
        self.began = Some(began);
        Ok(self.steadfast.clock().at(began).into())
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
            let mark = self.published.mark();
            let ended = part(self).await;
            match &ended {
                Ok(_) => store::release_savepoint::<Db>(self.ask("release the savepoint")).await?,
                Err(_) => {
                    self.published.go_back(mark);
                    store::rollback_savepoint::<Db>(self.ask("roll back to the savepoint")).await?;
                }
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
        store
            .append_audit(&mut *held(&mut self.held), entry, self.steadfast.clock().ahead())
            .await
    }

    /// Writes which of the jobs belong to a batch, if any does.
    async fn join_batches(&mut self) -> Result<()> {
        let members = self.published.members();
        if members.is_empty() {
            return Ok(());
        }
        let store = self.steadfast.ask("join batches");
        store.join_batches(&mut *held(&mut self.held), &members).await
    }

    /// Stores the end of the command. False: a live record of the same key is there already.
    pub(crate) async fn settle(&mut self, settlement: &Settlement<'_>) -> Result<bool> {
        self.join_batches().await?;
        let settlement = Settlement {
            messages: &self.published.messages,
            ..*settlement
        };
        self.steadfast
            .ask("settle the key")
            .settle(held(&mut self.held), &settlement)
            .await
    }

    /// Counts a key that is about to be stored against its owner's quota, if there is one.
    pub(crate) async fn charge(&mut self, settlement: &Settlement<'_>) -> Result<()> {
        let Some(quota) = self.steadfast.quota() else {
            return Ok(());
        };
        let store = self.steadfast.ask("charge the owner");
        quota.charge::<Db>(store, &mut *held(&mut self.held), settlement).await
    }

    /// Removes a key's record. False: there is none.
    pub(crate) async fn remove_key(&mut self, key: &Key) -> Result<bool> {
        self.steadfast
            .ask("remove the key")
            .remove_key(held(&mut self.held), key)
            .await
    }

    /// Makes a transaction without a key ready to commit. With a lease, its row leaves the queue; false: the lease is lost.
    pub(crate) async fn seal(&mut self, lease: Option<&Lease>) -> Result<bool> {
        self.join_batches().await?;
        let seal = Seal {
            lease,
            messages: &self.published.messages,
            offset: self.steadfast.clock().ahead(),
        };
        self.steadfast.ask("seal").seal(held(&mut self.held), &seal).await
    }

    /// Rows of the queue were written, beside those that are written with the end.
    pub(crate) fn has_written_rows(&mut self) {
        self.has_rows = true;
    }

    /// Whoever waits for what was published is told: it is durable.
    fn announce(&mut self) {
        if self.has_rows || !self.published.messages.is_empty() {
            self.steadfast.rows_were_committed();
        }
        for message in self.published.in_process.drain(..) {
            self.steadfast.react_in_process(message);
        }
    }

    /// Fails if the handler left a savepoint open: COMMIT would then only release that.
    pub(crate) async fn check_depth(&mut self, expected: usize) -> Result<()> {
        if store::depth_beyond::<Db>(&mut *held(&mut self.held), expected).await == expected {
            return Ok(());
        }
        Err(Error::new(
            Code::TransactionBroken,
            "the handler left a nested transaction open, or ended more than it began; commit or roll back every `begin` of its own",
        ))
    }

    pub(crate) async fn commit(&mut self) -> Result<(), store::CommitError> {
        self.check_depth(1).await.map_err(store::CommitError::Refused)?;
        self.steadfast.ask("commit").commit(held(&mut self.held)).await?;
        self.steadfast.commit_applied()?;
        self.is_ended = true;
        self.announce();
        Ok(())
    }

    /// Ends the transaction and gives the connection back. One that cannot do that, or not soon (a statement that the
    /// handler gave up on still runs), is closed.
    ///
    /// # Errors
    /// If the handler saw what others wrote and never became durable: then what it decided is none.
    pub(crate) async fn rollback(&mut self) -> Result<()> {
        let rolled_back = tokio::time::timeout(ROLLBACK_LIMIT, async {
            while store::depth_beyond::<Db>(&mut *held(&mut self.held), 1).await > 1 {
                store::rollback_savepoint::<Db>(&mut *held(&mut self.held)).await.ok()?;
            }
            self.steadfast
                .ask("roll back")
                .rollback(held(&mut self.held))
                .await
                .ok()
        })
        .await;
        self.is_ended = matches!(rolled_back, Ok(Some(())));
        self.steadfast.store().saw_the_truth(held(&mut self.held)).await
    }

    /// The record of a duplicate that the claim could not see, after a roll-back and before the connection is given back:
    /// nobody waits for another one.
    pub(crate) async fn missed_duplicate(&mut self, key: &Key) -> Option<LookUp> {
        if !self.is_ended {
            return None;
        }
        // Not fit to be given back while this runs.
        self.is_ended = false;
        let store = self.steadfast.ask("look for a duplicate");
        let looked = tokio::time::timeout(ROLLBACK_LIMIT, store.missed_duplicate(held(&mut self.held), key)).await;
        let found = looked.ok()?.ok()?;
        self.is_ended = true;
        found
    }
}

impl<Db: Database> Drop for Tx<Db> {
    fn drop(&mut self) {
        let ended = self.ended.clone().drop_guard();
        if self.is_ended {
            return;
        }
        if let (Some(held), Some(runtime)) = (self.held.take(), &self.runtime) {
            // If that is gone too, what is dropped with it still asks for one.
            let _inside = runtime.enter();
            let abandoned = self.steadfast.store().abandon(held);
            self.steadfast.tasks().spawn(async move {
                abandoned.await;
                drop(ended);
            });
        }
    }
}

fn held<H>(held: &mut Option<H>) -> &mut H {
    match held {
        Some(held) => held,
        None => unreachable!("a transaction that was dropped is not used"),
    }
}

impl<Db: Database> fmt::Debug for Tx<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}
