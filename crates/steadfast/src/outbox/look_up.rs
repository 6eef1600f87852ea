//! One message, whole: its envelope, what it says, where each of its deliveries stands, and every attempt that failed.
//!
//! Members of the payload that the event [redacts](crate::Event::REDACTED) are masked, unless somebody asks for them.

use std::time::SystemTime;

use serde_json::{Value, json};
use uuid::Uuid;

use super::delivery::{ListedDelivery, target_of};
use super::look::DeliveryList;
use super::message::MessageId;
use crate::broker::Incoming;
use crate::clock::{Timestamp, rfc3339};
use crate::error::{Code, Error, Result};
use crate::inbox;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::letters::{AttemptRow, Letters, MessageRow};

/// How many failed attempts of one message are read: as many as a policy allows.
const ATTEMPTS_MAX: u32 = 1_000;

/// How many messages are named when the beginning of an id fits several.
const CANDIDATES_MAX: u32 = 10;

/// How many dead letters are exported at a time.
const EXPORT_PAGE: u32 = 200;

/// What stands in the place of a member that is not shown.
pub(super) const MASK: &str = "[redacted]";

/// The hexadecimal digits of a whole id.
const ID_DIGITS: usize = 32;

/// An attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// The target it was for.
    pub target: String,
    /// Which attempt it was, from 1; counted anew after a requeue.
    pub attempt: u32,
    /// When it failed.
    pub at: SystemTime,
    /// The kind of failure: `transient`, `definitive`, `unknown`, ..
    pub failure: String,
    /// Its stable code.
    pub code: String,
    /// What it said.
    pub message: String,
    /// The same for failures that differ only in numbers and ids.
    pub fingerprint: String,
}

impl FailedAttempt {
    fn read(row: AttemptRow) -> Self {
        Self {
            target: target_of(&row.kind).to_owned(),
            attempt: u32::try_from(row.attempt).unwrap_or_default(),
            at: Timestamp(row.at).into(),
            failure: row.failure,
            code: row.code,
            message: row.message,
            fingerprint: row.fingerprint,
        }
    }
}

/// A message with everything that is known of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LookedMessage {
    /// Identifies it for ever.
    pub id: MessageId,
    /// The type of the event.
    pub event_type: String,
    /// The version of the type.
    pub version: u32,
    /// What the payload is.
    pub content_type: String,
    /// When it was published.
    pub published_at: SystemTime,
    /// From when on nobody wants to hear of it.
    pub expires_at: Option<SystemTime>,
    /// Messages with the same one come one after another.
    pub ordering_key: Option<String>,
    /// What it is all about.
    pub correlation_id: Option<String>,
    /// The message that brought it about.
    pub causation_id: Option<String>,
    /// The trace it is part of.
    pub traceparent: Option<String>,
    /// The message that it replaces for one delivery, if its payload was edited.
    pub replaces: Option<MessageId>,
    /// The message as it came, with all its headers, if it came from elsewhere. Headers that let somebody in, as `authorization`, are
    /// masked unless [revealed](MessageLookUp::revealed).
    pub incoming: Option<Incoming>,
    /// The members of the payload that are masked.
    pub redacted: Vec<String>,
    /// The payload as text, masked unless [revealed](MessageLookUp::revealed).
    pub payload: String,
    /// Where each delivery stands.
    pub deliveries: Vec<ListedDelivery>,
    /// Every attempt that failed, by target and in order.
    pub failures: Vec<FailedAttempt>,
}

