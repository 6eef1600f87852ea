//! What is to become of a job, or of all that fit: what a person decides, and who it was.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::look::{Cancellation, JobList, JobLookUp};
use super::{JobId, JobState};
use crate::audit::AuditEntry;
use crate::clock::{ReadDuration, Timestamp, rfc3339};
use crate::command::attempt;
use crate::error::{Code, Error, Result};
use crate::outbox::{BulkOperation, BulkVerb, Count, FUTURE_MAX, MessageId, When};
use crate::queue::JOBS;
use crate::store::Database;
use crate::store::jobs::Jobs;
use crate::store::letters::DeliveryRow;
use crate::tx::Tx;

/// What becomes of a job.
#[derive(Clone, Copy)]
enum Decision {
    /// It begins anew, whatever it waits for.
    RunNow,
    /// It begins anew, if it has failed.
    Retry,
    Cancel,
    /// It is due then.
    Due(When),
    /// It is due so long after it would have been.
    Snooze(Duration),
}

impl Decision {
    /// The word for the audit.
    fn action(self) -> &'static str {
        match self {
            Self::RunNow => "job.run_now",
            Self::Retry => "job.retry",
            Self::Cancel => "job.cancel",
            Self::Due(_) => "job.reschedule",
            Self::Snooze(_) => "job.snooze",
        }
    }
}

impl<Db: Database> JobLookUp<'_, Db> {
    /// Runs it now, with all its attempts, whether it is dead, waits for its next attempt or is scheduled. It is the same job, so the
    /// outside knows it by the same [key](super::JobCx::key).
    ///
    /// # Errors
    /// SF117 if somebody works on it, or if it is unique and another one has its key by now. SF102 if there is no such job, or it has
    /// ended.
    pub async fn run_now(self, operator: &str, reason: &str) -> Result<()> {
        self.decide(Decision::RunNow, operator, reason).await.map(drop)
    }

    /// The same for one that has failed: it is dead, or waits for its next attempt. One that was never tried is left alone.
    ///
    /// # Errors
    /// As [`run_now`](Self::run_now). SF102 if it was not tried yet.
    pub async fn retry(self, operator: &str, reason: &str) -> Result<()> {
        self.decide(Decision::Retry, operator, reason).await.map(drop)
    }

    /// It is not wanted any more: it is never run, or never run again.
    ///
    /// If somebody works on it, on whatever node, he is [told](super::JobCx::cancelled). Between completed and cancelled there is one
    /// winner: a handler with a transaction that has not committed by now is rolled back; one without a transaction that succeeds all the
    /// same has completed the job; and however else the attempt ends, the job is cancelled. To ask again changes nothing.
    ///
    /// On SQLite, this waits for a handler that has a transaction, as everybody who writes does.
    ///
    /// # Errors
    /// SF102 if there is no such job, or it has ended in another way.
    pub async fn cancel(self, operator: &str, reason: &str) -> Result<Cancellation> {
        self.decide(Decision::Cancel, operator, reason).await
    }

    /// Runs it not before this time, by the clock of the database; what has passed already is due now. Its attempts stay counted.
    ///
    /// # Errors
    /// SF117 if somebody works on it. SF102 if it is dead, if there is no such job or it has ended, and if the time is more than ten
    /// years ahead.
    pub async fn reschedule(self, at: SystemTime, operator: &str, reason: &str) -> Result<()> {
        let due = When::At(Timestamp::of(at));
        self.decide(Decision::Due(due), operator, reason).await.map(drop)
    }

    /// The same, so long after now: `"10m"`, or a [`Duration`].
    ///
    /// # Errors
    /// As [`reschedule`](Self::reschedule).
    ///
    /// # Panics
    /// If the text is no duration.
    pub async fn reschedule_in(self, delay: impl ReadDuration, operator: &str, reason: &str) -> Result<()> {
        let due = When::After(attempt::read(delay));
        self.decide(Decision::Due(due), operator, reason).await.map(drop)
    }

    /// Puts it off: it is due so long after it would have been, or after now if it is due already. So it is never run earlier by this.
    ///
    /// # Errors
    /// As [`reschedule`](Self::reschedule).
    ///
    /// # Panics
    /// If the text is no duration.
    pub async fn snooze(self, time: impl ReadDuration, operator: &str, reason: &str) -> Result<()> {
        let time = attempt::read(time);
        self.decide(Decision::Snooze(time), operator, reason).await.map(drop)
    }

    async fn decide(self, decision: Decision, operator: &str, reason: &str) -> Result<Cancellation> {
        let id = self.id;
        let Some(found) = self.row().await? else {
            let message = format!("there is no job {id}; `steadfast jobs list` shows those that are there");
            return Err(Error::new(Code::InputInvalid, message));
        };
        let is_cancel = matches!(decision, Decision::Cancel);
        if is_cancel && found.state == JobState::Cancelled.as_str() {
            return Ok(Cancellation::Done);
        }
        let name = found.target().trim_start_matches(JOBS);
        let entry = AuditEntry::new(operator, decision.action(), format!("{id} {name}")).because(reason);
        let (entry, found) = (&entry, &found);
        let decided = self.steadfast.transact(async |tx| {
            let row = tx.lock_delivery(MessageId::of(id.as_uuid()), found.target()).await?;
            let row = row.ok_or_else(|| has_ended(id, found))?;
            let is_running = row.state == "leased";
            if !is_cancel {
                refuse_running(id, &row)?;
            }
            let rows: [(Uuid, String); 1] = [(row.item, row.kind.clone())];
            match decision {
                Decision::Cancel if is_running && row.cancel_at.is_some() => return Ok(Some(row.holder)),
                Decision::Cancel if is_running => tx.request_cancel(&rows[0], operator, reason).await?,
                Decision::RunNow => tx.begin_anew(&rows).await?,
                Decision::Retry if row.state != "dead" && row.attempts == 0 => return Err(was_not_tried(id).into()),
                Decision::Retry => tx.begin_anew(&rows).await?,
                Decision::Cancel => {
                    tx.end_deliveries(&rows, JobState::Cancelled.as_str(), reason).await?;
                }
                Decision::Due(due) => tx.reschedule(id, &row, due).await?,
                Decision::Snooze(time) => {
                    let due_at = Timestamp(row.due_at.unwrap_or_default());
                    let from = SystemTime::from(due_at).max(tx.now().await?);
                    let at = from.checked_add(time).unwrap_or(from + 2 * FUTURE_MAX);
                    tx.reschedule(id, &row, When::At(Timestamp::of(at))).await?;
                }
            }
            tx.audit(entry).await?;
            Ok(is_running.then_some(row.holder))
        });
        match decided.await.map_err(Error::unwrapped)? {
            Some(holder) => {
                self.steadfast.row_was_cancelled(&holder.unwrap_or_default()).await;
                Ok(Cancellation::Requested)
            }
            None => {
                self.steadfast.rows_were_committed();
                Ok(Cancellation::Done)
            }
        }
    }
}

