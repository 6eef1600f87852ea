//! RabbitMQ as a source, the real broker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
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
    let mut letters = Vec::new();
    for _ in 0..2 {
        let got = dead
            .channel
            .basic_get((&*dead.name).into(), BasicGetOptions::default())
            .await
            .unwrap();
        letters.push(got.expect("a dead letter").delivery);
    }
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
