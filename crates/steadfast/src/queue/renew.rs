//! Renewing leases while the work lasts, and stopping work whose lease is lost.
//!
//! Whoever cannot renew stops before his lease ends, by his own monotonic clock: the database may be out of reach, and
//! others will take the row over. The statements would refuse what he says anyway; this spares the outside world.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use super::WorkOptions;
use super::engine::{Engine, Held};
use crate::error::Result;
use crate::lease::Lease;
use crate::store::{Database, Store};
use crate::telemetry;

impl<Db: Database> Engine<Db> {
    /// How long the leases of some work are.
    pub(super) fn lease_of(&self, options: &WorkOptions) -> Duration {
        options.lease.unwrap_or(self.pace.lease)
    }

    /// When the next lease has to be renewed, or is lost.
    pub(super) fn next_renewal(&self) -> Option<Instant> {
        let held = self.held.values().filter(|held| !held.lost.is_cancelled());
        held.map(|held| held.renew_at.min(held.lost_at)).min()
    }

    /// Renews what has to be, and lets go of what is lost.
    pub(super) async fn renew(&mut self) -> Result<()> {
        let now = Instant::now();
        let_go(&self.held, now);
        let is_due = |held: &&Held| held.renew_at <= now && !held.lost.is_cancelled();
        let due: Vec<_> = self.held.values().filter(is_due).collect();
        if due.is_empty() {
            return Ok(());
        }
        let leases: Vec<_> = due.iter().map(|held| (held.claimed.clone(), held.lease)).collect();
        let pairs: Vec<_> = leases.iter().map(|(claimed, lease)| (&claimed.lease, *lease)).collect();
        let asked_at = Instant::now();
        let offset = self.sf.clock().ahead();
        let kept = self
            .ask("renew leases", async |store, link| {
                store.renew(link, &pairs, offset).await
            })
            .await?;
        for (claimed, lease) in &leases {
            let is_kept = kept
                .iter()
                .any(|(item, kind)| *item == claimed.lease.item && **kind == *claimed.lease.kind);
            if let Some(held) = self.held.get_mut(&claimed.lease) {
                if is_kept {
                    held.renewed(asked_at, *lease);
                } else {
                    held.lost_at = asked_at;
                }
            }
        }
        let_go(&self.held, asked_at);
        Ok(())
    }
}

/// Tells work whose lease has ended until then that it counts for nothing any more.
fn let_go(held: &HashMap<Lease, Held>, until: Instant) {
    for held in held.values() {
        if held.lost_at <= until && !held.lost.is_cancelled() {
            telemetry::lease_lost(&held.claimed.lease.kind, &held.claimed.lease.item);
            held.lost.cancel();
        }
    }
}

/// Does so whenever a lease ends, for as long as it is polled: while a statement is under way, nobody else does.
pub(super) async fn let_go_in_time(held: &HashMap<Lease, Held>) -> Infallible {
    loop {
        let lost_at = held
            .values()
            .filter(|held| !held.lost.is_cancelled())
            .map(|held| held.lost_at);
        match lost_at.min() {
            Some(lost_at) => tokio::time::sleep_until(lost_at.into()).await,
            None => std::future::pending().await,
        }
        let_go(held, Instant::now());
    }
}
