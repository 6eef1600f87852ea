//! Push: how long it takes from a commit to live clients, and what each of them costs.
//!
//! The node is a process of its own ([`node`]), another one publishes, and the clients are real connections ([`subscriber`]) of
//! this one. All of them follow the same stream: an event is appended and read once, and written to each.

pub(crate) mod node;
mod subscriber;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sqlx::{ConnectOptions, Postgres};
use steadfast::Dispatcher;
use steadfast::testing::proxy::Proxy;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::latency::{PATIENCE, Ticker};
use super::place::{Ground, Place};
use super::postgres::OnServer;
use crate::error::{Context, Result};
use crate::measure::{Aim, Called, Case, Ready, Series, Stage, micros};
use crate::meter::{Meter, Process, Used};
use crate::server::Server;
use node::Node;
use subscriber::Subscriber;

/// The events of a case are the same; what differs now and then is how often the node looks by the clock.
const STATEMENTS_GOAL: f64 = 1.1;

/// What the reader of a node says to hear of streams, once.
const LISTEN: &str = "LISTEN \"steadfast_streams\"";

/// Where the clients and the proxy would be counted.
const UNMETERED: Meter = Meter {
    server: None,
    process: Process::Nobodys,
};

/// Which of the subscribers counts.
#[derive(Clone, Copy)]
enum Who {
    First,
    Median,
    Last,
}

/// A node, and those who follow it.
struct Audience {
    place: OnServer,
    ticker: Ticker<Postgres>,
    node: Node,
    /// Between the node and its database, if its statements are counted.
    proxy: Option<Proxy>,
    told: mpsc::UnboundedSender<(u64, Instant)>,
    heard: Mutex<mpsc::UnboundedReceiver<(u64, Instant)>>,
    subscribers: Mutex<JoinSet<()>>,
}

/// How a node gets to its database.
enum Way {
    Direct,
    Counted,
}

pub(super) fn series(server: &Server, subscribers: u32) -> [Series; 3] {
    let subscribers = subscribers as usize;
    [
        latency(server.clone(), subscribers),
        statements(server.clone(), subscribers),
        memory(server.clone(), subscribers),
    ]
}

fn latency(server: Server, subscribers: usize) -> Series {
    let one = "commit to 1 subscriber".to_owned();
    let many = |who: &str| format!("commit to {subscribers} subscribers, the {who}");
    let many = [
        (many("first"), Who::First),
        (many("median"), Who::Median),
        (many("last"), Who::Last),
    ];
    let names = std::iter::once(&one).chain(many.iter().map(|(name, _)| name));
    let cases: Vec<_> = names.map(Case::new).collect();
    Series::new(Server::DATABASE, cases, async move |_| {
        let alone = Arc::new(Audience::open(&server, Way::Direct, 1).await?);
        let crowd = Arc::new(Audience::open(&server, Way::Direct, subscribers).await?);
        let all = [alone.clone(), crowd.clone()];
        let mut stage = Stage::default()
            .counted_by(Meter {
                process: Process::Another(crowd.node.child.pid()),
                ..server.meter()
            })
            .gets_ready(one, &alone, |alone, length| measure(alone, length, Who::Last));
        for (name, who) in many {
            stage = stage.gets_ready(name, &crowd, move |crowd, length| measure(crowd, length, who));
        }
        Ok(stage.ends_with(remove(all)))
    })
}

fn statements(server: Server, subscribers: usize) -> Series {
    let one = "statements for 1 subscriber".to_owned();
    let many = format!("statements for {subscribers} subscribers");
    let no_more = Aim::Statements {
        baseline: one.clone(),
        at_most: STATEMENTS_GOAL,
    };
    let cases = [Case::new(&one), Case::new(&many).aiming(no_more)];
    Series::new(Server::DATABASE, cases, async move |_| {
        let alone = Arc::new(Audience::open(&server, Way::Counted, 1).await?);
        let crowd = Arc::new(Audience::open(&server, Way::Counted, subscribers).await?);
        let all = [alone.clone(), crowd.clone()];
        Ok(Stage::default()
            .gets_ready(one, &alone, count_statements)
            .gets_ready(many, &crowd, count_statements)
            .counted_by(UNMETERED)
            .ends_with(remove(all)))
    })
}

fn memory(server: Server, subscribers: usize) -> Series {
    let name = format!("memory of {subscribers} subscribers");
    Series::new(Server::DATABASE, [Case::new(&name)], async move |_| {
        let shared = Arc::new((server, subscribers));
        Ok(Stage::default().gets_ready(name, &shared, weigh).counted_by(UNMETERED))
    })
}

async fn remove(all: impl IntoIterator<Item = Arc<Audience>>) -> Result<()> {
    for audience in all {
        audience.place.remove().await?;
    }
    Ok(())
}

