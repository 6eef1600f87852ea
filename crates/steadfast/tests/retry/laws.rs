//! What holds for every policy, tried with many, by a fixed seed.

use std::time::Duration;

use steadfast::breaker::Breaker;
use steadfast::{Backoff, Code, Decision, Failure, FailureClass, GiveUp, Jitter, RetryPolicy};

use super::{Random, days};

const POLICIES: usize = 5_000;

/// Attempts at which an exponent, a product or a sum could overflow.
const EDGES: [u32; 14] = [0, 1, 2, 31, 32, 33, 54, 55, 63, 64, 65, 1_000, u32::MAX - 1, u32::MAX];

struct Tried {
    policy: RetryPolicy,
    backoff: Backoff,
    base: Duration,
    cap: Duration,
    jitter: Jitter,
}

/// Any duration there may be, short ones as likely as long ones.
fn duration(random: &mut Random) -> Duration {
    let nanos = random.next() >> (9 + random.below(55));
    Duration::from_nanos(nanos).clamp(Duration::from_nanos(1), days(365))
}

fn policies() -> impl Iterator<Item = Tried> {
    let mut random = Random(42);
    std::iter::repeat_with(move || {
        let base = duration(&mut random);
        let cap = duration(&mut random).max(base);
        let jitter = [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Decorrelated][random.below(4) as usize];
        let backoff = match (jitter, random.below(5)) {
            (Jitter::Decorrelated, _) | (_, 0) => Backoff::Exponential(base),
            (_, 1) => Backoff::Constant(base),
            (_, 2) => Backoff::Linear(base),
            (_, 3) => Backoff::Custom(|_| Duration::MAX),
            _ => Backoff::Immediate,
        };
        let builder = RetryPolicy::builder().backoff(backoff).cap(cap).jitter(jitter);
        let policy = builder.retries(1_000).build().unwrap();
        Tried {
            policy,
            backoff,
            base,
            cap,
            jitter,
        }
    })
    .take(POLICIES)
}

/// The delay by arithmetic that has room for everything; the cap is the bound.
fn exact(tried: &Tried, retry: u32) -> Duration {
    let base = tried.base.as_nanos();
    let nanos = match tried.backoff {
        Backoff::Immediate => 0,
        Backoff::Constant(_) => base,
        Backoff::Linear(_) => base * u128::from(retry.max(1)),
        Backoff::Exponential(_) => base << retry.max(1).saturating_sub(1).min(64),
        _ => u128::MAX,
    };
    Duration::from_nanos(nanos.min(tried.cap.as_nanos()) as u64)
}

#[test]
fn delays_stay_within_their_bounds_at_any_attempt() {
    let mut random = Random(7);
    for tried in policies() {
        for retry in EDGES.into_iter().chain([random.next() as u32]) {
            for bits in [0, u64::MAX, random.next()] {
                let delay = tried.policy.delay(retry, || bits);
                let exact = exact(&tried, retry);
                let bounds = match tried.jitter {
                    Jitter::Full => Duration::ZERO..=exact,
                    Jitter::Equal => exact / 2..=exact,
                    Jitter::Decorrelated => tried.base..=tried.cap,
                    _ => exact..=exact,
                };
                assert!(bounds.contains(&delay), "{:?}, retry {retry}: {delay:?}", tried.policy);
            }
        }
    }
}

#[test]
fn no_attempt_number_and_no_age_overflows_a_decision() {
    let failure = Failure::transient("busy", "not now").with_retry_after(Duration::MAX);
    for tried in policies().take(500) {
        for attempt in EDGES {
            for elapsed in [Duration::ZERO, Duration::MAX] {
                let decided = tried.policy.decide(attempt, &failure, elapsed, || u64::MAX);
                let expected = match attempt {
                    0..=1_000 => Decision::Retry(Duration::MAX),
                    _ => Decision::GiveUp(GiveUp::Exhausted),
                };
                assert_eq!(decided, expected);
            }
        }
    }
}

/// How often something is tried that always fails like this.
fn attempts(policy: &RetryPolicy, failure: &Failure) -> u32 {
    let mut attempt = 1;
    while let Decision::Retry(_) = policy.decide(attempt, failure, Duration::ZERO, || 0) {
        attempt += 1;
    }
    attempt
}

#[test]
fn retries_and_one_more_are_the_attempts() {
    for retries in [0, 1, 2, 5, 25, 999, 1_000] {
        let policy = RetryPolicy::builder().retries(retries).build().unwrap();
        assert_eq!(attempts(&policy, &Failure::transient("busy", "not now")), retries + 1);
        assert_eq!(policy.attempts(), retries + 1);
    }
}

#[test]
fn what_can_never_succeed_is_tried_once_and_the_unknown_only_with_a_key() {
    let policy = RetryPolicy::default();
    let definitive = Failure::definitive(FailureClass::NotFound, "gone", "gone").with_retry_after(Duration::ZERO);
    let unknown = Failure::unknown("lost", "no reply");
    assert_eq!(attempts(&policy.with_key(), &definitive), 1);
    assert_eq!(attempts(&policy.with_key(), &Failure::cancelled()), 1);
    assert_eq!(attempts(&policy, &unknown), 1);
    assert_eq!(attempts(&policy.with_key(), &unknown), 6);
    let why = |failure: &Failure| policy.decide(1, failure, Duration::ZERO, || 0);
    assert_eq!(why(&definitive), Decision::GiveUp(GiveUp::Definitive));
    assert_eq!(why(&Failure::cancelled()), Decision::GiveUp(GiveUp::Cancelled));
    assert_eq!(why(&unknown), Decision::GiveUp(GiveUp::Unkeyed));
}

