//! Counting without counting everything.

use std::fmt;

/// A number that was counted, up to a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many were counted.
    pub number: u64,
    /// Whether there may be more.
    pub is_capped: bool,
}

impl Count {
    /// What was counted, if counting stopped at `limit`.
    pub(crate) fn of(counted: i64, limit: u32) -> Self {
        Self {
            number: u64::try_from(counted).unwrap_or_default(),
            is_capped: counted >= i64::from(limit),
        }
    }

    /// What was counted, if counting went one beyond `max` at the most.
    pub(super) fn up_to(max: i64, counted: i64) -> Self {
        Self {
            number: counted.clamp(0, max).unsigned_abs(),
            is_capped: counted > max,
        }
    }

    /// What is left without what was counted among it.
    pub(crate) fn without(self, other: Self) -> Self {
        Self {
            number: self.number.saturating_sub(other.number),
            is_capped: self.is_capped || other.is_capped,
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            number: self.number + other.number,
            is_capped: self.is_capped || other.is_capped,
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_capped {
            true => write!(f, "at least {}", self.number),
            false => write!(f, "{}", self.number),
        }
    }
}
