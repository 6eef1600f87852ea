//! `bench jobs`: what a job costs, from the transaction that enqueues it to its end.
//!
//! [`enqueue`] compares it with a bare transaction, [`latency`] says how long it takes until the handler begins, [`drain`] how fast jobs
//! go that have piled up, [`transaction`] the same where each is a transaction of its own, and [`backlog`] whether many rows slow it
//! down. All of it is the same on both databases. On PostgreSQL others take their turns as well: those of `bench/peers`, each as a
//! [`peer`] with a process and a database of its own.

mod work;
mod enqueue;
mod latency;
mod drain;
mod transaction;
mod backlog;
mod peer;

use crate::error::Result;
use crate::make_directory;
use crate::measure::Series;
use crate::options::{Database, JobsOptions};
use crate::outbox::place::Ground;
use crate::outbox::sqlite::Directory;
use crate::server::Server;
use peer::Peers;

pub(crate) fn series(options: &JobsOptions, server_url: Option<String>) -> Result<Vec<Series>> {
    let mut all = Vec::new();
    if let Some(url) = server_url {
        let server = Server::new(&url)?;
        let peers = match options.wants_peers() {
            true => Peers::find(&server)?,
            false => Peers::nobody(),
        };
        all.extend(series_on(&server, &peers, options));
    }
    if options.databases.wants(Database::Sqlite) {
        make_directory(&options.series.options)?;
        let directory = Directory(options.series.options.directory.clone());
        all.extend(series_on(&directory, &Peers::nobody(), options));
    }
    Ok(all)
}

fn series_on<G: Ground>(ground: &G, peers: &Peers, options: &JobsOptions) -> [Series; 5] {
    let rounds_max = if peers.is_empty() {
        usize::MAX
    } else {
        options.peer_rounds_max()
    };
    [
        enqueue::series(ground, peers, options.jobs()).rounds_at_most(rounds_max),
        latency::series(ground, peers, options.series.slice()).rounds_at_most(rounds_max),
        drain::series(ground, peers, options.jobs()).rounds_at_most(rounds_max),
        transaction::series(ground, options.jobs()),
        backlog::series(ground, options),
    ]
}
