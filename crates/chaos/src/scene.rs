//! What clients and accidents share: the shops, the wires between them and their database, and how far the run is.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use steadfast::testing::proxy::{Fired, Proxy};
use tokio::time::sleep;

use crate::error::{Context, Result};
use crate::history::Recorder;
use crate::options::{Amounts, Database, Options};
use crate::random::Random;
use crate::server::Server;
use crate::shop::{Orders, Shop};

/// How many shops there are. Two is what it takes to meet another process.
pub(crate) const SHOPS: usize = 2;

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
}

pub(crate) struct Scene {
    pub(crate) seed: u64,
    pub(crate) amounts: Amounts,
    pub(crate) database: Database,
    /// Past the proxies.
    pub(crate) database_url: String,
    pub(crate) server: Option<Server>,
    /// One for each shop; none where there is no server.
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) shops: Vec<Shop>,
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
    pub(crate) server_url: Option<String>,
}

impl Scene {
    pub(crate) async fn set(options: &Options, place: &Place<'_>) -> Result<(Self, Vec<Orders>)> {
        let (mut server, mut proxies) = (None, Vec::new());
        let database_url = match options.database {
            Database::Sqlite => format!("sqlite://{}", place.directory.join("shop.db").display()),
            Database::Postgres => {
                let url = place
                    .server_url
                    .clone()
                    .ok_or("there is no server: run it as cargo xtask chaos")?;
                let found = Server::find(&url).await?;
                for _ in 0..SHOPS {
                    proxies.push(Proxy::start(found.address()?).await.context("starting a proxy")?);
                }
                server = Some(found);
                url
            }
        };
        let (shops, orders) = (0..SHOPS)
            .map(|number| {
                let url = proxies
                    .get(number)
                    .map_or(database_url.clone(), |proxy: &Proxy| proxy.url(&database_url));
                Shop::new(number, place.shop_binary, url, place.directory)
            })
            .unzip();
        let scene = Self {
            seed: options.seed(),
            amounts: options.amounts(),
            database: options.database,
            database_url,
            server,
            proxies,
            shops,
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

    pub(crate) fn kills(&self) -> u64 {
        self.shops.iter().map(Shop::kills).sum()
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
