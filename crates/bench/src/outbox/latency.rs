//! How long it takes from a commit to the first line of the handler, while nothing else is to do.
//!
//! It counts from the moment at which the publisher has its answer: the commit is durable then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use steadfast::{Dispatcher, Event, EventCx, Steadfast};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::place::{Ground, Place, TARGET};
use crate::error::{Context, Result};
use crate::measure::{Aim, Called, Case, Ready, Series, Stage, micros};

const HERE: &str = "commit to handler, one process";
const ELSEWHERE: &str = "commit to handler, another process";
const POLLING: &str = "commit to handler, polling each 100 ms";

/// Milliseconds.
const GOAL: f64 = 3.0;

/// Between two commits. It varies, or it would keep step with whoever polls.
const GAP_MILLISECONDS: std::ops::Range<u64> = 40..60;

/// How long an event may take before something is wrong.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A number, to tell them apart.
#[derive(Serialize, Deserialize)]
pub(super) struct Tick {
    pub(super) number: u64,
}

impl Event for Tick {
    const TYPE: &'static str = "bench.tick";
}

/// One who publishes, and somebody who hears of it.
pub(super) struct Line<P: Place> {
    place: P,
    ticker: Ticker<P::Db>,
    dispatcher: Steadfast<P::Db>,
    heard: Mutex<mpsc::UnboundedReceiver<(u64, Instant)>>,
    dispatching: Mutex<Option<JoinHandle<steadfast::Result<()>>>>,
}

/// One who publishes a tick now and then.
pub(super) struct Ticker<Db: steadfast::Database> {
    publisher: Steadfast<Db>,
    next: AtomicU64,
}

pub(super) fn series<G: Ground>(ground: &G) -> Series {
    let quick = |name| Case::new(name).aiming(Aim::Median { at_most: GOAL });
    let elsewhere = match G::HAS_ANNOUNCEMENTS {
        true => quick(ELSEWHERE),
        // Whoever looks at the file every 20 ms cannot keep it.
        false => Case::new(ELSEWHERE),
    };
    let cases = [quick(HERE), elsewhere, Case::new(POLLING)];
    let ground = ground.clone();
    Series::new(G::DATABASE, cases, |_| prepare(ground))
}

async fn prepare<G: Ground>(ground: G) -> Result<Stage> {
    let fixed = Dispatcher::fixed(Duration::from_millis(100), 500);
    let here = Arc::new(to_handler(ground.create().await?, Dispatcher::default(), Who::Same).await?);
    let elsewhere = Arc::new(to_handler(ground.create().await?, Dispatcher::default(), Who::Another).await?);
    let polling = Arc::new(to_handler(ground.create().await?, fixed, Who::Same).await?);
    let all = [here.clone(), elsewhere.clone(), polling.clone()];
    Ok(Stage::default()
        .gets_ready(HERE, &here, measure)
        .gets_ready(ELSEWHERE, &elsewhere, measure)
        .gets_ready(POLLING, &polling, measure)
        .counted_by(ground.meter())
        .ends_with(async move {
            for line in all {
                line.close().await?;
            }
            Ok(())
        }))
}

/// A line to a handler, which says when it begins.
async fn to_handler<P: Place>(place: P, dispatcher: Dispatcher, who: Who) -> Result<Line<P>> {
    let (told, heard) = mpsc::unbounded_channel();
    let declare = |sf: &Steadfast<P::Db>| {
        sf.reaction::<Tick>(TARGET).run_outside(move |_: &EventCx, tick: Tick| {
            // Whoever listened has given up.
            let _ = told.send((tick.number, Instant::now()));
            std::future::ready(Ok(()))
        });
    };
    Line::open(place, dispatcher, who, declare, heard).await
}

/// Which process delivers, as seen from the one that publishes.
pub(super) enum Who {
    Same,
    Another,
}

impl<P: Place> Line<P> {
    /// Declares who hears of it, and begins to deliver.
    pub(super) async fn open(
        place: P,
        dispatcher: Dispatcher,
        who: Who,
        declare: impl FnOnce(&Steadfast<P::Db>),
        heard: mpsc::UnboundedReceiver<(u64, Instant)>,
    ) -> Result<Self> {
        let dispatcher = place.open(dispatcher).await?;
        declare(&dispatcher);
        dispatcher.declare().await.context("declaring the target")?;
        let publisher = match who {
            Who::Same => dispatcher.clone(),
            Who::Another => place.open(Dispatcher::off()).await?,
        };
        let dispatching = dispatcher.clone();
        Ok(Self {
            place,
            ticker: Ticker::new(publisher),
            dispatcher,
            heard: Mutex::new(heard),
            dispatching: Mutex::new(Some(tokio::spawn(async move { dispatching.dispatch().await }))),
        })
    }

    pub(super) async fn close(&self) -> Result<()> {
        self.dispatcher.stop();
        if let Some(dispatching) = self.dispatching.lock().await.take() {
            let ended = dispatching.await.context("the dispatcher broke down")?;
            ended.context("dispatching")?;
        }
        self.place.remove().await
    }
}

impl<Db: steadfast::Database> Ticker<Db> {
    pub(super) fn new(publisher: Steadfast<Db>) -> Self {
        Self {
            publisher,
            next: AtomicU64::new(0),
        }
    }

    /// Publishes one, and says its number and when it was committed.
    pub(super) async fn tick(&self) -> Result<(u64, Instant)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let publishing = self.publisher.transact(async move |tx| {
            tx.publish(&Tick { number })?;
            Ok(())
        });
        publishing.await.context("publishing a tick")?;
        Ok((number, Instant::now()))
    }

    /// One now and then for so long, and at least one.
    pub(super) async fn tick_for(&self, length: Duration) -> Result<Vec<(u64, Instant)>> {
        let began = Instant::now();
        let mut committed = Vec::new();
        while committed.is_empty() || began.elapsed() < length {
            committed.push(self.tick().await?);
            tokio::time::sleep(Duration::from_millis(fastrand::u64(GAP_MILLISECONDS))).await;
        }
        Ok(committed)
    }
}

pub(super) async fn measure<P: Place>(line: Arc<Line<P>>, length: Duration) -> Result<Ready> {
    let measuring = async move {
        let began = Instant::now();
        let committed = line.ticker.tick_for(length).await?;
        let mut heard = line.heard.lock().await;
        let mut latencies = Vec::with_capacity(committed.len());
        for _ in &committed {
            let hearing = timeout(PATIENCE, heard.recv()).await;
            let (number, at) = hearing.context("an event was not delivered")?.ok_or("nobody listens")?;
            let (_, since) = committed
                .iter()
                .find(|(committed, _)| *committed == number)
                .ok_or("an event was delivered that nobody published")?;
            latencies.push(micros(at.saturating_duration_since(*since)));
        }
        let count = committed.len();
        Ok(Called {
            latencies,
            count,
            in_time: count,
            took: began.elapsed(),
            ..Called::default()
        })
    };
    Ok(measuring.boxed())
}
