//! What a call through a closed breaker costs: ours and `recloser`'s in turn, with one caller and with as many as there are
//! processors. The call itself does nothing.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use recloser::Recloser;
use steadfast::Breaker;

use crate::error::{Context, Result};
use crate::measure::{Case, Measurement, Slice};
use crate::options::Options;
use crate::progress::Progress;

/// At least as fast.
const GOAL: f64 = 1.0;

/// How many of the last calls a failure rate is taken of, for both.
const WINDOW: u32 = 100;

/// Calls between two looks at the clock: long enough for the look to vanish, some tens of microseconds.
const BATCH: u32 = 1_000;

/// One side of the comparison.
struct Side {
    name: String,
    callers: usize,
    /// Makes so many calls.
    calls: Box<dyn Fn(u32) + Sync>,
}

pub(crate) fn measure(options: &Options) -> Result<Vec<Measurement>> {
    let rounds = options.rounds();
    let slice = Duration::from_millis(if options.quick { 50 } else { 500 });
    let processors = thread::available_parallelism()
        .context("counting the processors")?
        .get();
    let sides: Vec<_> = [1, processors].into_iter().map(sides).collect::<Result<Vec<_>>>()?;
    let sides: Vec<_> = sides.into_iter().flatten().collect();
    let mut measured: Vec<_> = sides.iter().map(|side| fresh(side, rounds)).collect();
    let progress = Progress::new((rounds + 1) * sides.len());
    // Round 0 is the warm-up: it fills the windows, and is not kept.
    for round in 0..=rounds {
        for turn in 0..sides.len() {
            let current = (round + turn) % sides.len();
            progress.begin(&sides[current].name);
            let per_second = rate(&sides[current], slice);
            if round > 0 {
                measured[current].slices.push(Slice {
                    per_second,
                    ..Slice::default()
                });
            }
        }
    }
    progress.clear();
    Ok(measured)
}

fn fresh(side: &Side, rounds: usize) -> Measurement {
    let case = Case::new(&side.name);
    let is_baseline = side.name.starts_with("recloser");
    let case = if is_baseline {
        case
    } else {
        case.against(format!("recloser x{}", side.callers), GOAL)
    };
    Measurement {
        case,
        slices: Vec::with_capacity(rounds),
    }
}

/// The comparison with so many callers.
fn sides(callers: usize) -> Result<[Side; 3]> {
    let side = |name: &str, calls: Box<dyn Fn(u32) + Sync>| Side {
        name: format!("{name} x{callers}"),
        callers,
        calls,
    };
    let theirs = Recloser::custom().error_rate(0.5).closed_len(WINDOW as usize).build();
    let theirs = move |calls| {
        for _ in 0..calls {
            let _ = black_box(theirs.call(|| black_box(Ok::<_, ()>(()))));
        }
    };
    let ours = |breaker: Breaker| {
        move |calls| {
            for _ in 0..calls {
                if let Ok(permit) = black_box(breaker.permit()) {
                    black_box(());
                    permit.success();
                }
            }
        }
    };
    let rate = Breaker::named("rate").failure_rate(0.5).window(WINDOW).build();
    let consecutive = Breaker::named("consecutive").consecutive_failures(5).build();
    Ok([
        side("recloser", Box::new(theirs)),
        side("rate", Box::new(ours(rate.context("making a breaker")?))),
        side("consecutive", Box::new(ours(consecutive.context("making a breaker")?))),
    ])
}

/// Calls in a second, by all callers together.
fn rate(side: &Side, length: Duration) -> f64 {
    let start = Barrier::new(side.callers);
    let call = || {
        start.wait();
        let (began, mut calls) = (Instant::now(), 0_u64);
        while began.elapsed() < length {
            (side.calls)(BATCH);
            calls += u64::from(BATCH);
        }
        calls as f64 / began.elapsed().as_secs_f64()
    };
    thread::scope(|scope| {
        let callers: Vec<_> = (0..side.callers).map(|_| scope.spawn(call)).collect();
        // A caller that panicked has called nothing.
        callers.into_iter().map(|caller| caller.join().unwrap_or(0.0)).sum()
    })
}
