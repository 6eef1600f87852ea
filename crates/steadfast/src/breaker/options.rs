//! How a breaker is described, and what cannot be one.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::state::{Settings, Trip};
use super::{Breaker, Share};
use crate::clock::{Clock, ReadDuration};
use crate::error::{Code, Error, Result};

/// Names stand in a table, in metrics and in logs.
const NAME_LENGTH_MAX: usize = 255;

/// A breaker that waits for more failures than this in a row is a slip of the finger.
const FAILURES: RangeInclusive<u32> = 1..=1_000_000;

/// A bit for each call is kept: a window of this size has twelve kilobytes.
const WINDOW: RangeInclusive<u32> = 1..=100_000;

/// More probes than this are no probes.
const PROBES: RangeInclusive<u32> = 1..=1_000;

/// How long it may stay open. Shorter than a millisecond shuts nobody out, longer than a month nobody waits.
const OPEN: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(30 * 24 * 60 * 60);

const GROWTH: RangeInclusive<f64> = 1.0..=100.0;

/// Settings of a [`Breaker`]: see [`Breaker::named`].
#[must_use = "nothing happens until `build`, or `sf.breaker(..)`"]
pub struct BreakerOptions {
    name: Arc<str>,
    failures: Option<u32>,
    rate: Option<f64>,
    window: Option<u32>,
    minimum: Option<u32>,
    open_for: Result<Duration>,
    growth: f64,
    cap: Option<Result<Duration>>,
    probes: u32,
    clock: Clock,
    is_shared: bool,
}

