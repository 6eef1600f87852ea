//! Jobs, for those who look after them: which there are, where they stand, and what is to become of one.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::JobId;
use super::batch::BatchId;
use crate::audit::AuditEntry;
use crate::clock::{Timestamp, rfc3339};
use crate::error::{Code, Error, Result};
use crate::outbox::{Count, DeliveryList, DeliveryPlace, FailedAttempt, LastFailure, LookedMessage, MessageId};
use crate::queue::JOBS;
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

    fn of(row: &DeliveryRow, now: Timestamp) -> Result<Self> {
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
    list: DeliveryList<'c, Db>,
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
    async fn settle(&mut self) -> Result<Timestamp> {
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
    steadfast: &'c Steadfast<Db>,
    id: JobId,
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
            correlation_id,
            causation_id,
            traceparent,
            redacted,
            payload,
            failures,
        }))
    }

    /// Runs it now, with all its attempts, whether it is dead, waits for its next attempt or is scheduled. It is the same job, so the
    /// outside knows it by the same [key](super::JobCx::key).
    ///
    /// # Errors
    /// SF117 if somebody works on it. SF102 if there is no such job, or it has ended.
    pub async fn run_now(self, operator: &str, reason: &str) -> Result<()> {
        self.change("job.run_now", operator, reason, Wish::RunNow)
            .await
            .map(drop)
    }

    /// It is not wanted any more: it is never run, or never run again.
    ///
    /// If somebody works on it, on whatever node, he is [told](super::JobCx::cancelled). Between completed and cancelled there is one
    /// winner: a handler with a transaction that has not committed by now is rolled back; one without a transaction that succeeds all the
    /// same has completed the job; and however else the attempt ends, the job is cancelled. To ask again changes nothing.
    ///
    /// On SQLite, this waits for a handler that has a transaction, as everybody who writes does.
    ///
    /// # Errors
    /// SF102 if there is no such job, or it has ended in another way.
    pub async fn cancel(self, operator: &str, reason: &str) -> Result<Cancellation> {
        self.change("job.cancel", operator, reason, Wish::Cancel).await
    }

    /// Its row, in the queue or in the history.
    async fn row(&self) -> Result<Option<DeliveryRow>> {
        let store = self.steadfast.ask("read deliveries");
        let rows = store.deliveries_of(self.id.as_uuid()).await?;
        Ok(rows.into_iter().find(|row| row.kind.starts_with(JOBS)))
    }

    /// Ends it, or lets it begin anew.
    async fn change(self, action: &str, operator: &str, reason: &str, wish: Wish) -> Result<Cancellation> {
        let id = self.id;
        let Some(found) = self.row().await? else {
            let message = format!("there is no job {id}; `steadfast jobs list` shows those that are there");
            return Err(Error::new(Code::InputInvalid, message));
        };
        if wish == Wish::Cancel && found.state == JobState::Cancelled.as_str() {
            return Ok(Cancellation::Done);
        }
        let name = found.target().trim_start_matches(JOBS);
        let entry = AuditEntry::new(operator, action, format!("{id} {name}")).because(reason);
        let (entry, found) = (&entry, &found);
        let changed = self.steadfast.transact(async |tx| {
            let row = tx.lock_delivery(MessageId::of(id.as_uuid()), found.target()).await?;
            let row = row.ok_or_else(|| has_ended(id, found))?;
            let rows: [(Uuid, String); 1] = [(row.item, row.kind.clone())];
            let is_running = row.state == "leased";
            match wish {
                Wish::Cancel if is_running && row.cancel_at.is_some() => return Ok(Some(row.holder)),
                Wish::Cancel if is_running => tx.request_cancel(&rows[0], operator, reason).await?,
                Wish::Cancel => tx.end_deliveries(&rows, JobState::Cancelled.as_str(), reason).await?,
                Wish::RunNow => {
                    refuse_running(id, &row)?;
                    tx.take_keys_back(&rows).await?;
                    tx.requeue(&rows).await?;
                }
            }
            tx.audit(entry).await?;
            Ok(is_running.then_some(row.holder))
        });
        match changed.await.map_err(Error::unwrapped)? {
            Some(holder) => {
                self.steadfast.row_was_cancelled(&holder.unwrap_or_default()).await;
                Ok(Cancellation::Requested)
            }
            None => {
                self.steadfast.rows_were_committed();
                Ok(Cancellation::Done)
            }
        }
    }
}

/// What is to become of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    RunNow,
    Cancel,
}

fn has_ended(id: JobId, found: &DeliveryRow) -> Error {
    let how = match found.finished_at {
        Some(_) => format!("is {}", found.state),
        None => "has ended meanwhile".to_owned(),
    };
    Error::new(
        Code::InputInvalid,
        format!("the job {id} {how}, so there is nothing left to decide; enqueue another one"),
    )
}

/// Nobody touches what somebody works on: he would not notice, and do it all the same.
fn refuse_running(id: JobId, row: &DeliveryRow) -> Result<()> {
    if row.state != "leased" {
        return Ok(());
    }
    let until = row.leased_until.map(|at| rfc3339(Timestamp(at).into()));
    Err(Error::new(
        Code::Conflict,
        format!(
            "the job {id} is run by {} until {}; try again when it has ended",
            row.holder.as_deref().unwrap_or("somebody"),
            until.unwrap_or_default()
        ),
    ))
}
