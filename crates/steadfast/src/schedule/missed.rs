//! Which ticks are to be worked on now. A pure function of what was dealt with before, the time and the policy.

use std::time::{Duration, SystemTime};

use super::Timing;
use crate::clock::Timestamp;

/// How far skipped ticks are counted. Beyond that, nobody wants to know how many seconds a year has.
const COUNT_MAX: usize = 10_000;

/// What becomes of the ticks that nobody was there for: all processes were down, or the schedule was paused.
///
/// A tick is *missed* when it is older than a grace period, and *on time* until then. What is on time is always worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Missed {
    /// Missed ticks are gone.
    Skip,
    /// The last of the missed ticks stands for all of them; it is gone, too, if one that is on time does.
    Last,
    /// Every missed tick is made up for, the oldest first.
    All,
}

impl Missed {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Skip, Self::Last, Self::All];

    /// The word for it, in tables, JSON and attributes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Last => "last",
            Self::All => "all",
        }
    }
}

/// What a schedule has to do now: [`Timing::due`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Due {
    /// The ticks to work on, the oldest first.
    pub ticks: Vec<SystemTime>,
    /// How many missed ticks are gone by this. Those beyond 10 000 are not counted.
    pub skipped: u64,
    /// Everything up to here is dealt with, as soon as the ticks are: the next call begins with it.
    pub handled: SystemTime,
    /// The tick that comes next. There is more to do at once if it is not in the future, which happens when there was more than `max`.
    pub next: Option<SystemTime>,
}

impl Timing {
    /// Which ticks are to be worked on at this moment, if everything up to `handled` is dealt with. At most `max` of them, and
    /// at least one if any is due; a tick that is older than `grace` is missed.
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::{Cron, Missed, Timing};
    ///
    /// let cron = Cron::parse("0 3 * * *", "Europe/Madrid")?;
    /// let (sunday, thursday) = (cron.moment("2026-05-03 12:00")?, cron.moment("2026-05-07 08:00")?);
    /// let last = cron.moment("2026-05-07 03:00")?;
    /// let timing = Timing::from(cron);
    ///
    /// // The nights to Monday, Tuesday, Wednesday and Thursday were missed.
    /// let due = |missed| timing.due(sunday, thursday, missed, Duration::from_secs(60), 100);
    /// assert_eq!((due(Missed::All).ticks.len(), due(Missed::All).skipped), (4, 0));
    /// assert_eq!((due(Missed::Last).ticks, due(Missed::Last).skipped), (vec![last], 3));
    /// assert_eq!((due(Missed::Skip).ticks, due(Missed::Skip).skipped), (vec![], 4));
    /// # Ok::<(), steadfast::Error>(())
    /// ```
    ///
    /// No tick is ever handed out twice, nor does one come back after it was skipped: if the clock is set back, nothing is due until
    /// it has passed `handled` again. It asks nobody for the time, and what it costs does not grow with the time that was missed,
    /// but for [`Missed::All`].
    pub fn due(&self, handled: SystemTime, now: SystemTime, missed: Missed, grace: Duration, max: usize) -> Due {
        let (handled, now) = (Timestamp::of(handled), Timestamp::of(now));
        let on_time_after = now.before(grace).max(handled);
        let skip_until = match missed {
            Missed::All => handled,
            Missed::Skip => on_time_after,
            Missed::Last if self.is_due(on_time_after, now) => on_time_after,
            Missed::Last => match self.last_tick(handled, on_time_after) {
                Some(last) => Timestamp(last.0 - 1),
                None => handled,
            },
        };
        let skipped = self.count(handled, skip_until);
        let ticks = self.ticks(skip_until, now, max.max(1));
        let handled = match ticks.last() {
            Some(last) => *last,
            None if skipped > 0 => skip_until,
            None => handled,
        };
        Due {
            ticks: ticks.into_iter().map(Into::into).collect(),
            skipped,
            handled: handled.into(),
            next: self.tick_after(handled).map(Into::into),
        }
    }

    fn is_due(&self, after: Timestamp, until: Timestamp) -> bool {
        self.tick_after(after).is_some_and(|tick| tick <= until)
    }

    /// The last tick after one moment and up to another. Found by halves, since a year may have thirty million of them.
    fn last_tick(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let mut last = self.tick_after(after).filter(|tick| *tick <= until)?;
        let mut end = until;
        // Up to `last` there is one that is not later than `until`; after `end` there is none.
        while last < end {
            let middle = Timestamp(last.0 + (end.0 - last.0) / 2);
            match self.tick_after(middle) {
                Some(tick) if tick <= until => last = tick,
                _ => end = middle,
            }
        }
        Some(last)
    }

    fn count(&self, after: Timestamp, until: Timestamp) -> u64 {
        self.ticks(after, until, COUNT_MAX).len() as u64
    }
}
