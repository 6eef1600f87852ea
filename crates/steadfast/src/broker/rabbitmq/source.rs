//! RabbitMQ as a source: one queue, and a channel for each lane.
//!
//! The broker hands out up to a prefetch ahead and hears of a whole batch at once. A channel that is closed, by whomever, gives back
//! what was not acknowledged on it.
//!
//! Dead letters go by a connection of their own. While the broker is short of memory or disk, it reads nothing more from a connection
//! that publishes: acknowledgements on it would not be heard either.

use std::time::{Duration, UNIX_EPOCH};

use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::protocol::AMQPSoftError;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Connection, Consumer, ErrorKind};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::{CONFIRM_LIMIT, CONNECT_LIMIT, Idle, Link, NO_ROOM, PERSISTENT, Queue, RabbitMq, short, soft, too_large};
use crate::broker::source::{self, UNPARSABLE};
use crate::broker::{Feed, Incoming, Source};
use crate::clock::rfc3339;
use crate::failure::{Failure, FailureClass};

/// How often a queue that we create hands a message out before the broker drops it: never. Without it, RabbitMQ drops a message since
/// 4.0 that twenty processes have died with, and nobody hears of that. Since 4.0 it is written as -1 too; versions before take that
/// for less than one, and drop what comes back for the first time.
const DELIVERIES_MAX: i32 = i32::MAX;

/// What a frame of AMQP has room for beside the headers of a message: its other properties, which are 255 bytes each.
const PROPERTIES_LENGTH_MAX: usize = 4 * 1024;

/// What begins the names of headers that are properties of AMQP, which has no other place for them here.
const PROPERTY: &str = "amqp-";

/// Those of them that a dead letter has as properties again.
const KEPT_PROPERTIES: [&str; 5] = ["content-encoding", "reply-to", "app-id", "priority", "timestamp"];

/// Headers by which a message tells the broker where else it should go. It would obey those of a letter too, so there they are called
/// otherwise.
const OBEYED: [(&str, &str); 2] = [("CC", "amqp-cc"), ("BCC", "amqp-bcc")];

/// Headers that a quorum queue adds when it hands a message out again, and that are others each time: they are no part of the message,
/// which is the same whenever it comes.
const OF_DELIVERY: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

/// The header of a dead letter that says why it is one.
const WHY: &str = "x-steadfast-why";

/// The way of dead letters to the broker.
#[derive(Default)]
pub(super) struct Letters {
    line: Mutex<LettersLine>,
    idle: Idle,
}

#[derive(Default)]
struct LettersLine {
    link: Link,
    /// Whether their queue was declared over this connection.
    is_declared: bool,
}

impl RabbitMq {
    /// The queue to consume from, as a [source](Source). It has to be there.
    ///
    /// # Panics
    /// With SF303 if the name has more than 255 bytes, which AMQP does not allow.
    pub fn queue(mut self, name: &str) -> Self {
        self.consumes = Some(short("a queue", name));
        self
    }

    /// As [`declare_queue`](Self::declare_queue), but the queue is on one node of the broker and no other (`classic`). It is durable.
    ///
    /// # Panics
    /// With SF303 if a name or a key has more than 255 bytes, which AMQP does not allow.
    pub fn declare_classic_queue(mut self, name: &str, keys: &[&str]) -> Self {
        self.queues.push(Queue {
            name: short("a queue", name),
            keys: keys.iter().map(|key| short("a routing key", key)).collect(),
            is_classic: true,
        });
        self
    }

    /// A queue that copies of messages go to that are given up; their dead letters are in the database. It is created if it is not
    /// there, durable and replicated.
    ///
    /// A copy has the bytes, the headers and the properties of the message, and says why it is there (`x-steadfast-why`). What a copy
    /// cannot have stands in its headers: where the message was sent to (`amqp-exchange`, `amqp-routing-key`), who sent it
    /// (`amqp-user-id`, which the broker compares with who sends the copy), when it would have been dropped (`amqp-expiration`, which
    /// would drop the copy) and where else it went (`amqp-cc`, where the copy would go too).
    ///
    /// # Panics
    /// With SF303 if the name has more than 255 bytes, which AMQP does not allow.
    pub fn dead_letter_queue(mut self, name: &str) -> Self {
        self.dead_letters = Some(short("a queue", name));
        self
    }

