//! A delivery, as people see it: which message, which target, where it stands, and how it last failed.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use uuid::Uuid;

use super::message::MessageId;
use crate::clock::Timestamp;
use crate::error::{Code, Error, Result};
use crate::store::letters::{Among, DeliveryRow};

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeliveryState {
    /// It waits to be claimed.
    Pending,
    /// Somebody works on it.
    Leased,
    /// It was given up, and is kept for a person.
    Dead,
    /// It has reached its target.
    Delivered,
    /// It was not wanted any more.
    Skipped,
    /// It was dead, and a person gave it up for good.
    Discarded,
}

impl DeliveryState {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::Leased,
        Self::Dead,
        Self::Delivered,
        Self::Skipped,
        Self::Discarded,
    ];

    /// The word for it, in tables, JSON and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Leased => "leased",
            Self::Dead => "dead",
            Self::Delivered => "delivered",
            Self::Skipped => "skipped",
            Self::Discarded => "discarded",
        }
    }

    pub(super) fn read(word: &str) -> Result<Self> {
        let word = match word {
            // What people say of jobs.
            "completed" => Self::Delivered.as_str(),
            "cancelled" => Self::Skipped.as_str(),
            word => word,
        };
        let known = Self::ALL.into_iter().find(|state| state.as_str() == word);
        known.ok_or_else(|| {
            Error::new(
                Code::RecordTooNew,
                format!(
                    "a delivery is {word:?}, which this version does not know; use the newer version of the program"
                ),
            )
        })
    }

    pub(super) fn among(self) -> Among {
        match self {
            Self::Pending => Among::Pending,
            Self::Leased => Among::Leased,
            Self::Dead => Among::Dead,
            finished => Among::History(finished.as_str()),
        }
    }
}

/// The last failure of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastFailure {
    /// When it failed.
    pub at: SystemTime,
    /// Its stable code.
    pub code: String,
    /// What it said.
    pub message: String,
    /// The same for failures that differ only in numbers and ids.
    pub fingerprint: String,
}

impl LastFailure {
    /// Of this row, if it has failed.
    pub(crate) fn take(row: &mut DeliveryRow) -> Option<Self> {
        row.failed_at.map(|at| Self {
            at: Timestamp(at).into(),
            code: row.code.take().unwrap_or_default(),
            message: row.message.take().unwrap_or_default(),
            fingerprint: row.fingerprint.take().unwrap_or_default(),
        })
    }
}

/// A delivery: one message on its way to one target.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedDelivery {
    /// The message.
    pub id: MessageId,
    /// The target.
    pub target: String,
    /// What a node must know to deliver it: the target, and the version of the event's type beyond the first.
    pub kind: String,
    /// Where it stands.
    pub state: DeliveryState,
    /// How often it was tried.
    pub attempts: u32,
    /// The type of the event; `None` if the message is gone.
    pub event_type: Option<String>,
    /// Messages with the same one come one after another.
    pub ordering_key: Option<String>,
    /// When the message was published.
    pub published_at: Option<SystemTime>,
    /// When it is due, if it is still to do.
    pub due_at: Option<SystemTime>,
    /// Who works on it.
    pub holder: Option<String>,
    /// Until when, unless the lease is renewed.
    pub leased_until: Option<SystemTime>,
    /// When it ended.
    pub finished_at: Option<SystemTime>,
    /// What the other side confirmed, or why it was skipped or discarded.
    pub detail: Option<String>,
    /// Why the last attempt that failed did.
    pub last_failure: Option<LastFailure>,
}

impl ListedDelivery {
    pub(super) fn read(mut row: DeliveryRow) -> Result<Self> {
        let moment = |micros: Option<i64>| micros.map(|at| SystemTime::from(Timestamp(at)));
        let last_failure = LastFailure::take(&mut row);
        Ok(Self {
            id: MessageId::of(row.item),
            target: target_of(&row.kind).to_owned(),
            kind: row.kind,
            state: DeliveryState::read(&row.state)?,
            attempts: u32::try_from(row.attempts).unwrap_or_default(),
            event_type: row.event_type,
            ordering_key: row.ordering_key,
            published_at: moment(row.created_at),
            due_at: moment(row.due_at),
            holder: row.holder,
            leased_until: moment(row.leased_until),
            finished_at: moment(row.finished_at),
            detail: row.detail,
            last_failure,
        })
    }

    /// Its place in a list, to go on after it.
    pub fn place(&self) -> DeliveryPlace {
        DeliveryPlace(self.id.as_uuid(), self.kind.clone())
    }
}

/// The target of a kind: what stands before the version.
pub(super) fn target_of(kind: &str) -> &str {
    kind.split('@').next().unwrap_or(kind)
}

/// A place in a list of deliveries: a message and a kind, as `ID/KIND`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryPlace(pub(super) Uuid, pub(super) String);

impl DeliveryPlace {
    pub(crate) fn of(item: Uuid, kind: String) -> Self {
        Self(item, kind)
    }
}

impl fmt::Display for DeliveryPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0, self.1)
    }
}

impl FromStr for DeliveryPlace {
    type Err = Error;

    /// # Errors
    /// SF102 if it is not the id of a message, a slash and a kind.
    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('/');
        let place = parts.and_then(|(item, kind)| Some(Self(item.parse().ok()?, kind.to_owned())));
        place.ok_or_else(|| {
            Error::new(
                Code::InputInvalid,
                format!("{text:?} is not a place in a list; write ID/TARGET, as the end of a page shows it"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        let place = DeliveryPlace(Uuid::now_v7(), "stock.reserve@2".to_owned());
        assert_eq!(place.to_string().parse::<DeliveryPlace>().expect("a place"), place);
        for wrong in ["", "stock.reserve", "x/stock.reserve"] {
            assert_eq!(
                wrong.parse::<DeliveryPlace>().expect_err(wrong).code(),
                Code::InputInvalid
            );
        }
    }
}
