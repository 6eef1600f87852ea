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
pub(crate) mod plan;
pub(crate) mod postgres;
pub(crate) mod settled;

/// Every server the tests know, in the order they are started.
pub(crate) const SERVICES: &[&Service] = &[&postgres::POSTGRES];

/// One kind of server. The scripts are POSIX shell and see `$bin`, `$home`, `$port` and
/// `$arguments`.
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
    /// Where `<version>/bin` directories are kept outside of `PATH`.
    pub(crate) versions_dir: &'static str,
    /// Users to drop to when we are root, best first; empty if the server does not mind being root.
    pub(crate) users: &'static [&'static str],
    /// The settings of the server, as words of its command line, in a container or not.
    pub(crate) arguments: &'static [&'static str],
    /// Prepares the data in `$home` and becomes the server.
    pub(crate) start: &'static str,
    /// Asks the process `$server` to end now.
    pub(crate) stop: &'static str,
    /// A command that succeeds once the server serves, with `{port}`; empty if a connection says
    /// enough.
    pub(crate) ready: &'static [&'static str],
    /// The way through Docker or Podman.
    pub(crate) image: Image,
    /// The way through apt.
    pub(crate) package: Package,
}

/// A container image, pinned, with what it needs to be told.
pub(crate) struct Image {
    pub(crate) name: &'static str,
    pub(crate) environment: &'static [&'static str],
}

/// A Debian package, and a configuration file that keeps it from creating anything of its own.
pub(crate) struct Package {
    pub(crate) name: &'static str,
    pub(crate) config: &'static str,
    pub(crate) config_text: &'static str,
}

impl Service {
    /// The URL of an instance of ours on this port.
    pub(crate) fn url_at(&self, port: u16) -> String {
        self.url.replace("{port}", &port.to_string())
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
