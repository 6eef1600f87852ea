//! What the handler of a job is told besides the job.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use sqlx::Pool;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::JobId;
use super::batch::BatchCounts;
use super::report::Report;
use crate::command::Command;
use crate::error::Result;
use crate::outbox::Message;
use crate::queue::Claimed;
use crate::steadfast::Steadfast;
use crate::store::Database;
#[cfg(feature = "schedule")]
use crate::ticker;

/// How long the end of a command is kept that a job asked for: longer than a job is retried or lies among the dead, as a rule.
const RETENTION: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// The job that a handler works on: which one it is, and what it belongs to.
pub struct JobCx<Db: Database> {
    sf: Steadfast<Db>,
    claimed: Arc<Claimed>,
    key: String,
    lost: CancellationToken,
    /// What it tells, once it has told something; and who hears that it is gone.
    report: OnceLock<(Arc<Report<Db>>, DropGuard)>,
    /// Whether that can be seen while it runs.
    is_live: bool,
    batch: Option<BatchCounts>,
}

impl<Db: Database> JobCx<Db> {
    pub(super) fn new(sf: Steadfast<Db>, claimed: Arc<Claimed>, lost: CancellationToken, is_live: bool) -> Self {
        Self {
            key: format!("job:{}", claimed.message.id),
            sf,
            claimed,
            lost,
            report: OnceLock::new(),
            is_live,
            batch: None,
        }
    }

    /// It was enqueued for the end of a batch, which has come.
    pub(super) fn after_batch(mut self, counts: Option<BatchCounts>) -> Self {
        self.batch = counts;
        self
    }

    /// What it has told, if it has.
    pub(super) fn report(&self) -> Option<&Arc<Report<Db>>> {
        self.report.get().map(|(report, _)| report)
    }

    fn reporting(&self) -> &Arc<Report<Db>> {
        let (report, _) = self.report.get_or_init(|| {
            let report = Report::new(self.sf.clone(), self.claimed.clone(), self.is_live);
            let gone = report.closed().drop_guard();
            (report, gone)
        });
        report
    }

    pub(crate) fn message(&self) -> &Message {
        &self.claimed.message
    }

    /// Identifies the job, through all its attempts.
    pub fn id(&self) -> JobId {
        JobId::of(self.message().id)
    }

    /// The key to hand to the outside: the same in every attempt at this job, and in no other job.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// An idempotent command on behalf of this job. Its key is `job:{job id}:{operation}:{key}`: however often the job is tried, a
    /// command that has ended is not executed again, and answers as it did.
    ///
    /// That is remembered for 90 days, or for the `retention` that you give it: whoever has a dead job run again after that has its
    /// commands executed again.
    ///
    /// `key` tells the wishes of one job apart that have the same operation: what each is about, such as the id of an order. A command
    /// has a transaction of its own: a handler that has one already calls no commands, but writes what they would.
    pub fn command<'c>(&'c self, operation: &'c str, key: &str) -> Command<'c, Db> {
        Command::new(&self.sf, operation, format!("{}:{operation}:{key}", self.key)).retention(RETENTION)
    }

    /// How the jobs of its batch have ended, if it was enqueued for that ([`Enqueue::when_ended`](super::Enqueue::when_ended)).
    pub fn batch(&self) -> Option<&BatchCounts> {
        self.batch.as_ref()
    }

    /// The pool, to look at the database without a transaction: whether the job is still wanted, for example.
    pub fn pool(&self) -> &Pool<Db> {
        self.sf.pool()
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.claimed.attempt
    }

    /// The name of the job.
    pub fn name(&self) -> &str {
        &self.message().event_type
    }

    /// Which shape of its JSON it was enqueued with: this program's, or an older one.
    pub fn version(&self) -> u32 {
        self.message().version
    }

    /// When it was enqueued, by the time of the database.
    pub fn enqueued_at(&self) -> SystemTime {
        self.message().created_at.into()
    }

    /// The schedule that has made it, if one has: by a tick, or because somebody [triggered](crate::Schedules::trigger) it.
    #[cfg(feature = "schedule")]
    pub fn schedule(&self) -> Option<&str> {
        let (name, _) = ticker::read_cause(self.causation_id()?)?;
        Some(name)
    }

    /// The tick that it was made of, if it was made of one: the moment at which its schedule was due, however late it is now.
    #[cfg(feature = "schedule")]
    pub fn tick(&self) -> Option<SystemTime> {
        let (_, tick) = ticker::read_cause(self.causation_id()?)?;
        tick
    }

