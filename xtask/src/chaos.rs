//! `cargo xtask chaos`: builds the shop and its tormentor, brings a PostgreSQL along that survives
//! being crashed, and lets them loose on each other.
//!
//! The accidents and the checker are in `crates/chaos`. The command line is declared there, too, and
//! read here only to answer `--help` and to see which database is wanted; the words are handed on as
//! they are.

#[path = "../../crates/chaos/src/options.rs"]
#[allow(dead_code, reason = "chaos itself reads the rest")]
pub(crate) mod options;

use std::process::{Command, ExitCode};

use crate::error::{Error, Result};
use crate::service::postgres::POSTGRES_CHAOS;
use crate::service::settled::{self, Settled, Terms};
use crate::{process, workspace};
use options::{Chaos, Database};

const PACKAGES: [&str; 4] = ["--package", "shop", "--package", "steadfast-chaos"];

/// Builds before a server is started: a build that fails needs none.
pub(crate) fn run(chaos: &Chaos) -> Result<ExitCode> {
    process::run(workspace::cargo().arg("build").args(PACKAGES))?;
    // Not by `cargo run`: alone, each of the two would be built again with other features.
    let binaries = workspace::target_dir().join("debug");
    let mut command = Command::new(binaries.join("steadfast-chaos"));
    command.args(process::words_after("chaos"));
    command.env("CHAOS_SHOP", binaries.join("shop"));
    if chaos.options().database == Database::Sqlite {
        return process::run_to_its_end(&mut command);
    }
    let terms = Terms {
        must_be_ours: true,
        ..Terms::default()
    };
    let server = Settled::settle(&POSTGRES_CHAOS, terms)?;
    if let Settled::NotRun { why } = &server {
        return Err(Error::new(format!("PostgreSQL cannot be crashed: {why}")));
    }
    server.tell(&POSTGRES_CHAOS, &mut command);
    let services = [(&POSTGRES_CHAOS, server)];
    eprintln!("\n{}", settled::describe(&services));
    let judged = process::run_to_its_end(&mut command);
    let [(_, server)] = services;
    server.finish("chaos")?;
    judged
}
