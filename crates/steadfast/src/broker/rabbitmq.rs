//! RabbitMQ: a message counts as delivered when the broker has confirmed it and has not sent it back.
//!
//! Two traps are on the way. The broker confirms what no queue takes, and sends it back before (`mandatory`). And the client hands
//! what was sent back to whoever is confirmed next, not to whom it belongs. So a batch has a channel to itself, waits for all of
//! its confirmations, and only then looks which ids have come back.
//!
//! The connection is ours to bring back: when it is gone, the next batch opens another one. The way in is in [`source`].

mod doctor;
mod source;

pub use source::RabbitMqFeed;

use doctor::Difference;
use source::Letters;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ErrorKind, ExchangeKind};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::away::Away;
use super::{BROKER_BATCH_MAX, Confirmation, Sink, plaintext};
use crate::error::{Code, Error, Result};
use crate::failure::{Failure, FailureClass, FailureKind};
use crate::outbox::EventCx;

/// How long connecting may take, and how long opening a channel.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long a connection may take altogether. The client's own limit is for the socket: a side that takes the call and says nothing
/// would be waited for until the process ends.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// How long messages are sent one by one, where one of a batch has made the broker close its channel. What is not sent by then goes
/// with the next batch; those that were must not lose what was said of them.
const ALONE_LIMIT: Duration = Duration::from_secs(10);

/// How long the broker may take to confirm a batch.
const CONFIRM_LIMIT: Duration = Duration::from_secs(10);

/// How often both sides say that they are there. A connection that is silent for two of them is gone.
const HEARTBEAT_SECONDS: u16 = 10;

/// The argument of a queue that says how often a message is handed out before it is dropped.
const DELIVERY_LIMIT: &str = "x-delivery-limit";

/// What the broker says to a connection that publishes while it raises an alarm.
const NO_ROOM: &str = "the broker is short of memory or disk, and takes nothing";

/// Delivery mode: the broker writes it to its disk, if the queue is durable.
const PERSISTENT: u8 = 2;

type KeyOf = dyn Fn(&EventCx) -> String + Send + Sync;

type Verdict = Result<Confirmation, Failure>;

/// A [sink](Sink) to an exchange of RabbitMQ, and a [source](super::Source) of what a queue has.
///
/// ```no_run
/// # async fn example(sf: &steadfast::Steadfast<steadfast::sqlx::Sqlite>) -> steadfast::Result<()> {
/// use steadfast::RabbitMq;
///
/// let rabbitmq = RabbitMq::at("amqps://shop:secret@rabbit.example.org/%2f")?.exchange("events");
/// sf.sink("orders.rabbitmq").events("order.*").deliver_to(rabbitmq);
/// # Ok(())
/// # }
/// ```
///
/// The routing key of a message is the type of its event. It is persistent, and its properties are `message_id` (the id of the
/// event), `correlation_id`, `content_type`, `timestamp` and `type`; its headers are the attributes of CloudEvents
/// (`cloudEvents_id`, `cloudEvents_type`, ..); its body is the event.
///
/// A message that no queue takes is not delivered: it fails as `unroutable` and is sent again, until somebody binds a queue for
/// it. RabbitMQ knows no message again: one that is sent again is there twice, with the same `message_id`. What is confirmed
/// survives a restart of the broker if its queue is durable, and the loss of a machine if the queue is replicated.
///
/// As a source it consumes from the [queue](Self::queue) that is named, or from the first that is declared:
///
/// ```no_run
/// # async fn example(sf: &steadfast::Steadfast<steadfast::sqlx::Sqlite>) -> steadfast::Result<()> {
/// # use steadfast::RabbitMq;
/// let rabbitmq = RabbitMq::at("amqps://warehouse:secret@rabbit.example.org/%2f")?.exchange("events");
/// let rabbitmq = rabbitmq.declare_queue("warehouse.orders", &["order.#"]).dead_letter_queue("warehouse.dead");
/// sf.source("orders.rabbitmq").events("order.*").consume_from(rabbitmq);
/// # Ok(())
/// # }
/// ```
///
/// A message is known by its attributes of CloudEvents, or else by `message_id`, and its event by `type` or the routing key.
///
/// The client, lapin, writes what no queue takes to the log, with its payload, at the level `warn`. Where that is too much, turn
/// the target `lapin` off.
pub struct RabbitMq {
    uri: AMQPUri,
    exchange: ShortString,
    declares: bool,
    queues: Vec<Queue>,
    /// The queue that messages come from, if it is not one of these.
    consumes: Option<ShortString>,
    dead_letters: Option<ShortString>,
    key_of: Arc<KeyOf>,
    link: Mutex<Link>,
    idle: Idle,
    letters: Letters,
    away: Away,
}

