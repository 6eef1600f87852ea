//! How long it takes from the call that enqueues a job to the first line of its handler, while nothing else is to do.
//!
//! It counts from the call, not from the commit: some of the others begin before they have answered. The baseline is the loop that
//! people write, in one process with whoever enqueues, who wakes it after each commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use steadfast::{Dispatcher, JobCx, Steadfast};
use tokio::sync::{Mutex, Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::peer::{self, Peers};
use super::work;
use crate::command::order::{ORDER, Order};
use crate::error::{Context, Result};
use crate::measure::{Aim, Called, Case, Ready, Series, Stage, micros};
use crate::outbox::place::{Ground, Place};

const BY_HAND: &str = "start by hand";
const HERE: &str = "start, one process";
const ELSEWHERE: &str = "start, another process";

/// What the others are called.
const PEERS: &str = "start";

/// Of the median of each of the others.
const PEER_GOAL: f64 = 1.0;

/// Between two jobs. It varies, or it would keep step with whoever polls.
const GAP_MILLISECONDS: std::ops::Range<u64> = 40..60;
const GAP_ABOUT: Duration = Duration::from_millis(50);

/// How long a job may take before something is wrong.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn series<G: Ground>(ground: &G, peers: &Peers, slice: Duration) -> Series {
    let beside = |baseline: &str, at_most| Aim::MedianOf {
        baseline: baseline.to_owned(),
        at_most,
    };
    let here = Case::new(HERE).aiming(beside(BY_HAND, None));
    let here = peers
        .names(PEERS)
        .fold(here, |here, name| here.aiming(beside(&name, Some(PEER_GOAL))));
    let elsewhere = Case::new(ELSEWHERE).aiming(beside(BY_HAND, None));
    let elsewhere = peers.names(PEERS).fold(elsewhere, |elsewhere, name| {
        elsewhere.aiming(beside(&name, Some(PEER_GOAL)))
    });
    let mut cases = vec![Case::new(BY_HAND), here, elsewhere];
    cases.extend(peers.names(PEERS).map(Case::new));
    let (ground, peers) = (ground.clone(), peers.clone());
    Series::new(G::DATABASE, cases, move |_| prepare(ground, peers, slice))
}

async fn prepare<G: Ground>(ground: G, peers: Peers, slice: Duration) -> Result<Stage> {
    let by_hand = Arc::new(ByHand::open(ground.create().await?).await?);
    let here = Arc::new(Line::open(ground.create().await?, Who::Same).await?);
    let elsewhere = Arc::new(Line::open(ground.create().await?, Who::Another).await?);
    let (hand, lines) = (by_hand.clone(), [here.clone(), elsewhere.clone()]);
    let stage = Stage::default()
        .gets_ready(BY_HAND, &by_hand, measure_by_hand)
        .gets_ready(HERE, &here, measure)
        .gets_ready(ELSEWHERE, &elsewhere, measure)
        .counted_by(ground.meter());
    let jobs = slice.div_duration_f64(GAP_ABOUT).ceil().max(1.0) as usize;
    let (stage, peers) = peers.take_part(stage, PEERS, peer::Case::Latency, jobs).await?;
    Ok(stage.ends_with(async move {
        peers.remove().await?;
        for line in lines {
            line.close().await?;
        }
        hand.close().await
    }))
}

/// What a handler has to say: which job, and when it began.
type Heard = Mutex<mpsc::UnboundedReceiver<(i32, Instant)>>;

/// One who enqueues, and one who runs it.
struct Line<P: Place> {
    place: P,
    enqueuer: Steadfast<P::Db>,
    dispatcher: Steadfast<P::Db>,
    next: AtomicI32,
    heard: Heard,
    dispatching: Mutex<Option<JoinHandle<steadfast::Result<()>>>>,
}

/// Which process runs it, as seen from the one that enqueues.
enum Who {
    Same,
    Another,
}

