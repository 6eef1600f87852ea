//! Jobs, for those who look after them: which there are, where they stand, and what is to become of one.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::batch::BatchId;
use super::worker::{queue_of, read_kind};
use super::{JobId, Priority};
use crate::clock::Timestamp;
use crate::error::{Code, Error, Result};
use crate::outbox::{Count, DeliveryList, DeliveryPlace, FailedAttempt, LastFailure, LookedMessage, MessageId};
use crate::queue::{JOBS, KEY};
use crate::steadfast::Steadfast;
use crate::store::letters::{Among, DeliveryFilter, DeliveryRow, Letters, Role};
use crate::store::reports::Reports;
use crate::store::{Database, Store};

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobState {
    /// It is due later.
    Scheduled,
    /// It is due, and waits for somebody who has the time.
    Available,
    /// Somebody works on it.
    Running,
    /// It has failed, and is tried again later.
    WaitingRetry,
    /// It is done.
    Completed,
    /// Somebody did not want it any more.
    Cancelled,
    /// It was given up, and is kept for a person.
    Dead,
    /// It was dead, and a person gave it up for good.
    Discarded,
}

impl JobState {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Scheduled,
        Self::Available,
        Self::Running,
        Self::WaitingRetry,
        Self::Completed,
        Self::Cancelled,
        Self::Dead,
        Self::Discarded,
    ];

    /// The word for it, in tables, JSON and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Available => "available",
            Self::Running => "running",
            Self::WaitingRetry => "waiting_retry",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Dead => "dead",
            Self::Discarded => "discarded",
        }
    }

    pub(super) fn of(row: &DeliveryRow, now: Timestamp) -> Result<Self> {
        Ok(match &*row.state {
            "pending" if row.due_at.is_none_or(|at| at <= now.0) => Self::Available,
            "pending" if row.attempts > 0 => Self::WaitingRetry,
            "pending" => Self::Scheduled,
            "leased" => Self::Running,
            "dead" => Self::Dead,
            "completed" => Self::Completed,
            "cancelled" => Self::Cancelled,
            "discarded" => Self::Discarded,
            word => {
                let message = format!(
                    "a job is {word:?}, which this version does not know; use the newer version of the program"
                );
                return Err(Error::new(Code::RecordTooNew, message));
            }
        })
    }
}

/// Somebody wants a job no more that is running.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CancelRequest {
    /// When that was said.
    pub at: SystemTime,
    /// By whom.
    pub operator: String,
    /// Why.
    pub reason: String,
}

impl CancelRequest {
    fn take(row: &mut DeliveryRow) -> Option<Self> {
        Some(Self {
            at: Timestamp(row.cancel_at?).into(),
            operator: row.cancel_by.take().unwrap_or_default(),
            reason: row.cancel_reason.take().unwrap_or_default(),
        })
    }
}

/// What [`JobLookUp::cancel`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// It is cancelled, and never run again.
    Done,
    /// It is running, and whoever runs it is told to stop. It may have succeeded before.
    Requested,
}

/// A job, as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedJob {
    /// Identifies it.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// The queue that it stands in. None: it has none, or no node has known its type yet.
    pub queue: Option<String>,
    /// How soon it has its turn.
    pub priority: Priority,
    /// Where it stands.
    pub state: JobState,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was enqueued.
    pub enqueued_at: Option<SystemTime>,
    /// When it is due, if it is still to do.
    pub due_at: Option<SystemTime>,
    /// Who works on it.
    pub holder: Option<String>,
    /// Until when, unless the lease is renewed.
    pub leased_until: Option<SystemTime>,
    /// When it ended.
    pub finished_at: Option<SystemTime>,
    /// Why it was cancelled or discarded.
    pub detail: Option<String>,
    /// Who wants it no more, while it is running.
    pub cancel_request: Option<CancelRequest>,
    /// Why the last attempt that failed did.
    pub last_failure: Option<LastFailure>,
}

impl ListedJob {
    fn read(mut row: DeliveryRow, now: Timestamp) -> Result<Self> {
        let moment = |micros: Option<i64>| micros.map(|at| SystemTime::from(Timestamp(at)));
        Ok(Self {
            id: JobId::of(row.item),
            name: row.target().trim_start_matches(JOBS).to_owned(),
            queue: queue_of(&row.kind, row.queue.as_deref()).map(str::to_owned),
            priority: read_kind(&row.kind).1,
            state: JobState::of(&row, now)?,
            attempts: u32::try_from(row.attempts).unwrap_or_default(),
            enqueued_at: moment(row.created_at),
            due_at: moment(row.due_at),
            last_failure: LastFailure::take(&mut row),
            cancel_request: CancelRequest::take(&mut row),
            holder: row.holder,
            leased_until: moment(row.leased_until),
            finished_at: moment(row.finished_at),
            detail: row.detail,
        })
    }
}

/// Some jobs, and where to go on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobPage {
    /// The jobs, oldest first.
    pub jobs: Vec<ListedJob>,
    /// The last one of this page, if there are more: pass it to [`JobList::after`].
    pub next: Option<JobId>,
    /// The database's time when they were read.
    pub now: SystemTime,
}

