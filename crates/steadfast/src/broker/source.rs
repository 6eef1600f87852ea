//! Where messages come from, and what one looks like before anybody has read it.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Where messages of others come from: a queue, a stream, whatever hands them out and wants to know when it may forget them.
///
/// What it must hold, whatever it is:
///
/// - **What was not acknowledged comes again**, to this process or to another one, also after both have died. A message that is
///   handed out once and then gone is lost whenever a process is killed.
/// - **What comes again says so** ([`Incoming::redelivered`]), as far as the other side knows. It may be what has killed the
///   process before.
/// - **Nothing is changed.** The bytes of the body and the headers are those that were sent, also if they make no sense.
/// - **Away is nobody's fault.** If the other side cannot be reached, [`open`](Self::open) and [`Feed::receive`] fail, and are
///   asked again after a while.
///
/// That a message acts once, however often it comes, is no business of its own: that is the inbox's
/// ([`Steadfast::source`](crate::Steadfast::source)). Try yours by `steadfast::testing::try_source` (feature `testing`).
pub trait Source: Send + Sync + 'static {
    /// One way to the messages.
    type Feed: Feed;

    /// Begins to receive: connects, and creates or checks what messages come from. It is called once for each lane, and again
    /// whenever a feed has failed. `prefetch` is how many messages may be on their way and not acknowledged.
    fn open(&self, prefetch: usize) -> impl Future<Output = Result<Self::Feed, Failure>> + Send;

    /// The attributes of CloudEvents that stand in the headers of a message, by their names and as they were before they became
    /// headers. By default those that begin with `ce-`, `ce_`, `cloudEvents_` or `cloudEvents:`.
    fn attributes(&self, message: &Incoming) -> Vec<(String, String)> {
        attributes(message)
    }

    /// Whether messages that are given up go to dead letters of the other side too: [`bury`](Self::bury).
    fn has_dead_letters(&self) -> bool {
        false
    }

    /// Hands a message that is given up to the dead letters of the other side, and waits until they have it. It is dead in the
    /// database by then, and acknowledged: nobody waits for this, and a message may be handed over twice. What fails is tried again
    /// for as long as it takes, unless the failure is [definitive](Failure::definitive): then there is no such letter, and a dead
    /// delivery says why.
    fn bury(&self, _message: &Incoming, _why: &str) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// The other side, for logs: without passwords.
    fn address(&self) -> String {
        "a source".to_owned()
    }
}

/// The attributes of CloudEvents in the headers of a message, by what their names begin with.
pub(crate) fn attributes(message: &Incoming) -> Vec<(String, String)> {
    let attribute = |(name, value): &(String, String)| {
        let lower = name.to_ascii_lowercase();
        let prefixes = ["ce-", "ce_", "cloudevents_", "cloudevents:"];
        let short = prefixes.iter().find_map(|prefix| lower.strip_prefix(prefix))?;
        Some((short.to_owned(), value.clone()))
    };
    message.headers().iter().filter_map(attribute).collect()
}

/// One way to the messages of a [`Source`].
pub trait Feed: Send + 'static {
    /// Waits until there are messages, and takes those that are there already, `max` at the most. An empty list is none, and it
    /// is asked again. It may be dropped at any time, and loses none.
    fn receive(&mut self, max: usize) -> impl Future<Output = Result<Vec<Incoming>, Failure>> + Send;

    /// Takes messages that are here already, `max` at the most, and does not wait for any: it is called while others are handled, so
    /// that they are at hand afterwards. By default there are none, and all are [received](Self::receive) in their turn.
    fn receive_ahead(&mut self, _max: usize) -> impl Future<Output = Result<Vec<Incoming>, Failure>> + Send {
        async { Ok(Vec::new()) }
    }

    /// Says that these need not come again, by their [receipts](Incoming::with_receipt).
    fn ack(&mut self, receipts: &[u64]) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Ends it: what was received and not acknowledged may go to others at once.
    fn close(self) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        async {}
    }
}

/// The code of a failure that comes again for ever: the next message cannot even be received, until somebody takes it away.
pub(crate) const UNPARSABLE: &str = "unparsable";

/// Headers that let somebody in: they are not shown to everybody who looks at a message.
const CREDENTIALS: [&str; 5] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "x-api-key",
];

/// A message as it came, before anybody has read it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incoming {
    #[serde(skip_serializing_if = "Option::is_none")]
    message_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    event_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<String>,
    headers: Vec<(String, String)>,
    #[serde(skip)]
    body: Bytes,
    #[serde(skip)]
    is_redelivered: bool,
    #[serde(skip)]
    receipt: u64,
}

impl Incoming {
    /// A message with this body.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self {
            body: body.into(),
            ..Self::default()
        }
    }

    /// The id that its producer gave it, where the other side has a place for one.
    pub fn with_message_id(mut self, id: impl Into<String>) -> Self {
        self.message_id = Some(id.into());
        self
    }

    /// What it is all about.
    pub fn with_correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// What its body is.
    pub fn with_content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// The type of its event, where the other side has a place for one; a routing key or a subject otherwise.
    pub fn with_event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// A header. What is no text is written as JSON.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Where the other side has it, if that is a place of this message alone: a stream and a number.
    pub fn with_place(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }

    /// It may have been handed out before.
    pub fn redelivered(mut self, is_redelivered: bool) -> Self {
        self.is_redelivered = is_redelivered;
        self
    }

    /// By what its feed knows it when it is [acknowledged](Feed::ack).
    pub fn with_receipt(mut self, receipt: u64) -> Self {
        self.receipt = receipt;
        self
    }

    /// The id that its producer gave it.
    pub fn message_id(&self) -> Option<&str> {
        self.message_id.as_deref()
    }

    /// What it is all about.
    pub fn correlation_id(&self) -> Option<&str> {
        self.correlation_id.as_deref()
    }

    /// What its body is.
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// The type of its event, or how it was routed.
    pub fn event_type(&self) -> Option<&str> {
        self.event_type.as_deref()
    }

    /// Where the other side has it.
    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// Its headers, in their order.
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// The first header of this name, whatever the case of its letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        let is_meant = |(other, _): &&(String, String)| other.eq_ignore_ascii_case(name);
        self.headers.iter().find(is_meant).map(|(_, value)| &**value)
    }

    /// Its bytes.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Whether it may have been handed out before.
    pub fn is_redelivered(&self) -> bool {
        self.is_redelivered
    }

    /// By what its feed knows it.
    pub fn receipt(&self) -> u64 {
        self.receipt
    }

    /// The same without what headers say that let somebody in.
    pub(crate) fn masked(mut self, mask: &str) -> Self {
        for (name, value) in &mut self.headers {
            if CREDENTIALS.iter().any(|secret| name.eq_ignore_ascii_case(secret)) {
                mask.clone_into(value);
            }
        }
        self
    }

    /// The same with these bytes.
    pub(crate) fn with_body(mut self, body: Bytes) -> Self {
        self.body = body;
        self
    }
}

impl fmt::Debug for Incoming {
    /// Without the body, and without the values of headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("message_id", &self.message_id)
            .field("event_type", &self.event_type)
            .field("length", &self.body.len())
            .finish_non_exhaustive()
    }
}