impl LookedMessage {
    fn read(row: MessageRow, is_revealed: bool) -> Self {
        let redacted = row.redacted();
        let headers = row
            .headers
            .as_deref()
            .and_then(|text| serde_json::from_str::<Value>(text).ok());
        let replaces = headers.and_then(|headers| headers[REPLACES].as_str()?.parse().ok());
        let incoming = inbox::incoming_of(&row);
        let incoming = match is_revealed {
            true => incoming,
            false => incoming.map(|incoming| incoming.masked(MASK)),
        };
        Self {
            id: MessageId::of(row.id),
            event_type: row.event_type,
            version: u32::try_from(row.version).unwrap_or_default(),
            content_type: row.content_type,
            published_at: Timestamp(row.created_at).into(),
            expires_at: row.expires_at.map(|at| Timestamp(at).into()),
            ordering_key: row.ordering_key,
            correlation_id: row.correlation_id,
            causation_id: row.causation_id,
            traceparent: row.traceparent,
            replaces,
            incoming,
            payload: show(&row.payload, if is_revealed { &[] } else { &redacted }),
            redacted,
            deliveries: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// The whole as JSON, as it is exported: the payload as JSON too, where it is.
    pub fn to_json(&self) -> Value {
        let payload = serde_json::from_str(&self.payload).unwrap_or_else(|_| Value::from(&*self.payload));
        json!({
            "id": self.id.to_string(),
            "type": self.event_type,
            "version": self.version,
            "published_at": rfc3339(self.published_at),
            "expires_at": self.expires_at.map(rfc3339),
            "ordering_key": self.ordering_key,
            "correlation_id": self.correlation_id,
            "causation_id": self.causation_id,
            "traceparent": self.traceparent,
            "replaces": self.replaces.map(|id| id.to_string()),
            "incoming": self.incoming,
            "redacted": self.redacted,
            "payload": payload,
            "deliveries": self.deliveries.iter().map(delivery_to_json).collect::<Vec<_>>(),
            "failures": self.failures.iter().map(failure_to_json).collect::<Vec<_>>(),
        })
    }
}

/// The attribute of a message's headers that names the one it replaces.
pub(super) const REPLACES: &str = "replaces";

fn delivery_to_json(delivery: &ListedDelivery) -> Value {
    json!({
        "target": delivery.target,
        "state": delivery.state.as_str(),
        "attempts": delivery.attempts,
        "due_at": delivery.due_at.map(rfc3339),
        "holder": delivery.holder,
        "leased_until": delivery.leased_until.map(rfc3339),
        "finished_at": delivery.finished_at.map(rfc3339),
        "detail": delivery.detail,
    })
}

fn failure_to_json(failed: &FailedAttempt) -> Value {
    json!({
        "target": failed.target,
        "attempt": failed.attempt,
        "at": rfc3339(failed.at),
        "failure": failed.failure,
        "code": failed.code,
        "message": failed.message,
        "fingerprint": failed.fingerprint,
    })
}

/// A payload as people see it. What cannot be masked is not shown.
pub(crate) fn show(payload: &[u8], redacted: &[String]) -> String {
    if redacted.is_empty() {
        return String::from_utf8_lossy(payload).into_owned();
    }
    match serde_json::from_slice::<Value>(payload) {
        Ok(mut value) => {
            mask(&mut value, redacted);
            value.to_string()
        }
        Err(_) => MASK.to_owned(),
    }
}

/// Masks members by their name, wherever they are: a variant of an event has them one level deeper.
fn mask(value: &mut Value, redacted: &[String]) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if redacted.contains(name) {
                    *member = MASK.into();
                } else {
                    mask(member, redacted);
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(|element| mask(element, redacted)),
        _ => {}
    }
}

/// A member that is not shown, and has the mask instead of what was published.
pub(super) fn masked_member(value: &Value, redacted: &[String]) -> Option<String> {
    match value {
        Value::Object(members) => members.iter().find_map(|(name, member)| {
            let is_masked = redacted.contains(name) && member == MASK;
            is_masked
                .then(|| name.clone())
                .or_else(|| masked_member(member, redacted))
        }),
        Value::Array(elements) => elements.iter().find_map(|element| masked_member(element, redacted)),
        _ => None,
    }
}

/// One message, to look at: [`Steadfast::message`].
#[must_use = "nothing is read until `look`"]
pub struct MessageLookUp<'c, Db: Database> {
    steadfast: &'c Steadfast<Db>,
    id: MessageId,
    is_revealed: bool,
}

impl<Db: Database> Steadfast<Db> {
    /// One message, with all its deliveries and every attempt that failed.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use steadfast::sqlx::Sqlite;
    /// # use steadfast::{Event, Steadfast};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct OrderPlaced { order: u64, email: String }
    /// # impl Event for OrderPlaced {
    /// #     const TYPE: &'static str = "order.placed";
    /// #     const REDACTED: &'static [&'static str] = &["email"];
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let event = OrderPlaced { order: 7, email: "ann@example.org".into() };
    /// let id = sf.transact(async |tx| Ok(tx.publish(&event)?)).await?;
    ///
    /// let message = sf.message(id).look().await?.expect("it was published");
    /// assert_eq!(message.payload, r#"{"email":"[redacted]","order":7}"#);
    /// assert!(message.deliveries.is_empty(), "no target wanted it");
    /// # Ok(())
    /// # }
    /// ```
    pub fn message(&self, id: MessageId) -> MessageLookUp<'_, Db> {
        MessageLookUp {
            steadfast: self,
            id,
            is_revealed: false,
        }
    }

    /// The messages whose id begins with these digits, at most ten and one: what a person types of an id.
    ///
    /// # Errors
    /// SF102 if it is not the beginning of an id.
    pub async fn messages_beginning(&self, prefix: &str) -> Result<Vec<MessageId>> {
        let (first, last) = ids_beginning(prefix, "the id of a message")?;
        let store = self.ask("look for messages");
        let ids = store.message_ids(first, last, CANDIDATES_MAX + 1).await?;
        Ok(ids.into_iter().map(MessageId::of).collect())
    }
}