impl Audience {
    async fn open(server: &Server, way: Way, subscribers: usize) -> Result<Self> {
        allow_many_files()?;
        let place = server.create().await?;
        let mut options = (*place.pool().connect_options()).clone();
        let proxy = match way {
            Way::Direct => None,
            Way::Counted => {
                let upstream = format!("{}:{}", options.get_host(), options.get_port());
                Some(Proxy::start(upstream).await.context("starting the proxy")?)
            }
        };
        if let Some(proxy) = &proxy {
            options = options.host("127.0.0.1").port(proxy.port());
        }
        let node = Node::start(options.to_url_lossy().into()).await?;
        let (told, heard) = mpsc::unbounded_channel();
        let audience = Self {
            ticker: Ticker::new(place.open(Dispatcher::off()).await?),
            place,
            node,
            proxy,
            told,
            heard: Mutex::new(heard),
            subscribers: Mutex::default(),
        };
        audience.grow(subscribers).await?;
        audience.has_one_ear()?;
        Ok(audience)
    }

    /// Lets so many more subscribers in, and one event reach everybody.
    async fn grow(&self, count: usize) -> Result<()> {
        let mut subscribers = self.subscribers.lock().await;
        for _ in 0..count {
            let subscriber = Subscriber::connect(self.node.address).await?;
            subscribers.spawn(subscriber.listen(self.told.clone()));
        }
        let count = subscribers.len();
        drop(subscribers);
        let tick = self.ticker.tick().await?;
        self.hear(&[tick], count).await.map(drop)
    }

    /// However many follow, the node listens to the database once.
    fn has_one_ear(&self) -> Result<()> {
        let Some(proxy) = &self.proxy else { return Ok(()) };
        let said = proxy.statements();
        match said.iter().filter(|statement| statement.contains(LISTEN)).count() {
            1 => Ok(()),
            count => Err(format!("the node listens {count} times to its streams, not once: {said:#?}").into()),
        }
    }

    /// Waits until each of so many subscribers has heard each event, and says how long each took, in order.
    async fn hear(&self, committed: &[(u64, Instant)], subscribers: usize) -> Result<Vec<Vec<Duration>>> {
        let since: HashMap<_, _> = committed.iter().copied().collect();
        let mut took: HashMap<u64, Vec<Duration>> = HashMap::new();
        let mut heard = self.heard.lock().await;
        for _ in 0..committed.len() * subscribers {
            let hearing = timeout(PATIENCE, heard.recv()).await;
            let (number, at) = hearing.context("an event was not pushed")?.ok_or("nobody listens")?;
            let since = since.get(&number).ok_or("an event was pushed that nobody published")?;
            took.entry(number)
                .or_default()
                .push(at.saturating_duration_since(*since));
        }
        for all in took.values_mut() {
            if all.len() != subscribers {
                return Err(format!("an event was heard by {}, not by {subscribers}", all.len()).into());
            }
            all.sort_unstable();
        }
        Ok(took.into_values().collect())
    }

    async fn subscribers(&self) -> usize {
        self.subscribers.lock().await.len()
    }
}

async fn measure(audience: Arc<Audience>, length: Duration, who: Who) -> Result<Ready> {
    let measuring = async move {
        let began = Instant::now();
        let committed = audience.ticker.tick_for(length).await?;
        let took = audience.hear(&committed, audience.subscribers().await).await?;
        let chosen = took.iter().map(|all| match who {
            Who::First => all.first(),
            Who::Median => all.get(all.len() / 2),
            Who::Last => all.last(),
        });
        Ok(Called {
            latencies: chosen.flatten().copied().map(micros).collect(),
            count: committed.len(),
            in_time: committed.len(),
            took: began.elapsed(),
            ..Called::default()
        })
    };
    Ok(measuring.boxed())
}

async fn count_statements(audience: Arc<Audience>, length: Duration) -> Result<Ready> {
    let counting = async move {
        let proxy = audience.proxy.as_ref().ok_or("there is no proxy")?;
        proxy.reset_counts();
        let began = Instant::now();
        let committed = audience.ticker.tick_for(length).await?;
        audience.hear(&committed, audience.subscribers().await).await?;
        Ok(Called {
            count: committed.len(),
            in_time: committed.len(),
            took: began.elapsed(),
            used: Used {
                statements: Some(proxy.counts().statements as f64),
                ..Used::default()
            },
            ..Called::default()
        })
    };
    Ok(counting.boxed())
}

/// A fresh node each time, since memory that was given back may stay with its process. What it takes for the first subscriber is
/// not counted: it is the same for any number.
async fn weigh(shared: Arc<(Server, usize)>, _: Duration) -> Result<Ready> {
    let (server, subscribers) = &*shared;
    let (audience, subscribers) = (Audience::open(server, Way::Direct, 1).await?, *subscribers);
    let weighing = async move {
        let before = audience.node.child.memory();
        let began = Instant::now();
        audience.grow(subscribers).await?;
        let took = began.elapsed();
        let grown = audience
            .node
            .child
            .memory()
            .zip(before)
            .map(|(after, before)| after - before);
        audience.place.remove().await?;
        Ok(Called {
            count: subscribers,
            in_time: subscribers,
            took,
            used: Used {
                memory_bytes: grown,
                ..Used::default()
            },
            ..Called::default()
        })
    };
    Ok(weighing.boxed())
}

/// As many files as we may open: each subscriber is one here and one in the node, and shells often allow 1,024.
fn allow_many_files() -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, limit).context("allowing more open files")
}