/// Channels that nobody uses and on which nothing is unconfirmed: no more than there are batches at once.
#[derive(Default)]
struct Idle(std::sync::Mutex<Vec<Channel>>);

impl Idle {
    fn take(&self) -> Option<Channel> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of a lost connection are lost with it.
        idle.retain(|channel| channel.status().connected());
        idle.pop()
    }

    fn put_back(&self, channel: Channel) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(channel);
    }
}

/// A queue that is declared, and the routing keys that it is bound to.
struct Queue {
    name: ShortString,
    keys: Vec<ShortString>,
    is_classic: bool,
}

/// The connection.
#[derive(Default)]
enum Link {
    #[default]
    Down,
    /// On its own: whoever waits for it may go away, and a broker that says nothing is not called again and again.
    Connecting(JoinHandle<Result<Connection, String>>),
    Up(Box<Connection>),
}

impl Link {
    fn is_up(&self) -> bool {
        matches!(self, Self::Up(connection) if connection.status().connected())
    }
}

/// Why nothing was sent.
enum Unsent {
    /// The broker cannot be reached, or takes nothing now.
    Away(String),
    /// There is no exchange for it there.
    Refused(lapin::Error),
}

/// What has become of a message.
enum Fate {
    Acked,
    Nacked,
    /// It may have arrived.
    Unconfirmed(String),
    /// The broker has closed the channel because of this or another message.
    ChannelClosed(lapin::Error),
    /// It was not sent: the channel was not open any more.
    Unsent(lapin::Error),
    /// It was not sent, because it cannot be.
    Unusable(Failure),
}

impl RabbitMq {
    /// A broker: `amqps://user:password@host:5671/vhost`; the vhost `/` is written `%2f`. Nothing is connected before something
    /// is sent.
    ///
    /// # Errors
    /// SF303 if it is no such address, or if it is `amqp://` to another machine: that would be plain text
    /// ([`at_plaintext`](Self::at_plaintext)).
    pub fn at(broker: &str) -> Result<Self> {
        let rabbitmq = Self::at_plaintext(broker)?;
        if rabbitmq.uri.scheme == AMQPScheme::AMQP {
            let instead = "write amqps://, or RabbitMq::at_plaintext if nobody can listen on the way";
            plaintext::check(&rabbitmq.uri.authority.host, instead)?;
        }
        Ok(rabbitmq)
    }

