//! The right to work on a row, for a while.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use uuid::Uuid;

/// Which row, and by which claim. Whatever is said about the row is compared with these two: the epoch has grown and the
/// token is another one once somebody else has claimed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// What the row is about: a message.
    pub(crate) item: Uuid,
    /// What is to be done with it.
    pub(crate) kind: Arc<str>,
    /// How often the row was claimed, this time included.
    pub(crate) epoch: i64,
    /// Drawn at random for this claim, so that no other one can be mistaken for it, not even after a restored backup.
    pub(crate) token: i64,
}

impl Hash for Lease {
    /// By the message alone: hardly any two leases are on the same one, and texts take long.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.item.hash(state);
    }
}
