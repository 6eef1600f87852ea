//! What this machine has to offer to a service: programs, a container engine, a package manager.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
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
}

impl Offers for Machine<'_> {
    fn given(&self) -> Option<String> {
        self.given.clone()
    }

    fn programs(&self) -> Option<PathBuf> {
        find_bin(self.service, &env::var_os("PATH").unwrap_or_default())
    }

    fn engine(&self) -> Result<&'static str, String> {
        if self.service.comes_back {
            return Err("no container because it is to be crashed".to_owned());
        }
        if self.service.image.name.is_empty() {
            return Err("no container because it would be of no use in one".to_owned());
        }
        let answers = |engine: &str| process::succeeds_within(Command::new(engine).arg("info"), ENGINE_BOUND);
        let engine = ENGINES.iter().copied().find(|engine| answers(engine));
        engine.ok_or_else(|| format!("no {} that answers", ENGINES.join(" or ")))
    }

    fn install(&self) -> Result<PathBuf, String> {
        install::install_if(self.may_install, &self.service.package)?;
        self.programs()
            .ok_or_else(|| "installed, but without its programs".to_owned())
    }
}

/// The directory with all programs of a service: one from `PATH`, else its place.
///
/// A link such as `/usr/local/bin/postgres` is followed, since a server finds its own files beside
/// it.
fn find_bin(service: &Service, path: &OsStr) -> Option<PathBuf> {
    let in_path = env::split_paths(path);
    in_path.chain(dirs_at(service.place)).find_map(|dir| {
        let first = dir.join(service.programs.first()?).canonicalize().ok()?;
        let home = first.parent()?;
        let complete = service.programs.iter().all(|program| home.join(program).is_file());
        complete.then(|| home.to_owned())
    })
}

/// The directories a place stands for, the newest version first; 10 is newer than 9.
fn dirs_at(place: &str) -> Vec<PathBuf> {
    let Some((versions, bin)) = place.split_once("/*/") else {
        return vec![PathBuf::from(place)];
    };
    let entries = fs::read_dir(versions).into_iter().flatten().flatten();
    let mut dirs: Vec<_> = entries
        .filter_map(|entry| {
            let numbers: Option<Vec<u32>> = entry
                .file_name()
                .to_str()?
                .split('.')
                .map(|number| number.parse().ok())
                .collect();
            Some((numbers?, entry.path().join(bin)))
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
        let found = dirs_at(&format!("{}/*/bin", versions.display()));
        fs::remove_dir_all(&versions).expect("a temporary directory");
        assert_eq!(
            found,
            ["15", "10", "9.6"].map(|version| versions.join(version).join("bin"))
        );
    }

    #[test]
    fn a_place_without_versions_is_one_directory() {
        assert_eq!(dirs_at("/usr/sbin"), [PathBuf::from("/usr/sbin")]);
    }

    #[test]
    fn programs_that_are_nowhere_are_not_found() {
        let service = Service {
            place: "/nonexistent/*/bin",
            ..crate::service::postgres::POSTGRES
        };
        assert_eq!(find_bin(&service, "/nonexistent:/etc".as_ref()), None);
    }

    #[test]
    fn what_is_of_no_use_in_a_container_is_never_put_into_one() {
        let machine = Machine {
            service: &crate::service::webdriver::WEBDRIVER,
            given: None,
            may_install: false,
        };
        assert!(machine.engine().is_err_and(|why| why.contains("of no use")));
    }
}
