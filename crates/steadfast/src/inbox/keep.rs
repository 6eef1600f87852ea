//! Messages that are kept: record, message and a row of the queue in one commit. From then on the engine works on them.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::batch::Todo;
use super::envelope::{is_from_elsewhere, item_of, unreadable};
use super::intake::Sourced;
use crate::broker::Incoming;
use crate::clock::{Timestamp, random};
use crate::command::execute::{Handled, Handler, Verdict};
use crate::command::{CommandOptions, Outcome};
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureClass, FailureKind};
use crate::outbox::reaction::kind;
use crate::outbox::{Elsewhere, EventCx, Message};
use crate::queue::{BACK_MAX, Ended, FailureRow, failure_row};
use crate::retry::Decision;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::inbox::{Inbox, KeptRow, RecordKey};
use crate::store::letters::{Letters, MessageRow};
use crate::tx::Tx;

/// The type of a message that does not say what it is about.
pub(super) const UNREADABLE: &str = "unreadable";

/// A message that is kept.
#[derive(Debug)]
pub(super) struct Keep {
    record: Option<RecordKey>,
    message: Message,
    kind: Arc<str>,
    letters: Option<Arc<str>>,
    incoming: Incoming,
    headers: String,
    /// When it is worked on; `None`: it is dead.
    pub(super) after: Option<Duration>,
    /// Why it is kept, if it has failed.
    pub(super) failure: Option<FailureRow>,
}

/// What is known of a message from elsewhere, beside what its table has columns for.
#[derive(Serialize, Deserialize)]
struct Stored {
    via: String,
    id: String,
    /// When it was published, in microseconds since 1970.
    time: i64,
    message: Incoming,
    /// The body, if the event is only a part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Body>,
}

/// Bytes, as text where they are.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Body {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&Bytes> for Body {
    fn from(bytes: &Bytes) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(bytes.to_vec()),
        }
    }
}

impl From<Body> for Bytes {
    fn from(body: Body) -> Self {
        match body {
            Body::Text(text) => text.into(),
            Body::Bytes(bytes) => bytes.into(),
        }
    }
}

impl Keep {
    /// Keeps a message for one of its consumers, to be worked on from the beginning.
    pub(super) fn of<Db: Database>(todo: &Todo<Db>) -> Self {
        let message = todo.cx.message().clone();
        let incoming = todo.cx.incoming().cloned().unwrap_or_default();
        Self {
            record: todo.reacting.drops_duplicates().then(|| todo.key.clone()),
            kind: kind(todo.reacting.name(), message.version),
            letters: todo.letters.clone(),
            headers: headers(&message, &incoming),
            message,
            incoming,
            after: Some(Duration::ZERO),
            failure: None,
        }
    }

    /// Keeps a message that has failed, as the policy of its consumer says.
    pub(super) fn failed<Db: Database>(todo: &Todo<Db>, failure: Failure) -> Self {
        let failure = in_time(failure);
        let after = match todo.reacting.retry().decide(1, &failure, Duration::ZERO, random) {
            Decision::Retry(after) => Some(after.min(BACK_MAX)),
            Decision::GiveUp(_) => None,
        };
        let is_snooze = failure.kind() == FailureKind::Snooze && after.is_some();
        Self {
            after,
            failure: (!is_snooze).then(|| failure_row(1, &failure)),
            ..Self::of(todo)
        }
    }

    /// Keeps a message that nobody can read, or that nobody here reacts to: dead, under the name of its source.
    pub(super) fn unreadable(source: &Sourced, incoming: Incoming, failure: &Failure) -> Self {
        let name = source.name.as_bytes();
        let place = incoming.place().unwrap_or_default();
        // Whatever it is, it is the same when it comes once more.
        let known = serde_json::to_vec(&incoming).unwrap_or_default();
        let item = item_of(&[b"unreadable", name, place.as_bytes(), &known, incoming.body()]);
        let message = Message {
            id: item,
            event_type: UNREADABLE.into(),
            version: 1,
            created_at: Timestamp(0),
            has_expired: false,
            ordering_key: None,
            origin: crate::outbox::Origin::of(source.name.clone()),
            payload: incoming.body().clone(),
            elsewhere: Some(Arc::new(Elsewhere {
                via: source.name.clone(),
                id: incoming.message_id().unwrap_or_default().into(),
                incoming: incoming.clone(),
            })),
        };
        Self {
            record: None,
            kind: source.name.clone(),
            letters: source.letters.clone(),
            headers: headers(&message, &incoming),
            message,
            incoming,
            after: None,
            failure: Some(failure_row(1, failure)),
        }
    }

    /// The same message in a form that every database takes, if it is one that refuses it as it is: dead, under the name of its
    /// source, its bytes as they are, and everything else that is known of it in ASCII.
    pub(super) fn apart(&self, source: &Sourced, error: &Error) -> Self {
        let words = format!("the database refuses it: {error}");
        let failure = unreadable("unstorable", words.escape_default().to_string());
        let apart = Self::unreadable(source, self.incoming.clone(), &failure);
        Self {
            headers: in_ascii(&apart.headers),
            incoming: Incoming::new(self.incoming.body().clone()),
            ..apart
        }
    }

    pub(super) fn item(&self) -> &Uuid {
        &self.message.id
    }

    pub(super) fn kind(&self) -> &str {
        &self.kind
    }

    pub(super) fn code(&self) -> &str {
        self.failure.as_ref().map_or("", |failure| &failure.code)
    }

