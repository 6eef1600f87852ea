//! `cargo xtask chaos`: builds the shop and its tormentor, brings a PostgreSQL and brokers along that
//! survive being crashed, and lets them loose on each other.
//!
//! The accidents and the checker are in `crates/chaos`. The command line is declared there, too, and
//! read here only to answer `--help` and to see which servers are wanted; the words are handed on as
//! they are.

#[path = "../../crates/chaos/src/options.rs"]
#[allow(dead_code, reason = "chaos itself reads the rest")]
pub(crate) mod options;

use std::process::{Command, ExitCode};

use crate::error::{Error, Result};
use crate::service::Service;
use crate::service::nats::NATS_CHAOS;
use crate::service::postgres::POSTGRES_CHAOS;
use crate::service::rabbitmq::RABBITMQ_CHAOS;
use crate::service::redis::REDIS_CHAOS;
use crate::service::settled::{self, Settled, Terms};
use crate::{process, workspace};
use options::{Chaos, Database, Kind, Run};

const PACKAGES: [&str; 4] = ["--package", "shop", "--package", "steadfast-chaos"];

/// Builds before a server is started: a build that fails needs none.
pub(crate) fn run(chaos: &Chaos) -> Result<ExitCode> {
    process::run(workspace::cargo().arg("build").args(PACKAGES))?;
    // Not by `cargo run`: alone, each of the two would be built again with other features.
    let binaries = workspace::target_dir().join("debug");
    let mut command = Command::new(binaries.join("steadfast-chaos"));
    command.args(process::words_after("chaos"));
    command.env("CHAOS_SHOP", binaries.join("shop"));
    let started = servers(&chaos.run())
        .into_iter()
        .map(|service| Settled::settle(service, Terms::default()).map(|settled| (service, settled)))
        .collect::<Result<Vec<_>>>()?;
    let mut services = Vec::new();
    for (service, settled) in started {
        let settled = settled.ready()?;
        if let Settled::NotRun { why } = &settled {
            return Err(Error::new(format!("{} cannot be crashed: {why}", service.name)));
        }
        settled.tell(service, &mut command);
        services.push((service, settled));
    }
    if !services.is_empty() {
        eprintln!("\n{}", settled::describe(&services));
    }
    let judged = process::run_to_its_end(&mut command);
    for (_, server) in services {
        server.finish("chaos")?;
    }
    judged
}

/// What a run crashes, beside the shops.
fn servers(run: &Run) -> Vec<&'static Service> {
    let mut servers: Vec<&'static Service> = Vec::new();
    if run.database == Database::Postgres {
        servers.push(&POSTGRES_CHAOS);
    }
    // Which of them a run about the inbox takes, unless it is told, only the run itself knows: by its seed.
    if matches!(run.kind, Kind::Outbox | Kind::Inbox) {
        servers.extend([&RABBITMQ_CHAOS, &NATS_CHAOS, &REDIS_CHAOS]);
    }
    servers
}
