//! Redis Streams, the real server.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::streams::StreamRangeReply;
use redis::{AsyncCommands, AsyncConnectionConfig};
use steadfast::testing::{Arrived, Harness, SinkTrial, eventually, try_sink};
use steadfast::{Backoff, DeliveryState, Jitter, RedisStreams, RetryPolicy};

use super::line::Line;
use super::order::{Placed, all_are_delivered, look, publish};

fn server() -> String {
    let url = std::env::var("TEST_REDIS_URL");
    url.expect("TEST_REDIS_URL says where Redis is; `cargo xtask test` brings one")
}

/// Host and port of the server.
fn host() -> String {
    host_of(&server()).to_owned()
}

fn host_of(server: &str) -> &str {
    server.trim_start_matches("redis://")
}

/// A stream of its own.
pub(super) struct Stream {
    name: String,
    server: String,
    pub(super) connection: MultiplexedConnection,
}

/// An entry, as somebody else sees it.
pub(super) struct Entry {
    id: String,
    fields: BTreeMap<String, Vec<u8>>,
}

impl Entry {
    pub(super) fn text(&self, field: &str) -> &str {
        std::str::from_utf8(&self.fields[field]).unwrap()
    }
}

impl Stream {
    async fn create() -> Self {
        Self::create_at(server()).await
    }

    /// On the server at this address.
    pub(super) async fn create_at(server: String) -> Self {
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        Self::find(server, name).await
    }

    async fn find(server: String, name: String) -> Self {
        let client = redis::Client::open(&*server).unwrap();
        // All of a stream at once takes longer than its half a second on a busy machine.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connection = connecting.await.unwrap();
        Self {
            name,
            server,
            connection,
        }
    }

    /// The same stream, over a connection that nobody has lost.
    pub(super) async fn again(&self) -> Self {
        Self::find(self.server.clone(), self.name.clone()).await
    }

    /// A sink to it, over this address.
    fn sink_at(&self, address: impl std::fmt::Display) -> RedisStreams {
        RedisStreams::at(&format!("redis://{address}"))
            .unwrap()
            .stream(&self.name)
    }

    pub(super) async fn entries(&self) -> Vec<Entry> {
        let mut connection = self.connection.clone();
        let reply: StreamRangeReply = connection.xrange_all(&self.name).await.unwrap();
        let entry = |entry: redis::streams::StreamId| Entry {
            fields: entry
                .map
                .iter()
                .map(|(name, value)| (name.clone(), redis::from_redis_value(value.clone()).unwrap()))
                .collect(),
            id: entry.id,
        };
        reply.ids.into_iter().map(entry).collect()
    }
}

impl SinkTrial for Stream {
    type Sink = RedisStreams;

    fn sink(&self) -> RedisStreams {
        self.sink_at(host_of(&self.server))
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let arrived = |entry: Entry| Arrived {
            attributes: entry
                .fields
                .keys()
                .filter_map(|field| Some((field.strip_prefix("ce-")?.to_owned(), entry.text(field).to_owned())))
                .collect(),
            payload: entry.fields["data"].clone(),
        };
        self.entries().await.into_iter().map(arrived).collect()
    }
}

#[steadfast::test(sqlite, postgres)]
async fn a_stream_gets_everything(t: Harness<Db>) {
    try_sink(&t, &Stream::create().await).await;
}

