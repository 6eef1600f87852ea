//! Reading: what a message from elsewhere says about itself.
//!
//! CloudEvents 1.0 in both of its modes; otherwise what the broker has places for. Who sends something else is read by a function of
//! the user's.

use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid, Version};

use crate::broker::Incoming;
use crate::clock::read_rfc3339;
use crate::failure::{Failure, FailureClass};
use crate::outbox::Origin;

/// How long an id and a source may be: they stand in the index by which duplicates are known.
const ID_LENGTH_MAX: usize = 255;

/// The longest type: longer ones nobody can react to.
const TYPE_LENGTH_MAX: usize = 255;

/// What a message says about itself: which one it is, what has happened, and what it belongs to.
///
/// ```
/// use steadfast::{Envelope, Incoming};
///
/// let read = |message: &Incoming| {
///     let id = message.header("x-request").unwrap_or_default();
///     Envelope::new(id, "order.placed", message.body().clone()).with_source("/old-shop")
/// };
/// let message = Incoming::new(r#"{"sku":"tea"}"#).with_header("x-request", "17");
/// assert_eq!(read(&message).id(), "17");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    id: String,
    event_type: String,
    payload: Bytes,
    source: Option<String>,
    version: u32,
    time: Option<SystemTime>,
    correlation_id: Option<String>,
    causation_id: Option<String>,
    traceparent: Option<String>,
    ordering_key: Option<String>,
}

impl Envelope {
    /// A message with this id, about an event of this type, whose JSON is this.
    pub fn new(id: impl Into<String>, event_type: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            id: id.into(),
            event_type: event_type.into(),
            payload: payload.into(),
            source: None,
            version: 1,
            time: None,
            correlation_id: None,
            causation_id: None,
            traceparent: None,
            ordering_key: None,
        }
    }

    /// Who says it. Ids of one source mean nothing to another one. Without it, that is the [source](crate::Steadfast::source) that
    /// the message came by.
    pub fn with_source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Which shape of its type the event has; 1 by default.
    pub fn with_version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// When it was published.
    pub fn with_time(mut self, time: SystemTime) -> Self {
        self.time = Some(time);
        self
    }

    /// What it is all about.
    pub fn with_correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// The trace it is part of, as W3C writes it.
    pub fn with_traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// The id that its producer gave it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The type of the event.
    pub fn event_type(&self) -> &str {
        &self.event_type
    }

    /// The event, as JSON.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    pub(super) fn version(&self) -> u32 {
        self.version.max(1)
    }

    pub(super) fn time(&self) -> Option<SystemTime> {
        self.time
    }

    pub(super) fn ordering_key(&self) -> Option<&str> {
        self.ordering_key.as_deref()
    }

    /// What events belong to that it leads to. What nobody could use is left out: it is no reason to refuse a message.
    pub(super) fn origin(&self, via: &Arc<str>) -> Origin {
        let source = self.source.as_deref().map_or_else(|| via.clone(), Arc::from);
        let mut origin = Origin::of(source);
        for id in [self.correlation_id.as_deref(), Some(&*self.id)].into_iter().flatten() {
            if origin.set_correlation_id(id).is_ok() {
                break;
            }
        }
        if let Some(traceparent) = &self.traceparent {
            let _ = origin.set_traceparent(traceparent);
        }
        origin.causation_id = self.causation_id.as_deref().map(Arc::from);
        origin
    }

    /// Reads a message, given the attributes of CloudEvents in its headers.
    pub(crate) fn read(message: &Incoming, attributes: Vec<(String, String)>) -> Result<Self, Failure> {
        let content_type = message.content_type().unwrap_or_default().to_ascii_lowercase();
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        if media_type == "application/cloudevents+json" {
            return Self::structured(message);
        }
        if media_type.starts_with("application/cloudevents") {
            let words =
                format!("it is {media_type:?}, and of CloudEvents one JSON object is read, or an event with headers");
            return Err(unreadable("undecodable", words));
        }
        if attributes.iter().any(|(name, _)| name == "specversion" || name == "id") {
            return Self::binary(message, attributes);
        }
        Ok(Self::plain(message))
    }

    /// The event is the body, and its attributes are headers.
    fn binary(message: &Incoming, attributes: Vec<(String, String)>) -> Result<Self, Failure> {
        let mut envelope = Self::plain(message);
        for (name, value) in attributes {
            match &*name {
                "specversion" => check_specversion(&value)?,
                "id" => envelope.id = value,
                "source" => envelope.source = Some(value),
                "type" => envelope.event_type = value,
                "time" => envelope.time = read_rfc3339(&value),
                "dataversion" => envelope.version = value.parse().unwrap_or(1),
                "correlationid" => envelope.correlation_id = Some(value),
                "causationid" => envelope.causation_id = Some(value),
                "traceparent" => envelope.traceparent = Some(value),
                "partitionkey" => envelope.ordering_key = Some(value),
                _ => {}
            }
        }
        Ok(envelope)
    }

    /// The body is the envelope, and the event is in it.
    fn structured(message: &Incoming) -> Result<Self, Failure> {
        let read: Structured<'_> = serde_json::from_slice(message.body()).map_err(|error| {
            unreadable("undecodable", "the body is no CloudEvent as JSON, though it says so").with_source(error)
        })?;
        check_specversion(&read.specversion)?;
        let payload = match (read.data, read.data_base64) {
            (Some(_), Some(_)) => return Err(unreadable("undecodable", "it has both data and data_base64")),
            (Some(data), None) => message.body().slice_ref(data.get().as_bytes()),
            (None, Some(data)) => STANDARD
                .decode(data)
                .map_err(|error| unreadable("undecodable", "its data_base64 is none").with_source(error))?
                .into(),
            (None, None) => Bytes::from_static(b"null"),
        };
        Ok(Self {
            source: Some(read.source),
            version: read.dataversion.and_then(|version| version.number()).unwrap_or(1),
            time: read.time.as_deref().and_then(read_rfc3339),
            correlation_id: read
                .correlationid
                .or_else(|| message.correlation_id().map(str::to_owned)),
            causation_id: read.causationid,
            traceparent: read.traceparent,
            ordering_key: read.partitionkey,
            ..Self::new(read.id, read.event_type, payload)
        })
    }

    /// What the broker has places for.
    fn plain(message: &Incoming) -> Self {
        let id = message.message_id().unwrap_or_default();
        let event_type = message.event_type().unwrap_or_default();
        Self {
            correlation_id: message.correlation_id().map(str::to_owned),
            traceparent: message.header("traceparent").map(str::to_owned),
            ..Self::new(id, event_type, message.body().clone())
        }
    }

    /// # Errors
    /// If nobody could tell it from others.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.id.is_empty() {
            let words = "it has no id, so nobody could tell whether it comes once more; have its producer send one, or read one \
                         from it (read_with)";
            return Err(unreadable("no_id", words));
        }
        let texts = [
            ("id", &*self.id, ID_LENGTH_MAX),
            ("source", self.source.as_deref().unwrap_or("-"), ID_LENGTH_MAX),
            ("type", &*self.event_type, TYPE_LENGTH_MAX),
        ];
        for (what, text, max) in texts {
            if text.is_empty() || text.len() > max || text.contains('\0') {
                let words = format!("its {what} has {} bytes; it has 1 to {max} and no NUL", text.len());
                return Err(unreadable("undecodable", words));
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Structured<'b> {
    specversion: String,
    id: String,
    source: String,
    #[serde(rename = "type")]
    event_type: String,
    time: Option<String>,
    dataversion: Option<NumberOrText>,
    correlationid: Option<String>,
    causationid: Option<String>,
    traceparent: Option<String>,
    partitionkey: Option<String>,
    #[serde(borrow)]
    data: Option<&'b RawValue>,
    data_base64: Option<String>,
}

/// CloudEvents has numbers, and text where they are headers.
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u32),
    Text(String),
}

