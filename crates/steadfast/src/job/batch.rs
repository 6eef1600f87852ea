//! Batches: jobs that belong together, and one that is run when all of them have ended.
//!
//! A batch is an id and the list of its jobs; nobody counts them down. The job that is to be run at the end is enqueued like any other,
//! under the id of the batch. When a node claims it, it first looks whether a job of the batch is still to be done, in one statement, and
//! snoozes if so. So nobody has to be alive at any moment, jobs outside of batches pay nothing, and that it is run once is what holds for
//! every job.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use uuid::Uuid;

use super::JobId;
use crate::error::{Code, Error, Result};
use crate::failure::Failure;
use crate::outbox::{Message, NewMessage};
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::batches::{BatchLook, Batches};
use crate::telemetry;

/// What the cause of a job begins with that is run at the end of a batch. Other causes are ids, which have no colon.
const CAUSE: &str = "batch:";

/// How long after a look the next one is: an eighth of the age of the batch, within these bounds. So a batch that takes minutes is not
/// looked at all the time, and its end is noticed within an eighth of what it took.
const LOOK_PART: u32 = 8;
const LOOK_PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

/// How long a look may take. A batch for which it takes longer has more jobs than one would enqueue.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// How many times as long as a look took is waited for the next one at least: a batch with very many jobs keeps nobody busy.
const LOOK_SHARE: u32 = 20;

/// Identifies jobs that belong together: [`Enqueue::in_batch`](super::Enqueue::in_batch), [`Enqueue::when_ended`](super::Enqueue::when_ended).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(Uuid);

impl BatchId {
    /// One of its own. Nothing is written: a batch is there when it has a job.
    #[allow(clippy::new_without_default, reason = "each one is another one")]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    pub(crate) fn as_uuid(self) -> Uuid {
        self.0
    }

    /// The job that is run when all others have ended, if one was enqueued for that: it has the same id.
    pub fn callback(self) -> JobId {
        JobId::of(self.0)
    }

    /// Which batch this message waits for.
    fn of(message: &Message) -> Option<Self> {
        let cause = message.origin.causation_id.as_deref()?;
        let id = cause.strip_prefix(CAUSE)?.parse().ok()?;
        Some(Self(id)).filter(|batch| batch.0 == message.id)
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for BatchId {
    type Err = Error;

    /// # Errors
    /// SF102 if the text is no UUID.
    fn from_str(text: &str) -> Result<Self> {
        text.parse().map(Self).map_err(|_| {
            let message = format!("{text:?} is not the id of a batch; write a UUID");
            Error::new(Code::InputInvalid, message)
        })
    }
}

/// What a job has to do with batches. It may wait for one and belong to another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Batched {
    /// The one that it belongs to.
    pub(super) member_of: Option<BatchId>,
    /// The one that it is run after.
    pub(super) callback_of: Option<BatchId>,
}

impl Batched {
    /// Writes it on the envelope.
    pub(crate) fn mark(self, mut message: NewMessage) -> NewMessage {
        message.batch = self.member_of.map(BatchId::as_uuid);
        if let Some(batch) = self.callback_of {
            message.id = batch.0;
            message.origin.causation_id = Some(format!("{CAUSE}{batch}").into());
        }
        message
    }
}

/// How many jobs of a batch have ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchCounts {
    /// All of them.
    pub jobs: u64,
    /// Still to do, or running.
    pub left: u64,
    /// Done.
    pub completed: u64,
    /// Not wanted any more.
    pub cancelled: u64,
    /// Given up, and kept for a person.
    pub dead: u64,
    /// Dead, and given up by a person.
    pub discarded: u64,
}

impl BatchCounts {
    /// Ended so long ago that nobody knows how any more.
    pub fn forgotten(&self) -> u64 {
        let known = self.left + self.completed + self.cancelled + self.dead + self.discarded;
        self.jobs.saturating_sub(known)
    }
}

/// One batch: [`Steadfast::batch`].
#[must_use = "nothing is read until `counts`"]
pub struct BatchLookUp<'c, Db: Database> {
    steadfast: &'c Steadfast<Db>,
    id: BatchId,
}

