//! What user code publishes.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A fact that others may react to. Derive it:
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// use steadfast::Event;
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event("order.placed", ordering_key = order_id)]
/// struct OrderPlaced {
///     order_id: String,
///     #[redact] // kept, but not shown to people
///     email: String,
/// }
/// assert_eq!(OrderPlaced::TYPE, "order.placed");
/// ```
///
/// or implement it; only the name is needed. Events are stored as JSON, and an older one may be read by a newer program:
/// give fields that you add a default, and raise [`VERSION`](Self::VERSION) when a change is more than that.
pub trait Event: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The stable name: lower-case words between dots. It is stored, matched by targets, and seen by other services.
    const TYPE: &'static str;
    /// Grows when what the event says changes. A process that knows an older version leaves newer ones to others.
    const VERSION: u32 = 1;
    /// Whether it only lives in this process: no row is written, its reactions run after the commit, and a crash loses them.
    const IN_PROCESS: bool = false;
    /// How long after the commit it is delivered.
    const DELAY: Duration = Duration::ZERO;
    /// How long after the commit nobody wants to hear of it any more: what was not delivered by then is skipped.
    const EXPIRES_AFTER: Option<Duration> = None;
    /// Fields that are kept, and not shown to people.
    const REDACTED: &'static [&'static str] = &[];

    /// Events with the same key are delivered to each target one after another, in the order of their commits.
    fn ordering_key(&self) -> Option<String> {
        None
    }
}