    /// A broker, as [`at`](Self::at) has it, that events and passwords may go to as plain text.
    ///
    /// # Errors
    /// SF303 if it is no such address.
    pub fn at_plaintext(broker: &str) -> Result<Self> {
        let unusable = || {
            let message = "the address of RabbitMQ is not usable; write amqps://user:password@host:5671/vhost, with a name or an \
                           IPv4 address as host";
            Error::new(Code::ConfigurationInvalid, message)
        };
        let mut uri: AMQPUri = broker.parse().map_err(|_| unusable())?;
        // The client would take this machine where the host is missing, or is an IPv6 address.
        let host = &uri.authority.host;
        if host.is_empty() || !broker.contains(host.as_str()) || broker.contains('[') {
            return Err(unusable());
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
        let limit_ms = CONNECT_LIMIT.as_millis().try_into().unwrap_or(u64::MAX);
        uri.query.connection_timeout.get_or_insert(limit_ms);
        Ok(Self {
            uri,
            exchange: ShortString::default(),
            declares: false,
            queues: Vec::new(),
            consumes: None,
            dead_letters: None,
            key_of: Arc::new(|event| event.event_type().to_owned()),
            link: Mutex::default(),
            idle: Idle::default(),
            letters: Letters::default(),
            away: Away::default(),
        })
    }

    /// The exchange that messages are sent to. By default the default one: the routing key is the name of a queue.
    ///
    /// # Panics
    /// With SF303 if the name has more than 255 bytes, which AMQP does not allow.
    pub fn exchange(mut self, name: &str) -> Self {
        self.exchange = short("an exchange", name);
        self
    }

    /// Creates the exchange, a durable one of the kind `topic`, if it is not there; otherwise it is somebody else's to create.
    pub fn declare_exchange(mut self) -> Self {
        self.declares = true;
        self
    }

    /// Creates a queue if it is not there, and binds it to the exchange for these routing keys, as in `"order.#"`; it may be said
    /// more than once. It is durable and replicated (`x-queue-type: quorum`): a queue of this name and another type fails each
    /// message as `refused`. Usually a queue belongs to those who read it, and they create it; this is for queues that must be
    /// there before anybody reads.
    ///
    /// # Panics
    /// With SF303 if a name or a key has more than 255 bytes, which AMQP does not allow.
    pub fn declare_queue(mut self, name: &str, keys: &[&str]) -> Self {
        self.queues.push(Queue {
            name: short("a queue", name),
            keys: keys.iter().map(|key| short("a routing key", key)).collect(),
            is_classic: false,
        });
        self
    }

    /// Which routing key an event has; by default its type.
    pub fn routing_key(mut self, key_of: impl Fn(&EventCx) -> String + Send + Sync + 'static) -> Self {
        self.key_of = Arc::new(key_of);
        self
    }

    /// The broker, without user and password.
    fn address(&self) -> String {
        let AMQPUri {
            scheme,
            authority,
            vhost,
            ..
        } = &self.uri;
        format!("{scheme}://{}:{} (vhost {vhost})", authority.host, authority.port)
    }

    /// A channel for one batch alone.
    async fn channel(&self) -> Result<Channel, Unsent> {
        let mut link = self.link.lock().await;
        let connection = self.connection(&mut link).await.map_err(Unsent::Away)?;
        if connection.status().blocked() {
            return Err(Unsent::Away(NO_ROOM.into()));
        }
        if let Some(channel) = self.idle.take() {
            return Ok(channel);
        }
        let opening = timeout(CONNECT_LIMIT, self.open(connection)).await;
        opening.unwrap_or_else(|_| Err(Unsent::Away("it does not answer".into())))
    }

    /// The connection; if there is none, why not.
    async fn connection<'l>(&self, link: &'l mut Link) -> Result<&'l Connection, String> {
        if matches!(link, Link::Up(_)) && !link.is_up() {
            *link = Link::Down;
        }
        if let Link::Down = link {
            let properties = ConnectionProperties::default().with_connection_name("steadfast".into());
            let connecting = timeout(HANDSHAKE_LIMIT, Connection::connect_uri(self.uri.clone(), properties));
            *link = Link::Connecting(tokio::spawn(async {
                let connected = connecting.await.map_err(|_| "it does not answer".to_owned())?;
                connected.map_err(|error| error.to_string())
            }));
        }
        if let Link::Connecting(connecting) = link {
            let connected = timeout(CONNECT_LIMIT, connecting).await;
            let connected = connected.map_err(|_| "it does not answer".to_owned())?;
            *link = Link::Down;
            let connected = connected.map_err(|panic| panic.to_string())?;
            *link = Link::Up(Box::new(connected?));
        }
        match link {
            Link::Up(connection) => Ok(connection),
            Link::Down | Link::Connecting(_) => Err("it is not connected".to_owned()),
        }
    }

    /// Opens a channel, on which the broker confirms, and sees that the exchange and the queues are there.
    async fn open(&self, connection: &Connection) -> Result<Channel, Unsent> {
        let away = |error: lapin::Error| Unsent::Away(error.to_string());
        let channel = connection.create_channel().await.map_err(away)?;
        let confirms = channel.confirm_select(ConfirmSelectOptions::default());
        confirms.await.map_err(away)?;
        self.declare(connection, &channel)
            .await
            .map_err(|error| match soft(&error) {
                Some(_) => Unsent::Refused(error),
                None => away(error),
            })?;
        Ok(channel)
    }

    async fn declare(&self, connection: &Connection, channel: &Channel) -> lapin::Result<()> {
        let (exchange, nothing) = (&self.exchange, FieldTable::default);
        if !exchange.as_str().is_empty() {
            let options = ExchangeDeclareOptions {
                passive: !self.declares,
                durable: true,
                ..ExchangeDeclareOptions::default()
            };
            let declaring = channel.exchange_declare(exchange.clone(), ExchangeKind::Topic, options, nothing());
            declaring.await?;
        }
        for Queue { name, keys, is_classic } in &self.queues {
            declare_queue(connection, name, *is_classic, None).await?;
            for key in keys {
                let options = QueueBindOptions::default();
                let binding = channel.queue_bind(name.clone(), exchange.clone(), key.clone(), options, nothing());
                binding.await?;
            }
        }
        Ok(())
    }

    /// Publishes a batch, waits for its confirmations, and says which ids have come back, and why.
    async fn publish(&self, channel: &Channel, batch: &[EventCx]) -> (Vec<Fate>, HashMap<String, String>) {
        let deadline = Instant::now() + CONFIRM_LIMIT;
        let mut sent = Vec::with_capacity(batch.len());
        for event in batch {
            sent.push(self.publish_one(channel, event, deadline).await);
        }
        let mut fates = Vec::with_capacity(batch.len());
        let mut returned = HashMap::new();
        for sent in sent {
            let confirmed = match sent {
                Ok(confirm) => timeout_at(deadline, confirm).await,
                Err(fate) => {
                    fates.push(fate);
                    continue;
                }
            };
            let (fate, message) = match confirmed {
                Ok(Ok(lapin::Confirmation::Ack(message))) => (Fate::Acked, message),
                Ok(Ok(lapin::Confirmation::Nack(message))) => (Fate::Nacked, message),
                Ok(Ok(lapin::Confirmation::NotRequested)) => {
                    (Fate::Unconfirmed("the broker confirms nothing".into()), None)
                }
                Ok(Err(error)) => (Fate::of(error), None),
                Err(_) => (
                    Fate::Unconfirmed(format!("nothing came within {CONFIRM_LIMIT:?}")),
                    None,
                ),
            };
            fates.push(fate);
            if let Some(message) = message
                && let Some(id) = message.delivery.properties.message_id()
            {
                returned.insert(id.to_string(), message.reply_text.to_string());
            }
        }
        (fates, returned)
    }

    async fn publish_one(
        &self,
        channel: &Channel,
        event: &EventCx,
        deadline: Instant,
    ) -> Result<lapin::PublisherConfirm, Fate> {
        let key = ShortString::try_new((self.key_of)(event)).map_err(|error| {
            let message = format!("its routing key is too long for AMQP ({error}); choose a shorter one");
            let class = FailureClass::Validation;
            Fate::Unusable(Failure::definitive(class, "routing_key_too_long", message))
        })?;
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let (exchange, properties) = (self.exchange.clone(), properties(event));
        let publishing = channel.basic_publish(exchange, key, options, event.payload(), properties);
        match timeout_at(deadline, publishing).await {
            Ok(published) => published.map_err(Fate::Unsent),
            Err(_) => Err(Fate::Unconfirmed("the broker reads nothing".into())),
        }
    }

    /// Sends messages on one channel. Where the broker closes it because of one of them, nobody knows which: then each of those
    /// that it said nothing of is sent alone.
    async fn send_together(&self, batch: &[EventCx]) -> Vec<Verdict> {
        let channel = match self.channel().await {
            Ok(channel) => channel,
            Err(unsent) => return self.unsent(&unsent, batch.len()),
        };
        self.away.is_back(&self.address());
        let (fates, returned) = self.publish(&channel, batch).await;
        let is_settled = |fate: &Fate| matches!(fate, Fate::Acked | Fate::Nacked | Fate::Unusable(_));
        // What no queue takes may take one that is declared, and is gone: another channel declares it anew.
        let misses_queue = !self.queues.is_empty() && !returned.is_empty();
        if fates.iter().all(is_settled) && !misses_queue {
            self.idle.put_back(channel);
        }
        let is_refusal = |fate: &Fate| matches!(fate, Fate::ChannelClosed(_));
        let was_refused = fates.iter().any(is_refusal);
        let alone_until = Instant::now() + ALONE_LIMIT;
        let mut pause = None;
        let mut verdicts = Vec::with_capacity(batch.len());
        for (event, fate) in batch.iter().zip(fates) {
            let why_returned = match returned.is_empty() {
                true => None,
                false => returned.get(&event.id().to_string()),
            };
            verdicts.push(match (fate, why_returned) {
                (Fate::Acked | Fate::Nacked, Some(why)) => Err(self.unroutable(event, why)),
                (Fate::Acked, None) => Ok(Confirmation::silent()),
                (Fate::Nacked, None) => Err(Failure::transient("refused", "RabbitMQ could not take it (nack)")),
                (Fate::Unusable(failure), _) => Err(failure),
                (Fate::Unconfirmed(why), _) if !was_refused => {
                    let message = format!("RabbitMQ did not confirm it: {why}");
                    Err(Failure::unknown("unconfirmed", message))
                }
                (Fate::ChannelClosed(error), _) if batch.len() == 1 => Err(self.refusal(&error)),
                // Of what was sent while the channel was being closed, the client does not always know that it was.
                (Fate::ChannelClosed(_) | Fate::Unconfirmed(_), _) if Instant::now() >= alone_until => {
                    let message = "the broker closed the channel because of another message, and there was no time to send it alone";
                    Err(Failure::unknown("unconfirmed", message))
                }
                (Fate::ChannelClosed(_) | Fate::Unconfirmed(_), _) => self.send_again(event).await,
                (Fate::Unsent(_), _) if was_refused && Instant::now() >= alone_until => {
                    Err(Failure::snooze(Duration::from_secs(1)))
                }
                (Fate::Unsent(_), _) if was_refused => self.send_alone(event).await,
                (Fate::Unsent(error), _) => {
                    let missed = || self.away.has_missed(&self.address(), &error.to_string());
                    Err(Failure::snooze(*pause.get_or_insert_with(missed)))
                }
            });
        }
        verdicts
    }

    /// Sends a message alone that was sent before on a channel that the broker has closed because of another one. It may have taken
    /// it all the same: that is kept with the delivery, for whoever wonders why it is there twice.
    async fn send_again(&self, event: &EventCx) -> Verdict {
        const TWICE: &str = "it was sent before, on a channel that the broker closed because of another message, and may be there twice";
        match self.send_alone(event).await {
            Ok(_) => Ok(Confirmation::new(TWICE)),
            Err(failure) if failure.kind() == FailureKind::Snooze => Err(Failure::unknown("unconfirmed", TWICE)),
            refused => refused,
        }
    }

    async fn send_alone(&self, event: &EventCx) -> Verdict {
        let mut verdicts = Box::pin(self.send_together(std::slice::from_ref(event))).await;
        verdicts.pop().unwrap_or_else(|| Ok(Confirmation::silent()))
    }

    /// Nothing of a batch was sent.
    fn unsent(&self, unsent: &Unsent, count: usize) -> Vec<Verdict> {
        let failure: Box<dyn Fn() -> Failure> = match unsent {
            Unsent::Refused(error) => Box::new(|| self.refusal(error)),
            Unsent::Away(why) => {
                let pause = self.away.has_missed(&self.address(), why);
                Box::new(move || Failure::snooze(pause))
            }
        };
        (0..count).map(|_| Err(failure())).collect()
    }

    fn unroutable(&self, event: &EventCx, why: &str) -> Failure {
        let (key, exchange) = ((self.key_of)(event), &self.exchange);
        let message = format!(
            "no queue takes the routing key {key:?} at the exchange {:?} ({why}); bind one that does",
            exchange.as_str()
        );
        Failure::transient("unroutable", message)
    }

    /// Why the broker has closed a channel.
    fn refusal(&self, error: &lapin::Error) -> Failure {
        let exchange = self.exchange.as_str();
        match soft(error) {
            Some(AMQPSoftError::NOTFOUND) => Failure::transient(
                "no_such_exchange",
                format!(
                    "RabbitMQ has no exchange {exchange:?}; declare it there, or let the sink do it (declare_exchange)"
                ),
            ),
            Some(AMQPSoftError::CONTENTTOOLARGE) => too_large(error),
            Some(AMQPSoftError::PRECONDITIONFAILED) if error.to_string().contains("message size") => too_large(error),
            _ => Failure::transient(
                "refused",
                format!("RabbitMQ refuses it at the exchange {exchange:?}: {error}"),
            ),
        }
    }
}