/// Which jobs to list or to count: [`Steadfast::jobs`].
#[must_use = "nothing is listed until `page`"]
pub struct JobList<'c, Db: Database> {
    pub(super) list: DeliveryList<'c, Db>,
    state: Option<JobState>,
}

impl<Db: Database> Steadfast<Db> {
    /// The jobs that are still to do, or dead. Those that have ended are found by their state.
    ///
    /// ```
    /// # use steadfast::{JobState, Steadfast};
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let page = sf.jobs().name("receipt.send").state(JobState::Scheduled).page().await?;
    /// for job in &page.jobs {
    ///     println!("{} {}: {}", job.id, job.name, job.state.as_str());
    /// }
    /// assert_eq!(sf.jobs().count().await?.to_string(), "0");
    /// # Ok(())
    /// # }
    /// ```
    pub fn jobs(&self) -> JobList<'_, Db> {
        let filter = DeliveryFilter {
            role: Role::Job,
            ..DeliveryFilter::of(Among::Queue)
        };
        JobList {
            list: DeliveryList::fitting(self, filter),
            state: None,
        }
    }

    /// One job, to look at it or to decide about it.
    ///
    /// ```
    /// # use steadfast::{JobId, Steadfast};
    /// # use steadfast::sqlx::Sqlite;
    /// # async fn example(sf: &Steadfast<Sqlite>, id: JobId) -> steadfast::Result<()> {
    /// let job = sf.job(id).look().await?.expect("it was enqueued");
    /// println!("{}: {}", job.job.state.as_str(), job.payload);
    /// sf.job(id).cancel("ann", "the order was withdrawn").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn job(&self, id: JobId) -> JobLookUp<'_, Db> {
        JobLookUp {
            steadfast: self,
            id,
            is_revealed: false,
        }
    }
}

impl<Db: Database> JobList<'_, Db> {
    /// Only those in this state.
    pub fn state(mut self, state: JobState) -> Self {
        self.state = Some(state);
        self
    }

    /// Only those of this name, whatever their version.
    pub fn name(mut self, name: &str) -> Self {
        self.list = self.list.target(format!("{JOBS}{name}"));
        self
    }

    /// Only those of this batch.
    pub fn batch(mut self, batch: BatchId) -> Self {
        self.list.filter.batch = Some(batch.as_uuid());
        self
    }

    /// Only those that stand in this queue, whatever put them there.
    pub fn queue(mut self, queue: &str) -> Self {
        self.list.filter.queue = Some(queue.to_owned());
        self
    }

    /// Only those of this priority.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.list.filter.priority = Some(priority);
        self
    }

    /// Only those whose last failure has this code.
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.list = self.list.code(code);
        self
    }

    /// Only those that were enqueued within this time, by the database's clock.
    pub fn enqueued_within(mut self, age: Duration) -> Self {
        self.list = self.list.published_within(age);
        self
    }

    /// Goes on after this one, the last one of the page before.
    pub fn after(mut self, last: JobId) -> Self {
        // A job has one row: whatever comes next has another id. How kinds are sorted is the database's to say.
        let next = Uuid::from_u128(last.as_uuid().as_u128().saturating_add(1));
        self.list = self.list.after(DeliveryPlace::of(next, String::new()));
        self
    }

    /// At most so many, 1 to 1,000; 50 by default.
    pub fn limit(mut self, limit: u32) -> Self {
        self.list = self.list.limit(limit);
        self
    }

    /// Reads one page. What the jobs are about is not read.
    ///
    /// # Errors
    /// If the database does not answer. SF118 if a row was written by a newer version.
    pub async fn page(mut self) -> Result<JobPage> {
        let now = self.settle().await?;
        let (rows, has_more) = self.list.rows().await?;
        let jobs: Vec<_> = rows
            .into_iter()
            .map(|row| ListedJob::read(row, now))
            .collect::<Result<_>>()?;
        Ok(JobPage {
            next: jobs.last().map(|job| job.id).filter(|_| has_more),
            jobs,
            now: now.into(),
        })
    }

    /// Counts them, up to 100,000.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn count(mut self) -> Result<Count> {
        self.settle().await?;
        self.list.counted().await
    }

    /// Turns the state into what rows have, at this moment, and says which that is.
    pub(super) async fn settle(&mut self) -> Result<Timestamp> {
        let now = self.list.settle_bounds().await?;
        let filter = &mut self.list.filter;
        let Some(state) = self.state else {
            return Ok(now);
        };
        filter.among = match state {
            JobState::Scheduled | JobState::Available | JobState::WaitingRetry => Among::Pending,
            JobState::Running => Among::Leased,
            JobState::Dead => Among::Dead,
            JobState::Completed | JobState::Cancelled | JobState::Discarded => Among::History(state.as_str()),
        };
        match state {
            JobState::Available => filter.due_until = Some(now),
            JobState::Scheduled | JobState::WaitingRetry => {
                filter.due_after = Some(now);
                filter.is_tried = Some(state == JobState::WaitingRetry);
            }
            _ => {}
        }
        Ok(now)
    }
}

