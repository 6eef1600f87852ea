//! What a person decides about one delivery: another life, a corrected payload, or none at all.
//!
//! Every decision is one transaction: the row is locked, changed, and written into the audit. What somebody works on is left
//! alone. A row that leaves its chain frees the one behind it in the same transaction.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use uuid::Uuid;

use super::delivery::DeliveryState;
use super::look_up::{MASK, REPLACES, masked_member};
use super::message::{EVENT_LENGTH_MAX, MessageId};
use crate::audit::AuditEntry;
use crate::clock::{Timestamp, rfc3339};
use crate::error::{Code, Error, Result};
use crate::inbox::envelope::is_from_elsewhere;
use crate::inbox::{are_letters, is_as_it_came};
use crate::queue::JOBS;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::letters::{DeliveryRow, Letters, MessageRow, Replacement};
use crate::tx::Tx;

/// One delivery, to decide about: [`Steadfast::delivery`].
#[must_use = "nothing is decided until it is said what"]
pub struct Delivery<'c, Db: Database> {
    steadfast: &'c Steadfast<Db>,
    id: MessageId,
    target: &'c str,
    is_forced: bool,
}

impl<Db: Database> Steadfast<Db> {
    /// The delivery of a message to a target, to requeue, skip or discard it.
    ///
    /// ```
    /// # use steadfast::{MessageId, Steadfast};
    /// # use steadfast::sqlx::Sqlite;
    /// # async fn example(sf: &Steadfast<Sqlite>, id: MessageId) -> steadfast::Result<()> {
    /// sf.delivery(id, "stock.reserve").requeue("ann", "the stock was counted again").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn delivery<'c>(&'c self, id: MessageId, target: &'c str) -> Delivery<'c, Db> {
        Delivery {
            steadfast: self,
            id,
            target,
            is_forced: false,
        }
    }
}

/// What is done with a delivery.
enum Change<'c> {
    Requeue,
    Replace { new: Uuid, payload: &'c str },
    End(DeliveryState),
}

impl<Db: Database> Delivery<'_, Db> {
    /// Requeues it even if it came from elsewhere longer ago than the inbox remembers: look first whether it was handled meanwhile by
    /// other means. The audit says that it was forced.
    pub fn forced(mut self) -> Self {
        self.is_forced = true;
        self
    }

    /// Gives it another life: due now, with all its attempts, in its old place of the order. It may be dead, or pending and
    /// waiting for its next attempt.
    ///
    /// # Errors
    /// SF117 if somebody works on it. SF102 if there is no such delivery, it has ended, its event has expired, or it came from
    /// elsewhere longer ago than the [inbox remembers](crate::Builder::inbox_retention), unless it is [forced](Self::forced).
    pub async fn requeue(self, operator: &str, reason: &str) -> Result<()> {
        self.change("delivery.requeue", operator, reason, &Change::Requeue)
            .await
    }

    /// The same with another payload, for this target alone.
    ///
    /// An edited event is another event: it has an id of its own, so its [key](crate::EventCx::key) for the outside is a
    /// new one. It names the message that it [replaces](super::LookedMessage::replaces), which stays as it was published.
    /// The delivery of the old one counts as skipped, and the new one takes its place in the order. It does not expire.
    ///
    /// # Errors
    /// SF117 and SF102 as [`requeue`](Self::requeue), and SF102 if the payload is no JSON, too large, or has the mask of a
    /// member that is not shown; or if what is delivered is no event but a message as it came from elsewhere: one that nobody could
    /// read, or the copy of a dead letter for its broker.
    pub async fn requeue_edited(self, operator: &str, reason: &str, payload: &str) -> Result<MessageId> {
        let payload_read = read_payload(payload)?;
        let Some(message) = self.message().await? else {
            let message = format!(
                "the message {} is gone, so there is nothing to edit; discard its deliveries",
                self.id
            );
            return Err(Error::new(Code::InputInvalid, message));
        };
        if let Some(member) = masked_member(&payload_read, &message.redacted()) {
            return Err(Error::new(
                Code::InputInvalid,
                format!(
                    "the payload has {MASK:?} in the place of {member:?}, which is not what was published; begin with the payload \
                     that is shown with --reveal"
                ),
            ));
        }
        let new = Uuid::now_v7();
        self.change("delivery.edit", operator, reason, &Change::Replace { new, payload })
            .await?;
        Ok(MessageId::of(new))
    }

    /// It is not wanted any more, pending or dead. Those behind it in the order go on.
    ///
    /// # Errors
    /// As [`requeue`](Self::requeue).
    pub async fn skip(self, operator: &str, reason: &str) -> Result<()> {
        self.change("delivery.skip", operator, reason, &Change::End(DeliveryState::Skipped))
            .await
    }

    /// It is dead, and given up for good. Those behind it in the order go on.
    ///
    /// # Errors
    /// As [`requeue`](Self::requeue), and SF102 if it is not dead.
    pub async fn discard(self, operator: &str, reason: &str) -> Result<()> {
        let change = Change::End(DeliveryState::Discarded);
        self.change("delivery.discard", operator, reason, &change).await
    }

    async fn message(&self) -> Result<Option<MessageRow>> {
        let store = self.steadfast.ask("read a message");
        Ok(store.read_messages(&[self.id.as_uuid()]).await?.pop())
    }

    async fn change(self, action: &str, operator: &str, reason: &str, change: &Change<'_>) -> Result<()> {
        let subject = format!("{} {}", self.id, self.target);
        let action = match self.is_forced {
            true => format!("{action}.forced"),
            false => action.to_owned(),
        };
        let entry = AuditEntry::new(operator, action, subject).because(reason);
        let (entry, id, target) = (&entry, self.id, self.target);
        let memory = Some(self.steadfast.inbox_retention()).filter(|_| !self.is_forced);
        let changed = self.steadfast.transact(async |tx| {
            let row = tx.lock_delivery(id, target).await?;
            let row = row.ok_or_else(|| not_there(id, target))?;
            refuse_leased(&row)?;
            if matches!(change, Change::Replace { .. }) {
                refuse_as_it_came(&row)?;
            }
            if matches!(change, Change::Requeue) {
                refuse_expired(&row, tx.now().await?)?;
            }
            if matches!(change, Change::Requeue | Change::Replace { .. }) {
                refuse_forgotten(&row, tx.now().await?, memory)?;
            }
            apply(tx, &row, change, reason).await?;
            tx.audit(entry).await?;
            Ok(row.chain)
        });
        let chain = changed.await.map_err(Error::unwrapped)?;
        self.steadfast.rows_were_changed(chain.into_iter().collect()).await;
        Ok(())
    }
}