    /// The queue to consume from: the one that was named, or else the first that is declared.
    fn consumed(&self) -> Result<ShortString, Failure> {
        let declared = || self.queues.first().map(|queue| queue.name.clone());
        self.consumes.clone().or_else(declared).ok_or_else(|| {
            let message = "no queue of RabbitMQ is named to consume from; write .queue(\"warehouse.orders\")";
            Failure::transient("no_queue", message)
        })
    }

    async fn open_feed(&self, connection: &Connection, prefetch: usize) -> Result<RabbitMqFeed, Failure> {
        let queue = self.consumed()?;
        let refused = |error: lapin::Error| {
            if is_unparsable(&error) {
                return unparsable(&queue, error);
            }
            let words = format!("RabbitMQ does not let anybody consume from {:?}", queue.as_str());
            Failure::transient("refused", words).with_source(error)
        };
        if self.dead_letters.as_ref() == Some(&queue) {
            let words = format!(
                "the queue {:?} cannot have the dead letters of its own messages, which would come back; name another one",
                queue.as_str()
            );
            return Err(Failure::transient("own_dead_letters", words));
        }
        let channel = connection.create_channel().await.map_err(refused)?;
        if let Some(declared) = self.queues.iter().find(|declared| declared.name == queue) {
            // First, so that it is this one that makes it.
            let making = super::declare_queue(connection, &queue, declared.is_classic, Some(DELIVERIES_MAX));
            making.await.map_err(refused)?;
            self.declare(connection, &channel).await.map_err(refused)?;
        } else {
            let options = QueueDeclareOptions {
                passive: true,
                ..QueueDeclareOptions::default()
            };
            let looking = channel.queue_declare(queue.clone(), options, FieldTable::default());
            looking.await.map_err(refused)?;
        }
        let prefetch = u16::try_from(prefetch).unwrap_or(u16::MAX);
        channel
            .basic_qos(prefetch, BasicQosOptions::default())
            .await
            .map_err(refused)?;
        let consuming = channel.basic_consume(
            queue.clone(),
            ShortString::default(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let consumer = consuming.await.map_err(refused)?;
        Ok(RabbitMqFeed {
            queue,
            channel,
            consumer,
        })
    }

    /// A channel for one dead letter, and how long a frame on it may be. Their queue is created once for each connection; one that is
    /// there and is of another kind is as good.
    async fn letters_channel(&self, queue: &ShortString) -> Result<(Channel, usize), Failure> {
        let mut line = self.letters.line.lock().await;
        let LettersLine { link, is_declared } = &mut *line;
        *is_declared &= link.is_up();
        let connection = self.connection(link).await.map_err(away)?;
        if connection.status().blocked() {
            return Err(away(NO_ROOM));
        }
        let opening = async {
            if !*is_declared {
                match super::declare_queue(connection, queue, false, None).await {
                    Err(error) if soft(&error).is_none() => return Err(error),
                    _ => *is_declared = true,
                }
            }
            if let Some(channel) = self.letters.idle.take() {
                return Ok(channel);
            }
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        };
        let opened = timeout(CONNECT_LIMIT, opening).await;
        let channel = opened
            .map_err(|_| away("it does not answer"))?
            .map_err(|error| away(error.to_string()))?;
        let frame_max = match connection.configuration().frame_max() {
            0 => usize::MAX,
            length => usize::try_from(length).unwrap_or(usize::MAX),
        };
        Ok((channel, frame_max))
    }
}

fn away(why: impl Into<String>) -> Failure {
    Failure::transient("away", why)
}

/// Whether the client has given the connection up because it does not understand what came.
fn is_unparsable(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ParsingError(_))
}

/// AMQP says that names and properties are UTF-8, the broker does not look, and the client ends the connection: what is not acknowledged
/// comes again, and ends the next one.
fn unparsable(queue: &ShortString, error: lapin::Error) -> Failure {
    let words = format!(
        "the client library (lapin) cannot parse a message of the queue {:?}, as one whose properties are no UTF-8; take it out of the \
         queue with another client, or purge the queue",
        queue.as_str()
    );
    Failure::transient(UNPARSABLE, words).with_source(error)
}

impl Source for RabbitMq {
    type Feed = RabbitMqFeed;

