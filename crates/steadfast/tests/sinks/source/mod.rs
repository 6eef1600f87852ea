//! Sources: what comes from a broker acts once, whatever is cut or killed.

pub(crate) mod memory;
pub(crate) mod nats;
pub(crate) mod rabbitmq;
pub(crate) mod redis;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use http::Request;
use steadfast::testing::{Harness, SourceTrial, TestDatabase, eventually};
use steadfast::{Event, Feed, Incoming, Source, Steadfast, Tx};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use super::chaos::Victim;
use super::line::Line;
use super::order::{Described, Placed};

/// How often each order was handled.
pub(crate) type Handled = Arc<Mutex<BTreeMap<u32, usize>>>;

/// A message about an order.
pub(crate) fn placed(order: u32) -> Incoming {
    Incoming::new(format!(r#"{{"order":{order}}}"#))
        .with_message_id(format!("order-{order}"))
        .with_event_type(Placed::TYPE)
}

/// A process that handles orders from a source, each when it is let through.
pub(crate) fn consume<Db: TestDatabase>(sf: &Steadfast<Db>, source: impl Source, gate: &Arc<Semaphore>) -> Handled {
    let handled = count(sf, gate);
    sf.source("orders.source").events("order.*").consume_from(source);
    handled
}

/// The same, each in a transaction of its own.
pub(crate) fn consume_one_by_one<Db: TestDatabase>(
    sf: &Steadfast<Db>,
    source: impl Source,
    gate: &Arc<Semaphore>,
) -> Handled {
    let handled = count(sf, gate);
    let intake = sf.source("orders.source").events("order.*").batch(1);
    intake.prefetch(100).consume_from(source);
    handled
}

/// Counts how often each order was handled.
fn count<Db: TestDatabase>(sf: &Steadfast<Db>, gate: &Arc<Semaphore>) -> Handled {
    let handled = Handled::default();
    let (counts, gate) = (handled.clone(), gate.clone());
    sf.reaction::<Placed>("orders.count")
        .run_boxed(move |tx: &mut Tx<Db>, event: Placed| {
            let (counts, gate) = (counts.clone(), gate.clone());
            Box::pin(async move {
                gate.acquire().await?.forget();
                // What it does commits with its record.
                let text = event.order.to_string();
                tx.publish(&Described { text })?;
                *counts.lock().unwrap().entry(event.order).or_default() += 1;
                Ok(())
            })
        });
    handled
}

pub(crate) fn run<Db: TestDatabase>(sf: &Steadfast<Db>) -> JoinHandle<steadfast::Result<()>> {
    let sf = sf.clone();
    tokio::spawn(async move { sf.dispatch().await })
}

/// How a process says that it is doing.
pub(crate) async fn health<Db: TestDatabase>(sf: &Steadfast<Db>) -> String {
    let app: axum::Router = sf.routes();
    let asked = Request::get("/readyz?verbose").body(Body::empty()).unwrap();
    let response = app.oneshot(asked).await.unwrap();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

/// How many orders have a record: what they did is durable.
pub(crate) async fn records<Db: TestDatabase>(sf: &Steadfast<Db>) -> u64 {
    sf.inbox_stats().await.unwrap().records.number
}

/// Cuts the line to the broker while orders are handled: what it did not hear of comes again, and acts once.
async fn outlives_a_cut<Db: TestDatabase, T: SourceTrial>(t: &Harness<Db>, trial: &T, source: T::Source, line: &Line) {
    const ORDERS: u32 = 5;
    let gate = Arc::new(Semaphore::new(0));
    let handled = consume(t.sf(), source, &gate);
    let running = run(t.sf());
    for order in 0..ORDERS {
        trial.send(&placed(order)).await;
    }
    eventually("the broker is called", || async { line.calls() > 0 }).await;
    // One is worked on; its broker is gone before it hears of that.
    gate.add_permits(1);
    eventually("one is handled", || async { !handled.lock().unwrap().is_empty() }).await;
    line.cut();
    gate.add_permits(1_000);
    eventually("what was received is durable", || async { records(t.sf()).await > 0 }).await;
    line.mend();
    within(
        Duration::from_secs(60),
        "all are handled, and nothing is left",
        async || {
            let backlog = t.sf().outbox_stats().await.unwrap().backlog().number;
            records(t.sf()).await == u64::from(ORDERS) && trial.left().await == 0 && backlog == 0
        },
    )
    .await;
    t.sf().stop();
    running.await.unwrap().unwrap();
    let backlog = t.sf().outbox_stats().await.unwrap();
    assert_eq!((backlog.backlog().number, backlog.dead().number), (0, 0));
    assert_each_once(t, &handled, ORDERS).await;
}

/// Memory is bounded by the prefetch, whatever a batch would like.
async fn hands_out_no_more_than_may_be_here<T: SourceTrial>(trial: &T) {
    for order in 0..5 {
        trial.send(&placed(order)).await;
    }
    let mut feed = Source::open(&trial.source(), 2).await.unwrap();
    assert_eq!(feed.receive(100).await.unwrap().len(), 2);
}

/// Waits for a fact that takes its time.
pub(crate) async fn within(limit: Duration, what: &str, mut fact: impl AsyncFnMut() -> bool) {
    let start = std::time::Instant::now();
    while !fact().await {
        assert!(start.elapsed() < limit, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Each order was handled, and what it did is there once.
async fn assert_each_once<Db: TestDatabase>(t: &Harness<Db>, handled: &Handled, orders: u32) {
    let handled: Vec<_> = handled.lock().unwrap().keys().copied().collect();
    assert_eq!(handled, (0..orders).collect::<Vec<_>>());
    let messages = match Db::NAME {
        "SQLite" => "steadfast_messages",
        _ => "steadfast.messages",
    };
    let effects = format!("SELECT count(*) FROM {messages} WHERE type = '{}'", Described::TYPE);
    t.assert_count(&effects, i64::from(orders)).await;
}

/// Kills the broker while orders are handled: each acts once, and none is lost.
pub(crate) async fn outlives_a_kill<Db: TestDatabase, T: SourceTrial>(
    t: &Harness<Db>,
    victim: &Victim,
    trial: &T,
    again: impl AsyncFnOnce() -> T,
) {
    const BEFORE: u32 = 100;
    const AFTER: u32 = 20;
    let gate = Arc::new(Semaphore::new(30));
    let handled = consume(t.sf(), trial.source(), &gate);
    for order in 0..BEFORE {
        trial.send(&placed(order)).await;
    }
    let running = run(t.sf());
    eventually("some are handled", || async { records(t.sf()).await > 0 }).await;
    let back = victim.kill();
    gate.add_permits(10_000);
    back.await;
    let trial = again().await;
    for order in BEFORE..BEFORE + AFTER {
        trial.send(&placed(order)).await;
    }
    within(
        Duration::from_secs(90),
        "all are handled, and nothing is left",
        async || records(t.sf()).await == u64::from(BEFORE + AFTER) && trial.left().await == 0,
    )
    .await;
    within(Duration::from_secs(30), "what was kept is done", async || {
        t.sf().outbox_stats().await.unwrap().backlog().number == 0
    })
    .await;
    t.sf().stop();
    running.await.unwrap().unwrap();
    assert_each_once(t, &handled, BEFORE + AFTER).await;
}
