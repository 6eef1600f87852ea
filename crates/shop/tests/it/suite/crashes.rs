//! `kill -9` at each point of the corridor, and what is left.

use std::os::unix::process::ExitStatusExt;

use super::{Database, KEYS};
use crate::process::{Shop, send_until_settled};

/// Kills a shop in the middle of an order, and checks that key and order are there together or not at all; then starts
/// it again and retries. Afterwards there is one order, and every further retry gets its answer.
async fn kill_and_retry(point: &str, rows_left: i64) {
    let database = Database::fresh().await;
    let mut shop = Shop::lab(&database.url()).await;
    let doomed = shop.order("key-1").fault(&format!("kill={point}"));
    assert!(doomed.try_send().await.is_err(), "nobody is left to answer");
    assert_eq!(shop.ended().await.signal(), Some(9));
    assert_eq!(database.count("orders").await, rows_left, "orders after the kill");
    assert_eq!(database.count(KEYS).await, rows_left, "keys after the kill");

    let shop = Shop::lab(&database.url()).await;
    let retry = send_until_settled(&shop.order("key-1")).await;
    assert_eq!(retry.status, 201, "{}", retry.text());
    assert_eq!(retry.is_replayed(), rows_left == 1);
    let id = retry.json()["id"].as_str().unwrap().to_owned();
    let those = format!("SELECT count(*) FROM orders WHERE id = '{id}'");
    assert_eq!(database.ask(&those).await, 1, "the answer is about the order");
    assert_eq!(database.count("orders").await, 1);
    assert_eq!(database.count(KEYS).await, 1);

    let again = shop.order("key-1").send().await;
    assert!(again.is_replayed());
    assert_eq!(again.body, retry.body);
}

#[tokio::test]
async fn a_kill_before_the_claim_leaves_nothing_and_the_retry_executes() {
    kill_and_retry("before_claim", 0).await;
}

#[tokio::test]
async fn a_kill_after_the_claim_leaves_nothing_and_the_retry_executes() {
    kill_and_retry("after_claim", 0).await;
}

#[tokio::test]
async fn a_kill_after_the_write_leaves_nothing_and_the_retry_executes() {
    kill_and_retry("after_write", 0).await;
}

#[tokio::test]
async fn a_kill_before_commit_leaves_nothing_and_the_retry_executes() {
    kill_and_retry("before_commit", 0).await;
}

#[tokio::test]
async fn a_kill_after_commit_leaves_the_order_and_the_retry_is_replayed() {
    kill_and_retry("after_commit", 1).await;
}