/// The first and the last UUID that begin with these digits; dashes do not count.
pub(super) fn ids_beginning(prefix: &str, what: &str) -> Result<(Uuid, Uuid)> {
    let digits: String = prefix.chars().filter(|c| *c != '-').collect();
    let is_prefix = (1..=ID_DIGITS).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let filled = |digit: &str| {
        let whole = format!("{digits}{}", digit.repeat(ID_DIGITS.saturating_sub(digits.len())));
        u128::from_str_radix(&whole, 16).ok().map(Uuid::from_u128)
    };
    match (filled("0"), filled("f")) {
        (Some(first), Some(last)) if is_prefix => Ok((first, last)),
        _ => Err(Error::new(
            Code::InputInvalid,
            format!("{prefix:?} is not {what}; write a UUID, or its first hexadecimal digits"),
        )),
    }
}

impl<Db: Database> MessageLookUp<'_, Db> {
    /// Shows the members of the payload that are masked otherwise.
    pub fn revealed(mut self) -> Self {
        self.is_revealed = true;
        self
    }

    /// Reads it. `None`: there is no such message, or its retention is over.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn look(self) -> Result<Option<LookedMessage>> {
        let id = self.id.as_uuid();
        let found = self.steadfast.ask("read a message").read_messages(&[id]).await?;
        let Some(row) = found.into_iter().next() else {
            return Ok(None);
        };
        let mut message = LookedMessage::read(row, self.is_revealed);
        let deliveries = self.steadfast.ask("read deliveries").deliveries_of(id).await?;
        message.deliveries = deliveries
            .into_iter()
            .map(ListedDelivery::read)
            .collect::<Result<_>>()?;
        let attempts = self
            .steadfast
            .ask("read failed attempts")
            .read_attempts(&[id], ATTEMPTS_MAX)
            .await?;
        message.failures = attempts.into_iter().map(FailedAttempt::read).collect();
        Ok(Some(message))
    }
}

impl<Db: Database> DeliveryList<'_, Db> {
    /// Hands each dead letter out as JSON, with its payload and every attempt that failed, a page at a time, and says how many
    /// they were. Members that the event redacts are masked unless `is_revealed`.
    ///
    /// # Errors
    /// If the database does not answer, or `each` fails.
    pub async fn export(self, is_revealed: bool, mut each: impl FnMut(Value) -> Result<()>) -> Result<u64> {
        let mut list = self.limit(EXPORT_PAGE);
        list.settle_bounds().await?;
        let mut count = 0;
        loop {
            let store = list.steadfast.ask("list deliveries");
            let rows = store.list_deliveries(&list.filter, EXPORT_PAGE).await?;
            let Some(last) = rows.last() else {
                return Ok(count);
            };
            list.filter.after = (last.item, last.kind.clone());
            let ids: Vec<_> = rows.iter().map(|row| row.item).collect();
            let messages = store.read_messages(&ids).await?;
            let attempts = store.read_attempts(&ids, EXPORT_PAGE * ATTEMPTS_MAX).await?;
            for row in rows {
                let Some(message) = messages.iter().find(|message| message.id == row.item) else {
                    continue;
                };
                let mut letter = LookedMessage::read(message.clone(), is_revealed);
                let own = attempts
                    .iter()
                    .filter(|attempt| attempt.item == row.item && attempt.kind == row.kind);
                letter.failures = own.cloned().map(FailedAttempt::read).collect();
                letter.deliveries = vec![ListedDelivery::read(row)?];
                each(letter.to_json())?;
                count += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_masked_wherever_they_are_and_what_is_no_json_is_not_shown() {
        let redacted = ["email".to_owned()];
        let shown = |payload: &str| show(payload.as_bytes(), &redacted);
        assert_eq!(shown(r#"{"email":"a@b","n":1}"#), r#"{"email":"[redacted]","n":1}"#);
        assert_eq!(
            shown(r#"{"Placed":[{"email":{"a":1}}]}"#),
            r#"{"Placed":[{"email":"[redacted]"}]}"#
        );
        assert_eq!(shown("a@b"), MASK);
        assert_eq!(show(b"a@b", &[]), "a@b");
    }

    #[test]
    fn the_beginning_of_an_id_stands_for_all_that_begin_so() {
        let (first, last) = ids_beginning("0192-f", "an id").expect("five digits");
        assert_eq!(first.to_string(), "0192f000-0000-0000-0000-000000000000");
        assert_eq!(last.to_string(), "0192ffff-ffff-ffff-ffff-ffffffffffff");
        for wrong in ["", "-", "g", &"0".repeat(33)] {
            assert!(ids_beginning(wrong, "an id").is_err(), "{wrong:?}");
        }
    }
}
