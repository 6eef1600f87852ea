//! Bulk operations: one decision about every delivery that fits a filter, however many they are.
//!
//! An operation is a row. Its work is done in batches, each in a transaction of its own that also moves the cursor of the row:
//! whoever goes on after a crash begins where the last commit ended, and does nothing twice. A delivery is passed once, and
//! what died after the operation began is left alone, so a row that is requeued and dies again is not taken a second time.
//! One process works on an operation at a time, by a lease; two of them would still do no harm, since the row is locked.

use std::ops::ControlFlow;
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::count::Count;
use super::dead_letter::is_forgotten;
use super::delivery::DeliveryState;
use super::look::DeliveryList;
use super::look_up::ids_beginning;
use super::message::When;
use super::operation::{BulkOperation, BulkState, BulkVerb, OperationId};
use crate::audit::AuditEntry;
use crate::clock::Timestamp;
use crate::error::{Code, Error, Result};
use crate::job::Priority;
use crate::page;
use crate::steadfast::Steadfast;
use crate::store::jobs::Jobs as _;
use crate::store::letters::{Among, DeliveryFilter, DeliveryRow, Letters, OperationRow, Operations, Role};
use crate::store::{Database, Store};
use crate::tx::Tx;

/// How many deliveries one transaction changes: a few milliseconds, in which nobody waits long for a row.
pub const BULK_BATCH: u32 = 500;

/// How long a process that says nothing any more keeps others from going on. It is renewed with every batch.
const LEASE_TTL: Duration = Duration::from_secs(10);

/// How often a batch is repeated that the database ended to resolve a deadlock.
const CONFLICTS_MAX: u32 = 5;

impl<Db: Database> DeliveryList<'_, Db> {
    /// How many deliveries a bulk operation would change now, counted up to 100,000. It only reads.
    ///
    /// # Errors
    /// SF102 if the verb does not go with the state. If the database does not answer.
    pub async fn count_for(mut self, verb: BulkVerb) -> Result<Count> {
        self.settle_for(verb).await?;
        self.counted().await
    }

    /// Settles which deliveries a verb is about now. What has expired would only be skipped, so it is not requeued; what the inbox may
    /// have forgotten is requeued one by one, by force, or not at all.
    async fn settle_for(&mut self, verb: BulkVerb) -> Result<Timestamp> {
        self.filter.among = verb.among(self.filter.among)?;
        let now = self.settle_bounds().await?;
        verb.check(now)?;
        if verb == BulkVerb::Requeue {
            self.filter.unexpired_at = Some(now);
            self.filter.remembered_since = Some(now.before(self.steadfast.inbox_retention()));
        }
        Ok(now)
    }

    /// Writes that every delivery that fits is to be changed so, with an entry in the audit. Nothing is changed before
    /// [`BulkWork::resume`].
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use steadfast::{BulkVerb, Steadfast};
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let timeouts = || sf.dead_letters().target("mail.confirm").code("timeout");
    /// println!("{} dead letters", timeouts().count_for(BulkVerb::Requeue).await?);
    /// let operation = timeouts().start(BulkVerb::Requeue, "ann", "the mail server is back").await?;
    /// let ended = sf.bulk_operation(operation.id).resume(|progress| {
    ///     println!("{} of {}", progress.done, progress.expected);
    ///     ControlFlow::Continue(())
    /// }).await?;
    /// assert_eq!(ended.done, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// SF102 if the verb does not go with the state. If the database does not answer.
    pub async fn start(mut self, verb: BulkVerb, operator: &str, reason: &str) -> Result<BulkOperation> {
        let now = self.settle_for(verb).await?;
        let expected = self.counted().await?.number;
        let row = OperationRow {
            id: Uuid::now_v7(),
            verb: verb.written(),
            filter: encode(&self.filter).to_string(),
            operator: operator.to_owned(),
            reason: reason.to_owned(),
            state: BulkState::Running.as_str().to_owned(),
            expected: i64::try_from(expected).unwrap_or(i64::MAX),
            done: 0,
            batches: 0,
            cursor: self.filter.after.clone(),
            created_at: now.0,
            updated_at: now.0,
        };
        let entry = audit_entry(&row, "", &row.filter);
        let (written, entry) = (&row, &entry);
        let started = self.steadfast.transact(async |tx| {
            let (store, conn, _) = tx.parts("write a bulk operation");
            store.insert_operation(conn, written).await?;
            Ok(tx.audit(entry).await?)
        });
        started.await.map_err(Error::unwrapped)?;
        BulkOperation::read(&row)
    }
}