/// How far a job is, or was when it last said so.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// How much is done.
    pub done: u64,
    /// Of how much, if that is known.
    pub total: Option<u64>,
    /// What it is at.
    pub doing: Option<String>,
}

/// A line that a job has told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogLine {
    /// When.
    pub at: SystemTime,
    /// In which attempt, from 1.
    pub attempt: u32,
    /// What.
    pub text: String,
}

/// A job with everything that is known of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LookedJob {
    /// Where it stands.
    pub job: ListedJob,
    /// Which shape of its JSON it has.
    pub version: u32,
    /// The key of which there is one job at a time, if it is [unique](crate::Enqueue::unique).
    pub unique_key: Option<String>,
    /// Whose job it is, if it has a [limit key](crate::Enqueue::limit_key) and has not ended.
    pub limit_key: Option<String>,
    /// What it is all about.
    pub correlation_id: Option<String>,
    /// What brought it about.
    pub causation_id: Option<String>,
    /// The trace it is part of.
    pub traceparent: Option<String>,
    /// The members that are masked.
    pub redacted: Vec<String>,
    /// What is stored, as JSON, masked unless [revealed](JobLookUp::revealed).
    pub payload: String,
    /// Every attempt that failed, in order.
    pub failures: Vec<FailedAttempt>,
    /// How far the last attempt is that has told it.
    pub progress: Option<Progress>,
    /// The newest lines that it has told, in order.
    pub log: Vec<LogLine>,
    /// How many older ones are not kept.
    pub log_dropped: u64,
    /// When it last told something.
    pub told_at: Option<SystemTime>,
    /// What came of it, as JSON.
    pub output: Option<String>,
}

/// One job: [`Steadfast::job`].
#[must_use = "nothing is read or decided until it is said what"]
pub struct JobLookUp<'c, Db: Database> {
    pub(super) steadfast: &'c Steadfast<Db>,
    pub(super) id: JobId,
    is_revealed: bool,
}

impl<Db: Database> JobLookUp<'_, Db> {
    /// Shows the members that are masked otherwise.
    pub fn revealed(mut self) -> Self {
        self.is_revealed = true;
        self
    }

    /// Reads it. `None`: there is no such job, or its retention is over.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn look(self) -> Result<Option<LookedJob>> {
        let Some(row) = self.row().await? else {
            return Ok(None);
        };
        let mut look_up = self.steadfast.message(MessageId::of(self.id.as_uuid()));
        if self.is_revealed {
            look_up = look_up.revealed();
        }
        let Some(message) = look_up.look().await? else {
            return Ok(None);
        };
        let now = self.steadfast.clock().at(self.steadfast.store().now().await?);
        let LookedMessage {
            version,
            correlation_id,
            causation_id,
            traceparent,
            redacted,
            payload,
            failures,
            ..
        } = message;
        let told = self.steadfast.ask("read what a job told");
        let (report, lines) = told.read_report(self.id.as_uuid()).await?.unzip();
        let count = |number: i64| u64::try_from(number).unwrap_or_default();
        let lines = lines.unwrap_or_default();
        let log_dropped = report.as_ref().map_or(0, |report| count(report.lines));
        let name = row.target().trim_start_matches(JOBS);
        let unique_key = row.unique_key.as_deref().and_then(|key| key.strip_prefix(name));
        let unique_key = unique_key.map(|key| key.trim_start_matches(' ').to_owned());
        let limit_key = row.chain.as_deref().and_then(limit_key).map(|(_, key)| key.to_owned());
        Ok(Some(LookedJob {
            progress: report.as_ref().and_then(|report| {
                Some(Progress {
                    done: count(report.done?),
                    total: report.total.map(count),
                    doing: report.doing.clone(),
                })
            }),
            log_dropped: log_dropped.saturating_sub(lines.len() as u64),
            log: lines
                .into_iter()
                .map(|line| LogLine {
                    at: Timestamp(line.at).into(),
                    attempt: line.attempt.unsigned_abs(),
                    text: line.text,
                })
                .collect(),
            told_at: report.as_ref().map(|report| Timestamp(report.at).into()),
            output: report.and_then(|report| report.output),
            job: ListedJob::read(row, now)?,
            version,
            unique_key,
            limit_key,
            correlation_id,
            causation_id,
            traceparent,
            redacted,
            payload,
            failures,
        }))
    }

    /// Its row, in the queue or in the history.
    pub(super) async fn row(&self) -> Result<Option<DeliveryRow>> {
        let store = self.steadfast.ask("read deliveries");
        let rows = store.deliveries_of(self.id.as_uuid()).await?;
        Ok(rows.into_iter().find(|row| row.kind.starts_with(JOBS)))
    }
}

/// The queue and the key of a chain that counts against a limit: `/QUEUE KEY`.
pub(crate) fn limit_key(chain: &str) -> Option<(&str, &str)> {
    chain.strip_prefix(KEY)?.split_once(' ')
}
