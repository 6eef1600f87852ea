//! NATS JetStream: a message counts as delivered when its stream has it.
//!
//! The client brings its connection back by itself. What was handed to it and not confirmed may still arrive, so it is sent
//! again, with the same `Nats-Msg-Id`: the stream drops what it has seen within its window for duplicates.

mod doctor;
#[cfg(feature = "push")]
mod messenger;
mod monitor;
mod source;

#[cfg(feature = "push")]
pub use messenger::{NatsEar, NatsPubSub};
pub use source::NatsFeed;

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{ContextBuilder, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context, ErrorCode, stream};
use async_nats::{Client, ConnectError, ConnectOptions, HeaderMap, HeaderName, ServerAddr};
use tokio::sync::Mutex;

use super::away::Away;
use super::header::{percent_decoded, percent_encoded};
use super::plaintext::is_this_machine;
use super::{BROKER_BATCH_MAX, Confirmation, Sink};
use crate::error::{Code, Error, Result};
use crate::failure::{Failure, FailureClass};
use crate::outbox::EventCx;

/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long a stream may take to confirm.
const CONFIRM_LIMIT: Duration = Duration::from_secs(10);

type SubjectOf = dyn Fn(&EventCx) -> String + Send + Sync;

/// A [sink](Sink) to a stream of NATS JetStream, and a [source](super::Source) of what a durable consumer of one hands out.
///
/// ```no_run
/// # async fn example(sf: &steadfast::Steadfast<steadfast::sqlx::Sqlite>) -> steadfast::Result<()> {
/// use steadfast::Nats;
///
/// let nats = Nats::at("tls://nats.example.org")?.stream("ORDERS");
/// sf.sink("orders.nats").events("order.*").deliver_to(nats);
/// # Ok(())
/// # }
/// ```
///
/// The subject of a message is the type of its event. Its headers are `Nats-Msg-Id` and the attributes of CloudEvents (`ce-id`,
/// `ce-type`, ..), percent-encoded where they are not printable ASCII; its payload is the event.
///
/// As a source it consumes by a durable pull consumer of the stream:
///
/// ```no_run
/// # async fn example(sf: &steadfast::Steadfast<steadfast::sqlx::Sqlite>) -> steadfast::Result<()> {
/// # use steadfast::Nats;
/// let nats = Nats::at("tls://nats.example.org")?.stream("ORDERS").declare_consumer("warehouse", "order.>");
/// sf.source("orders.nats").events("order.*").consume_from(nats);
/// # Ok(())
/// # }
/// ```
///
/// A message is known by its attributes of CloudEvents, or else by `Nats-Msg-Id`, and its event by the subject then.
///
/// What is confirmed is in the stream. Whether it survives a crash of the machine is up to the server: by default it syncs its
/// files every two minutes, and trusts in replicas until then.
pub struct Nats {
    server: ServerAddr,
    /// User and password, or a token alone.
    credentials: Option<(String, Option<String>)>,
    stream: Option<String>,
    declares: Option<Vec<String>>,
    durable: Option<source::Durable>,
    dead_letters: Option<String>,
    subject_of: Arc<SubjectOf>,
    needs_tls: bool,
    /// For the doctor.
    monitor: Option<monitor::Monitor>,
    context: Mutex<Option<Context>>,
    away: Away,
}

impl Nats {
    /// A server: `nats://host:4222`, or `tls://host:4222`, with user and password or a token before an `@` if it wants them.
    /// Nothing is connected before something is sent; on another machine than this one, only by TLS.
    ///
    /// # Errors
    /// SF303 if it is no such address.
    pub fn at(server: &str) -> Result<Self> {
        let nats = Self::at_plaintext(server)?;
        Ok(Self {
            needs_tls: nats.needs_tls || !is_this_machine(nats.server.host()),
            ..nats
        })
    }

