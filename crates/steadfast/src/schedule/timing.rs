//! When a schedule is due, whichever way it says so.

use std::fmt;
use std::time::SystemTime;

use super::{Cron, Every, ticks};
use crate::clock::Timestamp;
use crate::error::{Code, Error, Result};

/// When a schedule is due: by a cron expression, or at a fixed interval.
///
/// ```
/// use steadfast::{Cron, Every, Timing};
///
/// let nightly = Timing::from(Cron::parse("0 3 * * *", "Europe/Madrid")?);
/// let often = Timing::from(Every::new("15m")?);
/// assert_eq!([nightly.to_string(), often.to_string()], ["0 3 * * *", "every 15m"]);
/// # Ok::<(), steadfast::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Timing {
    /// By a cron expression in a time zone.
    Cron(Cron),
    /// At a fixed interval.
    Every(Every),
}

impl Timing {
    /// The first tick after this moment: [`Cron::next_after`], [`Every::next_after`].
    pub fn next_after(&self, after: SystemTime) -> Option<SystemTime> {
        self.tick_after(Timestamp::of(after)).map(Into::into)
    }

    /// The ticks after one moment and up to another, from the first one on, at most `max` of them.
    pub fn between(&self, after: SystemTime, until: SystemTime, max: usize) -> Vec<SystemTime> {
        let ticks = self.ticks(Timestamp::of(after), Timestamp::of(until), max);
        ticks.into_iter().map(Into::into).collect()
    }

    /// As it is stored: the expression or the interval, and the time zone of an expression.
    pub(crate) fn stored(&self) -> (String, Option<String>) {
        let time_zone = match self {
            Self::Cron(cron) => Some(cron.time_zone().to_owned()),
            Self::Every(_) => None,
        };
        (self.to_string(), time_zone)
    }

    /// Reads what is [stored](Self::stored), perhaps by a newer version.
    pub(crate) fn read_stored(timing: &str, time_zone: Option<&str>) -> Result<Self> {
        match (time_zone, timing.strip_prefix("every ")) {
            (Some(time_zone), _) => Cron::parse(timing, time_zone).map(Self::from),
            (None, Some(interval)) => Every::new(interval).map(Self::from),
            (None, None) => {
                let timing: String = timing.chars().take(60).collect();
                let message = format!("{timing:?} is neither a cron expression with a time zone nor an interval");
                Err(Error::new(Code::ConfigurationInvalid, message))
            }
        }
    }

    pub(crate) fn tick_after(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Cron(cron) => cron.tick_after(after),
            Self::Every(every) => every.tick_after(after),
        }
    }

    pub(crate) fn ticks(&self, after: Timestamp, until: Timestamp, max: usize) -> Vec<Timestamp> {
        ticks(|after| self.tick_after(after), after, until, max)
    }
}

impl From<Cron> for Timing {
    fn from(cron: Cron) -> Self {
        Self::Cron(cron)
    }
}

impl From<Every> for Timing {
    fn from(every: Every) -> Self {
        Self::Every(every)
    }
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cron(cron) => cron.fmt(f),
            Self::Every(every) => write!(f, "every {every}"),
        }
    }
}
