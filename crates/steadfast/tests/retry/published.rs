//! The delays of others, as they have published them.

use std::time::Duration;

use steadfast::{Backoff, Jitter, RetryPolicy};

use super::{Random, days, plain};

const SECOND: Duration = Duration::from_secs(1);

fn millis(policy: &RetryPolicy, retries: u32) -> Vec<u128> {
    let delays = (1..=retries).map(|retry| policy.delay(retry, || 0).as_millis());
    delays.collect()
}

/// App-vNext/Polly, test/Polly.Core.Tests/Retry/RetryHelperTests.cs, at 07d88c7: Constant_Ok, Linear_Ok, Exponential_Ok. Polly
/// counts from 0.
#[test]
fn delays_without_jitter_are_those_of_polly() {
    assert_eq!(millis(&plain(Backoff::Constant(SECOND)), 3), [1_000, 1_000, 1_000]);
    assert_eq!(millis(&plain(Backoff::Linear(SECOND)), 3), [1_000, 2_000, 3_000]);
    assert_eq!(millis(&plain(Backoff::Exponential(SECOND)), 3), [1_000, 2_000, 4_000]);
}

/// The same file: GetRetryDelay_OverflowWithMaxDelay_ReturnsMaxDelay, MaxDelay_DelayLessThanMaxDelay_Respected.
#[test]
fn a_cap_holds_where_pollys_does() {
    let policy = RetryPolicy::builder().jitter(Jitter::None);
    let policy = policy
        .backoff(Backoff::Exponential(days(1)))
        .cap(days(2))
        .build()
        .unwrap();
    assert_eq!(policy.delay(1_001, || 0), days(2));
    let policy = RetryPolicy::builder().jitter(Jitter::None);
    let policy = policy
        .backoff(Backoff::Constant(SECOND))
        .cap(2 * SECOND)
        .build()
        .unwrap();
    assert_eq!(policy.delay(3, || 0), SECOND);
}

/// The comments of the code that seed 004 generates for Polly: 200 ms, exponential and linear.
#[test]
fn delays_are_those_of_the_seed() {
    let base = Duration::from_millis(200);
    assert_eq!(
        millis(&plain(Backoff::Exponential(base)), 5),
        [200, 400, 800, 1_600, 3_200]
    );
    assert_eq!(millis(&plain(Backoff::Linear(base)), 4), [200, 400, 600, 800]);
    assert_eq!(millis(&plain(Backoff::Immediate), 2), [0, 0]);
}

/// aws-samples/aws-arch-backoff-simulator, src/backoff_simulator.py, at 095a076: the simulator behind the article
/// "Exponential Backoff And Jitter", with its base of 5 and cap of 2000, in milliseconds. Its `n` is 1 after the first
/// failure where ours is 0; the formulas are the same.
mod aws {
    pub(super) const BASE: f64 = 5.0;
    pub(super) const CAP: f64 = 2_000.0;

    fn expo(n: u32) -> f64 {
        (2_f64.powi(n as i32) * BASE).min(CAP)
    }

    pub(super) fn equal(n: u32, uniform: f64) -> f64 {
        expo(n) / 2.0 + expo(n) / 2.0 * uniform
    }

    pub(super) fn full(n: u32, uniform: f64) -> f64 {
        expo(n) * uniform
    }

    pub(super) fn decorrelated(sleep: f64, uniform: f64) -> f64 {
        (BASE + (sleep * 3.0 - BASE) * uniform).min(CAP)
    }
}

fn as_in_the_simulator(jitter: Jitter) -> RetryPolicy {
    let base = Duration::from_secs_f64(aws::BASE / 1e3);
    let builder = RetryPolicy::builder()
        .backoff(Backoff::Exponential(base))
        .jitter(jitter);
    builder.cap(Duration::from_secs_f64(aws::CAP / 1e3)).build().unwrap()
}

/// The same chance, as 64 bits and as a number from 0 to 1.
fn chances(seed: u64, count: usize) -> Vec<(u64, f64)> {
    let mut random = Random(seed);
    let draws = std::iter::repeat_with(|| random.next());
    draws
        .take(count)
        .map(|bits| (bits, bits as f64 / 2_f64.powi(64)))
        .collect()
}

#[track_caller]
fn assert_near(ours: Duration, theirs_ms: f64) {
    let apart = (ours.as_secs_f64() * 1e3 - theirs_ms).abs();
    assert!(apart < 1e-3, "{ours:?} is not {theirs_ms} ms");
}

