//! Schedules, held against clocks that are set, against other implementations and against their own laws. No database, no real
//! time.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

mod clocks;
mod every;
mod hostile;
mod laws;
mod vectors;
mod walk;

use std::time::{Duration, SystemTime};

use steadfast::Cron;

fn cron(expression: &str, zone: &str) -> Cron {
    Cron::parse(expression, zone).unwrap_or_else(|error| panic!("{expression} {zone}: {error}"))
}

/// The ticks after a moment, as the clocks of the zone show them.
fn local(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let cron = cron(expression, zone);
    let after = cron.moment(after).unwrap();
    let ticks = cron.between(after, end(), count);
    ticks.into_iter().map(|tick| cron.local(tick)).collect()
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// The year 9999.
fn end() -> SystemTime {
    at(253_402_207_200)
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

    fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}
