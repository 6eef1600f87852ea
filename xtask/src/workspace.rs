//! Where things are: the root of the checkout, its target directory, and the cargo that started us.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::error::{Context, Error, Result};

/// The directory of the workspace's `Cargo.toml`.
pub(crate) fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Where everything goes that can be made again.
pub(crate) fn target_dir() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(target)
}

/// Everything the services leave on disk: data directories, logs and the state of `services up`.
pub(crate) fn services_dir() -> PathBuf {
    target_dir().join("services")
}

/// A cargo command at the root of the workspace, whatever directory xtask was called from.
///
/// The cargo that runs us has told us about our own package. Some build scripts (that of ring) watch
/// these variables, and would run again, with all that depends on them, whenever a person's cargo and
/// ours take turns.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&*name);
        }
    }
    cargo
}

/// What cargo knows about the workspace. `--locked`, because a check must not change the lock file.
pub(crate) fn metadata(arguments: &[&str]) -> Result<Value> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .context("cargo metadata could not be started")?;
    if !output.status.success() {
        return Err(Error::new("cargo metadata failed; the lines above say why"));
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata did not answer with JSON")
}
