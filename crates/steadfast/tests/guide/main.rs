//! The example of docs/guide/testing.md, as it is there.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use steadfast::testing::{Harness, Point};
use steadfast::{Code, Owner, Result, Steadfast, sqlx, sqlx::Sqlite};

// The service.

const TABLES: &str = "CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT NOT NULL)";

async fn place(sf: &Steadfast<Sqlite>, owner: &Owner, key: &str, sku: &str) -> Result<i64> {
    let command = sf.command("orders.place", key).owner(owner).input(&sku);
    let placed = command.run(async |tx| {
        let insert = sqlx::query_scalar("INSERT INTO orders (sku) VALUES ($1) RETURNING id");
        Ok(insert.bind(sku).fetch_one(tx.db()).await?)
    });
    Ok(placed.await?.value)
}

// Its tests.

#[steadfast::test(sqlite)]
async fn an_order_is_placed_once(t: Harness<Db>) -> Result<()> {
    t.run(TABLES).await;
    let first = place(t.sf(), t.owner(), "key-1", "tea").await?;
    let another = t.another().await; // another process on the same database
    assert_eq!(place(&another, t.owner(), "key-1", "tea").await?, first);
    t.assert_count("orders", 1).await;
    t.assert_completed("orders.place", "key-1").await;

    t.advance("25h"); // beyond its retention the key is free
    assert_ne!(place(t.sf(), t.owner(), "key-1", "tea").await?, first);
    Ok(())
}

#[steadfast::test(sqlite)]
async fn a_duplicate_is_told_to_come_back(t: Harness<Db>) {
    t.run(TABLES).await;
    let (sf, owner) = (t.sf().clone(), t.owner().clone());
    let hold = t.hold(Point::BeforeCommit);
    let first = tokio::spawn(async move { place(&sf, &owner, "key-1", "tea").await });
    hold.reached().await; // everything is written, nothing is durable
    let duplicate = place(t.sf(), t.owner(), "key-1", "tea").await;
    assert_eq!(duplicate.unwrap_err().code(), Code::InFlight);
    hold.release();
    assert!(first.await.unwrap().is_ok());
}

#[steadfast::test(sqlite)]
async fn an_order_survives_a_crash_anywhere(t: Harness<Db>) {
    t.prepare(TABLES).await;
    let order = async |t: &Harness<Db>| place(t.sf(), t.owner(), "key-1", "tea").await;
    let report = t
        .crash_everywhere(order, async |t, told| {
            let retried = order(t).await.unwrap();
            assert!(told.is_none_or(|told| told == retried), "two answers");
            t.assert_count("orders", 1).await;
            t.assert_keys(1).await;
        })
        .await;
    assert_eq!(report.points(), 7, "{report}");
}
