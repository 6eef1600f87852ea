//! A Redis to kill, and to be told how much it takes.

use redis::aio::MultiplexedConnection;
use steadfast::testing::{Harness, SinkTrial};
use steadfast::{DeliveryState, EVENT_LENGTH_MAX};
use tokio::sync::Mutex;

use super::chaos::{TRIES_IN_FIVE_MINUTES, Victim, arrive_with_room, outlives_a_kill, wait_for_room};
use super::order::{Described, look, publish};
use super::redis::Stream;

static TURN: Mutex<()> = Mutex::const_new(());

async fn server() -> Victim {
    Victim::take("REDIS", &TURN).await
}

/// Changes a setting, and says what it was.
async fn set(connection: &mut MultiplexedConnection, name: &str, value: &str) -> String {
    let asking = redis::cmd("CONFIG").arg("GET").arg(name).query_async(connection).await;
    let [_, before]: [String; 2] = asking.unwrap();
    let setting = redis::cmd("CONFIG")
        .arg("SET")
        .arg(name)
        .arg(value)
        .query_async(connection)
        .await;
    let () = setting.unwrap();
    before
}

/// How many entries were offered to the server while it had no room for them.
async fn refused(connection: &mut MultiplexedConnection) -> u64 {
    let asking = redis::cmd("INFO").arg("commandstats").query_async(connection).await;
    let info: String = asking.unwrap();
    let line = info.lines().find(|line| line.starts_with("cmdstat_xadd:"));
    let refused = line.and_then(|line| line.split("rejected_calls=").nth(1));
    refused.map_or(0, |count| count.split(',').next().unwrap().parse().unwrap())
}

#[steadfast::test(sqlite)]
async fn a_killed_server_loses_nothing_and_has_twice_what_it_did_not_confirm(t: Harness<Db>) {
    let server = server().await;
    let stream = Stream::create_at(server.url.clone()).await;
    let sink = stream.sink();
    outlives_a_kill(&t, &server, sink, async || {
        let entries = stream.again().await.entries().await;
        entries.iter().map(|entry| entry.text("ce-id").to_owned()).collect()
    })
    .await;
}

#[steadfast::test(sqlite)]
async fn messages_wait_for_a_server_without_memory_and_arrive_by_themselves(t: Harness<Db>) {
    let server = server().await;
    let stream = Stream::create_at(server.url.clone()).await;
    t.sf().sink("orders").deliver_to(stream.sink());
    t.sf().declare().await.unwrap();
    let mut connection = stream.connection.clone();
    let before = set(&mut connection, "maxmemory", "1").await;
    let refused_before = refused(&mut connection).await;
    let id = publish(&t, 7).await;
    wait_for_room(&t, &[id]).await;
    let refused = refused(&mut connection).await - refused_before;
    set(&mut connection, "maxmemory", &before).await;
    assert!(
        TRIES_IN_FIVE_MINUTES.contains(&refused),
        "it was offered {refused} times"
    );
    arrive_with_room(&t, &[id]).await;
    assert_eq!(look(&t, id).await.failures.len(), 0);
    assert_eq!(stream.entries().await.len(), 1);
}

#[steadfast::test(sqlite)]
async fn no_event_is_larger_than_a_server_takes_however_little_it_takes(t: Harness<Db>) {
    let server = server().await;
    let stream = Stream::create_at(server.url.clone()).await;
    t.sf().sink("orders").deliver_to(stream.sink());
    t.sf().declare().await.unwrap();
    let mut connection = stream.connection.clone();
    // It refuses to be told less.
    let before = set(&mut connection, "proto-max-bulk-len", "1048576").await;
    let frame = r#"{"text":""}"#.len();
    let text = "x".repeat(EVENT_LENGTH_MAX - frame);
    let publishing = t
        .sf()
        .transact(async |tx| Ok(tx.publish(&Described { text: text.clone() })?));
    let id = publishing.await.unwrap();
    t.sf().drain().await.unwrap();
    set(&mut connection, "proto-max-bulk-len", &before).await;
    assert_eq!(look(&t, id).await.deliveries[0].state, DeliveryState::Delivered);
    assert_eq!(stream.entries().await[0].text("data").len(), EVENT_LENGTH_MAX);
}

#[steadfast::test(sqlite, postgres)]
async fn a_killed_server_hands_out_again_what_then_acts_once(t: Harness<Db>) {
    let server = server().await;
    let stream = crate::source::redis::Stream::create_at(server.url.clone()).await;
    crate::source::outlives_a_kill(&t, &server, &stream, async || stream.again().await).await;
}

#[steadfast::test(postgres)]
async fn a_killed_server_keeps_no_live_client_from_hearing_everything(t: Harness<Db>) {
    let server = server().await;
    let redis = crate::across::redis::Redis::at(server.host());
    crate::across::outlives_a_kill(&t, &server, &redis).await;
}
