//! How the engine hears that there may be something to do.
//!
//! In this process by a signal, in others by an announcement that is sent after the commit, never in the transaction,
//! where it would cost every business transaction dearly. Neither is needed for anything to be found: a process may die
//! between its commit and the signal, and plain SQL announces nothing. The engine looks by itself from time to time.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::steadfast::Steadfast;
use crate::store::{Database, Store};
use crate::telemetry;

/// How often at the most other processes are told.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(10);

/// The state of the task that tells other processes.
const IDLE: u8 = 0;
const TELLING: u8 = 1;
const TELLING_AGAIN: u8 = 2;

/// The signal of one process.
#[derive(Default)]
pub(crate) struct Wake {
    /// For the engine of this process. It keeps one signal that came while nobody waited.
    pub(crate) here: Notify,
    elsewhere: AtomicU8,
    /// Whether somebody has cancelled a row that this process works on.
    cancel: AtomicBool,
}

impl Wake {
    /// Whether somebody has to begin telling other processes. If somebody is at it, he will once more.
    fn wants_a_teller(&self) -> bool {
        let next = |state| match state {
            IDLE => Some(TELLING),
            TELLING => Some(TELLING_AGAIN),
            _ => None,
        };
        self.elsewhere.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) == Ok(IDLE)
    }

    /// Somebody has cancelled a row that this process may work on.
    pub(super) fn notes_cancel(&self) {
        self.cancel.store(true, Ordering::Release);
    }

    /// Whether somebody has, since this was last asked.
    pub(super) fn takes_cancel(&self) -> bool {
        self.cancel.swap(false, Ordering::AcqRel)
    }

    /// Whether the teller is done: nobody has asked meanwhile.
    fn is_told(&self) -> bool {
        let next = |state| Some(if state == TELLING_AGAIN { TELLING } else { IDLE });
        self.elsewhere.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) != Ok(TELLING_AGAIN)
    }
}

impl<Db: Database> Steadfast<Db> {
    /// Tells this process and others that rows were committed. It waits for nothing.
    pub(crate) fn rows_were_committed(&self) {
        self.wake().here.notify_one();
        if !Db::Store::NEEDS_ANNOUNCEMENTS || !self.wake().wants_a_teller() {
            return;
        }
        let sf = self.clone();
        self.tasks().spawn(async move {
            loop {
                if let Err(error) = sf.store().announce().await {
                    telemetry::not_announced(&error);
                }
                tokio::time::sleep(ANNOUNCE_EVERY).await;
                if sf.wake().is_told() {
                    return;
                }
            }
        });
    }
}

impl<Db: Database> Steadfast<Db> {
    /// Tells whoever works on a row that it was cancelled. Should he not hear it, he finds out when he renews his lease.
    pub(crate) async fn row_was_cancelled(&self, holder: &str) {
        self.wake().notes_cancel();
        self.wake().here.notify_one();
        if let Err(error) = self.store().announce_cancel(holder).await {
            telemetry::not_announced(&error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_teller_tells_for_all_who_ask_meanwhile() {
        let wake = Wake::default();
        assert!(wake.wants_a_teller());
        assert!(!wake.wants_a_teller() && !wake.wants_a_teller(), "somebody is at it");
        assert!(!wake.is_told(), "once more, for those two");
        assert!(wake.is_told());
        assert!(wake.wants_a_teller(), "the next one begins anew");
    }
}
