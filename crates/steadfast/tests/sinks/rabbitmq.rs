//! RabbitMQ, the real broker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use steadfast::testing::{Arrived, Harness, SinkTrial, TestDatabase, eventually, try_sink};
use steadfast::{
    Backoff, Confirmation, DeliveryState, EventCx, Failure, Jitter, MessageId, RabbitMq, RetryPolicy, Sink,
};

use super::line::Line;
use super::order::{Placed, all_are_delivered, look, publish, publish_all};

fn broker() -> String {
    let url = std::env::var("TEST_RABBITMQ_URL");
    url.expect("TEST_RABBITMQ_URL says where RabbitMQ is; `cargo xtask test` brings one")
}

/// Host and port of the broker.
fn host() -> String {
    host_of(&broker()).to_owned()
}

fn host_of(broker: &str) -> &str {
    let after = broker.split_once('@').expect("user and password").1;
    after.split('/').next().unwrap()
}

/// An exchange and a queue of its own, bound to `order.#` and `sink.#`.
pub(super) struct Exchange {
    name: String,
    broker: String,
    channel: Channel,
    _connection: Connection,
    got: Mutex<Vec<Got>>,
}

/// A message, as somebody else sees it.
#[derive(Clone)]
pub(super) struct Got {
    routing_key: String,
    properties: lapin::BasicProperties,
    payload: Vec<u8>,
}

impl From<Delivery> for Got {
    fn from(delivery: Delivery) -> Self {
        Self {
            routing_key: delivery.routing_key.to_string(),
            properties: delivery.properties,
            payload: delivery.data,
        }
    }
}

impl Got {
    pub(super) fn id(&self) -> String {
        self.properties.message_id().as_ref().unwrap().to_string()
    }

    fn header(&self, name: &str) -> Option<String> {
        match self.properties.headers().as_ref()?.inner().get(name)? {
            AMQPValue::LongString(text) => Some(text.to_string()),
            other => panic!("{name} is {other:?}"),
        }
    }
}

impl Exchange {
    async fn create() -> Self {
        let exchange = Self::unmade().await;
        exchange.declare().await;
        exchange.bind("order.#").await;
        exchange.bind("sink.#").await;
        exchange
    }

    /// With a queue that survives its broker, at this address.
    pub(super) async fn create_durable_at(broker: String) -> Self {
        let exchange = Self::find(broker, format!("t{}", uuid::Uuid::now_v7().simple())).await;
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        exchange.declare_queue(options).await;
        exchange.declare().await;
        exchange.bind("order.#").await;
        exchange
    }

    /// With a queue that is bound to nothing, and no exchange.
    async fn unmade() -> Self {
        let exchange = Self::find(broker(), format!("t{}", uuid::Uuid::now_v7().simple())).await;
        // Not durable: then the broker confirms many with one word, and the client mixes up what came back.
        exchange.declare_queue(QueueDeclareOptions::default()).await;
        exchange
    }

    async fn find(broker: String, name: String) -> Self {
        let connecting = Connection::connect(&broker, ConnectionProperties::default());
        let connection = connecting.await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        Self {
            name,
            broker,
            channel,
            _connection: connection,
            got: Mutex::default(),
        }
    }

    /// The same exchange, over a connection that nobody has lost.
    pub(super) async fn again(&self) -> Self {
        Self::find(self.broker.clone(), self.name.clone()).await
    }

    async fn declare_queue(&self, options: QueueDeclareOptions) {
        let name = self.name.as_str().into();
        let declared = self.channel.queue_declare(name, options, FieldTable::default());
        declared.await.unwrap();
    }

    async fn declare(&self) {
        let options = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let declared = self.channel.exchange_declare(
            self.name.as_str().into(),
            ExchangeKind::Topic,
            options,
            FieldTable::default(),
        );
        declared.await.unwrap();
    }

    async fn bind(&self, key: &str) {
        let name = || self.name.as_str().into();
        let options = QueueBindOptions::default();
        let bound = self
            .channel
            .queue_bind(name(), name(), key.into(), options, FieldTable::default());
        bound.await.unwrap();
    }

    /// A sink to it, over this address.
    fn sink_at(&self, address: impl std::fmt::Display) -> RabbitMq {
        let broker = self.broker.replace(host_of(&self.broker), &address.to_string());
        RabbitMq::at(&broker).unwrap().exchange(&self.name)
    }

