//! What must not allocate. A binary of its own: the allocator belongs to the whole process.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::hint::black_box;
use std::time::Duration;

use steadfast::breaker::{Breaker, BreakerState};
use steadfast::{Failure, FailureClass, RetryPolicy};

#[test]
fn a_decision_allocates_nothing() {
    let failures = [
        Failure::transient("busy", "not now"),
        Failure::definitive(FailureClass::NotFound, "gone", "gone"),
        Failure::unknown("lost", "no reply"),
        Failure::snooze(Duration::from_secs(1)),
        Failure::cancelled(),
    ];
    for text in [
        "jitter = none",
        "jitter = full",
        "jitter = equal",
        "jitter = decorrelated",
        r#"backoff = linear("1s"), max_age = "1m""#,
        "backoff = immediate",
    ] {
        let policy: RetryPolicy = text.parse().unwrap();
        let allocated = allocation_counter::measure(|| {
            for failure in &failures {
                for attempt in [1, 6, u32::MAX] {
                    black_box(policy.decide(attempt, failure, Duration::from_secs(1), || 7));
                }
            }
        });
        assert_eq!(allocated.count_total, 0, "{text}");
    }
}

#[test]
fn a_breaker_allocates_neither_on_the_closed_pass_nor_on_the_open_refusal() {
    let lost = Failure::transient("lost", "no reply");
    for options in [
        Breaker::named("consecutive").consecutive_failures(100),
        Breaker::named("rate").failure_rate(0.5).window(64),
    ] {
        let breaker = options.build().unwrap();
        let closed = allocation_counter::measure(|| {
            for _ in 0..1_000 {
                breaker.permit().unwrap().success();
            }
            for _ in 0..10 {
                breaker.permit().unwrap().failure(&lost);
                breaker.permit().unwrap().success();
            }
            drop(breaker.permit().unwrap());
        });
        assert_eq!(closed.count_total, 0, "{} closed", breaker.name());

        while breaker.state() == BreakerState::Closed {
            breaker.permit().unwrap().failure(&lost);
        }
        let open = allocation_counter::measure(|| {
            for _ in 0..1_000 {
                assert!(breaker.permit().is_err());
            }
        });
        assert_eq!(open.count_total, 0, "{} open", breaker.name());
    }
}

#[test]
fn an_allocation_is_seen() {
    assert_eq!(
        allocation_counter::measure(|| drop(black_box(Box::new(1)))).count_total,
        1
    );
}
