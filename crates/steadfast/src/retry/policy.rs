//! The decision: whether to try again, and when. Pure: time and chance come from outside.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::backoff::{Backoff, Jitter, Refusal, Settings};
use super::text::Reader;
use crate::error::{Code, Error, Result};
use crate::failure::{Failure, FailureKind};

/// When to try again, and when to give up.
///
/// ```
/// use std::time::Duration;
/// use steadfast::{Decision, Failure, GiveUp, RetryPolicy};
///
/// let policy: RetryPolicy = r#"retries = 2, backoff = exponential("200ms"), jitter = none"#.parse()?;
/// assert_eq!(policy.attempts(), 3);
///
/// let busy = Failure::transient("busy", "not now");
/// let decide = |attempt| policy.decide(attempt, &busy, Duration::ZERO, || 0);
/// assert_eq!(decide(1), Decision::Retry(Duration::from_millis(200)));
/// assert_eq!(decide(2), Decision::Retry(Duration::from_millis(400)));
/// assert_eq!(decide(3), Decision::GiveUp(GiveUp::Exhausted));
/// # Ok::<(), steadfast::Error>(())
/// ```
///
/// Without options it is `retries = 5, backoff = exponential("200ms"), cap = "1h", jitter = full`.
/// [`retry!`](macro@crate::retry) reads the same text at compile time, [`RetryPolicy::builder`] takes values.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    settings: Settings,
    is_keyed: bool,
}

/// What a [`RetryPolicy`] says about a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Try again after this long.
    Retry(Duration),
    /// This was the last attempt.
    GiveUp(GiveUp),
}

/// Why a [`RetryPolicy`] gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GiveUp {
    /// It would fail the same way.
    Definitive,
    /// Somebody wants it no more.
    Cancelled,
    /// It may have happened, and there is no key by which the other side would know it again.
    Unkeyed,
    /// All attempts are spent.
    Exhausted,
    /// The next attempt would begin after `max_age`.
    TooOld,
}

impl RetryPolicy {
    /// A policy of values. What is not said is as in the default.
    pub fn builder() -> RetryBuilder {
        RetryBuilder(Settings::DEFAULT)
    }

    /// What [`retry!`](macro@crate::retry) expands to: it has checked the values.
    #[doc(hidden)]
    pub const fn checked(
        retries: u32,
        backoff: Backoff,
        cap: Duration,
        jitter: Jitter,
        max_age: Option<Duration>,
    ) -> Self {
        Self {
            settings: Settings {
                retries,
                backoff,
                cap,
                jitter,
                max_age,
            },
            is_keyed: false,
        }
    }

    /// The call carries a key that the other side knows: what ended unknown is tried again, too.
    #[must_use]
    pub const fn with_key(mut self) -> Self {
        self.is_keyed = true;
        self
    }

    /// How often it is tried at most: once, and the retries.
    pub const fn attempts(&self) -> u32 {
        self.settings.retries.saturating_add(1)
    }

    /// Whether to try again after attempt `attempt`, from 1, ended in this failure, `elapsed` after the first one began.
    ///
    /// `random` gives 64 random bits each time it is called. Nothing is allocated, and nothing overflows at any number.
    ///
    /// A `Retry-After` makes a delay longer, never shorter, and beyond the cap if it must be; `max_age` bounds it. A snooze is
    /// waited for as it asks and counts as no attempt: call this with the same number next time.
    #[inline]
    pub fn decide(&self, attempt: u32, failure: &Failure, elapsed: Duration, random: impl FnMut() -> u64) -> Decision {
        let asked = failure.retry_after();
        let after = match failure.kind() {
            FailureKind::Definitive(_) => return Decision::GiveUp(GiveUp::Definitive),
            FailureKind::Cancelled => return Decision::GiveUp(GiveUp::Cancelled),
            FailureKind::Unknown if !self.is_keyed => return Decision::GiveUp(GiveUp::Unkeyed),
            FailureKind::Snooze => asked.unwrap_or_else(|| self.delay(1, random)),
            FailureKind::Transient | FailureKind::Unknown if attempt > self.settings.retries => {
                return Decision::GiveUp(GiveUp::Exhausted);
            }
            FailureKind::Transient | FailureKind::Unknown => {
                self.delay(attempt, random).max(asked.unwrap_or(Duration::ZERO))
            }
        };
        match self.settings.max_age {
            Some(max_age) if elapsed.saturating_add(after) > max_age => Decision::GiveUp(GiveUp::TooOld),
            _ => Decision::Retry(after),
        }
    }

    /// The delay before retry `retry`, from 1, without a look at any failure.
    #[inline]
    pub fn delay(&self, retry: u32, random: impl FnMut() -> u64) -> Duration {
        self.settings.delay(retry, random)
    }

    pub(crate) const fn retries(&self) -> u32 {
        self.settings.retries
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            settings: Settings::DEFAULT,
            is_keyed: false,
        }
    }
}

impl FromStr for RetryPolicy {
    type Err = Error;

    /// Reads options separated by commas, each at most once, as they stand in [`retry!`](macro@crate::retry).
    ///
    /// # Errors
    /// [`Code::RetryInvalid`] with the rule and what to write instead.
    fn from_str(text: &str) -> Result<Self> {
        let mut reader = Reader::new();
        let options = text.split(',').filter(|option| !option.trim().is_empty());
        for option in options {
            reader.option(option).map_err(invalid)?;
        }
        RetryBuilder::from_settings(reader.end())
    }
}

/// Makes a [`RetryPolicy`] of values: [`RetryPolicy::builder`].
///
/// ```
/// use std::time::Duration;
/// use steadfast::{Backoff, Code, RetryPolicy};
///
/// // River's: attempt^4 seconds
/// let river = Backoff::Custom(|retry| Duration::from_secs(u64::from(retry).saturating_pow(4)));
/// let policy = RetryPolicy::builder().retries(24).backoff(river).cap(Duration::from_secs(7 * 24 * 60 * 60)).build()?;
/// assert_eq!(policy.attempts(), 25);
///
/// let second = Duration::from_secs(1);
/// let refused = RetryPolicy::builder().backoff(Backoff::Linear(2 * second)).cap(second).build();
/// assert_eq!(refused.unwrap_err().code(), Code::RetryInvalid);
/// # Ok::<(), steadfast::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a policy is there when it is built"]
pub struct RetryBuilder(Settings);

impl RetryBuilder {
    /// How often it is tried after the first attempt. At most 1000.
    pub fn retries(mut self, retries: u32) -> Self {
        self.0.retries = retries;
        self
    }

    /// How the delays grow.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.0.backoff = backoff;
        self
    }

    /// No delay is longer, before chance and `Retry-After`.
    pub fn cap(mut self, cap: Duration) -> Self {
        self.0.cap = cap;
        self
    }

    /// The chance in the delays.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.0.jitter = jitter;
        self
    }

    /// No attempt begins later than this after the first one.
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.0.max_age = Some(max_age);
        self
    }

    /// The policy.
    ///
    /// # Errors
    /// [`Code::RetryInvalid`] with the rule and what to write instead.
    pub fn build(self) -> Result<RetryPolicy> {
        Self::from_settings(self.0.check().map(|()| self.0))
    }

    fn from_settings(checked: Result<Settings, Refusal>) -> Result<RetryPolicy> {
        Ok(RetryPolicy {
            settings: checked.map_err(invalid)?,
            is_keyed: false,
        })
    }
}

fn invalid(message: impl fmt::Display) -> Error {
    Error::new(Code::RetryInvalid, message.to_string())
}
