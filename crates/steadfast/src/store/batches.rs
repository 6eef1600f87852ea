//! Jobs that belong together, as they are written and looked at: the sentences of [`job::batch`](crate::job).

use std::future::Future;
use std::time::Duration;

use uuid::Uuid;

use super::Database;
use crate::clock::{Offset, Timestamp};
use crate::error::Result;
use crate::job::BatchCounts;

/// A job, and the batch that it belongs to.
pub(crate) type Member = (Uuid, Uuid);

/// How a batch stands.
#[derive(Debug)]
pub(crate) struct BatchLook {
    /// Whether some job of it is still to be done, or running.
    pub(crate) is_open: bool,
    /// How long ago its end was asked for.
    pub(crate) age: Duration,
}

impl BatchLook {
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(super) fn new(is_open: bool, since: Timestamp, now: i64) -> Self {
        let age = u64::try_from(now.saturating_sub(since.0)).unwrap_or_default();
        Self {
            is_open,
            age: Duration::from_micros(age),
        }
    }
}

/// Jobs by their state, as both databases count them: state, how many.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) fn counted(states: &[(Option<String>, i64)]) -> BatchCounts {
    let mut counts = BatchCounts::default();
    for (state, count) in states {
        let count = u64::try_from(*count).unwrap_or_default();
        counts.jobs += count;
        match state.as_deref() {
            Some("completed") => counts.completed += count,
            Some("cancelled") => counts.cancelled += count,
            Some("dead") => counts.dead += count,
            Some("discarded") => counts.discarded += count,
            Some("pending" | "leased") => counts.left += count,
            _ => {}
        }
    }
    counts
}

/// Batches.
pub(crate) trait Batches<Db: Database> {
    /// Writes which jobs belong to which batches, in the transaction that enqueues them.
    fn join_batches(&self, conn: &mut Db::Connection, members: &[Member]) -> impl Future<Output = Result<()>> + Send;
    /// Looks whether a batch has a job that has not ended.
    fn look_at_batch(
        &self,
        batch: Uuid,
        since: Timestamp,
        offset: Offset,
    ) -> impl Future<Output = Result<BatchLook>> + Send;
    /// Counts the jobs of a batch.
    fn count_batch(&self, batch: Uuid) -> impl Future<Output = Result<BatchCounts>> + Send;
}
