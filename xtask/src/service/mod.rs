//! The servers that tests talk to.
//!
//! A [`Service`] is data: how one server is found, started, asked whether it is ready, and stopped.
//! What happens with it is the same for all: [`plan`] decides where it comes from, asking
//! [`machine`] what there is; [`instance`] starts it on a [`leash`] in a [`home`] of its own;
//! [`settled`] is how it went. A new server is one more file like [`postgres`] and one more line in
//! [`SERVICES`].

pub(crate) mod account;
pub(crate) mod address;
pub(crate) mod home;
pub(crate) mod install;
pub(crate) mod instance;
pub(crate) mod leash;
pub(crate) mod log;
pub(crate) mod machine;
pub(crate) mod nats;
pub(crate) mod plan;
pub(crate) mod postgres;
pub(crate) mod rabbitmq;
pub(crate) mod redis;
pub(crate) mod settled;
pub(crate) mod webdriver;

/// Every server the tests know, in the order they are started.
pub(crate) const SERVICES: &[&Service] = &[
    &postgres::POSTGRES,
    &rabbitmq::RABBITMQ,
    &nats::NATS,
    &redis::REDIS,
    &rabbitmq::RABBITMQ_CHAOS,
    &nats::NATS_CHAOS,
    &redis::REDIS_CHAOS,
    &webdriver::WEBDRIVER,
];

/// One kind of server. The scripts are POSIX shell and see `$bin`, `$home`, `$port`, `$arguments` and
/// `$spare_port`, which is as free as `$port`, for a server that needs two.
pub(crate) struct Service {
    /// What people, `--require` and the log file call it. Tests that need it live in modules of
    /// this name, or are called so themselves.
    pub(crate) name: &'static str,
    /// The variable that carries the URL to the tests, or from the person who already has a server.
    pub(crate) variable: &'static str,
    /// The URL of an instance of ours, with `{port}` where the port goes.
    pub(crate) url: &'static str,
    /// The port when a URL names none, and the port inside a container.
    pub(crate) default_port: u16,
    /// The programs a private instance needs; all of them, from one directory.
    pub(crate) programs: &'static [&'static str],
    /// Where a package puts them, should that not be in `PATH`; `*` stands for any version.
    pub(crate) place: &'static str,
    /// Users to drop to when we are root, best first.
    pub(crate) users: &'static [&'static str],
    /// The settings of the server, as words of its command line, in a container or not.
    pub(crate) arguments: &'static [&'static str],
    /// Prepares the data in `$home`, unless it is there, and becomes the server.
    pub(crate) start: &'static str,
    /// Asks the process `$server` to end now.
    pub(crate) stop: &'static str,
    /// Whether it is there to be crashed: then it is always ours and run from its programs, and whenever it ends it is
    /// started again on the same data, until it is told to stop.
    pub(crate) comes_back: bool,
    /// How it is known that the server serves.
    pub(crate) ready: Ready,
    /// The way through Docker or Podman.
    pub(crate) image: Image,
    /// The way through apt.
    pub(crate) package: Package,
}

/// How it is known that a server serves. That it accepts a connection says little: PostgreSQL does so
/// while it still recovers, and a container engine long before the server in it has started.
pub(crate) enum Ready {
    /// A command succeeds; `{port}` is where the port goes.
    Command(&'static [&'static str]),
    /// A client that begins with `say` is answered with what begins with `hear`.
    Greeting { say: &'static [u8], hear: &'static [u8] },
}

/// A container image, pinned, with what it needs to be told.
pub(crate) struct Image {
    /// Empty if it would be of no use in a container.
    pub(crate) name: &'static str,
    pub(crate) environment: &'static [&'static str],
}

/// A Debian package, and what keeps it from doing anything of its own.
pub(crate) struct Package {
    pub(crate) name: &'static str,
    /// A file that keeps it from creating something, and its text; empty if it creates nothing.
    pub(crate) config: &'static str,
    pub(crate) config_text: &'static str,
    /// The systemd units that would start its servers together with the machine.
    pub(crate) units: &'static [&'static str],
}

impl Service {
    /// The URL of an instance of ours on this port.
    pub(crate) fn url_at(&self, port: u16) -> String {
        self.url.replace("{port}", &port.to_string())
    }

    /// The variable that says where the data of a server is that comes back: whoever crashes it finds the number of its
    /// process there, in [`instance::PID_FILE`].
    pub(crate) fn home_variable(&self) -> String {
        self.variable.replace("_URL", "_HOME")
    }

    /// The parts of a test's path, either of which says that it needs this service: a module of its
    /// name, or a test of its name, as `#[steadfast::test(postgres)]` makes them.
    pub(crate) fn test_paths(&self) -> [String; 2] {
        [format!("{}::", self.name), format!("::{}", self.name)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `--skip` looks for a text anywhere in a path, so no name may begin or end with another one.
    #[test]
    fn no_service_takes_the_tests_of_another_for_its_own() {
        for service in SERVICES {
            for other in SERVICES.iter().filter(|other| other.name != service.name) {
                for test in [
                    format!("{}::a_key_runs_once::sqlite", other.name),
                    format!("sinks::a_key_runs_once::{}", other.name),
                ] {
                    let mut paths = service.test_paths().into_iter();
                    assert!(!paths.any(|path| test.contains(&path)), "{} and {test}", service.name);
                }
            }
        }
    }

    #[test]
    fn a_test_that_needs_a_service_is_known_by_its_path() {
        let paths = postgres::POSTGRES.test_paths();
        let needs_it = |test: &str| paths.iter().any(|path| test.contains(path.as_str()));
        for test in [
            "postgres::corridor::a_key_runs_once",
            "it::postgres::server::a_key_runs_once",
            "kit::an_order_is_placed_once::postgres",
        ] {
            assert!(needs_it(test), "{test}");
        }
        for test in [
            "sqlite::corridor::a_key_runs_once",
            "kit::an_order_is_placed_once::sqlite",
            "kit::an_order_of_postgres_is_placed",
        ] {
            assert!(!needs_it(test), "{test}");
        }
    }
}
