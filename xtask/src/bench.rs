//! `cargo xtask bench`: builds the benches in release, brings a durable PostgreSQL along, and runs
//! them.
//!
//! The measuring is in `crates/bench`. The command line is declared there, too, and read here only to
//! answer `--help` and to see which databases are wanted; the words are handed on as they are.

#[path = "../../crates/bench/src/options.rs"]
#[allow(dead_code, reason = "the bench itself reads the rest")]
pub(crate) mod options;

use std::process::ExitCode;

use crate::error::{Error, Result};
use crate::service::postgres::POSTGRES_BENCH;
use crate::service::settled::{self, Settled, Terms};
use crate::{process, workspace};
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
    let Some(databases) = bench
        .databases()
        .filter(|databases| databases.wants(Database::Postgres))
    else {
        return process::run_to_its_end(&mut cargo);
    };
    // Nothing is installed for the sake of a figure.
    let server = Settled::settle(&POSTGRES_BENCH, Terms::default())?;
    if let (Settled::NotRun { why }, Some(_)) = (&server, databases.database) {
        return Err(Error::new(format!("PostgreSQL cannot be measured: {why}")));
    }
    server.tell(&POSTGRES_BENCH, &mut cargo);
    let services = [(&POSTGRES_BENCH, server)];
    eprintln!("\n{}", settled::describe(&services));
    let measured = process::run_to_its_end(&mut cargo);
    let [(_, server)] = services;
    server.finish("bench")?;
    measured
}
