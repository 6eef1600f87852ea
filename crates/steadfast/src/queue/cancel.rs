//! How whoever works on a row is told that somebody wants it no more.
//!
//! The request is a part of the row, so any process can write it. Who holds the lease hears of it when he renews, and sooner if he is
//! told to ([`wake`](super::wake)). What becomes of the row is decided by the statement that ends the attempt, not here.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Whether somebody wants a row no more. It is a part of what was claimed, and needs no room of its own.
#[derive(Debug, Default)]
pub(crate) struct Cancel {
    is_requested: AtomicBool,
    told: Notify,
}

impl Cancel {
    /// As a claim has found it.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn found(is_requested: bool) -> Self {
        Self {
            is_requested: is_requested.into(),
            told: Notify::new(),
        }
    }

    /// Tells whoever works on it.
    pub(super) fn request(&self) {
        self.is_requested.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.is_requested.load(Ordering::Acquire)
    }

    /// Waits until it is.
    pub(crate) async fn requested(&self) {
        let mut told = std::pin::pin!(self.told.notified());
        // From here on nothing is missed.
        told.as_mut().enable();
        if !self.is_requested() {
            told.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_is_told_and_who_comes_later_need_not_wait() {
        let cancel = Cancel::default();
        let waiting = cancel.requested();
        let mut waiting = std::pin::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        cancel.request();
        waiting.await;
        cancel.requested().await;
        assert!(cancel.is_requested());
    }
}
