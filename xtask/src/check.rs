//! `cargo xtask check`: what a person runs before a commit, and the first half of CI.
//!
//! A failing step does not hide the next one: all of them run, and a table at the end says which
//! failed.

use std::time::Instant;

use crate::error::{Error, Result};
use crate::{deps, features, guarantees, process, table, workspace};

/// One step: its name and its work.
type Step = (&'static str, fn() -> Result<()>);

/// The quick ones first, so that a slip in the format is seen before the coffee.
const STEPS: &[Step] = &[
    ("format", format),
    ("dependencies", deps::run),
    ("guarantees", guarantees::run),
    ("lints", lints),
    ("docs", docs),
    ("features", features::run),
];

pub(crate) fn run() -> Result<()> {
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for (name, work) in STEPS {
        eprintln!("\n== {name}");
        let start = Instant::now();
        let outcome = work();
        let time = table::seconds(start.elapsed());
        let verdict = outcome.as_ref().map_or_else(ToString::to_string, |()| "ok".to_owned());
        if outcome.is_err() {
            eprintln!("error: {verdict}");
            failed.push(*name);
        }
        // The table has room for the first line; the whole story is above.
        let headline = verdict.lines().next().unwrap_or_default().to_owned();
        rows.push(vec![(*name).to_owned(), time, headline]);
    }
    eprintln!("\n{}", table::render(&["step", "time", "result"], &rows));
    if failed.is_empty() {
        return Ok(());
    }
    Err(Error::new(format!(
        "{} of {} steps failed: {}",
        failed.len(),
        STEPS.len(),
        failed.join(", ")
    )))
}

fn format() -> Result<()> {
    process::run(workspace::cargo().args(["fmt", "--all", "--check"]))
}

fn lints() -> Result<()> {
    let all = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ];
    process::run(workspace::cargo().args(all))
}

/// `RUSTDOCFLAGS` only concerns rustdoc, so unlike `RUSTFLAGS` it rebuilds nothing else.
fn docs() -> Result<()> {
    let all = ["doc", "--workspace", "--all-features", "--no-deps"];
    process::run(workspace::cargo().args(all).env("RUSTDOCFLAGS", "-D warnings"))
}