async fn apply<Db: Database>(tx: &mut Tx<Db>, row: &DeliveryRow, change: &Change<'_>, reason: &str) -> Result<()> {
    let rows = [(row.item, row.kind.clone())];
    match change {
        Change::Requeue => {
            tx.take_keys_back(&rows).await?;
            tx.requeue(&rows).await
        }
        Change::Replace { new, payload } => {
            tx.replace_message(&Replacement {
                old: row.item,
                new: *new,
                kind: &row.kind,
                payload,
                headers: json!({ REPLACES: row.item.to_string() }).to_string(),
            })
            .await?;
            let detail = format!("replaced by {new}: {reason}");
            tx.end_deliveries(&rows, DeliveryState::Skipped.as_str(), &detail).await
        }
        Change::End(DeliveryState::Discarded) if row.state != DeliveryState::Dead.as_str() => Err(Error::new(
            Code::InputInvalid,
            format!(
                "the delivery of {} to {} is {}, and only a dead one is discarded; skip it if it is not wanted any more",
                row.item,
                row.target(),
                row.state
            ),
        )),
        Change::End(state) => {
            tx.end_deliveries(&rows, state.as_str(), reason).await?;
            tx.free_chains(row.chain.as_slice()).await
        }
    }
}

fn read_payload(payload: &str) -> Result<Value> {
    if payload.len() > EVENT_LENGTH_MAX {
        let message = format!(
            "the payload has {} bytes, and at most {EVENT_LENGTH_MAX} are delivered; make it smaller",
            payload.len()
        );
        return Err(Error::new(Code::InputInvalid, message));
    }
    serde_json::from_str(payload).map_err(|error| {
        let message = format!(
            "the payload is no JSON: {error}; write the whole payload, as `steadfast dead show ID --reveal` shows it"
        );
        Error::new(Code::InputInvalid, message)
    })
}

fn not_there(id: MessageId, target: &str) -> Error {
    Error::new(
        Code::InputInvalid,
        format!(
            "there is no delivery of {id} to {target} that is still to do; `steadfast outbox show {id}` shows where each stands"
        ),
    )
}

/// Nobody touches what somebody works on: he would not notice, and do it all the same.
fn refuse_leased(row: &DeliveryRow) -> Result<()> {
    if row.state != DeliveryState::Leased.as_str() {
        return Ok(());
    }
    let until = row
        .leased_until
        .map(|at| rfc3339(Timestamp(at).into()))
        .unwrap_or_default();
    Err(Error::new(
        Code::Conflict,
        format!(
            "the delivery of {} to {} is leased by {} until {until}; try again when it has ended, or pause the target first",
            row.item,
            row.target(),
            row.holder.as_deref().unwrap_or("somebody"),
        ),
    ))
}

