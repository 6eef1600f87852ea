//! Redis Streams as a source, the real server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use steadfast::testing::{Harness, SourceTrial, eventually, try_source};
use steadfast::{Feed, Incoming, RedisStreams, Source};
use tokio::sync::Semaphore;

use super::super::line::Line;
use super::{consume, hands_out_no_more_than_may_be_here, outlives_a_cut, placed, run, within};

/// How long a server that was killed may read its data.
const LOADING_MAX: Duration = Duration::from_secs(30);

fn server() -> String {
    let url = std::env::var("TEST_REDIS_URL");
    url.expect("TEST_REDIS_URL says where Redis is; `cargo xtask test` brings one")
}

fn host_of(server: &str) -> &str {
    server.trim_start_matches("redis://")
}

/// A stream of its own, with a group.
pub(crate) struct Stream {
    pub(crate) name: String,
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
        let (mut connection, start) = (self.connection.clone(), Instant::now());
        loop {
            match add.query_async::<String>(&mut connection).await {
                // It was killed, and reads its data.
                Err(error) if error.code() == Some("LOADING") && start.elapsed() < LOADING_MAX => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                added => {
                    added.unwrap();
                    return;
                }
            }
        }
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

/// The entries of a stream, each with its fields as text.
async fn entries(stream: &str, connection: &MultiplexedConnection) -> Vec<Vec<String>> {
    let mut read = redis::cmd("XRANGE");
    read.arg(stream).arg("-").arg("+");
    let entries: Vec<(String, Vec<String>)> = read.query_async(&mut connection.clone()).await.unwrap();
    entries.into_iter().map(|(_, fields)| fields).collect()
}

#[steadfast::test(sqlite, postgres)]
async fn dead_letters_keep_their_bytes_and_their_fields(t: Harness<Db>) {
    let (stream, dead) = (Stream::create().await, format!("d{}", uuid::Uuid::now_v7().simple()));
    let source = stream.source().dead_letter_stream(&dead);
    let handled = consume(t.sf(), source, &Arc::new(Semaphore::new(10)));
    let odd = || Incoming::new("no id").with_event_type("order.placed");
    // They have no id and the same bytes, and are two messages.
    stream.send(&odd()).await;
    stream.send(&odd()).await;
    let undecodable = Incoming::new("no json")
        .with_message_id("17")
        .with_event_type("order.placed");
    stream.send(&undecodable.with_header("x-words", "all of them")).await;
    stream.send(&placed(1)).await;
    let running = run(t.sf());
    eventually("the good one is handled", || async {
        handled.lock().unwrap().len() == 1
    })
    .await;
    eventually("there are three letters", || async {
        entries(&dead, &stream.connection).await.len() == 3
    })
    .await;
    eventually("nothing is left", || async { stream.left().await == 0 }).await;
    let mut letters = entries(&dead, &stream.connection).await;
    letters.sort_by_key(Vec::len);
    let no_id = ["type", "order.placed", "steadfast-why", "no_id", "data", "no id"];
    assert_eq!(
        (&letters[0][..], &letters[1][..]),
        (&no_id.map(str::to_owned)[..], &no_id.map(str::to_owned)[..])
    );
    let fields = ["x-words", "all of them", "message_id", "17", "type", "order.placed"];
    let why = ["steadfast-why", "undecodable", "data", "no json"];
    assert_eq!(letters[2], [&fields[..], &why[..]].concat());
    assert_eq!(t.sf().outbox_stats().await.unwrap().dead().number, 3);
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[steadfast::test(sqlite, postgres)]
async fn a_letter_has_fields_that_are_no_text_byte_for_byte(t: Harness<Db>) {
    let (stream, dead) = (Stream::create().await, format!("d{}", uuid::Uuid::now_v7().simple()));
    let source = stream.source().dead_letter_stream(&dead);
    consume(t.sf(), source, &Arc::new(Semaphore::new(10)));
    let fields: [&[u8]; 4] = [b"x-bytes", b"\xff\x00", b"\xfe", b"{\"bytes\":[1]}"];
    let mut add = redis::cmd("XADD");
    add.arg(&stream.name).arg("*").arg(&fields).arg("body").arg("no id");
    add.query_async::<String>(&mut stream.connection.clone()).await.unwrap();
    let running = run(t.sf());
    let read = async || {
        let (mut read, mut connection) = (redis::cmd("XRANGE"), stream.connection.clone());
        read.arg(&dead).arg("-").arg("+");
        let read = read.query_async::<Vec<(String, Vec<Vec<u8>>)>>(&mut connection);
        read.await.unwrap()
    };
    eventually("there is a letter", || async { read().await.len() == 1 }).await;
    let mut letter = read().await.remove(0).1;
    let why = letter.split_off(fields.len());
    assert_eq!(letter, fields);
    assert_eq!(why, [&b"steadfast-why"[..], b"no_id", b"data", b"no id"]);
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn no_more_is_handed_out_than_may_be_here() {
    hands_out_no_more_than_may_be_here(&Stream::create().await).await;
}

/// The names of the consumers of the group.
async fn names(stream: &Stream) -> Vec<String> {
    let mut ask = redis::cmd("XINFO");
    ask.arg("CONSUMERS").arg(&stream.name).arg("warehouse");
    let consumers: Vec<std::collections::HashMap<String, Value>> =
        ask.query_async(&mut stream.connection.clone()).await.unwrap();
    let name = |consumer: &std::collections::HashMap<String, Value>| match &consumer["name"] {
        Value::BulkString(name) => String::from_utf8(name.clone()).unwrap(),
        other => panic!("{other:?} is a name"),
    };
    consumers.iter().map(name).collect()
}

#[tokio::test]
async fn the_name_of_a_process_that_is_gone_is_removed_unless_it_has_something() {
    let stream = Stream::create().await;
    let call = async |command: &str| {
        let mut words = command.split(' ');
        let mut call = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            call.arg(word);
        });
        call.query_async::<Value>(&mut stream.connection.clone()).await.unwrap();
    };
    stream.send(&placed(1)).await;
    let name = &stream.name;
    call(&format!(
        "XREADGROUP GROUP warehouse steadfast-1-has-something STREAMS {name} >"
    ))
    .await;
    call(&format!(
        "XGROUP CREATECONSUMER {name} warehouse steadfast-2-has-nothing"
    ))
    .await;
    call(&format!("XGROUP CREATECONSUMER {name} warehouse somebody-else")).await;
    let is_gone = async || {
        // Each that starts looks, and its own name goes with it.
        Source::open(&stream.source(), 10).await.unwrap().close().await;
        !names(&stream).await.contains(&"steadfast-2-has-nothing".to_owned())
    };
    assert!(!is_gone().await, "it was there just now");
    within(Duration::from_secs(60), "its name is removed", is_gone).await;
    let mut left = names(&stream).await;
    left.sort_unstable();
    assert_eq!(left, ["somebody-else", "steadfast-1-has-something"]);
    assert_eq!(stream.left().await, 1, "what it has is not lost");
}
