//! `bench command`: what a command costs.
//!
//! The baseline is the same INSERT in a transaction of its own ([`order`]), and the key table that people write by hand.
//! Both databases are asked the same: how many commands in a second, how many replays. PostgreSQL ([`postgres`]) also
//! behind axum ([`http`]) and with a table full of keys ([`fill`]); SQLite ([`sqlite`]) also for its group commit.

pub(crate) mod order;
pub(crate) mod keys;
mod postgres;
mod http;
mod fill;
mod sqlite;

use crate::error::Result;
use crate::make_directory;
use crate::measure::Series;
use crate::options::{CommandOptions, Database};
use crate::server::Server;

pub(crate) fn series(command: &CommandOptions, server_url: Option<String>) -> Result<Vec<Series>> {
    let mut all = Vec::new();
    if let Some(url) = server_url {
        all.extend(postgres::series(&Server::new(&url)?, command.keys()));
    }
    if command.databases.wants(Database::Sqlite) {
        make_directory(&command.series.options)?;
        all.push(sqlite::series(command.series.options.directory.clone()));
    }
    Ok(all)
}
