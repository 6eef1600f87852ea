//! Making up by hand for ticks that had no job: they were skipped, the schedule was paused, or it was not there yet.

use std::collections::HashMap;
use std::time::SystemTime;

use super::Readable;
use super::look::MadeTick;
use super::make::message;
use super::operate::Schedules;
use crate::audit::AuditEntry;
use crate::clock::{Timestamp, rfc3339};
use crate::error::{Code, Error, Result};
use crate::job::JobId;
use crate::purge::TICK_RETENTION;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::schedules::{ScheduleRow, Schedules as _};

/// How many ticks can be made up for at once: their jobs are one transaction.
pub const BACKFILL_MAX: usize = 1_000;

/// A stretch of time of a schedule, to make up for its ticks: [`Schedules::backfill`].
#[derive(Debug)]
#[must_use = "nothing is made until `run`"]
pub struct Backfill<'s, Db: Database> {
    sf: &'s Steadfast<Db>,
    name: String,
    from: SystemTime,
    until: SystemTime,
}

/// A tick in the stretch, and whether it had a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackfillTick {
    /// When the schedule was due.
    pub at: SystemTime,
    /// The job that was made of it, if one was. It has no second one.
    pub job: Option<JobId>,
}

impl<'s, Db: Database> Schedules<'s, Db> {
    /// Makes up for ticks by hand, from one moment to another, both included.
    ///
    /// ```
    /// # use steadfast::Steadfast;
    /// # use steadfast::sqlx::Sqlite;
    /// # use std::time::SystemTime;
    /// # async fn example(sf: &Steadfast<Sqlite>, monday: SystemTime, friday: SystemTime) -> steadfast::Result<()> {
    /// let backfill = sf.schedules().backfill("shop.digest", monday, friday);
    /// for tick in backfill.preview().await? {
    ///     println!("{}: {}", steadfast::rfc3339(tick.at), if tick.job.is_some() { "has a job" } else { "to be made" });
    /// }
    /// backfill.run("ann", "mails were not sent").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn backfill(&self, name: &str, from: SystemTime, until: SystemTime) -> Backfill<'s, Db> {
        Backfill {
            sf: self.sf,
            name: name.to_owned(),
            from,
            until,
        }
    }
}

impl<Db: Database> Backfill<'_, Db> {
    /// Which ticks there are, and which of them had a job. Nothing is made.
    ///
    /// # Errors
    /// SF102 if there is no schedule of this name, if the stretch ends in the future, reaches farther back than 90 days, after which it is
    /// not known any more what had a job, or has more than 1,000 ticks. SF303 or SF118 if this version cannot read the schedule.
    pub async fn preview(&self) -> Result<Vec<BackfillTick>> {
        let offset = self.sf.clock().ahead();
        let store = self.sf.ask("look at a schedule");
        let Some(row) = store.read_schedule(&self.name, offset).await? else {
            return Err(self.sf.schedules().unknown(&self.name).await?);
        };
        let ticks = self.ticks(&row)?;
        let made = self.sf.ask("read ticks").read_ticks(&self.name, &ticks).await?;
        let made: Vec<_> = made.into_iter().map(MadeTick::read).collect::<Result<_>>()?;
        let made: HashMap<SystemTime, JobId> = made.into_iter().map(|made| (made.at, made.job)).collect();
        let tick = |tick: Timestamp| {
            let at = SystemTime::from(tick);
            let job = made.get(&at).copied();
            BackfillTick { at, job }
        };
        Ok(ticks.into_iter().map(tick).collect())
    }

    /// Makes a job of each tick that had none, all in one transaction, and says which. They are not kept apart by the schedule's
    /// [`Overlap`](crate::Overlap), and a pause does not keep them from being made.
    ///
    /// # Errors
    /// As [`preview`](Self::preview).
    pub async fn run(&self, operator: &str, reason: &str) -> Result<Vec<MadeTick>> {
        let made = self.sf.transact(async |tx| {
            let (store, conn, offset) = tx.parts("lock a schedule");
            let Some(row) = store.lock_schedule(conn, &self.name, offset).await? else {
                return Ok(None);
            };
            let mut messages = Vec::new();
            for tick in self.ticks(&row)? {
                messages.push((tick, message(&row, self.sf.own_source(), Some(tick))?));
            }
            let ticks: Vec<_> = messages.iter().map(|(tick, message)| (*tick, message.id)).collect();
            let (store, conn, _) = tx.parts("write ticks");
            let new = store.write_ticks(conn, &self.name, &ticks).await?;
            let mut made = Vec::with_capacity(new.len());
            for (tick, message) in messages {
                if new.contains(&tick) {
                    let job = tx.add_job(|_| Ok(message))?;
                    made.push(MadeTick { at: tick.into(), job });
                }
            }
            let subject = format!(
                "{} {} to {}: {} jobs",
                self.name,
                rfc3339(self.from),
                rfc3339(self.until),
                made.len()
            );
            let entry = AuditEntry::new(operator, "schedule.backfill", subject).because(reason);
            tx.audit(&entry).await?;
            Ok(Some(made))
        });
        match made.await.map_err(Error::unwrapped)? {
            Some(made) => Ok(made),
            None => Err(self.sf.schedules().unknown(&self.name).await?),
        }
    }

    /// The ticks of the stretch, if it may be made up for.
    fn ticks(&self, row: &ScheduleRow) -> Result<Vec<Timestamp>> {
        let refuse = |message: String| Err(Error::new(Code::InputInvalid, message));
        let (from, until, now) = (Timestamp::of(self.from), Timestamp::of(self.until), Timestamp(row.now));
        if until < from {
            return refuse("the stretch ends before it begins; write the earlier moment first".to_owned());
        }
        if until > now {
            return refuse(format!(
                "the stretch ends in the future, where ticks have their jobs by themselves; end it at {} or earlier",
                rfc3339(now.into())
            ));
        }
        let oldest = now.before(TICK_RETENTION);
        if from < oldest {
            return refuse(format!(
                "it is not known any more which ticks before {} had a job; begin later, or enqueue the jobs themselves",
                rfc3339(oldest.into())
            ));
        }
        let plan = Readable::of(row)?;
        let ticks = plan.timing.ticks(Timestamp(from.0 - 1), until, BACKFILL_MAX + 1);
        match ticks.len() {
            0..=BACKFILL_MAX => Ok(ticks),
            _ => refuse(format!(
                "the stretch has more than {BACKFILL_MAX} ticks; make up for a shorter one, and then for the next"
            )),
        }
    }
}
