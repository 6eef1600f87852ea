//! What tests, and the shop's fault lab, need from the inside.

pub mod proxy;

pub use crate::command::Point;

use crate::command::Key;

/// Sees commands pass their crash points. An observer may kill the process; that is what it is for.
///
/// It runs on the command's own task, in the middle of its transaction: whatever it does, the command waits.
pub trait Observer: Send + Sync + 'static {
    /// A command has reached a point.
    fn reached(&self, point: Point, key: &Key);
}

impl<F: Fn(Point, &Key) + Send + Sync + 'static> Observer for F {
    fn reached(&self, point: Point, key: &Key) {
        self(point, key);
    }
}
