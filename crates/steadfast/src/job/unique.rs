//! Unique jobs: of those with the same key there is one at a time.
//!
//! The promise is a constraint: a table has one row for each key, which names the job that has it. Nobody gives a key back. Whoever
//! wants it locks its row, and looks what became of the job; if that has ended, the key is his. So no end of a job costs a statement
//! more, and a process that dies leaves nothing behind.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::batch::BatchId;
use super::enqueue::enqueue_options;
use super::{CallerEnqueue, Enqueue, EnqueueOptions, Job, JobId, JobState, Priority};
use crate::caller::Caller;
use crate::clock::{Offset, ReadDuration, Timestamp};
use crate::command::attempt;
use crate::error::{Code, Error, Result};
use crate::outbox::{NewMessage, When};
use crate::store::batches::Batches;
use crate::store::jobs::{Jobs, UniqueHolder, UniqueWish};
use crate::store::letters::Letters;
use crate::store::{Database, Store};
use crate::tx::Tx;

/// How long a unique key may be.
const KEY_LENGTH_MAX: usize = 255;

/// For how long a job has its key, in the eyes of whoever wants it next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UniqueWhile {
    /// Until somebody begins to work on it: while it runs, another one can wait. If one does, the key is gone for good: should the first have
    /// to be tried again, it comes without.
    Waiting,
    /// Until it is completed, cancelled or dead.
    #[default]
    Unfinished,
    /// The same, and while it is dead: until a person has decided about it.
    Undone,
}

/// What becomes of a job whose key another one has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UniqueConflict {
    /// It is not enqueued: the other one is enough.
    #[default]
    Ignore,
    /// It takes the place of the other one, which is cancelled, unless that runs already.
    Replace,
    /// It is not enqueued, and the other one is run when this one would have been, unless it runs already.
    Reschedule,
    /// Enqueuing fails with SF117.
    Error,
}

/// What became of a unique job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UniqueOutcome {
    /// It was enqueued.
    Enqueued,
    /// Another one has the key, and is as it was.
    Found,
    /// It took the place of another one.
    Replaced,
    /// Another one has the key, and is run when this one would have been.
    Rescheduled,
    /// Another one has the key and is being run, so it could be neither replaced nor rescheduled. What this one says is not in it.
    Running,
}

/// A unique job, or the one that has its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UniqueJob {
    /// The job that has the key now.
    pub id: JobId,
    /// How it came to it.
    pub outcome: UniqueOutcome,
}

/// What became of the wish that a unique job is not run: [`Tx::cancel_job`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelOutcome {
    /// It waited. With the commit of this transaction it is cancelled, and its key is free.
    Cancelled(JobId),
    /// Somebody works on it, and goes on: let its handler look whether it is still wanted.
    Running(JobId),
    /// No job that has this key waits or runs: there never was one, or it has ended, or it is dead. (One that has lost its key while it ran is
    /// not found by it: [`UniqueWhile::Waiting`].)
    NotFound,
}

/// What a key is wanted for.
#[derive(Clone, Debug)]
struct Uniqueness {
    key: String,
    lasts: UniqueWhile,
    conflict: UniqueConflict,
    /// How long the key is taken whatever becomes of the job.
    held_for: Option<Duration>,
}

impl Uniqueness {
    fn new(key: &str) -> Self {
        Self {
            key: key.to_owned(),
            lasts: UniqueWhile::default(),
            conflict: UniqueConflict::default(),
            held_for: None,
        }
    }
}

