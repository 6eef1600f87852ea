//! `bench inbox`: what a message from elsewhere costs, from the queue of a broker to the commit and the acknowledgement.
//!
//! Messages are those that our own sinks send, and lie in the queue before the clock starts ([`send`]). Each of them is one INSERT of
//! business. [`consume`] is ours, and [`by_hand`] is what people write with the client of the broker alone: 100 messages a
//! transaction, and one. [`memory`] looks at the process of a consumer with a long queue before it.

mod send;
mod consume;
mod by_hand;
pub(crate) mod memory;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use steadfast::{Dispatcher, EventCx};

use crate::command::order::ORDER;
use crate::error::Result;
use crate::make_directory;
use crate::measure::{Called, Case, Ready, Series, Stage};
use crate::options::{Database, InboxOptions};
use crate::outbox::broker::{self, Broker};
use crate::outbox::broker::{nats, rabbitmq, redis};
use crate::outbox::place::{Ground, Place};
use crate::outbox::postgres::OnServer;
use crate::outbox::sqlite::Directory;
use crate::server::Server;

/// Of the hand-written consumer with 100 messages a transaction.
const BATCHES_GOAL: f64 = 0.8;

/// Of the one with a transaction for each.
const WORKERS_GOAL: f64 = 2.5;

/// Of what is handled for the first time.
const DUPLICATES_GOAL: f64 = 2.0;

/// One transaction each takes longer: fewer of them are enough.
const WORKERS_PART: usize = 5;

/// Transactions at the same time, where the order is given up for it as the workers do.
const LANES_MANY: usize = 4;

/// A queue, and the database that its messages end up in.
struct Desk<P: Place, B: Broker> {
    place: P,
    broker: B,
    sink: B::Sink,
    messages: usize,
    /// What ours has handled last, to be sent once more.
    handled: Mutex<Vec<EventCx>>,
}

/// With the baselines that there are for it.
type RabbitMqDesk = Desk<OnServer, rabbitmq::Exchange>;

pub(crate) fn series(options: &InboxOptions, server_url: Option<String>) -> Result<Vec<Series>> {
    let messages = options.messages();
    let mut all = Vec::new();
    let rabbitmq_url = broker::find::<rabbitmq::Exchange>();
    if let Some(url) = server_url {
        let server = Server::new(&url)?;
        if let Some(url) = rabbitmq_url.clone() {
            all.push(against_baselines(server.clone(), url.clone(), messages));
            all.push(memory::series(server.clone(), url, options.backlog()));
        }
        all.extend(broker::find::<nats::Stream>().map(|url| alone::<_, nats::Stream>(server.clone(), url, messages)));
        all.extend(broker::find::<redis::Stream>().map(|url| alone::<_, redis::Stream>(server, url, messages)));
    }
    if let Some(url) = rabbitmq_url.filter(|_| options.databases.wants(Database::Sqlite)) {
        make_directory(&options.series.options)?;
        let directory = Directory(options.series.options.directory.clone());
        all.push(alone::<_, rabbitmq::Exchange>(directory, url, messages));
    }
    Ok(all)
}

fn against_baselines(server: Server, url: String, messages: usize) -> Series {
    const BATCHES: &str = "consume from rabbitmq by hand, 100 a transaction";
    const WORKERS: &str = "consume from rabbitmq by hand, 16 workers";
    const OURS: &str = "consume from rabbitmq";
    const LANES: &str = "consume from rabbitmq in 4 lanes";
    const DUPLICATES: &str = "duplicates from rabbitmq";
    let cases = [
        Case::new(BATCHES),
        Case::new(WORKERS),
        Case::new(OURS)
            .against(BATCHES, BATCHES_GOAL)
            .against(WORKERS, WORKERS_GOAL),
        Case::new(LANES).against(WORKERS, None),
        Case::new(DUPLICATES).against(OURS, DUPLICATES_GOAL),
    ];
    Series::new(Server::DATABASE, cases, async move |_| {
        let desk: Arc<RabbitMqDesk> = Arc::new(Desk::open(&server, &url, messages).await?);
        let removed = desk.clone();
        Ok(Stage::default()
            .gets_ready(BATCHES, &desk, |desk, _| by_hand_in_batches(desk))
            .gets_ready(WORKERS, &desk, |desk, _| by_hand_in_workers(desk))
            .gets_ready(OURS, &desk, fresh)
            .gets_ready(LANES, &desk, |desk, _| fresh_in_lanes(desk, LANES_MANY))
            .gets_ready(DUPLICATES, &desk, duplicates)
            .counted_by(server.meter())
            .ends_with(async move { removed.remove().await }))
    })
}