    /// Everything that the queue has got so far.
    pub(super) async fn messages(&self) -> Vec<Got> {
        loop {
            let getting = self
                .channel
                .basic_get(self.name.as_str().into(), BasicGetOptions::default());
            let Some(message) = getting.await.unwrap() else {
                return self.got.lock().unwrap().clone();
            };
            message.delivery.ack(BasicAckOptions::default()).await.unwrap();
            self.got.lock().unwrap().push(message.delivery.into());
        }
    }

    /// Which messages the queue has got: time that goes by at once ends leases, and a message may be there twice.
    async fn ids(&self) -> BTreeSet<String> {
        self.messages().await.iter().map(Got::id).collect()
    }
}

impl SinkTrial for Exchange {
    type Sink = RabbitMq;

    fn sink(&self) -> RabbitMq {
        self.sink_at(host_of(&self.broker))
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let arrived = |got: Got| {
            let names = got.properties.headers().as_ref().unwrap().inner().keys();
            let attributes: BTreeMap<_, _> = names
                .filter_map(|name| Some((name.as_str().strip_prefix("cloudEvents_")?, got.header(name.as_str())?)))
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
            Arrived {
                attributes,
                payload: got.payload,
            }
        };
        self.messages().await.into_iter().map(arrived).collect()
    }
}

#[steadfast::test(sqlite, postgres)]
async fn a_queue_gets_everything(t: Harness<Db>) {
    try_sink(&t, &Exchange::create().await).await;
}

