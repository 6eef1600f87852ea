//! Push across nodes by a broker: what has to hold, whichever it is.

mod client;
pub(crate) mod nats;
pub(crate) mod redis;

use std::time::{Duration, Instant};

use sqlx::Postgres;
use sqlx::postgres::PgListener;
use steadfast::testing::{Harness, eventually};
use steadfast::{Messenger, Push, Steadfast, StreamName};
use tokio::time::{sleep, timeout};

use super::chaos::Victim;
use super::line::Line;
use super::order::Placed;
use client::Client;

/// How long something may take that happens at once, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often streams are looked at by the clock at the most.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How many events are said one after another, each when the one before was heard. By the clock alone that takes as many looks.
const IN_A_ROW: u32 = 20;

/// A broker, and somebody who has nothing to do with us and talks and listens there too.
pub(crate) trait Broker {
    type Messenger: Messenger;

    /// Its host and port.
    fn host(&self) -> String;
    /// What leads there over this address.
    fn messenger_at(&self, address: &str) -> Self::Messenger;
    /// Listens to the channels of everybody.
    async fn listen(&mut self);
    /// The next notice of anybody, and its channel.
    async fn heard(&mut self) -> (String, String);
    /// Says something on a channel.
    async fn shout(&mut self, channel: &str, bytes: &[u8]);

    fn messenger(&self) -> Self::Messenger {
        self.messenger_at(&self.host())
    }

    /// The channel on which somebody speaks of this topic.
    async fn channel_of(&mut self, topic: &str) -> String {
        let finding = async {
            loop {
                let (channel, notice) = self.heard().await;
                if notice.ends_with(&format!(" topic:{topic}")) {
                    return channel;
                }
            }
        };
        timeout(PATIENCE, finding).await.expect("others are told")
    }
}

/// A topic of this test alone: all tests share a broker.
fn topic() -> String {
    format!("t{}", uuid::Uuid::now_v7().simple())
}

/// A process whose orders go to a topic, and that tells others by this messenger.
fn node(sf: &Steadfast<Postgres>, topic: &str, messenger: impl Messenger) -> Push<Postgres> {
    let stream = StreamName::topic(topic);
    sf.push("orders.live")
        .across(messenger)
        .event(move |placed: &Placed, to| to.push(stream.clone(), placed))
        .start()
}

/// Places an order, and carries it to its streams.
async fn place(sf: &Steadfast<Postgres>, order: u32) {
    let publishing = sf.transact(async |tx| Ok(tx.publish(&Placed { order })?));
    publishing.await.unwrap();
    sf.drain().await.unwrap();
}

/// Two processes on one database: one says, the other one has a client.
struct Nodes {
    says: Steadfast<Postgres>,
    topic: String,
    client: Client,
    /// What was said.
    orders: u32,
}

impl Nodes {
    async fn start<M: Messenger>(t: &Harness<Postgres>, messenger: impl Fn() -> M) -> Self {
        let (topic, hears) = (topic(), t.another().await);
        node(t.sf(), &topic, messenger());
        t.sf().declare().await.unwrap();
        let client = Client::connect(&node(&hears, &topic, messenger()), &topic).await;
        Self {
            says: t.sf().clone(),
            topic,
            client,
            orders: 0,
        }
    }

    /// Says the next order. The client hears it, and nothing else before it.
    async fn say(&mut self) {
        place(&self.says, self.orders).await;
        self.hear().await;
    }

    /// The client hears the next order, however long it takes to be found.
    async fn hear(&mut self) {
        let heard = timeout(PATIENCE, self.client.order()).await;
        assert_eq!(heard.expect("it is heard, or found by the clock"), self.orders);
        self.orders += 1;
    }

    /// How long it takes to say many and to hear each.
    async fn say_in_a_row(&mut self) -> Duration {
        let start = Instant::now();
        for _ in 0..IN_A_ROW {
            self.say().await;
        }
        start.elapsed()
    }

    /// Fails unless they are heard before anybody looks by the clock: half of the looks would do to find half of them.
    async fn hear_at_once(&mut self) {
        let took = self.say_in_a_row().await;
        assert!(took < LOOK_EVERY * (IN_A_ROW / 2), "{IN_A_ROW} orders took {took:?}");
    }
}

#[steadfast::test(sqlite)]
#[should_panic(expected = "leave out `across`")]
async fn processes_that_share_a_file_are_told_that_they_need_no_broker(t: Harness<Db>) {
    let nobody = steadfast::NatsPubSub::at("nats://127.0.0.1:1").unwrap();
    let _ = t.sf().push("orders.live").across(nobody);
}

/// The other node hears at once, and `NOTIFY` has nothing to do with it.
pub(crate) async fn hears_at_once(t: &Harness<Postgres>, broker: &impl Broker) {
    let mut notices = PgListener::connect_with(t.pool()).await.unwrap();
    notices.listen("steadfast_streams").await.unwrap();
    let mut nodes = Nodes::start(t, || broker.messenger()).await;
    nodes.hear_at_once().await;

    t.run("SELECT pg_notify('steadfast_streams', 'the first')").await;
    let first = timeout(PATIENCE, notices.recv()).await.unwrap().unwrap();
    assert_eq!(first.payload(), "the first", "the database has carried no notice");
}