impl NumberOrText {
    fn number(self) -> Option<u32> {
        match self {
            Self::Number(number) => Some(number),
            Self::Text(text) => text.parse().ok(),
        }
    }
}

fn check_specversion(version: &str) -> Result<(), Failure> {
    if version == "1" || version.starts_with("1.") {
        return Ok(());
    }
    let version: String = version.chars().take(20).collect();
    let words = format!("it is a CloudEvent of version {version:?}, and those of version 1 are read");
    Err(unreadable("undecodable", words))
}

/// A message that cannot be read will not be another time either, unless somebody changes the program.
pub(super) fn unreadable(code: &'static str, message: impl Into<String>) -> Failure {
    Failure::definitive(FailureClass::Validation, code, message)
}

/// The id of a message here, made of its source and the id it has there: the same whenever it comes, and no other's, whatever
/// somebody else calls his. Its first six bytes are zero, where an id of our own has its time.
pub(super) fn item_of(parts: &[&[u8]]) -> Uuid {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut bytes = [0; 16];
    bytes[6..].copy_from_slice(&hash.finalize()[..10]);
    Builder::from_custom_bytes(bytes).into_uuid()
}

/// Whether a message came from elsewhere, by its id.
pub(crate) fn is_from_elsewhere(item: &Uuid) -> bool {
    item.as_bytes()[..6] == [0; 6] && item.get_version() == Some(Version::Custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(version: &str) -> Vec<(String, String)> {
        let attributes = [
            ("specversion", version),
            ("id", "17"),
            ("source", "/shop"),
            ("type", "order.placed"),
            ("time", "2026-01-01T00:00:00Z"),
            ("dataversion", "2"),
            ("partitionkey", "k 1"),
        ];
        attributes
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    #[test]
    fn both_modes_of_cloud_events_say_the_same() {
        let headers = Envelope::read(&Incoming::new(r#"{"sku": 1.10}"#), binary("1.0")).expect("an event");
        let body = r#"{"specversion":"1.0","id":"17","source":"/shop","type":"order.placed","time":"2026-01-01T00:00:00Z",
                       "dataversion":2,"partitionkey":"k 1","data":{"sku": 1.10},"other":[1]}"#;
        let message = Incoming::new(body).with_content_type("Application/CloudEvents+JSON; charset=UTF-8");
        let whole = Envelope::read(&message, Vec::new()).expect("an event");
        assert_eq!(headers, whole);
        assert_eq!(&**whole.payload(), br#"{"sku": 1.10}"#, "byte for byte");
        assert_eq!((whole.version(), whole.ordering_key()), (2, Some("k 1")));
    }

    #[test]
    fn a_plain_message_has_what_its_broker_has_places_for() {
        let message = Incoming::new("{}")
            .with_message_id("17")
            .with_event_type("order.placed")
            .with_correlation_id("c");
        let envelope = Envelope::read(&message, Vec::new()).expect("an event");
        let origin = envelope.origin(&"orders.rabbitmq".into());
        assert_eq!((envelope.id(), envelope.event_type()), ("17", "order.placed"));
        assert_eq!(
            (&*origin.source, origin.correlation_id.as_deref()),
            ("orders.rabbitmq", Some("c"))
        );
    }

    #[test]
    fn what_nobody_could_tell_from_others_is_refused() {
        let code = |envelope: Envelope| envelope.check().expect_err("refused").code().to_owned();
        assert_eq!(code(Envelope::new("", "order.placed", "{}")), "no_id");
        assert_eq!(
            code(Envelope::new("x".repeat(256), "order.placed", "{}")),
            "undecodable"
        );
        assert_eq!(code(Envelope::new("a\0b", "order.placed", "{}")), "undecodable");
        assert_eq!(code(Envelope::new("17", "", "{}")), "undecodable");
        assert_eq!(
            code(Envelope::new("17", "order.placed", "{}").with_source("")),
            "undecodable"
        );
        assert!(Envelope::read(&Incoming::new("{}"), binary("2.0")).is_err());
        let structured = |body: &'static str| {
            let message = Incoming::new(body).with_content_type("application/cloudevents+json");
            Envelope::read(&message, Vec::new())
        };
        assert!(structured("{").is_err() && structured("[]").is_err());
        for data in [
            r#""data_base64":"a""#,
            r#""data":1,"data_base64":"MQ==""#,
            r#""data_base64":1"#,
        ] {
            let body = format!(r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t",{data}}}"#);
            let message = Incoming::new(body).with_content_type("application/cloudevents+json");
            assert!(Envelope::read(&message, Vec::new()).is_err(), "{data}");
        }
    }

    #[test]
    fn data_in_base64_are_the_bytes_that_they_stand_for() {
        let body = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"eyJza3UiOiAxLjEwfQ=="}"#;
        let message = Incoming::new(body).with_content_type("application/cloudevents+json");
        let envelope = Envelope::read(&message, Vec::new()).expect("an event");
        assert_eq!(&**envelope.payload(), br#"{"sku": 1.10}"#);
    }

    #[test]
    fn a_batch_is_refused_by_name_and_not_taken_for_an_event() {
        let message = Incoming::new(r#"[{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1}]"#)
            .with_content_type("application/cloudevents-batch+json")
            .with_message_id("m")
            .with_event_type("t");
        let refused = Envelope::read(&message, binary("1.0")).expect_err("a batch");
        assert_eq!(refused.code(), "undecodable");
        assert!(
            refused.message().contains("cloudevents-batch+json"),
            "{}",
            refused.message()
        );
    }

    #[test]
    fn an_id_is_made_of_source_and_id_and_known_as_one_from_elsewhere() {
        let of = |source: &str, id: &str| item_of(&[source.as_bytes(), id.as_bytes()]);
        assert_eq!(of("/shop", "17"), of("/shop", "17"));
        assert_ne!(of("/shop", "17"), of("/sho", "p17"));
        assert!(is_from_elsewhere(&of("/shop", "17")));
        assert!(!is_from_elsewhere(&Uuid::now_v7()) && !is_from_elsewhere(&Uuid::nil()));
    }
}
