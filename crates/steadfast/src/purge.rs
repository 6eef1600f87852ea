//! Keeping the tables small: expired keys are purged, an owner's keys erased.
//!
//! Expiry itself needs no purge: a key counts as absent from the moment it expires. One process purges at a time,
//! by a lease, though two of them would do no harm.

use std::iter;
use std::ops::Range;
use std::time::Duration;

use crate::audit::AuditEntry;
use crate::clock::jitter;
use crate::command::Owner;
use crate::error::Result;
use crate::steadfast::Steadfast;
use crate::store::{Database, Doomed, Store};
use crate::telemetry;

/// The lease of whoever purges, and how long it lasts without being renewed. Renewed with every stretch.
const LEASE: &str = "purge";
const LEASE_TTL: Duration = Duration::from_secs(60);

/// What purging came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purged {
    /// So many expired keys were deleted.
    Keys(u64),
    /// Another process is purging.
    Elsewhere,
}

impl<Db: Database> Steadfast<Db> {
    /// Deletes expired keys, a short statement at a time, unless another process is at it.
    ///
    /// [`keep_house`](Self::keep_house) does it every hour; call this to have it done now.
    ///
    /// # Errors
    /// If the database does not answer. What was deleted until then stays deleted.
    pub async fn purge(&self) -> Result<Purged> {
        let mut count = 0;
        for stretch in self.stretches().await? {
            let lease = self
                .ask("take the lease")
                .take_lease(LEASE, self.id(), LEASE_TTL, self.clock().ahead());
            if lease.await?.is_none() {
                return Ok(Purged::Elsewhere);
            }
            let doomed = Doomed::Expired(self.clock().ahead());
            count += self.ask("delete expired keys").delete_keys(stretch, &doomed).await?;
        }
        self.ask("release the lease").release_lease(LEASE, self.id()).await?;
        telemetry::purged(count);
        Ok(Purged::Keys(count))
    }

    /// Writes into the audit who wants it and why, then deletes every key of an owner with its stored answers.
    ///
    /// What the owner's commands did stays done. Keys that the owner shares with others (a wider [`Scope`](crate::Scope))
    /// stay too, and so do the names in the audit.
    ///
    /// # Errors
    /// If the database does not answer: then some keys may be gone and others not, and the call can be repeated.
    pub async fn erase(&self, owner: &Owner, actor: &str, reason: &str) -> Result<u64> {
        let entry =
            AuditEntry::new(actor, "owner.erase", format!("{}/{}", owner.tenant(), owner.user())).because(reason);
        let entry = &entry;
        self.transact(async |tx| Ok(tx.audit(entry).await?)).await?;
        let mut count = 0;
        for stretch in self.stretches().await? {
            count += self
                .ask("delete the owner's keys")
                .delete_keys(stretch, &Doomed::OwnedBy(owner))
                .await?;
        }
        Ok(count)
    }

    /// Where keys are, in stretches that one short statement walks through.
    async fn stretches(&self) -> Result<impl Iterator<Item = Range<i64>> + use<Db>> {
        let mut places = self.ask("look where keys are").key_places().await?;
        Ok(iter::from_fn(move || {
            let start = places.start;
            places.start = places.end.min(start.saturating_add(Db::Store::PURGE_STEP));
            (start < places.start).then_some(start..places.start)
        }))
    }

    /// Does what has to be done from time to time, until [`stop`](Self::stop): purges every hour.
    ///
    /// [`serve`](Self::serve) runs it by itself. With a server of your own, spawn it once for each process.
    pub async fn keep_house(&self) {
        loop {
            tokio::select! {
                () = self.stopped() => return,
                () = tokio::time::sleep(jitter(self.purge_every())) => {}
            }
            if let Err(error) = self.purge().await {
                telemetry::purge_failed(&error);
            }
        }
    }
}
