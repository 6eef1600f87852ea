//! Other projects: the programs of `bench/peers`, each with a process for each slice and a database of its own on the same server.
//!
//! `cargo xtask bench` builds them and says where they are. A program is called with the URL of its database, the case, an amount and how
//! many call at once; it gets ready, says so, waits for a line, and then says what came out in one line of JSON.

use std::env;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde::Deserialize;

use crate::child::Child;
use crate::error::{Context, Result};
use crate::measure::{CALLERS, Called, Ready, Stage};
use crate::meter::{Reading, Used};
use crate::server::{Scratch, Server};

/// Who there is, as JSON.
const VARIABLE: &str = "BENCH_PEERS";

/// What a program says when it can begin.
const READY: &str = "ready";

/// A project, and how its program is started.
#[derive(Clone, Debug, Deserialize)]
struct Peer {
    name: String,
    command: Vec<String>,
}

/// All who take part.
#[derive(Clone)]
pub(super) struct Peers {
    server: Option<Server>,
    peers: Vec<Peer>,
}

/// What a program is asked for.
#[derive(Clone, Copy)]
pub(super) enum Case {
    Enqueue,
    Drain,
    Latency,
}

/// A project with its database.
struct Guest {
    peer: Peer,
    server: Server,
    scratch: Scratch,
    case: Case,
    amount: usize,
}

/// Those who took part in a series.
pub(super) struct Guests(Vec<Arc<Guest>>);

/// What came out.
#[derive(Deserialize)]
struct Figures {
    count: usize,
    seconds: f64,
    latencies_us: Vec<u64>,
}

impl Peers {
    pub(super) fn find(server: &Server) -> Result<Self> {
        let Ok(peers) = env::var(VARIABLE) else {
            eprintln!("NOT RUN  other projects: {VARIABLE} is not set; cargo xtask bench builds them");
            return Ok(Self::nobody());
        };
        Ok(Self {
            server: Some(server.clone()),
            peers: serde_json::from_str(&peers).context(format!("reading {VARIABLE}"))?,
        })
    }

    pub(super) fn nobody() -> Self {
        Self {
            server: None,
            peers: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// What their cases are called, beside ours of this name.
    pub(super) fn names(&self, ours: &str) -> impl Iterator<Item = String> {
        self.peers.iter().map(move |peer| peer.case(ours))
    }

    /// Gives each of them a database, and says what their cases do.
    pub(super) async fn take_part(
        self,
        mut stage: Stage,
        ours: &str,
        case: Case,
        amount: usize,
    ) -> Result<(Stage, Guests)> {
        let mut guests = Vec::new();
        for (peer, server) in self.peers.into_iter().zip(self.server.iter().cycle()) {
            let guest = Arc::new(Guest {
                scratch: server.create_database().await?,
                server: server.clone(),
                peer,
                case,
                amount,
            });
            stage = stage.gets_ready(guest.peer.case(ours), &guest, |guest, _| get_ready(guest));
            guests.push(guest);
        }
        Ok((stage, Guests(guests)))
    }
}

impl Peer {
    fn case(&self, ours: &str) -> String {
        format!("{ours} by {}", self.name)
    }
}

impl Case {
    fn word(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Drain => "drain",
            Self::Latency => "latency",
        }
    }
}

impl Guests {
    pub(super) async fn remove(self) -> Result<()> {
        for guest in self.0 {
            guest.scratch.clone().remove().await?;
        }
        Ok(())
    }
}

/// Its tables are tidied up as ours are. It fills them itself, and the server has a look at them before it counts.
async fn get_ready(guest: Arc<Guest>) -> Result<Ready> {
    guest.scratch.run("VACUUM (ANALYZE)").await?;
    guest.server.checkpoint().await?;
    let (child, line) = guest.start().await?.says().await?;
    if line.trim_end() != READY {
        return Err(format!("{} did not get ready", guest.peer.name).into());
    }
    guest.scratch.run("ANALYZE").await?;
    Ok(async move { guest.measure(child).await }.boxed())
}

impl Guest {
    async fn start(&self) -> Result<Child> {
        let (program, words) = self.peer.command.split_first().ok_or("a peer has no program")?;
        let mut command = Command::new(program);
        command
            .args(words)
            .arg(self.scratch.url())
            .arg(self.case.word())
            .args([self.amount, CALLERS].map(|number| number.to_string()));
        Child::run(command).await.context(&self.peer.name)
    }

    /// The meter reads our own process and the server; what the peer's has used comes on top.
    async fn measure(&self, mut child: Child) -> Result<Called> {
        let before = Reading::of_process(child.pid());
        child.nudge()?;
        let (child, line) = child.says().await?;
        let used = Reading::of_process(child.pid()).since(&before);
        let doing = format!("{} did not say what came out", self.peer.name);
        let figures: Figures = serde_json::from_str(&line).context(doing)?;
        if figures.count != self.amount {
            let (name, count, amount) = (&self.peer.name, figures.count, self.amount);
            return Err(format!("{name} did {count} jobs, not {amount}").into());
        }
        let latencies = figures.latencies_us.into_iter();
        Ok(Called {
            latencies: latencies
                .map(|latency| u32::try_from(latency).unwrap_or(u32::MAX))
                .collect(),
            count: figures.count,
            in_time: figures.count,
            took: Duration::from_secs_f64(figures.seconds),
            used: Used {
                cpu_us: used.cpu_us,
                ..Used::default()
            },
            process: Some(child),
        })
    }
}
