//! A RabbitMQ to kill, whose disk can be said to be full, and which takes small messages only.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use steadfast::testing::{Harness, SinkTrial, SourceTrial};
use steadfast::{DeliveryState, Incoming, MessageId};
use tokio::sync::{Mutex, Semaphore};

use super::chaos::{Victim, arrive_with_room, outlives_a_kill, refuses_what_is_too_large, wait_for_room};
use super::order::{look, publish};
use super::rabbitmq::{Exchange, Got};
use super::source::{consume_one_by_one, placed, run, within};

static TURN: Mutex<()> = Mutex::const_new(());

async fn broker() -> Victim {
    Victim::take("RABBITMQ", &TURN).await
}

/// Says how much of the disk has to be free, in bytes, for the broker to take messages.
fn set_disk_free_limit(broker: &Victim, bytes: u64) {
    let mut asking = Command::new(broker.home.join("rabbitmqctl"));
    let asked = asking.args(["set_disk_free_limit", &bytes.to_string()]).status();
    assert!(asked.unwrap().success());
}

#[steadfast::test(sqlite)]
async fn a_killed_broker_loses_nothing_and_has_twice_what_it_did_not_confirm(t: Harness<Db>) {
    let broker = broker().await;
    let exchange = Exchange::create_durable_at(broker.url.clone()).await;
    let sink = exchange.sink();
    outlives_a_kill(&t, &broker, sink, async || {
        let messages = exchange.again().await.messages().await;
        messages.iter().map(Got::id).collect()
    })
    .await;
}

#[steadfast::test(sqlite)]
async fn messages_wait_for_a_broker_without_disk_and_arrive_by_themselves(t: Harness<Db>) {
    let broker = broker().await;
    let exchange = Exchange::create_durable_at(broker.url.clone()).await;
    t.sf().sink("orders").time_limit("500ms").deliver_to(exchange.sink());
    t.sf().declare().await.unwrap();
    set_disk_free_limit(&broker, u64::MAX >> 8);
    // The broker says that it takes nothing when somebody sends something.
    let first = publish(&t, 1).await;
    t.sf().drain().await.unwrap();
    assert_eq!(look(&t, first).await.failures[0].code, "unconfirmed");
    let second = publish(&t, 2).await;
    wait_for_room(&t, &[first, second]).await;
    set_disk_free_limit(&broker, 0);
    arrive_with_room(&t, &[first, second]).await;
    assert_eq!(look(&t, first).await.failures.len(), 1);
    assert_eq!(look(&t, second).await.failures.len(), 0);
    let got: Vec<_> = exchange.messages().await.iter().map(Got::id).collect();
    let times = |id: MessageId| got.iter().filter(|got| **got == id.to_string()).count();
    assert!((1..=2).contains(&times(first)) && times(second) == 1, "{got:?}");
}

#[steadfast::test(sqlite)]
async fn what_is_larger_than_the_broker_takes_is_dead_and_harms_no_other(t: Harness<Db>) {
    let broker = broker().await;
    let exchange = Exchange::create_durable_at(broker.url.clone()).await;
    let ids = refuses_what_is_too_large(&t, exchange.sink()).await;
    let got: Vec<_> = exchange.messages().await.iter().map(Got::id).collect();
    for id in &ids {
        let times = got.iter().filter(|got| **got == id.to_string()).count();
        let detail = look(&t, *id).await.deliveries.remove(0).detail;
        let has_cause = detail
            .as_ref()
            .is_some_and(|detail| detail.contains("may be there twice"));
        assert!(times == 1 || times == 2 && has_cause, "{times} times: {detail:?}");
    }
    let strangers = got.iter().filter(|got| !ids.iter().any(|id| **got == id.to_string()));
    assert_eq!(strangers.count(), 0);
}

/// How many messages a queue has, handed out or not.
fn messages_in(broker: &Victim, queue: &str) -> usize {
    let mut asking = Command::new(broker.home.join("rabbitmqctl"));
    let asked = asking.args(["-q", "list_queues", "--no-table-headers", "name", "messages"]);
    let said = String::from_utf8(asked.output().unwrap().stdout).unwrap();
    let line = said.lines().find_map(|line| line.strip_prefix(queue));
    line.expect("the queue is listed").trim().parse().unwrap()
}

// On SQLite a handler that waits keeps the writer, and nobody could say that the letter was put off.
#[steadfast::test(postgres)]
async fn a_letter_that_waits_for_a_broker_without_disk_holds_up_no_acknowledgement(t: Harness<Db>) {
    const ORDERS: u32 = 3;
    let broker = broker().await;
    let queue = crate::source::rabbitmq::Queue::unmade_at(broker.url.clone(), true).await;
    queue.declare().await;
    let dead = crate::source::rabbitmq::Queue::unmade_at(broker.url.clone(), true).await;
    dead.declare().await;
    // Letter and messages have been handed out when the broker has no room any more. Nobody could send them then.
    let gate = Arc::new(Semaphore::new(0));
    let handled = consume_one_by_one(t.sf(), queue.source().dead_letter_queue(&dead.name), &gate);
    queue.send(&placed(0)).await;
    queue
        .send(&Incoming::new("no id").with_event_type("order.placed"))
        .await;
    for order in 1..ORDERS {
        queue.send(&placed(order)).await;
    }
    let running = run(t.sf());
    within(Duration::from_secs(30), "all are handed out", async || {
        queue.left().await == 0
    })
    .await;
    set_disk_free_limit(&broker, u64::MAX >> 8);
    gate.add_permits(1);
    within(Duration::from_secs(30), "the letter is in line", async || {
        t.sf().outbox_stats().await.unwrap().backlog().number == 1
    })
    .await;
    // The broker says that it takes nothing when somebody sends something.
    within(Duration::from_secs(30), "the letter was sent", async || {
        let letters = t.sf().deliveries().page().await.unwrap().deliveries;
        letters
            .iter()
            .any(|letter| letter.state == DeliveryState::Pending && letter.due_at > Some(SystemTime::now()))
    })
    .await;
    gate.add_permits(10);
    within(Duration::from_secs(30), "the others are acknowledged", async || {
        messages_in(&broker, &queue.name) == 0
    })
    .await;
    assert_eq!(handled.lock().unwrap().len(), ORDERS as usize);
    assert_eq!(messages_in(&broker, &dead.name), 0, "there is still no room");
    set_disk_free_limit(&broker, 0);
    assert_eq!(dead.letter().await.data, b"no id");
    t.sf().stop();
    running.await.unwrap().unwrap();
}

#[steadfast::test(sqlite, postgres)]
async fn a_killed_broker_hands_out_again_what_then_acts_once(t: Harness<Db>) {
    let broker = broker().await;
    // Of one node, a quorum queue of RabbitMQ 3.10 takes nothing for a minute after a kill, and may have lost what it has confirmed.
    let queue = crate::source::rabbitmq::Queue::unmade_at(broker.url.clone(), true).await;
    queue.declare().await;
    crate::source::outlives_a_kill(&t, &broker, &queue, async || queue.again().await).await;
}
