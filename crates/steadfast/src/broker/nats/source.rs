//! NATS JetStream as a source: a durable pull consumer of a stream.
//!
//! Messages are asked for as many as are handled at once, and none ahead. What is not acknowledged in time comes again, also while
//! somebody still works on it: then its record is there, or is waited for.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::consumer::{AckPolicy, Config, Consumer, pull};
use async_nats::jetstream::message::{AckKind, PublishMessage};
use async_nats::jetstream::{Context, Message};
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use futures_util::StreamExt;
use tokio::time::timeout;

use super::{CONFIRM_LIMIT, CONNECT_LIMIT, Nats, failure};
use crate::broker::header::percent_decoded;
use crate::broker::{Feed, Incoming, Source};
use crate::clock::ReadDuration;
use crate::failure::Failure;

/// How long a message may be worked on before it comes again, unless its consumer says otherwise: as long as a handler may take, and
/// a little more.
const ACK_WAIT: Duration = Duration::from_secs(60);

/// How long the server waits for a message before it says that there is none.
const IDLE: Duration = Duration::from_secs(5);

/// The header of a dead letter that says why it is one.
const WHY: &str = "Steadfast-Why";

/// What stands before a header of a dead letter by which its message told the server something.
const TOLD: &str = "Steadfast-";

/// A durable consumer of the stream.
pub(super) struct Durable {
    name: String,
    /// What it is created for, if it is not there; `None`: it has to be there.
    subject: Option<String>,
    ack_wait: Duration,
}

impl Nats {
    /// The durable pull consumer of the [stream](Self::stream) to consume by, as a [source](Source). It has to be there.
    pub fn consumer(mut self, name: &str) -> Self {
        self.durable = Some(Durable {
            name: name.to_owned(),
            subject: None,
            ack_wait: ACK_WAIT,
        });
        self
    }

    /// Creates that consumer if it is not there, for this subject, as in `"order.>"`. It hands out a message again that is not
    /// acknowledged after a minute.
    pub fn declare_consumer(mut self, name: &str, subject: &str) -> Self {
        self.durable = Some(Durable {
            name: name.to_owned(),
            subject: Some(subject.to_owned()),
            ack_wait: ACK_WAIT,
        });
        self
    }

    /// After how long the consumer that is created hands out a message again that was not acknowledged; a minute by default. Choose
    /// it after the consumer, and longer than a handler may take.
    ///
    /// # Panics
    /// If the text is no duration.
    pub fn ack_wait(mut self, wait: impl ReadDuration) -> Self {
        let wait = wait.read_duration().unwrap_or_else(|error| panic!("{error:?}"));
        if let Some(durable) = &mut self.durable {
            durable.ack_wait = wait;
        }
        self
    }

    /// A subject that copies of messages go to that are given up; their dead letters are in the database. Another stream has to take
    /// it than the one that they come from.
    ///
    /// A copy has the bytes and the headers of the message, `Nats-Msg-Id` among them, and says why it is there (`Steadfast-Why`).
    /// Other headers by which a message tells the server something, as `Nats-Expected-Stream` or `Nats-TTL`, would be obeyed once
    /// more, so they are called `Steadfast-Nats-Expected-Stream` and so on.
    pub fn dead_letter_subject(mut self, subject: &str) -> Self {
        self.dead_letters = Some(subject.to_owned());
        self
    }

    async fn connected(&self) -> Result<Context, Failure> {
        let mut context = self.context.lock().await;
        if context.is_none() {
            let connecting = timeout(CONNECT_LIMIT * 2, self.connect()).await;
            *context = Some(connecting.map_err(|_| away("it does not answer"))?.map_err(away)?);
        }
        match &*context {
            Some(context) if context.client().connection_state() == State::Connected => Ok(context.clone()),
            _ => Err(away("the connection was lost")),
        }
    }

