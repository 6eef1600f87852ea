//! A process of the shop, a worker beside it, or a warehouse: started again whenever it ends, whoever ended it.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::broker::SINK_NAME;
use crate::error::{Context, Result};
use crate::history::{Operation, Recorder};

/// How often a shop purges. Often enough that it meets the clients.
const PURGE_EVERY: &str = "500ms";

/// How long to wait before a shop that could not open is started again: its server may be starting, too.
const START_PAUSE: Duration = Duration::from_millis(100);

/// How long a shop may take to open, or to close: the drain of 25 seconds and what comes before it.
const PATIENCE: Duration = Duration::from_secs(60);

/// What they log where messages come from a broker: as by themselves, and which of them came again.
const LOGGED: &str = "info,sqlx=warn,steadfast::telemetry=debug";

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It sells, and delivers.
    Shop,
    /// It delivers.
    Worker,
    /// It keeps the stock of shops on another database.
    Warehouse,
}

impl Role {
    pub(crate) fn log_name(self, number: usize) -> String {
        format!("{}-{number}.log", self.name())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Shop => "shop",
            Self::Worker => "worker",
            Self::Warehouse => "warehouse",
        }
    }
}

/// Where events of a process go, and where others come from.
#[derive(Clone, Default)]
pub(crate) struct Ways {
    /// Where every event goes.
    pub(crate) sinks: Vec<String>,
    /// The broker between shops and warehouses.
    pub(crate) source: Option<String>,
    /// Where mail goes.
    pub(crate) outside: Option<String>,
}

/// A place where a shop runs: one process after the other.
pub(crate) struct Shop {
    pub(crate) role: Role,
    number: usize,
    binary: PathBuf,
    database_url: String,
    ways: Ways,
    /// What happens to a delivery of the next process, if anything does.
    fault: Mutex<Option<String>>,
    pub(crate) log: PathBuf,
    orders: mpsc::UnboundedSender<Order>,
    /// Where the one that opened last listens; nobody may be there any more.
    address: watch::Sender<Option<SocketAddr>>,
    is_open: watch::Sender<bool>,
    kills: AtomicU64,
    restarts: AtomicU64,
}

/// What can be done to the process of the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Kill,
    Terminate,
    /// Terminate, and do not start it again.
    Close,
}

/// What a shop is to do next; for the one who [keeps](Shop::keep) it.
pub(crate) type Orders = mpsc::UnboundedReceiver<Order>;

impl Shop {
    pub(crate) fn new(
        role: Role,
        number: usize,
        binary: &Path,
        database_url: String,
        ways: Ways,
        log: PathBuf,
    ) -> (Self, Orders) {
        let (orders, receiver) = mpsc::unbounded_channel();
        let shop = Self {
            role,
            number,
            binary: binary.to_owned(),
            database_url,
            ways,
            fault: Mutex::default(),
            log,
            orders,
            address: watch::Sender::default(),
            is_open: watch::Sender::default(),
            kills: AtomicU64::default(),
            restarts: AtomicU64::default(),
        };
        (shop, receiver)
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        *self.address.borrow()
    }

