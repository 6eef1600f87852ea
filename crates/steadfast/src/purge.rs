//! Keeping the tables small: expired keys are purged, an owner's keys erased.
//!
//! Expiry itself needs no purge: a key counts as absent from the moment it expires. One process purges at a time,
//! by a lease, though two of them would do no harm.

use std::ops::Range;
use std::time::Duration;

use crate::audit::AuditEntry;
use crate::clock::jitter;
use crate::command::Owner;
use crate::error::{Error, Result};
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

/// How far a walk through the table of keys has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Walked {
    /// The part of the table that is behind it, from 0 to 1.
    pub part: f64,
    /// How many keys it has found, and deleted if it was sent to.
    pub keys: u64,
}

impl<Db: Database> Steadfast<Db> {
    /// Deletes expired keys, a short statement at a time, unless another process is at it.
    ///
    /// [`keep_house`](Self::keep_house) does it every hour; call this to have it done now.
    ///
    /// # Errors
    /// If the database does not answer. What was deleted until then stays deleted.
    pub async fn purge(&self) -> Result<Purged> {
        self.purge_watched(|_| ()).await
    }

    /// The same, and tells after each statement how far it has come.
    ///
    /// # Errors
    /// As [`purge`](Self::purge).
    pub async fn purge_watched(&self, mut watch: impl FnMut(Walked) + Send) -> Result<Purged> {
        let mut count = 0;
        for stretch in self.stretches().await? {
            let lease = self
                .ask("take the lease")
                .take_lease(LEASE, self.id(), LEASE_TTL, self.clock().ahead());
            if lease.await?.is_none() {
                return Ok(Purged::Elsewhere);
            }
            let doomed = Doomed::Expired(self.clock().ahead());
            let Stretch { places, part } = stretch;
            count += self.ask("delete expired keys").delete_keys(places, &doomed).await?;
            watch(Walked { part, keys: count });
        }
        self.ask("release the lease").release_lease(LEASE, self.id()).await?;
        telemetry::purged(count);
        Ok(Purged::Keys(count))
    }

    /// How many keys [`purge`](Self::purge) would delete now. It only reads, and tells how far it has come.
    ///
    /// ```
    /// # use steadfast::Steadfast;
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let expired = sf.count_expired(|walked| eprintln!("{:.0} %", walked.part * 100.0)).await?;
    /// assert_eq!(expired, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn count_expired(&self, mut watch: impl FnMut(Walked) + Send) -> Result<u64> {
        let mut count = 0;
        for Stretch { places, part } in self.stretches().await? {
            count += self.store().count_expired(places, self.clock().ahead()).await?;
            watch(Walked { part, keys: count });
        }
        Ok(count)
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
        let written = self.transact(async |tx| Ok(tx.audit(entry).await?)).await;
        written.map_err(Error::unwrapped)?;
        let mut count = 0;
        for stretch in self.stretches().await? {
            count += self
                .ask("delete the owner's keys")
                .delete_keys(stretch.places, &Doomed::OwnedBy(owner))
                .await?;
        }
        Ok(count)
    }

    /// The table of keys, cut into stretches that one statement may look at.
    async fn stretches(&self) -> Result<impl Iterator<Item = Stretch> + use<Db>> {
        let places = self.ask("look where keys are").key_places().await?;
        Ok(cut(places, Db::Store::PURGE_STEP))
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

/// One part of the table, and how much of the table is behind whoever has been there.
#[derive(Debug, PartialEq)]
struct Stretch {
    places: Range<i64>,
    part: f64,
}

fn cut(places: Range<i64>, step: i64) -> impl Iterator<Item = Stretch> {
    let Range { start, end } = places;
    let length = end.saturating_sub(start) as f64;
    let next = move |from: &i64| Some(from.saturating_add(step)).filter(|from| *from < end);
    let first = Some(start).filter(|start| *start < end);
    std::iter::successors(first, next).map(move |from| {
        let places = from..end.min(from.saturating_add(step));
        let part = (places.end - start) as f64 / length;
        Stretch { places, part }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_cover_everything_once_and_end_at_the_whole() {
        let of = |places, step| cut(places, step).collect::<Vec<_>>();
        let stretch = |places, part| Stretch { places, part };
        assert_eq!(
            of(0..8, 3),
            [stretch(0..3, 0.375), stretch(3..6, 0.75), stretch(6..8, 1.0)]
        );
        assert_eq!(of(5..6, 256), [stretch(5..6, 1.0)]);
        assert_eq!(of(0..0, 256), []);
    }
}
