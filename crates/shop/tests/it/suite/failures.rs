//! Handlers that fail, panic or take too long, and clients that go away.

use super::{Database, KEYS};
use crate::http::Response;
use crate::process::{Shop, send_until_settled};

/// Sends an order that fails after its write, checks that nothing is left, and that a retry without the fault executes.
async fn fail_and_retry(fault: &str) -> Response {
    let database = Database::fresh().await;
    let shop = Shop::lab(&database.url()).await;
    let failed = shop.order("key-1").fault(fault).send().await;
    assert_eq!(database.count("orders").await, 0);
    assert_eq!(database.count(KEYS).await, 0);

    let retry = shop.order("key-1").send().await;
    assert_eq!(retry.status, 201, "{}", retry.text());
    assert!(!retry.is_replayed());
    assert_eq!(database.count("orders").await, 1);
    failed
}

#[tokio::test]
async fn a_transient_failure_leaves_the_key_free() {
    let failed = fail_and_retry("fail=transient").await;
    assert_eq!(failed.status, 503);
    assert!(failed.header("retry-after").is_some());
}

#[tokio::test]
async fn a_definitive_failure_leaves_no_row_and_the_key_free() {
    let failed = fail_and_retry("fail=definitive").await;
    assert_eq!(failed.status, 422);
    assert_eq!(failed.json()["code"], "lab_definitive");
}

#[tokio::test]
async fn a_panic_rolls_back_and_the_process_survives() {
    let failed = fail_and_retry("panic").await;
    assert_eq!(failed.status, 500);
    assert_eq!(failed.json()["code"], "SF029");
    assert!(
        !failed.text().contains("the lab"),
        "the panic's message stays on the server"
    );
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_take_its_command_down() {
    let database = Database::fresh().await;
    let shop = Shop::lab(&database.url()).await;
    let stream = shop
        .order("key-1")
        .fault("hold=until-released")
        .dispatch()
        .await
        .unwrap();
    shop.holds(1).await;
    drop(stream);
    shop.holds(1).await;
    shop.release().await;

    let retry = send_until_settled(&shop.order("key-1")).await;
    assert_eq!(retry.status, 201);
    assert!(retry.is_replayed(), "the first one went on to its end");
    assert_eq!(database.count("orders").await, 1);
}

#[tokio::test]
async fn clients_that_hang_up_anywhere_leave_nothing_half_done() {
    let database = Database::fresh().await;
    let shop = Shop::lab(&database.url()).await;
    for key in (0..20).map(|number| format!("key-{number}")) {
        // Gone before the answer, at a moment of the machine's choosing.
        drop(shop.order(&key).dispatch().await.unwrap());
    }
    for key in (0..20).map(|number| format!("key-{number}")) {
        assert_eq!(send_until_settled(&shop.order(&key)).await.status, 201);
    }
    assert_eq!(database.count("orders").await, 20);
    assert_eq!(database.count(KEYS).await, 20);
}

#[tokio::test]
async fn accidents_happen_to_payments_too() {
    let database = Database::fresh().await;
    let shop = Shop::lab(&database.url()).await;
    let pay = || {
        let request = shop.request("POST", "/payments").user("user-a").key("key-1");
        request.form("amount=5&currency=EUR")
    };
    for (fault, status) in [("fail=transient", 503), ("fail=definitive", 422), ("panic", 500)] {
        assert_eq!(pay().fault(fault).send().await.status, status, "{fault}");
        assert_eq!(database.count("payments").await, 0, "{fault}");
    }
    assert_eq!(pay().fault("hold=1ms").send().await.status, 201);
    assert_eq!(database.count("payments").await, 1);
}

#[tokio::test]
async fn an_unknown_fault_is_refused_with_the_known_ones() {
    let database = Database::fresh().await;
    let shop = Shop::lab(&database.url()).await;
    let refused = shop.order("key-1").fault("explode").send().await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("kill=") && refused.text().contains("hold=until-released"));
    assert_eq!(database.count("orders").await, 0);
}
