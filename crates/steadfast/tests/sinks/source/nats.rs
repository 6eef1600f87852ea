//! NATS JetStream as a source, the real server.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull};
use async_nats::jetstream::{self, Context, stream};
use steadfast::testing::{Harness, SourceTrial, eventually, try_source};
use steadfast::{Incoming, Nats, Source, Verdict};
use tokio::sync::Semaphore;

use super::super::line::Line;
use super::{consume, hands_out_no_more_than_may_be_here, outlives_a_cut, placed, run};

fn server() -> String {
    let url = std::env::var("TEST_NATS_URL");
    let url = url.expect("TEST_NATS_URL says where NATS is; `cargo xtask test` brings one");
    url.trim_start_matches("nats://").to_owned()
}

/// A stream of its own with a consumer that hands out again after a second what is not acknowledged.
pub(crate) struct Stream {
    pub(crate) name: String,
    server: String,
    context: Context,
    stream: stream::Stream,
}

impl Stream {
    pub(crate) async fn create_at(server: String) -> Self {
        let name = format!("s{}", uuid::Uuid::now_v7().simple());
        let context = jetstream::new(async_nats::connect(&server).await.unwrap());
        let config = stream::Config {
            name: name.clone(),
            subjects: vec![format!("{name}.>")],
            // What somebody sends twice comes twice.
            duplicate_window: Duration::from_millis(100),
            ..stream::Config::default()
        };
        let stream = context.create_stream(config).await.unwrap();
        let config = pull::Config {
            durable_name: Some("warehouse".to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: Duration::from_secs(1),
            ..pull::Config::default()
        };
        stream.create_consumer(config).await.unwrap();
        Self {
            name,
            server,
            context,
            stream,
        }
    }

    async fn create() -> Self {
        Self::create_at(server()).await
    }

    fn source_at(&self, address: impl std::fmt::Display) -> Nats {
        let nats = Nats::at(&format!("nats://{address}")).unwrap();
        nats.stream(&self.name).consumer("warehouse")
    }

    /// The same stream, over a connection that nobody has lost.
    pub(crate) async fn again(&self) -> Self {
        let context = jetstream::new(async_nats::connect(&self.server).await.unwrap());
        let stream = context.get_stream(&self.name).await.unwrap();
        Self {
            name: self.name.clone(),
            server: self.server.clone(),
            context,
            stream,
        }
    }
}

impl SourceTrial for Stream {
    type Source = Nats;

    fn source(&self) -> Nats {
        self.source_at(&self.server)
    }

    async fn send(&self, message: &Incoming) {
        let mut headers = HeaderMap::new();
        for (name, value) in message.headers() {
            headers.append(&**name, &**value);
        }
        headers.append("ce-specversion", "1.0");
        headers.append("ce-source", "/trial");
        if let Some(id) = message.message_id() {
            headers.append("ce-id", id);
        }
        let event_type = message.event_type().unwrap_or("plain");
        headers.append("ce-type", event_type);
        let subject = format!("{}.{event_type}", self.name);
        let sending = self
            .context
            .publish_with_headers(subject, headers, message.body().clone());
        sending.await.unwrap().await.unwrap();
    }