/// What has expired would be skipped at once.
fn refuse_expired(row: &DeliveryRow, now: SystemTime) -> Result<()> {
    let expires_at = row.expires_at.map(|at| SystemTime::from(Timestamp(at)));
    let Some(expired_at) = expires_at.filter(|at| *at <= now) else {
        return Ok(());
    };
    Err(Error::new(
        Code::InputInvalid,
        format!(
            "the event {} has expired at {}, so nobody would be told of it; requeue it with a payload of its own \
             (--edited FILE), or discard it",
            row.item,
            rfc3339(expired_at)
        ),
    ))
}

/// What is read, or copied, is a message with its bytes and headers: another payload would be neither.
fn refuse_as_it_came(row: &DeliveryRow) -> Result<()> {
    let (item, target) = (row.item, row.target());
    if !is_as_it_came(&item, &row.kind, row.event_type.as_deref()) {
        return Ok(());
    }
    let message = match are_letters(&row.kind) {
        true => format!(
            "the delivery of {item} to {target} is a copy for the broker, which gets the message as it came; requeue it without \
             --edited, or discard it"
        ),
        false => format!(
            "the message {item} came to {target} and could not be read, or not be stored, so there is no event to edit; requeue it \
             without --edited when that is mended, or discard it and have it sent anew"
        ),
    };
    Err(Error::new(Code::InputInvalid, message))
}

/// Whether a message came from elsewhere longer ago than the inbox remembers. It may have come once more since then, and have been
/// handled.
pub(super) fn is_forgotten(row: &DeliveryRow, now: SystemTime, memory: Duration) -> bool {
    let came_at = row.created_at.map(|at| SystemTime::from(Timestamp(at)));
    let age = came_at.and_then(|came_at| now.duration_since(came_at).ok());
    // A copy for the broker is nothing that anybody handles.
    is_from_elsewhere(&row.item) && !are_letters(&row.kind) && age.is_some_and(|age| age >= memory)
}

fn refuse_forgotten(row: &DeliveryRow, now: SystemTime, memory: Option<Duration>) -> Result<()> {
    let Some(memory) = memory.filter(|memory| is_forgotten(row, now, *memory)) else {
        return Ok(());
    };
    Err(Error::new(
        Code::InputInvalid,
        format!(
            "the message {} came from elsewhere longer ago than the inbox remembers ({memory:?}), so it may have been handled since; \
             look whether it was, and requeue it by force (--force), or discard it",
            row.item
        ),
    ))
}

impl<Db: Database> Steadfast<Db> {
    /// Rows have changed in a way that somebody may have waited for.
    ///
    /// A claim that began before the commit may just have put the next row of a chain off, by what it saw then: these are
    /// looked at once more. If that fails, they are found all the same when their time is over.
    pub(super) async fn rows_were_changed(&self, chains: Vec<String>) {
        if !chains.is_empty() {
            let chains = &chains;
            let _ = self.transact(async |tx| Ok(tx.free_chains(chains).await?)).await;
        }
        self.rows_were_committed();
    }
}

/// What is done to deliveries in a transaction of ours.
impl<Db: Database> Tx<Db> {
    pub(crate) async fn lock_delivery(&mut self, id: MessageId, target: &str) -> Result<Option<DeliveryRow>> {
        let (store, conn, _) = self.parts("lock a delivery");
        store.lock_delivery(conn, id.as_uuid(), target).await
    }

    pub(crate) async fn requeue(&mut self, rows: &[(Uuid, String)]) -> Result<()> {
        let (store, conn, offset) = self.parts("requeue deliveries");
        store.requeue(conn, rows, offset).await
    }

    pub(crate) async fn request_cancel(&mut self, row: &(Uuid, String), operator: &str, reason: &str) -> Result<()> {
        let (store, conn, offset) = self.parts("ask for the end of a job");
        store.request_cancel(conn, row, operator, reason, offset).await
    }

    pub(crate) async fn end_deliveries(
        &mut self,
        rows: &[(Uuid, String)],
        state: &'static str,
        detail: &str,
    ) -> Result<()> {
        // A job that is not wanted any more is cancelled.
        let (jobs, deliveries): (Vec<_>, Vec<_>) = rows.iter().cloned().partition(|(_, kind)| kind.starts_with(JOBS));
        let of_jobs = if state == DeliveryState::Skipped.as_str() {
            "cancelled"
        } else {
            state
        };
        for (rows, state) in [(jobs, of_jobs), (deliveries, state)] {
            if rows.is_empty() {
                continue;
            }
            let (store, conn, offset) = self.parts("end deliveries");
            store.end_deliveries(conn, &rows, state, detail, offset).await?;
        }
        Ok(())
    }

    pub(super) async fn free_chains(&mut self, chains: &[String]) -> Result<()> {
        if chains.is_empty() {
            return Ok(());
        }
        let (store, conn, _) = self.parts("free chains");
        store.free_chains(conn, chains).await
    }

    async fn replace_message(&mut self, replacement: &Replacement<'_>) -> Result<()> {
        let (store, conn, offset) = self.parts("write an edited message");
        store.replace_message(conn, replacement, offset).await
    }
}
