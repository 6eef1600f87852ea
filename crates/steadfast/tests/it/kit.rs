//! The test kit that users have, tested with itself.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use steadfast::testing::{Harness, Point, eventually};
use steadfast::{Code, Error, Failure, FailureClass, StoreFailures, sqlx};

const TABLES: &str = "CREATE TABLE orders (sku TEXT NOT NULL)";

/// Places an order, on either database.
macro_rules! place {
    ($sf:expr, $owner:expr, $key:expr) => {
        $sf.command("orders.place", $key).owner($owner).run(async |tx| {
            let insert = sqlx::query("INSERT INTO orders (sku) VALUES ('tea')");
            insert.execute(tx.db()).await?;
            Ok("placed".to_owned())
        })
    };
}

/// What a future panics with.
async fn panic_of(future: impl Future<Output = ()>) -> String {
    let panic = AssertUnwindSafe(future).catch_unwind().await.expect_err("a panic");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[steadfast::test(sqlite, postgres)]
async fn a_test_has_a_fresh_database_with_our_tables(t: Harness<Db>) {
    t.run(TABLES).await;
    t.assert_count("orders", 0).await;
    t.assert_keys(0).await;
    assert!(!place!(t.sf(), t.owner(), "k").await.unwrap().replayed);
    assert!(place!(t.sf(), t.owner(), "k").await.unwrap().replayed);
    t.assert_count("orders", 1).await;
    t.assert_count("SELECT count(*) FROM orders WHERE sku = 'jam'", 0).await;
    assert_eq!(t.count("orders").await, 1);
    t.assert_keys(1).await;
    t.assert_completed("orders.place", "k").await;
    t.assert_no_key("orders.place", "another").await;
}

#[steadfast::test(sqlite, postgres)]
async fn another_process_shares_the_database_and_the_clock_and_no_memory(t: Harness<Db>) {
    t.run(TABLES).await;
    let another = t.another().await;
    place!(t.sf(), t.owner(), "k").await.unwrap();
    assert!(place!(another, t.owner(), "k").await.unwrap().replayed);
    t.advance("23h");
    t.advance(Duration::from_secs(30 * 60));
    assert_eq!(t.clock().offset(), Duration::from_secs(23 * 3600 + 1800));
    assert!(place!(another, t.owner(), "k").await.unwrap().replayed);
    t.advance("1h");
    t.assert_no_key("orders.place", "k").await;
    t.assert_keys(0).await;
    assert!(!place!(another, t.owner(), "k").await.unwrap().replayed);
    t.assert_count("orders", 2).await;
}

#[steadfast::test(sqlite, postgres)]
async fn a_reopened_process_finds_what_was_committed(mut t: Harness<Db>) -> Result<(), Error> {
    t.run(TABLES).await;
    place!(t.sf(), t.owner(), "k").await?;
    let old = t.sf().clone();
    t.reopen().await;
    assert!(old.is_stopping() && old.pool().is_closed());
    assert!(!t.sf().is_stopping());
    assert!(place!(t.sf(), t.owner(), "k").await?.replayed);
    t.reached(Point::AfterCommit).await;
    Ok(())
}

#[steadfast::test(sqlite, postgres)]
async fn what_an_assertion_found_is_in_its_message(t: Harness<Db>) {
    t.run(TABLES).await;
    place!(t.sf(), t.owner(), "k1").await.unwrap();
    let failing = t.sf().command("orders.refuse", "k2").owner(t.owner());
    let failing = failing.store_failures(StoreFailures::Definitive).run(async |_| {
        let failure = Failure::definitive(FailureClass::BusinessRule, "out_of_stock", "nothing is left");
        Err::<(), _>(failure)
    });
    failing.await.unwrap_err();

    let found =
        "orders.place \"k1\" of tenant-1/user-a: completed\n  orders.refuse \"k2\" of tenant-1/user-a: failed\n";
    for message in [
        panic_of(t.assert_keys(1)).await,
        panic_of(t.assert_completed("orders.refuse", "k2")).await,
        panic_of(t.assert_completed("orders.place", "k3")).await,
        panic_of(t.assert_no_key("orders.refuse", "k2")).await,
    ] {
        assert!(message.contains(found), "{message}");
        assert!(message.contains("kit.rs:"), "it says which line asked: {message}");
    }
    let message = panic_of(t.assert_count("orders", 7)).await;
    assert!(message.contains("orders: expected 7, found 1"), "{message}");
    let message = panic_of(async { t.run("SELECT nothing FROM nowhere").await }).await;
    assert!(message.contains("nowhere"), "{message}");
}

#[steadfast::test(sqlite, postgres)]
async fn a_held_command_stays_at_its_point_until_it_is_released(t: Harness<Db>) {
    t.run(TABLES).await;
    let hold = t.hold(Point::BeforeCommit);
    let (sf, owner) = (t.sf().clone(), t.owner().clone());
    let first = tokio::spawn(async move { place!(sf, &owner, "k").await });
    hold.reached().await;
    t.reached(Point::AfterClaim).await;
    assert_eq!(place!(t.sf(), t.owner(), "k").await.unwrap_err().code(), Code::InFlight);
    t.assert_count("orders", 0).await;
    assert!(!first.is_finished());
    hold.release();
    assert!(!first.await.unwrap().unwrap().replayed);
    eventually("the order is there", async || t.count("orders").await == 1).await;
}

/// More than there are workers: a held command does not use one up. PostgreSQL only, where several can write at once.
#[steadfast::test(postgres)]
async fn more_commands_can_be_held_than_there_are_workers(t: Harness<Db>) {
    t.run(TABLES).await;
    let mut holds = Vec::new();
    let mut calls = Vec::new();
    for key in ["k1", "k2", "k3", "k4"] {
        let hold = t.hold(Point::BeforeCommit);
        let (sf, owner) = (t.sf().clone(), t.owner().clone());
        calls.push(tokio::spawn(async move { place!(sf, &owner, key).await }));
        hold.reached().await;
        holds.push(hold);
    }
    t.assert_keys(0).await;
    drop(holds);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    t.assert_keys(4).await;
}

#[tokio::test(start_paused = true)]
async fn a_fact_that_never_comes_true_is_named() {
    let message = panic_of(eventually("pigs fly", async || false)).await;
    assert_eq!(message, "never came true within 10s: pigs fly");
}

#[steadfast::test(sqlite, postgres)]
#[should_panic(expected = "the test's own words")]
async fn a_test_that_should_panic_may(_t: Harness<Db>) {
    panic!("the test's own words");
}

#[steadfast::test(sqlite, postgres)]
#[ignore = "it shows that other attributes are kept: were this one not, the suite would fail"]
async fn a_test_that_is_ignored_does_not_run(_t: Harness<Db>) {
    panic!("this test is ignored");
}
