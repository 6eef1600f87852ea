//! Keeping the tables small: expired keys are purged, messages that nobody waits for any more, records of messages that were
//! handled long ago, and what was pushed into streams; an owner's keys erased.
//!
//! Expiry itself needs no purge: a key counts as absent from the moment it expires. A message goes when it is older than its
//! retention and no row of the queue is left for it: what is pending, leased or dead keeps it, however old it is. Nothing
//! races with that. A row of the queue comes into being only in the commit of its message, which is written anew where it is
//! there already (`keep_messages`); and whoever works on one holds a row until it is done.
//!
//! One process purges at a time, by a lease, though two of them would do no harm.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::audit::AuditEntry;
use crate::clock::jitter;
use crate::command::Owner;
use crate::error::{Error, Result};
use crate::steadfast::Steadfast;
use crate::store::jobs::Jobs;
use crate::store::{Aged, Aging, Database, Doomed, Store};
use crate::telemetry;

/// The lease of whoever purges, and how long it lasts without being renewed. A stretch takes far less time than is left when
/// it is renewed.
const LEASE: &str = "purge";
const LEASE_TTL: Duration = Duration::from_secs(60);
const RENEW_EVERY: Duration = Duration::from_secs(15);

/// How long the entries of streams are kept for clients that were away.
pub(crate) const STREAM_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// How much longer they are there: who is told that nothing was missed must not be wrong because of a clock.
const STREAM_GRACE: Duration = Duration::from_secs(60 * 60);

/// How long it is remembered which job was made of a tick: for those who look, and for those who make up for ticks by hand. Nothing
/// else needs it: how far a schedule has come never goes back.
pub(crate) const TICK_RETENTION: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// What purging came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purged {
    /// This was deleted.
    Done(Expired),
    /// Another process is purging.
    Elsewhere,
}

/// How much has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expired {
    /// Keys whose retention has passed.
    pub keys: u64,
    /// Messages that are older than their retention, and that nobody waits for any more.
    pub messages: u64,
    /// Deliveries in the history that ended longer ago than that.
    pub deliveries: u64,
    /// What was pushed into streams, longer ago than they are kept.
    pub entries: u64,
    /// Streams into which nothing was pushed for as long.
    pub streams: u64,
    /// Records of the inbox whose retention has passed.
    pub records: u64,
    /// Ticks of schedules that were due longer ago than they are kept.
    pub ticks: u64,
}

/// How far a walk through the tables has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Walked {
    /// The part of the tables that is behind it, from 0 to 1.
    pub part: f64,
    /// What it has found, and deleted if it was sent to.
    pub expired: Expired,
}

