//! How long to wait: how delays grow, the chance in them, and which settings are refused.
//!
//! The macros compile this same file (`crates/macros/src/retry/backoff.rs` is a link to it): what is refused at compile time
//! and what is refused at run time cannot differ.

use std::fmt;
use std::time::Duration;

/// What has failed a thousand times is for a person to look at.
pub(super) const RETRIES_MAX: u32 = 1_000;

/// Nobody waits longer for one attempt. It also keeps every delay, in nanoseconds, within 64 bits.
pub(super) const DELAY_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How many steps of decorrelated jitter are taken at most: its delays reach a cap of 365 days from a base of a
/// nanosecond in 35 steps, and have forgotten where they came from long before.
const STEPS_MAX: u32 = 64;

/// How delays grow from retry to retry.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Backoff {
    /// No delay at all. For a single retry of something that does not mind.
    Immediate,
    /// The same delay each time.
    Constant(Duration),
    /// base · n
    Linear(Duration),
    /// base · 2^(n−1)
    Exponential(Duration),
    /// What this says of retry `n`, from 1.
    Custom(fn(u32) -> Duration),
}

/// The chance in a delay, so that those who failed together do not come back together.
///
/// The formulas are those of [Exponential Backoff And
/// Jitter](https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Jitter {
    /// The delay as it is.
    None,
    /// Anything up to the delay.
    Full,
    /// At least half of the delay.
    Equal,
    /// Between the base and three times the delay before. It grows by itself, and goes with [`Backoff::Exponential`] only.
    ///
    /// The delay before is not remembered but drawn again, as many times as there were retries: each delay is
    /// distributed as in the formula, and a policy needs no memory, not even across processes.
    Decorrelated,
}

/// What a policy is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) retries: u32,
    pub(crate) backoff: Backoff,
    pub(crate) cap: Duration,
    pub(crate) jitter: Jitter,
    pub(crate) max_age: Option<Duration>,
}

impl Settings {
    /// 0.2, 0.4, 0.8, 1.6 and 3.2 seconds, and anything below.
    pub(crate) const DEFAULT: Self = Self {
        retries: 5,
        backoff: Backoff::Exponential(Duration::from_millis(200)),
        cap: Duration::from_secs(60 * 60),
        jitter: Jitter::Full,
        max_age: None,
    };

    /// The delay before retry `n`, from 1.
    #[inline]
    pub(crate) fn delay(&self, retry: u32, mut random: impl FnMut() -> u64) -> Duration {
        let cap = nanos(self.cap);
        let retry = retry.max(1);
        let delay = || self.backoff.nanos(retry).min(cap);
        Duration::from_nanos(match (self.jitter, self.backoff) {
            (Jitter::None, _) => delay(),
            (Jitter::Full, _) => between(0, delay(), random()),
            (Jitter::Equal, _) => {
                let delay = delay();
                between(delay.div_ceil(2), delay, random())
            }
            (Jitter::Decorrelated, Backoff::Exponential(base)) => {
                let base = nanos(base);
                let step = |sleep: u64, ()| between(base, sleep.saturating_mul(3), random()).min(cap);
                let steps = std::iter::repeat_n((), retry.min(STEPS_MAX) as usize);
                steps.fold(base, step)
            }
            (Jitter::Decorrelated, _) => delay(),
        })
    }

    /// What is wrong with them, if anything is.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if self.retries > RETRIES_MAX {
            return refuse("retries", format!("is {}; write at most {RETRIES_MAX}", self.retries));
        }
        if let Some(base) = self.backoff.base() {
            check_duration("backoff", base)?;
            if self.cap < base {
                return refuse(
                    "cap",
                    format!(
                        "is {:?} and the first delay {base:?}; write a cap that is not below it (without one it is 1h)",
                        self.cap
                    ),
                );
            }
        }
        check_duration("cap", self.cap)?;
        if let Some(max_age) = self.max_age {
            check_duration("max_age", max_age)?;
        }
        match (self.jitter, self.backoff) {
            (Jitter::Decorrelated, Backoff::Exponential(_)) | (Jitter::None | Jitter::Full | Jitter::Equal, _) => {
                Ok(())
            }
            (Jitter::Decorrelated, _) => refuse(
                "jitter",
                "is decorrelated, which grows by itself from a base; write `backoff = exponential(..)`, or another jitter",
            ),
        }
    }
}

impl Backoff {
    fn base(self) -> Option<Duration> {
        match self {
            Self::Constant(base) | Self::Linear(base) | Self::Exponential(base) => Some(base),
            Self::Immediate | Self::Custom(_) => None,
        }
    }

    /// The delay before retry `n`, or the longest there is.
    #[inline]
    fn nanos(self, retry: u32) -> u64 {
        match self {
            Self::Immediate => 0,
            Self::Constant(base) => nanos(base),
            Self::Linear(base) => nanos(base).saturating_mul(u64::from(retry)),
            Self::Exponential(base) => {
                let (base, doublings) = (nanos(base), retry - 1);
                if base.leading_zeros() > doublings {
                    base << doublings
                } else {
                    u64::MAX
                }
            }
            Self::Custom(delay) => nanos(delay(retry)),
        }
    }
}

/// A setting that is refused: which, why, and after a `;` what to write instead.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) option: &'static str,
    message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.option, self.message)
    }
}

fn refuse(option: &'static str, message: impl Into<String>) -> Result<(), Refusal> {
    let message = message.into();
    Err(Refusal { option, message })
}

fn check_duration(option: &'static str, duration: Duration) -> Result<(), Refusal> {
    let instead = match option {
        "backoff" => ", or `backoff = immediate`",
        _ => "",
    };
    if duration.is_zero() {
        return refuse(option, format!("is no time at all; write more than nothing{instead}"));
    }
    if duration > DELAY_MAX {
        return refuse(option, "is more than 365 days; write less");
    }
    Ok(())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Any number from `low` to `high`, both included, by 64 random bits.
fn between(low: u64, high: u64, random: u64) -> u64 {
    let span = u128::from(high.saturating_sub(low)) + 1;
    low + ((span * u128::from(random)) >> 64) as u64
}