#[steadfast::test(sqlite)]
async fn a_message_says_what_it_is_to_those_who_know_nothing_of_us(t: Harness<Db>) {
    let exchange = Exchange::create().await;
    t.sf().sink("orders").deliver_to(exchange.sink());
    t.sf().declare().await.unwrap();
    let id = publish(&t, 7).await;
    t.sf().drain().await.unwrap();
    let got = exchange.messages().await.remove(0);
    let properties = &got.properties;
    let text = |text: &Option<lapin::types::ShortString>| text.as_ref().map(ToString::to_string);
    let message = look(&t, id).await;
    assert_eq!(got.routing_key, "order.placed");
    assert_eq!(got.id(), id.to_string());
    assert_eq!(text(properties.kind()).as_deref(), Some("order.placed"));
    assert_eq!(text(properties.content_type()).as_deref(), Some("application/json"));
    assert_eq!(text(properties.correlation_id()), message.correlation_id);
    assert!(message.correlation_id.is_some(), "there is one to compare");
    assert_eq!(*properties.delivery_mode(), Some(2), "it is persistent");
    let published = message.published_at.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(*properties.timestamp(), Some(published.as_secs()));
    assert_eq!(got.header("cloudEvents_id"), Some(id.to_string()));
    assert_eq!(got.header("cloudEvents_type").as_deref(), Some("order.placed"));
    assert_eq!(got.header("cloudEvents_specversion").as_deref(), Some("1.0"));
    assert_eq!(got.payload, br#"{"order":7}"#);
}

#[steadfast::test(sqlite)]
async fn without_an_exchange_the_routing_key_is_a_queue(t: Harness<Db>) {
    let queue = Exchange::unmade().await;
    let name = queue.name.clone();
    let sink = RabbitMq::at(&broker()).unwrap();
    t.sf()
        .sink("orders")
        .deliver_to(sink.routing_key(move |_| name.clone()));
    t.sf().declare().await.unwrap();
    let id = publish(&t, 7).await;
    t.sf().drain().await.unwrap();
    assert_eq!(queue.messages().await[0].id(), id.to_string());
}

/// Not again while somebody looks.
fn much_later() -> RetryPolicy {
    let pause = Duration::from_secs(30 * 60);
    let policy = RetryPolicy::builder()
        .backoff(Backoff::Constant(pause))
        .cap(pause)
        .jitter(Jitter::None);
    policy.build().unwrap()
}

/// Waits until all of them are delivered or have failed, as a service sends them: many in a batch, and more than one batch at a
/// time.
async fn all_were_tried<Db: TestDatabase>(t: &Harness<Db>, ids: &[MessageId]) {
    eventually("all were tried", || async {
        for id in ids {
            let message = look(t, *id).await;
            if message.failures.is_empty() && message.deliveries[0].state != DeliveryState::Delivered {
                return false;
            }
        }
        true
    })
    .await;
}

#[steadfast::test(sqlite)]
async fn what_no_queue_takes_fails_alone_and_arrives_once_one_does(t: Harness<Db>) {
    let exchange = Exchange::create().await;
    // Every seventh has a key that nobody has asked for, and one has none that AMQP could say.
    let sink = exchange.sink().routing_key(|event| {
        let placed: Placed = serde_json::from_slice(event.payload()).unwrap();
        match placed.order {
            20 => "x".repeat(256),
            order if order % 7 == 3 => format!("lost.{order}"),
            order => format!("order.{order}"),
        }
    });
    t.sf().sink("orders").retry(much_later()).deliver_to(sink);
    t.sf().declare().await.unwrap();
    let ids = publish_all(&t, 0..300).await;
    let sf = t.sf().clone();
    let dispatching = tokio::spawn(async move { sf.dispatch().await });
    all_were_tried(&t, &ids).await;
    let is_lost = |order: usize| order % 7 == 3;
    for (order, id) in ids.iter().enumerate() {
        let message = look(&t, *id).await;
        let state = message.deliveries[0].state;
        match order {
            20 => {
                assert_eq!(state, DeliveryState::Dead);
                assert_eq!(message.failures[0].code, "routing_key_too_long");
            }
            _ if is_lost(order) => {
                assert_ne!(state, DeliveryState::Delivered, "order {order}");
                assert_eq!(message.failures[0].code, "unroutable");
                let says = &message.failures[0].message;
                assert!(says.contains(&format!("lost.{order}")), "{says}");
            }
            _ => assert_eq!(state, DeliveryState::Delivered, "order {order}"),
        }
    }
    let lost = (0..300).filter(|order| is_lost(*order)).count();
    assert_eq!(exchange.messages().await.len(), 300 - lost - 1);

    exchange.bind("lost.#").await;
    all_are_delivered(&t).await;
    assert_eq!(exchange.ids().await.len(), 300 - 1);
    t.sf().stop();
    dispatching.await.unwrap().unwrap();
}

#[steadfast::test(sqlite)]
async fn a_missing_exchange_is_a_failure_that_says_so_and_a_declared_one_is_made(t: Harness<Db>) {
    let exchange = Exchange::unmade().await;
    t.sf().sink("orders").deliver_to(exchange.sink());
    t.sf().declare().await.unwrap();
    let id = publish(&t, 7).await;
    t.sf().drain().await.unwrap();
    let message = look(&t, id).await;
    assert_eq!(message.deliveries[0].state, DeliveryState::Pending);
    let failure = &message.failures[0];
    assert_eq!(failure.code, "no_such_exchange");
    let says = &failure.message;
    assert!(
        says.contains(&exchange.name) && says.contains("declare_exchange"),
        "{says}"
    );

    let other = t.another().await;
    other.sink("orders").deliver_to(exchange.sink().declare_exchange());
    t.advance("1h");
    other.drain().await.unwrap();
    assert_eq!(
        look(&t, id).await.failures[1].code,
        "unroutable",
        "it is there, and nothing is bound to it"
    );
    exchange.bind("order.#").await;
    t.advance("1h");
    other.drain().await.unwrap();
    assert_eq!(look(&t, id).await.deliveries[0].state, DeliveryState::Delivered);
    exchange.declare().await; // As it is: a durable topic exchange.
}

#[steadfast::test(sqlite)]
async fn a_declared_queue_takes_its_keys_at_once_is_replicated_and_is_left_alone_if_it_is_another(t: Harness<Db>) {
    let exchange = Exchange::unmade().await;
    let name = format!("{}.orders", exchange.name);
    let sink = || exchange.sink().declare_exchange();
    t.sf()
        .sink("orders")
        .deliver_to(sink().declare_queue(&name, &["order.#"]));
    t.sf().declare().await.unwrap();
    let id = publish(&t, 7).await;
    t.sf().drain().await.unwrap();
    let message = look(&t, id).await;
    assert_eq!(
        message.deliveries[0].state,
        DeliveryState::Delivered,
        "{:?}",
        message.failures
    );
    let reading = exchange
        .channel
        .basic_get(name.as_str().into(), BasicGetOptions::default());
    assert_eq!(Got::from(reading.await.unwrap().unwrap().delivery).id(), id.to_string());
    // Declared once more as what it should be: the broker would refuse it if it were anything else.
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let mut quorum = FieldTable::default();
    quorum.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let declaring = exchange.channel.queue_declare(name.as_str().into(), durable, quorum);
    declaring.await.unwrap();

    // The queue that is there already, of the test itself, is neither durable nor replicated.
    let other = t.another().await;
    other
        .sink("others")
        .deliver_to(sink().declare_queue(&exchange.name, &["order.#"]));
    other.declare().await.unwrap();
    let id = publish(&t, 8).await;
    other.drain().await.unwrap();
    let failure = look(&t, id).await.failures.remove(0);
    assert_eq!(failure.code, "refused");
    assert!(failure.message.contains("inequivalent arg"), "{}", failure.message);
}

#[steadfast::test(sqlite)]
async fn an_exchange_that_is_deleted_on_the_way_is_missed_and_used_again_when_it_is_back(t: Harness<Db>) {
    let exchange = Exchange::create().await;
    t.sf().sink("orders").retry(much_later()).deliver_to(exchange.sink());
    t.sf().declare().await.unwrap();
    publish(&t, 1).await;
    t.sf().drain().await.unwrap();
    let deleting = ExchangeDeleteOptions::default();
    let deleted = exchange
        .channel
        .exchange_delete(exchange.name.as_str().into(), deleting);
    deleted.await.unwrap();
    let ids = publish_all(&t, 2..52).await;
    let sf = t.sf().clone();
    let dispatching = tokio::spawn(async move { sf.dispatch().await });
    all_were_tried(&t, &ids).await;
    for id in &ids {
        assert_eq!(look(&t, *id).await.failures[0].code, "no_such_exchange");
    }
    exchange.declare().await;
    exchange.bind("order.#").await;
    all_are_delivered(&t).await;
    assert_eq!(exchange.ids().await.len(), 51);
    t.sf().stop();
    dispatching.await.unwrap().unwrap();
}

/// Keeps what it is handed.
#[derive(Clone, Default)]
struct Keep(Arc<Mutex<Vec<EventCx>>>);

impl Sink for Keep {
    async fn send(&self, batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
        self.0.lock().unwrap().extend_from_slice(batch);
        batch.iter().map(|_| Ok(Confirmation::silent())).collect()
    }
}

#[steadfast::test(sqlite)]
async fn each_message_of_a_batch_is_told_why_the_broker_closed_its_channel(t: Harness<Db>) {
    let kept = Keep::default();
    t.sf().sink("kept").deliver_to(kept.clone());
    t.sf().declare().await.unwrap();
    publish_all(&t, 0..10).await;
    t.sf().drain().await.unwrap();
    let batch = kept.0.lock().unwrap().clone();

    let exchange = Exchange::create().await;
    let sink = exchange.sink();
    assert!(sink.send(&batch[..1]).await[0].is_ok(), "the channel is open");
    let name = exchange.name.as_str().into();
    let deleted = exchange.channel.exchange_delete(name, ExchangeDeleteOptions::default());
    deleted.await.unwrap();
    for verdict in sink.send(&batch).await {
        let failure = verdict.unwrap_err();
        assert_eq!(failure.code(), "no_such_exchange", "{failure}");
    }
}

#[steadfast::test(sqlite)]
async fn while_the_broker_is_away_messages_wait_and_lose_no_attempt(t: Harness<Db>) {
    let exchange = Exchange::create().await;
    let line = Line::to(&host()).await;
    line.cut();
    t.sf().sink("orders").deliver_to(exchange.sink_at(line.address()));
    t.sf().declare().await.unwrap();
    let mut ids = Vec::new();
    for order in 0..20 {
        ids.push(publish(&t, order).await);
    }
    t.sf().drain().await.unwrap();
    assert!(
        line.calls() <= 20,
        "it is not called more often than there are messages: {}",
        line.calls()
    );
    let waiting = look(&t, ids[0]).await;
    assert_eq!(
        (waiting.deliveries[0].state, waiting.failures.len()),
        (DeliveryState::Pending, 0)
    );

    line.mend();
    all_are_delivered(&t).await;
    for id in ids {
        let delivery = look(&t, id).await.deliveries.remove(0);
        assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Delivered, 1));
    }
    assert_eq!(exchange.messages().await.len(), 20);
}

