//! What a reaction is told besides the event.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::message::{Message, MessageId};
use crate::broker::Incoming;
use crate::clock::rfc3339;

/// The delivery that a reaction or a sink works on: which event it is, and what it belongs to.
#[derive(Clone)]
pub struct EventCx(Arc<Inner>);

struct Inner {
    message: Arc<Message>,
    target: Arc<str>,
    attempt: u32,
    /// Made when somebody asks for it.
    key: OnceLock<String>,
    lost: CancellationToken,
}

impl EventCx {
    pub(crate) fn new(
        message: impl Into<Arc<Message>>,
        target: Arc<str>,
        attempt: u32,
        lost: CancellationToken,
    ) -> Self {
        Self(Arc::new(Inner {
            message: message.into(),
            target,
            attempt,
            key: OnceLock::new(),
            lost,
        }))
    }

    pub(crate) fn message(&self) -> &Message {
        &self.0.message
    }

    /// Identifies the event, for ever.
    pub fn id(&self) -> MessageId {
        MessageId::of(self.0.message.id)
    }

    /// The id that the producer of the event gave it: [`id`](Self::id), unless the event came from elsewhere. Then it means something
    /// only beside its [source](Self::source).
    pub fn message_id(&self) -> Cow<'_, str> {
        match &self.0.message.elsewhere {
            Some(elsewhere) => (&*elsewhere.id).into(),
            None => self.0.message.id.to_string().into(),
        }
    }

    /// The message as it came, with all its headers, if it came from elsewhere: [`Steadfast::source`](crate::Steadfast::source).
    pub fn incoming(&self) -> Option<&Incoming> {
        self.0.message.elsewhere.as_ref().map(|elsewhere| &elsewhere.incoming)
    }

    /// The key to hand to the outside: the same in every attempt of this reaction to this event, and in no other.
    pub fn key(&self) -> &str {
        let Inner { message, target, .. } = &*self.0;
        self.0.key.get_or_init(|| format!("{}:{target}", message.id))
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// The type of the event.
    pub fn event_type(&self) -> &str {
        &self.0.message.event_type
    }

    /// The name of the reaction or the sink.
    pub fn target(&self) -> &str {
        &self.0.target
    }

    /// When the event was published, by the time of the database, or by what it says itself if it came from elsewhere.
    pub fn time(&self) -> SystemTime {
        self.0.message.created_at.into()
    }

    /// What it is all about: the same for everything that an event leads to.
    pub fn correlation_id(&self) -> Option<&str> {
        self.0.message.origin.correlation_id.as_deref()
    }

    /// Which shape of its type the event has.
    pub fn version(&self) -> u32 {
        self.0.message.version
    }

    /// Who published it: [`Builder::source`](crate::Builder::source).
    pub fn source(&self) -> &str {
        &self.0.message.origin.source
    }

    /// What brought it about: the [id](Self::id) of an event, or the beginning of the id of a command's key, as
    /// `steadfast keys` shows it.
    pub fn causation_id(&self) -> Option<&str> {
        self.0.message.origin.causation_id.as_deref()
    }

    /// The trace it is part of, as W3C writes it.
    pub fn traceparent(&self) -> Option<&str> {
        self.0.message.origin.traceparent.as_deref()
    }

    /// Events with the same one come one after another.
    pub fn ordering_key(&self) -> Option<&str> {
        self.0.message.ordering_key.as_deref()
    }

    /// The payload, as it was published: JSON.
    pub fn payload(&self) -> &[u8] {
        &self.0.message.payload
    }

    /// The envelope without the payload: the attributes by their names in CloudEvents 1.0, as headers have them in its binary
    /// mode. The type of the payload, `application/json`, is not among them.
    pub fn attributes(&self) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
        self.headers().map(|(name, value)| (&name["ce-".len()..], value))
    }

    /// The same by the names that most headers have: `ce-id` and so on.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
        // Quicker than `to_string`, and every message has one.
        let mut letters = Uuid::encode_buffer();
        let id = &*self.0.message.id.hyphenated().encode_lower(&mut letters);
        let always = [
            ("ce-specversion", Cow::Borrowed("1.0")),
            ("ce-id", id.to_owned().into()),
            ("ce-source", self.source().into()),
            ("ce-type", self.event_type().into()),
            ("ce-time", rfc3339(self.time()).into()),
            ("ce-dataversion", self.version().to_string().into()),
        ];
        let sometimes = [
            ("ce-correlationid", self.correlation_id()),
            ("ce-causationid", self.causation_id()),
            ("ce-traceparent", self.traceparent()),
            ("ce-partitionkey", self.ordering_key()),
        ];
        let sometimes = sometimes
            .into_iter()
            .filter_map(|(name, text)| Some((name, text?.into())));
        always.into_iter().chain(sometimes)
    }

    /// The event in its envelope, as CloudEvents 1.0 writes it in JSON: for those outside who read that.
    pub fn cloud_event(&self) -> serde_json::Value {
        self.0.message.cloud_event()
    }

    /// Ends when the lease is lost, or 20 seconds after the process was told to stop: whatever is done from then on is done again by
    /// somebody else. Soon after, the handler is dropped.
    pub async fn cancelled(&self) {
        self.0.lost.cancelled().await;
    }
}

impl fmt::Debug for EventCx {
    /// Without the payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventCx")
            .field("id", &self.0.message.id)
            .field("event_type", &self.0.message.event_type)
            .field("target", &self.0.target)
            .field("attempt", &self.0.attempt)
            .finish_non_exhaustive()
    }
}
