//! `bench outbox`: what an event costs, from the transaction that publishes it to the handler that hears of it.
//!
//! [`publish`] compares a command with the same one that publishes, [`latency`] says how long it takes until somebody hears of
//! it, [`drain`] how fast a backlog goes, beside the loop that people write by hand, and [`backlog`] whether many rows slow it
//! down. All of it is the same on both databases; what differs is in [`postgres`] and [`sqlite`]. Beyond the process, and on
//! PostgreSQL alone: [`broker`] and [`push`].

pub(crate) mod place;
pub(crate) mod postgres;
pub(crate) mod sqlite;
mod publish;
mod latency;
mod drain;
mod backlog;
pub(crate) mod broker;
pub(crate) mod push;

use crate::error::Result;
use crate::make_directory;
use crate::measure::Series;
use crate::options::{Database, OutboxOptions};
use crate::server::Server;
use place::Ground;

pub(crate) fn series(options: &OutboxOptions, server_url: Option<String>) -> Result<Vec<Series>> {
    let mut all = Vec::new();
    if let Some(url) = server_url {
        let server = Server::new(&url)?;
        all.extend(series_on(&server, options));
        all.extend(broker::series(&server, options.deliveries()));
        all.extend(push::series(&server, options.subscribers()));
    }
    if options.databases.wants(Database::Sqlite) {
        make_directory(&options.series.options)?;
        all.extend(series_on(
            &sqlite::Directory(options.series.options.directory.clone()),
            options,
        ));
    }
    Ok(all)
}

fn series_on<G: Ground>(ground: &G, options: &OutboxOptions) -> [Series; 4] {
    [
        publish::series(ground),
        latency::series(ground),
        drain::series(ground, options.deliveries()),
        backlog::series(ground, options),
    ]
}