#[test]
fn a_snooze_is_waited_for_as_it_asks_and_spends_no_attempt() {
    let policy = RetryPolicy::builder().retries(0).build().unwrap();
    let snooze = Failure::snooze(Duration::from_secs(90));
    let decided = policy.decide(u32::MAX, &snooze, Duration::ZERO, || 0);
    assert_eq!(decided, Decision::Retry(Duration::from_secs(90)));
}

#[test]
fn a_snooze_without_a_time_is_waited_for_as_the_first_retry() {
    let policy: RetryPolicy = r#"backoff = exponential("10s"), jitter = none"#.parse().unwrap();
    let breaker = Breaker::named("payments").build().unwrap();
    breaker.force_open();
    let forced = Failure::from(breaker.permit().unwrap_err());
    let decided = policy.decide(4, &forced, Duration::ZERO, || 0);
    assert_eq!(decided, Decision::Retry(Duration::from_secs(10)));
}

#[test]
fn retry_after_makes_a_delay_longer_and_never_shorter() {
    let policy: RetryPolicy = r#"backoff = constant("10s"), cap = "10s", jitter = none"#.parse().unwrap();
    let delay = |seconds| {
        let failure = Failure::transient("busy", "not now").with_retry_after(Duration::from_secs(seconds));
        policy.decide(1, &failure, Duration::ZERO, || 0)
    };
    assert_eq!(delay(3), Decision::Retry(Duration::from_secs(10)));
    assert_eq!(delay(30), Decision::Retry(Duration::from_secs(30)));
}

#[test]
fn no_attempt_begins_after_the_age_is_reached() {
    let policy: RetryPolicy = r#"backoff = constant("10s"), jitter = none, max_age = "1m""#.parse().unwrap();
    let decide = |failure: &Failure, elapsed| policy.decide(1, failure, Duration::from_secs(elapsed), || 0);
    let busy = Failure::transient("busy", "not now");
    assert_eq!(decide(&busy, 50), Decision::Retry(Duration::from_secs(10)));
    assert_eq!(decide(&busy, 51), Decision::GiveUp(GiveUp::TooOld));
    assert_eq!(
        decide(&Failure::snooze(Duration::from_secs(61)), 0),
        Decision::GiveUp(GiveUp::TooOld)
    );
    assert_eq!(
        decide(&busy.with_retry_after(days(2)), 0),
        Decision::GiveUp(GiveUp::TooOld)
    );
}

/// Delays between these two bounds fall into ten equal parts about equally often.
#[track_caller]
fn assert_spread(jitter: Jitter, low: Duration, high: Duration) {
    let builder = RetryPolicy::builder()
        .backoff(Backoff::Exponential(high))
        .jitter(jitter);
    let policy = builder.build().unwrap();
    let mut random = Random(11);
    let mut parts = [0; 10];
    for _ in 0..10_000 {
        let delay = policy.delay(1, || random.next());
        let share = (delay - low).as_secs_f64() / (high - low).as_secs_f64();
        parts[((share * 10.0) as usize).min(9)] += 1;
    }
    // 10000 draws, 1000 in each part, by chance 30 more or less: five times that is never reached.
    assert!(parts.iter().all(|part| (850..=1_150).contains(part)), "{parts:?}");
}

#[test]
fn jitter_spreads_those_who_failed_together() {
    let second = Duration::from_secs(1);
    assert_spread(Jitter::Full, Duration::ZERO, second);
    assert_spread(Jitter::Equal, second / 2, second);
    // Between the base and three times the base, for the first retry.
    let builder = RetryPolicy::builder().backoff(Backoff::Exponential(second));
    let policy = builder.jitter(Jitter::Decorrelated).build().unwrap();
    let mut random = Random(13);
    let delays: Vec<_> = (0..10_000).map(|_| policy.delay(1, || random.next())).collect();
    let above = delays.iter().filter(|delay| **delay > 2 * second).count();
    assert!((4_750..=5_250).contains(&above), "{above}");
    assert!(delays.iter().all(|delay| (second..=3 * second).contains(delay)));
}

#[test]
fn a_bad_policy_is_refused_when_it_is_built_with_its_rule() {
    let second = Duration::from_secs(1);
    let builder = RetryPolicy::builder;
    for (bad, rule) in [
        (builder().retries(1_001), "`retries` is 1001; write at most 1000"),
        (builder().retries(u32::MAX), "`retries`"),
        (
            builder().backoff(Backoff::Constant(Duration::ZERO)),
            "`backoff` is no time at all",
        ),
        (
            builder().backoff(Backoff::Linear(Duration::ZERO)),
            "or `backoff = immediate`",
        ),
        (
            builder().backoff(Backoff::Exponential(Duration::MAX)),
            "`backoff` is more than 365 days",
        ),
        (
            builder().backoff(Backoff::Linear(2 * second)).cap(second),
            "`cap` is 1s and the first delay 2s",
        ),
        (builder().cap(Duration::ZERO), "`cap`"),
        (builder().cap(Duration::MAX), "`cap` is more than 365 days"),
        (
            builder().backoff(Backoff::Immediate).cap(Duration::ZERO),
            "`cap` is no time at all",
        ),
        (builder().max_age(Duration::ZERO), "`max_age` is no time at all"),
        (builder().max_age(Duration::MAX), "`max_age` is more than 365 days"),
        (
            builder().backoff(Backoff::Linear(second)).jitter(Jitter::Decorrelated),
            "`jitter` is decorrelated",
        ),
    ] {
        let error = bad.build().unwrap_err();
        assert_eq!(error.code(), Code::RetryInvalid);
        assert!(error.to_string().contains(rule), "{error}");
        assert!(error.to_string().contains("; write"), "it says what to write: {error}");
    }
}
