//! What this machine has to offer to a service: programs, a container engine, a package manager.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::plan::Offers;
use super::{Service, install};
use crate::process;

/// Container engines, best first.
const ENGINES: &[&str] = &["docker", "podman"];

/// How long an engine may take to tell about itself. A cold Podman needs a second or two; a client
/// without its daemon may never answer.
const ENGINE_BOUND: Duration = Duration::from_secs(10);

/// This machine, seen by one service.
pub(crate) struct Machine<'a> {
    pub(crate) service: &'a Service,
    /// The URL a person has set, if it counts.
    pub(crate) given: Option<String>,
    /// Whether we may install a package.
    pub(crate) may_install: bool,
    /// Whether it may run in a container.
    pub(crate) may_contain: bool,
}

impl Offers for Machine<'_> {
    fn given(&self) -> Option<String> {
        self.given.clone()
    }

    fn programs(&self) -> Option<PathBuf> {
        find_bin(self.service, &env::var_os("PATH").unwrap_or_default())
    }

    fn engine(&self) -> Result<&'static str, String> {
        if !self.may_contain {
            return Err("no container because it is to be crashed".to_owned());
        }
        let answers = |engine: &str| process::succeeds_within(Command::new(engine).arg("info"), ENGINE_BOUND);
        let engine = ENGINES.iter().copied().find(|engine| answers(engine));
        engine.ok_or_else(|| format!("no {} that answers", ENGINES.join(" or ")))
    }

    fn install(&self) -> Result<PathBuf, String> {
        if !self.may_install {
            return Err("not installed because of --no-install".to_owned());
        }
        if !process::is_root() {
            return Err("not installed because we are not root".to_owned());
        }
        if !Path::new(install::APT_GET).exists() {
            return Err("not installed because there is no apt-get".to_owned());
        }
        install::install(self.service).map_err(|error| error.to_string())?;
        self.programs()
            .ok_or_else(|| "installed, but without its programs".to_owned())
    }
}

/// The directory with all programs of a service: one from `PATH`, else that of the newest version.
///
/// A link such as `/usr/local/bin/postgres` is followed, since a server finds its own files beside
/// it.
fn find_bin(service: &Service, path: &OsStr) -> Option<PathBuf> {
    let in_path = env::split_paths(path);
    in_path
        .chain(version_dirs(Path::new(service.versions_dir)))
        .find_map(|dir| {
            let first = dir.join(service.programs.first()?).canonicalize().ok()?;
            let home = first.parent()?;
            let complete = service.programs.iter().all(|program| home.join(program).is_file());
            complete.then(|| home.to_owned())
        })
}

/// `<versions>/<version>/bin`, newest first; 10 is newer than 9.
fn version_dirs(versions: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(versions).into_iter().flatten().flatten();
    let mut dirs: Vec<_> = entries
        .filter_map(|entry| {
            let numbers: Option<Vec<u32>> = entry
                .file_name()
                .to_str()?
                .split('.')
                .map(|number| number.parse().ok())
                .collect();
            Some((numbers?, entry.path().join("bin")))
        })
        .collect();
    dirs.sort();
    dirs.into_iter().rev().map(|(_, dir)| dir).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_comes_first() {
        let versions = env::temp_dir().join(format!("steadfast-versions-{}", std::process::id()));
        for version in ["9.6", "15", "10", "common"] {
            fs::create_dir_all(versions.join(version)).expect("a temporary directory");
        }
        let found = version_dirs(&versions);
        fs::remove_dir_all(&versions).expect("a temporary directory");
        assert_eq!(
            found,
            ["15", "10", "9.6"].map(|version| versions.join(version).join("bin"))
        );
    }

    #[test]
    fn programs_that_are_nowhere_are_not_found() {
        let service = Service {
            versions_dir: "/nonexistent",
            ..crate::service::postgres::POSTGRES
        };
        assert_eq!(find_bin(&service, "/nonexistent:/etc".as_ref()), None);
    }
}