    async fn find_consumer(&self, context: &Context, prefetch: usize) -> Result<Consumer<pull::Config>, Failure> {
        let (Some(stream), Some(durable)) = (&self.stream, &self.durable) else {
            let message =
                "no stream and no consumer of NATS are named; write .stream(\"ORDERS\").consumer(\"warehouse\")";
            return Err(Failure::transient("no_consumer", message));
        };
        let refused = |error: async_nats::Error| {
            let message = format!("NATS has no consumer {} of the stream {stream}", durable.name);
            Failure::transient("no_consumer", message).with_source(error)
        };
        let found = context
            .get_stream(stream)
            .await
            .map_err(|error| refused(error.into()))?;
        let consumer = match &durable.subject {
            None => found.get_consumer(&durable.name).await.map_err(refused)?,
            Some(subject) => {
                let config = pull::Config {
                    durable_name: Some(durable.name.clone()),
                    filter_subject: subject.clone(),
                    ack_policy: AckPolicy::Explicit,
                    ack_wait: durable.ack_wait,
                    // For all processes together; what one of them holds is bounded by what it asks for.
                    max_ack_pending: i64::try_from(prefetch).unwrap_or(i64::MAX).saturating_mul(100),
                    ..pull::Config::default()
                };
                let making = found.get_or_create_consumer(&durable.name, config);
                making.await.map_err(|error| refused(error.into()))?
            }
        };
        // It may be there already, and otherwise.
        match loses(&consumer.cached_info().config) {
            None => Ok(consumer),
            Some(how) => {
                let message = format!(
                    "the consumer {} of the stream {stream} {how}, so messages would be lost; make it anew with --ack explicit and \
                     --max-deliver -1, or name another one",
                    durable.name
                );
                Err(Failure::transient("lossy_consumer", message))
            }
        }
    }

