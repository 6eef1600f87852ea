//! `cargo xtask bench`: builds the benches in release, brings a durable PostgreSQL along, and runs
//! them.
//!
//! The measuring is in `crates/bench`. The command line is declared there, too, and read here only to
//! answer `--help` and to see which databases are wanted; the words are handed on as they are.

#[path = "../../crates/bench/src/options.rs"]
#[allow(dead_code, reason = "the bench itself reads the rest")]
pub(crate) mod options;

use std::env;
use std::ffi::OsString;
use std::process::{Command, ExitCode};

use crate::error::{Context, Error, Result};
use crate::service::log;
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
    cargo.args(["run", "--quiet"]).args(release).arg("--").args(words());
    cargo.env("BENCH_DIRECTORY", workspace::target_dir().join("bench"));
    if !bench.options().wants(Database::Postgres) {
        return measure(&mut cargo);
    }
    // Nothing is installed for the sake of a figure.
    let server = Settled::settle(&POSTGRES_BENCH, Terms::default())?;
    if let (Settled::NotRun { why }, Some(_)) = (&server, bench.options().database) {
        return Err(Error::new(format!("PostgreSQL cannot be measured: {why}")));
    }
    server.tell(&POSTGRES_BENCH, &mut cargo);
    let services = [(&POSTGRES_BENCH, server)];
    eprintln!("\n{}", settled::describe(&services));
    let measured = measure(&mut cargo);
    let [(_, server)] = services;
    finish(server)?;
    measured
}

fn measure(cargo: &mut Command) -> Result<ExitCode> {
    let status = cargo.status().context("cargo run could not be started")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What the person has written after `bench`.
fn words() -> impl Iterator<Item = OsString> {
    env::args_os().skip_while(|word| word != "bench").skip(1)
}

fn finish(server: Settled) -> Result<()> {
    let Settled::Running { mut instance, .. } = server else {
        return Ok(());
    };
    if let Some(ended) = instance.ended() {
        let tail = log::tail(&instance.log);
        eprintln!("\nPostgreSQL ended with {ended} before the bench did; {tail}");
    }
    instance.stop()
}