/// How a job becomes unique, for both ways of enqueuing it.
macro_rules! unique_doors {
    ($unique:ident, $owner:ident) => {
        /// Lets there be one job of this type with this key at a time; by default until it is completed, cancelled or dead. It is written
        /// at once, and not with the end of the transaction: whoever enqueues the same key meanwhile waits for that.
        pub fn unique(self, key: &str) -> $unique<'t, Db, J> {
            $unique {
                $owner: self.$owner,
                job: self.job,
                options: self.options,
                uniqueness: Uniqueness::new(key),
            }
        }

        /// Runs it when nobody has enqueued this key for so long, with what was said last. What comes while it runs is another one.
        ///
        /// # Panics
        /// If the text is no duration.
        pub fn debounce(self, key: &str, quiet: impl ReadDuration) -> $unique<'t, Db, J> {
            let unique = self.delay(quiet).unique(key);
            unique
                .lasting(UniqueWhile::Waiting)
                .on_conflict(UniqueConflict::Replace)
        }

        /// Enqueues one job with this key in so long, and none while that one is unfinished.
        ///
        /// # Panics
        /// If the text is no duration.
        pub fn throttle(self, key: &str, every: impl ReadDuration) -> $unique<'t, Db, J> {
            let mut unique = self.unique(key);
            unique.uniqueness.held_for = Some(attempt::read(every));
            unique
        }
    };
}

/// How a unique job is enqueued.
macro_rules! unique_options {
    () => {
        enqueue_options!();

        /// For how long it has its key.
        pub fn lasting(mut self, lasts: UniqueWhile) -> Self {
            self.uniqueness.lasts = lasts;
            self
        }

        /// What becomes of it if another one has its key.
        pub fn on_conflict(mut self, conflict: UniqueConflict) -> Self {
            self.uniqueness.conflict = conflict;
            self
        }
    };
}

impl<'t, Db: Database, J: Job> Enqueue<'t, Db, J> {
    unique_doors!(EnqueueUnique, tx);
}

impl<'t, Db: Database, J: Job> CallerEnqueue<'t, Db, J> {
    unique_doors!(CallerEnqueueUnique, caller);
}

/// A unique job that is being enqueued: [`Enqueue::unique`].
#[must_use = "a job is enqueued by `.await`"]
pub struct EnqueueUnique<'t, Db: Database, J> {
    tx: &'t mut Tx<Db>,
    job: &'t J,
    options: EnqueueOptions,
    uniqueness: Uniqueness,
}

impl<Db: Database, J: Job> EnqueueUnique<'_, Db, J> {
    unique_options!();
}

impl<'t, Db: Database, J: Job> IntoFuture for EnqueueUnique<'t, Db, J> {
    type Output = Result<UniqueJob>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 't>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let message = self
                .tx
                .write_job(|origin| NewMessage::of_job(self.job, &self.options, origin))?;
            let (store, conn, offset) = self.tx.parts("enqueue a unique job");
            let unique = enqueue::<Db>(store, conn, offset, message, &self.options, &self.uniqueness).await?;
            self.tx.has_written_rows();
            Ok(unique)
        })
    }
}

/// A unique job that is being enqueued in a transaction of yours: [`CallerEnqueue::unique`].
#[must_use = "a job is enqueued by `.await`"]
pub struct CallerEnqueueUnique<'c, Db: Database, J> {
    caller: Caller<'c, Db>,
    job: &'c J,
    options: EnqueueOptions,
    uniqueness: Uniqueness,
}

impl<Db: Database, J: Job> CallerEnqueueUnique<'_, Db, J> {
    unique_options!();
}

impl<'c, Db: Database, J: Job> IntoFuture for CallerEnqueueUnique<'c, Db, J> {
    type Output = Result<UniqueJob>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self {
                caller,
                job,
                options,
                uniqueness,
            } = self;
            let steadfast = caller.steadfast().clone();
            let (message, conn) = caller
                .begin_writing(|origin| NewMessage::of_job(job, &options, origin))
                .await?;
            let (store, offset) = (steadfast.ask("enqueue a unique job"), steadfast.clock().ahead());
            enqueue::<Db>(store, conn, offset, message, &options, &uniqueness).await
        })
    }
}

