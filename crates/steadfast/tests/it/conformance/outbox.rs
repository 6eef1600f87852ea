//! Events from the transaction that publishes them to the reactions they reach.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::testing::eventually;
use steadfast::{
    Aggregate, Backoff, Code, Dispatcher, Event, EventCx, Failure, FailureClass, Jitter, OnDead, Raised, RetryPolicy,
    Steadfast, Tx,
};
use tokio::sync::mpsc;

use super::Db;
use crate::harness::{Harness, PoolSize, TestDatabase, fresh};

/// Something happened, and left a tag.
#[derive(Clone, Serialize, Deserialize)]
struct Tagged {
    tag: String,
    #[serde(default)]
    key: Option<String>,
}

impl Event for Tagged {
    const TYPE: &'static str = "test.tagged";

    fn ordering_key(&self) -> Option<String> {
        self.key.clone()
    }
}

fn tagged(tag: impl ToString) -> Tagged {
    Tagged {
        tag: tag.to_string(),
        key: None,
    }
}

/// Writes the tag.
async fn keep(tx: &mut Tx<Db>, event: Tagged) -> Result<(), Failure> {
    insert(tx, &event.tag).await
}

async fn insert(tx: &mut Tx<Db>, tag: &str) -> Result<(), Failure> {
    sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
        .bind(tag)
        .execute(tx.db())
        .await?;
    Ok(())
}

async fn publish(sf: &Steadfast<Db>, event: &Tagged) {
    sf.transact(async |tx| Ok(drop(tx.publish(event)?))).await.unwrap();
}

async fn rows(harness: &Harness<Db>, table: &str) -> i64 {
    Db::count(&harness.admin, &format!("SELECT count(*) FROM {}", Db::table(table))).await
}

async fn states(harness: &Harness<Db>, state: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {} WHERE state = '{state}'", Db::table("queue"));
    Db::count(&harness.admin, &sql).await
}

#[tokio::test]
async fn an_event_is_delivered_once_and_with_the_effect() {
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    harness.sf.declare().await.unwrap();
    publish(&harness.sf, &tagged("a")).await;
    assert_eq!(
        (rows(&harness, "messages").await, rows(&harness, "queue").await),
        (1, 1)
    );
    assert_eq!(harness.sf.drain().await.unwrap(), 1);
    assert_eq!(harness.effects().await, 1);
    assert_eq!((rows(&harness, "queue").await, rows(&harness, "history").await), (0, 1));
    assert_eq!(harness.sf.drain().await.unwrap(), 0);
}

#[tokio::test]
async fn an_event_of_a_transaction_that_fails_is_never_seen() {
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    harness.sf.declare().await.unwrap();
    let failed = harness.sf.transact(async |tx| {
        tx.publish(&tagged("lost"))?;
        Err::<(), _>(Failure::transient("no", "not today"))
    });
    failed.await.unwrap_err();
    let part = harness.sf.transact(async |tx| {
        tx.publish(&tagged("before"))?;
        let part = tx.savepoint(async |tx| {
            tx.publish(&tagged("lost"))?;
            Err::<(), _>(Failure::transient("no", "not today"))
        });
        part.await.unwrap_err();
        tx.publish(&tagged("after"))?;
        Ok(())
    });
    part.await.unwrap();
    assert_eq!(rows(&harness, "messages").await, 2);
    harness.sf.drain().await.unwrap();
    assert_eq!(harness.effects().await, 2);
    let lost = Db::count(&harness.admin, "SELECT count(*) FROM effects WHERE tag = 'lost'").await;
    assert_eq!(lost, 0);
}

#[tokio::test]
async fn a_command_publishes_with_its_key_and_a_replay_does_not_publish_again() {
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    harness.sf.declare().await.unwrap();
    for _ in 0..2 {
        let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
        let reply = command.run(async |tx| {
            tx.publish(&tagged("a"))?;
            tx.publish(&tagged("b"))?;
            Ok(1)
        });
        assert_eq!(reply.await.unwrap().value, 1);
    }
    assert_eq!((harness.keys().await, rows(&harness, "messages").await), (1, 2));
    harness.sf.drain().await.unwrap();
    assert_eq!(harness.effects().await, 2);
}

#[tokio::test]
async fn a_dispatcher_delivers_at_once() {
    let harness = fresh::<Db>().await;
    let (told, mut heard) = mpsc::unbounded_channel();
    let tell = move |cx: &EventCx, event: Tagged| {
        let (told, key) = (told.clone(), cx.key().to_owned());
        async move {
            told.send((event.tag, key)).unwrap();
            Ok(())
        }
    };
    harness.sf.reaction::<Tagged>("test.tell").run_outside(tell);
    let sf = harness.sf.clone();
    let dispatching = tokio::spawn(async move { sf.dispatch().await });
    eventually("the target is declared", async || rows(&harness, "targets").await == 1).await;
    for tag in ["a", "b", "c"] {
        publish(&harness.sf, &tagged(tag)).await;
        let (heard, key) = heard.recv().await.unwrap();
        assert_eq!(heard, tag);
        assert!(key.ends_with(":test.tell"), "{key}");
    }
    eventually("all are finished", async || rows(&harness, "history").await == 3).await;
    harness.sf.stop();
    dispatching.await.unwrap().unwrap();
    assert_eq!(rows(&harness, "queue").await, 0);
}
