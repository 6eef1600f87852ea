//! What comes of the outbox if it goes on like this.

use std::fmt;
use std::time::Duration;

use super::count::Count;
use super::stats::OutboxStats;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// What a message takes beside its payload, with its indexes, and what a delivery takes in the history. Measured with a
/// million of them on PostgreSQL, with ids of correlation and trace; on SQLite it is about the same.
const MESSAGE_BYTES: u64 = 240;
const DELIVERY_BYTES: u64 = 80;

/// What comes of the outbox if it goes on like this: [`OutboxStats::forecast`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forecast {
    /// By how many rows the backlog grows in an hour; it shrinks if this is negative.
    pub growth_per_hour: i64,
    /// What becomes of the backlog.
    pub backlog: Backlog,
    /// How many messages there will be when the retention holds as many as it will.
    pub retained_messages: u64,
    /// About how many bytes they and their deliveries will take.
    pub retained_bytes: u64,
    rows_per_hour: u64,
    is_at_least: bool,
}

/// What becomes of the rows that are neither finished nor dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backlog {
    /// There are none.
    Empty,
    /// As many come as go.
    Steady,
    /// There will be none after this time.
    EmptyIn(Duration),
    /// There will be twice as many after this time.
    DoublesIn(Duration),
}

impl Forecast {
    pub(super) fn of(stats: &OutboxStats) -> Self {
        let flow = &stats.flow;
        let Count { number, is_capped } = stats.backlog();
        let growth = signed(flow.entered_per_hour) - signed(flow.finished_per_hour);
        let hours = |count: u64| HOUR.mul_f64(count as f64 / growth.unsigned_abs() as f64);
        let backlog = match (number, growth) {
            (0, _) => Backlog::Empty,
            (_, 0) => Backlog::Steady,
            (waiting, ..0) => Backlog::EmptyIn(hours(waiting)),
            (waiting, _) => Backlog::DoublesIn(hours(waiting)),
        };
        let kept = |per_hour: u64| (per_hour as f64 * stats.retention.as_secs_f64() / HOUR.as_secs_f64()) as u64;
        let messages = kept(flow.messages_per_hour);
        let message_bytes = messages.saturating_mul(flow.payload_bytes + MESSAGE_BYTES);
        let delivery_bytes = kept(flow.entered_per_hour).saturating_mul(DELIVERY_BYTES);
        Self {
            growth_per_hour: growth,
            backlog,
            retained_messages: messages,
            retained_bytes: message_bytes.saturating_add(delivery_bytes),
            rows_per_hour: flow.entered_per_hour,
            is_at_least: is_capped,
        }
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// What becomes of the backlog, in a sentence.
impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, growth) = (self.rows_per_hour, self.growth_per_hour.unsigned_abs());
        let least = if self.is_at_least { "not before " } else { "in " };
        match self.backlog {
            Backlog::Empty if rows == 0 => f.write_str("nothing waits, and nothing comes"),
            Backlog::Empty => write!(f, "nothing waits; {rows} rows come in an hour, and are done"),
            Backlog::Steady if rows == 0 => f.write_str("what waits stays: nothing comes, and nothing is done"),
            Backlog::Steady => write!(
                f,
                "the backlog stays as it is: {rows} rows come in an hour, and as many are done"
            ),
            Backlog::EmptyIn(after) => write!(
                f,
                "the backlog shrinks by {growth} an hour; at this pace it is empty {least}{}",
                about(after)
            ),
            Backlog::DoublesIn(after) => write!(
                f,
                "the backlog grows by {growth} an hour; at this pace it doubles {least}{}",
                about(after)
            ),
        }
    }
}

/// A time as people say it.
pub(crate) fn about(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::super::stats::{Flow, KindStats};
    use super::*;

    fn stats(pending: Count, entered: u64, finished: u64) -> OutboxStats {
        let kind = KindStats {
            pending,
            ..KindStats::default()
        };
        let flow = Flow {
            window: HOUR,
            messages_per_hour: entered,
            entered_per_hour: entered,
            finished_per_hour: finished,
            payload_bytes: 640,
        };
        OutboxStats {
            kinds: vec![kind],
            flow,
            tables: Vec::new(),
            retention: 7 * 24 * HOUR,
            oldest_finished: None,
        }
    }

    fn count(number: u64) -> Count {
        Count {
            number,
            is_capped: false,
        }
    }

    #[test]
    fn the_backlog_grows_shrinks_or_stays() {
        for (waiting, entered, finished, says) in [
            (0, 0, 0, "nothing waits, and nothing comes"),
            (0, 60, 60, "nothing waits; 60 rows come in an hour, and are done"),
            (7, 0, 0, "what waits stays: nothing comes, and nothing is done"),
            (
                7,
                9,
                9,
                "the backlog stays as it is: 9 rows come in an hour, and as many are done",
            ),
            (
                600,
                100,
                400,
                "the backlog shrinks by 300 an hour; at this pace it is empty in 2 h",
            ),
            (
                100,
                400,
                0,
                "the backlog grows by 400 an hour; at this pace it doubles in 15 min",
            ),
        ] {
            assert_eq!(stats(count(waiting), entered, finished).forecast().to_string(), says);
        }
        let many = Count {
            number: 100_000,
            is_capped: true,
        };
        let says = stats(many, 0, 50_000).forecast().to_string();
        assert_eq!(
            says,
            "the backlog shrinks by 50000 an hour; at this pace it is empty not before 2 h"
        );
    }

    #[test]
    fn the_retention_holds_what_comes_in_its_time() {
        let forecast = stats(count(0), 1_000, 1_000).forecast();
        assert_eq!(forecast.retained_messages, 168_000);
        assert_eq!(
            forecast.retained_bytes,
            168_000 * (640 + MESSAGE_BYTES + DELIVERY_BYTES)
        );
    }
}
