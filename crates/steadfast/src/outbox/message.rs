//! A message: an event in its envelope, on the way into the table and out of it.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::event::Event;
use super::name;
use super::origin::Origin;
use crate::broker::Incoming;
use crate::clock::{Timestamp, rfc3339};
use crate::error::{Code, Error, Result};
use crate::job::{EnqueueOptions, Job, worker};
use crate::queue::KEY;
use crate::store::schedules::ScheduleRow;

/// How large an event may be as JSON. Brokers take a megabyte or less, and a row is read whole whenever it is delivered.
pub const EVENT_LENGTH_MAX: usize = 256 * 1024;

/// How long an ordering key may be.
pub const ORDERING_KEY_LENGTH_MAX: usize = 255;

/// How far away a delay or an expiry may be: beyond this it is a mistake, and databases have an end of time.
pub(crate) const FUTURE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Identifies a message for ever, and its event: a UUID of version 7, which sorts by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(Uuid);

impl MessageId {
    pub(crate) fn of(id: Uuid) -> Self {
        Self(id)
    }

    /// The UUID.
    pub fn as_uuid(&self) -> Uuid {
        self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MessageId {
    type Err = Error;

    /// # Errors
    /// SF102 if the text is no UUID.
    fn from_str(text: &str) -> Result<Self> {
        text.parse().map(Self).map_err(|_| {
            Error::new(
                Code::InputInvalid,
                format!("{text:?} is not the id of a message; write a UUID, as `steadfast outbox list` shows them"),
            )
        })
    }
}

/// A message that is to be written.
#[derive(Clone, Debug)]
pub(crate) struct NewMessage {
    pub(crate) id: Uuid,
    pub(crate) event_type: Cow<'static, str>,
    pub(crate) version: u32,
    /// What one must know to work on it, if it is a job; `None`: it is an event, and goes to whoever wants its type.
    pub(crate) kind: Option<Arc<str>>,
    /// The chain that it stands in, if it is a job that has a key with a limit.
    pub(crate) chain: Option<String>,
    /// The key of which there is one job at a time, if it is such a job.
    pub(crate) unique_key: Option<String>,
    pub(crate) due: When,
    /// The batch that it belongs to, if it is a job.
    pub(crate) batch: Option<Uuid>,
    pub(crate) expires_after: Option<Duration>,
    pub(crate) ordering_key: Option<String>,
    pub(crate) redacted: Option<String>,
    pub(crate) origin: Origin,
    /// JSON.
    pub(crate) payload: String,
}

/// When a message is due.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    /// So long after it was written.
    After(Duration),
    /// At this time of the database, or now if that has passed.
    At(Timestamp),
}

impl NewMessage {
    /// Puts an event into its envelope.
    pub(crate) fn of<E: Event>(event: &E, origin: &Origin) -> Result<Self> {
        let refuse = |what: String| Error::new(Code::EventInvalid, what);
        let payload = Self::write("event", E::TYPE, event)?;
        let ordering_key = event.ordering_key();
        if let Some(key) = &ordering_key
            && (key.is_empty() || key.len() > ORDERING_KEY_LENGTH_MAX || key.contains('\0'))
        {
            return Err(refuse(format!(
                "the ordering key of the event {} has {} bytes; it has 1 to {ORDERING_KEY_LENGTH_MAX} and no NUL",
                E::TYPE,
                key.len()
            )));
        }
        if E::DELAY > FUTURE_MAX || E::EXPIRES_AFTER.is_some_and(|after| after > FUTURE_MAX) {
            return Err(refuse(format!(
                "the event {} is delayed or expires more than ten years ahead; choose less",
                E::TYPE
            )));
        }
        Ok(Self {
            due: When::After(E::DELAY),
            expires_after: E::EXPIRES_AFTER,
            ordering_key,
            ..Self::new(E::TYPE, E::VERSION, E::REDACTED, payload, origin)
        })
    }

