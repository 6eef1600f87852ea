//! Events that are published in a transaction, and reach whoever reacts to them after it.
//!
//! [`Tx::publish`](crate::Tx::publish) puts an [`Event`] into its envelope, a message; the settle of the transaction writes it
//! with everything else, and a row for each target that wants it ([`queue`](crate::queue)). After the commit the
//! [`dispatcher`] of some process claims the rows and has them delivered; a target is a [`reaction`], a function of this
//! process, or a [`sink`], which sends it to somebody else. Targets are data: whoever publishes need not know them.
//!
//! Those who look after it all list deliveries by [`look`] and messages by [`look_up`], decide about one by [`dead_letter`] and
//! about many by [`bulk`], pause and remove [`targets`], and ask [`why`].

pub(crate) mod aggregate;
mod bulk;
mod count;
mod cx;
mod dead_letter;
mod delivery;
pub(crate) mod dispatcher;
mod doctor;
mod event;
mod forecast;
mod gauges;
mod in_process;
mod look;
pub(crate) mod look_up;
mod message;
pub(crate) mod name;
mod operation;
pub(crate) mod origin;
mod publications;
pub(crate) mod reaction;
mod sink;
pub(crate) mod stats;
mod targets;
mod why;
mod why_job;

use std::sync::Arc;

pub use aggregate::{Aggregate, Raised};
pub use bulk::{BULK_BATCH, BulkWork};
pub use count::Count;
pub use cx::EventCx;
pub use dead_letter::Delivery;
pub use delivery::{DeliveryPlace, DeliveryState, LastFailure, ListedDelivery};
pub use dispatcher::Dispatcher;
pub(crate) use doctor::checks;
pub use event::Event;
#[cfg(feature = "schedule")]
pub(crate) use forecast::about;
pub use forecast::{Backlog, Forecast};
pub(crate) use gauges::Gauges;
pub use look::{DeadGroup, DeliveryList, DeliveryPage};
pub use look_up::{FailedAttempt, LookedMessage, MessageLookUp};
pub use message::{EVENT_LENGTH_MAX, MessageId, ORDERING_KEY_LENGTH_MAX};
pub(crate) use message::{Elsewhere, FUTURE_MAX, Message, NewMessage, When};
pub use operation::{BulkOperation, BulkState, BulkVerb, OperationId};
pub(crate) use origin::Origin;
pub(crate) use publications::Publications;
pub use publications::Published;
pub use reaction::{Duplicates, OnDead, Reaction};
pub(crate) use reaction::{Reacting, Reactions};
pub use sink::SinkTarget;
pub(crate) use sink::{check_pattern, fits};
pub use stats::{Flow, KindStats, OutboxStats, TableSize};
pub(crate) use targets::SILENCE_MAX;
pub use targets::{ListedTarget, Paused};
pub use why::{Reason, Why, WhyDelivery, WhyWord};

/// A target, as it stands in its table: messages whose type fits the pattern are delivered to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetRow {
    pub(crate) name: Arc<str>,
    pub(crate) pattern: String,
    /// Whether who works on it must know the version of the type.
    pub(crate) is_versioned: bool,
}
