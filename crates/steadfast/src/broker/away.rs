//! Times when the other side cannot be reached at all: nobody's messages are to blame, and nobody should knock all the time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::clock::random;
use crate::retry::{Backoff, Jitter, RetryPolicy};
use crate::telemetry;

/// How long messages are put off, the longer the longer it is away.
const PAUSE: RetryPolicy = RetryPolicy::checked(
    u32::MAX - 1,
    Backoff::Exponential(Duration::from_secs(1)),
    Duration::from_secs(30),
    Jitter::Equal,
    None,
);

/// How long a source is left alone. Nobody waits for it but its messages, and they should not wait for long.
const SOURCE_PAUSE: RetryPolicy = RetryPolicy::checked(
    u32::MAX - 1,
    Backoff::Exponential(Duration::from_millis(200)),
    Duration::from_secs(10),
    Jitter::Equal,
    None,
);

/// Whether the other side of a sink or a source is away, and for how long.
#[derive(Debug, Default)]
pub(crate) struct Away {
    /// How often in a row it could not be reached.
    misses: AtomicU32,
    is_source: bool,
}

impl Away {
    pub(crate) fn of_source() -> Self {
        Self {
            is_source: true,
            ..Self::default()
        }
    }

    /// It could not be reached: how long messages are put off. The first time it is said in the log.
    pub(crate) fn has_missed(&self, server: &str, why: &str) -> Duration {
        let misses = self.misses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        match (misses, self.is_source) {
            (1, false) => telemetry::sink_is_away(server, why),
            (1, true) => telemetry::source_is_away(server, why),
            _ => {}
        }
        let pause = if self.is_source { SOURCE_PAUSE } else { PAUSE };
        pause.delay(misses, random)
    }

    /// It could be reached.
    pub(crate) fn is_back(&self, server: &str) {
        match (self.misses.swap(0, Ordering::Relaxed), self.is_source) {
            (0, _) => {}
            (_, false) => telemetry::sink_is_back(server),
            (_, true) => telemetry::source_is_back(server),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(away: &Away) -> Duration {
        away.has_missed("nats://127.0.0.1:4222", "refused")
    }

    #[test]
    fn the_longer_it_is_away_the_longer_it_is_left_alone() {
        let away = Away::default();
        assert!(pause(&away) <= Duration::from_secs(1));
        for _ in 0..10 {
            pause(&away);
        }
        assert!((Duration::from_secs(15)..=Duration::from_secs(30)).contains(&pause(&away)));
        away.is_back("nats://127.0.0.1:4222");
        assert!(pause(&away) <= Duration::from_secs(1));
    }
}
