//! Rows that are claimed ahead of those who work on them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use steadfast::{Clock, Dispatcher, EventCx, Failure, FailureClass, Steadfast};
use tokio::sync::Semaphore;

use super::Db;
use super::letters::ordered;
use super::queue::{Tagged, process, rows, run, stop, tagged};
use crate::harness::{PoolSize, TestDatabase, eventually, fresh};

async fn publish_all(sf: &Steadfast<Db>, tag: &str, events: usize) {
    let publishing = sf.transact(async |tx| {
        for _ in 0..events {
            tx.publish(&tagged(tag))?;
        }
        Ok(())
    });
    publishing.await.unwrap();
}

/// A reaction with one hand, which stays with slow events until it may go on.
fn react(sf: &Steadfast<Db>, heard: &Arc<AtomicUsize>, may_go_on: &Arc<Semaphore>) {
    let (heard, may_go_on) = (heard.clone(), may_go_on.clone());
    let react = move |_: &EventCx, event: Tagged| {
        let (heard, may_go_on) = (heard.clone(), may_go_on.clone());
        async move {
            heard.fetch_add(1, Ordering::SeqCst);
            if event.tag == "slow" {
                drop(may_go_on.acquire().await);
            }
            Ok(())
        }
    };
    sf.reaction::<Tagged>("test.react").concurrency(1).run_outside(react);
}

#[tokio::test]
async fn what_was_claimed_ahead_and_is_not_begun_goes_to_others() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let (here, there) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (closed, open) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(1)));
    let first = process(&harness, &clock, Dispatcher::default()).await;
    react(&first, &here, &closed);
    first.declare().await.unwrap();
    publish_all(&first, "quick", 50).await;
    let dispatching = run(&first);
    eventually("the work is known to be quick", async || {
        rows(&harness, "history").await == 50
    })
    .await;

    publish_all(&first, "slow", 10).await;
    let leased = format!("SELECT count(*) FROM {} WHERE state = 'leased'", Db::table("queue"));
    eventually("all are claimed ahead", async || {
        Db::count(&harness.admin, &leased).await == 10
    })
    .await;
    let second = process(&harness, &clock, Dispatcher::default()).await;
    react(&second, &there, &open);
    let dispatching_too = run(&second);
    eventually("the others are done", async || rows(&harness, "history").await == 59).await;
    assert_eq!((here.load(Ordering::SeqCst), there.load(Ordering::SeqCst)), (51, 9));
    let again = format!("SELECT count(*) FROM {} WHERE attempts > 1", Db::table("history"));
    assert_eq!(Db::count(&harness.admin, &again).await, 0, "it cost no attempt");

    closed.add_permits(1);
    eventually("all are done", async || rows(&harness, "history").await == 60).await;
    stop(&first, dispatching).await;
    stop(&second, dispatching_too).await;
}

/// Remembers what was asked of the database, and which handlers have run meanwhile.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<&'static str>>>);

impl steadfast::testing::Observer for Asked {
    fn asked(&self, statement: &'static str) {
        self.0.lock().unwrap().push(statement);
    }

    fn worked(&self, point: steadfast::testing::WorkPoint, _: &steadfast::testing::WorkId<'_>) {
        if point == steadfast::testing::WorkPoint::AfterHandler {
            self.0.lock().unwrap().push("handled");
        }
    }
}

#[tokio::test]
async fn a_long_chain_that_waits_holds_nobody_up() {
    let harness = fresh::<Db>().await;
    let asked = Asked::default();
    let builder = Steadfast::builder(Db::another_pool(&harness, PoolSize::default()));
    let sf = builder.observer(asked.clone()).build().await.unwrap();
    let hear = |_: &EventCx, event: Tagged| async move {
        match &*event.tag {
            "bad" => Err(Failure::definitive(FailureClass::BusinessRule, "no", "no")),
            _ => Ok(()),
        }
    };
    sf.reaction::<Tagged>("test.hear").concurrency(2).run_outside(hear);
    sf.declare().await.unwrap();
    sf.transact(async |tx| Ok(tx.publish(&ordered("k", "bad"))?))
        .await
        .unwrap();
    sf.drain().await.unwrap();
    let (tail, alone) = (6_000, 1);
    for _ in 0..tail / 500 {
        let publishing = sf.transact(async |tx| {
            for _ in 0..500 {
                tx.publish(&ordered("k", "waits"))?;
            }
            Ok(())
        });
        publishing.await.unwrap();
    }
    publish_all(&sf, "alone", alone).await;
    asked.0.lock().unwrap().clear();
    let dispatching = run(&sf);
    eventually("the one that is alone is delivered", async || {
        rows(&harness, "history").await == 1
    })
    .await;
    let asked = asked.0.lock().unwrap().clone();
    let claims = asked.iter().filter(|statement| **statement == "claim rows").count();
    assert!(claims < 20, "{claims} claims for {tail} rows that wait");
    let handled = asked.iter().position(|what| *what == "handled").unwrap();
    let finished = asked
        .iter()
        .skip(handled)
        .position(|what| *what == "finish rows")
        .unwrap();
    assert!(finished <= 4, "what has ended is said soon: {:?}", &asked[handled..]);
    stop(&sf, dispatching).await;
}

#[tokio::test]
async fn a_process_that_stops_gives_back_what_it_has_not_begun() {
    let harness = fresh::<Db>().await;
    let (heard, closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let worker = process(&harness, &Clock::default(), Dispatcher::default()).await;
    react(&worker, &heard, &closed);
    worker.declare().await.unwrap();
    publish_all(&worker, "quick", 50).await;
    let dispatching = run(&worker);
    eventually("the work is known to be quick", async || {
        rows(&harness, "history").await == 50
    })
    .await;
    publish_all(&worker, "slow", 10).await;
    eventually("one is begun", async || heard.load(Ordering::SeqCst) == 51).await;
    worker.stop();
    // They were claimed, and are as if they had not been.
    let free = format!(
        "SELECT count(*) FROM {} WHERE state = 'pending' AND attempts = 0 AND epoch = 1",
        Db::table("queue")
    );
    eventually("the others are free", async || {
        Db::count(&harness.admin, &free).await == 9
    })
    .await;
    closed.add_permits(1);
    dispatching.await.unwrap().unwrap();
    assert_eq!(
        (rows(&harness, "history").await, rows(&harness, "queue").await),
        (51, 9)
    );
}