    pub(super) fn correlation_id(&self) -> Option<&str> {
        self.message.origin.correlation_id.as_deref()
    }

    fn row(&self) -> KeptRow<'_> {
        let origin = &self.message.origin;
        // PostgreSQL has no NUL in a text; what has one in its headers keeps it as JSON.
        let correlation_id = origin
            .correlation_id
            .as_deref()
            .or_else(|| self.incoming.correlation_id());
        KeptRow {
            record: self.record.as_ref(),
            item: self.message.id,
            kind: self.kind.to_string(),
            event_type: &self.message.event_type,
            version: self.message.version,
            source: &origin.source,
            content_type: self
                .incoming
                .content_type()
                .filter(|text| is_text(text))
                .unwrap_or("application/json"),
            correlation_id: correlation_id.filter(|text| is_text(text)),
            causation_id: origin.causation_id.as_deref().filter(|text| is_text(text)),
            traceparent: origin.traceparent.as_deref(),
            ordering_key: self.message.ordering_key.as_deref().filter(|text| is_text(text)),
            headers: self.headers.clone(),
            payload: &self.message.payload,
            after: self.after,
            letters: self.letters.as_deref(),
            failure: self.failure.clone(),
        }
    }
}

/// The same JSON without a letter that is not ASCII: those stand in its texts alone.
fn in_ascii(json: &str) -> String {
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            ascii.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // A String takes everything.
            let _ = write!(ascii, "\\u{unit:04x}");
        }
    }
    ascii
}

fn is_text(text: &str) -> bool {
    !text.contains('\0')
}

fn headers(message: &Message, incoming: &Incoming) -> String {
    let (via, id) = match &message.elsewhere {
        Some(elsewhere) => (elsewhere.via.to_string(), elsewhere.id.to_string()),
        None => (String::new(), String::new()),
    };
    let is_whole = incoming.body() == &message.payload;
    let stored = Stored {
        via,
        id,
        time: message.created_at.0,
        message: incoming.clone(),
        body: (!is_whole).then(|| incoming.body().into()),
    };
    serde_json::to_string(&stored).unwrap_or_default()
}

/// What does not exist may only be on its way: events overtake each other.
fn in_time(failure: Failure) -> Failure {
    match failure.kind() {
        FailureKind::Definitive(FailureClass::NotFound) => failure.with_kind(FailureKind::Transient),
        _ => failure,
    }
}

/// Messages that are kept, as the corridor calls it.
pub(super) struct Keeping {
    kept: Arc<Vec<Keep>>,
    /// Which of them.
    range: Range<usize>,
}

impl Keeping {
    pub(super) fn new(kept: Arc<Vec<Keep>>, range: Range<usize>) -> Self {
        Self { kept, range }
    }
}

impl<Db: Database> Handler<Db> for Keeping {
    type Answer = std::result::Result<u64, Failure>;

    fn can_run(&self) -> bool {
        true
    }

    async fn run(&mut self, mut tx: Tx<Db>, _: &CommandOptions) -> Handled<Db, Self::Answer> {
        let mut rows: Vec<_> = self.kept[self.range.clone()].iter().map(Keep::row).collect();
        rows.sort_by(|one, other| one.record.cmp(&other.record));
        let (store, conn, offset) = tx.parts("keep messages");
        let ended = store.keep_messages(conn, &rows, offset).await.map_err(Failure::from);
        drop(rows);
        let verdict = match &ended {
            Ok(_) => Verdict::Commit(Outcome::empty()),
            Err(_) => Verdict::Discard,
        };
        Handled {
            tx: Some(tx),
            ended: Ok((verdict, ended)),
        }
    }
}

/// A message as it came, if it came from elsewhere.
pub(crate) fn incoming_of(row: &MessageRow) -> Option<Incoming> {
    let stored: Stored = serde_json::from_str(row.headers.as_deref()?).ok()?;
    let body = stored.body.map_or_else(|| row.payload.clone().into(), Into::into);
    Some(stored.message.with_body(body))
}

/// A message of the queue as it was when it came, if it came from elsewhere.
pub(crate) async fn recall<Db: Database>(sf: &Steadfast<Db>, message: &Arc<Message>) -> Result<Arc<Message>> {
    if !is_from_elsewhere(&message.id) {
        return Ok(message.clone());
    }
    let rows = sf.ask("read a message").read_messages(&[message.id]).await?;
    let headers = rows.into_iter().next().and_then(|row| row.headers);
    let Some(stored) = headers.and_then(|headers| serde_json::from_str::<Stored>(&headers).ok()) else {
        return Ok(message.clone());
    };
    let body = stored.body.map_or_else(|| message.payload.clone(), Into::into);
    let elsewhere = Elsewhere {
        via: stored.via.into(),
        id: stored.id.into(),
        incoming: stored.message.with_body(body),
    };
    Ok(Arc::new(Message {
        created_at: Timestamp(stored.time),
        elsewhere: Some(Arc::new(elsewhere)),
        ..Message::clone(message)
    }))
}

/// What an attempt at a message from elsewhere came to.
pub(crate) fn judge(cx: &EventCx, ended: Ended) -> Ended {
    match ended {
        Ended::Failed(failure) if cx.message().elsewhere.is_some() => Ended::Failed(in_time(failure)),
        ended => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_apart_says_the_same_in_ascii() {
        let json = serde_json::json!({ "é": "a\u{1F980}\0\"b\\" }).to_string();
        let ascii = in_ascii(&json);
        assert!(ascii.is_ascii(), "{ascii}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(read(&ascii), read(&json));
    }
}