    async fn left(&self) -> usize {
        let mut consumer: Consumer<pull::Config> = self.stream.get_consumer("warehouse").await.unwrap();
        let info = consumer.info().await.unwrap();
        usize::try_from(info.num_pending).unwrap() + info.num_ack_pending
    }
}

#[steadfast::test(sqlite, postgres)]
async fn a_durable_consumer_holds_everything(t: Harness<Db>) {
    try_source(&t, &Stream::create().await).await;
}

#[steadfast::test(sqlite)]
async fn a_line_that_is_cut_loses_nothing_and_does_nothing_twice(t: Harness<Db>) {
    let (stream, line) = (Stream::create().await, Line::to(&server()).await);
    let source = stream.source_at(line.address());
    outlives_a_cut(&t, &stream, source, &line).await;
}

#[steadfast::test(sqlite)]
async fn a_consumer_is_declared_for_its_subject_and_plain_messages_are_known_by_their_id(t: Harness<Db>) {
    let stream = Stream::create().await;
    let gate = Arc::new(Semaphore::new(10));
    let nats = Nats::at(&format!("nats://{}", server())).unwrap().stream(&stream.name);
    let source = nats.declare_consumer("other", &format!("{}.order.>", stream.name));
    let source = source.ack_wait("7s");
    let handled = consume(t.sf(), source, &gate);
    let running = run(t.sf());
    for order in [1, 1, 2] {
        stream.send(&placed(order)).await;
    }
    stream
        .send(&Incoming::new("{}").with_message_id("x").with_event_type("elsewhere"))
        .await;
    eventually("they are handled", || async { handled.lock().unwrap().len() == 2 }).await;
    eventually("nothing is left", || async {
        let mut consumer: Consumer<pull::Config> = stream.stream.get_consumer("other").await.unwrap();
        let info = consumer.info().await.unwrap();
        info.num_pending == 0 && info.num_ack_pending == 0
    })
    .await;
    assert!(handled.lock().unwrap().values().all(|times| *times == 1));
    let declared: Consumer<pull::Config> = stream.stream.get_consumer("other").await.unwrap();
    assert_eq!(declared.cached_info().config.ack_wait, Duration::from_secs(7));
    t.sf().stop();
    running.await.unwrap().unwrap();
}

/// Sends a message that no function can read, with these headers.
async fn send_odd(stream: &Stream, body: &'static str, headers: &[(&str, &str)]) {
    let mut all = HeaderMap::new();
    for (name, value) in [("ce-specversion", "1.0"), ("ce-type", "order.placed")]
        .iter()
        .chain(headers)
    {
        all.append(*name, *value);
    }
    let subject = format!("{}.order.placed", stream.name);
    let sending = stream.context.publish_with_headers(subject, all, body.into());
    sending.await.unwrap().await.unwrap();
}

#[steadfast::test(sqlite, postgres)]
async fn dead_letters_keep_their_bytes_and_headers_and_nothing_that_the_server_would_obey(t: Harness<Db>) {
    let (stream, dead) = (Stream::create().await, Stream::create().await);
    let source = stream.source().dead_letter_subject(&format!("{}.dead", dead.name));
    let handled = consume(t.sf(), source, &Arc::new(Semaphore::new(10)));
    let told = [
        ("Nats-Expected-Stream", &*stream.name),
        ("Nats-Expected-Last-Sequence", "0"),
        ("Nats-Msg-Id", "17"),
        ("ce-id", "17"),
        ("x-words", "all of them"),
    ];
    send_odd(&stream, "no json", &told).await;
    // They have no id and the same bytes, and are two messages.
    send_odd(&stream, "no id", &[]).await;
    send_odd(&stream, "no id", &[]).await;
    stream.send(&placed(1)).await;
    let running = run(t.sf());
    eventually("the good one is handled", || async {
        handled.lock().unwrap().len() == 1
    })
    .await;
    eventually("nothing is left", || async { stream.left().await == 0 }).await;
    eventually("there are three letters", || async { dead.left().await == 3 }).await;
    let mut letters = Vec::new();
    for number in 1..=3 {
        letters.push(dead.stream.get_raw_message(number).await.unwrap());
    }
    letters.sort_by_key(|letter| letter.payload.clone());
    let bodies: Vec<_> = letters.iter().map(|letter| &*letter.payload).collect();
    assert_eq!(bodies, [&b"no id"[..], b"no id", b"no json"]);
    let header = |name: &str| letters[2].headers.get(name).map(|value| value.as_str().to_owned());
    assert_eq!(header("Nats-Msg-Id").as_deref(), Some("17"));
    assert_eq!(header("x-words").as_deref(), Some("all of them"));
    assert_eq!(header("Steadfast-Why").as_deref(), Some("undecodable"));
    assert_eq!(header("Nats-Expected-Stream"), None);
    assert_eq!(header("Steadfast-Nats-Expected-Stream"), Some(stream.name.clone()));
    assert_eq!(header("Steadfast-Nats-Expected-Last-Sequence").as_deref(), Some("0"));
    assert_eq!(t.sf().outbox_stats().await.unwrap().dead().number, 3);
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[steadfast::test(sqlite)]
async fn a_letter_that_its_stream_finds_too_large_holds_nobody_up(t: Harness<Db>) {
    let (stream, dead) = (Stream::create().await, Stream::create().await);
    let narrow = stream::Config {
        max_message_size: 200,
        ..dead.stream.cached_info().config.clone()
    };
    dead.context.update_stream(narrow).await.unwrap();
    let source = stream.source().dead_letter_subject(&format!("{}.dead", dead.name));
    let handled = consume(t.sf(), source, &Arc::new(Semaphore::new(10)));
    let running = run(t.sf());
    send_odd(&stream, "no id", &[("x-long", &"x".repeat(300))]).await;
    stream.send(&placed(1)).await;
    eventually("the good one is handled", || async {
        handled.lock().unwrap().len() == 1
    })
    .await;
    eventually("the copy is dead", || async {
        t.sf()
            .dead_letters()
            .code("too_large")
            .page()
            .await
            .unwrap()
            .deliveries
            .len()
            == 1
    })
    .await;
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_consumer_that_loses_messages_is_refused_by_name() {
    let stream = Stream::create().await;
    let lossy = [
        ("silent", AckPolicy::None, -1, "ack none"),
        ("hasty", AckPolicy::All, -1, "ack all"),
        ("impatient", AckPolicy::Explicit, 5, "5 times"),
    ];
    for (name, ack_policy, max_deliver, says) in lossy {
        let config = pull::Config {
            durable_name: Some(name.to_owned()),
            ack_policy,
            max_deliver,
            ..pull::Config::default()
        };
        stream.stream.create_consumer(config).await.unwrap();
        let nats = || Nats::at(&format!("nats://{}", server())).unwrap().stream(&stream.name);
        // Whether it has to be there, or is there instead of the one that would be created.
        for source in [nats().consumer(name), nats().declare_consumer(name, ">")] {
            let refused = Source::open(&source, 10).await.expect_err("it is refused");
            assert_eq!(refused.code(), "lossy_consumer");
            let said = refused.message();
            assert!(
                said.contains(name) && said.contains(says) && said.contains("--max-deliver -1"),
                "{said}"
            );
        }
        let checks = nats().examine().await;
        let check = checks.iter().find(|check| check.name == "consumers").unwrap();
        assert!(
            check.verdict == Verdict::Warn && check.found.contains(name),
            "{}",
            check.found
        );
    }
    Source::open(&stream.source(), 10).await.unwrap();
}

#[tokio::test]
async fn a_stream_cannot_have_the_dead_letters_of_its_own_messages() {
    let stream = Stream::create().await;
    let source = stream.source().dead_letter_subject(&format!("{}.dead", stream.name));
    let refused = Source::open(&source, 10).await.expect_err("they would come back");
    assert_eq!(refused.code(), "own_dead_letters");
}

#[tokio::test]
async fn no_more_is_handed_out_than_may_be_here() {
    hands_out_no_more_than_may_be_here(&Stream::create().await).await;
}
