//! Where a service comes from, decided before the first test starts.
//!
//! The order is the promise: what a person gives us is used as it is and never stopped; what is
//! installed is started privately; then containers; and only root on a Debian machine gets
//! something installed.

use std::path::PathBuf;

use super::Service;

/// The decision for one service.
#[derive(Debug, PartialEq)]
pub(crate) enum Plan {
    /// A person has a server running: use it, never install, never stop.
    Given { url: String },
    /// Start one of our own.
    Start(Source),
    /// There is no way; the sentence says why, and what would help.
    NotRun { why: String },
}

/// What a server of ours is made from.
#[derive(Debug, PartialEq)]
pub(crate) enum Source {
    /// Its programs, in this directory.
    Programs(PathBuf),
    /// Its image, run by this engine.
    Engine(&'static str),
}

impl Source {
    /// How a person would say it.
    pub(crate) fn describe(&self, service: &Service) -> String {
        match self {
            Self::Programs(bin) => format!("private, {}", bin.display()),
            Self::Engine(engine) => format!("{engine}, {}", service.image.name),
        }
    }
}

/// What a machine has to offer. Asked in the order of the plan, and only as far as needed: asking
/// Docker costs seconds where its daemon is gone, and asking for an installation installs.
pub(crate) trait Offers {
    fn given(&self) -> Option<String>;
    fn programs(&self) -> Option<PathBuf>;
    fn engine(&self) -> Result<&'static str, String>;
    fn install(&self) -> Result<PathBuf, String>;
}

/// Decides where a service comes from.
pub(crate) fn decide(service: &Service, offers: &impl Offers) -> Plan {
    if let Some(url) = offers.given() {
        return Plan::Given { url };
    }
    if let Some(bin) = offers.programs() {
        return Plan::Start(Source::Programs(bin));
    }
    let no_engine = match offers.engine() {
        Ok(engine) => return Plan::Start(Source::Engine(engine)),
        Err(reason) => reason,
    };
    match offers.install() {
        Ok(bin) => Plan::Start(Source::Programs(bin)),
        Err(not_installed) => Plan::NotRun {
            why: why_not(service, &no_engine, &not_installed),
        },
    }
}

fn why_not(service: &Service, no_engine: &str, not_installed: &str) -> String {
    let (variable, package) = (service.variable, service.package.name);
    let (programs, place) = (service.programs.join(" and "), service.place);
    format!(
        "no {variable}, no {programs} in PATH or {place}, {no_engine}, {not_installed}; \
         set {variable} or install the package {package}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::SERVICES;

    /// A machine that offers the last `ways` of the four ways.
    struct Machine {
        ways: u8,
    }

    impl Machine {
        fn offers<T>(&self, way: u8, offer: T) -> Option<T> {
            (self.ways >= way).then_some(offer)
        }
    }

    impl Offers for Machine {
        fn given(&self) -> Option<String> {
            self.offers(4, "postgres://there/db".to_owned())
        }
        fn programs(&self) -> Option<PathBuf> {
            self.offers(3, PathBuf::from("/found"))
        }
        fn engine(&self) -> Result<&'static str, String> {
            self.offers(2, "docker").ok_or_else(|| "no docker".to_owned())
        }
        fn install(&self) -> Result<PathBuf, String> {
            self.offers(1, PathBuf::from("/installed"))
                .ok_or_else(|| "not root".to_owned())
        }
    }

    fn plan(ways: u8) -> Plan {
        decide(SERVICES[0], &Machine { ways })
    }

    #[test]
    fn the_earlier_way_wins() {
        let url = "postgres://there/db".to_owned();
        assert_eq!(plan(4), Plan::Given { url });
        assert_eq!(plan(3), Plan::Start(Source::Programs("/found".into())));
        assert_eq!(plan(2), Plan::Start(Source::Engine("docker")));
        assert_eq!(plan(1), Plan::Start(Source::Programs("/installed".into())));
    }

    #[test]
    fn a_service_that_is_not_run_says_every_reason_and_a_fix() {
        let Plan::NotRun { why } = plan(0) else {
            panic!("there was no way")
        };
        let reasons = [
            "no TEST_DATABASE_URL",
            "no initdb and postgres",
            "no docker",
            "not root",
        ];
        for reason in reasons.into_iter().chain(["install the package postgresql"]) {
            assert!(why.contains(reason), "{why} does not say {reason}");
        }
    }
}