impl Sink for RabbitMq {
    async fn send(&self, batch: &[EventCx]) -> Vec<Verdict> {
        self.send_together(batch).await
    }

    fn batch_max(&self) -> usize {
        BROKER_BATCH_MAX
    }
}

impl Fate {
    fn of(error: lapin::Error) -> Self {
        match soft(&error) {
            Some(_) => Self::ChannelClosed(error),
            None => Self::Unconfirmed(error.to_string()),
        }
    }
}

/// Creates a durable queue, unless it is there. How often the broker hands a message out before it drops it is settled when a queue is
/// created: one that is there keeps its limit, whatever that is.
///
/// Each question has a channel to itself, which the broker closes if it says no.
async fn declare_queue(
    connection: &Connection,
    name: &ShortString,
    is_classic: bool,
    delivery_limit: Option<i32>,
) -> lapin::Result<()> {
    let declare = async |delivery_limit: Option<AMQPValue>| {
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let mut arguments = FieldTable::default();
        if !is_classic {
            arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        }
        if let Some(limit) = delivery_limit.filter(|_| !is_classic) {
            arguments.insert(DELIVERY_LIMIT.into(), limit);
        }
        let channel = connection.create_channel().await?;
        channel.queue_declare(name.clone(), options, arguments).await.map(drop)
    };
    let Err(error) = declare(delivery_limit.map(AMQPValue::LongInt)).await else {
        return Ok(());
    };
    match Difference::of(&error) {
        Some(difference) if difference.property == DELIVERY_LIMIT => {
            let current = difference.current;
            declare(current.and_then(|current| current.as_argument())).await
        }
        _ => Err(error),
    }
}

