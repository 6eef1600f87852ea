//! A service as whoever needs it will find it.

use std::env;
use std::process::{Command, id};

use super::instance::{Instance, Stay};
use super::machine::Machine;
use super::plan::{Plan, Source, decide};
use super::{Service, address, home, log};
use crate::error::{Error, Result};
use crate::table;

/// How it went.
pub(crate) enum Settled {
    Given { url: String, place: String },
    Running { how: String, instance: Instance },
    NotRun { why: String },
}

/// On which terms a service may be had.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms {
    /// A package may be installed, if we are root.
    pub(crate) may_install: bool,
    /// Its data stays when it ends.
    pub(crate) keep: bool,
}

impl Settled {
    /// Finds or starts a service. It ends with us, unless it was given. One that was started may not
    /// serve yet: see [`Settled::ready`].
    pub(crate) fn settle(service: &'static Service, terms: Terms) -> Result<Self> {
        let given = env::var(service.variable).ok();
        let machine = Machine {
            service,
            given: given.filter(|url| !url.is_empty() && !service.comes_back),
            may_install: terms.may_install,
        };
        match decide(service, &machine) {
            Plan::Given { url } => check_given(service, url),
            Plan::Start(source) => start(service, &source, terms.keep),
            Plan::NotRun { why } => Ok(Self::NotRun { why }),
        }
    }

    /// Waits until the service serves, if we have started it.
    pub(crate) fn ready(self) -> Result<Self> {
        match self {
            Self::Running { how, mut instance } => match instance.wait_until_ready() {
                Ok(()) => Ok(Self::Running { how, instance }),
                Err(error) => instance.stop().and(Err(error)),
            },
            settled => Ok(settled),
        }
    }

    /// Where it is, if it is anywhere.
    pub(crate) fn url(&self) -> Option<String> {
        match self {
            Self::Given { url, .. } => Some(url.clone()),
            Self::Running { instance, .. } => Some(instance.url()),
            Self::NotRun { .. } => None,
        }
    }

    /// Hands the URL to a program, or makes sure that it sees none, and likewise the home of a server to crash.
    pub(crate) fn tell(&self, service: &Service, command: &mut Command) {
        match self.url() {
            Some(url) => command.env(service.variable, url),
            None => command.env_remove(service.variable),
        };
        if let (true, Self::Running { instance, .. }) = (service.comes_back, self)
            && let Some(home) = &instance.home
        {
            command.env(service.home_variable(), home);
        }
    }

    /// Stops what was started, and tells if it ended before its user (by this name) did.
    pub(crate) fn finish(self, user: &str) -> Result<()> {
        let Self::Running { mut instance, .. } = self else {
            return Ok(());
        };
        if let Some(ended) = instance.ended() {
            let (name, tail) = (instance.service.name, log::tail(&instance.log));
            eprintln!("\n{name} ended with {ended} before the {user} did; {tail}");
        }
        instance.stop()
    }
}

/// A table of what was decided.
pub(crate) fn describe(services: &[(&Service, Settled)]) -> String {
    describe_with(services, None)
}

/// The same, with what is there besides servers.
pub(crate) fn describe_with(services: &[(&Service, Settled)], besides: Option<Vec<String>>) -> String {
    let rows: Vec<_> = services
        .iter()
        .map(|(service, settled)| {
            let (how, place) = match settled {
                Settled::Given { place, .. } => (format!("given by {}", service.variable), place.clone()),
                Settled::Running { how, instance } => (how.clone(), instance.address()),
                Settled::NotRun { why } => ("NOT RUN".to_owned(), why.clone()),
            };
            vec![service.name.to_owned(), how, place]
        })
        .chain(besides)
        .collect();
    table::render(&["service", "how", "where / why"], &rows)
}

fn check_given(service: &Service, url: String) -> Result<Settled> {
    let variable = service.variable;
    let Some(place) = address::of_url(&url, service.default_port) else {
        return Ok(Settled::Given {
            url,
            place: "no host in the URL, so not checked".to_owned(),
        });
    };
    if address::answers(&place) {
        return Ok(Settled::Given { url, place });
    }
    Err(Error::new(format!(
        "{variable} names {place}, but nobody answers there; \
         start that server, or unset {variable} to get a private one"
    )))
}

/// A server that is there but does not start is an error, required or not: somebody should look at
/// it.
fn start(service: &'static Service, source: &Source, keep: bool) -> Result<Settled> {
    home::remove_stale(service);
    let name = if keep {
        format!("kept-{}", id())
    } else {
        id().to_string()
    };
    let stay = Stay {
        name,
        log: service.name.to_owned(),
        fifo: None,
        keep,
    };
    Ok(Settled::Running {
        how: source.describe(service),
        instance: Instance::start(service, source, stay)?,
    })
}