#[steadfast::test(sqlite)]
async fn an_entry_says_what_it_is_and_the_delivery_where_it_is(t: Harness<Db>) {
    let stream = Stream::create().await;
    t.sf().sink("orders").deliver_to(stream.sink());
    t.sf().declare().await.unwrap();
    let id = publish(&t, 7).await;
    t.sf().drain().await.unwrap();
    let entry = stream.entries().await.remove(0);
    assert_eq!(entry.text("ce-id"), id.to_string());
    assert_eq!(entry.text("ce-type"), "order.placed");
    assert_eq!(entry.text("ce-specversion"), "1.0");
    assert_eq!(entry.text("content-type"), "application/json");
    assert_eq!(entry.text("data"), r#"{"order":7}"#);
    let delivery = look(&t, id).await.deliveries.remove(0);
    assert_eq!(delivery.detail, Some(format!("{} {}", stream.name, entry.id)));
}

#[steadfast::test(sqlite)]
async fn a_key_that_is_no_stream_fails_alone_and_is_used_once_it_is_free(t: Harness<Db>) {
    let stream = Stream::create().await;
    let taken = format!("{}.taken", stream.name);
    let mut connection = stream.connection.clone();
    let _: () = connection.set(&taken, "a string").await.unwrap();
    let (free, other) = (stream.name.clone(), taken.clone());
    let sink = stream.sink().stream_of(move |event| {
        let placed: Placed = serde_json::from_slice(event.payload()).unwrap();
        match placed.order % 3 {
            1 => other.clone(),
            _ => free.clone(),
        }
    });
    // Not again while somebody looks.
    let hour = Duration::from_secs(3600);
    let retry = RetryPolicy::builder().backoff(Backoff::Constant(hour)).cap(hour);
    let retry = retry.jitter(Jitter::None).build().unwrap();
    t.sf().sink("orders").retry(retry).deliver_to(sink);
    t.sf().declare().await.unwrap();
    let publishing = t.sf().transact(async |tx| {
        let ids: Result<Vec<_>, _> = (0..30).map(|order| tx.publish(&Placed { order })).collect();
        Ok(ids?)
    });
    let ids = publishing.await.unwrap();
    // As a service does: many in a batch.
    let sf = t.sf().clone();
    let dispatching = tokio::spawn(async move { sf.dispatch().await });
    eventually("the last two were tried", || async {
        let (last, before) = (look(&t, ids[29]).await, look(&t, ids[28]).await);
        last.deliveries[0].state == DeliveryState::Delivered && !before.failures.is_empty()
    })
    .await;
    t.sf().stop();
    dispatching.await.unwrap().unwrap();
    assert_eq!(stream.entries().await.len(), 20, "the neighbours are there");
    for (order, id) in ids.iter().enumerate() {
        let message = look(&t, *id).await;
        let state = message.deliveries[0].state;
        match order % 3 {
            1 => {
                assert_eq!(state, DeliveryState::Pending, "order {order}");
                assert_eq!(message.failures[0].code, "wrong_type");
                assert!(message.failures[0].message.contains(&taken));
            }
            _ => assert_eq!(state, DeliveryState::Delivered, "order {order}"),
        }
    }

    let _: () = connection.del(&taken).await.unwrap();
    let other = t.another().await;
    other.sink("orders").deliver_to(stream.sink_at(host()).stream(&taken));
    t.advance("1h");
    other.drain().await.unwrap();
    let entries: usize = connection.xlen(&taken).await.unwrap();
    assert_eq!(entries, 10);
}

#[steadfast::test(sqlite)]
async fn a_stream_keeps_about_as_many_entries_as_it_may(t: Harness<Db>) {
    let stream = Stream::create().await;
    t.sf().sink("orders").deliver_to(stream.sink().max_length(100));
    t.sf().declare().await.unwrap();
    for order in 0..500 {
        publish(&t, order).await;
    }
    t.sf().drain().await.unwrap();
    let entries = stream.entries().await;
    // Redis drops whole nodes of its tree, of a hundred entries each.
    assert!((100..=200).contains(&entries.len()), "{}", entries.len());
    assert_eq!(t.sf().outbox_stats().await.unwrap().backlog().number, 0);
}

#[steadfast::test(sqlite)]
async fn while_the_server_is_away_messages_wait_and_lose_no_attempt(t: Harness<Db>) {
    let stream = Stream::create().await;
    let line = Line::to(&host()).await;
    line.cut();
    t.sf().sink("orders").deliver_to(stream.sink_at(line.address()));
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
    assert_eq!(stream.entries().await.len(), 20);
}

#[steadfast::test(sqlite)]
async fn a_lost_connection_is_opened_again(t: Harness<Db>) {
    let stream = Stream::create().await;
    let line = Line::to(&host()).await;
    t.sf().sink("orders").deliver_to(stream.sink_at(line.address()));
    t.sf().declare().await.unwrap();
    for order in 0..3 {
        line.mend();
        publish(&t, order).await;
        all_are_delivered(&t).await;
        line.cut();
    }
    assert_eq!(stream.entries().await.len(), 3);
}

#[steadfast::test(sqlite)]
async fn what_was_not_confirmed_is_sent_again_and_is_there_twice_with_the_same_id(t: Harness<Db>) {
    let stream = Stream::create().await;
    let line = Line::to(&host()).await;
    let sink = t.sf().sink("orders").time_limit("500ms");
    sink.deliver_to(stream.sink_at(line.address()));
    t.sf().declare().await.unwrap();
    publish(&t, 1).await;
    t.sf().drain().await.unwrap();

    line.mute();
    let id = publish(&t, 2).await;
    t.sf().drain().await.unwrap();
    assert_eq!(look(&t, id).await.failures[0].code, "unconfirmed");
    assert_eq!(stream.entries().await.len(), 2, "it has arrived all the same");

    line.mend();
    all_are_delivered(&t).await;
    let entries = stream.entries().await;
    assert!(entries.len() > 2);
    for entry in &entries[1..] {
        assert_eq!(entry.text("ce-id"), id.to_string());
    }
    assert_eq!(line.calls(), 2, "nobody waits on a line that has gone quiet");
}

#[steadfast::test(sqlite)]
async fn a_line_that_breaks_before_the_reply_leaves_it_unknown(t: Harness<Db>) {
    let stream = Stream::create().await;
    let line = Line::to(&host()).await;
    t.sf().sink("orders").deliver_to(stream.sink_at(line.address()));
    t.sf().declare().await.unwrap();
    publish(&t, 1).await;
    t.sf().drain().await.unwrap();

    line.mute();
    let id = publish(&t, 2).await;
    let sf = t.sf().clone();
    let draining = tokio::spawn(async move { sf.drain().await });
    eventually("it has arrived", || async { stream.entries().await.len() == 2 }).await;
    line.cut();
    draining.await.unwrap().unwrap();
    assert_eq!(look(&t, id).await.failures[0].code, "unconfirmed");

    line.mend();
    all_are_delivered(&t).await;
    assert_eq!(stream.entries().await[2].text("ce-id"), id.to_string());
}

#[steadfast::test(sqlite)]
async fn with_wrong_credentials_messages_wait(t: Harness<Db>) {
    let stream = Stream::create().await;
    t.sf()
        .sink("orders")
        .deliver_to(stream.sink_at(format!("nobody:wrong@{}", host())));
    t.sf().declare().await.unwrap();
    let id = publish(&t, 7).await;
    t.sf().drain().await.unwrap();
    let message = look(&t, id).await;
    assert_eq!(
        (message.deliveries[0].state, message.failures.len()),
        (DeliveryState::Pending, 0)
    );

    let other = t.another().await;
    other.sink("orders").deliver_to(stream.sink());
    t.advance("1h");
    other.drain().await.unwrap();
    assert_eq!(stream.entries().await.len(), 1);
}