/// A name as AMQP has it.
fn short(what: &str, name: &str) -> ShortString {
    ShortString::try_new(name).unwrap_or_else(|_| {
        let message = format!("{what} of RabbitMQ cannot be called {name:?}; a name has at most 255 bytes");
        panic!("{:?}", Error::new(Code::ConfigurationInvalid, message));
    })
}

/// What an error of a channel is; not of the connection.
fn soft(error: &lapin::Error) -> Option<&AMQPSoftError> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => match error.kind() {
            AMQPErrorKind::Soft(soft) => Some(soft),
            AMQPErrorKind::Hard(_) => None,
        },
        _ => None,
    }
}

fn too_large(error: &lapin::Error) -> Failure {
    let message =
        format!("RabbitMQ takes no message that large ({error}); raise its max_message_size, or publish less");
    Failure::definitive(FailureClass::Validation, "too_large", message)
}

fn properties(event: &EventCx) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in event.attributes() {
        let value = LongString::from(value.into_owned());
        headers.insert(format!("cloudEvents_{name}").into(), AMQPValue::LongString(value));
    }
    let seconds = event.time().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_content_type("application/json".into())
        .with_message_id(event.id().to_string().into())
        .with_type(event.event_type().into())
        .with_timestamp(seconds)
        .with_headers(headers);
    match event.correlation_id() {
        Some(id) => properties.with_correlation_id(id.into()),
        None => properties,
    }
}