    /// A server, as [`at`](Self::at) has it, that events and passwords may go to as plain text.
    ///
    /// # Errors
    /// SF303 if it is no such address.
    pub fn at_plaintext(server: &str) -> Result<Self> {
        let parsed = server.parse().ok();
        let with_host = parsed.filter(|server: &ServerAddr| !server.host().is_empty());
        let unusable = || {
            let message = "the address of NATS is not usable; write nats://host:4222 or tls://host:4222";
            Error::new(Code::ConfigurationInvalid, message)
        };
        let server = with_host.ok_or_else(unusable)?;
        let decoded = |text| percent_decoded(text).ok_or_else(unusable);
        let password = server.password().map(decoded).transpose()?;
        let user = server.username().map(decoded).transpose()?;
        Ok(Self {
            needs_tls: server.tls_required(),
            credentials: user.map(|user| (user, password)),
            server,
            stream: None,
            declares: None,
            durable: None,
            dead_letters: None,
            subject_of: Arc::new(|event| event.event_type().to_owned()),
            monitor: None,
            context: Mutex::new(None),
            away: Away::default(),
        })
    }

    /// The stream that must have each message. Another one that takes the subject does not count.
    pub fn stream(mut self, name: &str) -> Self {
        self.stream = Some(name.to_owned());
        self
    }

    /// Creates the stream for these subjects if it is not there; otherwise it is somebody else's to create, and is left as it is.
    pub fn declare_stream(mut self, name: &str, subjects: &[&str]) -> Self {
        self.declares = Some(subjects.iter().map(|subject| (*subject).to_owned()).collect());
        self.stream(name)
    }

    /// Which subject an event has; by default its type.
    pub fn subject(mut self, subject_of: impl Fn(&EventCx) -> String + Send + Sync + 'static) -> Self {
        self.subject_of = Arc::new(subject_of);
        self
    }

    /// Where the server answers questions about itself, such as `http://127.0.0.1:8222` (`http_port` in its settings):
    /// [`examine`](Self::examine) asks there how often it syncs its files, which it tells no client.
    ///
    /// # Errors
    /// SF303 if it is no such address.
    pub fn monitor(mut self, url: &str) -> Result<Self> {
        self.monitor = Some(monitor::Monitor::read(url)?);
        Ok(self)
    }

    /// The server, without user and password.
    fn address(&self) -> String {
        format!("nats://{}:{}", self.server.host(), self.server.port())
    }

    /// What to publish on; if the server cannot be reached, how long to leave it alone.
    async fn context(&self) -> Result<Context, Duration> {
        let mut context = self.context.lock().await;
        let missed = |why: &str| self.away.has_missed(&self.address(), why);
        if context.is_none() {
            *context = Some(self.connect().await.map_err(|why| missed(&why))?);
        }
        match &*context {
            Some(context) if context.client().connection_state() == State::Connected => Ok(context.clone()),
            _ => Err(missed("the connection was lost")),
        }
    }

    fn options(&self) -> ConnectOptions {
        let options = ConnectOptions::new()
            .name("steadfast")
            .connection_timeout(CONNECT_LIMIT)
            .require_tls(self.needs_tls);
        // The client does not look for them in the address.
        match &self.credentials {
            Some((user, Some(password))) => options.user_and_password(user.clone(), password.clone()),
            Some((token, None)) => options.token(token.clone()),
            None => options,
        }
    }

    async fn open(&self) -> Result<Client, ConnectError> {
        self.options().connect(self.server.clone()).await
    }

    async fn connect(&self) -> Result<Context, String> {
        let client = self.open().await.map_err(|error| error.kind().to_string())?;
        let context = ContextBuilder::new().timeout(CONFIRM_LIMIT).build(client);
        if let (Some(name), Some(subjects)) = (&self.stream, &self.declares) {
            let config = stream::Config {
                name: name.clone(),
                subjects: subjects.clone(),
                ..stream::Config::default()
            };
            let made = context.get_or_create_stream(config).await;
            made.map_err(|error| format!("the stream {name} cannot be created: {error}"))?;
        }
        Ok(context)
    }

    fn message(&self, event: &EventCx) -> PublishMessage {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("Content-Type"), "application/json");
        for (name, value) in event.headers() {
            headers.insert(HeaderName::from_static(name), percent_encoded(value).into_owned());
        }
        let message = PublishMessage::build()
            .headers(headers)
            .message_id(event.id().to_string())
            .payload(event.message().payload.clone());
        match &self.stream {
            Some(stream) => message.expected_stream(stream),
            None => message,
        }
    }
}

