//! Brokers: how long an event takes until somebody beyond has it, and how fast a backlog goes there.
//!
//! The other side is a program that knows nothing of us: a consumer written with the client of the broker alone. The baseline of
//! the drain is the loop that people write, as good as it gets: a transaction that takes 500 rows, publishes them without waiting
//! in between, waits for all confirmations, deletes the rows and commits. It says of each message what a consumer cannot do
//! without, its id and its type. Both send to the same broker, and nobody consumes meanwhile.

pub(crate) mod nats;
pub(crate) mod rabbitmq;
pub(crate) mod redis;

use std::env;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use sqlx::Postgres;
use steadfast::{Confirmation, Dispatcher, Event, EventCx, Failure, Sink, Source, Steadfast};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::latency::{self, Line, Tick, Who};
use super::place::{Count, Ground, Place, TARGET, draining, fill};
use super::postgres::OnServer;
use crate::command::order::{ORDER, Order};
use crate::error::{Context, Result};
use crate::measure::{Aim, Called, Case, Ready, Series, Stage};
use crate::server::Server;

const DRAIN_GOAL: f64 = 0.8;

/// Those who share a stream, as a source of ours consumes it.
const GROUP: &str = "bench";

/// A stream or a queue of our own on a broker: as our sink sees it, and as people use it.
pub(crate) trait Broker: Sized + Send + Sync + 'static {
    const NAME: &'static str;

    /// Says where it is.
    const VARIABLE: &'static str;

    /// From the commit to the consumer, in milliseconds.
    const LATENCY_GOAL: Option<f64>;

    type Sink: Sink;
    type Source: Source;

    fn open(url: &str) -> impl Future<Output = Result<Self>> + Send;

    fn sink(&self) -> Result<Self::Sink>;

    fn source(&self) -> Result<Self::Source>;

    /// Publishes a batch as people do: one after another without waiting, and then until all of them are confirmed.
    fn publish(&self, batch: &[Written]) -> impl Future<Output = Result<()>> + Send;

    /// Consumes on a connection of its own, as another program does: hears the payload of each message, for ever.
    fn consume(&self, hear: impl Fn(&[u8]) + Send + 'static) -> impl Future<Output = Result<()>> + Send + 'static;

    /// Forgets what has come so far.
    fn empty(&self) -> impl Future<Output = Result<()>> + Send;

    fn remove(&self) -> impl Future<Output = Result<()>> + Send;
}

/// A row of the hand-written outbox: the id of a message, and its payload.
pub(crate) type Written = (Uuid, Vec<u8>);

/// The series of every broker that there is; of the others it says so.
pub(super) fn series(server: &Server, deliveries: u32) -> Vec<Series> {
    let mut all = Vec::new();
    all.extend(series_of::<nats::Stream>(server, deliveries));
    all.extend(series_of::<rabbitmq::Exchange>(server, deliveries));
    all.extend(series_of::<redis::Stream>(server, deliveries));
    all
}

fn series_of<B: Broker>(server: &Server, deliveries: u32) -> Vec<Series> {
    let Some(url) = find::<B>() else {
        return Vec::new();
    };
    vec![
        commit_to::<B>(server.clone(), url.clone()),
        drain_to::<B>(server.clone(), url, deliveries as usize),
    ]
}

/// Where it is; if nobody has said, it says so.
pub(crate) fn find<B: Broker>() -> Option<String> {
    let url = env::var(B::VARIABLE).ok().filter(|url| !url.is_empty());
    if url.is_none() {
        eprintln!("NOT RUN  {}: {} is not set", B::NAME, B::VARIABLE);
    }
    url
}

fn commit_to<B: Broker>(server: Server, url: String) -> Series {
    let name = format!("commit to {}", B::NAME);
    let goal = B::LATENCY_GOAL.map(|at_most| Aim::Median { at_most });
    let case = goal.into_iter().fold(Case::new(&name), Case::aiming);
    Series::new(Server::DATABASE, [case], async move |_| {
        let place = server.create().await?;
        let broker = Arc::new(B::open(&url).await?);
        let sink = broker.sink()?;
        let (told, heard) = mpsc::unbounded_channel();
        let declare = |sf: &Steadfast<_>| sf.sink(TARGET).events(Tick::TYPE).deliver_to(sink);
        let line = Line::open(place, Dispatcher::default(), Who::Same, declare, heard).await?;
        let consuming = broker.consume(move |payload| {
            let at = Instant::now();
            if let Ok(tick) = serde_json::from_slice::<Tick>(payload) {
                // Whoever listened has given up.
                let _ = told.send((tick.number, at));
            }
        });
        let consuming = tokio::spawn(async move {
            if let Err(error) = consuming.await {
                eprintln!("consuming from {}: {error}", B::NAME);
            }
        });
        let line = Arc::new(line);
        Ok(Stage::default()
            .gets_ready(name, &line, latency::measure)
            .counted_by(server.meter())
            .ends_with({
                let line = line.clone();
                async move {
                    consuming.abort();
                    line.close().await?;
                    broker.remove().await
                }
            }))
    })
}