/// Enqueues a job, or finds the one that has its key.
async fn enqueue<Db: Database>(
    store: &Db::Store,
    conn: &mut Db::Connection,
    offset: Offset,
    mut message: NewMessage,
    options: &EnqueueOptions,
    uniqueness: &Uniqueness,
) -> Result<UniqueJob> {
    let name = message.event_type.clone();
    check(&name, &uniqueness.key)?;
    let key = stored(&name, &uniqueness.key);
    let kind = message.kind.clone().unwrap_or_default();
    let wish = UniqueWish {
        key: &key,
        item: message.id,
        kind: &kind,
        held_for: uniqueness.held_for,
    };
    message.unique_key = Some(key.clone());
    let made = |outcome| UniqueJob {
        id: JobId::of(wish.item),
        outcome,
    };
    let holder = store.take_unique(conn, &wish, offset).await?;
    if holder.item == wish.item {
        write::<Db>(store, conn, offset, message).await?;
        return Ok(made(UniqueOutcome::Enqueued));
    }
    let state = store.lock_row(conn, holder.item, &holder.kind).await?;
    if !has_key(&holder, state.as_deref(), uniqueness.lasts) {
        store.hand_over_unique(conn, &wish, offset).await?;
        write::<Db>(store, conn, offset, message).await?;
        return Ok(made(UniqueOutcome::Enqueued));
    }
    let found = |outcome| {
        Ok(UniqueJob {
            id: JobId::of(holder.item),
            outcome,
        })
    };
    let rows = [(holder.item, holder.kind.clone())];
    match (uniqueness.conflict, state.as_deref()) {
        (UniqueConflict::Error, state) => Err(taken(&name, uniqueness, holder.item, state)),
        (UniqueConflict::Replace, Some("pending")) => {
            let detail = format!("replaced by {}", wish.item);
            let cancelled = JobState::Cancelled.as_str();
            store.end_deliveries(conn, &rows, cancelled, &detail, offset).await?;
            store.hand_over_unique(conn, &wish, offset).await?;
            write::<Db>(store, conn, offset, message).await?;
            Ok(made(UniqueOutcome::Replaced))
        }
        (UniqueConflict::Reschedule, Some("pending")) => {
            store.reschedule(conn, &rows, options.due, offset).await?;
            found(UniqueOutcome::Rescheduled)
        }
        (UniqueConflict::Replace | UniqueConflict::Reschedule, Some("leased")) => found(UniqueOutcome::Running),
        _ => found(UniqueOutcome::Found),
    }
}

async fn write<Db: Database>(
    store: &Db::Store,
    conn: &mut Db::Connection,
    offset: Offset,
    message: NewMessage,
) -> Result<()> {
    let member = message.batch.map(|batch| (message.id, batch));
    store.publish_as_guest(conn, &[message], offset).await?;
    match member {
        Some(member) => store.join_batches(conn, &[member]).await,
        None => Ok(()),
    }
}

/// A key as it is stored: each type of job has its own.
fn stored(name: &str, key: &str) -> String {
    format!("{name} {key}")
}

/// Whether a job in this state still has its key; `None`: it has ended.
fn has_key(holder: &UniqueHolder, state: Option<&str>, lasts: UniqueWhile) -> bool {
    let lasts = match state {
        None => false,
        Some("pending") => true,
        Some("dead") => lasts == UniqueWhile::Undone,
        Some(_) => lasts != UniqueWhile::Waiting,
    };
    lasts || holder.is_held
}

fn check(name: &str, key: &str) -> Result<()> {
    if !key.is_empty() && key.len() <= KEY_LENGTH_MAX && !key.contains('\0') {
        return Ok(());
    }
    let message = format!(
        "the unique key of the job {name} has {} bytes; it has 1 to {KEY_LENGTH_MAX} and no NUL",
        key.len()
    );
    Err(Error::new(Code::EventInvalid, message))
}

fn taken(name: &str, uniqueness: &Uniqueness, holder: Uuid, state: Option<&str>) -> Error {
    let how = match state {
        Some("pending") => "waits",
        Some("leased") => "is being run",
        Some("dead") => "is dead",
        _ => "has the key for a while",
    };
    Error::new(
        Code::Conflict,
        format!(
            "the job {holder} has the unique key {:?} of {name} and {how}; let it be, or enqueue with another `on_conflict`",
            uniqueness.key
        ),
    )
}