    /// What is given up must not come back as a message.
    async fn check_dead_letters(&self, context: &Context) -> Result<(), Failure> {
        let (Some(stream), Some(subject)) = (&self.stream, &self.dead_letters) else {
            return Ok(());
        };
        // If there is none that takes them, their copies wait until there is.
        match context.stream_by_subject(subject).await {
            Ok(name) if name == *stream => Err(Failure::transient(
                "own_dead_letters",
                format!(
                    "the stream {stream} takes the subject {subject} too, so the dead letters of its messages would come back; have \
                     another stream take them"
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// How a consumer loses messages, if it does: what it does not want acknowledged is gone when it is handed out, and what it hands out
/// only so often is gone then.
pub(super) fn loses(config: &Config) -> Option<String> {
    match config.ack_policy {
        AckPolicy::None => return Some("wants no acknowledgement (ack none)".to_owned()),
        AckPolicy::All => return Some("takes one acknowledgement for all before it (ack all)".to_owned()),
        _ => {}
    }
    let times = config.max_deliver;
    (times > 0).then(|| format!("hands a message out {times} times at the most (max deliver)"))
}

fn away(why: impl Into<String>) -> Failure {
    Failure::transient("away", why)
}

impl Source for Nats {
    type Feed = NatsFeed;

    async fn open(&self, prefetch: usize) -> Result<NatsFeed, Failure> {
        let context = self.connected().await?;
        let finding = timeout(CONFIRM_LIMIT, self.find_consumer(&context, prefetch)).await;
        let consumer = finding.unwrap_or_else(|_| Err(away("it does not answer")))?;
        self.check_dead_letters(&context).await?;
        Ok(NatsFeed {
            context,
            consumer,
            prefetch,
            out: HashMap::new(),
        })
    }

    /// Headers of NATS are percent-encoded, as those of HTTP are.
    fn attributes(&self, message: &Incoming) -> Vec<(String, String)> {
        let attribute = |(name, value): &(String, String)| {
            let short = name.to_ascii_lowercase().strip_prefix("ce-")?.to_owned();
            Some((short, percent_decoded(value).unwrap_or_else(|| value.clone())))
        };
        message.headers().iter().filter_map(attribute).collect()
    }

    fn has_dead_letters(&self) -> bool {
        self.dead_letters.is_some()
    }

    /// A stream has it.
    async fn bury(&self, message: &Incoming, why: &str) -> Result<(), Failure> {
        let Some(subject) = &self.dead_letters else {
            return Ok(());
        };
        let context = self.connected().await?;
        if publish(&context, subject, message, why, true).await? == Taken::AsDuplicate {
            // The stream knows the id, and that may be another message's: this one goes without.
            publish(&context, subject, message, why, false).await?;
        }
        Ok(())
    }

    fn address(&self) -> String {
        let consumer = self.durable.as_ref().map_or("", |durable| &durable.name);
        format!("{} consumer {consumer}", Nats::address(self))
    }
}

/// What a stream says of a dead letter.
#[derive(PartialEq)]
enum Taken {
    AsNew,
    AsDuplicate,
}

async fn publish(
    context: &Context,
    subject: &str,
    message: &Incoming,
    why: &str,
    with_id: bool,
) -> Result<Taken, Failure> {
    let mut headers = HeaderMap::new();
    let mut add = |name: &str, value: &str| {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            headers.append(name, value);
        }
    };
    for (name, value) in message.headers() {
        // What it told the server of its own stream, that one would hold this stream to; it is only told.
        let is_told = name.to_ascii_lowercase().starts_with("nats-");
        let is_id = name.eq_ignore_ascii_case("Nats-Msg-Id") && with_id;
        match is_told && !is_id {
            true => add(&format!("{TOLD}{name}"), value),
            false => add(name, value),
        }
    }
    add(WHY, why);
    let dead = PublishMessage::build().headers(headers).payload(message.body().clone());
    let publishing = async { context.send_publish(subject.to_owned(), dead).await?.await };
    match timeout(CONFIRM_LIMIT, publishing).await {
        Ok(Ok(ack)) if ack.duplicate => Ok(Taken::AsDuplicate),
        Ok(Ok(_)) => Ok(Taken::AsNew),
        Ok(Err(error)) => Err(failure(subject, &error)),
        Err(_) => Err(away("it did not confirm a dead letter")),
    }
}

/// One lane of a consumer of NATS JetStream.
pub struct NatsFeed {
    context: Context,
    consumer: Consumer<pull::Config>,
    /// How many may be here and not acknowledged.
    prefetch: usize,
    /// What was received and is not acknowledged, by the number of its delivery.
    out: HashMap<u64, Message>,
}

impl NatsFeed {
    /// Takes what a pull brings.
    async fn take(&mut self, mut batch: pull::Batch) -> Result<Vec<Incoming>, Failure> {
        let mut messages = Vec::new();
        while let Some(next) = batch.next().await {
            let message = next.map_err(|error| away(error.to_string()))?;
            let info = message.info().map_err(|error| away(error.to_string()))?;
            let receipt = info.consumer_sequence;
            let place = format!("{} {}", info.stream, info.stream_sequence);
            let is_redelivered = info.delivered > 1;
            messages.push(
                incoming(&message)
                    .with_place(place)
                    .redelivered(is_redelivered)
                    .with_receipt(receipt),
            );
            self.out.insert(receipt, message);
        }
        Ok(messages)
    }
}

impl Feed for NatsFeed {
    async fn receive(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        if self.context.client().connection_state() != State::Connected {
            return Err(away("the connection was lost"));
        }
        let max = max.min(self.prefetch.saturating_sub(self.out.len())).max(1);
        let receiving = async {
            let there = self.consumer.fetch().max_messages(max).messages().await;
            let messages = self.take(there.map_err(|error| away(error.to_string()))?).await?;
            if !messages.is_empty() {
                return Ok(messages);
            }
            let next = self.consumer.batch().max_messages(1).expires(IDLE).messages().await;
            self.take(next.map_err(|error| away(error.to_string()))?).await
        };
        let received = timeout(IDLE + CONFIRM_LIMIT, receiving).await;
        received.unwrap_or_else(|_| Err(away("it does not answer")))
    }

    async fn ack(&mut self, receipts: &[u64]) -> Result<(), Failure> {
        for receipt in receipts {
            if let Some(message) = self.out.remove(receipt) {
                message.ack().await.map_err(|error| away(error.to_string()))?;
            }
        }
        self.context
            .client()
            .flush()
            .await
            .map_err(|error| away(error.to_string()))
    }

    async fn close(self) {
        for message in self.out.into_values() {
            // What is not given back comes again by itself, later.
            let _ = message.ack_with(AckKind::Nak(None)).await;
        }
        let _ = self.context.client().flush().await;
    }
}

impl std::fmt::Debug for NatsFeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsFeed")
            .field("out", &self.out.len())
            .finish_non_exhaustive()
    }
}

fn incoming(message: &Message) -> Incoming {
    let mut incoming = Incoming::new(message.payload.clone()).with_event_type(message.subject.to_string());
    let mut headers: Vec<_> = message.headers.iter().flat_map(HeaderMap::iter).collect();
    // They have no order of their own.
    headers.sort_unstable_by_key(|(name, _)| name.to_string());
    for (name, values) in headers {
        for value in values {
            incoming = incoming.with_header(name.to_string(), value.as_str());
        }
    }
    let header = |name: &str| incoming.header(name).map(str::to_owned);
    let (id, content_type) = (header("Nats-Msg-Id"), header("Content-Type"));
    let correlation_id = header("Correlation-Id").or_else(|| header("X-Correlation-Id"));
    if let Some(id) = id {
        incoming = incoming.with_message_id(id);
    }
    if let Some(id) = correlation_id {
        incoming = incoming.with_correlation_id(id);
    }
    if let Some(content_type) = content_type {
        incoming = incoming.with_content_type(content_type);
    }
    incoming
}
