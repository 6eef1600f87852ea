//! What is to become of a schedule: paused, resumed, triggered, removed.

use super::make::message;
use super::plan::MakeSchedule;
use super::unknown_schedule;
use crate::audit::AuditEntry;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::job::JobId;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::schedules::Schedules as _;
use crate::tx::Tx;

/// All schedules, to look at them or to decide about them: [`Steadfast::schedules`].
#[derive(Debug)]
#[must_use = "nothing is read or decided until it is said what"]
pub struct Schedules<'s, Db: Database> {
    pub(super) sf: &'s Steadfast<Db>,
}

impl<Db: Database> Steadfast<Db> {
    /// All schedules, whether a program declares them or they were made at run time.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use steadfast::sqlx::Sqlite;
    /// # use steadfast::{Job, Steadfast};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Report { tenant: u32 }
    /// # impl Job for Report { const NAME: &'static str = "tenant.report"; }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let schedules = sf.schedules();
    /// schedules.make("tenant-42.report").cron("0 8 1 * *", "Europe/Madrid").job(&Report { tenant: 42 }).await?;
    /// schedules.pause("tenant-42.report", "ann", "they are on holiday").await?;
    /// for schedule in schedules.list().await? {
    ///     println!("{}: {}, next {:?}", schedule.name, schedule.written, schedule.next_runs(1));
    /// }
    /// schedules.remove("tenant-42.report", "ann", "they have left").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn schedules(&self) -> Schedules<'_, Db> {
        Schedules { sf: self }
    }
}

impl<'s, Db: Database> Schedules<'s, Db> {
    /// A schedule that is made at run time, such as one for each tenant. It outlives the process, and needs no program that declares it.
    pub fn make(&self, name: &str) -> MakeSchedule<'s, Db> {
        MakeSchedule::new(self.sf, name)
    }

    /// Makes no jobs of its ticks until it is [resumed](Self::resume). Jobs that were made are run all the same.
    ///
    /// # Errors
    /// SF102 if there is no schedule of this name.
    pub async fn pause(&self, name: &str, operator: &str, reason: &str) -> Result<()> {
        let entry = AuditEntry::new(operator, "schedule.pause", name).because(reason);
        self.change(name, &entry, async |tx| {
            let (store, conn, offset) = tx.parts("pause a schedule");
            Ok(store
                .pause_schedule(conn, name, Some((operator, reason)), offset)
                .await?)
        })
        .await
    }

    /// Makes jobs again. What becomes of the ticks in between is said by its [`Missed`](crate::Missed).
    ///
    /// # Errors
    /// SF102 if there is no schedule of this name.
    pub async fn resume(&self, name: &str, operator: &str, reason: &str) -> Result<()> {
        let entry = AuditEntry::new(operator, "schedule.resume", name).because(reason);
        self.change(name, &entry, async |tx| {
            let (store, conn, offset) = tx.parts("resume a schedule");
            Ok(store.pause_schedule(conn, name, None, offset).await?)
        })
        .await
    }

    /// Removes it: no more jobs are made. One that a program declares comes back when that starts again; pause it instead, or remove it
    /// from the program first.
    ///
    /// # Errors
    /// SF102 if there is no schedule of this name.
    pub async fn remove(&self, name: &str, operator: &str, reason: &str) -> Result<()> {
        let entry = AuditEntry::new(operator, "schedule.remove", name).because(reason);
        self.change(name, &entry, async |tx| {
            let (store, conn, _) = tx.parts("remove a schedule");
            Ok(store.remove_schedule(conn, name).await?)
        })
        .await
    }

    /// Makes a job of it now, whether or not it is paused, beside those of its ticks: it stands for none of them, and none waits for it.
    ///
    /// # Errors
    /// SF102 if there is no schedule of this name.
    pub async fn trigger(&self, name: &str, operator: &str, reason: &str) -> Result<JobId> {
        let made = self.sf.transact(async |tx| {
            let (store, conn, offset) = tx.parts("lock a schedule");
            let Some(row) = store.lock_schedule(conn, name, offset).await? else {
                return Ok(None);
            };
            let message = message(&row, self.sf.own_source(), None)?;
            let id = tx.add_job(|_| Ok(message))?;
            let entry = AuditEntry::new(operator, "schedule.trigger", format!("{name} {id}")).because(reason);
            tx.audit(&entry).await?;
            Ok(Some(id))
        });
        match made.await.map_err(Error::unwrapped)? {
            Some(id) => Ok(id),
            None => Err(self.unknown(name).await?),
        }
    }

    /// Changes a schedule, and writes into the audit that it was.
    async fn change<F>(&self, name: &str, entry: &AuditEntry, change: F) -> Result<()>
    where
        for<'t> F: AsyncFnOnce(&'t mut Tx<Db>) -> Result<bool, Failure>
            + crate::command::AsyncOnce<&'t mut Tx<Db>, Result<bool, Failure>, Fut: Send>
            + Send,
    {
        let changed = self.sf.transact(async |tx| {
            let is_there = change(tx).await?;
            if is_there {
                tx.audit(entry).await?;
            }
            Ok(is_there)
        });
        if !changed.await.map_err(Error::unwrapped)? {
            return Err(self.unknown(name).await?);
        }
        self.sf.ticker().told.notify_one();
        Ok(())
    }

    pub(super) async fn unknown(&self, name: &str) -> Result<Error> {
        let schedules = self.list().await?;
        let known: Vec<_> = schedules.iter().map(|schedule| &*schedule.name).collect();
        Ok(unknown_schedule(name, &known))
    }
}
