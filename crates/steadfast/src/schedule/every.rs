//! A fixed interval.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::ticks;
use crate::clock::{ReadDuration, Timestamp, micros};
use crate::error::{Code, Error, Result};

/// What is due more often is no schedule but a loop.
const MIN: Duration = Duration::from_secs(1);
/// What is due more rarely has a date, which is for [`Cron`](super::Cron) to say.
const MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A fixed interval, counted from the beginning of 1970 in UTC, so that all processes have the same ticks.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use steadfast::Every;
///
/// let every = Every::new("15m")?;
/// let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
/// assert_eq!(every.next_after(at(1_000)), Some(at(1_800)));
/// assert_eq!(every.next_after(at(1_800)), Some(at(2_700)));
/// # Ok::<(), steadfast::Error>(())
/// ```
///
/// No clock that is set anywhere changes it. `24h` is midnight in UTC, and `7d` is that of Thursdays; for the midnights or the
/// Mondays of a place there is [`Cron`](super::Cron).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every {
    micros: i64,
}

impl Every {
    /// An interval of 1 second to 365 days, in whole milliseconds, as a [`Duration`] or as text: `30s`, `15m`, `6h`, `1d`.
    ///
    /// # Errors
    /// [`Code::ConfigurationInvalid`] if it is something else.
    pub fn new(interval: impl ReadDuration) -> Result<Self> {
        let interval = interval.read_duration()?;
        let is_whole = interval.subsec_nanos() % 1_000_000 == 0;
        if !(MIN..=MAX).contains(&interval) || !is_whole {
            return Err(Error::new(
                Code::ConfigurationInvalid,
                format!("an interval of {interval:?} is no schedule; write 1s to 365d, in whole milliseconds"),
            ));
        }
        Ok(Self {
            micros: micros(interval),
        })
    }

    /// The first tick after this moment. Ticks begin with 1970.
    pub fn next_after(&self, after: SystemTime) -> Option<SystemTime> {
        self.tick_after(Timestamp::of(after)).map(Into::into)
    }

    /// The ticks after one moment and up to another, from the first one on, at most `max` of them.
    pub fn between(&self, after: SystemTime, until: SystemTime, max: usize) -> Vec<SystemTime> {
        let (after, until) = (Timestamp::of(after), Timestamp::of(until));
        let ticks = ticks(|after| self.tick_after(after), after, until, max);
        ticks.into_iter().map(Into::into).collect()
    }

    pub(crate) fn tick_after(&self, after: Timestamp) -> Option<Timestamp> {
        let number = after.0.div_euclid(self.micros) + 1;
        number.max(0).checked_mul(self.micros).map(Timestamp)
    }
}

/// As it is written in options: `15m`.
impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.micros / 1_000;
        let units = [
            (86_400_000, "d"),
            (3_600_000, "h"),
            (60_000, "m"),
            (1_000, "s"),
            (1, "ms"),
        ];
        let whole = units.into_iter().find(|(unit, _)| millis % unit == 0);
        let (unit, name) = whole.unwrap_or((1, "ms"));
        write!(f, "{}{name}", millis / unit)
    }
}