fn audit_entry(row: &OperationRow, ending: &str, what: &str) -> AuditEntry {
    let subject = format!("operation {} {what}", row.id);
    let word = row.verb.split(' ').next().unwrap_or_default();
    AuditEntry::new(&row.operator, format!("bulk.{word}{ending}"), subject).because(&row.reason)
}

/// The filter as it is kept with the operation: all of it, or the operation would be about others.
fn encode(filter: &DeliveryFilter) -> Value {
    let DeliveryFilter {
        among,
        target,
        event_type,
        ordering_key,
        code,
        fingerprint,
        since,
        role,
        due_until,
        due_after,
        is_tried,
        batch,
        queue,
        priority,
        // It has a cursor and a time of its own, and the rest follows from its verb.
        after: _,
        until: _,
        unexpired_at: _,
        remembered_since: _,
    } = filter;
    let state = match among {
        Among::Pending => Some(DeliveryState::Pending.as_str()),
        Among::Dead => Some(DeliveryState::Dead.as_str()),
        _ => None,
    };
    let is_told = *role != Role::among(*among);
    let moment = |at: &Option<Timestamp>| at.map(|at| json!(at.0));
    let members = [
        ("state", state.map(Value::from)),
        ("target", target.as_deref().map(Value::from)),
        ("type", event_type.as_deref().map(Value::from)),
        ("ordering_key", ordering_key.as_deref().map(Value::from)),
        ("code", code.as_deref().map(Value::from)),
        ("fingerprint", fingerprint.as_deref().map(Value::from)),
        ("since", moment(since)),
        ("role", is_told.then(|| Value::from(role.as_str()))),
        ("queue", queue.as_deref().map(Value::from)),
        ("priority", priority.map(|priority| Value::from(priority.as_str()))),
        ("due_until", moment(due_until)),
        ("due_after", moment(due_after)),
        ("tried", is_tried.map(Value::from)),
        ("batch", batch.map(|batch| Value::from(batch.to_string()))),
    ];
    members
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

fn decode(row: &OperationRow) -> Result<DeliveryFilter> {
    let operation = BulkOperation::read(row)?;
    let text = |name: &str| operation.filter[name].as_str().map(str::to_owned);
    let moment = |name: &str| operation.filter[name].as_i64().map(Timestamp);
    let among = match operation.filter["state"].as_str() {
        Some("pending") => Among::Pending,
        Some(_) => Among::Dead,
        None => Among::NotLeased,
    };
    let told = operation.filter["role"].as_str();
    let role = Role::ALL.into_iter().find(|role| Some(role.as_str()) == told);
    Ok(DeliveryFilter {
        role: role.unwrap_or(Role::among(among)),
        after: row.cursor.clone(),
        target: text("target"),
        event_type: text("type"),
        ordering_key: text("ordering_key"),
        code: text("code"),
        fingerprint: text("fingerprint"),
        since: moment("since"),
        until: Some(Timestamp(row.created_at)),
        unexpired_at: (operation.verb == BulkVerb::Requeue).then_some(Timestamp(row.created_at)),
        // By now that may be others: each is looked at when it is locked.
        remembered_since: None,
        queue: text("queue"),
        priority: text("priority").and_then(|word| Priority::read(&word)),
        due_until: moment("due_until"),
        due_after: moment("due_after"),
        is_tried: operation.filter["tried"].as_bool(),
        batch: match text("batch") {
            Some(batch) => Some(batch.parse().map_err(|error| {
                Error::new(Code::Database, format!("{batch:?} is not the id of a batch")).with_source(error)
            })?),
            None => None,
        },
        ..DeliveryFilter::of(among)
    })
}

/// One bulk operation, to go on with or to cancel: [`Steadfast::bulk_operation`].
#[must_use = "nothing is done until `resume`"]
pub struct BulkWork<'c, Db: Database> {
    steadfast: &'c Steadfast<Db>,
    id: OperationId,
}

impl<Db: Database> Steadfast<Db> {
    /// One bulk operation, to go on with or to cancel.
    pub fn bulk_operation(&self, id: OperationId) -> BulkWork<'_, Db> {
        BulkWork { steadfast: self, id }
    }

    /// The bulk operations, newest first; at most 1,000.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn bulk_operations(&self, limit: u32) -> Result<Vec<BulkOperation>> {
        let store = self.ask("list bulk operations");
        let rows = store
            .list_operations(Uuid::nil(), Uuid::max(), page::length(limit))
            .await?;
        rows.iter().map(BulkOperation::read).collect()
    }

    /// The bulk operations whose id begins with these digits, at most ten and one.
    ///
    /// # Errors
    /// SF102 if it is not the beginning of an id.
    pub async fn bulk_operations_beginning(&self, prefix: &str) -> Result<Vec<BulkOperation>> {
        let (first, last) = ids_beginning(prefix, "the id of an operation")?;
        let rows = self
            .ask("list bulk operations")
            .list_operations(first, last, 11)
            .await?;
        rows.iter().map(BulkOperation::read).collect()
    }
}