#[steadfast::test(sqlite)]
async fn a_lost_connection_is_opened_again(t: Harness<Db>) {
    let exchange = Exchange::create().await;
    let line = Line::to(&host()).await;
    t.sf().sink("orders").deliver_to(exchange.sink_at(line.address()));
    t.sf().declare().await.unwrap();
    for order in 0..3 {
        line.mend();
        publish(&t, order).await;
        all_are_delivered(&t).await;
        line.cut();
    }
    assert_eq!(exchange.messages().await.len(), 3);
}

#[steadfast::test(sqlite)]
async fn what_was_not_confirmed_is_sent_again_with_the_same_id(t: Harness<Db>) {
    let exchange = Exchange::create().await;
    let line = Line::to(&host()).await;
    let sink = t.sf().sink("orders").time_limit("500ms");
    sink.deliver_to(exchange.sink_at(line.address()));
    t.sf().declare().await.unwrap();
    publish(&t, 1).await;
    t.sf().drain().await.unwrap();

    line.mute();
    let id = publish(&t, 2).await;
    t.sf().drain().await.unwrap();
    assert_eq!(look(&t, id).await.failures[0].code, "unconfirmed");
    assert_eq!(exchange.messages().await.len(), 2, "it has arrived all the same");

    line.mend();
    all_are_delivered(&t).await;
    let got = exchange.messages().await;
    let again: Vec<_> = got[1..].iter().map(Got::id).collect();
    assert!(
        again.len() > 1 && again.iter().all(|again| *again == id.to_string()),
        "{again:?}"
    );
}

