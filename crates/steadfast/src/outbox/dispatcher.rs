//! Carrying messages to their targets, in whichever process has the time.

use std::panic::{AssertUnwindSafe, Location};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::event::Event;
use super::reaction::Reaction;
use crate::clock::random;
use crate::error::{Code, Error, Result};
use crate::inbox::Burying;
use crate::job::worker::Working;
use crate::queue::{Engine, Pace, TROUBLE, Work, known_kinds};
use crate::steadfast::Steadfast;
use crate::store::inbox::Inbox;
use crate::store::{Database, Store};
use crate::telemetry;

/// How long after a panic of the dispatcher itself it begins anew.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// How a process carries messages to their targets: [`Builder::dispatcher`](crate::Builder::dispatcher).
///
/// By default it hears of every commit, looks every two seconds for what nobody announced, and takes as many messages as it
/// can work on. Any number of processes may do so on one database.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dispatcher {
    pace: Pace,
    is_off: bool,
}

impl Dispatcher {
    /// Looks every `poll` for at most `batch` messages for each target, less those that are still worked on, and at nothing else: the
    /// outbox as it is often built. Latency is the poll, and throughput is one batch in each.
    pub fn fixed(poll: Duration, batch: u32) -> Self {
        let pace = Pace {
            poll,
            batch: batch.max(1),
            is_fixed: true,
            ..Pace::default()
        };
        Self { pace, is_off: false }
    }

    /// Leaves the messages to other processes. What this one publishes and declares is theirs to deliver.
    pub fn off() -> Self {
        Self {
            is_off: true,
            ..Self::default()
        }
    }

    /// How many messages for each target are taken at once at the most; 500 by default.
    pub fn batch(mut self, batch: u32) -> Self {
        self.pace.batch = batch.max(1);
        self
    }

    /// How long a delivery belongs to a process that says nothing any more, unless its target says otherwise; 30 seconds
    /// by default.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.pace.lease = lease;
        self
    }
}