impl<Db: Database> BulkWork<'_, Db> {
    /// Goes on where the last batch ended, until all is done, somebody cancels it, or `watch` breaks off after a batch; then
    /// it can be resumed, here or elsewhere.
    ///
    /// # Errors
    /// SF117 if another process is at it. SF102 if there is no such operation, or somebody has cancelled it before. If the
    /// database does not answer: what was done until then stays done.
    pub async fn resume(
        self,
        mut watch: impl FnMut(&BulkOperation) -> ControlFlow<()> + Send,
    ) -> Result<BulkOperation> {
        let begun = self.look().await?;
        match begun.state {
            BulkState::Running => {}
            // Whoever resumes after a crash may come just too late, and that is well.
            BulkState::Done => return Ok(begun),
            BulkState::Cancelled => {
                let message = format!("operation {} is cancelled; begin another one for what is left", self.id);
                return Err(Error::new(Code::InputInvalid, message));
            }
        }
        let lease = lease_of(self.id);
        loop {
            self.take_lease(&lease).await?;
            let batch = self.batch().await?;
            self.steadfast.rows_were_changed(batch.freed).await;
            let row = if batch.is_empty && !self.has_more(&batch.row).await? {
                self.end(BulkState::Done).await?
            } else {
                batch.row
            };
            let operation = BulkOperation::read(&row)?;
            if operation.state != BulkState::Running {
                return Ok(operation);
            }
            if watch(&operation).is_break() {
                let holder = self.steadfast.id();
                self.steadfast
                    .ask("release the lease")
                    .release_lease(&lease, holder)
                    .await?;
                return Ok(operation);
            }
        }
    }

    /// Ends it where it is: whoever works on it stops after the present batch.
    ///
    /// # Errors
    /// SF102 if there is no such operation, or it has ended.
    pub async fn cancel(self, operator: &str, reason: &str) -> Result<BulkOperation> {
        let id = self.id;
        let entry = AuditEntry::new(operator, "bulk.cancel", format!("operation {id}")).because(reason);
        let entry = &entry;
        let cancelled = self.steadfast.transact(async |tx| {
            let mut row = lock(tx, id).await?;
            if row.state != BulkState::Running.as_str() {
                let message = format!("operation {id} is {}; there is nothing to cancel", row.state);
                return Err(Error::new(Code::InputInvalid, message).into());
            }
            row.state = BulkState::Cancelled.as_str().to_owned();
            save(tx, &mut row).await?;
            tx.audit(entry).await?;
            drop_lease(tx, id).await?;
            Ok(row)
        });
        BulkOperation::read(&cancelled.await.map_err(Error::unwrapped)?)
    }

    async fn look(&self) -> Result<BulkOperation> {
        let store = self.steadfast.ask("list bulk operations");
        let rows = store.list_operations(self.id.0, self.id.0, 1).await?;
        BulkOperation::read(rows.first().ok_or_else(|| not_there(self.id))?)
    }

    async fn take_lease(&self, lease: &str) -> Result<()> {
        let sf = self.steadfast;
        let taken = sf
            .ask("take the lease")
            .take_lease(lease, sf.id(), LEASE_TTL, sf.clock().ahead())
            .await?;
        if taken.is_some() {
            return Ok(());
        }
        Err(Error::new(
            Code::Conflict,
            format!(
                "another process works on operation {}; let it, or if it has died, try again in {} seconds",
                self.id,
                LEASE_TTL.as_secs()
            ),
        ))
    }

    /// Whether anything still fits. A batch may come back empty because others have just changed what it would have locked.
    async fn has_more(&self, row: &OperationRow) -> Result<bool> {
        if row.state != BulkState::Running.as_str() {
            return Ok(false);
        }
        let store = self.steadfast.ask("look for more");
        Ok(store.count_deliveries(&decode(row)?, 1).await? > 0)
    }

    /// One batch, repeated if it lost against others.
    async fn batch(&self) -> Result<Batch> {
        let mut conflicts = 0;
        loop {
            let (id, memory) = (self.id, self.steadfast.inbox_retention());
            let done = self
                .steadfast
                .transact(async |tx| Ok(batch(tx, id, memory).await?))
                .await;
            match done.map_err(Error::unwrapped) {
                Err(error) if error.code() == Code::Conflict && conflicts < CONFLICTS_MAX => conflicts += 1,
                done => return done,
            }
        }
    }

    /// Says that it has ended, and forgets its lease.
    async fn end(&self, state: BulkState) -> Result<OperationRow> {
        let id = self.id;
        let ended = self.steadfast.transact(async |tx| {
            let mut row = lock(tx, id).await?;
            if row.state == BulkState::Running.as_str() {
                row.state = state.as_str().to_owned();
                save(tx, &mut row).await?;
                let entry = audit_entry(&row, &format!(".{}", row.state), &format!("{} deliveries", row.done));
                tx.audit(&entry).await?;
            }
            drop_lease(tx, id).await?;
            Ok(row)
        });
        ended.await.map_err(Error::unwrapped)
    }
}