impl<Db: Database> Tx<Db> {
    /// Gives jobs another life, with their unique keys.
    async fn begin_anew(&mut self, rows: &[(Uuid, String)]) -> Result<()> {
        self.take_keys_back(rows).await?;
        self.requeue(rows).await
    }

    /// Changes when a job is due that waits.
    async fn reschedule(&mut self, id: JobId, row: &DeliveryRow, due: When) -> Result<()> {
        if row.state == "dead" {
            let message = format!(
                "the job {id} is dead, and due at no time; give it another life first: `steadfast jobs retry {id} --reason WHY`"
            );
            return Err(Error::new(Code::InputInvalid, message));
        }
        let far_away = match due {
            When::After(delay) => delay > FUTURE_MAX,
            When::At(at) => SystemTime::from(at) > SystemTime::now() + FUTURE_MAX,
        };
        if far_away {
            let message = format!("the job {id} would be due more than ten years ahead; choose less, or cancel it");
            return Err(Error::new(Code::InputInvalid, message));
        }
        let rows = [(row.item, row.kind.clone())];
        let (store, conn, offset) = self.parts("reschedule a job");
        store.reschedule(conn, &rows, due, offset).await
    }
}

impl<Db: Database> JobList<'_, Db> {
    /// How many jobs a bulk operation would change now, counted up to 100,000. It only reads.
    ///
    /// # Errors
    /// SF102 if the verb does not go with the state. If the database does not answer.
    pub async fn count_for(mut self, verb: BulkVerb) -> Result<Count> {
        self.settle().await?;
        self.list.count_for(verb).await
    }

    /// Writes that every job that fits is to be changed so, with an entry in the audit. Nothing is changed before
    /// [`BulkWork::resume`](crate::BulkWork::resume).
    ///
    /// [`Requeue`](BulkVerb::Requeue) runs them now with all their attempts: the dead, or those of the [state](JobList::state) that was
    /// asked for, if that is one in which they wait. A unique one whose key another job has by now is left as it is.
    /// [`Skip`](BulkVerb::Skip) cancels those that wait or are dead. [`Discard`](BulkVerb::Discard) gives the dead up for good.
    /// [`Reschedule`](BulkVerb::Reschedule) and [`Snooze`](BulkVerb::Snooze) say when those are due that wait. Those that run are left
    /// alone.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use steadfast::{BulkVerb, Steadfast};
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let timeouts = || sf.jobs().queue("mail").code("timeout");
    /// println!("{} dead jobs", timeouts().count_for(BulkVerb::Requeue).await?);
    /// let operation = timeouts().start(BulkVerb::Requeue, "ann", "the mail server is back").await?;
    /// sf.bulk_operation(operation.id).resume(|_| ControlFlow::Continue(())).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// SF102 if the verb does not go with the state. If the database does not answer.
    pub async fn start(mut self, verb: BulkVerb, operator: &str, reason: &str) -> Result<BulkOperation> {
        self.settle().await?;
        self.list.start(verb, operator, reason).await
    }
}

fn was_not_tried(id: JobId) -> Error {
    Error::new(
        Code::InputInvalid,
        format!(
            "the job {id} was not tried yet, so there is nothing to retry; `steadfast jobs run-now {id}` runs it now"
        ),
    )
}

fn has_ended(id: JobId, found: &DeliveryRow) -> Error {
    let how = match found.finished_at {
        Some(_) => format!("is {}", found.state),
        None => "has ended meanwhile".to_owned(),
    };
    Error::new(
        Code::InputInvalid,
        format!("the job {id} {how}, so there is nothing left to decide; enqueue another one"),
    )
}

/// Nobody touches what somebody works on: he would not notice, and do it all the same.
fn refuse_running(id: JobId, row: &DeliveryRow) -> Result<()> {
    if row.state != "leased" {
        return Ok(());
    }
    let until = row.leased_until.map(|at| rfc3339(Timestamp(at).into()));
    Err(Error::new(
        Code::Conflict,
        format!(
            "the job {id} is run by {} until {}; try again when it has ended",
            row.holder.as_deref().unwrap_or("somebody"),
            until.unwrap_or_default()
        ),
    ))
}