impl<Db: Database> Tx<Db> {
    /// Cancels the job of type `J` that has this [unique key](crate::Enqueue::unique), if it still waits: what it was to do is not
    /// wanted any more, and that commits with this transaction. Nobody begins to work on it meanwhile.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use steadfast::{CancelOutcome, Failure, Job, SqliteTx};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Remind { order_id: i64 }
    /// # impl Job for Remind { const NAME: &'static str = "reminder.send"; }
    /// async fn pay(tx: &mut SqliteTx, order_id: i64) -> Result<(), Failure> {
    ///     // .. and it was placed with `tx.enqueue(&Remind { order_id }).unique("order:42").delay("2d")`
    ///     if let CancelOutcome::Running(job) = tx.cancel_job::<Remind>(&format!("order:{order_id}")).await? {
    ///         println!("{job} is under way; its handler looks by itself");
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// SF032 if the key cannot be one. If the database does not answer.
    pub async fn cancel_job<J: Job>(&mut self, key: &str) -> Result<CancelOutcome> {
        check(J::NAME, key)?;
        let (store, conn, offset) = self.parts("cancel a unique job");
        let Some((item, kind)) = store.lock_unique(conn, &stored(J::NAME, key)).await? else {
            return Ok(CancelOutcome::NotFound);
        };
        let id = JobId::of(item);
        match store.lock_row(conn, item, &kind).await?.as_deref() {
            Some("pending") => {
                let cancelled = JobState::Cancelled.as_str();
                let detail = "not wanted any more";
                // A key that was taken for a while is free from now on.
                let free = UniqueWish {
                    key: &stored(J::NAME, key),
                    item,
                    kind: &kind,
                    held_for: None,
                };
                store.hand_over_unique(conn, &free, offset).await?;
                store
                    .end_deliveries(conn, &[(item, kind)], cancelled, detail, offset)
                    .await?;
                Ok(CancelOutcome::Cancelled(id))
            }
            Some("leased") => Ok(CancelOutcome::Running(id)),
            _ => Ok(CancelOutcome::NotFound),
        }
    }

    /// Gives jobs that are to run again their unique keys back.
    ///
    /// # Errors
    /// SF117 if another job has the key of one of them by now.
    pub(crate) async fn take_keys_back(&mut self, rows: &[(Uuid, String)]) -> Result<()> {
        match self.find_taken(rows).await?.first() {
            None => Ok(()),
            Some((item, other)) => Err(Error::new(
                Code::Conflict,
                format!(
                    "the job {item} is unique, and the job {other} has its key by now; cancel that one first, or discard this one: \
                     `steadfast jobs show {other}`"
                ),
            )),
        }
    }

    /// The same, and those whose key another one has: they are left alone.
    pub(crate) async fn find_taken(&mut self, rows: &[(Uuid, String)]) -> Result<Vec<(Uuid, Uuid)>> {
        let items: Vec<_> = rows.iter().map(|(item, _)| *item).collect();
        let (store, conn, offset) = self.parts("take unique keys back");
        let mut taken = Vec::new();
        for (item, key) in store.unique_keys(conn, &items).await? {
            let Some((_, kind)) = rows.iter().find(|(other, _)| *other == item) else {
                continue;
            };
            let wish = UniqueWish {
                key: &key,
                item,
                kind,
                held_for: None,
            };
            let holder = store.take_unique(conn, &wish, offset).await?;
            if holder.item == item {
                continue;
            }
            let state = store.lock_row(conn, holder.item, &holder.kind).await?;
            if has_key(&holder, state.as_deref(), UniqueWhile::Unfinished) {
                taken.push((item, holder.item));
            } else {
                store.hand_over_unique(conn, &wish, offset).await?;
            }
        }
        Ok(taken)
    }
}