impl Sink for Nats {
    async fn send(&self, batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
        let context = match self.context().await {
            Ok(context) => context,
            Err(pause) => return batch.iter().map(|_| Err(Failure::snooze(pause))).collect(),
        };
        let mut sent = Vec::with_capacity(batch.len());
        for event in batch {
            let subject = (self.subject_of)(event);
            let sending = context.send_publish(subject.clone(), self.message(event));
            sent.push((subject, sending.await));
        }
        let (mut pause, mut misses_stream) = (None, false);
        let mut verdicts = Vec::with_capacity(batch.len());
        for (subject, sent) in sent {
            let confirmed = match sent {
                Ok(confirmation) => confirmation.await,
                Err(error) => Err(error),
            };
            verdicts.push(match confirmed {
                Ok(ack) => Ok(Confirmation::new(format!("{} {}", ack.stream, ack.sequence))),
                Err(error) if has_no_room(&error) => {
                    let missed = || self.away.has_missed(&self.address(), &error.to_string());
                    Err(Failure::snooze(*pause.get_or_insert_with(missed)))
                }
                Err(error) => {
                    misses_stream |= error.kind() == PublishErrorKind::StreamNotFound;
                    Err(failure(&subject, &error))
                }
            });
        }
        if pause.is_none() {
            self.away.is_back(&self.address());
        }
        if misses_stream && self.declares.is_some() {
            // It was there, and is gone: whoever connects anew declares it again.
            *self.context.lock().await = None;
        }
        verdicts
    }

    fn batch_max(&self) -> usize {
        BROKER_BATCH_MAX
    }
}

/// What JetStream says of a message that it refuses.
fn refused_as(error: &PublishError) -> Option<ErrorCode> {
    let said = error.source()?.downcast_ref::<jetstream::Error>()?;
    Some(said.error_code())
}

/// Whether it is the stream or the server that takes nothing now, whatever the message is.
fn has_no_room(error: &PublishError) -> bool {
    matches!(
        refused_as(error),
        Some(
            // The stream is full, or its disk is.
            ErrorCode::STREAM_STORE_FAILED
                | ErrorCode::INSUFFICIENT_RESOURCES
                | ErrorCode::STORAGE_RESOURCES_EXCEEDED
                | ErrorCode::MEMORY_RESOURCES_EXCEEDED
                | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
                | ErrorCode::CLUSTER_NOT_AVAILABLE
        )
    )
}

fn failure(subject: &str, error: &PublishError) -> Failure {
    match error.kind() {
        PublishErrorKind::StreamNotFound => Failure::transient(
            "no_stream",
            format!("no stream of NATS takes the subject {subject}; create one that does, or let the sink declare it"),
        ),
        PublishErrorKind::MaxPayloadExceeded => Failure::definitive(
            FailureClass::Validation,
            "too_large",
            format!("NATS takes no message that large ({error}); raise its max_payload, or publish less"),
        ),
        _ if refused_as(error) == Some(ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM) => Failure::definitive(
            FailureClass::Validation,
            "too_large",
            format!("the stream takes no message that large ({error}); raise its max_msg_size, or publish less"),
        ),
        PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe => {
            Failure::unknown("unconfirmed", format!("the stream did not confirm it: {error}"))
        }
        _ => Failure::transient("refused", format!("NATS refuses it: {error}")),
    }
}

impl fmt::Debug for Nats {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats")
            .field("server", &self.address())
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_nats_and_keeps_its_password_to_itself() {
        for wrong in ["", "amqp://127.0.0.1", "http://127.0.0.1:4222", "nats://"] {
            let refused = Nats::at(wrong).expect_err(wrong);
            assert_eq!(refused.code(), Code::ConfigurationInvalid, "{wrong}");
        }
        let needs_tls = |nats: Result<Nats>| nats.expect("an address").needs_tls;
        assert!(needs_tls(Nats::at("nats://nats.example.org")) && needs_tls(Nats::at("tls://127.0.0.1")));
        assert!(!needs_tls(Nats::at("nats://[::1]")) && !needs_tls(Nats::at_plaintext("nats://nats.example.org")));
        let nats = Nats::at("nats://ann:secret@127.0.0.1:4222").expect("an address");
        let shown = format!("{nats:?}");
        assert!(
            shown.contains("nats://127.0.0.1:4222") && !shown.contains("secret"),
            "{shown}"
        );
    }
}