    /// How often it was ended by `kill -9`, from outside or by its own lab.
    pub(crate) fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }

    /// How often it was asked to end and did so in order.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// For people.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.role.name(), self.number)
    }

    /// Lets something happen to a delivery of the next process.
    pub(crate) fn set_fault(&self, fault: String) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }

    pub(crate) fn order(&self, order: Order) {
        // Nobody is there to listen only when the run is over.
        let _ = self.orders.send(order);
    }

    pub(crate) async fn until_open(&self) -> Result<()> {
        self.until(true, "open").await
    }

    /// Waits until the process that has opened has ended.
    pub(crate) async fn until_ended(&self) -> Result<()> {
        self.until(false, "end").await
    }

    async fn until(&self, is_open: bool, name: &str) -> Result<()> {
        let mut state = self.is_open.subscribe();
        let waiting = timeout(PATIENCE, state.wait_for(|state| *state == is_open)).await;
        let log = self.log.display();
        waiting
            .context(format!("{} did not {name} within {PATIENCE:?}; see {log}", self.name()))?
            .map(drop)
            .context("waiting for a shop")
    }

    /// Runs one process after the other until it is told to close.
    pub(crate) async fn keep(&self, recorder: &Recorder, mut orders: Orders) -> Result<()> {
        let name = self.name();
        loop {
            let mut child = self.start()?;
            let (status, last_order) = self.attend(&mut child, &mut orders).await?;
            let was_open = self.is_open.send_replace(false);
            recorder.accident(format!("{name} has ended: {status}"));
            match (status.signal(), last_order) {
                (_, Some(Order::Close)) if status.success() => return Ok(()),
                (Some(SIGKILL), _) => drop(self.kills.fetch_add(1, Ordering::Relaxed)),
                (None, Some(Order::Terminate)) if status.success() => {
                    self.restarts.fetch_add(1, Ordering::Relaxed);
                }
                // It has no handler for the signal yet when it has just opened.
                (Some(SIGTERM), Some(Order::Terminate)) => {}
                // The server may be away.
                (None, None) if !was_open => sleep(START_PAUSE).await,
                _ => {
                    let log = self.log.display();
                    return Err(format!("{name} ended by itself ({status}, {last_order:?}); see {log}").into());
                }
            }
        }
    }

    fn start(&self) -> Result<Child> {
        let payments = Operation::Payment;
        let retention = format!("{}={}ms", payments.name(), payments.retention().as_millis());
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let mut command = Command::new(&self.binary);
        match self.role {
            Role::Shop => command.args(["serve", "--retention", &retention]),
            Role::Worker => command.arg("worker"),
            Role::Warehouse => command.arg("warehouse"),
        };
        let Ways { sinks, source, outside } = &self.ways;
        command.args(sinks.iter().flat_map(|sink| ["--sink", sink]));
        command.args(source.iter().flat_map(|source| ["--source", source]));
        command.args(outside.iter().flat_map(|outside| ["--outside", outside]));
        match self.role {
            Role::Shop | Role::Worker => command.args(["--sink-name", SINK_NAME]),
            Role::Warehouse => command.args(["--source-name", SINK_NAME]),
        };
        match source {
            Some(_) => command.env("RUST_LOG", LOGGED),
            None => command.env_remove("RUST_LOG"),
        };
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(fault) = fault {
            command.args(["--fault", &fault]);
        }
        command
            .args(["--lab", "--listen", "127.0.0.1:0", "--purge-every", PURGE_EVERY])
            .env("DATABASE_URL", &self.database_url)
            .env("WAREHOUSE_DATABASE_URL", &self.database_url)
            // Panics are a matter of course here.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.context(self.log.display())?)
            .kill_on_drop(true);
        command.spawn().context(format!("starting {}", self.binary.display()))
    }

    /// Does to a process what is ordered, until it has ended. Tells how, and what the last order was.
    async fn attend(&self, child: &mut Child, orders: &mut Orders) -> Result<(ExitStatus, Option<Order>)> {
        let stdout = child.stdout.take().ok_or("a shop without a standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        let (mut is_talking, mut last_order) = (true, None);
        loop {
            tokio::select! {
                status = child.wait() => return Ok((status.context("waiting for a shop")?, last_order)),
                line = lines.next_line(), if is_talking => match line {
                    Ok(Some(line)) => self.hear(&line),
                    _ => is_talking = false,
                },
                Some(order) = orders.recv() => {
                    last_order = Some(order);
                    match order {
                        Order::Kill => child.start_kill().context("killing a shop")?,
                        Order::Terminate | Order::Close => signal("TERM", child.id()).await?,
                    }
                }
            }
        }
    }

    /// The shop says where it listens, on a line of its own.
    fn hear(&self, line: &str) {
        if let Some(address) = line.strip_prefix("http://").and_then(|address| address.parse().ok()) {
            self.address.send_replace(Some(address));
            self.is_open.send_replace(true);
        }
    }
}

/// Sends a signal to a process; one that has just ended needs none.
pub(crate) async fn signal(name: &str, pid: Option<u32>) -> Result<()> {
    let Some(pid) = pid else { return Ok(()) };
    let mut kill = Command::new("kill");
    kill.args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null());
    kill.status().await.map(drop).context("running kill")
}
