//! What an event is: a fact, its name, and how it travels.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A fact that others react to.
///
/// It is published in a transaction and delivered after it, to every target that wants its type. What is stored is its
/// JSON, under [`TYPE`](Event::TYPE): who renames the Rust type keeps the name, and who changes its meaning raises
/// [`VERSION`](Event::VERSION).
///
/// `#[derive(Event)]` (feature `service`) writes this, and checks it. By hand it is:
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use steadfast::Event;
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderPlaced { order_id: u64, email: String }
///
/// impl Event for OrderPlaced {
///     const TYPE: &'static str = "order.placed";
///     const REDACTED: &'static [&'static str] = &["email"];
///
///     fn ordering_key(&self) -> Option<String> {
///         Some(self.order_id.to_string())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no event",
    note = "write `#[derive(Serialize, Deserialize, Event)]` and `#[event(\"order.placed\")]` on it"
)]
pub trait Event: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Its stored name: 1 to 100 lower-case letters, digits, `_` and `-`, in parts with a dot between them.
    const TYPE: &'static str;

    /// Which shape of the payload this is, from 1. A node that knows another version only leaves it to those who know this one.
    const VERSION: u32 = 1;

    /// Whether it is told to this process alone, after the commit, and never stored. What must not be lost is stored.
    const IN_PROCESS: bool = false;

    /// How long after it was published it is delivered at the earliest.
    const DELAY: Duration = Duration::ZERO;

    /// How long after it was published it is of no use to anybody any more. What was not delivered then is skipped.
    const EXPIRES_AFTER: Option<Duration> = None;

    /// The members of its JSON that people who look at messages do not get to see. Handlers do.
    const REDACTED: &'static [&'static str] = &[];

    /// Events of one key reach each target in the order of their commits, one after the other; `None`: in any order.
    fn ordering_key(&self) -> Option<String> {
        None
    }
}
