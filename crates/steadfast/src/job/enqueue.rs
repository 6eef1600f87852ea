//! Enqueuing: what was wished for is kept with the transaction, and written with its end.

use std::future::{Future, IntoFuture, Ready, ready};
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use super::batch::{BatchId, Batched};
use super::{Job, JobId};
use crate::caller::Caller;
use crate::clock::{ReadDuration, Timestamp};
use crate::command::attempt;
use crate::error::Result;
use crate::outbox::{NewMessage, When};
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::tx::Tx;

/// When a job is to be run, for both ways of enqueuing it.
macro_rules! due_options {
    () => {
        /// Runs it not before so long after its transaction: `"10m"`, or a [`Duration`].
        ///
        /// # Panics
        /// If the text is no duration.
        pub fn delay(mut self, delay: impl ReadDuration) -> Self {
            self.due = When::After(attempt::read(delay));
            self
        }

        /// Runs it not before this time, by the clock of the database. What has passed already is due now.
        pub fn at(mut self, at: SystemTime) -> Self {
            self.due = When::At(Timestamp::of(at));
            self
        }

        /// Makes it one of the jobs of a batch. They may be enqueued in several transactions, by several processes, and by jobs of the batch
        /// themselves, as long as those have not ended.
        pub fn in_batch(mut self, batch: BatchId) -> Self {
            self.batch.member_of = Some(batch);
            self
        }

        /// Runs it when all jobs of a batch have ended: completed, cancelled, discarded or dead. [`JobCx::batch`](super::JobCx::batch) tells
        /// how. It has the id of the batch, and there is one.
        ///
        /// What is in the batch by then has committed before, or commits with it, or is enqueued by jobs of the batch in a transaction that
        /// ends them. A dead job that is run again later does not bring it about once more.
        pub fn when_ended(mut self, batch: BatchId) -> Self {
            self.batch.callback_of = Some(batch);
            self
        }
    };
}

/// A job that is being enqueued: [`Tx::enqueue`](crate::Tx::enqueue).
#[must_use = "a job is enqueued by `.await`"]
pub struct Enqueue<'t, Db: Database, J> {
    tx: &'t mut Tx<Db>,
    job: &'t J,
    due: When,
    batch: Batched,
}

impl<'t, Db: Database, J: Job> Enqueue<'t, Db, J> {
    pub(crate) fn new(tx: &'t mut Tx<Db>, job: &'t J) -> Self {
        let (due, batch) = (When::After(Duration::ZERO), Batched::default());
        Self { tx, job, due, batch }
    }

    due_options!();
}

impl<Db: Database, J: Job> IntoFuture for Enqueue<'_, Db, J> {
    type Output = Result<JobId>;
    type IntoFuture = Ready<Result<JobId>>;

    fn into_future(self) -> Self::IntoFuture {
        let write = |origin: &_| Ok(self.batch.mark(NewMessage::of_job(self.job, self.due, origin)?));
        ready(self.tx.add_job(write))
    }
}

/// A job that is being enqueued in a transaction of yours: [`Caller::enqueue`](crate::Caller::enqueue).
#[must_use = "a job is enqueued by `.await`"]
pub struct CallerEnqueue<'c, Db: Database, J> {
    caller: Caller<'c, Db>,
    job: &'c J,
    due: When,
    batch: Batched,
}

impl<'c, Db: Database, J: Job> CallerEnqueue<'c, Db, J> {
    pub(crate) fn new(caller: Caller<'c, Db>, job: &'c J) -> Self {
        let (due, batch) = (When::After(Duration::ZERO), Batched::default());
        Self {
            caller,
            job,
            due,
            batch,
        }
    }

    due_options!();
}

impl<'c, Db: Database, J: Job> IntoFuture for CallerEnqueue<'c, Db, J> {
    type Output = Result<Enqueued<Db>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self {
                caller,
                job,
                due,
                batch,
            } = self;
            let steadfast = caller.steadfast().clone();
            let write = |origin: &_| Ok(batch.mark(NewMessage::of_job(job, due, origin)?));
            let id = caller.write(write).await?;
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