/// What a notice is about can be read by then, and it does not say what it is.
pub(crate) async fn tells_of_what_is_committed(t: &Harness<Postgres>, broker: &mut impl Broker) {
    broker.listen().await;
    let topic = topic();
    node(t.sf(), &topic, broker.messenger());
    t.sf().declare().await.unwrap();
    for order in 0..10 {
        place(t.sf(), order).await;
        let told = format!(" topic:{topic}");
        let notice = loop {
            let (_, notice) = timeout(PATIENCE, broker.heard()).await.expect("others are told");
            if notice.ends_with(&told) {
                break notice;
            }
        };
        let entries = format!("SELECT count(*) FROM steadfast.entries WHERE stream = 'topic:{topic}'");
        assert_eq!(t.count(&entries).await, i64::from(order) + 1, "it is committed");
        let process = notice.strip_suffix(&told).unwrap();
        assert!(process.chars().all(|c| c.is_ascii_hexdigit()), "{notice}");
    }
}

/// Another schema and another database have channels of their own.
pub(crate) async fn keeps_instances_apart(t: &Harness<Postgres>, broker: &mut impl Broker) {
    broker.listen().await;
    let elsewhere = format!("steadfast_across_{}", uuid::Uuid::now_v7().simple());
    t.run(&format!("CREATE DATABASE {elsewhere}")).await;
    let options = (*t.pool().connect_options()).clone().database(&elsewhere);
    let there = sqlx::PgPool::connect_with(options).await.unwrap();
    let builders = [
        Steadfast::builder(t.pool().clone()),
        Steadfast::builder(t.pool().clone()).schema("second").unwrap(),
        Steadfast::builder(there.clone()),
    ];
    let mut channels = Vec::new();
    for builder in builders {
        builder.migrate().await.unwrap();
        let sf = builder.build().await.unwrap();
        let topic = topic();
        node(&sf, &topic, broker.messenger());
        sf.declare().await.unwrap();
        place(&sf, 0).await;
        channels.push(broker.channel_of(&topic).await);
    }
    there.close().await;
    t.run(&format!("DROP DATABASE {elsewhere}")).await;
    assert!(
        channels.iter().all(|channel| channel.starts_with("steadfast.streams.")),
        "{channels:?}"
    );
    channels.sort();
    channels.dedup();
    assert_eq!(channels.len(), 3);
}

/// What others say on the channel does no harm.
pub(crate) async fn bears_strangers(t: &Harness<Postgres>, broker: &mut impl Broker) {
    broker.listen().await;
    let mut nodes = Nodes::start(t, || broker.messenger()).await;
    nodes.say().await;
    let channel = broker.channel_of(&nodes.topic).await;
    let about = format!("stranger topic:{}", nodes.topic);
    let long = "stranger * ".repeat(5_000);
    let said: [&[u8]; 7] = [
        b"",
        b"\xff\xfe\x00",
        b"{\"streams\":[\"topic:other\"]}",
        b"stranger *",
        b"stranger user:nobody",
        about.as_bytes(),
        long.as_bytes(),
    ];
    for bytes in said {
        broker.shout(&channel, bytes).await;
        nodes.say().await;
    }
    nodes.hear_at_once().await;
}

/// While the broker is away clients hear by the clock, and nobody knocks all the time. When it is back they hear at once.
pub(crate) async fn bears_an_outage(t: &Harness<Postgres>, broker: &impl Broker) {
    let line = Line::to(&broker.host()).await;
    line.cut();
    let messenger = || broker.messenger_at(&line.address().to_string());
    let mut nodes = Nodes::start(t, messenger).await;
    for _ in 0..3 {
        nodes.say().await;
    }
    // Four ends knock: two processes that tell, and two that listen. Each leaves it alone for longer and longer.
    let (before, pause) = (line.calls(), Duration::from_secs(3));
    sleep(pause).await;
    let calls = line.calls() - before;
    assert!(calls <= 40, "{calls} calls in {pause:?}");

    line.mend();
    eventually("orders are heard at once", async || {
        nodes.say_in_a_row().await < LOOK_EVERY * (IN_A_ROW / 2)
    })
    .await;
    // And once more, from a connection that worked.
    line.cut();
    nodes.say().await;
    line.mend();
    eventually("orders are heard at once again", async || {
        nodes.say_in_a_row().await < LOOK_EVERY * (IN_A_ROW / 2)
    })
    .await;
}

/// Kills the broker while clients look on: they hear everything, in order and once, and at once when it is back.
pub(crate) async fn outlives_a_kill(t: &Harness<Postgres>, victim: &Victim, broker: &impl Broker) {
    let mut nodes = Nodes::start(t, || broker.messenger()).await;
    nodes.hear_at_once().await;
    let back = victim.kill();
    for _ in 0..3 {
        nodes.say().await;
    }
    back.await;
    eventually("orders are heard at once again", async || {
        nodes.say_in_a_row().await < LOOK_EVERY * (IN_A_ROW / 2)
    })
    .await;
}
