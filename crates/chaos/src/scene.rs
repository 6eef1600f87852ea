//! What clients and accidents share: the shops, the wires between them and their database, and how far the run is.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use steadfast::testing::proxy::{Fired, Proxy};
use tokio::time::sleep;

use crate::broker::Broker;
use crate::error::{Context, Result};
use crate::history::Recorder;
use crate::options::{Amounts, Database, Kind, Run};
use crate::random::Random;
use crate::receipts::World;
use crate::server::Server;
use crate::shop::{Orders, Role, Shop, Ways};

/// How many shops there are. Two is what it takes to meet another process.
pub(crate) const SHOPS: usize = 2;

/// How many warehouses there are, in a run that is about the inbox.
const WAREHOUSES: usize = 2;

/// How often is asked whether something has come to pass.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How long clients ask on in the calm: longer than the checker allows, so that it can tell late from never.
const HOPE: Duration = Duration::from_secs(20);

/// What happened, as far as only we know it.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) crashes: AtomicU64,
    pub(crate) connection_cuts: AtomicU64,
    pub(crate) black_holes: AtomicU64,
    /// Of each broker, in the order of [`Broker::ALL`].
    pub(crate) broker_kills: [AtomicU64; Broker::ALL.len()],
}

pub(crate) struct Scene {
    pub(crate) kind: Kind,
    pub(crate) seed: u64,
    pub(crate) amounts: Amounts,
    pub(crate) database: Database,
    /// Past the proxies.
    pub(crate) database_url: String,
    pub(crate) server: Option<Server>,
    /// That of the warehouses, if there are any.
    pub(crate) warehouse_url: Option<String>,
    /// One for each process, in their order; none where there is no server, or nobody cuts anything.
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) shops: Vec<Shop>,
    /// Where every event goes, and who helps to send it; nobody in a run that is about commands. In one that is about the inbox it is
    /// the broker between shops and warehouses.
    pub(crate) brokers: Vec<(Broker, Server)>,
    pub(crate) workers: Vec<Shop>,
    pub(crate) warehouses: Vec<Shop>,
    /// Where receipts go; nobody in a run that is about the inbox.
    pub(crate) world: Option<World>,
    pub(crate) recorder: Recorder,
    pub(crate) tally: Tally,
    finished: AtomicU64,
    calm: OnceLock<Instant>,
    /// The crash point at which the next command kills its shop.
    doom: Mutex<Option<&'static str>>,
}

/// Where the scene is set.
pub(crate) struct Place<'a> {
    pub(crate) shop_binary: &'a Path,
    /// For the history, the logs, and the file of SQLite.
    pub(crate) directory: &'a Path,
}