    /// Puts a job into the same envelope.
    pub(crate) fn of_job<J: Job>(job: &J, options: &EnqueueOptions, origin: &Origin) -> Result<Self> {
        let refuse = |what: String| Error::new(Code::EventInvalid, format!("the job {} {what}", J::NAME));
        let payload = Self::write("job", J::NAME, job)?;
        let far_away = match options.due {
            When::After(delay) => delay > FUTURE_MAX,
            When::At(at) => SystemTime::from(at) > SystemTime::now() + FUTURE_MAX,
        };
        if far_away {
            return Err(refuse("is due more than ten years ahead; choose less".to_owned()));
        }
        let queue = options.queue.as_deref().filter(|queue| Some(*queue) != J::QUEUE);
        if let Some(Err(rule)) = queue.map(name::check) {
            return Err(refuse(format!("cannot stand in a queue that is called {rule}")));
        }
        let chain = match (&options.limit_key, queue.or(J::QUEUE)) {
            (None, _) => None,
            (Some(_), None) => {
                return Err(refuse(
                    "has a limit key and stands in no queue, which would have the limit; give it a queue".to_owned(),
                ));
            }
            (Some(key), _) if key.is_empty() || key.len() > ORDERING_KEY_LENGTH_MAX || key.contains('\0') => {
                let length = key.len();
                return Err(refuse(format!(
                    "has a limit key of {length} bytes; it has 1 to {ORDERING_KEY_LENGTH_MAX} and no NUL"
                )));
            }
            (Some(key), Some(queue)) => Some(format!("{KEY}{queue} {key}")),
        };
        Ok(options.batch.mark(Self {
            kind: Some(worker::kind(J::NAME, J::VERSION, queue, options.priority)),
            chain,
            due: options.due,
            ..Self::new(J::NAME, J::VERSION, J::REDACTED, payload, origin)
        }))
    }

    /// Puts the job of a schedule into it, as it is stored there.
    pub(crate) fn of_schedule(row: &ScheduleRow, payload: String, origin: &Origin) -> Self {
        Self {
            event_type: Cow::Owned(row.job.clone()),
            version: u32::try_from(row.version).unwrap_or(1),
            kind: Some(row.kind.as_str().into()),
            redacted: row.redacted.clone(),
            ..Self::new("", 1, &[], payload, origin)
        }
    }

    fn new(name: &'static str, version: u32, redacted: &[&str], payload: String, origin: &Origin) -> Self {
        let id = Uuid::now_v7();
        let mut origin = origin.clone();
        origin.correlation_id.get_or_insert_with(|| id.to_string().into());
        Self {
            id,
            event_type: Cow::Borrowed(name),
            version,
            kind: None,
            chain: None,
            unique_key: None,
            due: When::After(Duration::ZERO),
            batch: None,
            expires_after: None,
            ordering_key: None,
            redacted: (!redacted.is_empty()).then(|| json!(redacted).to_string()),
            origin,
            payload,
        }
    }

    /// What is written as JSON, if it can be stored under this name.
    pub(crate) fn write(what: &str, name: &str, value: &impl Serialize) -> Result<String> {
        let refuse = |what: String| Error::new(Code::EventInvalid, what);
        name::check(name).map_err(|rule| refuse(format!("no {what} can be called {rule}")))?;
        let payload = serde_json::to_string(value)
            .map_err(|error| refuse(format!("the {what} {name} cannot be written as JSON")).with_source(error))?;
        if payload.len() > EVENT_LENGTH_MAX {
            return Err(refuse(format!(
                "the {what} {name} has {} bytes as JSON, and at most {EVENT_LENGTH_MAX} are stored; put a reference to the \
                 thing into it instead of the thing",
                payload.len()
            )));
        }
        Ok(payload)
    }
}

/// A message as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) id: Uuid,
    pub(crate) event_type: Arc<str>,
    pub(crate) version: u32,
    pub(crate) created_at: Timestamp,
    /// Whether its time was over when it was read.
    pub(crate) has_expired: bool,
    pub(crate) ordering_key: Option<Arc<str>>,
    pub(crate) origin: Origin,
    pub(crate) payload: Bytes,
    /// What it was before it came here, if it came from elsewhere.
    pub(crate) elsewhere: Option<Arc<Elsewhere>>,
}

/// A message as it came from elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Elsewhere {
    /// The name of the source that it came by.
    pub(crate) via: Arc<str>,
    /// The id that its producer gave it.
    pub(crate) id: Arc<str>,
    pub(crate) incoming: Incoming,
}

impl Message {
    /// The id by which its producer knows it.
    pub(crate) fn first_id(&self) -> String {
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.id.to_string(),
            None => self.id.to_string(),
        }
    }

    /// The envelope and the event as one JSON object, as CloudEvents 1.0 writes it.
    pub(crate) fn cloud_event(&self) -> Value {
        let data = serde_json::from_slice(&self.payload).unwrap_or(Value::Null);
        let mut envelope = json!({
            "specversion": "1.0",
            "id": self.id.to_string(),
            "source": &*self.origin.source,
            "type": &*self.event_type,
            "time": rfc3339(self.created_at.into()),
            "datacontenttype": "application/json",
            "dataversion": self.version,
            "data": data,
        });
        let extensions = [
            ("correlationid", &self.origin.correlation_id),
            ("causationid", &self.origin.causation_id),
            ("traceparent", &self.origin.traceparent),
            ("partitionkey", &self.ordering_key),
        ];
        for (name, text) in extensions {
            if let Some(text) = text {
                envelope[name] = Value::from(&**text);
            }
        }
        envelope
    }
}