/// Ours, with nothing beside it but what comes twice.
fn alone<G: Ground, B: Broker>(ground: G, url: String, messages: usize) -> Series {
    let ours = format!("consume from {}", B::NAME);
    // NATS knows ids of the last two minutes by itself, and takes no second message.
    let twice = (B::NAME != nats::Stream::NAME).then(|| format!("duplicates from {}", B::NAME));
    let mut cases = vec![Case::new(&ours)];
    cases.extend(twice.iter().map(|name| Case::new(name).against(&ours, None)));
    Series::new(G::DATABASE, cases, async move |_| {
        let desk: Arc<Desk<G::Place, B>> = Arc::new(Desk::open(&ground, &url, messages).await?);
        let removed = desk.clone();
        let mut stage = Stage::default().gets_ready(ours, &desk, fresh);
        if let Some(twice) = twice {
            stage = stage.gets_ready(twice, &desk, duplicates);
        }
        Ok(stage
            .counted_by(ground.meter())
            .ends_with(async move { removed.remove().await }))
    })
}

impl<P: Place, B: Broker> Desk<P, B> {
    async fn open(ground: &impl Ground<Place = P>, url: &str, messages: usize) -> Result<Self> {
        let broker = B::open(url).await?;
        Ok(Self {
            place: ground.create().await?,
            sink: broker.sink()?,
            broker,
            messages,
            handled: Mutex::default(),
        })
    }

    /// As the queue and the tables are before each slice, with these messages in the queue.
    async fn fill(&self, events: &[EventCx]) -> Result<()> {
        self.broker.empty().await?;
        self.place.run("DELETE FROM orders".to_owned()).await?;
        self.place.tidy().await?;
        send::send(&self.sink, events).await
    }

    /// So many messages that nobody has seen.
    async fn fill_anew(&self, messages: usize) -> Result<Vec<EventCx>> {
        let events = send::events(messages, &ORDER).await?;
        self.fill(&events).await?;
        Ok(events)
    }

    /// What came out of a slice, if each message that was new became one order.
    async fn judge(&self, messages: usize, new: usize, took: Duration) -> Result<Called> {
        let orders = self.place.count_orders().await?;
        if usize::try_from(orders) != Ok(new) {
            return Err(format!("{new} new messages became {orders} orders").into());
        }
        Ok(Called {
            count: messages,
            in_time: messages,
            took,
            ..Called::default()
        })
    }

    async fn remove(&self) -> Result<()> {
        self.broker.remove().await?;
        self.place.remove().await
    }
}

async fn fresh<P: Place, B: Broker>(desk: Arc<Desk<P, B>>, _: Duration) -> Result<Ready> {
    fresh_in_lanes(desk, 1).await
}

async fn fresh_in_lanes<P: Place, B: Broker>(desk: Arc<Desk<P, B>>, lanes: usize) -> Result<Ready> {
    let events = desk.fill_anew(desk.messages).await?;
    *desk.handled.lock().unwrap_or_else(PoisonError::into_inner) = events;
    ours(desk, lanes, |messages| messages).await
}

/// The same messages once more. Their producer has sent them again, and the broker does not know.
async fn duplicates<P: Place, B: Broker>(desk: Arc<Desk<P, B>>, _: Duration) -> Result<Ready> {
    let events = desk.handled.lock().unwrap_or_else(PoisonError::into_inner).clone();
    desk.fill(&events).await?;
    ours(desk, 1, |_| 0).await
}

async fn ours<P: Place, B: Broker>(desk: Arc<Desk<P, B>>, lanes: usize, new: fn(usize) -> usize) -> Result<Ready> {
    let sf = desk.place.open(Dispatcher::default()).await?;
    let source = desk.broker.source()?;
    let consuming = async move {
        let took = consume::until::<P>(&sf, source, lanes, desk.messages).await?;
        desk.judge(desk.messages, new(desk.messages), took).await
    };
    Ok(consuming.boxed())
}

async fn by_hand_in_batches(desk: Arc<RabbitMqDesk>) -> Result<Ready> {
    desk.fill_anew(desk.messages).await?;
    let consuming = async move {
        let took = by_hand::in_batches(&desk.place.pool_by_hand, &desk.broker, desk.messages).await?;
        desk.judge(desk.messages, desk.messages, took).await
    };
    Ok(consuming.boxed())
}

async fn by_hand_in_workers(desk: Arc<RabbitMqDesk>) -> Result<Ready> {
    let messages = desk.messages.div_ceil(WORKERS_PART);
    desk.fill_anew(messages).await?;
    let consuming = async move {
        let took = by_hand::in_workers(&desk.place.pool_by_hand, &desk.broker, messages).await?;
        desk.judge(messages, messages, took).await
    };
    Ok(consuming.boxed())
}
