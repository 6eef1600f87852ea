//! The node that pushes, in a process of its own: its memory is that of a service and its clients, and its statements go through
//! a connection that can be counted.

use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::{env, fs, process, thread};

use axum::Router;
use sqlx::postgres::PgPoolOptions;
use steadfast::{Pushes, Steadfast, StreamName};
use tokio::net::TcpListener;

use super::super::latency::Tick;
use super::super::place::TARGET;
use crate::error::{Context, Result};

/// Tells this program that it is a node, and which database is its own.
pub(crate) const URL_VARIABLE: &str = "BENCH_PUSH_NODE";

/// Where it answers clients.
pub(super) const PATH: &str = "/events";

/// A node that was started by us, and ends with us.
pub(super) struct Node {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Node {
    /// Starts one on this database, and waits until it serves.
    pub(super) async fn start(url: String) -> Result<Self> {
        let starting = tokio::task::spawn_blocking(move || {
            let program = env::current_exe()?;
            let mut child = Command::new(program)
                .env(URL_VARIABLE, url)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let mut line = String::new();
            if let Some(stdout) = child.stdout.take() {
                BufReader::new(stdout).read_line(&mut line)?;
            }
            let address = line.trim().parse().context("it did not say where it serves")?;
            Ok(Self { child, address })
        });
        let started: Result<Self> = starting.await?;
        started.context("starting a node that pushes")
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The memory it has, in bytes; `None` where nobody says.
    pub(super) fn memory(&self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kilobytes: f64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        Some(kilobytes * 1024.0)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It has nothing to lose, and may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the process of a node does.
pub(crate) async fn serve(url: &str) -> Result<()> {
    // Its input ends with whoever started it, however that came about.
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        process::exit(0);
    });
    let pool = PgPoolOptions::new().connect_lazy(url)?;
    let sf = Steadfast::new(pool).await?;
    let tell = |tick: &Tick, to: &mut Pushes| to.push(stream(), tick);
    let events = sf.push(TARGET).event(tell).start().route(async |_| Ok(vec![stream()]));
    sf.declare().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    io::stdout().flush()?;
    let served = sf.serve(listener, Router::new().route(PATH, events)).await;
    served.context("serving")
}

/// What everybody follows.
fn stream() -> StreamName {
    StreamName::topic("ticks")
}
