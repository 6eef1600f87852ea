//! How long the compiler takes for a service: declared by `#[steadfast::service]`, and the same written by hand.
//!
//! Two small crates are made under the directory of the bench. In each round a line of a handler changes in both, and `cargo
//! check`, incremental as on a developer's machine, looks at them in turn.

mod source;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Context, Result};
use crate::measure::{Case, Measurement, Slice};
use crate::options::Options;
use crate::progress::Progress;

/// A declared service may take half as long again: its rate is two thirds.
const GOAL: f64 = 0.66;

/// One of the two crates: its name, which is also that of its case, and its source in a round.
type Side = (&'static str, fn(usize) -> String);
const BY_HAND: Side = ("by_hand", source::by_hand);
const DECLARED: Side = ("declared", source::declared);

pub(crate) fn measure(options: &Options) -> Result<Vec<Measurement>> {
    let rounds = options.rounds();
    let crates = Crates::make(&options.directory.join("service"))?;
    let sides = [BY_HAND, DECLARED];
    let fresh = |case| Measurement {
        case,
        slices: Vec::with_capacity(rounds),
    };
    let mut measured = [Case::new(BY_HAND.0), Case::new(DECLARED.0).against(BY_HAND.0, GOAL)].map(fresh);
    let progress = Progress::new((rounds + 1) * sides.len());
    // Round 0 is the warm-up: it compiles the dependencies, and is not kept.
    for round in 0..=rounds {
        for turn in 0..sides.len() {
            let current = (round + turn) % sides.len();
            let (name, source) = sides[current];
            progress.begin(name);
            crates.write(name, &source(round))?;
            let took = crates.check(name)?;
            if round > 0 {
                measured[current].slices.push(slice(took));
            }
        }
    }
    progress.clear();
    Ok(measured.into())
}

/// One check, as a slice with one call.
fn slice(took: Duration) -> Slice {
    let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
    Slice {
        per_second: 1.0 / took.as_secs_f64(),
        p50_us: micros,
        p99_us: micros,
        max_us: micros,
        ..Slice::default()
    }
}

/// A workspace of its own, with the lock file of ours: nothing is downloaded that we do not have.
struct Crates {
    directory: PathBuf,
}

impl Crates {
    fn make(directory: &Path) -> Result<Self> {
        let crates = Self {
            directory: directory.to_owned(),
        };
        let steadfast = Path::new(env!("CARGO_MANIFEST_DIR")).join("../steadfast");
        for (name, source) in [BY_HAND, DECLARED] {
            crates.put(&format!("{name}/Cargo.toml"), &source::manifest(name, &steadfast))?;
            crates.write(name, &source(0))?;
        }
        crates.put("Cargo.toml", source::WORKSPACE)?;
        let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
        let lock = fs::read_to_string(&lock).context(format!("reading {}", lock.display()))?;
        crates.put("Cargo.lock", &lock)?;
        Ok(crates)
    }

    fn write(&self, package: &str, source: &str) -> Result<()> {
        self.put(&format!("{package}/src/lib.rs"), source)
    }

    fn put(&self, file: &str, text: &str) -> Result<()> {
        let file = self.directory.join(file);
        let doing = format!("writing {}", file.display());
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).context(&doing)?;
        }
        fs::write(&file, text).context(&doing)
    }

    fn check(&self, package: &str) -> Result<Duration> {
        let mut cargo = Command::new("cargo");
        cargo
            .args(["check", "--quiet", "--offline", "--package", package])
            .current_dir(&self.directory)
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_TARGET_DIR", self.directory.join("target"))
            .stdin(Stdio::null());
        let started = Instant::now();
        let checked = cargo.output().context("starting cargo")?;
        let took = started.elapsed();
        if !checked.status.success() {
            let said = String::from_utf8_lossy(&checked.stderr);
            return Err(format!("cargo check of {package} failed:\n{said}").into());
        }
        Ok(took)
    }
}