    async fn open(&self, prefetch: usize) -> Result<RabbitMqFeed, Failure> {
        let mut link = self.link.lock().await;
        let connection = self.connection(&mut link).await.map_err(away)?;
        let opening = timeout(CONNECT_LIMIT, self.open_feed(connection, prefetch)).await;
        opening.unwrap_or_else(|_| Err(away("it does not answer")))
    }

    /// Attributes may be numbers, truth values and moments of AMQP too.
    fn attributes(&self, message: &Incoming) -> Vec<(String, String)> {
        let plain = |(name, value): (String, String)| (name, attribute(&value).unwrap_or(value));
        source::attributes(message).into_iter().map(plain).collect()
    }

    fn has_dead_letters(&self) -> bool {
        self.dead_letters.is_some()
    }

    /// The broker has confirmed it, and a queue has it.
    async fn bury(&self, message: &Incoming, why: &str) -> Result<(), Failure> {
        let Some(queue) = &self.dead_letters else {
            return Ok(());
        };
        let (channel, frame_max) = self.letters_channel(queue).await?;
        let length: usize = message
            .headers()
            .iter()
            .map(|(name, value)| name.len() + length_of(value) + 8)
            .sum();
        // The broker would close the connection, and everybody who uses it would have to begin anew.
        if length.saturating_add(PROPERTIES_LENGTH_MAX) > frame_max {
            self.letters.idle.put_back(channel);
            let words = format!("its headers have {length} bytes, and with why it is dead RabbitMQ does not take them");
            return Err(Failure::definitive(FailureClass::Validation, "too_large", words));
        }
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let burying = async {
            let properties = properties(message, why);
            let exchange = ShortString::default();
            let sent = channel.basic_publish(exchange, queue.clone(), options, message.body(), properties);
            sent.await?.await
        };
        match timeout(CONFIRM_LIMIT, burying).await {
            Ok(Ok(lapin::Confirmation::Ack(None))) => {
                self.letters.idle.put_back(channel);
                Ok(())
            }
            Ok(Ok(_)) => {
                // It may be gone, and is declared anew.
                self.letters.line.lock().await.is_declared = false;
                Err(away(format!(
                    "the queue {:?} did not take a dead letter",
                    queue.as_str()
                )))
            }
            Ok(Err(error)) if matches!(soft(&error), Some(AMQPSoftError::PRECONDITIONFAILED)) => Err(too_large(&error)),
            Ok(Err(error)) => Err(away(error.to_string())),
            Err(_) => Err(away("it did not confirm a dead letter")),
        }
    }

    fn address(&self) -> String {
        let queue = self.consumed().map(|queue| queue.to_string()).unwrap_or_default();
        format!("{} queue {queue}", RabbitMq::address(self))
    }
}

/// One channel to a queue of RabbitMQ.
#[derive(Debug)]
pub struct RabbitMqFeed {
    queue: ShortString,
    channel: Channel,
    consumer: Consumer,
}

impl RabbitMqFeed {
    /// Why nothing comes or goes any more. What has ended the connection is told to who receives, behind what came before it.
    fn lost(&mut self, error: &lapin::Error) -> Failure {
        let told = std::iter::from_fn(|| self.consumer.next().now_or_never().flatten());
        let mut why = std::iter::once(error.clone()).chain(told.filter_map(Result::err));
        match why.find(is_unparsable) {
            Some(error) => unparsable(&self.queue, error),
            None => away(error.to_string()),
        }
    }

    /// This one, and those behind it that are here.
    fn take(
        &mut self,
        mut next: Option<Option<lapin::Result<Delivery>>>,
        max: usize,
    ) -> Result<Vec<Incoming>, Failure> {
        let mut messages = Vec::new();
        while let Some(delivery) = next {
            match delivery {
                Some(Ok(delivery)) => messages.push(incoming(delivery)),
                // What was taken out just now comes again with the rest.
                Some(Err(error)) => return Err(self.lost(&error)),
                None => return Err(away("the queue is gone, or the connection")),
            }
            if messages.len() >= max {
                break;
            }
            next = self.consumer.next().now_or_never();
        }
        Ok(messages)
    }
}

impl Feed for RabbitMqFeed {
    async fn receive(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        let first = self.consumer.next().await;
        self.take(Some(first), max)
    }

    async fn receive_ahead(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        let first = self.consumer.next().now_or_never();
        self.take(first, max)
    }

