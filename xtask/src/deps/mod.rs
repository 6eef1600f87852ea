//! `cargo xtask deps`: what we let into the tree.
//!
//! Every package that is linked or runs at build time has a licence we accept ([`licence`]), none
//! of the forbidden ones is there, a second version of a crate is a known one ([`duplicates`]), and
//! the manifests are as they should be ([`manifests`]). All findings are shown, not only the first.

mod duplicates;
mod graph;
mod licence;
mod manifests;

use crate::error::{Error, Result};
use graph::Package;

/// Crates that must not be linked: they need OpenSSL, cmake or a C++ compiler on the machine that
/// builds.
const FORBIDDEN: &[&str] = &["openssl-sys", "native-tls", "aws-lc-rs", "aws-lc-sys"];

pub(crate) fn run() -> Result<()> {
    let packages = graph::packages()?;
    let mut findings: Vec<String> = packages.iter().filter_map(unacceptable_licence).collect();
    findings.extend(packages.iter().filter_map(forbidden));
    findings.extend(duplicates::findings(&packages)?);
    findings.extend(manifests::findings()?);
    if findings.is_empty() {
        eprintln!("  {} packages are as they should be", packages.len());
        return Ok(());
    }
    Err(Error::new(format!(
        "the dependencies are not as they should be:\n  {}",
        findings.join("\n  ")
    )))
}

fn unacceptable_licence(package: &Package) -> Option<String> {
    let Package { name, version, licence } = package;
    let Some(expression) = licence else {
        return Some(format!("{name} {version} states no licence; replace it"));
    };
    match licence::is_acceptable(expression) {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "{name} {version} is licensed {expression}, which the list in xtask does not allow"
        )),
        Err(error) => Some(format!("{name} {version} has a licence we cannot read: {error}")),
    }
}

fn forbidden(package: &Package) -> Option<String> {
    let Package { name, version, .. } = package;
    let forbidden = FORBIDDEN.contains(&name.as_str());
    forbidden.then(|| {
        format!(
            "{name} {version} is forbidden; `cargo tree -i {name}` shows who brings it, \
             use rustls with ring"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, licence: Option<&str>) -> Package {
        Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: licence.map(str::to_owned),
        }
    }

    #[test]
    fn a_licence_is_stated_and_allowed() {
        assert_eq!(unacceptable_licence(&package("good", Some("MIT"))), None);
        assert!(unacceptable_licence(&package("bad", Some("AGPL-3.0-only"))).is_some());
        assert!(unacceptable_licence(&package("silent", None)).is_some());
    }

    #[test]
    fn openssl_stays_out() {
        assert!(forbidden(&package("openssl-sys", Some("MIT"))).is_some());
        assert!(forbidden(&package("ring", Some("MIT"))).is_none());
    }
}
