//! Nobody but the corridor ends a transaction on the writer connection.
//!
//! SQLite rolls a transaction back by itself when the disk is full or a statement says `OR ROLLBACK`. What a
//! handler writes after that would commit statement by statement, apart from its key. So the writer refuses
//! every COMMIT that we did not ask for, and notices every ROLLBACK that we did not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::SqliteConnection;

use crate::error::{Code, Error, Result};

/// How many steps of SQLite's machine pass between two looks at whether anybody still waits: well below a millisecond.
const PROGRESS_STEPS: i32 = 10_000;

/// Shared with the hooks of its connection.
#[derive(Default)]
pub(super) struct Gate {
    is_open: AtomicBool,
    is_lost: AtomicBool,
    is_abandoned: AtomicBool,
}

impl Gate {
    pub(super) async fn install(conn: &mut SqliteConnection) -> sqlx::Result<Arc<Self>> {
        let installed = Arc::new(Self::default());
        let mut handle = conn.lock_handle().await?;
        let gate = installed.clone();
        handle.set_commit_hook(move || gate.is_open.load(Ordering::Acquire));
        let gate = installed.clone();
        handle.set_rollback_hook(move || gate.is_lost.store(true, Ordering::Release));
        let gate = installed.clone();
        handle.set_progress_handler(PROGRESS_STEPS, move || !gate.is_abandoned.load(Ordering::Acquire));
        Ok(installed)
    }

    /// A new transaction: nothing is lost yet.
    pub(super) fn begin(&self) {
        self.is_lost.store(false, Ordering::Release);
        self.is_abandoned.store(false, Ordering::Release);
    }

    /// Interrupts the statement that is running, so that the writer is free soon and not when it has ended.
    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    /// What was abandoned has stopped; the transaction goes on without it.
    pub(super) fn forgive(&self) {
        self.is_abandoned.store(false, Ordering::Release);
    }

    /// Fails if the transaction that began last is gone.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_lost.load(Ordering::Acquire) {
            return Err(Error::new(
                Code::TransactionBroken,
                "SQLite rolled the transaction back while the handler ran (the disk was full, or a statement said \
                 OR ROLLBACK or ROLLBACK), and the handler went on; return the error of a failed statement",
            ));
        }
        Ok(())
    }

    /// Lets one commit through, until the guard is dropped.
    pub(super) fn open(&self) -> Opened<'_> {
        self.is_open.store(true, Ordering::Release);
        Opened(self)
    }
}

pub(super) struct Opened<'g>(&'g Gate);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.0.is_open.store(false, Ordering::Release);
    }
}
