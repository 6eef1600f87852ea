//! Crates that are in the tree in more than one version.
//!
//! Each costs build time, and each is there because somebody upstream has not moved yet.
//! `xtask/duplicates.txt` lists those we know, with the reason; an unknown one and one that is no
//! longer there are both findings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::graph::Package;
use crate::error::{Context, Error, Result};
use crate::workspace;

const LIST: &str = "xtask/duplicates.txt";

pub(super) fn findings(packages: &[Package]) -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace::root().join(LIST)).context(format!("{LIST} could not be read"))?;
    Ok(compare(&duplicates(packages), &known(&text)?))
}

/// The versions of every crate that has more than one.
fn duplicates(packages: &[Package]) -> BTreeMap<&str, Vec<&str>> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(&package.version);
    }
    versions.retain(|_, versions| versions.len() > 1);
    versions
}

/// The names in the list: one line each, `name: reason`, with `#` for comments.
fn known(text: &str) -> Result<BTreeSet<&str>> {
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split_once(':') {
            Some((name, reason)) if !reason.trim().is_empty() => Ok(name.trim()),
            _ => Err(Error::new(format!(
                "{LIST}: the line `{line}` gives no reason; write `name: reason`"
            ))),
        })
        .collect()
}

fn compare(duplicates: &BTreeMap<&str, Vec<&str>>, known: &BTreeSet<&str>) -> Vec<String> {
    let unknown = duplicates.iter().filter(|(name, _)| !known.contains(**name));
    let unknown = unknown.map(|(name, versions)| {
        let versions = versions.join(" and ");
        format!(
            "{name} is there as {versions}; `cargo tree -d` shows why, \
             unify them or list it in {LIST}"
        )
    });
    let stale = known.iter().filter(|name| !duplicates.contains_key(**name));
    let stale = stale.map(|name| format!("{name} is no duplicate any more; remove it from {LIST}"));
    unknown.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Package {
        Package {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: None,
        }
    }

    #[test]
    fn unknown_and_stale_duplicates_are_found() {
        let packages = [
            package("sha2", "0.10.9"),
            package("sha2", "0.11.1"),
            package("rand", "0.9.5"),
        ];
        let findings = compare(&duplicates(&packages), &BTreeSet::from(["rand"]));
        assert_eq!(findings.len(), 2);
        assert!(
            findings[0].starts_with("sha2 is there as 0.10.9 and 0.11.1"),
            "{findings:?}"
        );
        assert!(findings[1].starts_with("rand is no duplicate any more"), "{findings:?}");
    }

    #[test]
    fn a_known_duplicate_has_a_reason() {
        let names = known("# comment\n\nsha2: sqlx is still on 0.10\n").expect("a sound list");
        assert_eq!(names, BTreeSet::from(["sha2"]));
        assert!(known("sha2\n").is_err());
        assert!(known("sha2:  \n").is_err());
    }
}