async fn drop_lease<Db: Database>(tx: &mut Tx<Db>, id: OperationId) -> Result<()> {
    let (store, conn, _) = tx.parts("forget a lease");
    store.drop_lease(conn, &lease_of(id)).await
}

fn lease_of(id: OperationId) -> String {
    format!("operation {id}")
}

/// What one transaction has done.
struct Batch {
    row: OperationRow,
    is_empty: bool,
    /// Chains whose head has left.
    freed: Vec<String>,
}

async fn batch<Db: Database>(tx: &mut Tx<Db>, id: OperationId, memory: Duration) -> Result<Batch> {
    let mut row = lock(tx, id).await?;
    let mut freed = Vec::new();
    if row.state != BulkState::Running.as_str() {
        return Ok(Batch {
            row,
            is_empty: true,
            freed,
        });
    }
    let filter = decode(&row)?;
    let (store, conn, _) = tx.parts("lock deliveries");
    let mut rows = store.lock_deliveries(conn, &filter, BULK_BATCH).await?;
    let Some(last) = rows.last() else {
        return Ok(Batch {
            row,
            is_empty: true,
            freed,
        });
    };
    row.cursor = (last.item, last.kind.clone());
    if BulkOperation::read(&row)?.verb == BulkVerb::Requeue {
        // What the inbox does not remember any more is requeued one by one, by force, or not at all.
        let now = tx.now().await?;
        rows.retain(|row| !is_forgotten(row, now, memory));
        // Nor is a unique job whose key another one has by now.
        let keys: Vec<_> = rows.iter().map(|row| (row.item, row.kind.clone())).collect();
        let taken = tx.find_taken(&keys).await?;
        rows.retain(|row| !taken.iter().any(|(item, _)| *item == row.item));
    }
    row.done += i64::try_from(rows.len()).unwrap_or_default();
    row.batches += 1;
    freed = apply(tx, &row, &rows).await?;
    save(tx, &mut row).await?;
    Ok(Batch {
        row,
        is_empty: false,
        freed,
    })
}

/// Changes the rows of a batch, and says which chains have lost a row.
async fn apply<Db: Database>(tx: &mut Tx<Db>, operation: &OperationRow, rows: &[DeliveryRow]) -> Result<Vec<String>> {
    let keys: Vec<_> = rows.iter().map(|row| (row.item, row.kind.clone())).collect();
    let state = match BulkOperation::read(operation)?.verb {
        BulkVerb::Requeue => {
            tx.requeue(&keys).await?;
            return Ok(Vec::new());
        }
        BulkVerb::Skip => DeliveryState::Skipped,
        BulkVerb::Discard => DeliveryState::Discarded,
        BulkVerb::Reschedule(at) => {
            let (store, conn, offset) = tx.parts("reschedule rows");
            let due = When::At(Timestamp::of(at));
            store.reschedule(conn, &keys, due, offset).await?;
            return Ok(Vec::new());
        }
        BulkVerb::Snooze(time) => {
            let (store, conn, offset) = tx.parts("snooze rows");
            store.snooze(conn, &keys, time, offset).await?;
            return Ok(Vec::new());
        }
    };
    tx.end_deliveries(&keys, state.as_str(), &operation.reason).await?;
    let mut chains: Vec<_> = rows.iter().filter_map(|row| row.chain.clone()).collect();
    chains.sort_unstable();
    chains.dedup();
    tx.free_chains(&chains).await?;
    Ok(chains)
}

async fn lock<Db: Database>(tx: &mut Tx<Db>, id: OperationId) -> Result<OperationRow> {
    let (store, conn, _) = tx.parts("lock a bulk operation");
    store.lock_operation(conn, id.0).await?.ok_or_else(|| not_there(id))
}

fn not_there(id: OperationId) -> Error {
    let message = format!("there is no operation {id}; `steadfast operations list` shows them");
    Error::new(Code::InputInvalid, message)
}

async fn save<Db: Database>(tx: &mut Tx<Db>, row: &mut OperationRow) -> Result<()> {
    let (store, conn, offset) = tx.parts("write how far it has come");
    row.updated_at = store.save_operation(conn, row, offset).await?;
    Ok(())
}
