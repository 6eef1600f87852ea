//! `cargo xtask features`: steadfast compiles without features, with each one alone, and with all.
//!
//! A workspace build unifies features, so a missing `#[cfg]` only shows when the package is built
//! by itself.

use std::time::Instant;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::{process, table, workspace};

const PACKAGE: &str = "steadfast";

/// One build: what a person calls it, and the flags that select it.
#[derive(Debug, PartialEq)]
struct Selection {
    name: String,
    flags: Vec<String>,
}

pub(crate) fn run() -> Result<()> {
    let metadata = workspace::metadata(&["--no-deps"])?;
    let mut failed = Vec::new();
    for selection in selections(&features_of(&metadata, PACKAGE)) {
        let name = &selection.name;
        eprintln!("  {PACKAGE} with {name} …");
        let start = Instant::now();
        let outcome = check(&selection);
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        let time = table::seconds(start.elapsed());
        eprintln!("  {PACKAGE} with {name}: {verdict}, {time}");
        if outcome.is_err() {
            failed.push(selection.name);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    let failed = failed.join(", ");
    Err(Error::new(format!(
        "{PACKAGE} does not compile without warnings with: {failed}"
    )))
}

/// Clippy denies warnings for our package only. The same through `RUSTFLAGS` would rebuild every
/// dependency, and again for whoever builds next without it.
fn check(selection: &Selection) -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo
        .args(["clippy", "--quiet", "--package", PACKAGE])
        .args(&selection.flags);
    process::run(cargo.args(["--", "-D", "warnings"]))
}

fn features_of(metadata: &Value, package: &str) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let ours = packages.filter(|entry| entry["name"] == package);
    let features = ours.filter_map(|entry| entry["features"].as_object());
    let names = features.flat_map(|features| features.keys().cloned());
    names.filter(|name| name != "default").collect()
}

fn selections(features: &[String]) -> Vec<Selection> {
    let selection = |name: &str, flags: &[&str]| Selection {
        name: name.to_owned(),
        flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
    };
    let none = "--no-default-features";
    let mut selections = vec![selection("no features", &[none])];
    selections.extend(features.iter().map(|name| selection(name, &[none, "--features", name])));
    selections.push(selection("all features", &["--all-features"]));
    selections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_but_default_is_built_alone() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "shop", "features": { "lab": [] } },
            { "name": "steadfast", "features": { "default": [], "axum": [], "sqlite": [] } },
        ] });
        let selections = selections(&features_of(&metadata, "steadfast"));
        let names: Vec<_> = selections.iter().map(|selection| selection.name.as_str()).collect();
        assert_eq!(names, ["no features", "axum", "sqlite", "all features"]);
        assert_eq!(selections[1].flags, ["--no-default-features", "--features", "axum"]);
    }
}
