//! RabbitMQ as a source: one queue, and a channel for each lane.
//!
//! The broker hands out up to a prefetch ahead and hears of a whole batch at once. A channel that is closed, by whomever, gives back
//! what was not acknowledged on it.

use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Connection, Consumer};
use tokio::time::timeout;

use super::{CONFIRM_LIMIT, CONNECT_LIMIT, PERSISTENT, Queue, RabbitMq, Unsent, short, soft};
use crate::broker::{Feed, Incoming, Source};
use crate::failure::Failure;

/// What begins the names of headers that are properties of AMQP, which has no other place for them here.
const PROPERTY: &str = "amqp-";

/// The header of a dead letter that says why it is one.
const WHY: &str = "x-steadfast-why";

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

    /// A queue that messages go to that are given up, beside the dead letters of the database. It is created if it is not there,
    /// durable and replicated.
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
            let words = format!("RabbitMQ does not let anybody consume from {:?}", queue.as_str());
            Failure::transient("refused", words).with_source(error)
        };
        let channel = connection.create_channel().await.map_err(refused)?;
        if self.queues.iter().any(|declared| declared.name == queue) {
            self.declare(&channel).await.map_err(refused)?;
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
        Ok(RabbitMqFeed { channel, consumer })
    }

    /// Creates the queue of dead letters, on a channel of its own: one that is there and is of another kind makes the broker close it.
    async fn declare_dead_letters(&self, queue: &ShortString) -> Result<(), Failure> {
        let mut link = self.link.lock().await;
        let connection = self.connection(&mut link).await.map_err(away)?;
        let channel = connection
            .create_channel()
            .await
            .map_err(|error| away(error.to_string()))?;
        match super::declare_queue(&channel, queue, false).await {
            Err(error) if soft(&error).is_none() => Err(away(error.to_string())),
            _ => Ok(()),
        }
    }
}

fn away(why: impl Into<String>) -> Failure {
    Failure::transient("away", why)
}

impl Source for RabbitMq {
    type Feed = RabbitMqFeed;

    async fn open(&self, prefetch: usize) -> Result<RabbitMqFeed, Failure> {
        let mut link = self.link.lock().await;
        let connection = self.connection(&mut link).await.map_err(away)?;
        let opening = timeout(CONNECT_LIMIT, self.open_feed(connection, prefetch)).await;
        opening.unwrap_or_else(|_| Err(away("it does not answer")))
    }

    fn has_dead_letters(&self) -> bool {
        self.dead_letters.is_some()
    }

    /// The broker has confirmed it, and a queue has it.
    async fn bury(&self, message: &Incoming, why: &str) -> Result<(), Failure> {
        let Some(queue) = &self.dead_letters else {
            return Ok(());
        };
        self.declare_dead_letters(queue).await?;
        let channel = match self.channel().await {
            Ok(channel) => channel,
            Err(Unsent::Away(why)) => return Err(away(why)),
            Err(Unsent::Refused(error)) => return Err(away(error.to_string())),
        };
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
                self.put_back(channel);
                Ok(())
            }
            Ok(Ok(_)) => Err(away(format!(
                "the queue {:?} did not take a dead letter",
                queue.as_str()
            ))),
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
    channel: Channel,
    consumer: Consumer,
}

impl Feed for RabbitMqFeed {
    async fn receive(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        let mut next = self.consumer.next().await;
        let mut messages = Vec::new();
        loop {
            match next {
                Some(Ok(delivery)) => messages.push(incoming(delivery)),
                // What was taken out just now comes again with the rest.
                Some(Err(error)) => return Err(away(error.to_string())),
                None => return Err(away("the queue is gone, or the connection")),
            }
            if messages.len() >= max {
                return Ok(messages);
            }
            match self.consumer.next().now_or_never() {
                Some(more) => next = more,
                None => return Ok(messages),
            }
        }
    }

    /// All of a channel up to the last of these: nothing before it is left.
    async fn ack(&mut self, receipts: &[u64]) -> Result<(), Failure> {
        let Some(last) = receipts.iter().max() else {
            return Ok(());
        };
        let acking = self.channel.basic_ack(*last, BasicAckOptions { multiple: true });
        acking.await.map_err(|error| away(error.to_string()))
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
    for (name, value) in properties.headers().iter().flat_map(|headers| headers.inner()) {
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

/// A value as text; what is none, as JSON.
fn header(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => match std::str::from_utf8(text.as_bytes()) {
            Ok(text) => text.to_owned(),
            Err(_) => serde_json::to_string(text.as_bytes()).unwrap_or_default(),
        },
        AMQPValue::ShortString(text) => text.to_string(),
        other => serde_json::to_string(other).unwrap_or_default(),
    }
}

/// The properties of a dead letter: those of the message, and why it is one.
fn properties(message: &Incoming, why: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    let others = message.headers().iter().filter(|(name, _)| !name.starts_with(PROPERTY));
    for (name, value) in others.map(|(name, value)| (&**name, &**value)).chain([(WHY, why)]) {
        if let Ok(name) = ShortString::try_new(name) {
            headers.insert(name, AMQPValue::LongString(LongString::from(value.to_owned())));
        }
    }
    let fitting = |text: Option<&str>| text.and_then(|text| ShortString::try_new(text).ok());
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_headers(headers);
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
    properties
}