#[test]
fn full_and_equal_jitter_are_those_of_aws() {
    for (n, (bits, uniform)) in (0..).zip(chances(1, 24)) {
        let delay = |jitter| as_in_the_simulator(jitter).delay(n + 1, || bits);
        assert_near(delay(Jitter::Full), aws::full(n, uniform));
        assert_near(delay(Jitter::Equal), aws::equal(n, uniform));
    }
}

#[test]
fn decorrelated_jitter_is_that_of_aws_for_the_same_chances() {
    let chances = chances(2, 40);
    let mut sleep = aws::BASE;
    for (retry, (_, uniform)) in (1..).zip(&chances) {
        sleep = aws::decorrelated(sleep, *uniform);
        let mut bits = chances.iter().map(|(bits, _)| *bits);
        let ours = as_in_the_simulator(Jitter::Decorrelated).delay(retry, || bits.next().unwrap());
        assert_near(ours, sleep);
    }
}

/// riverqueue/river, retry_policy_test.go, at 19d2161: TestDefaultRetryPolicy_retrySecondsWithoutJitter. River adds up to 10%
/// either way, which is none of our jitters.
#[test]
fn river_as_a_custom_policy() {
    let river = plain(Backoff::Custom(|retry| {
        Duration::from_secs(u64::from(retry).saturating_pow(4))
    }));
    let (minute, hour, day) = (60, 60 * 60, 24 * 60 * 60);
    let published = [
        1,
        16,
        minute + 21,
        4 * minute + 16,
        10 * minute + 25,
        21 * minute + 36,
        40 * minute + 1,
        hour + 8 * minute + 16,
        hour + 49 * minute + 21,
        2 * hour + 46 * minute + 40,
        4 * hour + 4 * minute + 1,
        5 * hour + 45 * minute + 36,
        7 * hour + 56 * minute + 1,
        10 * hour + 40 * minute + 16,
        14 * hour + 3 * minute + 45,
        18 * hour + 12 * minute + 16,
        23 * hour + 12 * minute + 1,
        day + 5 * hour + 9 * minute + 36,
        day + 12 * hour + 12 * minute + 1,
        day + 20 * hour + 26 * minute + 40,
        2 * day + 6 * hour + minute + 21,
        2 * day + 17 * hour + 4 * minute + 16,
        3 * day + 5 * hour + 44 * minute + 1,
        3 * day + 20 * hour + 9 * minute + 36,
    ];
    for (retry, seconds) in (1..).zip(published) {
        assert_eq!(river.delay(retry, || 0).as_secs(), seconds, "retry {retry}");
    }
    // Where River stops at 292 years, a policy has stopped at its cap.
    assert_eq!(river.delay(1_000_000, || 0), days(365));
}

/// oban-bg/oban, lib/oban/worker.ex at 0148328 (15 + 2^attempt, at most 20) and test/oban/worker_test.exs at 0284441: 17, 19, 31,
/// 47. Oban adds up to 10%, which is none of our jitters.
#[test]
fn oban_as_a_custom_policy() {
    let oban = plain(Backoff::Custom(|retry| Duration::from_secs(15 + (1 << retry.min(20)))));
    for (attempt, seconds) in [
        (1, 17),
        (2, 19),
        (4, 31),
        (5, 47),
        (20, 15 + 1_048_576),
        (21, 15 + 1_048_576),
    ] {
        assert_eq!(oban.delay(attempt, || 0).as_secs(), seconds, "attempt {attempt}");
    }
}

/// graphile/worker, website/docs/exponential-backoff.md, at 6fe0ed7: exp(least(10, attempt)) seconds.
#[test]
fn graphile_as_a_custom_policy() {
    let graphile = plain(Backoff::Custom(|retry| {
        Duration::from_secs_f64(f64::from(retry.min(10)).exp())
    }));
    let published_micros = [
        2_718_282,
        7_389_056,
        20_085_537,
        54_598_150,
        148_413_159,
        403_428_793,
        1_096_633_158,
        2_980_957_987,
        8_103_083_928,
        22_026_465_795,
        22_026_465_795,
    ];
    let half = Duration::from_nanos(500);
    for (attempt, micros) in (1..).zip(published_micros) {
        let rounded = graphile.delay(attempt, || 0) + half;
        assert_eq!(rounded.as_micros(), micros, "attempt {attempt}");
    }
}