#[steadfast::test(sqlite)]
async fn a_line_that_breaks_before_the_confirmation_leaves_it_unknown(t: Harness<Db>) {
    let exchange = Exchange::create().await;
    let line = Line::to(&host()).await;
    t.sf().sink("orders").deliver_to(exchange.sink_at(line.address()));
    t.sf().declare().await.unwrap();
    publish(&t, 1).await;
    t.sf().drain().await.unwrap();

    line.mute();
    let id = publish(&t, 2).await;
    let sf = t.sf().clone();
    let draining = tokio::spawn(async move { sf.drain().await });
    eventually("it has arrived", || async { exchange.messages().await.len() == 2 }).await;
    line.cut();
    draining.await.unwrap().unwrap();
    assert_eq!(look(&t, id).await.failures[0].code, "unconfirmed");

    line.mend();
    all_are_delivered(&t).await;
    assert_eq!(exchange.messages().await[2].id(), id.to_string());
}

#[steadfast::test(sqlite)]
async fn with_wrong_credentials_or_no_such_vhost_messages_wait(t: Harness<Db>) {
    let exchange = Exchange::create().await;
    let wrong = broker().replace("guest:guest", "guest:wrong");
    let elsewhere = broker().replace("%2f", "nowhere");
    for (name, url) in [("wrong", wrong), ("elsewhere", elsewhere)] {
        let sink = RabbitMq::at(&url).unwrap().exchange(&exchange.name);
        t.sf().sink(name).deliver_to(sink);
    }
    t.sf().declare().await.unwrap();
    let id = publish(&t, 7).await;
    t.sf().drain().await.unwrap();
    let message = look(&t, id).await;
    assert_eq!(message.failures.len(), 0);
    for delivery in message.deliveries {
        assert_eq!(delivery.state, DeliveryState::Pending);
    }

    let other = t.another().await;
    for name in ["wrong", "elsewhere"] {
        other.sink(name).deliver_to(exchange.sink());
    }
    t.advance("1h");
    other.drain().await.unwrap();
    assert_eq!(exchange.messages().await.len(), 2);
}

/// A broker behind something that takes the first call, says nothing, and does not hang up.
async fn with_a_silent_first_call(broker: String) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let _silent = listener.accept().await.unwrap();
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = tokio::net::TcpStream::connect(&broker).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
    });
    address
}

#[steadfast::test(sqlite)]
async fn a_call_that_nobody_answers_is_given_up_and_another_one_is_made(t: Harness<Db>) {
    let exchange = Exchange::create().await;
    let address = with_a_silent_first_call(host()).await;
    t.sf().sink("orders").deliver_to(exchange.sink_at(address));
    t.sf().declare().await.unwrap();
    let id = publish(&t, 7).await;
    // The call is given up after ten seconds.
    let start = std::time::Instant::now();
    while exchange.ids().await.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never arrives");
        t.advance("30s");
        t.sf().drain().await.unwrap();
    }
    assert_eq!(look(&t, id).await.failures.len(), 0);
}

#[steadfast::test(sqlite)]
async fn a_declared_queue_that_is_deleted_is_made_again(t: Harness<Db>) {
    let exchange = Exchange::create().await;
    let queue = format!("{}-declared", exchange.name);
    let sink = exchange.sink().routing_key(|_| "declared".to_owned());
    t.sf()
        .sink("orders")
        .retry(at_once())
        .deliver_to(sink.declare_queue(&queue, &["declared"]));
    t.sf().declare().await.unwrap();
    for order in 0..2 {
        let id = publish(&t, order).await;
        all_are_delivered(&t).await;
        assert_eq!(look(&t, id).await.deliveries[0].state, DeliveryState::Delivered);
        let deleting = exchange
            .channel
            .queue_delete(queue.as_str().into(), lapin::options::QueueDeleteOptions::default());
        deleting.await.unwrap();
    }
}

/// Again at once.
fn at_once() -> RetryPolicy {
    let policy = RetryPolicy::builder().retries(5).backoff(steadfast::Backoff::Immediate);
    policy.jitter(steadfast::Jitter::None).build().unwrap()
}
