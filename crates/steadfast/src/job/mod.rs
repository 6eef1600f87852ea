//! Jobs: work that is to be done later, on any node, and survives everything.
//!
//! [`Tx::enqueue`](crate::Tx::enqueue) writes a [`Job`] with the end of its transaction, as an event is published: as a message and a
//! row of the [`queue`](crate::queue). The row has one kind, the job's own, so there is nobody to look for who wants it. From there
//! on it is a leased row like any other: claimed, worked on by the handler that [`worker`] has for it, tried again, dead in the end
//! or in the history. A handler is told what it works on by its [`cx`], and tells how it goes by its [`report`]; people who look after jobs
//! [`look`] at them and [`decide`] about them. Jobs that share hands and limits stand in a [`queue`], which people [`operate`]; of those with
//! the same [`unique`] key there is one at a time. Jobs that belong together are a [`batch`].

pub(crate) mod batch;
pub(crate) mod cx;
mod decide;
mod enqueue;
mod look;
mod operate;
pub(crate) mod queue;
mod report;
pub(crate) mod unique;
pub(crate) mod worker;

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

pub use batch::{BatchCounts, BatchId, BatchLookUp};
pub use cx::JobCx;
pub(crate) use enqueue::EnqueueOptions;
pub use enqueue::{CallerEnqueue, Enqueue, Enqueued};
pub(crate) use look::limit_key;
pub use look::{
    CancelRequest, Cancellation, JobList, JobLookUp, JobPage, JobState, ListedJob, LogLine, LookedJob, Progress,
};
pub use operate::ListedQueue;
pub(crate) use queue::Queues;
pub use queue::{Priority, QueueOptions};
pub use report::{LOG_LINE_LENGTH_MAX, LOG_LINES_MAX, OUTPUT_LENGTH_MAX};
pub use unique::{
    CallerEnqueueUnique, CancelOutcome, EnqueueUnique, UniqueConflict, UniqueJob, UniqueOutcome, UniqueWhile,
};
pub use worker::JobHandler;
pub(crate) use worker::{Workers, queue_of};

use crate::error::{Code, Error, Result};

/// Work that is to be done later: what it is about.
///
/// It is enqueued in a transaction, and run after it by a node that has a [handler](crate::Steadfast::handler) for it. What is stored is
/// its JSON, under [`NAME`](Job::NAME): who renames the Rust type keeps the name, and who changes its meaning raises
/// [`VERSION`](Job::VERSION).
///
/// `#[derive(Job)]` (feature `service`) writes this, and checks it. By hand it is:
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use steadfast::Job;
///
/// #[derive(Serialize, Deserialize)]
/// struct SendReceipt { order_id: u64, email: String }
///
/// impl Job for SendReceipt {
///     const NAME: &'static str = "receipt.send";
///     const REDACTED: &'static [&'static str] = &["email"];
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no job",
    note = "write `#[derive(Serialize, Deserialize, Job)]` and `#[job(\"receipt.send\")]` on it"
)]
pub trait Job: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Its stored name: 1 to 100 lower-case letters, digits, `_` and `-`, in parts with a dot between them.
    const NAME: &'static str;

    /// Which shape of its JSON this is, from 1. A node runs jobs of this version and of older ones ([`JobCx::version`] tells which it is),
    /// and leaves newer ones to those who know them.
    const VERSION: u32 = 1;

    /// The [queue](crate::Steadfast::queue) that it stands in, whose hands and limits it shares with other jobs. Without one, it has hands
    /// of its own in each process, as many as its handler says.
    const QUEUE: Option<&'static str> = None;

    /// The members of its JSON that people who look at jobs do not get to see. Handlers do.
    const REDACTED: &'static [&'static str] = &[];
}

/// Identifies a job for ever, through all its attempts: a UUID of version 7, which sorts by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Uuid);

impl JobId {
    pub(crate) fn of(id: Uuid) -> Self {
        Self(id)
    }

    /// The UUID.
    pub fn as_uuid(&self) -> Uuid {
        self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for JobId {
    type Err = Error;

    /// # Errors
    /// SF102 if the text is no UUID.
    fn from_str(text: &str) -> Result<Self> {
        text.parse().map(Self).map_err(|_| {
            Error::new(
                Code::InputInvalid,
                format!("{text:?} is not the id of a job; write a UUID, as `steadfast jobs list` shows them"),
            )
        })
    }
}
