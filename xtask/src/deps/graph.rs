//! The packages that reach a binary: what workspace members use, normally or at build time, on this
//! platform.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::error::{Context, Error, Result};
use crate::workspace;

/// A package of the tree.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) licence: Option<String>,
}

/// Every package that is linked or runs at build time, with all features on.
pub(super) fn packages() -> Result<Vec<Package>> {
    let host = host()?;
    let metadata = workspace::metadata(&["--all-features", "--filter-platform", &host])?;
    Ok(reachable(&metadata))
}

fn host() -> Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("rustc could not be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| Error::new("rustc -vV names no host"))
}

/// Walks from the members along every edge that is not only for tests.
fn reachable(metadata: &Value) -> Vec<Package> {
    let nodes: BTreeMap<_, _> = list(&metadata["resolve"]["nodes"])
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let mut waiting: Vec<_> = list(&metadata["workspace_members"]).filter_map(Value::as_str).collect();
    let mut reached = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if reached.insert(id) {
            let edges = nodes.get(id).into_iter().flat_map(|node| list(&node["deps"]));
            waiting.extend(
                edges
                    .filter(|edge| is_used(edge))
                    .filter_map(|edge| edge["pkg"].as_str()),
            );
        }
    }
    let packages = list(&metadata["packages"]);
    let found = packages.filter(|package| package["id"].as_str().is_some_and(|id| reached.contains(id)));
    let found: BTreeSet<_> = found.map(describe).collect();
    found.into_iter().collect()
}

fn is_used(edge: &Value) -> bool {
    list(&edge["dep_kinds"]).any(|kind| kind["kind"].is_null() || kind["kind"] == "build")
}

fn describe(package: &Value) -> Package {
    let text = |field: &str| package[field].as_str().map(str::to_owned);
    Package {
        name: text("name").unwrap_or_default(),
        version: text("version").unwrap_or_default(),
        licence: text("license"),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_only_tests_use_is_left_out() {
        let edge = |to: &str, kind: Value| json!({ "pkg": to, "dep_kinds": [{ "kind": kind }] });
        let package = |id: &str| json!({ "id": id, "name": id, "version": "1.0.0", "license": "MIT" });
        let metadata = json!({
            "workspace_members": ["ours"],
            "packages": [package("ours"), package("linked"), package("builder"), package("tester")],
            "resolve": { "nodes": [
                { "id": "ours", "deps": [edge("linked", Value::Null), edge("tester", json!("dev"))] },
                { "id": "linked", "deps": [edge("builder", json!("build"))] },
            ] },
        });
        let names: Vec<_> = reachable(&metadata).into_iter().map(|package| package.name).collect();
        assert_eq!(names, ["builder", "linked", "ours"]);
    }
}