impl<Db: Database> Steadfast<Db> {
    /// A reaction to events of type `E`, by a stable name under which its deliveries are stored.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use steadfast::sqlx::{self, Sqlite};
    /// # use steadfast::{Event, Failure, Steadfast, Tx};
    /// # #[derive(Serialize, Deserialize)]
    /// struct OrderPlaced { sku: String }
    ///
    /// impl Event for OrderPlaced { // or derive it
    ///     const TYPE: &'static str = "order.placed";
    /// }
    ///
    /// async fn reserve(tx: &mut Tx<Sqlite>, event: OrderPlaced) -> Result<(), Failure> {
    ///     sqlx::query("UPDATE stock SET reserved = reserved + 1 WHERE sku = $1").bind(&event.sku).execute(tx.db()).await?;
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// # sf.transact(async |tx| {
    /// #     sqlx::query("CREATE TABLE stock (sku TEXT, reserved INTEGER)").execute(tx.db()).await?;
    /// #     sqlx::query("INSERT INTO stock VALUES ('tea', 0)").execute(tx.db()).await?;
    /// #     Ok(())
    /// # }).await?;
    /// sf.reaction::<OrderPlaced>("stock.reserve").run(reserve);
    /// sf.declare().await?; // `serve` and `dispatch` do
    ///
    /// sf.transact(async |tx| {
    ///     tx.publish(&OrderPlaced { sku: "tea".into() })?; // commits with whatever else is written here
    ///     Ok(())
    /// }).await?;
    ///
    /// sf.drain().await?; // `serve` and `dispatch` do it all the time
    /// let reserved: i64 = sqlx::query_scalar("SELECT reserved FROM stock").fetch_one(sf.pool()).await?;
    /// assert_eq!(reserved, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn reaction<E: Event>(&self, name: &str) -> Reaction<'_, Db, E> {
        Reaction::new(self, name, Location::caller())
    }

    /// Writes into the database which reactions there are, so that whoever publishes knows. From then on, events are kept
    /// for them, whether or not anybody works on them. Schedules of this program are written too, and are due from then on.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn declare(&self) -> Result<()> {
        #[cfg(feature = "schedule")]
        self.declare_schedules().await?;
        let sources = self.sources();
        let targets = self.reactions().targets(|event_type| sources.feed(event_type));
        let kinds: Vec<_> = self.works().iter().flat_map(|work| known_kinds(&**work)).collect();
        let queues = self.queue_rows();
        if kinds.is_empty() && queues.is_empty() {
            return Ok(());
        }
        let fed = self.reactions().fed(|event_type| sources.feed(event_type));
        if !fed.is_empty() {
            // What is published here would act once more, beside what comes back by the broker.
            self.ask("remove targets").forget_targets(&fed).await?;
        }
        self.ask("declare targets")
            .declare(&targets, &kinds, &queues, self.clock().ahead())
            .await
    }

    /// Does so when the database answers: it may be away just when a service starts.
    pub(crate) async fn declare_in_the_end(&self) -> Result<()> {
        let mut troubles = 0;
        loop {
            match self.declare().await {
                Err(error) if error.is_transient() => self.dispatching().fails(&error),
                Err(error) => return Err(error),
                Ok(()) => {
                    self.dispatching().works();
                    return Ok(());
                }
            }
            troubles += 1;
            tokio::time::sleep(TROUBLE.delay(troubles, random)).await;
        }
    }

    /// Carries messages to the reactions of this process until [`stop`](Self::stop), then lets what is under way end: those that
    /// were published here, and those that come from the [sources](Self::source) of this process. Jobs are run, and those that
    /// schedules are due for are made.
    ///
    /// [`serve`](Self::serve) runs it by itself. With a server of your own, or in a process that does nothing else, spawn it
    /// once.
    ///
    /// # Errors
    /// If the reactions cannot be [declared](Self::declare). That the database is away is waited out.
    pub async fn dispatch(&self) -> Result<()> {
        tokio::select! {
            declared = self.declare_in_the_end() => declared?,
            () = self.stopped() => return Ok(()),
        }
        self.dispatch_declared().await;
        Ok(())
    }

    pub(crate) async fn dispatch_declared(&self) {
        if self.dispatcher().is_off {
            return;
        }
        #[cfg(feature = "schedule")]
        tokio::join!(self.run_engine(), self.consume(), self.watch_schedules());
        #[cfg(not(feature = "schedule"))]
        tokio::join!(self.run_engine(), self.consume());
    }

    async fn run_engine(&self) {
        if self.works().is_empty() {
            return;
        }
        while let Err(panic) = AssertUnwindSafe(self.engine().run()).catch_unwind().await {
            #[cfg(feature = "testing")]
            let panic = crate::testing::crash_on(panic);
            telemetry::panicked(panic.as_ref());
            let message = "the dispatcher panicked, and begins anew; what it held comes back when its leases expire";
            self.dispatching().fails(&Error::new(Code::HandlerPanicked, message));
            tokio::select! {
                () = self.stopped() => return,
                () = tokio::time::sleep(RESTART_AFTER) => {}
            }
        }
    }

    /// Delivers what is due to the reactions of this process, one message after another, until nothing is, and says how
    /// many attempts that took: for tests.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn drain(&self) -> Result<u64> {
        self.declare().await?;
        self.engine().drain().await
    }

    /// What rows of the queue can be here: deliveries, messages from elsewhere that nobody could read, copies of dead letters for
    /// their brokers, and jobs.
    fn works(&self) -> Vec<Arc<dyn Work<Db>>> {
        let reactions = self.reactions().durable().into_iter();
        let reactions = reactions.map(|reacting| reacting as Arc<dyn Work<Db>>);
        let sources = self.sources().all();
        let burying = sources.iter().filter_map(Burying::of).map(Arc::new);
        let burying: Vec<_> = burying.map(|burying| burying as Arc<dyn Work<Db>>).collect();
        let sources = sources.into_iter().map(|source| source as Arc<dyn Work<Db>>);
        let workers = self.workers().all().clone().into_iter();
        let workers = workers.map(|worker| Arc::new(Working::new(self, worker)) as Arc<dyn Work<Db>>);
        reactions.chain(sources).chain(burying).chain(workers).collect()
    }

    fn engine(&self) -> Engine<Db> {
        Engine::new(self.clone(), &self.works(), self.dispatcher().pace)
    }
}