impl Scene {
    pub(crate) async fn set(run: &Run, place: &Place<'_>) -> Result<(Self, Vec<Orders>)> {
        let warehouses = if run.kind == Kind::Inbox { WAREHOUSES } else { 0 };
        let (mut server, mut proxies) = (None, Vec::new());
        let (database_url, mut warehouse_url) = match run.database {
            Database::Sqlite => {
                let file = |name: &str| format!("sqlite://{}", place.directory.join(name).display());
                (file("shop.db"), file("warehouse.db"))
            }
            Database::Postgres => {
                // An immediate shutdown: every backend quits where it is, and the next start recovers from the log.
                let found = server.insert(Server::find("DATABASE", "QUIT")?);
                if run.kind != Kind::Outbox {
                    for _ in 0..SHOPS + warehouses {
                        proxies.push(Proxy::start(found.address()).await.context("starting a proxy")?);
                    }
                }
                (found.url.clone(), found.url.clone())
            }
        };
        if let (Some(server), Kind::Inbox) = (&server, run.kind) {
            warehouse_url = server.create_database("warehouse").await?;
        }
        let mut brokers = Vec::new();
        match run.kind {
            Kind::Command => {}
            Kind::Outbox => {
                for broker in Broker::ALL {
                    brokers.push((broker, Server::find(broker.name(), "KILL")?));
                }
            }
            Kind::Inbox => {
                let broker = Broker::from(run.broker);
                brokers.push((broker, Server::find(broker.name(), "KILL")?));
            }
        }
        let urls: Vec<_> = brokers
            .iter()
            .map(|(_, broker): &(_, Server)| broker.url.clone())
            .collect();
        let world = match run.kind {
            Kind::Inbox => None,
            Kind::Command | Kind::Outbox => Some(World::open(place.shop_binary, place.directory).await?),
        };
        let ways = match run.kind {
            Kind::Inbox => Ways {
                source: urls.first().cloned(),
                ..Ways::default()
            },
            _ => Ways {
                sinks: urls,
                outside: world.as_ref().map(|world| world.url.clone()),
                ..Ways::default()
            },
        };
        let open = |role: Role, number: usize, url: String| {
            let (log, ways) = (place.directory.join(role.log_name(number)), ways.clone());
            Shop::new(role, number, place.shop_binary, url, ways, log)
        };
        let through = |proxy: usize, url: &str| {
            proxies
                .get(proxy)
                .map_or(url.to_owned(), |proxy: &Proxy| proxy.url(url))
        };
        let (shops, mut orders): (Vec<_>, Vec<_>) = (0..SHOPS)
            .map(|number| open(Role::Shop, number, through(number, &database_url)))
            .unzip();
        let mut workers = Vec::new();
        if run.kind == Kind::Outbox {
            let (worker, orders_of_worker) = open(Role::Worker, 0, database_url.clone());
            workers.push(worker);
            orders.push(orders_of_worker);
        }
        let (warehouses, orders_of_warehouses): (Vec<_>, Vec<_>) = (0..warehouses)
            .map(|number| open(Role::Warehouse, number, through(SHOPS + number, &warehouse_url)))
            .unzip();
        orders.extend(orders_of_warehouses);
        let scene = Self {
            kind: run.kind,
            seed: run.seed,
            amounts: run.amounts,
            database: run.database,
            database_url,
            warehouse_url: (run.kind == Kind::Inbox).then_some(warehouse_url),
            server,
            proxies,
            shops,
            brokers,
            workers,
            warehouses,
            world,
            recorder: Recorder::new(&place.directory.join("history.jsonl"))?,
            tally: Tally::default(),
            finished: AtomicU64::default(),
            calm: OnceLock::new(),
            doom: Mutex::default(),
        };
        Ok((scene, orders))
    }

    /// A command has its answer.
    pub(crate) fn finish_command(&self) {
        self.finished.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }

    /// Every process that is kept running.
    pub(crate) fn processes(&self) -> impl Iterator<Item = &Shop> {
        self.shops.iter().chain(&self.workers).chain(&self.warehouses)
    }

    pub(crate) fn kills(&self) -> u64 {
        self.processes().map(Shop::kills).sum()
    }

    pub(crate) fn broker_kills(&self) -> u64 {
        let counts = self.tally.broker_kills.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// How many COMMITs have had an accident.
    pub(crate) fn cuts(&self) -> u64 {
        self.proxies.iter().map(|proxy| proxy.counts().fired).sum()
    }

    pub(crate) fn fired(&self) -> Vec<Fired> {
        self.proxies.iter().flat_map(Proxy::fired).collect()
    }

    /// Waits until so many commands have been finished that the accident of this number is due: a run's accidents are
    /// spread over its commands, whatever the speed of the machine.
    pub(crate) async fn until_due(&self, number: u64, of: u64, random: &mut Random) {
        let part = (number as f64 + random.fraction()) / of.max(1) as f64;
        let due = self.amounts.commands as f64 * part * 0.98;
        while (self.finished() as f64) < due {
            sleep(LOOK_AGAIN).await;
        }
    }

    /// From here on nothing happens any more.
    pub(crate) fn calm(&self) {
        self.recorder.calm();
        self.calm.get_or_init(Instant::now);
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.calm.get().is_some()
    }

    /// Whether it has been calm for so long that who has no answer yet will not have one.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.calm.get().is_some_and(|calm| calm.elapsed() > HOPE)
    }

    pub(crate) fn set_doom(&self, point: Option<&'static str>) {
        *self.doom.lock().unwrap_or_else(PoisonError::into_inner) = point;
    }

    /// The fault of a command that is to kill its shop; each is taken once.
    pub(crate) fn take_doom(&self) -> Option<&'static str> {
        self.doom.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
