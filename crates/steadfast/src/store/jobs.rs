//! What jobs ask of a database beside what all leased rows do: queues, and keys of which there is one job at a time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::Database;
use crate::clock::Offset;
use crate::error::Result;
use crate::outbox::When;

/// A queue, as a process declares it.
#[derive(Clone, Debug)]
pub(crate) struct QueueRow {
    pub(crate) name: Arc<str>,
    pub(crate) running_max: Option<u32>,
    pub(crate) key_running_max: Option<u32>,
    /// How many begin within a time.
    pub(crate) rate: Option<(u32, Duration)>,
}

/// A queue that somebody has declared or paused, as it stands.
#[derive(Clone, Debug)]
pub(crate) struct QueueStateRow {
    pub(crate) name: String,
    pub(crate) running_max: Option<i64>,
    pub(crate) key_running_max: Option<i64>,
    pub(crate) rate_count: Option<i64>,
    /// In microseconds.
    pub(crate) rate_every: Option<i64>,
    /// How many could have begun at once at this moment; none before the first.
    pub(crate) tokens: Option<f64>,
    pub(crate) tokens_at: Option<i64>,
    pub(crate) paused_at: Option<i64>,
    pub(crate) paused_by: Option<String>,
    pub(crate) paused_reason: Option<String>,
    /// How many of its jobs count against its limits. A lease that has expired counts until its job is claimed again.
    pub(crate) held: i64,
}

/// A key of which there is one job at a time, and the job that wants it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UniqueWish<'u> {
    pub(crate) key: &'u str,
    pub(crate) item: Uuid,
    pub(crate) kind: &'u str,
    /// How long the key is taken whatever becomes of the job.
    pub(crate) held_for: Option<Duration>,
}

/// The job that has a key.
#[derive(Clone, Debug)]
pub(crate) struct UniqueHolder {
    pub(crate) item: Uuid,
    pub(crate) kind: String,
    /// Whether the key is taken whatever became of the job.
    pub(crate) is_held: bool,
}

/// The sentences about queues and unique keys.
pub(crate) trait Jobs<Db: Database> {
    /// Every queue that was declared or paused, by name.
    fn list_queues(&self) -> impl Future<Output = Result<Vec<QueueStateRow>>> + Send;
    /// How many jobs of a key run, of those that count against its limit.
    fn held_by_key(&self, chain: &str) -> impl Future<Output = Result<i64>> + Send;
    /// Pauses a queue, by whom and why, or lets it go on. One that nobody has declared has a row from then on.
    fn pause_queue(
        &self,
        conn: &mut Db::Connection,
        name: &str,
        pause: Option<(&str, &str)>,
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Takes a key, unless there is one: whoever has it then, locked until the end of the transaction.
    fn take_unique(
        &self,
        conn: &mut Db::Connection,
        wish: &UniqueWish<'_>,
        offset: Offset,
    ) -> impl Future<Output = Result<UniqueHolder>> + Send;
    /// Gives a key that is locked to another job.
    fn hand_over_unique(
        &self,
        conn: &mut Db::Connection,
        wish: &UniqueWish<'_>,
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;
    /// The job that a key names and its kind, if there is one, locked until the end of the transaction.
    fn lock_unique(
        &self,
        conn: &mut Db::Connection,
        key: &str,
    ) -> impl Future<Output = Result<Option<(Uuid, String)>>> + Send;
    /// The keys of these jobs, of those that have one.
    fn unique_keys(
        &self,
        conn: &mut Db::Connection,
        items: &[Uuid],
    ) -> impl Future<Output = Result<Vec<(Uuid, String)>>> + Send;
    /// The state of a job's row, which nobody changes until the end of the transaction. `None`: it has ended.
    fn lock_row(
        &self,
        conn: &mut Db::Connection,
        item: Uuid,
        kind: &str,
    ) -> impl Future<Output = Result<Option<String>>> + Send;
    /// Changes when rows that wait are due.
    fn reschedule(
        &self,
        conn: &mut Db::Connection,
        rows: &[(Uuid, String)],
        due: When,
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Puts rows off that wait: they are due so long after they would have been, or after now, and at most ten years ahead.
    fn snooze(
        &self,
        conn: &mut Db::Connection,
        rows: &[(Uuid, String)],
        time: Duration,
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Deletes keys that nobody has any more, and says how many; at most a batch of them.
    fn forget_uniques(&self, offset: Offset) -> impl Future<Output = Result<u64>> + Send;
}
