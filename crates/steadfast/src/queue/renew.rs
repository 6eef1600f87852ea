//! Renewing leases while the work lasts, and stopping work whose lease is lost.
//!
//! Whoever cannot renew stops before his lease ends, by his own monotonic clock: the database may be out of reach, and
//! others will take the row over. The statements would refuse what he says anyway; this spares the outside world.
//!
//! On SQLite a handler with a transaction keeps everybody from writing for as long as it takes, also from renewing. Then nobody can
//! take anything over either, and no lease is given up: the renewal waits, and has the first turn after it.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::engine::{Engine, Held};
use super::line::statement_limit;
use super::{Renewed, WorkOptions};
use crate::error::Result;
use crate::lease::Lease;
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};
use crate::telemetry;

/// How long a row is still held that a renewal did not find. A handler may have finished it with its own commit: then its end is on
/// the way.
const ON_THE_WAY: Duration = Duration::from_millis(100);

impl Held {
    /// Somebody is just writing the row. Its lease ends when it would have, and is asked for once more before.
    fn note_busy(&mut self, asked_at: Instant) {
        self.renew_at = asked_at + self.lease / 6;
    }

    /// Somebody else has the row, or it is gone.
    fn note_taken(&mut self) {
        self.is_taken = true;
        self.lost_at = Instant::now() + ON_THE_WAY;
        self.renew_at = self.lost_at;
    }

    /// Tells whoever works on it that it counts for nothing any more.
    fn let_go(&self) {
        telemetry::lease_lost(&self.claimed.lease.kind, &self.claimed.lease.item);
        self.lost.cancel();
    }
}

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

    /// Renews what has to be, lets go of what is lost, and tells who works on what somebody wants no more.
    pub(super) async fn renew(&mut self) -> Result<()> {
        let_go::<Db>(self.sf.store(), &self.held, &mut HashSet::new());
        let now = Instant::now();
        if self.sf.wake().takes_cancel() {
            // Which of them it is, the renewal finds out.
            let renewed = self.held.values_mut();
            renewed.for_each(|held| held.renew_at = held.renew_at.min(now));
        }
        let ours = || {
            let held = self.held.values();
            held.filter(|held| !held.is_taken && !held.lost.is_cancelled())
        };
        let due = ours().filter(|held| held.renew_at <= now);
        let Some(longest) = due.map(|held| held.lease).max() else {
            return Ok(());
        };
        // What has a lease as short goes along: it could be too late for it when there is an answer.
        let leases: Vec<_> = ours()
            .filter(|held| held.lease <= longest)
            .map(|held| (held.claimed.clone(), held.lease))
            .collect();
        let pairs: Vec<_> = leases.iter().map(|(claimed, lease)| (&claimed.lease, *lease)).collect();
        let offset = self.sf.clock().ahead();
        let limit = statement_limit(&self.held, self.pace.lease);
        let (sf, stopping) = (self.sf.clone(), self.sf.stopping());
        // A handler of this process is in the way, and nobody else can write.
        let is_alone = || sf.store().alone_since().is_some() && !stopping.is_cancelled();
        let asking = self
            .line
            .ask_while(is_alone, "renew leases", limit, async |store, link| {
                store.renew(link, &pairs, offset).await
            });
        let Renewed {
            from,
            untouched,
            cancelled,
        } = letting_go::<Db, _>(&sf, &self.held, asking).await?;
        let [lost, busy, cancelled] = [&untouched.lost, &untouched.busy, &cancelled].map(|rows| {
            let names = rows.iter().map(|(item, kind)| (*item, &**kind));
            names.collect::<HashSet<_>>()
        });
        for (claimed, lease) in &leases {
            let name = (claimed.lease.item, &*claimed.lease.kind);
            if let Some(held) = self.held.get_mut(&claimed.lease) {
                if lost.contains(&name) {
                    held.note_taken();
                } else if busy.contains(&name) {
                    held.note_busy(from);
                } else {
                    held.renewed(from, *lease);
                }
                if cancelled.contains(&name) {
                    held.claimed.cancel.request();
                }
            }
        }
        Ok(())
    }
}

/// Tells work whose lease has ended that it counts for nothing any more. What ended while nobody but this process could write is
/// spared: nobody has taken it over, and whoever is asked now will tell.
fn let_go<'h, Db: Database>(store: &Db::Store, held: &'h HashMap<Lease, Held>, spared: &mut HashSet<&'h Lease>) {
    let (now, alone_since) = (Instant::now(), store.alone_since());
    for (lease, held) in held {
        if held.lost_at > now || held.lost.is_cancelled() || spared.contains(lease) {
            continue;
        }
        if alone_since.is_some_and(|since| since <= held.lost_at) && !held.is_taken {
            spared.insert(lease);
        } else {
            held.let_go();
        }
    }
}

/// Does so whenever a lease ends, until something else is done: the engine waits for that, and nobody else tells.
pub(super) async fn letting_go<Db: Database, T>(
    sf: &Steadfast<Db>,
    held: &HashMap<Lease, Held>,
    until: impl Future<Output = T>,
) -> T {
    let telling = async {
        let mut spared = HashSet::new();
        loop {
            let lost_at = held
                .iter()
                .filter(|(lease, held)| !held.lost.is_cancelled() && !spared.contains(lease))
                .map(|(_, held)| held.lost_at);
            match lost_at.min() {
                Some(lost_at) => tokio::time::sleep_until(lost_at.into()).await,
                None => std::future::pending().await,
            }
            let_go::<Db>(sf.store(), held, &mut spared);
        }
    };
    tokio::select! {
        biased;
        done = until => done,
        never = telling => never,
    }
}
