//! What the handler of a job is told besides the job.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sqlx::Pool;
use tokio_util::sync::CancellationToken;

use super::JobId;
use crate::command::Command;
use crate::outbox::Message;
use crate::steadfast::Steadfast;
use crate::store::Database;
#[cfg(feature = "schedule")]
use crate::ticker;

/// How long the end of a command is kept that a job asked for: longer than a job is retried or lies among the dead, as a rule.
const RETENTION: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// The job that a handler works on: which one it is, and what it belongs to.
pub struct JobCx<Db: Database> {
    sf: Steadfast<Db>,
    message: Arc<Message>,
    attempt: u32,
    key: String,
    lost: CancellationToken,
}

impl<Db: Database> JobCx<Db> {
    pub(crate) fn new(sf: Steadfast<Db>, message: Arc<Message>, attempt: u32, lost: CancellationToken) -> Self {
        Self {
            key: format!("job:{}", message.id),
            sf,
            message,
            attempt,
            lost,
        }
    }

    pub(crate) fn message(&self) -> &Message {
        &self.message
    }

    /// Identifies the job, through all its attempts.
    pub fn id(&self) -> JobId {
        JobId::of(self.message.id)
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

    /// The pool, to look at the database without a transaction: whether the job is still wanted, for example.
    pub fn pool(&self) -> &Pool<Db> {
        self.sf.pool()
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The name of the job.
    pub fn name(&self) -> &str {
        &self.message.event_type
    }

    /// Which shape of its JSON it was enqueued with: this program's, or an older one.
    pub fn version(&self) -> u32 {
        self.message.version
    }

    /// When it was enqueued, by the time of the database.
    pub fn enqueued_at(&self) -> SystemTime {
        self.message.created_at.into()
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
        self.message.origin.correlation_id.as_deref()
    }

    /// What brought it about: the id of an event or of another job, the beginning of the id of a command's key, or a schedule.
    pub fn causation_id(&self) -> Option<&str> {
        self.message.origin.causation_id.as_deref()
    }

    /// The trace it is part of, as W3C writes it.
    pub fn traceparent(&self) -> Option<&str> {
        self.message.origin.traceparent.as_deref()
    }

    /// Ends when the lease is lost or the process stops: whatever is done from then on is done again by somebody else.
    pub async fn cancelled(&self) {
        self.lost.cancelled().await;
    }
}

impl<Db: Database> fmt::Debug for JobCx<Db> {
    /// Without what the job is about.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobCx")
            .field("id", &self.message.id)
            .field("name", &self.message.event_type)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}
