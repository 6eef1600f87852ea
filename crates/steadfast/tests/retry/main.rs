//! Retry policies, held against the published tables of others and against their own laws. No database, no real time.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

mod guide;
mod laws;
mod published;
mod run;
mod text;

use std::time::Duration;

use steadfast::{Backoff, Jitter, RetryPolicy};

/// A policy of these delays, as they are, with room for all of them.
fn plain(backoff: Backoff) -> RetryPolicy {
    let builder = RetryPolicy::builder().retries(1_000).backoff(backoff);
    builder.cap(days(365)).jitter(Jitter::None).build().unwrap()
}

const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 60 * 60)
}

/// SplitMix64: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
