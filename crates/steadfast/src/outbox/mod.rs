//! Events that are published in a transaction, and reach whoever reacts to them after it.
//!
//! [`Tx::publish`](crate::Tx::publish) puts an [`Event`] into its envelope, a message; the settle of the transaction writes it
//! with everything else, and a row for each target that wants it ([`queue`](crate::queue)). After the commit the
//! [`dispatcher`] of some process claims the rows and has them delivered; here a target is a [`reaction`], a function of this
//! process. Targets are data: whoever publishes need not know them.

pub(crate) mod aggregate;
mod cx;
pub(crate) mod dispatcher;
mod doctor;
mod event;
mod forecast;
mod gauges;
mod in_process;
mod message;
mod name;
mod publications;
pub(crate) mod reaction;
pub(crate) mod stats;

use std::sync::Arc;

pub use aggregate::{Aggregate, Raised};
pub use cx::EventCx;
pub use dispatcher::Dispatcher;
pub(crate) use doctor::checks;
pub use event::Event;
pub use forecast::{Backlog, Forecast};
pub(crate) use gauges::Gauges;
pub use message::{EVENT_LENGTH_MAX, MessageId, ORDERING_KEY_LENGTH_MAX};
pub(crate) use message::{Message, NewMessage, Origin};
pub(crate) use publications::Publications;
pub use publications::Published;
pub(crate) use reaction::Reactions;
pub use reaction::{OnDead, Reaction};
pub use stats::{Count, Flow, KindStats, OutboxStats, Paused, TableSize};

/// A target, as it stands in its table: messages whose type fits the pattern are delivered to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetRow {
    pub(crate) name: Arc<str>,
    pub(crate) pattern: String,
    /// Whether who works on it must know the version of the type.
    pub(crate) is_versioned: bool,
}