impl<Db: Database> Steadfast<Db> {
    /// One batch, to look at it. Its jobs are [listed](super::JobList::batch) like others.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use steadfast::sqlx::Sqlite;
    /// # use steadfast::{BatchId, Failure, Job, JobCx, Steadfast};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct ImportRow { row: u32 }
    /// # impl Job for ImportRow { const NAME: &'static str = "import.row"; }
    /// # #[derive(Serialize, Deserialize)]
    /// # struct ImportDone;
    /// # impl Job for ImportDone { const NAME: &'static str = "import.done"; }
    /// async fn report(cx: &JobCx<Sqlite>, _: ImportDone) -> Result<(), Failure> {
    ///     let counts = cx.batch().expect("it was enqueued for a batch");
    ///     println!("{} of {} rows were imported", counts.completed, counts.jobs);
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// sf.handler::<ImportDone>().run_outside(report);
    ///
    /// let batch = BatchId::new();
    /// sf.transact(async |tx| {
    ///     for row in 0..100 {
    ///         tx.enqueue(&ImportRow { row }).in_batch(batch).await?;
    ///     }
    ///     tx.enqueue(&ImportDone).when_ended(batch).await?;
    ///     Ok(())
    /// }).await?;
    ///
    /// let counts = sf.batch(batch).counts().await?.expect("it has jobs");
    /// assert_eq!((counts.jobs, counts.left), (100, 100));
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch(&self, id: BatchId) -> BatchLookUp<'_, Db> {
        BatchLookUp { steadfast: self, id }
    }
}

impl<Db: Database> BatchLookUp<'_, Db> {
    /// Counts its jobs. `None`: it has none, or they are forgotten.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn counts(self) -> Result<Option<BatchCounts>> {
        let store = self.steadfast.ask("count a batch");
        let counts = store.count_batch(self.id.as_uuid()).await?;
        Ok((counts.jobs > 0).then_some(counts))
    }
}

/// What a job that was claimed has to know of the batch that it waits for.
pub(super) enum Waits {
    /// It waits for none.
    Not,
    /// Some jobs are still to be done: not now.
    Still(Failure),
    /// All have ended.
    NoLonger(BatchCounts),
}

impl Waits {
    /// Looks, if it waits for a batch.
    pub(super) async fn look<Db: Database>(sf: &Steadfast<Db>, message: &Message) -> Self {
        let Some(batch) = BatchId::of(message) else {
            return Self::Not;
        };
        let began = std::time::Instant::now();
        let looking = async {
            let store = sf.ask("look at a batch");
            let BatchLook { is_open, age } = store
                .look_at_batch(batch.as_uuid(), message.created_at, sf.clock().ahead())
                .await?;
            match is_open {
                true => Ok(Self::Still(Failure::snooze(pause(age, began.elapsed())))),
                false => sf
                    .ask("count a batch")
                    .count_batch(batch.as_uuid())
                    .await
                    .map(Self::NoLonger),
            }
        };
        let looked = tokio::time::timeout(LOOK_LIMIT, looking).await.unwrap_or_else(|_| {
            let message = format!("the database did not say within {LOOK_LIMIT:?} how a batch stands");
            Err(Error::new(Code::Unreachable, message))
        });
        // Who cannot look has spent no attempt.
        looked.unwrap_or_else(|error| {
            telemetry::batch_not_seen(&message.id, &error);
            let [_, later] = LOOK_PAUSES;
            Self::Still(Failure::snooze(later))
        })
    }
}

/// How long until a batch of this age is looked at again, if a look took so long.
fn pause(age: Duration, took: Duration) -> Duration {
    let [at_least, at_most] = LOOK_PAUSES;
    (age / LOOK_PART).clamp(at_least, at_most).max(took * LOOK_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_looked_at_less_often_the_older_it_is_and_the_longer_a_look_takes() {
        let paused = |age, took| pause(Duration::from_secs(age), Duration::from_millis(took));
        assert_eq!(paused(0, 1), Duration::from_millis(500));
        assert_eq!(paused(80, 1), Duration::from_secs(10));
        assert_eq!(paused(86_400, 1), Duration::from_secs(30));
        assert_eq!(paused(0, 100), Duration::from_secs(2));
    }
}
