//! What must not allocate. A binary of its own: the allocator belongs to the whole process.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use steadfast::Failure;
use steadfast::breaker::{Breaker, BreakerState};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// One test, so that no other thread allocates while it looks.
#[test]
fn a_breaker_allocates_neither_on_the_closed_pass_nor_on_the_open_refusal() {
    let lost = Failure::transient("lost", "no reply");
    for options in [
        Breaker::named("consecutive").consecutive_failures(100),
        Breaker::named("rate").failure_rate(0.5).window(64),
    ] {
        let breaker = options.build().unwrap();
        let region = Region::new(ALLOCATOR);
        for _ in 0..1_000 {
            breaker.permit().unwrap().success();
        }
        for _ in 0..10 {
            breaker.permit().unwrap().failure(&lost);
            breaker.permit().unwrap().success();
        }
        drop(breaker.permit().unwrap());
        assert_eq!(region.change().allocations, 0, "{} closed", breaker.name());

        while breaker.state() == BreakerState::Closed {
            breaker.permit().unwrap().failure(&lost);
        }
        let region = Region::new(ALLOCATOR);
        for _ in 0..1_000 {
            assert!(breaker.permit().is_err());
        }
        assert_eq!(region.change().allocations, 0, "{} open", breaker.name());
    }
}
