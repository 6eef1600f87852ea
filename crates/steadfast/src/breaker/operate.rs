//! Shared breakers, for those who look after them: which there are, and how one is held open or closed from outside of the processes
//! that have it.
//!
//! What is written here is a person's word: every process that shares the breaker does so within a second. A breaker that is not shared
//! lives in its process alone and cannot be reached from elsewhere.

use std::time::Duration;

use super::state::BreakerState;
use super::{BreakerRow, BreakerWrite};
use crate::audit::AuditEntry;
use crate::error::{Code, Error, Result};
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};
use crate::words;

/// A breaker that processes share, as their table has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedBreaker {
    /// Its name.
    pub name: String,
    /// What it is doing. One that is half-open in some process is open here.
    pub state: BreakerState,
    /// How long it stays open, if it is and closes by itself.
    pub open_for: Option<Duration>,
    /// How often it has opened in a row.
    pub openings: u32,
}

impl SharedBreaker {
    fn read(row: BreakerRow) -> Result<Self> {
        let unknown = || {
            Error::new(
                Code::RecordTooNew,
                format!(
                    "the breaker {} is {:?}, which this version does not know; use the newer version of the program",
                    row.name, row.state
                ),
            )
        };
        let state = BreakerState::read(&row.state).ok_or_else(unknown)?;
        Ok(Self {
            state,
            open_for: (state == BreakerState::Open).then_some(row.remaining),
            openings: row.openings,
            name: row.name,
        })
    }
}

impl<Db: Database> Steadfast<Db> {
    /// The breakers that processes on this database [share](super::BreakerOptions::shared), by name.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn shared_breakers(&self) -> Result<Vec<SharedBreaker>> {
        let rows = self
            .ask("read the breakers")
            .read_breakers(None, self.clock().ahead())
            .await?;
        rows.into_iter().map(SharedBreaker::read).collect()
    }

    /// Holds a shared breaker open in all processes, within a second, until it is [closed](Self::close_breaker): nobody is let through.
    ///
    /// # Errors
    /// SF102 if no process on this database has shared a breaker of this name.
    pub async fn open_breaker(&self, name: &str, operator: &str, reason: &str) -> Result<()> {
        self.order_breaker(name, BreakerState::ForcedOpen, "breaker.open", operator, reason)
            .await
    }

    /// Closes a shared breaker in all processes, within a second, whatever it is now. It forgets what was counted, and judges by itself
    /// again.
    ///
    /// # Errors
    /// As [`open_breaker`](Self::open_breaker).
    pub async fn close_breaker(&self, name: &str, operator: &str, reason: &str) -> Result<()> {
        self.order_breaker(name, BreakerState::Closed, "breaker.close", operator, reason)
            .await
    }

    async fn order_breaker(
        &self,
        name: &str,
        state: BreakerState,
        action: &str,
        operator: &str,
        reason: &str,
    ) -> Result<()> {
        let known = self.shared_breakers().await?;
        if !known.iter().any(|breaker| breaker.name == name) {
            return Err(unknown_breaker(name, &known));
        }
        let entry = AuditEntry::new(operator, action, name).because(reason);
        let write = BreakerWrite {
            name,
            state: state.as_str(),
            remaining: Duration::ZERO,
            openings: 0,
            expected: None,
        };
        let (entry, write) = (&entry, &write);
        let ordered = self.transact(async |tx| {
            let (store, conn, offset) = tx.parts("write a breaker");
            store.write_breaker_in(conn, write, offset).await?;
            Ok(tx.audit(entry).await?)
        });
        ordered.await.map_err(Error::unwrapped)
    }
}

/// There is no shared breaker of this name; perhaps there is one nearby.
fn unknown_breaker(name: &str, known: &[SharedBreaker]) -> Error {
    let known: Vec<_> = known.iter().map(|breaker| &*breaker.name).collect();
    let near = words::did_you_mean(name, &known);
    let help = match &*near {
        "" => "; `steadfast breakers list` shows them, and one that is not `.shared()` lives in its process alone",
        near => near,
    };
    Error::new(
        Code::InputInvalid,
        format!("no process on this database shares a breaker {name:?}{help}"),
    )
}
