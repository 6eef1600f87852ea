//! The inbox: messages from elsewhere, each of which acts once.
//!
//! A [source](intake) hands messages out, more than once if need be. [`consume`] reads them ([`envelope`]) and lets the reactions to
//! their events handle them, many in one transaction ([`batch`]): first a record for each (consumer, source, message id), which is
//! there once and no more, then the handlers of those that are new, then COMMIT. Only then the source is told.
//!
//! What does not fit that way is [kept](keep): what has failed, what was handed out before and may be what kills processes, what is
//! worked on without a transaction, versions that this process does not know, and what nobody can read. Record, message and a row of
//! the [queue](crate::queue) are one commit, and then the source is told too. From there on it is a delivery like every other one:
//! the engine counts its attempts, tries it again by the policy of its reaction, and keeps it when it is dead. Where the broker has
//! dead letters too, a row of its own [carries](bury) a copy there.
//!
//! [`list`] and [`stats`] are for those who look after it.

mod ahead;
mod batch;
mod bury;
mod consume;
pub(crate) mod envelope;
mod intake;
mod keep;
mod list;
mod reread;
mod stats;

pub(crate) use bury::Burying;
pub use envelope::Envelope;
pub use intake::Intake;
pub(crate) use intake::{Sources, are_letters, is_as_it_came};
pub(crate) use keep::{incoming_of, judge, recall};
pub use list::{InboxList, InboxPage, InboxPlace, InboxRecord};
pub use stats::{ConsumerStats, InboxStats};
