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

/// How long a source is left alone, and what carries notices. Nobody waits for them but messages and live clients, and those should
/// not wait for long.
const SHORT_PAUSE: RetryPolicy = RetryPolicy::checked(
    u32::MAX - 1,
    Backoff::Exponential(Duration::from_millis(200)),
    Duration::from_secs(10),
    Jitter::Equal,
    None,
);

/// Who misses the other side.
#[derive(Clone, Copy, Debug, Default)]
enum Who {
    #[default]
    Sink,
    Source,
    DeadLetters,
    Telling,
    Hearing,
}

/// Whether the other side of a sink, a source or a messenger is away, and for how long.
#[derive(Debug, Default)]
pub(crate) struct Away {
    /// How often in a row it could not be reached.
    misses: AtomicU32,
    who: Who,
}

impl Away {
    pub(crate) fn of_source() -> Self {
        Self {
            who: Who::Source,
            ..Self::default()
        }
    }

    pub(crate) fn of_dead_letters() -> Self {
        Self {
            who: Who::DeadLetters,
            ..Self::default()
        }
    }

    /// Of a process that tells others of new entries.
    pub(crate) fn of_telling() -> Self {
        Self {
            who: Who::Telling,
            ..Self::default()
        }
    }

    /// Of one that hears of them.
    pub(crate) fn of_hearing() -> Self {
        Self {
            who: Who::Hearing,
            ..Self::default()
        }
    }

    /// It could not be reached: how long messages are put off. The first time it is said in the log.
    pub(crate) fn has_missed(&self, server: &str, why: &str) -> Duration {
        let misses = self.misses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        match (misses, self.who) {
            (1, Who::Sink) => telemetry::sink_is_away(server, why),
            (1, Who::Source) => telemetry::source_is_away(server, why),
            (1, Who::DeadLetters) => telemetry::dead_letters_are_away(server, why),
            (1, Who::Telling) => telemetry::others_are_not_told(server, why),
            (1, Who::Hearing) => telemetry::others_are_not_heard(server, why),
            _ => {}
        }
        let pause = match self.who {
            Who::Sink | Who::DeadLetters => PAUSE,
            _ => SHORT_PAUSE,
        };
        pause.delay(misses, random)
    }

    /// It could be reached.
    pub(crate) fn is_back(&self, server: &str) {
        match (self.misses.swap(0, Ordering::Relaxed), self.who) {
            (0, _) => {}
            (_, Who::Sink) => telemetry::sink_is_back(server),
            (_, Who::Source) => telemetry::source_is_back(server),
            (_, Who::DeadLetters) => telemetry::dead_letters_are_back(server),
            (_, Who::Telling) => telemetry::others_are_told(server),
            (_, Who::Hearing) => telemetry::others_are_heard(server),
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
