//! RabbitMQ as a source, the real broker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::message::Delivery;
use lapin::options::{
    BasicGetOptions, BasicNackOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use steadfast::testing::{Harness, SourceTrial, eventually, try_source};
use steadfast::{Incoming, RabbitMq};
use tokio::sync::Semaphore;

use super::super::line::Line;
use super::{consume, outlives_a_cut, placed, records, run};

fn broker() -> String {
    let url = std::env::var("TEST_RABBITMQ_URL");
    url.expect("TEST_RABBITMQ_URL says where RabbitMQ is; `cargo xtask test` brings one")
}

fn host_of(broker: &str) -> &str {
    let after = broker.split_once('@').expect("user and password").1;
    after.split('/').next().unwrap()
}

/// A queue of its own, and somebody who sends to it.
pub(crate) struct Queue {
    pub(crate) name: String,
    broker: String,
    channel: Channel,
    _connection: Connection,
    is_classic: bool,
}

impl Queue {
    /// One that is not there yet.
    pub(crate) async fn unmade_at(broker: String, is_classic: bool) -> Self {
        let connecting = Connection::connect(&broker, ConnectionProperties::default());
        let connection = connecting.await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        // What is sent and not confirmed, a broker that is killed may lose.
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        Self {
            name: format!("s{}", uuid::Uuid::now_v7().simple()),
            channel,
            _connection: connection,
            broker,
            is_classic,
        }
    }

    async fn create(is_classic: bool) -> Self {
        let queue = Self::unmade_at(broker(), is_classic).await;
        queue.declare().await;
        queue
    }

    pub(crate) async fn declare(&self) {
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let mut kind = FieldTable::default();
        if !self.is_classic {
            kind.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        }
        self.channel
            .queue_declare((&*self.name).into(), options, kind)
            .await
            .unwrap();
    }

    /// A source from it, over this address, that declares it.
    fn source_at(&self, address: impl std::fmt::Display) -> RabbitMq {
        let broker = self.broker.replace(host_of(&self.broker), &address.to_string());
        let rabbitmq = RabbitMq::at(&broker).unwrap();
        match self.is_classic {
            true => rabbitmq.declare_classic_queue(&self.name, &[]),
            false => rabbitmq.declare_queue(&self.name, &[]),
        }
    }

    async fn is_there(&self) -> bool {
        let connecting = Connection::connect(&self.broker, ConnectionProperties::default());
        let channel = connecting.await.unwrap().create_channel().await.unwrap();
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let looked = channel.queue_declare((&*self.name).into(), options, FieldTable::default());
        looked.await.is_ok()
    }

    /// The next dead letter that it has, or gets.
    pub(crate) async fn letter(&self) -> Delivery {
        let start = Instant::now();
        loop {
            // It may not be there yet, which closes the channel.
            let connecting = Connection::connect(&self.broker, ConnectionProperties::default());
            let channel = connecting.await.unwrap().create_channel().await.unwrap();
            let options = BasicGetOptions { no_ack: true };
            if let Ok(Some(got)) = channel.basic_get((&*self.name).into(), options).await {
                return got.delivery;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "no letter comes");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The same queue, over a connection that nobody has lost.
    pub(crate) async fn again(&self) -> Self {
        let mut queue = Self::unmade_at(self.broker.clone(), self.is_classic).await;
        queue.name.clone_from(&self.name);
        queue
    }
}

impl SourceTrial for Queue {
    type Source = RabbitMq;

    fn source(&self) -> RabbitMq {
        self.source_at(host_of(&self.broker))
    }

    async fn send(&self, message: &Incoming) {
        let mut headers = FieldTable::default();
        for (name, value) in message.headers() {
            headers.insert((&**name).into(), AMQPValue::LongString(LongString::from(value.clone())));
        }
        let mut properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
        if let Some(id) = message.message_id() {
            properties = properties.with_message_id(id.into());
        }
        if let Some(event_type) = message.event_type() {
            properties = properties.with_type(event_type.into());
        }
        // A broker that has just been started confirms what its queue does not take yet, and sends it back.
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let start = Instant::now();
        loop {
            let (key, properties) = ((&*self.name).into(), properties.clone());
            let sending = self
                .channel
                .basic_publish("".into(), key, options, message.body(), properties);
            let confirmation = sending.await.unwrap().await.unwrap();
            if matches!(confirmation, lapin::Confirmation::Ack(None)) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "the queue does not take it");
        }
    }

    /// A second connection would not see what is handed out, so the broker is asked by who has it.
    async fn left(&self) -> usize {
        let connection = Connection::connect(&self.broker, ConnectionProperties::default())
            .await
            .unwrap();
        let channel = connection.create_channel().await.unwrap();
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let queue = channel.queue_declare((&*self.name).into(), options, FieldTable::default());
        let waiting = queue.await.unwrap().message_count() as usize;
        let _ = connection.close(200, "done".into()).await;
        waiting
    }
}

#[steadfast::test(sqlite, postgres)]
async fn a_quorum_queue_holds_everything(t: Harness<Db>) {
    try_source(&t, &Queue::create(false).await).await;
}

#[steadfast::test(sqlite)]
async fn a_classic_queue_holds_everything(t: Harness<Db>) {
    try_source(&t, &Queue::create(true).await).await;
}

#[steadfast::test(sqlite, postgres)]
async fn a_line_that_is_cut_loses_nothing_and_does_nothing_twice(t: Harness<Db>) {
    let (queue, line) = (Queue::create(false).await, Line::to(host_of(&broker())).await);
    let source = queue.source_at(line.address());
    outlives_a_cut(&t, &queue, source, &line).await;
}

#[steadfast::test(sqlite)]
async fn a_queue_that_is_only_checked_is_waited_for(t: Harness<Db>) {
    let queue = Queue::unmade_at(broker(), false).await;
    let gate = Arc::new(Semaphore::new(10));
    let source = RabbitMq::at(&broker()).unwrap().queue(&queue.name);
    let handled = consume(t.sf(), source, &gate);
    let running = run(t.sf());
    queue.declare().await;
    queue.send(&placed(1)).await;
    eventually("it is handled", || async { handled.lock().unwrap().len() == 1 }).await;
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[steadfast::test(sqlite)]
async fn dead_letters_keep_their_bytes_their_headers_and_their_ids(t: Harness<Db>) {
    let queue = Queue::create(false).await;
    let dead = Queue::unmade_at(broker(), false).await;
    let gate = Arc::new(Semaphore::new(10));
    let source = queue.source().dead_letter_queue(&dead.name);
    consume(t.sf(), source, &gate);
    let running = run(t.sf());
    let odd = Incoming::new(&b"\xff\x00 no json"[..])
        .with_message_id("17")
        .with_event_type("order.placed");
    queue.send(&odd.clone().with_header("x-words", "all of them")).await;
    queue
        .send(&Incoming::new("no id").with_event_type("order.placed"))
        .await;
    queue.send(&placed(1)).await;
    eventually("the good one is handled", || async {
        records(t.sf()).await == 2 && queue.left().await == 0
    })
    .await;
    let mut letters = [dead.letter().await, dead.letter().await];
    letters.sort_by_key(|letter| letter.data.clone());
    let (no_id, odd_one) = (&letters[0], &letters[1]);
    assert_eq!((&*no_id.data, no_id.properties.message_id()), (&b"no id"[..], &None));
    assert_eq!(&*odd_one.data, &**odd.body());
    assert_eq!(
        odd_one
            .properties
            .message_id()
            .as_ref()
            .map(ToString::to_string)
            .as_deref(),
        Some("17")
    );
    let headers = odd_one.properties.headers().as_ref().unwrap();
    let header = |name: &str| match headers.inner().get(name) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("{name} is {other:?}"),
    };
    assert_eq!(
        (&*header("x-words"), &*header("x-steadfast-why")),
        ("all of them", "undecodable")
    );
    assert_eq!(t.sf().outbox_stats().await.unwrap().dead().number, 2);
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[steadfast::test(sqlite)]
async fn a_letter_keeps_the_properties_of_its_message_and_says_what_it_cannot_keep(t: Harness<Db>) {
    let (queue, dead) = (Queue::create(false).await, Queue::unmade_at(broker(), false).await);
    let source = queue.source().dead_letter_queue(&dead.name);
    consume(t.sf(), source, &Arc::new(Semaphore::new(10)));
    let running = run(t.sf());
    let mut headers = FieldTable::default();
    headers.insert("x-retries".into(), AMQPValue::LongInt(3));
    headers.insert("x-words".into(), AMQPValue::LongString("all of them".into()));
    let bytes = AMQPValue::LongString(LongString::from(&b"\xff\x00 no text"[..]));
    headers.insert("x-bytes".into(), bytes.clone());
    headers.insert("x-void".into(), AMQPValue::Void);
    let properties = BasicProperties::default()
        .with_message_id("17".into())
        .with_correlation_id("c".into())
        .with_type("order.placed".into())
        .with_content_type("text/plain".into())
        .with_content_encoding("identity".into())
        .with_reply_to("answers".into())
        .with_app_id("old-shop".into())
        .with_user_id("guest".into())
        .with_priority(7)
        .with_timestamp(1_700_000_000)
        .with_expiration("600000".into())
        .with_headers(headers);
    let options = BasicPublishOptions::default();
    let key = (&*queue.name).into();
    let sending = queue
        .channel
        .basic_publish("".into(), key, options, b"no json", properties.clone());
    sending.await.unwrap().await.unwrap();
    let letter = dead.letter().await;
    let kept = &letter.properties;
    assert_eq!(letter.data, b"no json");
    assert_eq!(
        (
            kept.message_id(),
            kept.correlation_id(),
            kept.kind(),
            kept.content_type()
        ),
        (
            properties.message_id(),
            properties.correlation_id(),
            properties.kind(),
            properties.content_type()
        )
    );
    assert_eq!(
        (
            kept.content_encoding(),
            kept.reply_to(),
            kept.app_id(),
            kept.priority(),
            kept.timestamp()
        ),
        (
            properties.content_encoding(),
            properties.reply_to(),
            properties.app_id(),
            properties.priority(),
            properties.timestamp()
        )
    );
    assert_eq!(
        (kept.expiration(), kept.user_id()),
        (&None, &None),
        "they would be obeyed"
    );
    let headers = kept.headers().as_ref().unwrap().inner();
    let text = |text: &str| Some(AMQPValue::LongString(text.into()));
    assert_eq!(headers.get("x-retries"), Some(&AMQPValue::LongInt(3)), "with its type");
    assert_eq!(headers.get("x-words").cloned(), text("all of them"));
    assert_eq!(headers.get("x-bytes"), Some(&bytes), "byte for byte");
    assert_eq!(headers.get("x-void"), Some(&AMQPValue::Void));
    assert_eq!(headers.get("amqp-expiration").cloned(), text("600000"));
    assert_eq!(headers.get("amqp-user-id").cloned(), text("guest"));
    assert_eq!(headers.get("amqp-routing-key").cloned(), text(&queue.name));
    assert!(!headers.contains_key("amqp-priority"), "{headers:?}");
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[steadfast::test(sqlite)]
async fn a_queue_of_dead_letters_that_is_deleted_is_made_again(t: Harness<Db>) {
    let (queue, dead) = (Queue::create(false).await, Queue::unmade_at(broker(), false).await);
    let source = queue.source().dead_letter_queue(&dead.name);
    consume(t.sf(), source, &Arc::new(Semaphore::new(10)));
    let running = run(t.sf());
    for body in ["first", "second"] {
        queue.send(&Incoming::new(body).with_event_type("order.placed")).await;
        assert_eq!(dead.letter().await.data, body.as_bytes());
        let delete = dead
            .channel
            .queue_delete((&*dead.name).into(), QueueDeleteOptions::default());
        delete.await.unwrap();
    }
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[steadfast::test(sqlite)]
async fn a_version_that_is_a_number_is_that_version(t: Harness<Db>) {
    let queue = Queue::create(false).await;
    consume(t.sf(), queue.source(), &Arc::new(Semaphore::new(10)));
    let mut headers = FieldTable::default();
    for (name, text) in [
        ("specversion", "1.0"),
        ("id", "17"),
        ("source", "/s"),
        ("type", "order.placed"),
    ] {
        headers.insert(format!("cloudEvents_{name}").into(), AMQPValue::LongString(text.into()));
    }
    headers.insert("cloudEvents_dataversion".into(), AMQPValue::LongInt(2));
    let sending = queue.channel.basic_publish(
        "".into(),
        (&*queue.name).into(),
        BasicPublishOptions::default(),
        b"{}",
        BasicProperties::default().with_headers(headers),
    );
    sending.await.unwrap().await.unwrap();
    let running = run(t.sf());
    eventually("it is there", || async { records(t.sf()).await == 1 }).await;
    let kept = t.sf().deliveries().page().await.unwrap().deliveries;
    assert_eq!(
        (kept.len(), &*kept[0].kind),
        (1, "orders.count@2"),
        "nobody here knows it"
    );
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[steadfast::test(sqlite)]
async fn a_letter_goes_nowhere_else_although_its_message_did(t: Harness<Db>) {
    let (queue, dead) = (Queue::create(false).await, Queue::unmade_at(broker(), false).await);
    let others = Queue::create(true).await;
    let source = queue.source().dead_letter_queue(&dead.name);
    consume(t.sf(), source, &Arc::new(Semaphore::new(10)));
    let to_others = AMQPValue::FieldArray(vec![AMQPValue::LongString((&*others.name).into())].into());
    let mut headers = FieldTable::default();
    headers.insert("CC".into(), to_others.clone());
    let properties = BasicProperties::default()
        .with_type("order.placed".into())
        .with_headers(headers);
    let sending = queue.channel.basic_publish(
        "".into(),
        (&*queue.name).into(),
        BasicPublishOptions::default(),
        b"no id",
        properties,
    );
    sending.await.unwrap().await.unwrap();
    let running = run(t.sf());
    let letter = dead.letter().await;
    let headers = letter.properties.headers().as_ref().unwrap().inner();
    assert_eq!(headers.get("amqp-cc"), Some(&to_others));
    assert!(!headers.contains_key("CC"), "{headers:?}");
    assert_eq!(others.left().await, 1, "the message, and no copy of its letter");
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[steadfast::test(sqlite, postgres)]
async fn what_a_quorum_queue_hands_out_again_is_the_same_letter(t: Harness<Db>) {
    let queue = Queue::create(false).await;
    let odd = Incoming::new("no id").with_event_type("order.placed");
    queue.send(&odd).await;
    // Somebody has had it, and gave it back: the broker counts that in a header.
    let start = Instant::now();
    let mut given_back = 0;
    while given_back < 2 {
        let getting = queue
            .channel
            .basic_get((&*queue.name).into(), BasicGetOptions::default());
        if let Some(got) = getting.await.unwrap() {
            let again = BasicNackOptions {
                requeue: true,
                ..BasicNackOptions::default()
            };
            got.delivery.acker.nack(again).await.unwrap();
            given_back += 1;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "it does not come back");
    }
    queue.send(&odd).await;
    consume(t.sf(), queue.source(), &Arc::new(Semaphore::new(10)));
    let running = run(t.sf());
    eventually("it is one letter that came twice", || async {
        let letters = t.sf().dead_letters().page().await.unwrap().deliveries;
        assert!(letters.len() <= 1, "{letters:?}");
        letters.first().is_some_and(|letter| letter.attempts == 2)
    })
    .await;
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[steadfast::test(sqlite, postgres)]
async fn a_letter_that_is_too_large_for_the_broker_holds_nobody_up(t: Harness<Db>) {
    let (queue, dead) = (Queue::create(false).await, Queue::unmade_at(broker(), false).await);
    let source = queue.source().dead_letter_queue(&dead.name);
    let handled = consume(t.sf(), source, &Arc::new(Semaphore::new(10)));
    let running = run(t.sf());
    // It just fits into a frame, and with why it is dead it does not.
    let long = Incoming::new("no id")
        .with_event_type("order.placed")
        .with_header("x", "x".repeat(130_000));
    queue.send(&long).await;
    queue
        .send(&Incoming::new("no id either").with_event_type("order.placed"))
        .await;
    queue.send(&placed(1)).await;
    eventually("the good one is handled", || async {
        handled.lock().unwrap().len() == 1
    })
    .await;
    assert_eq!(dead.letter().await.data, b"no id either");
    eventually("its copy is dead, and says why", || async {
        let letters = t.sf().dead_letters().code("too_large").page().await.unwrap().deliveries;
        letters.len() == 1 && letters[0].target == "orders.source:dead_letters"
    })
    .await;
    eventually("nothing is left", || async { queue.left().await == 0 }).await;
    assert_eq!(t.sf().outbox_stats().await.unwrap().dead().number, 3);
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[steadfast::test(sqlite)]
async fn a_queue_that_a_source_makes_hands_out_for_as_long_as_it_takes(t: Harness<Db>) {
    let queue = Queue::unmade_at(broker(), false).await;
    consume(t.sf(), queue.source(), &Arc::new(Semaphore::new(10)));
    let running = run(t.sf());
    // What it is declared as is said to whoever declares it otherwise.
    let mut said = String::new();
    eventually("it is made", || async { queue.is_there().await }).await;
    let connecting = Connection::connect(&queue.broker, ConnectionProperties::default());
    let channel = connecting.await.unwrap().create_channel().await.unwrap();
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let mut kind = FieldTable::default();
    kind.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    if let Err(error) = channel.queue_declare((&*queue.name).into(), options, kind).await {
        said = error.to_string();
    }
    assert!(
        said.contains("x-delivery-limit") && said.contains("2147483647"),
        "{said:?}"
    );
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_queue_that_drops_what_was_handed_out_often_is_found_by_the_doctor() {
    let queue = Queue::unmade_at(broker(), false).await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(20));
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(100_000));
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let made = queue.channel.queue_declare((&*queue.name).into(), options, arguments);
    made.await.unwrap();
    let checks = RabbitMq::at(&broker()).unwrap().examine(&[&queue.name]).await;
    let check = checks.iter().find(|check| check.name == "queue").unwrap();
    assert_eq!(check.verdict, steadfast::Verdict::Warn);
    assert!(check.found.contains("handed out 20 times"), "{}", check.found);

    let plain = Queue::create(false).await;
    let checks = RabbitMq::at(&broker()).unwrap().examine(&[&plain.name]).await;
    assert!(
        checks.iter().all(|check| check.verdict == steadfast::Verdict::Ok),
        "{checks:?}"
    );
}
