//! The node that pushes, in a process of its own: its memory is that of a service and its clients, and its statements go through
//! a connection that can be counted.

use std::io::{self, Write};
use std::net::SocketAddr;

use axum::Router;
use sqlx::postgres::PgPoolOptions;
use steadfast::{Pushes, Steadfast, StreamName};
use tokio::net::TcpListener;

use super::super::latency::Tick;
use super::super::place::TARGET;
use crate::child::{self, Child};
use crate::error::{Context, Result};

/// Tells this program that it is a node, and which database is its own.
pub(crate) const URL_VARIABLE: &str = "BENCH_PUSH_NODE";

/// Where it answers clients.
pub(super) const PATH: &str = "/events";

/// A node that was started by us, and ends with us.
pub(super) struct Node {
    pub(super) child: Child,
    pub(super) address: SocketAddr,
}

impl Node {
    /// Starts one on this database, and waits until it serves.
    pub(super) async fn start(url: String) -> Result<Self> {
        let (child, line) = Child::start(URL_VARIABLE, url).await?.says().await?;
        let address = line
            .trim()
            .parse()
            .context("a node that pushes did not say where it serves")?;
        Ok(Self { child, address })
    }
}

/// What the process of a node does.
pub(crate) async fn serve(url: &str) -> Result<()> {
    child::end_with_parent();
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
