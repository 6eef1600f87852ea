//! A bulk operation, as people see it: what is done to which deliveries, and how far it has come.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use uuid::Uuid;

use super::message::FUTURE_MAX;
use crate::clock::{Timestamp, micros};
use crate::error::{Code, Error, Result};
use crate::store::letters::{Among, OperationRow};

/// What is done with every delivery that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BulkVerb {
    /// The dead are given another life, or the pending are due now. Those whose event has expired are left as they are.
    Requeue,
    /// They are not wanted any more.
    Skip,
    /// The dead are given up for good.
    Discard,
    /// Those that wait are due at this time, or now if it has passed.
    Reschedule(SystemTime),
    /// Those that wait are put off: they are due so long after they would have been, or after now if they are due already; at
    /// most ten years ahead.
    Snooze(Duration),
}

impl BulkVerb {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Skip => "skip",
            Self::Discard => "discard",
            Self::Reschedule(_) => "reschedule",
            Self::Snooze(_) => "snooze",
        }
    }

    /// Whether it can be meant, now.
    pub(super) fn check(self, now: Timestamp) -> Result<()> {
        let ahead = match self {
            Self::Requeue | Self::Skip | Self::Discard => return Ok(()),
            Self::Reschedule(at) => at.duration_since(now.into()).unwrap_or_default(),
            Self::Snooze(time) => time,
        };
        if ahead > FUTURE_MAX {
            let message = "they would be due more than ten years ahead; choose less, or skip them";
            return Err(Error::new(Code::InputInvalid, message));
        }
        Ok(())
    }

    /// As it is kept with an operation: the word, and behind it a number of microseconds if there is a time.
    pub(super) fn written(self) -> String {
        let word = self.as_str();
        match self {
            Self::Requeue | Self::Skip | Self::Discard => word.to_owned(),
            Self::Reschedule(at) => format!("{word} {}", Timestamp::of(at).0),
            Self::Snooze(time) => format!("{word} {}", micros(time)),
        }
    }

    fn read(written: &str) -> Option<Self> {
        let (word, time) = written.split_once(' ').unwrap_or((written, ""));
        match word {
            "requeue" => Some(Self::Requeue),
            "skip" => Some(Self::Skip),
            "discard" => Some(Self::Discard),
            "reschedule" => Some(Self::Reschedule(Timestamp(time.parse().ok()?).into())),
            "snooze" => Some(Self::Snooze(Duration::from_micros(time.parse().ok()?))),
            _ => None,
        }
    }

    /// Which rows it is about, of those that were asked for.
    pub(super) fn among(self, asked: Among) -> Result<Among> {
        match (self, asked) {
            (Self::Requeue | Self::Discard, Among::Queue | Among::Dead) => Ok(Among::Dead),
            (Self::Skip, Among::Queue) => Ok(Among::NotLeased),
            (Self::Skip, Among::Dead) => Ok(Among::Dead),
            (Self::Requeue | Self::Skip, Among::Pending) => Ok(Among::Pending),
            (Self::Reschedule(_) | Self::Snooze(_), Among::Queue | Among::Pending) => Ok(Among::Pending),
            _ => Err(Error::new(
                Code::InputInvalid,
                format!(
                    "deliveries in this state cannot be changed by {}; choose dead ones, or pending ones to requeue, skip or put off",
                    self.as_str()
                ),
            )),
        }
    }
}

/// How far a bulk operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BulkState {
    /// There is more to do, whether or not somebody is at it.
    Running,
    /// Every delivery that fitted was passed.
    Done,
    /// Somebody has ended it before.
    Cancelled,
}

impl BulkState {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
        }
    }

    fn read(word: &str) -> Option<Self> {
        [Self::Running, Self::Done, Self::Cancelled]
            .into_iter()
            .find(|state| state.as_str() == word)
    }
}

/// Identifies a bulk operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub(super) Uuid);

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for OperationId {
    type Err = Error;

    /// # Errors
    /// SF102 if the text is no UUID.
    fn from_str(text: &str) -> Result<Self> {
        let message = || {
            format!("{text:?} is not the id of an operation; write a UUID, as `steadfast operations list` shows them")
        };
        text.parse()
            .map(Self)
            .map_err(|_| Error::new(Code::InputInvalid, message()))
    }
}

/// A bulk operation, and how far it has come.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BulkOperation {
    /// Identifies it.
    pub id: OperationId,
    /// What is done.
    pub verb: BulkVerb,
    /// To which deliveries, as JSON.
    pub filter: Value,
    /// Who wants it.
    pub operator: String,
    /// Why.
    pub reason: String,
    /// How far it is.
    pub state: BulkState,
    /// How many deliveries fitted when it began, as far as they were counted.
    pub expected: u64,
    /// How many were changed.
    pub done: u64,
    /// In how many transactions.
    pub batches: u64,
    /// When it began.
    pub created_at: SystemTime,
    /// When it last went on.
    pub updated_at: SystemTime,
}

impl BulkOperation {
    pub(super) fn read(row: &OperationRow) -> Result<Self> {
        let unknown = || {
            Error::new(
                Code::RecordTooNew,
                "a bulk operation was written in a way this version does not know; use the newer version of the program",
            )
        };
        let count = |number: i64| u64::try_from(number).unwrap_or_default();
        Ok(Self {
            id: OperationId(row.id),
            verb: BulkVerb::read(&row.verb).ok_or_else(unknown)?,
            filter: serde_json::from_str(&row.filter).map_err(|_| unknown())?,
            operator: row.operator.clone(),
            reason: row.reason.clone(),
            state: BulkState::read(&row.state).ok_or_else(unknown)?,
            expected: count(row.expected),
            done: count(row.done),
            batches: count(row.batches),
            created_at: Timestamp(row.created_at).into(),
            updated_at: Timestamp(row.updated_at).into(),
        })
    }
}
