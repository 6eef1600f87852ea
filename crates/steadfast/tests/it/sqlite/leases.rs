//! Leases while somebody has the one turn to write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use steadfast::{Clock, Dispatcher, EventCx, Steadfast};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::Db;
use super::queue::{Tagged, keep, process, publish, rows, run, stop, tagged};
use crate::harness::{Harness, TestDatabase, eventually, fresh};

const LEASE: &str = "1500ms";

/// Longer than a lease, and than a statement of the engine may take.
const LONG: Duration = Duration::from_millis(3_500);

/// How many rows were delivered with one attempt, and how many attempts went wrong.
async fn ended(harness: &Harness<Db>) -> (i64, i64) {
    let at_once = "SELECT count(*) FROM steadfast_history WHERE attempts = 1";
    (
        Db::count(&harness.admin, at_once).await,
        rows(harness, "failures").await,
    )
}

/// A reaction with a transaction that takes long.
fn keep_slowly(sf: &Steadfast<Db>, begun: &Arc<Semaphore>) {
    let begun = begun.clone();
    let reaction = sf.reaction::<Tagged>("test.keep").lease(LEASE);
    reaction.run_boxed(move |tx, event| {
        let begun = begun.clone();
        Box::pin(async move {
            begun.add_permits(1);
            tokio::time::sleep(LONG).await;
            keep(tx, event).await
        })
    });
}

#[tokio::test]
async fn a_handler_with_a_transaction_may_take_longer_than_its_lease() {
    let harness = fresh::<Db>().await;
    let worker = process(&harness, &Clock::default(), Dispatcher::default()).await;
    keep_slowly(&worker, &Arc::new(Semaphore::new(0)));
    worker.declare().await.unwrap();
    publish(&worker, &tagged("a")).await;
    publish(&worker, &tagged("b")).await;
    let dispatching = run(&worker);
    eventually("both are done, one after the other", async || {
        rows(&harness, "history").await == 2
    })
    .await;
    stop(&worker, dispatching).await;
    assert_eq!((ended(&harness).await, harness.effects().await), ((2, 0), 2));
}

#[tokio::test]
async fn a_handler_with_a_transaction_costs_no_other_row_its_lease() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let (worker, other) = (
        process(&harness, &clock, Dispatcher::default()).await,
        process(&harness, &clock, Dispatcher::default()).await,
    );
    let (begun, calls) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    keep_slowly(&worker, &begun);
    let gate = Arc::new(Semaphore::new(0));
    for sf in [&worker, &other] {
        let (calls, gate) = (calls.clone(), gate.clone());
        let call = move |_: &EventCx, _: Tagged| {
            calls.fetch_add(1, Ordering::SeqCst);
            let gate = gate.clone();
            async move {
                drop(gate.acquire().await);
                Ok(())
            }
        };
        sf.reaction::<Tagged>("test.call").lease(LEASE).run_outside(call);
    }
    worker.declare().await.unwrap();
    publish(&worker, &tagged("a")).await;
    let dispatching = run(&worker);
    begun.acquire().await.unwrap().forget();
    eventually("both are begun", async || calls.load(Ordering::SeqCst) == 1).await;
    // It looks every two seconds, and at each commit.
    let looking = run(&other);
    eventually("the one with a transaction is done", async || {
        harness.effects().await == 1
    })
    .await;
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(1) {
        assert_eq!(calls.load(Ordering::SeqCst), 1, "somebody has taken the other one over");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    gate.add_permits(9);
    eventually("the other one is done too", async || {
        rows(&harness, "history").await == 2
    })
    .await;
    stop(&worker, dispatching).await;
    stop(&other, looking).await;
    assert_eq!(ended(&harness).await, (2, 0));
}

/// Somebody hears of it a moment later.
#[derive(serde::Serialize, serde::Deserialize)]
struct Soon;

impl steadfast::Event for Soon {
    const TYPE: &'static str = "test.soon";
    const DELAY: Duration = Duration::from_millis(100);
}

/// Has the turn for so long.
fn take_turn(sf: &Steadfast<Db>, length: Duration) -> JoinHandle<()> {
    let sf = sf.clone();
    tokio::spawn(async move {
        let holding = sf.transact(async move |_| {
            tokio::time::sleep(length).await;
            Ok(())
        });
        holding.await.unwrap();
    })
}

/// A process that has heard of one event, and for which there is another one in a moment.
async fn about_to_hear(harness: &Harness<Db>) -> (Steadfast<Db>, JoinHandle<steadfast::Result<()>>) {
    let worker = process(harness, &Clock::default(), Dispatcher::default()).await;
    let hear = async |_: &EventCx, _: Soon| Ok(());
    worker.reaction::<Soon>("test.hear").lease(LEASE).run_outside(hear);
    worker.declare().await.unwrap();
    let dispatching = run(&worker);
    for delivered in [1, 2] {
        let publishing = worker.transact(async |tx| Ok(tx.publish(&Soon)?));
        publishing.await.unwrap();
        if delivered == 1 {
            eventually("it is heard", async || rows(harness, "history").await == 1).await;
        }
    }
    (worker, dispatching)
}

#[tokio::test]
async fn a_claim_that_waits_for_its_turn_for_longer_than_a_lease_lasts_from_then_on() {
    let harness = fresh::<Db>().await;
    let (worker, dispatching) = about_to_hear(&harness).await;
    take_turn(&worker, LONG).await.unwrap();
    eventually("it is delivered", async || rows(&harness, "history").await == 2).await;
    stop(&worker, dispatching).await;
    assert_eq!(ended(&harness).await, (2, 0));
}

#[tokio::test]
async fn what_is_claimed_does_not_wait_for_the_handlers_behind_it() {
    let harness = fresh::<Db>().await;
    let (worker, dispatching) = about_to_hear(&harness).await;
    // The claim waits behind the first, and the second one, which takes longer than a statement of the engine may, behind the claim.
    let first = take_turn(&worker, Duration::from_millis(500));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let second = take_turn(&worker, Duration::from_secs(6));
    first.await.unwrap();
    second.await.unwrap();
    eventually("it is delivered", async || rows(&harness, "history").await == 2).await;
    stop(&worker, dispatching).await;
    assert_eq!(ended(&harness).await, (2, 0));
}

#[tokio::test]
async fn what_was_done_while_the_database_was_away_is_not_done_again() {
    let harness = fresh::<Db>().await;
    let short = Dispatcher::default().lease(Duration::from_millis(1_500));
    let worker = process(&harness, &Clock::default(), short).await;
    let (gate, calls) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (closed, counts) = (gate.clone(), calls.clone());
    let call = move |_: &EventCx, _: Tagged| {
        counts.fetch_add(1, Ordering::SeqCst);
        let gate = closed.clone();
        async move {
            drop(gate.acquire().await);
            Ok(())
        }
    };
    worker.reaction::<Tagged>("test.call").run_outside(call);
    worker.declare().await.unwrap();
    publish(&worker, &tagged("a")).await;
    let dispatching = run(&worker);
    eventually("it is begun", async || calls.load(Ordering::SeqCst) == 1).await;
    let locked = harness.admin.begin_with("BEGIN IMMEDIATE").await.unwrap();
    gate.add_permits(9);
    tokio::time::sleep(LONG).await;
    drop(locked);
    eventually("it is done", async || rows(&harness, "history").await == 1).await;
    stop(&worker, dispatching).await;
    assert_eq!((ended(&harness).await, calls.load(Ordering::SeqCst)), ((1, 0), 1));
}
