//! Enqueuing: what was wished for is kept with the transaction, and written with its end.

use std::future::{Future, IntoFuture, Ready, ready};
use std::pin::Pin;
use std::time::{Duration, SystemTime};

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
    };
}

/// A job that is being enqueued: [`Tx::enqueue`](crate::Tx::enqueue).
#[must_use = "a job is enqueued by `.await`"]
pub struct Enqueue<'t, Db: Database, J> {
    tx: &'t mut Tx<Db>,
    job: &'t J,
    due: When,
}

impl<'t, Db: Database, J: Job> Enqueue<'t, Db, J> {
    pub(crate) fn new(tx: &'t mut Tx<Db>, job: &'t J) -> Self {
        let due = When::After(Duration::ZERO);
        Self { tx, job, due }
    }

    due_options!();
}

impl<Db: Database, J: Job> IntoFuture for Enqueue<'_, Db, J> {
    type Output = Result<JobId>;
    type IntoFuture = Ready<Result<JobId>>;

    fn into_future(self) -> Self::IntoFuture {
        ready(self.tx.add_job(|origin| NewMessage::of_job(self.job, self.due, origin)))
    }
}

/// A job that is being enqueued in a transaction of yours: [`Caller::enqueue`](crate::Caller::enqueue).
#[must_use = "a job is enqueued by `.await`"]
pub struct CallerEnqueue<'c, Db: Database, J> {
    caller: Caller<'c, Db>,
    job: &'c J,
    due: When,
}

impl<'c, Db: Database, J: Job> CallerEnqueue<'c, Db, J> {
    pub(crate) fn new(caller: Caller<'c, Db>, job: &'c J) -> Self {
        let due = When::After(Duration::ZERO);
        Self { caller, job, due }
    }

    due_options!();
}

impl<'c, Db: Database, J: Job> IntoFuture for CallerEnqueue<'c, Db, J> {
    type Output = Result<Enqueued<Db>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { caller, job, due } = self;
            let steadfast = caller.steadfast().clone();
            let id = caller.write(|origin| NewMessage::of_job(job, due, origin)).await?;
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
