//! `cargo xtask bench`: builds the benches in release, brings a durable PostgreSQL and the brokers along, and runs
//! them.
//!
//! The measuring is in `crates/bench`. The command line is declared there, too, and read here only to
//! answer `--help` and to see which servers are wanted; the words are handed on as they are.

#[path = "../../crates/bench/src/options.rs"]
#[allow(dead_code, reason = "the bench itself reads the rest")]
pub(crate) mod options;

use std::process::ExitCode;

use crate::error::{Error, Result};
use crate::service::Service;
use crate::service::nats::NATS;
use crate::service::postgres::POSTGRES_BENCH;
use crate::service::rabbitmq::RABBITMQ;
use crate::service::redis::REDIS;
use crate::service::settled::{self, Settled, Terms};
use crate::{peers, process, workspace};
use options::{Bench, Database};

const PACKAGE: &str = "steadfast-bench";

/// Builds before a server is started: a build that fails needs none.
pub(crate) fn run(bench: &Bench) -> Result<ExitCode> {
    let release = ["--release", "--package", PACKAGE];
    process::run(workspace::cargo().arg("build").args(release))?;
    let mut cargo = workspace::cargo();
    cargo
        .args(["run", "--quiet"])
        .args(release)
        .arg("--")
        .args(process::words_after("bench"));
    cargo.env("BENCH_DIRECTORY", workspace::target_dir().join("bench"));
    if let Bench::Jobs(jobs) = bench
        && jobs.wants_peers()
    {
        peers::tell(&mut cargo);
    }
    let wanted = wanted(bench);
    if wanted.is_empty() {
        return process::run_to_its_end(&mut cargo);
    }
    // Nothing is installed for the sake of a figure. They start side by side, so that all of them
    // take as long as the slowest.
    let started = wanted
        .iter()
        .map(|service| Settled::settle(service, Terms::default()).map(|settled| (*service, settled)))
        .collect::<Result<Vec<_>>>()?;
    let services = started
        .into_iter()
        .map(|(service, settled)| settled.ready().map(|settled| (service, settled)))
        .collect::<Result<Vec<_>>>()?;
    for (service, settled) in &services {
        if let (Settled::NotRun { why }, true) = (settled, is_required(service, bench)) {
            return Err(Error::new(format!("PostgreSQL cannot be measured: {why}")));
        }
        settled.tell(service, &mut cargo);
    }
    eprintln!("\n{}", settled::describe(&services));
    let measured = process::run_to_its_end(&mut cargo);
    for (_, settled) in services {
        settled.finish("bench")?;
    }
    measured
}

/// The servers that a bench measures on. Cases of one that is not to be had are left out.
fn wanted(bench: &Bench) -> Vec<&'static Service> {
    let wants_postgres = bench
        .databases()
        .is_some_and(|databases| databases.wants(Database::Postgres));
    match bench {
        // SQLite has no server, and its messages come from one.
        Bench::Inbox(_) if !wants_postgres => vec![&RABBITMQ],
        _ if !wants_postgres => Vec::new(),
        Bench::Outbox(_) | Bench::Inbox(_) => vec![&POSTGRES_BENCH, &RABBITMQ, &NATS, &REDIS],
        _ => vec![&POSTGRES_BENCH],
    }
}

/// Whether somebody has asked for just this one.
fn is_required(service: &Service, bench: &Bench) -> bool {
    let is_named = bench.databases().is_some_and(|databases| databases.database.is_some());
    service.name == POSTGRES_BENCH.name && is_named
}
