//! Where it is measured: the two databases, as far as they differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use sqlx::Pool;
use steadfast::{Dispatcher, Event, EventCx, Failure, Steadfast, Tx};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::command::order::Order;
use crate::error::{Context, Result};
use crate::measure::{Called, Ready};
use crate::meter::Meter;
use crate::options::Database;

/// Events of one transaction when a table is filled: as many as one may publish.
const EVENTS_AT_ONCE: usize = 1_000;

/// How long a drain may take before something is wrong.
const PATIENCE: Duration = Duration::from_secs(600);

/// The one target of all events.
pub(crate) const TARGET: &str = "bench.hear";

impl Event for Order {
    const TYPE: &'static str = "order.placed";
}

/// A server, or a directory: where databases of our own can be made.
pub(crate) trait Ground: Clone + Send + Sync + 'static {
    type Place: Place;

    const DATABASE: Database;

    /// Whether processes tell each other of commits; otherwise they look.
    const HAS_ANNOUNCEMENTS: bool;

    /// A database with our tables and those of the hand-written outbox.
    fn create(&self) -> impl Future<Output = Result<Self::Place>> + Send;

    fn meter(&self) -> Meter;
}

/// A database of ours.
pub(crate) trait Place: Send + Sync + 'static {
    type Db: steadfast::Database;

    /// What the loop that people write has for itself: one connection.
    type Hand: Send;

    fn pool(&self) -> &Pool<Self::Db>;

    /// One whose handlers have as many transactions at once as there are callers.
    fn wide_pool(&self) -> Pool<Self::Db>;

    /// Runs statements that return nothing.
    fn run(&self, statements: String) -> impl Future<Output = Result<()>> + Send;

    /// What the database does by itself from time to time, now: so that it does not happen while something is measured.
    fn tidy(&self) -> impl Future<Output = Result<()>> + Send;

    /// The business of a command, or of a message: one INSERT.
    fn place_order(tx: &mut Tx<Self::Db>, order: &Order) -> impl Future<Output = Result<i64, Failure>> + Send;

    /// The same INSERT in a transaction of its own, by hand.
    fn place_order_bare(&self) -> impl Future<Output = Result<()>> + Send;

    /// How many orders there are.
    fn count_orders(&self) -> impl Future<Output = Result<i64>> + Send;

    /// Fills the hand-written outbox.
    fn fill_by_hand(&self, deliveries: usize) -> impl Future<Output = Result<()>> + Send;

    fn open_hand(&self) -> impl Future<Output = Result<Self::Hand>> + Send;

    /// The loop that people write, until its outbox is empty: claim a batch, call the handler for each, delete the batch.
    /// Says how many there were.
    fn drain_by_hand(
        &self,
        hand: &mut Self::Hand,
        handle: impl Fn(Order) + Send + Sync,
    ) -> impl Future<Output = Result<usize>> + Send;

    /// Finished deliveries, older than everything else.
    fn fill_history(&self, deliveries: u32) -> impl Future<Output = Result<()>> + Send;

    /// Puts every second delivery off by an hour.
    fn put_half_off(&self) -> impl Future<Output = Result<()>> + Send;

    fn remove(&self) -> impl Future<Output = Result<()>> + Send;

    /// As another process would open it.
    fn open(&self, dispatcher: Dispatcher) -> impl Future<Output = Result<Steadfast<Self::Db>>> + Send {
        let builder = Steadfast::builder(self.pool().clone()).dispatcher(dispatcher);
        async move { builder.build().await.context("opening Steadfast") }
    }

    /// The same for a process whose handlers have transactions.
    fn open_wide(&self, dispatcher: Dispatcher) -> impl Future<Output = Result<Steadfast<Self::Db>>> + Send {
        let builder = Steadfast::builder(self.wide_pool()).dispatcher(dispatcher);
        async move { builder.build().await.context("opening Steadfast") }
    }

    /// A process that publishes, and leaves the deliveries to others.
    fn open_publisher(&self) -> impl Future<Output = Result<Steadfast<Self::Db>>> + Send {
        async {
            let sf = self.open(Dispatcher::off()).await?;
            let hear = |_: &EventCx, _: Order| std::future::ready(Ok(()));
            sf.reaction::<Order>(TARGET).run_outside(hear);
            sf.declare().await.context("declaring the target")?;
            Ok(sf)
        }
    }
}

/// Publishes so many events about such an order, as any process does.
pub(crate) async fn fill<Db: steadfast::Database>(sf: &Steadfast<Db>, order: &Order, deliveries: usize) -> Result<()> {
    let mut left = deliveries;
    while left > 0 {
        let count = left.min(EVENTS_AT_ONCE);
        let publishing = sf.transact(async move |tx| {
            for _ in 0..count {
                tx.publish(order)?;
            }
            Ok(())
        });
        publishing.await.context("publishing events")?;
        left -= count;
    }
    Ok(())
}

/// How deliveries are heard.
#[derive(Clone, Copy)]
pub(super) enum Hearing {
    Outside,
    InTransaction,
}

/// Counts deliveries until there were enough.
#[derive(Default)]
pub(crate) struct Count {
    heard: AtomicUsize,
    wanted: usize,
    enough: Notify,
}

impl Count {
    pub(crate) fn until(wanted: usize) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    pub(crate) fn hear(&self) {
        self.hear_of(1);
    }

    /// So many at once.
    pub(crate) fn hear_of(&self, more: usize) {
        let before = self.heard.fetch_add(more, Ordering::Relaxed);
        if before < self.wanted && before + more >= self.wanted {
            self.enough.notify_one();
        }
    }

    /// Waits until there were enough, and says how many.
    pub(crate) async fn enough(&self) -> Result<usize> {
        let enough = timeout(PATIENCE, self.enough.notified()).await;
        enough.context("some deliveries never came")?;
        Ok(self.heard.load(Ordering::Relaxed))
    }
}

/// A process that is about to begin, and stops when it has heard of so many deliveries: what it has in hand then is
/// finished and counted as well.
pub(super) async fn drainer<P: Place>(place: &P, hearing: Hearing, deliveries: usize) -> Result<Ready> {
    let sf = place.open(Dispatcher::default()).await?;
    let count = Arc::new(Count::until(deliveries));
    let counted = count.clone();
    match hearing {
        Hearing::Outside => sf.reaction::<Order>(TARGET).run_outside(move |_: &EventCx, _: Order| {
            counted.hear();
            std::future::ready(Ok(()))
        }),
        Hearing::InTransaction => sf.reaction::<Order>(TARGET).run(move |_: &mut Tx<P::Db>, _: Order| {
            counted.hear();
            std::future::ready(Ok(()))
        }),
    }
    Ok(draining(sf, count))
}

/// Dispatches until this was counted.
pub(crate) fn draining<Db: steadfast::Database>(sf: Steadfast<Db>, count: Arc<Count>) -> Ready {
    let draining = async move {
        let began = Instant::now();
        let dispatcher = sf.clone();
        let dispatching = tokio::spawn(async move { dispatcher.dispatch().await });
        count.enough().await?;
        sf.stop();
        let ended = dispatching.await.context("the dispatcher broke down")?;
        ended.context("dispatching")?;
        let heard = count.heard.load(Ordering::Relaxed);
        Ok(Called {
            count: heard,
            in_time: heard,
            took: began.elapsed(),
            ..Called::default()
        })
    };
    draining.boxed()
}
