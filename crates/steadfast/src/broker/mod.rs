//! The other side: brokers and endpoints that messages are sent to, and those that they come from.
//!
//! A [`Sink`] sends a batch and says of each message what became of it. Which messages are still to be sent, when again and how
//! often, is no business of its own: that is the outbox's ([`Steadfast::sink`](crate::Steadfast::sink)). A [`Source`] hands messages
//! out and hears when it may forget them; what they do is the inbox's ([`Steadfast::source`](crate::Steadfast::source)). A
//! `Messenger` carries notices between the processes of one service, which nothing depends on: that is push's.

pub(crate) mod away;
#[cfg(any(feature = "nats", feature = "webhook"))]
mod header;
#[cfg(feature = "push")]
mod messenger;
#[cfg(feature = "nats")]
pub(crate) mod nats;
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod plaintext;
#[cfg(feature = "rabbitmq")]
pub(crate) mod rabbitmq;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod source;
#[cfg(feature = "webhook")]
pub(crate) mod webhook;

#[cfg(feature = "push")]
pub use messenger::{Ear, Messenger};
pub use source::{Feed, Incoming, Source};

use crate::failure::Failure;
use crate::outbox::EventCx;

/// How many messages a broker is handed at once: as many as the outbox claims at once. What a batch costs beside its messages, a
/// round trip and a sync of the broker's disk, is shared by all of them.
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
const BROKER_BATCH_MAX: usize = 500;

/// Where messages are sent to: a broker, an endpoint, whatever takes them and says so.
///
/// What it must hold, whatever it is:
///
/// - **Confirmed is confirmed.** A message counts as delivered when the other side has said that it has it, and not before: a
///   message that was only written to a socket is none.
/// - **The same message has the same id**, [`EventCx::id`], whenever it is sent: that is how the other side knows it again.
///   Whatever may have arrived and was not confirmed is sent again.
/// - **Each for itself.** One message that the other side refuses harms none of its neighbours.
/// - **Away is nobody's fault.** If the other side cannot be reached at all, [`Failure::snooze`] puts the messages off without
///   spending their attempts. What it refuses is a failure of that message: [definitive](Failure::definitive) where it would
///   refuse it again.
///
/// ```
/// use steadfast::{Confirmation, EventCx, Failure, Sink};
///
/// /// Writes events to the log.
/// struct Log;
///
/// impl Sink for Log {
///     async fn send(&self, batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
///         let send = |event: &EventCx| {
///             println!("{}", event.cloud_event());
///             Ok(Confirmation::silent())
///         };
///         batch.iter().map(send).collect()
///     }
/// }
/// ```
pub trait Sink: Send + Sync + 'static {
    /// Sends messages, waits until the other side has taken or refused each of them, and says so in their order. A message that
    /// it says nothing of may have arrived, and is sent again.
    fn send(&self, batch: &[EventCx]) -> impl Future<Output = Vec<Result<Confirmation, Failure>>> + Send;

    /// How many messages it is handed at once at the most; 100 by default.
    fn batch_max(&self) -> usize {
        100
    }
}

/// What the other side said when it took a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confirmation(Option<String>);

impl Confirmation {
    /// How much of it is kept.
    const LENGTH_MAX: usize = 200;

    /// It said where it has it, such as a stream and a number. That is kept with the delivery, for people.
    pub fn new(place: impl Into<String>) -> Self {
        let mut place = place.into();
        // What brokers say is plain nearly always, and there is one for each message.
        if !place.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            place.retain(|c| !c.is_control());
        }
        place.truncate(place.floor_char_boundary(Self::LENGTH_MAX));
        Self(Some(place))
    }

    /// It said yes, and no more.
    pub fn silent() -> Self {
        Self(None)
    }

    pub(crate) fn into_detail(self) -> Option<String> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confirmation_is_kept_short_and_on_one_line() {
        for (said, kept) in [
            ("orders 17", "orders 17"),
            ("orders\n17\0", "orders17"),
            ("\u{85}\u{7f}bücher 17", "bücher 17"),
        ] {
            assert_eq!(Confirmation::new(said).into_detail().as_deref(), Some(kept));
        }
        let long = Confirmation::new("é".repeat(200)).into_detail().expect("a place");
        assert_eq!(long, "é".repeat(100));
        assert_eq!(Confirmation::silent().into_detail(), None);
    }
}
