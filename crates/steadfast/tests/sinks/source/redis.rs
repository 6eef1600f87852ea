//! Redis Streams as a source, the real server.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use steadfast::testing::{Harness, SourceTrial, eventually, try_source};
use steadfast::{Incoming, RedisStreams};
use tokio::sync::Semaphore;

use super::super::line::Line;
use super::{consume, outlives_a_cut, placed, run};

fn server() -> String {
    let url = std::env::var("TEST_REDIS_URL");
    url.expect("TEST_REDIS_URL says where Redis is; `cargo xtask test` brings one")
}

fn host_of(server: &str) -> &str {
    server.trim_start_matches("redis://")
}

/// A stream of its own, with a group.
pub(crate) struct Stream {
    name: String,
    server: String,
    connection: MultiplexedConnection,
}

impl Stream {
    pub(crate) async fn create_at(server: String) -> Self {
        let name = format!("s{}", uuid::Uuid::now_v7().simple());
        let stream = Self::find(server, name).await;
        let mut create = redis::cmd("XGROUP");
        create
            .arg("CREATE")
            .arg(&stream.name)
            .arg("warehouse")
            .arg("0")
            .arg("MKSTREAM");
        create
            .query_async::<Value>(&mut stream.connection.clone())
            .await
            .unwrap();
        stream
    }

    async fn create() -> Self {
        Self::create_at(server()).await
    }

    async fn find(server: String, name: String) -> Self {
        let client = redis::Client::open(&*server).unwrap();
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        Self {
            connection: connecting.await.unwrap(),
            name,
            server,
        }
    }

    /// The same stream, over a connection that nobody has lost.
    pub(crate) async fn again(&self) -> Self {
        Self::find(self.server.clone(), self.name.clone()).await
    }

    fn source_at(&self, address: impl std::fmt::Display) -> RedisStreams {
        let redis = RedisStreams::at(&format!("redis://{address}"))
            .unwrap()
            .stream(&self.name);
        redis.declare_group("warehouse").take_over_after("1s")
    }
}

impl SourceTrial for Stream {
    type Source = RedisStreams;

    fn source(&self) -> RedisStreams {
        self.source_at(host_of(&self.server))
    }

    async fn send(&self, message: &Incoming) {
        let mut add = redis::cmd("XADD");
        add.arg(&self.name).arg("*");
        for (name, value) in message.headers() {
            add.arg(name).arg(value);
        }
        if let Some(id) = message.message_id() {
            add.arg("message_id").arg(id);
        }
        if let Some(event_type) = message.event_type() {
            add.arg("type").arg(event_type);
        }
        add.arg("data").arg(&**message.body());
        add.query_async::<String>(&mut self.connection.clone()).await.unwrap();
    }

    async fn left(&self) -> usize {
        let mut ask = redis::cmd("XINFO");
        ask.arg("GROUPS").arg(&self.name);
        let groups: Vec<std::collections::HashMap<String, Value>> =
            ask.query_async(&mut self.connection.clone()).await.unwrap();
        let number = |name: &str| match groups[0].get(name) {
            Some(Value::Int(number)) => usize::try_from(*number).unwrap(),
            _ => 0,
        };
        number("pending") + number("lag")
    }
}

#[steadfast::test(sqlite, postgres)]
async fn a_group_holds_everything(t: Harness<Db>) {
    try_source(&t, &Stream::create().await).await;
}

#[steadfast::test(sqlite)]
async fn a_line_that_is_cut_loses_nothing_and_does_nothing_twice(t: Harness<Db>) {
    let (stream, line) = (Stream::create().await, Line::to(host_of(&server())).await);
    let source = stream.source_at(line.address());
    outlives_a_cut(&t, &stream, source, &line).await;
}

#[steadfast::test(sqlite)]
async fn a_group_that_is_only_checked_is_waited_for(t: Harness<Db>) {
    let stream = Stream::find(server(), format!("s{}", uuid::Uuid::now_v7().simple())).await;
    let gate = Arc::new(Semaphore::new(10));
    let source = RedisStreams::at(&server())
        .unwrap()
        .stream(&stream.name)
        .group("warehouse");
    let handled = consume(t.sf(), source, &gate);
    let running = run(t.sf());
    stream.send(&placed(1)).await;
    let mut create = redis::cmd("XGROUP");
    create.arg("CREATE").arg(&stream.name).arg("warehouse").arg("0");
    create
        .query_async::<Value>(&mut stream.connection.clone())
        .await
        .unwrap();
    eventually("it is handled", || async { handled.lock().unwrap().len() == 1 }).await;
    t.sf().stop();
    running.await.unwrap().unwrap();
}
