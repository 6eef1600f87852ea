//! With pika.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use steadfast::testing::{Harness, SourceTrial};
use steadfast::{Feed, Source};
use tokio::sync::Semaphore;

use super::publishes_once;
use crate::source::rabbitmq::Queue;
use crate::source::{consume, health, placed, run, within};

#[steadfast::test(sqlite, postgres)]
async fn three_deliveries_during_a_slow_handler_publish_once(t: Harness<Db>) {
    let broker = std::env::var("TEST_RABBITMQ_URL").expect("TEST_RABBITMQ_URL says where RabbitMQ is");
    let queue = Queue::unmade_at(broker.clone(), false).await;
    queue.declare().await;
    publishes_once(&t, &queue, "produce_rabbitmq.py", &[&broker, "", &queue.name]).await;
}

#[steadfast::test(sqlite)]
async fn a_message_that_the_client_cannot_parse_is_named_and_the_others_come_when_it_is_gone(t: Harness<Db>) {
    let broker = std::env::var("TEST_RABBITMQ_URL").expect("TEST_RABBITMQ_URL says where RabbitMQ is");
    let python = std::env::var("TEST_PYTHON").expect("TEST_PYTHON says where a Python is");
    let queue = Queue::unmade_at(broker.clone(), true).await;
    queue.declare().await;
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../shop/tests/foreign/unparsable_rabbitmq.py"
    );
    let pika = async |verb: &str| {
        let mut command = Command::new(&python);
        command.args(["-B", script, &broker, &queue.name, verb]);
        let ran = tokio::task::spawn_blocking(move || command.status().unwrap()).await;
        assert!(ran.unwrap().success());
    };
    queue.send(&placed(0)).await;
    pika("send").await;
    queue.send(&placed(1)).await;

    let mut feed = queue.source().open(10).await.unwrap();
    let failure = loop {
        // What came before it may be received, and cannot be acknowledged any more.
        match feed.receive(10).await {
            Ok(messages) => {
                let receipts: Vec<_> = messages.iter().map(steadfast::Incoming::receipt).collect();
                tokio::time::sleep(Duration::from_millis(200)).await;
                if let Err(failure) = feed.ack(&receipts).await {
                    break failure;
                }
            }
            Err(failure) => break failure,
        }
    };
    assert_eq!(failure.code(), "unparsable");
    assert!(failure.message().contains(&queue.name), "{failure}");

    let handled = consume(t.sf(), queue.source(), &Arc::new(Semaphore::new(10)));
    let running = run(t.sf());
    within(Duration::from_secs(30), "it is told", async || {
        health(t.sf())
            .await
            .contains("[!] source orders.source receives nothing: unparsable\n")
    })
    .await;
    pika("take").await;
    within(
        Duration::from_secs(60),
        "the others are handled, and nothing is left",
        async || handled.lock().unwrap().len() == 2 && queue.left().await == 0,
    )
    .await;
    assert!(!health(t.sf()).await.contains("[!]"));
    t.sf().stop();
    running.await.unwrap().unwrap();
}
