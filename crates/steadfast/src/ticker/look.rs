//! Schedules, for those who look after them: which there are, when they are due, and what they have made lately.

use std::time::SystemTime;

use uuid::Uuid;

use super::operate::Schedules;
use super::{Overlap, Readable, SCHEDULES_MAX, read_missed};
use crate::clock::Timestamp;
use crate::error::{Code, Error, Result};
use crate::job::JobId;
use crate::outbox::{Paused, look_up};
use crate::schedule::{Missed, Timing};
use crate::store::Database;
use crate::store::schedules::{ScheduleRow, Schedules as _};

/// How many of the jobs that were made last are shown with a schedule.
const MADE_MAX: u32 = 10;

/// Where a schedule comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScheduleSource {
    /// A program declares it, and writes it anew whenever it starts.
    Declared,
    /// It was made at run time.
    Made,
}

impl ScheduleSource {
    /// The word for it, in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Made => "made",
        }
    }
}

/// A schedule, as it stands.
///
/// What a newer version has written and this one cannot read is `None`, and [`trouble`](Self::trouble) says why.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListedSchedule {
    /// Its name.
    pub name: String,
    /// Where it comes from.
    pub source: ScheduleSource,
    /// When it is due.
    pub timing: Option<Timing>,
    /// The same as it is stored: `0 9 * * MON-FRI`, `every 15m`.
    pub written: String,
    /// The time zone of its cron expression, as it is stored.
    pub time_zone: Option<String>,
    /// What becomes of ticks that nobody was there for.
    pub missed: Option<Missed>,
    /// What becomes of a tick while the job of the one before it is still to do.
    pub overlap: Option<Overlap>,
    /// Why this version cannot read it. It makes no jobs here.
    pub trouble: Option<String>,
    /// The stored name of the job that it makes.
    pub job: String,
    /// Whether it is paused.
    pub paused: Option<Paused>,
    /// Every tick up to here is dealt with.
    pub handled: SystemTime,
    /// When it was first written.
    pub created_at: SystemTime,
    /// When it last became another one.
    pub changed_at: SystemTime,
    /// The last tick that a job was made of.
    pub last_tick: Option<SystemTime>,
    /// The job of that tick.
    pub last_job: Option<JobId>,
    /// The database's time when it was read.
    pub now: SystemTime,
}

impl ListedSchedule {
    pub(super) fn read(row: &ScheduleRow) -> Self {
        let moment = |micros| SystemTime::from(Timestamp(micros));
        let readable = Readable::of(row);
        let paused = row.paused_at.map(|at| Paused {
            at: moment(at),
            by: row.paused_by.clone().unwrap_or_default(),
            reason: row.paused_reason.clone().unwrap_or_default(),
        });
        Self {
            name: row.name.clone(),
            source: match &*row.source {
                "declared" => ScheduleSource::Declared,
                _ => ScheduleSource::Made,
            },
            written: row.timing.clone(),
            time_zone: row.time_zone.clone(),
            missed: read_missed(&row.missed).ok(),
            overlap: Overlap::read(&row.overlap).ok(),
            trouble: readable.as_ref().err().map(ToString::to_string),
            timing: Timing::read_stored(&row.timing, row.time_zone.as_deref()).ok(),
            job: row.job.clone(),
            paused,
            handled: moment(row.handled),
            created_at: moment(row.created_at),
            changed_at: moment(row.changed_at),
            last_tick: row.last_tick.map(moment),
            last_job: row.last_job.as_deref().and_then(|id| id.parse().ok()),
            now: moment(row.now),
        }
    }

    /// The ticks that come next, at most so many. Those of a paused schedule come when it is resumed by then.
    pub fn next_runs(&self, count: usize) -> Vec<SystemTime> {
        let after = self.handled.max(self.now);
        let next = |tick: &SystemTime| self.timing.as_ref()?.next_after(*tick);
        std::iter::successors(next(&after), next).take(count).collect()
    }
}

/// A job that was made of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MadeTick {
    /// When the schedule was due.
    pub at: SystemTime,
    /// The job that was made of it. It is kept for a while only, as all jobs are.
    pub job: JobId,
}

impl MadeTick {
    pub(super) fn read((at, job): (i64, String)) -> Result<Self> {
        let id: Uuid = job.parse().map_err(|error| {
            Error::new(Code::Database, format!("{job:?} is not the id of a job")).with_source(error)
        })?;
        Ok(Self {
            at: Timestamp(at).into(),
            job: JobId::of(id),
        })
    }
}

/// A schedule with everything that is known of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LookedSchedule {
    /// How it stands.
    pub schedule: ListedSchedule,
    /// Which shape of its JSON its jobs have.
    pub version: u32,
    /// The members of the payload that are masked.
    pub redacted: Vec<String>,
    /// What its jobs are about, as JSON; redacted members are masked.
    pub payload: String,
    /// The last ticks that jobs were made of, the latest first.
    pub made: Vec<MadeTick>,
}

impl<Db: Database> Schedules<'_, Db> {
    /// Every schedule, by name.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn list(&self) -> Result<Vec<ListedSchedule>> {
        let offset = self.sf.clock().ahead();
        let store = self.sf.ask("look at schedules");
        let rows = store.list_schedules(None, SCHEDULES_MAX, offset).await?;
        Ok(rows.iter().map(ListedSchedule::read).collect())
    }

    /// One schedule. `None`: there is none of this name.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use steadfast::sqlx::Sqlite;
    /// # use steadfast::{Job, Steadfast};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct CountStock {}
    /// # impl Job for CountStock { const NAME: &'static str = "stock.count"; }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// sf.schedules().make("stock.count").every("6h").job(&CountStock {}).await?;
    /// let looked = sf.schedules().look("stock.count").await?.expect("it was made");
    /// assert_eq!(looked.schedule.next_runs(4).len(), 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn look(&self, name: &str) -> Result<Option<LookedSchedule>> {
        let offset = self.sf.clock().ahead();
        let store = self.sf.ask("look at a schedule");
        let Some(row) = store.read_schedule(name, offset).await? else {
            return Ok(None);
        };
        let made = self.sf.ask("read ticks").latest_ticks(name, MADE_MAX).await?;
        let redacted: Vec<String> = match &row.redacted {
            Some(list) => serde_json::from_str(list).unwrap_or_default(),
            None => Vec::new(),
        };
        Ok(Some(LookedSchedule {
            schedule: ListedSchedule::read(&row),
            version: u32::try_from(row.version).unwrap_or_default(),
            payload: look_up::show(row.payload.as_deref().unwrap_or_default(), &redacted),
            redacted,
            made: made.into_iter().map(MadeTick::read).collect::<Result<_>>()?,
        }))
    }
}
