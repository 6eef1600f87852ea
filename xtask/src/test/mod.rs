//! `cargo xtask test`: every test, with the services they need.
//!
//! The services are settled first and shown in a table; then cargo runs; at the end, what was not
//! run is said again, because nobody scrolls up. On a server that was given, tests leave databases
//! named `steadfast_test_*` behind; ours vanish with their server.

mod arguments;

use std::ffi::OsString;
use std::iter;
use std::process::{Command, ExitCode, ExitStatus};
use std::thread::sleep;
use std::time::Instant;

use clap::builder::PossibleValuesParser;

use crate::error::{Context, Error, Result};
use crate::python::{self, Python};
use crate::service::settled::{self, Settled, Terms};
use crate::service::{SERVICES, Service, log};
use crate::{process, table, workspace};

/// Run every test, with the services they need
#[derive(clap::Args)]
pub(crate) struct TestArgs {
    /// Fail before the first test if a service cannot be run
    #[arg(long, value_name = "SERVICE", value_delimiter = ',', value_parser = service_names())]
    require: Vec<String>,

    /// Never install a package, even as root
    #[arg(long)]
    no_install: bool,

    /// The quick loop: start no service and skip the tests that need one
    #[arg(long, value_enum, conflicts_with = "require")]
    only: Option<Only>,

    /// Keep the data directories of private servers
    #[arg(long)]
    keep: bool,

    /// Passed to cargo test; what follows another `--` is passed to the test binaries
    #[arg(last = true, value_name = "CARGO TEST ARGUMENT")]
    extra: Vec<OsString>,
}

/// Stores that need no server.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Only {
    Sqlite,
}

/// Why nothing that needs to be found or started is there in the quick loop.
const NOT_ASKED_FOR: &str = "--only sqlite was asked for";

fn service_names() -> PossibleValuesParser {
    iter::once("all")
        .chain(SERVICES.iter().map(|service| service.name))
        .chain([python::NAME])
        .collect::<Vec<_>>()
        .into()
}

/// Settles the services, runs cargo test, and stops what was started.
pub(crate) fn run(arguments: &TestArgs) -> Result<ExitCode> {
    let started = SERVICES
        .iter()
        .map(|service| settle(service, arguments).map(|settled| (*service, settled)))
        .collect::<Result<Vec<_>>>()?;
    let python = settle_python(arguments)?;
    // They start side by side, so that all of them take as long as the slowest.
    let mut services = started
        .into_iter()
        .map(|(service, settled)| settled.ready().map(|settled| (service, settled)))
        .collect::<Result<Vec<_>>>()?;
    eprintln!("\n{}", settled::describe_with(&services, Some(python.describe())));

    let start = Instant::now();
    let status = watch(&mut cargo_test(&services, &python, &arguments.extra), &mut services)?;
    eprintln!("\ncargo test: {status}, {}", table::seconds(start.elapsed()));

    let sound = finish(services, status, arguments.keep)?;
    if let Python::NotRun { why } = python {
        eprintln!("NOT RUN  {}: {why}", python::NAME);
    }
    Ok(if status.success() && sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn settle(service: &'static Service, arguments: &TestArgs) -> Result<Settled> {
    if arguments.only.is_some() {
        let why = NOT_ASKED_FOR.to_owned();
        return Ok(Settled::NotRun { why });
    }
    let terms = Terms {
        may_install: !arguments.no_install,
        keep: arguments.keep,
    };
    match Settled::settle(service, terms)? {
        Settled::NotRun { why } => refuse_if_required(service.name, &why, arguments).map(|()| Settled::NotRun { why }),
        settled => Ok(settled),
    }
}

fn settle_python(arguments: &TestArgs) -> Result<Python> {
    if arguments.only.is_some() {
        let why = NOT_ASKED_FOR.to_owned();
        return Ok(Python::NotRun { why });
    }
    let python = Python::settle(!arguments.no_install);
    if let Python::NotRun { why } = &python {
        refuse_if_required(python::NAME, why, arguments)?;
    }
    Ok(python)
}

fn refuse_if_required(name: &str, why: &str, arguments: &TestArgs) -> Result<()> {
    match is_required(name, &arguments.require) {
        true => Err(Error::new(format!("{name} is required, but: {why}"))),
        false => Ok(()),
    }
}

fn is_required(name: &str, required: &[String]) -> bool {
    required.iter().any(|wanted| wanted == "all" || wanted == name)
}

fn cargo_test(services: &[(&Service, Settled)], python: &Python, extra: &[OsString]) -> Command {
    let mut skipped = Vec::new();
    let mut cargo = workspace::cargo();
    for (service, settled) in services {
        settled.tell(service, &mut cargo);
        if settled.url().is_none() {
            skipped.extend(service.test_paths());
        }
    }
    match python.path() {
        Some(path) => drop(cargo.env(python::VARIABLE, path)),
        None => {
            cargo.env_remove(python::VARIABLE);
            skipped.push(python::TEST_PATH.to_owned());
        }
    }
    cargo.args(arguments::for_cargo_test(extra, &skipped));
    cargo
}

/// Waits for cargo and says at once when a server goes away under the tests.
fn watch(cargo: &mut Command, services: &mut [(&Service, Settled)]) -> Result<ExitStatus> {
    let mut child = cargo.spawn().context("cargo test could not be started")?;
    let mut missed = Vec::new();
    loop {
        if let Some(status) = child.try_wait().context("cargo test could not be waited for")? {
            return Ok(status);
        }
        for (service, settled) in services.iter_mut() {
            let Settled::Running { instance, .. } = settled else {
                continue;
            };
            if let Some(ended) = instance.ended().filter(|_| !missed.contains(&service.name)) {
                missed.push(service.name);
                eprintln!("\n{} ended with {ended} while the tests were running", service.name);
            }
        }
        sleep(process::LOOK_AGAIN);
    }
}

/// Stops our servers and says what a person has to know; `false` if a server did not last.
fn finish(services: Vec<(&Service, Settled)>, status: ExitStatus, keep: bool) -> Result<bool> {
    let mut sound = true;
    for (service, settled) in services {
        let name = service.name;
        match settled {
            Settled::Given { .. } => {}
            Settled::Running { mut instance, .. } => {
                let ended = instance.ended();
                if let Some(ended) = ended {
                    sound = false;
                    eprintln!("\n{name} did not last: it ended with {ended} before the tests did");
                }
                if ended.is_some() || !status.success() {
                    eprintln!("\n{name}: {}", log::tail(&instance.log));
                }
                if let Some(home) = instance.home.as_ref().filter(|_| keep) {
                    eprintln!("{name}: its data is kept in {}", home.display());
                }
                instance.stop()?;
            }
            Settled::NotRun { why } => eprintln!("NOT RUN  {name}: {why}"),
        }
    }
    Ok(sound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_requires_every_service() {
        for name in [SERVICES[0].name, python::NAME] {
            assert!(is_required(name, &["all".to_owned()]));
            assert!(is_required(name, &[name.to_owned()]));
            assert!(!is_required(name, &[]));
        }
    }
}