    /// What it is all about: the same for everything that one wish leads to.
    pub fn correlation_id(&self) -> Option<&str> {
        self.message().origin.correlation_id.as_deref()
    }

    /// What brought it about: the id of an event or of another job, the beginning of the id of a command's key, or a schedule.
    pub fn causation_id(&self) -> Option<&str> {
        self.message().origin.causation_id.as_deref()
    }

    /// The trace it is part of, as W3C writes it.
    pub fn traceparent(&self) -> Option<&str> {
        self.message().origin.traceparent.as_deref()
    }

    /// Says how far it is: `done` of `total`, if that is known.
    ///
    /// It is written at once, and at most once a second from then on: call it as often as you like. Those who [look](super::LookedJob)
    /// see the last one. On SQLite, a handler with a transaction is seen when that has ended.
    ///
    /// ```
    /// # use steadfast::{Failure, JobCx};
    /// # use steadfast::sqlx::Sqlite;
    /// # async fn example(cx: &JobCx<Sqlite>) -> Result<(), Failure> {
    /// cx.progress(17, 100);
    /// cx.progress(17, None);
    /// cx.progress_with(17, 100, "reading the second file");
    /// cx.log("the first file had 16 lines");
    /// cx.output(&serde_json::json!({ "lines": 16 }))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn progress(&self, done: u64, total: impl Into<Option<u64>>) {
        self.reporting().progress(done, total.into(), None);
    }

    /// The same, with what it is doing. Beyond [`LOG_LINE_LENGTH_MAX`](super::LOG_LINE_LENGTH_MAX) bytes it is cut.
    pub fn progress_with(&self, done: u64, total: impl Into<Option<u64>>, doing: impl Into<String>) {
        self.reporting().progress(done, total.into(), Some(doing.into()));
    }

    /// Tells a line to those who look, now or after it has failed. It is kept with the job, for as long as its history is.
    ///
    /// Lines are written together, at most once a second. The newest [`LOG_LINES_MAX`](super::LOG_LINES_MAX) of a job are kept, and the
    /// others counted; what is longer than [`LOG_LINE_LENGTH_MAX`](super::LOG_LINE_LENGTH_MAX) bytes is cut.
    pub fn log(&self, line: impl Into<String>) {
        self.reporting().log(line.into());
    }

    /// What came of the job: it is kept if this attempt succeeds. The last one counts.
    ///
    /// A handler with a transaction has it committed with the end of the job. Without one, it is written just before; if the process dies
    /// between the two, the next attempt says what came of it.
    ///
    /// # Errors
    /// SF032 if it cannot be written as JSON, or has more than [`OUTPUT_LENGTH_MAX`](super::OUTPUT_LENGTH_MAX) bytes.
    pub fn output(&self, value: &impl Serialize) -> Result<()> {
        self.reporting().output(value)
    }

    /// Ends when somebody wants the job no more ([`JobLookUp::cancel`](super::JobLookUp::cancel)), on whichever node he said so.
    ///
    /// Whoever stops then returns [`Failure::cancelled`](crate::Failure::cancelled), and the job is cancelled. Whoever goes on may succeed
    /// all the same, unless he has a transaction; but he is not tried again.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use steadfast::sqlx::Sqlite;
    /// # use steadfast::{Failure, Job, JobCx};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Export { pages: u32 }
    /// # impl Job for Export { const NAME: &'static str = "books.export"; }
    /// # async fn write_page(_: u32) -> Result<(), Failure> { Ok(()) }
    /// async fn export(cx: &JobCx<Sqlite>, job: Export) -> Result<(), Failure> {
    ///     for page in 0..job.pages {
    ///         tokio::select! {
    ///             written = write_page(page) => written?,
    ///             () = cx.cancelled() => return Err(Failure::cancelled()),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub async fn cancelled(&self) {
        self.claimed.cancel.requested().await;
    }

    /// Whether somebody wants the job no more.
    pub fn is_cancelled(&self) -> bool {
        self.claimed.cancel.is_requested()
    }

    /// Ends when the lease is lost, or 20 seconds after the process was told to stop: whatever is done from then on is done again by
    /// somebody else. Soon after, the handler is dropped.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

impl<Db: Database> fmt::Debug for JobCx<Db> {
    /// Without what the job is about.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobCx")
            .field("id", &self.message().id)
            .field("name", &self.message().event_type)
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
