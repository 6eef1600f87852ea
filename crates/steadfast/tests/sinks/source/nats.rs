//! NATS JetStream as a source, the real server.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull};
use async_nats::jetstream::{self, Context, stream};
use steadfast::testing::{Harness, SourceTrial, eventually, try_source};
use steadfast::{Incoming, Nats};
use tokio::sync::Semaphore;

use super::super::line::Line;
use super::{consume, outlives_a_cut, placed, run};

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
    t.sf().stop();
    running.await.unwrap().unwrap();
}
