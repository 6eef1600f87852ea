//! What the manifests must say, and what must not lie beside them.

use std::fs;
use std::process::{Command, Stdio};

use crate::error::{Context, Result};
use crate::workspace;

pub(super) fn findings() -> Result<Vec<String>> {
    let mut findings = Vec::new();
    findings.extend(toolchain_files()?);
    findings.extend((!lock_file_is_committed()).then(|| "Cargo.lock is not committed; git add it".to_owned()));
    findings.extend(members_without_lints()?);
    Ok(findings)
}

/// A pinned toolchain would be downloaded behind the back of whoever builds; `rust-version` says
/// enough.
fn toolchain_files() -> Result<Vec<String>> {
    let entries = fs::read_dir(workspace::root()).context("the root of the workspace could not be read")?;
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let pins = names.filter(|name| name.starts_with("rust-toolchain"));
    Ok(pins
        .map(|name| format!("{name} pins a toolchain; rust-version in Cargo.toml says enough, remove it"))
        .collect())
}

/// Asks git; where there is no git, as in an unpacked archive, the file itself is the proof.
fn lock_file_is_committed() -> bool {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(arguments)
            .current_dir(workspace::root())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        git.status().is_ok_and(|status| status.success())
    };
    if git(&["rev-parse", "--git-dir"]) {
        return git(&["ls-files", "--error-unmatch", "Cargo.lock"]);
    }
    workspace::root().join("Cargo.lock").is_file()
}

fn members_without_lints() -> Result<Vec<String>> {
    let metadata = workspace::metadata(&["--no-deps"])?;
    let manifests = metadata["packages"].as_array().into_iter().flatten();
    let mut findings = Vec::new();
    for path in manifests.filter_map(|package| package["manifest_path"].as_str()) {
        let text = fs::read_to_string(path).context(format!("{path} could not be read"))?;
        if !inherits_lints(&text) {
            findings.push(format!(
                "{path} does not inherit the lints; add `[lints]` with `workspace = true`"
            ));
        }
    }
    Ok(findings)
}

/// Whether `[lints] workspace = true` is there, in one of its two spellings.
fn inherits_lints(manifest: &str) -> bool {
    let mut section = "";
    manifest
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .any(|line| {
            if line.starts_with('[') {
                section = line;
            }
            let setting = line.replace(' ', "");
            (section == "[lints]" && setting == "workspace=true")
                || (section.is_empty() && setting == "lints.workspace=true")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_inherit_the_lints() {
        assert!(inherits_lints(
            "[package]\nname = \"a\"\n\n[lints]\nworkspace = true # all of them\n"
        ));
        assert!(inherits_lints("lints.workspace = true\n[package]\n"));
    }

    #[test]
    fn another_section_does_not_count() {
        assert!(!inherits_lints("[dependencies]\nworkspace = true\n"));
        assert!(!inherits_lints(
            "[lints]\n# workspace = true\n[lints.rust]\nunsafe_code = \"forbid\"\n"
        ));
    }
}