impl<Db: Database> Steadfast<Db> {
    /// Deletes what has expired, a short statement at a time, unless another process is at it: keys, messages that nobody
    /// waits for, deliveries that ended long ago, and records of the inbox. Dead letters stay, and their messages and records with
    /// them.
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
        let mut expired = Expired::default();
        let mut leased_at: Option<Instant> = None;
        for Stretch { table, places, part } in self.stretches(&Table::ALL).await? {
            if leased_at.is_none_or(|leased_at| leased_at.elapsed() >= RENEW_EVERY) {
                leased_at = Some(Instant::now());
                let lease = self
                    .ask("take the lease")
                    .take_lease(LEASE, self.id(), LEASE_TTL, self.clock().ahead());
                if lease.await?.is_none() {
                    return Ok(Purged::Elsewhere);
                }
            }
            *expired.of(table) += match table {
                Table::Keys => {
                    let doomed = Doomed::Expired(self.clock().ahead());
                    self.ask("delete expired keys").delete_keys(places, &doomed).await?
                }
                Table::Aging(table) => {
                    let store = self.ask("delete finished messages");
                    store.delete_aged(table, places, self.aged(table)).await?
                }
            };
            watch(Walked { part, expired });
        }
        // Nobody has them any more, and whoever wants one would find that out: they only take up room.
        while self
            .ask("forget unique keys")
            .forget_uniques(self.clock().ahead())
            .await?
            > 0
        {}
        self.ask("release the lease").release_lease(LEASE, self.id()).await?;
        telemetry::purged(&expired);
        Ok(Purged::Done(expired))
    }

    /// How much [`purge`](Self::purge) would delete now. It only reads, and tells how far it has come.
    ///
    /// ```
    /// # use steadfast::Steadfast;
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let expired = sf.count_expired(|walked| eprintln!("{:.0} %", walked.part * 100.0)).await?;
    /// assert_eq!((expired.keys, expired.messages), (0, 0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn count_expired(&self, mut watch: impl FnMut(Walked) + Send) -> Result<Expired> {
        let mut expired = Expired::default();
        for Stretch { table, places, part } in self.stretches(&Table::ALL).await? {
            *expired.of(table) += match table {
                Table::Keys => self.store().count_expired(places, self.clock().ahead()).await?,
                Table::Aging(table) => self.store().count_aged(table, places, self.aged(table)).await?,
            };
            watch(Walked { part, expired });
        }
        Ok(expired)
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
        for stretch in self.stretches(&[Table::Keys]).await? {
            count += self
                .ask("delete the owner's keys")
                .delete_keys(stretch.places, &Doomed::OwnedBy(owner))
                .await?;
        }
        Ok(count)
    }

    /// Tables, cut into stretches that one statement may look at.
    async fn stretches(&self, tables: &[Table]) -> Result<Vec<Stretch>> {
        let mut stretches = Vec::new();
        for table in tables {
            let places: Vec<_> = match table {
                Table::Keys => {
                    let places = self.ask("look where keys are").key_places().await?;
                    cut(places, Db::Store::PURGE_STEP).collect()
                }
                Table::Aging(table) => self.ask("look where messages are").aged_stretches(*table).await?,
            };
            let stretch = |places| Stretch {
                table: *table,
                places,
                part: 0.0,
            };
            stretches.extend(places.into_iter().map(stretch));
        }
        let count = stretches.len() as f64;
        for (place, stretch) in stretches.iter_mut().enumerate() {
            stretch.part = (place + 1) as f64 / count;
        }
        Ok(stretches)
    }

    fn aged(&self, table: Aging) -> Aged {
        Aged {
            retention: match table {
                Aging::Messages | Aging::History => self.message_retention(),
                Aging::Entries | Aging::Streams => STREAM_RETENTION + STREAM_GRACE,
                Aging::Inbox => self.inbox_retention(),
                Aging::Ticks => TICK_RETENTION,
            },
            offset: self.clock().ahead(),
        }
    }

    /// Does what has to be done from time to time, until [`stop`](Self::stop): purges every hour, and looks about every
    /// minute [how the queue is doing](Self::refresh_gauges).
    ///
    /// [`serve`](Self::serve) runs it by itself. With a server of your own, spawn it once for each process.
    pub async fn keep_house(&self) {
        tokio::join!(self.keep_tables_small(), self.keep_gauges_fresh());
    }

    async fn keep_tables_small(&self) {
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

/// A table that is walked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    Keys,
    Aging(Aging),
}

impl Table {
    const ALL: [Table; 7] = [
        Table::Keys,
        Table::Aging(Aging::Messages),
        Table::Aging(Aging::History),
        Table::Aging(Aging::Entries),
        Table::Aging(Aging::Streams),
        Table::Aging(Aging::Inbox),
        Table::Aging(Aging::Ticks),
    ];
}

impl Expired {
    fn of(&mut self, table: Table) -> &mut u64 {
        match table {
            Table::Keys => &mut self.keys,
            Table::Aging(Aging::Messages) => &mut self.messages,
            Table::Aging(Aging::History) => &mut self.deliveries,
            Table::Aging(Aging::Entries) => &mut self.entries,
            Table::Aging(Aging::Streams) => &mut self.streams,
            Table::Aging(Aging::Inbox) => &mut self.records,
            Table::Aging(Aging::Ticks) => &mut self.ticks,
        }
    }
}

/// One part of a table, and how much is behind whoever has been there.
#[derive(Debug, PartialEq)]
struct Stretch {
    table: Table,
    places: Range<i64>,
    part: f64,
}

fn cut(places: Range<i64>, step: i64) -> impl Iterator<Item = Range<i64>> {
    let Range { start, end } = places;
    let next = move |from: &i64| Some(from.saturating_add(step)).filter(|from| *from < end);
    let first = Some(start).filter(|start| *start < end);
    std::iter::successors(first, next).map(move |from| from..end.min(from.saturating_add(step)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_cover_everything_once() {
        let of = |places, step| {
            let stretches = cut(places, step);
            stretches.map(|places| (places.start, places.end)).collect::<Vec<_>>()
        };
        assert_eq!(of(0..8, 3), [(0, 3), (3, 6), (6, 8)]);
        assert_eq!(of(5..6, 256), [(5, 6)]);
        assert_eq!(of(0..0, 256), []);
    }
}