impl<P: Place> Line<P> {
    async fn open(place: P, who: Who) -> Result<Self> {
        let dispatcher = place.open(Dispatcher::default()).await?;
        let (told, heard) = mpsc::unbounded_channel();
        dispatcher
            .handler::<Order>()
            .run_outside(move |_: &JobCx<P::Db>, order: Order| {
                // Whoever listened has given up.
                let _ = told.send((order.quantity, Instant::now()));
                std::future::ready(Ok(()))
            });
        let enqueuer = match who {
            Who::Same => dispatcher.clone(),
            Who::Another => place.open(Dispatcher::off()).await?,
        };
        let dispatching = dispatcher.clone();
        Ok(Self {
            place,
            enqueuer,
            dispatcher,
            next: AtomicI32::new(0),
            heard: Mutex::new(heard),
            dispatching: Mutex::new(Some(tokio::spawn(async move { dispatching.dispatch().await }))),
        })
    }

    async fn close(&self) -> Result<()> {
        self.dispatcher.stop();
        if let Some(dispatching) = self.dispatching.lock().await.take() {
            let ended = dispatching.await.context("the dispatcher broke down")?;
            ended.context("dispatching")?;
        }
        self.place.remove().await
    }
}

async fn measure<P: Place>(line: Arc<Line<P>>, length: Duration) -> Result<Ready> {
    let measuring = async move {
        let began = Instant::now();
        let mut called = Vec::new();
        while called.is_empty() || began.elapsed() < length {
            let order = Order {
                quantity: line.next.fetch_add(1, Ordering::Relaxed),
                ..ORDER.clone()
            };
            called.push((order.quantity, Instant::now()));
            work::enqueue(&line.enqueuer, &order).await?;
            wait().await;
        }
        compare(began, &called, &line.heard).await
    };
    Ok(measuring.boxed())
}

/// Somebody who enqueues by hand, and the loop that people write.
struct ByHand<P: Place> {
    place: Arc<P>,
    wake: Arc<Notify>,
    heard: Heard,
    looping: JoinHandle<Result<()>>,
}

impl<P: Place> ByHand<P> {
    async fn open(place: P) -> Result<Self> {
        let (place, wake) = (Arc::new(place), Arc::new(Notify::new()));
        let (told, heard) = mpsc::unbounded_channel();
        let mut hand = place.open_hand().await?;
        let (looped, woken) = (place.clone(), wake.clone());
        let looping = tokio::spawn(async move {
            loop {
                woken.notified().await;
                let handle = |order: Order| {
                    // Whoever listened has given up.
                    let _ = told.send((order.quantity, Instant::now()));
                };
                looped.drain_by_hand(&mut hand, handle).await?;
            }
        });
        Ok(Self {
            place,
            wake,
            heard: Mutex::new(heard),
            looping,
        })
    }

    async fn close(&self) -> Result<()> {
        self.looping.abort();
        self.place.remove().await
    }
}

async fn measure_by_hand<P: Place>(by_hand: Arc<ByHand<P>>, length: Duration) -> Result<Ready> {
    let measuring = async move {
        let began = Instant::now();
        let mut called = Vec::new();
        while called.is_empty() || began.elapsed() < length {
            called.push((ORDER.quantity, Instant::now()));
            by_hand.place.fill_by_hand(1).await?;
            by_hand.wake.notify_one();
            wait().await;
        }
        compare(began, &called, &by_hand.heard).await
    };
    Ok(measuring.boxed())
}

async fn wait() {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(GAP_MILLISECONDS))).await;
}

/// Waits until all were handled. Jobs of the same number are handled one after the other.
async fn compare(began: Instant, called: &[(i32, Instant)], heard: &Heard) -> Result<Called> {
    let mut heard = heard.lock().await;
    let mut waiting = called.to_vec();
    let mut latencies = Vec::with_capacity(called.len());
    while !waiting.is_empty() {
        let hearing = timeout(PATIENCE, heard.recv()).await;
        let (number, at) = hearing.context("a job was not run")?.ok_or("nobody listens")?;
        let place = waiting.iter().position(|(called, _)| *called == number);
        let (_, since) = waiting.remove(place.ok_or("a job was run that nobody enqueued")?);
        latencies.push(micros(at.saturating_duration_since(since)));
    }
    let count = called.len();
    Ok(Called {
        latencies,
        count,
        in_time: count,
        took: began.elapsed(),
        ..Called::default()
    })
}