    /// All of a channel up to the last of these: nothing before it is left.
    async fn ack(&mut self, receipts: &[u64]) -> Result<(), Failure> {
        let Some(last) = receipts.iter().max() else {
            return Ok(());
        };
        let acking = self.channel.basic_ack(*last, BasicAckOptions { multiple: true });
        let acked = acking.await;
        acked.map_err(|error| self.lost(&error))
    }

    async fn close(self) {
        // What is not closed is closed with its connection.
        let _ = self.channel.close(200, "it stops".into()).await;
    }
}

fn incoming(delivery: Delivery) -> Incoming {
    let properties = &delivery.properties;
    let text = |text: &Option<ShortString>| text.as_ref().map(ShortString::to_string);
    let event_type = text(properties.kind()).unwrap_or_else(|| delivery.routing_key.to_string());
    let mut message = Incoming::new(delivery.data)
        .with_event_type(event_type)
        .redelivered(delivery.redelivered)
        .with_receipt(delivery.delivery_tag);
    if let Some(id) = text(properties.message_id()) {
        message = message.with_message_id(id);
    }
    if let Some(id) = text(properties.correlation_id()) {
        message = message.with_correlation_id(id);
    }
    if let Some(content_type) = text(properties.content_type()) {
        message = message.with_content_type(content_type);
    }
    let headers = properties.headers().iter().flat_map(|headers| headers.inner());
    for (name, value) in headers.filter(|(name, _)| !OF_DELIVERY.contains(&name.as_str())) {
        message = message.with_header(name.as_str(), header(value));
    }
    let others = [
        (
            "exchange",
            Some(delivery.exchange.to_string()).filter(|name| !name.is_empty()),
        ),
        ("routing-key", Some(delivery.routing_key.to_string())),
        ("reply-to", text(properties.reply_to())),
        ("expiration", text(properties.expiration())),
        ("timestamp", properties.timestamp().map(|at| at.to_string())),
        ("priority", properties.priority().map(|priority| priority.to_string())),
        ("content-encoding", text(properties.content_encoding())),
        ("user-id", text(properties.user_id())),
        ("app-id", text(properties.app_id())),
    ];
    for (name, value) in others {
        if let Some(value) = value {
            message = message.with_header(format!("{PROPERTY}{name}"), value);
        }
    }
    message
}

/// A value as text. What is none is written as JSON, with its type, and so is a text that could be taken for that.
fn header(value: &AMQPValue) -> String {
    let text = match value {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok(),
        AMQPValue::ShortString(text) => Some(text.as_str()),
        _ => None,
    };
    let text = text.filter(|text| typed(text).is_none()).map(str::to_owned);
    text.unwrap_or_else(|| serde_json::to_string(value).unwrap_or_default())
}

/// What [`header`] has written as JSON.
fn typed(text: &str) -> Option<AMQPValue> {
    match text.starts_with(['{', '"']) {
        true => serde_json::from_str(text).ok(),
        false => None,
    }
}

/// A value of AMQP as CloudEvents write it, if [`header`] has written it otherwise.
fn attribute(text: &str) -> Option<String> {
    Some(match typed(text)? {
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(number) => number.to_string(),
        AMQPValue::ShortShortUInt(number) => number.to_string(),
        AMQPValue::ShortInt(number) => number.to_string(),
        AMQPValue::ShortUInt(number) => number.to_string(),
        AMQPValue::LongInt(number) => number.to_string(),
        AMQPValue::LongUInt(number) => number.to_string(),
        AMQPValue::LongLongInt(number) => number.to_string(),
        AMQPValue::Timestamp(seconds) => rfc3339(UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?),
        _ => return None,
    })
}

/// The properties of a dead letter: those of the message, and why it is one.
fn properties(message: &Incoming, why: &str) -> BasicProperties {
    let fitting = |text: Option<&str>| text.and_then(|text| ShortString::try_new(text).ok());
    let property = |name: &str| message.header(&format!("{PROPERTY}{name}"));
    let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
    if let Some(id) = fitting(message.message_id()) {
        properties = properties.with_message_id(id);
    }
    if let Some(id) = fitting(message.correlation_id()) {
        properties = properties.with_correlation_id(id);
    }
    if let Some(content_type) = fitting(message.content_type()) {
        properties = properties.with_content_type(content_type);
    }
    if let Some(event_type) = fitting(message.event_type()) {
        properties = properties.with_type(event_type);
    }
    if let Some(encoding) = fitting(property("content-encoding")) {
        properties = properties.with_content_encoding(encoding);
    }
    if let Some(reply_to) = fitting(property("reply-to")) {
        properties = properties.with_reply_to(reply_to);
    }
    if let Some(app_id) = fitting(property("app-id")) {
        properties = properties.with_app_id(app_id);
    }
    if let Some(priority) = property("priority").and_then(|priority| priority.parse().ok()) {
        properties = properties.with_priority(priority);
    }
    if let Some(timestamp) = property("timestamp").and_then(|timestamp| timestamp.parse().ok()) {
        properties = properties.with_timestamp(timestamp);
    }
    let mut headers = FieldTable::default();
    let is_property = |name: &str| {
        KEPT_PROPERTIES
            .iter()
            .any(|kept| name.strip_prefix(PROPERTY) == Some(kept))
    };
    for (name, value) in message.headers().iter().filter(|(name, _)| !is_property(name)) {
        let obeyed = OBEYED.iter().find(|(obeyed, _)| obeyed == name);
        let name = obeyed.map_or(&**name, |(_, told)| *told);
        if let Ok(name) = ShortString::try_new(name) {
            headers.insert(name, value_of(value));
        }
    }
    headers.insert(WHY.into(), AMQPValue::LongString(LongString::from(why.to_owned())));
    properties.with_headers(headers)
}

/// A value as it came.
fn value_of(text: &str) -> AMQPValue {
    typed(text).unwrap_or_else(|| AMQPValue::LongString(LongString::from(text.to_owned())))
}

/// How many bytes a value has at the most, where it is sent.
fn length_of(text: &str) -> usize {
    match typed(text) {
        Some(AMQPValue::LongString(bytes)) => bytes.len(),
        _ => text.len(),
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::{ByteArray, FieldArray};

    use super::*;

    #[test]
    fn attributes_may_be_numbers_and_moments() {
        let values = [
            ("id", AMQPValue::LongLongInt(17), "17"),
            ("dataversion", AMQPValue::LongInt(2), "2"),
            ("priority", AMQPValue::ShortShortUInt(7), "7"),
            ("test", AMQPValue::Boolean(true), "true"),
            ("time", AMQPValue::Timestamp(1_767_225_600), "2026-01-01T00:00:00.000Z"),
            ("type", AMQPValue::LongString("order.placed".into()), "order.placed"),
        ];
        let mut message = Incoming::new("{}");
        for (name, value, _) in &values {
            message = message.with_header(format!("cloudEvents_{name}"), header(value));
        }
        let rabbitmq = RabbitMq::at("amqp://127.0.0.1").expect("an address");
        let expected = values.map(|(name, _, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(rabbitmq.attributes(&message), expected);
    }

    #[test]
    fn a_value_of_a_header_is_the_same_after_it_was_text() {
        let bytes = || AMQPValue::LongString(LongString::from(&b"\xff\x00 no text"[..]));
        let mut table = FieldTable::default();
        table.insert("bytes".into(), bytes());
        let values = [
            AMQPValue::LongString("all of them".into()),
            AMQPValue::LongString("".into()),
            AMQPValue::LongString("{\"a\": \"b\"}".into()),
            AMQPValue::LongString("[1, 2]".into()),
            AMQPValue::LongString("{\"LongInt\":3}".into()),
            AMQPValue::LongString("\"Void\"".into()),
            bytes(),
            AMQPValue::LongInt(3),
            AMQPValue::Boolean(true),
            AMQPValue::Timestamp(1_700_000_000),
            AMQPValue::Void,
            AMQPValue::ByteArray(ByteArray::from(&b"\xff"[..])),
            AMQPValue::FieldArray(FieldArray::from(vec![bytes(), AMQPValue::Void])),
            AMQPValue::FieldTable(table),
        ];
        for value in values {
            assert_eq!(value_of(&header(&value)), value, "{}", header(&value));
        }
        assert_eq!(header(&AMQPValue::LongString("{\"a\": 1}".into())), "{\"a\": 1}");
        assert_eq!(length_of(&header(&bytes())), 10);
    }
}