/// A database, and where its events go.
struct Relay<B: Broker> {
    place: OnServer,
    publisher: Steadfast<Postgres>,
    broker: B,
    /// Connected since the first round, as the hand-written loop is.
    sink: Arc<B::Sink>,
    deliveries: usize,
}

fn drain_to<B: Broker>(server: Server, url: String, deliveries: usize) -> Series {
    let by_hand_name = format!("drain to {} by hand", B::NAME);
    let name = format!("drain to {}", B::NAME);
    let cases = [
        Case::new(&by_hand_name),
        Case::new(&name).against(&by_hand_name, DRAIN_GOAL),
    ];
    Series::new(Server::DATABASE, cases, async move |_| {
        let relay = Arc::new(Relay::<B>::open(server.create().await?, &url, deliveries).await?);
        let removed = relay.clone();
        Ok(Stage::default()
            .gets_ready(by_hand_name, &relay, by_hand)
            .gets_ready(name, &relay, ours)
            .counted_by(server.meter())
            .ends_with(async move {
                removed.broker.remove().await?;
                removed.place.remove().await
            }))
    })
}

impl<B: Broker> Relay<B> {
    async fn open(place: OnServer, url: &str, deliveries: usize) -> Result<Self> {
        let broker = B::open(url).await?;
        let sink = Arc::new(broker.sink()?);
        let publisher = place.open(Dispatcher::off()).await?;
        declare(&publisher, &sink, Arc::default());
        publisher.declare().await.context("declaring the sink")?;
        Ok(Self {
            place,
            publisher,
            broker,
            sink,
            deliveries,
        })
    }

    /// As the tables and the broker are before each drain.
    async fn tidy(&self) -> Result<()> {
        self.broker.empty().await?;
        self.place.tidy().await
    }
}

async fn by_hand<B: Broker>(relay: Arc<Relay<B>>, _: Duration) -> Result<Ready> {
    relay.tidy().await?;
    relay.place.fill_by_hand(relay.deliveries).await?;
    let relaying = async move {
        let began = Instant::now();
        let count = relay.place.relay_by_hand(&relay.broker).await?;
        if count != relay.deliveries {
            return Err(format!("{count} deliveries were sent by hand, not {}", relay.deliveries).into());
        }
        Ok(Called {
            count,
            in_time: count,
            took: began.elapsed(),
            ..Called::default()
        })
    };
    Ok(relaying.boxed())
}

async fn ours<B: Broker>(relay: Arc<Relay<B>>, _: Duration) -> Result<Ready> {
    relay.tidy().await?;
    fill(&relay.publisher, &ORDER, relay.deliveries).await?;
    let sf = relay.place.open(Dispatcher::default()).await?;
    let count = Arc::new(Count::until(relay.deliveries));
    declare(&sf, &relay.sink, count.clone());
    Ok(draining(sf, count))
}

fn declare(sf: &Steadfast<Postgres>, sink: &Arc<impl Sink>, count: Arc<Count>) {
    let sink = sink.clone();
    let counted = Counted { sink, count };
    sf.sink(TARGET).events(Order::TYPE).deliver_to(counted);
}

/// A sink that counts what was confirmed.
struct Counted<S> {
    sink: Arc<S>,
    count: Arc<Count>,
}

impl<S: Sink> Sink for Counted<S> {
    async fn send(&self, batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
        let verdicts = self.sink.send(batch).await;
        for _ in verdicts.iter().filter(|verdict| verdict.is_ok()) {
            self.count.hear();
        }
        verdicts
    }

    fn batch_max(&self) -> usize {
        self.sink.batch_max()
    }
}

/// A name that nobody else has on the broker.
fn new_name() -> String {
    format!("bench_{}", Uuid::new_v4().simple())
}