impl fmt::Debug for RabbitMq {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMq")
            .field("broker", &self.address())
            .field("exchange", &self.exchange.as_str())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_rabbitmq_and_keeps_its_password_to_itself() {
        for wrong in [
            "",
            "nats://127.0.0.1",
            "http://127.0.0.1",
            "amqp://",
            "amqp:///%2f",
            "amqp://[::1]:5672",
        ] {
            let refused = RabbitMq::at(wrong).expect_err(wrong);
            assert_eq!(refused.code(), Code::ConfigurationInvalid, "{wrong}");
        }
        let rabbitmq = RabbitMq::at("amqp://ann:secret@127.0.0.1:5672/shop").expect("an address");
        let shown = format!("{rabbitmq:?}");
        assert!(
            shown.contains("amqp://127.0.0.1:5672 (vhost shop)") && !shown.contains("secret"),
            "{shown}"
        );
    }

    #[test]
    fn plain_text_goes_elsewhere_only_if_somebody_says_so() {
        let refused = RabbitMq::at("amqp://ann:secret@rabbit.example.org").expect_err("plain text");
        assert_eq!(refused.code(), Code::ConfigurationInvalid);
        let said = refused.to_string();
        assert!(
            said.contains("rabbit.example.org") && said.contains("amqps://"),
            "{said}"
        );
        assert!(!said.contains("secret"), "{said}");
        RabbitMq::at("amqps://ann:secret@rabbit.example.org").expect("encrypted");
        RabbitMq::at_plaintext("amqp://ann:secret@rabbit.example.org").expect("said so");
    }
}
