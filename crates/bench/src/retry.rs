//! `bench retry`: what it costs to decide whether and when something is tried again.
//!
//! A call that fails six times, again and again: five delays and the end of them. The baseline is backon's backoff with its
//! jitter; both draw their chance from fastrand.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use steadfast::{Backoff, Decision, Failure, Jitter, RetryPolicy};

use crate::error::{Context, Result};
use crate::measure::{Case, Series, Stage};

/// So that what surrounds a call of the harness does not matter.
const CALLS: usize = 2_000;

const RETRIES: u32 = 5;
const BASE: Duration = Duration::from_millis(200);
const CAP: Duration = Duration::from_secs(10);

const BACKON: &str = "12000 decisions of backon";
const FULL: &str = "12000 decisions, full jitter";
const DECORRELATED: &str = "12000 decisions, decorrelated jitter";

pub(crate) fn series() -> Series {
    let cases = [
        Case::new(BACKON),
        Case::new(FULL).against(BACKON, 1.0),
        Case::new(DECORRELATED).against(BACKON, None),
    ];
    Series::new(None, cases, |_| prepare())
}

async fn prepare() -> Result<Stage> {
    let failure = || Failure::transient("busy", "not now");
    let backoff = ExponentialBuilder::new()
        .with_min_delay(BASE)
        .with_max_delay(CAP)
        .with_max_times(RETRIES as usize)
        .with_jitter();
    Ok(Stage::default()
        .does(BACKON, &Arc::new((backoff, failure())), backon)
        .does(FULL, &Arc::new((policy(Jitter::Full)?, failure())), ours)
        .does(
            DECORRELATED,
            &Arc::new((policy(Jitter::Decorrelated)?, failure())),
            ours,
        ))
}

fn policy(jitter: Jitter) -> Result<RetryPolicy> {
    let builder = RetryPolicy::builder()
        .retries(RETRIES)
        .backoff(Backoff::Exponential(BASE));
    builder.cap(CAP).jitter(jitter).build().context("making the policy")
}

async fn ours(shared: Arc<(RetryPolicy, Failure)>, _: usize) -> Result<()> {
    let (policy, failure) = &*shared;
    for _ in 0..CALLS {
        let (mut random, mut attempt) = (fastrand::Rng::new(), 1);
        while let Decision::Retry(after) =
            black_box(policy).decide(attempt, black_box(failure), Duration::ZERO, || random.u64(..))
        {
            black_box(after);
            attempt += 1;
        }
    }
    Ok(())
}

/// As its retry does: a backoff for each call, with a generator of its own; then the condition and the next delay.
async fn backon(shared: Arc<(ExponentialBuilder, Failure)>, _: usize) -> Result<()> {
    let (backoff, failure) = &*shared;
    for _ in 0..CALLS {
        let mut backoff = black_box(backoff).build();
        while black_box(failure).is_transient()
            && let Some(after) = backoff.next()
        {
            black_box(after);
        }
    }
    Ok(())
}