impl BreakerOptions {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            failures: None,
            rate: None,
            window: None,
            minimum: None,
            open_for: Ok(Duration::from_secs(30)),
            growth: 2.0,
            cap: None,
            probes: 1,
            clock: Clock::default(),
            is_shared: false,
        }
    }

    /// Opens after so many failures without a success between them; 5 by default.
    pub fn consecutive_failures(mut self, failures: u32) -> Self {
        self.failures = Some(failures);
        self
    }

    /// Opens when this part of the last calls failed, from above 0 to 1, instead of after consecutive failures. How many
    /// calls are looked at: [`window`](Self::window), [`minimum_calls`](Self::minimum_calls).
    pub fn failure_rate(mut self, rate: f64) -> Self {
        self.rate = Some(rate);
        self
    }

    /// How many of the last calls a failure rate is taken of; 100 by default.
    pub fn window(mut self, calls: u32) -> Self {
        self.window = Some(calls);
        self
    }

    /// How many calls there must have been before a failure rate means anything; 20 by default, or the window if that is
    /// smaller.
    pub fn minimum_calls(mut self, calls: u32) -> Self {
        self.minimum = Some(calls);
        self
    }

    /// How long it stays open the first time; 30 seconds by default.
    pub fn open_for(mut self, duration: impl ReadDuration) -> Self {
        self.open_for = duration.read_duration();
        self
    }

    /// By how much it stays open longer each time it opens again without having closed; twice as long by default, 1 for
    /// no growth.
    pub fn growth(mut self, factor: f64) -> Self {
        self.growth = factor;
        self
    }

    /// How long it stays open at most; ten times [`open_for`](Self::open_for) by default.
    pub fn cap(mut self, duration: impl ReadDuration) -> Self {
        self.cap = Some(duration.read_duration());
        self
    }

    /// How many calls pass while it is half-open; one by default.
    ///
    /// Counting consecutive failures, all of them must succeed, and the first that fails opens it again. With a failure
    /// rate, all answers are awaited and the rate decides.
    pub fn probes(mut self, calls: u32) -> Self {
        self.probes = calls;
        self
    }

    /// Shares a clock, for tests and labs that move the time. [`Steadfast::breaker`](crate::Steadfast::breaker) sets its
    /// own.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Shares its state with all processes on the same database, through the table `breakers`. It needs
    /// [`Steadfast::breaker`](crate::Steadfast::breaker).
    pub fn shared(mut self) -> Self {
        self.is_shared = true;
        self
    }

    /// Makes a breaker that stands alone. Its clones share its state.
    ///
    /// # Errors
    /// SF303 for a setting that means nothing, naming it, the rule and what to write.
    pub fn build(self) -> Result<Breaker> {
        if self.is_shared {
            let rule =
                "is shared through a database, and stands alone; make it by sf.breaker(..), or leave out .shared()";
            return Err(self.refused(rule));
        }
        self.make(None)
    }

    /// Whether there can be such a breaker.
    pub(crate) fn check(&self) -> Result<()> {
        self.settings().map(drop)
    }

    pub(super) fn make(self, share: Option<Share>) -> Result<Breaker> {
        let settings = self.settings()?;
        Ok(Breaker::new(self.name, settings, self.clock, share))
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// What was set, if it makes sense.
    pub(super) fn settings(&self) -> Result<Settings> {
        let name = &*self.name;
        if name.is_empty() || name.len() > NAME_LENGTH_MAX || name.chars().any(char::is_control) {
            let rule = format!("cannot have this name; write 1 to {NAME_LENGTH_MAX} bytes without control characters");
            return Err(self.refused(rule));
        }
        let open_for = self.duration("open_for", &self.open_for)?;
        let cap = match &self.cap {
            Some(cap) => self.duration("cap", cap)?,
            None => open_for.saturating_mul(10).min(*OPEN.end()),
        };
        if cap < open_for {
            let rule = format!("has a cap of {cap:?}, below its open_for of {open_for:?}; raise the cap");
            return Err(self.refused(rule));
        }
        self.within("growth", self.growth, &GROWTH)?;
        self.within("probes", self.probes, &PROBES)?;
        Ok(Settings {
            trip: self.trip()?,
            open_for,
            growth: self.growth,
            cap,
            probes: self.probes,
        })
    }

    fn trip(&self) -> Result<Trip> {
        let Some(rate) = self.rate else {
            if self.window.or(self.minimum).is_some() {
                let rule = "has a window or minimum_calls without a failure_rate; add one, or remove them";
                return Err(self.refused(rule));
            }
            let failures = self.failures.unwrap_or(5);
            self.within("consecutive_failures", failures, &FAILURES)?;
            return Ok(Trip::Consecutive { failures });
        };
        if self.failures.is_some() {
            let rule = "has both consecutive_failures and a failure_rate; choose one";
            return Err(self.refused(rule));
        }
        // NaN is in no range.
        if !(rate > 0.0 && rate <= 1.0) {
            let rule = format!(
                "has a failure_rate of {rate}; write a number above 0, and 1 at most: 0.5 is half of the calls"
            );
            return Err(self.refused(rule));
        }
        let window = self.window.unwrap_or(100);
        self.within("window", window, &WINDOW)?;
        let minimum = self.minimum.unwrap_or(window.min(20));
        self.within("minimum_calls", minimum, &(1..=window))?;
        Ok(Trip::Rate { rate, window, minimum })
    }

    fn duration(&self, what: &str, duration: &Result<Duration>) -> Result<Duration> {
        match duration {
            Ok(duration) if OPEN.contains(duration) => Ok(*duration),
            Ok(duration) => Err(self.refused(format!("has {what} of {duration:?}; write 1ms to 30d"))),
            Err(error) => Err(self.refused(format!("has {what} that cannot be read: {error}"))),
        }
    }

    fn within<N: PartialOrd + Copy + fmt::Display>(
        &self,
        what: &str,
        value: N,
        range: &RangeInclusive<N>,
    ) -> Result<()> {
        if range.contains(&value) {
            return Ok(());
        }
        let (least, most) = (range.start(), range.end());
        Err(self.refused(format!("has {what} of {value}; write {least} to {most}")))
    }

    fn refused(&self, rule: impl fmt::Display) -> Error {
        Error::new(
            Code::ConfigurationInvalid,
            format!("the breaker {:?} {rule}", self.name),
        )
    }

    /// Another breaker of this name is there, with other settings.
    pub(super) fn taken(&self) -> Error {
        self.refused("is there already, with other settings; give it the same ones everywhere, or another name")
    }

    /// There is nobody to look after a shared breaker.
    pub(super) fn without_runtime(&self) -> Error {
        self.refused("is shared by a task of its own; call sf.breaker(..) inside the tokio runtime")
    }

    pub(super) fn on_clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }
}
