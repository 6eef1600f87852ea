//! Enqueuing: what was wished for is kept with the transaction, and written with its end.

use std::future::{Future, IntoFuture, Ready, ready};
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use super::batch::{BatchId, Batched};
use super::{Job, JobId, Priority};
use crate::caller::Caller;
use crate::clock::{ReadDuration, Timestamp};
use crate::command::attempt;
use crate::error::Result;
use crate::outbox::{NewMessage, When};
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::tx::Tx;

/// How a job is enqueued.
#[derive(Clone, Debug)]
pub(crate) struct EnqueueOptions {
    pub(crate) due: When,
    pub(crate) queue: Option<String>,
    pub(crate) priority: Priority,
    pub(crate) limit_key: Option<String>,
    pub(crate) batch: Batched,
}

impl Default for EnqueueOptions {
    fn default() -> Self {
        Self {
            due: When::After(Duration::ZERO),
            queue: None,
            priority: Priority::Normal,
            limit_key: None,
            batch: Batched::default(),
        }
    }
}

/// The options of a job that is being enqueued, for all ways of doing so.
macro_rules! enqueue_options {
    () => {
        /// Runs it not before so long after its transaction: `"10m"`, or a [`Duration`].
        ///
        /// # Panics
        /// If the text is no duration.
        pub fn delay(mut self, delay: impl ReadDuration) -> Self {
            self.options.due = When::After(attempt::read(delay));
            self
        }

        /// Runs it not before this time, by the clock of the database. What has passed already is due now.
        pub fn at(mut self, at: SystemTime) -> Self {
            self.options.due = When::At(Timestamp::of(at));
            self
        }

        /// How soon it has its turn, against others that want the same hands.
        pub fn priority(mut self, priority: Priority) -> Self {
            self.options.priority = priority;
            self
        }

        /// Puts it into another queue than that of its type. Nodes that have [declared](crate::Steadfast::queue) the queue, and have a
        /// handler for the job, work on it.
        pub fn queue(mut self, queue: &str) -> Self {
            self.options.queue = Some(queue.to_owned());
            self
        }

        /// Whose job it is, such as a tenant: of those with the same key, as many run at once as the queue
        /// [allows](crate::QueueOptions::limit_per_key), and the keys take turns. 1 to 255 bytes.
        pub fn limit_key(mut self, key: &str) -> Self {
            self.options.limit_key = Some(key.to_owned());
            self
        }

        /// Makes it one of the jobs of a batch. They may be enqueued in several transactions, by several processes, and by jobs of the batch
        /// themselves, as long as those have not ended.
        pub fn in_batch(mut self, batch: BatchId) -> Self {
            self.options.batch.member_of = Some(batch);
            self
        }

        /// Runs it when all jobs of a batch have ended: completed, cancelled, discarded or dead. [`JobCx::batch`](super::JobCx::batch) tells
        /// how. It has the id of the batch, and there is one.
        ///
        /// What is in the batch by then has committed before, or commits with it, or is enqueued by jobs of the batch in a transaction that
        /// ends them. A dead job that is run again later does not bring it about once more.
        pub fn when_ended(mut self, batch: BatchId) -> Self {
            self.options.batch.callback_of = Some(batch);
            self
        }
    };
}
pub(super) use enqueue_options;

/// A job that is being enqueued: [`Tx::enqueue`](crate::Tx::enqueue).
#[must_use = "a job is enqueued by `.await`"]
pub struct Enqueue<'t, Db: Database, J> {
    pub(super) tx: &'t mut Tx<Db>,
    pub(super) job: &'t J,
    pub(super) options: EnqueueOptions,
}

impl<'t, Db: Database, J: Job> Enqueue<'t, Db, J> {
    pub(crate) fn new(tx: &'t mut Tx<Db>, job: &'t J) -> Self {
        let options = EnqueueOptions::default();
        Self { tx, job, options }
    }

    enqueue_options!();
}

impl<Db: Database, J: Job> IntoFuture for Enqueue<'_, Db, J> {
    type Output = Result<JobId>;
    type IntoFuture = Ready<Result<JobId>>;

    fn into_future(self) -> Self::IntoFuture {
        let write = |origin: &_| NewMessage::of_job(self.job, &self.options, origin);
        ready(self.tx.add_job(write))
    }
}

/// A job that is being enqueued in a transaction of yours: [`Caller::enqueue`](crate::Caller::enqueue).
#[must_use = "a job is enqueued by `.await`"]
pub struct CallerEnqueue<'c, Db: Database, J> {
    pub(super) caller: Caller<'c, Db>,
    pub(super) job: &'c J,
    pub(super) options: EnqueueOptions,
}

impl<'c, Db: Database, J: Job> CallerEnqueue<'c, Db, J> {
    pub(crate) fn new(caller: Caller<'c, Db>, job: &'c J) -> Self {
        let options = EnqueueOptions::default();
        Self { caller, job, options }
    }

    enqueue_options!();
}

impl<'c, Db: Database, J: Job> IntoFuture for CallerEnqueue<'c, Db, J> {
    type Output = Result<Enqueued<Db>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { caller, job, options } = self;
            let steadfast = caller.steadfast().clone();
            let id = caller.write(|origin| NewMessage::of_job(job, &options, origin)).await?;
            Ok(Enqueued {
                id: JobId::of(id),
                steadfast,
            })
        })
    }
}

/// What was enqueued in a transaction of yours: [`Caller::enqueue`](crate::Caller::enqueue).
#[derive(Debug)]
pub struct Enqueued<Db: Database> {
    id: JobId,
    steadfast: Steadfast<Db>,
}

impl<Db: Database> Enqueued<Db> {
    /// Identifies the job.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Call it after your commit, and the job is run at once if it is due; without it, within two seconds.
    pub fn wake(&self) {
        self.steadfast.rows_were_committed();
    }
}
