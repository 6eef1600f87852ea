//! Rows that are worked on together: what becomes of one is its own affair.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use steadfast::testing::{Observer, WorkId, WorkPoint};
use steadfast::{Clock, Confirmation, Dispatcher, EventCx, Failure, Sink, Steadfast};
use tokio::sync::{Semaphore, mpsc};

use super::Db;
use super::queue::{Tagged, at_once, ordered, process, rows, run, stop, tagged};
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

type Verdicts = Vec<Result<Confirmation, Failure>>;

/// Another side that says which batch it was handed, and answers when it may.
#[derive(Clone)]
struct Side {
    told: mpsc::UnboundedSender<Vec<EventCx>>,
    gate: Arc<Semaphore>,
    answer: fn(&[EventCx]) -> Verdicts,
}

fn take(batch: &[EventCx]) -> Verdicts {
    batch.iter().map(|_| Ok(Confirmation::silent())).collect()
}

impl Side {
    /// One that lets so many batches pass, and what it is told.
    fn new(permits: usize) -> (Self, mpsc::UnboundedReceiver<Vec<EventCx>>) {
        let (told, batches) = mpsc::unbounded_channel();
        let side = Self {
            told,
            gate: Arc::new(Semaphore::new(permits)),
            answer: take,
        };
        (side, batches)
    }
}

impl Sink for Side {
    async fn send(&self, batch: &[EventCx]) -> Verdicts {
        self.told.send(batch.to_vec()).unwrap();
        self.gate.acquire().await.unwrap().forget();
        (self.answer)(batch)
    }

    fn batch_max(&self) -> usize {
        5
    }
}

fn tag(event: &EventCx) -> String {
    let tagged: Tagged = serde_json::from_slice(event.payload()).unwrap();
    tagged.tag
}

fn tags(batch: &[EventCx]) -> Vec<String> {
    let mut tags: Vec<_> = batch.iter().map(tag).collect();
    tags.sort_unstable();
    tags
}

fn declare(sf: &Steadfast<Db>, side: &Side) {
    sf.sink("test.side").retry(at_once(5)).deliver_to(side.clone());
}

async fn publish_all(sf: &Steadfast<Db>, events: &[Tagged]) {
    let publishing = sf.transact(async |tx| {
        for event in events {
            tx.publish(event)?;
        }
        Ok(())
    });
    publishing.await.unwrap();
}

/// A process that sends to that side, and has three events to send at once.
async fn with_three(side: &Side, dispatcher: Dispatcher) -> (Harness<Db>, Steadfast<Db>) {
    let harness = fresh::<Db>().await;
    let worker = process(&harness, &Clock::default(), dispatcher).await;
    declare(&worker, side);
    worker.declare().await.unwrap();
    publish_all(&worker, &["a", "b", "c"].map(tagged)).await;
    (harness, worker)
}

/// Somebody else claims some of the rows, and dies at once.
async fn take_over(harness: &Harness<Db>, events: &[&EventCx]) {
    for event in events {
        let sql = format!(
            "UPDATE {} SET epoch = epoch + 1, token = token + 1 WHERE item = '{}'",
            Db::table("queue"),
            event.id()
        );
        let taking = sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&harness.admin);
        assert_eq!(taking.await.unwrap().rows_affected(), 1);
    }
}

/// With so many attempts, so many were delivered.
async fn delivered(harness: &Harness<Db>, attempts: u32) -> i64 {
    let sql = format!(
        "SELECT count(*) FROM {} WHERE state = 'delivered' AND attempts = {attempts}",
        Db::table("history")
    );
    Db::count(&harness.admin, &sql).await
}

#[tokio::test]
async fn a_row_that_is_lost_costs_its_neighbours_nothing() {
    let (side, mut batches) = Side::new(0);
    let short = Dispatcher::default().lease(Duration::from_millis(300));
    let (harness, worker) = with_three(&side, short).await;
    let dispatching = run(&worker);
    let batch = batches.recv().await.unwrap();
    assert_eq!(tags(&batch), ["a", "b", "c"]);
    take_over(&harness, &[&batch[1]]).await;
    batch[1].cancelled().await;
    let neighbour = tokio::time::timeout(Duration::ZERO, batch[0].cancelled()).await;
    assert!(neighbour.is_err(), "it is renewed");
    side.gate.add_permits(9);
    eventually("all are done", async || rows(&harness, "history").await == 3).await;
    stop(&worker, dispatching).await;
    // The one that was lost was sent, and its verdict counted for nothing.
    assert_eq!((delivered(&harness, 1).await, delivered(&harness, 2).await), (2, 1));
    assert_eq!(tags(&batches.recv().await.unwrap()), tags(&batch[1..2]));
}

#[tokio::test]
async fn a_batch_that_is_lost_as_a_whole_is_dropped() {
    struct Hanging(mpsc::UnboundedSender<Vec<EventCx>>, Arc<Semaphore>);
    struct Dropped(Arc<Semaphore>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.add_permits(1);
        }
    }
    impl Sink for Hanging {
        async fn send(&self, batch: &[EventCx]) -> Verdicts {
            let _dropped = Dropped(self.1.clone());
            self.0.send(batch.to_vec()).unwrap();
            match batch.iter().all(|event| event.attempt() == 1) {
                true => std::future::pending().await,
                false => take(batch),
            }
        }
    }
    let harness = fresh::<Db>().await;
    let short = Dispatcher::default().lease(Duration::from_millis(300));
    let worker = process(&harness, &Clock::default(), short).await;
    let ((told, mut batches), dropped) = (mpsc::unbounded_channel(), Arc::new(Semaphore::new(0)));
    worker
        .sink("test.side")
        .time_limit("1h")
        .deliver_to(Hanging(told, dropped.clone()));
    worker.declare().await.unwrap();
    publish_all(&worker, &["a", "b"].map(tagged)).await;
    let dispatching = run(&worker);
    let batch = batches.recv().await.unwrap();
    assert_eq!(tags(&batch), ["a", "b"]);
    take_over(&harness, &batch.iter().collect::<Vec<_>>()).await;
    dropped.acquire().await.unwrap().forget();
    eventually("whoever comes next does it", async || {
        rows(&harness, "history").await == 2
    })
    .await;
    assert_eq!(delivered(&harness, 2).await, 2);
    stop(&worker, dispatching).await;
}

#[tokio::test]
async fn a_batch_that_panics_hangs_or_gets_no_answer_is_a_failure_of_each() {
    fn stumble(_: &[EventCx]) -> Verdicts {
        panic!("it stumbles")
    }
    fn say_nothing(_: &[EventCx]) -> Verdicts {
        Vec::new()
    }
    for (code, permits, answer) in [
        ("panicked", 9, stumble as fn(&[EventCx]) -> Verdicts),
        ("unanswered", 9, say_nothing),
        ("unconfirmed", 0, take),
    ] {
        let (side, mut batches) = Side::new(9);
        let first = Side {
            gate: Arc::new(Semaphore::new(permits)),
            answer,
            ..side.clone()
        };
        let sink = Once { first, later: side };
        let harness = fresh::<Db>().await;
        let worker = process(&harness, &Clock::default(), Dispatcher::default()).await;
        let target = worker.sink("test.side").retry(at_once(5)).time_limit("200ms");
        target.deliver_to(sink);
        worker.declare().await.unwrap();
        publish_all(&worker, &["a", "b", "c"].map(tagged)).await;
        let dispatching = run(&worker);
        assert_eq!(tags(&batches.recv().await.unwrap()), ["a", "b", "c"]);
        eventually("all are done", async || rows(&harness, "history").await == 3).await;
        assert_eq!(delivered(&harness, 2).await, 3, "{code}");
        let failures = format!("SELECT count(*) FROM {} WHERE code = '{code}'", Db::table("failures"));
        assert_eq!(Db::count(&harness.admin, &failures).await, 3, "{code}");
        stop(&worker, dispatching).await;
    }
}

/// One side for first attempts, another one for all that follow.
struct Once {
    first: Side,
    later: Side,
}

impl Sink for Once {
    async fn send(&self, batch: &[EventCx]) -> Verdicts {
        match batch.iter().all(|event| event.attempt() == 1) {
            true => self.first.send(batch).await,
            false => self.later.send(batch).await,
        }
    }
}

#[tokio::test]
async fn two_rows_of_one_chain_are_never_on_their_way_together() {
    /// Knows what is on its way.
    #[derive(Clone, Default)]
    struct Watching {
        now: Arc<Mutex<HashSet<String>>>,
        sent: Arc<Mutex<Vec<String>>>,
    }
    impl Sink for Watching {
        async fn send(&self, batch: &[EventCx]) -> Verdicts {
            for key in batch.iter().filter_map(EventCx::ordering_key) {
                assert!(self.now.lock().unwrap().insert(key.to_owned()), "{key} twice at once");
            }
            self.sent.lock().unwrap().extend(batch.iter().map(tag));
            tokio::task::yield_now().await;
            for key in batch.iter().filter_map(EventCx::ordering_key) {
                self.now.lock().unwrap().remove(key);
            }
            take(batch)
        }
    }
    let harness = fresh::<Db>().await;
    let worker = process(&harness, &Clock::default(), Dispatcher::default()).await;
    let watching = Watching::default();
    worker.sink("test.side").retry(at_once(0)).deliver_to(watching.clone());
    worker.declare().await.unwrap();
    let of_chain = |number: usize| ordered(["k", "l", "m"][number % 3], format!("{number:02}"));
    publish_all(&worker, &(0..12).map(of_chain).collect::<Vec<_>>()).await;
    publish_all(&worker, &(12..20).map(tagged).collect::<Vec<_>>()).await;
    let dispatching = run(&worker);
    eventually("all are delivered", async || delivered(&harness, 1).await == 20).await;
    stop(&worker, dispatching).await;
    let sent = watching.sent.lock().unwrap().clone();
    for chain in 0..3 {
        let of_chain = |tag: &&String| {
            tag.parse::<usize>()
                .is_ok_and(|number| number < 12 && number % 3 == chain)
        };
        let in_order: Vec<_> = sent.iter().filter(of_chain).collect();
        assert!(in_order.len() == 4 && in_order.is_sorted(), "{in_order:?}");
    }
}

#[tokio::test]
async fn a_process_that_stops_ends_its_batches_and_gives_the_rest_back() {
    let (side, mut batches) = Side::new(2);
    let harness = fresh::<Db>().await;
    let worker = process(&harness, &Clock::default(), Dispatcher::default()).await;
    declare(&worker, &side);
    worker.declare().await.unwrap();
    publish_all(&worker, &(0..10).map(tagged).collect::<Vec<_>>()).await;
    let dispatching = run(&worker);
    eventually("the other side is known to be quick", async || {
        rows(&harness, "history").await == 10
    })
    .await;
    publish_all(&worker, &(10..30).map(tagged).collect::<Vec<_>>()).await;
    for _ in 0..4 {
        assert_eq!(batches.recv().await.unwrap().len(), 5);
    }
    worker.stop();
    let free = format!(
        "SELECT count(*) FROM {} WHERE state = 'pending' AND attempts = 0 AND epoch = 1",
        Db::table("queue")
    );
    eventually("what was not begun is free", async || {
        Db::count(&harness.admin, &free).await == 10
    })
    .await;
    side.gate.add_permits(2);
    dispatching.await.unwrap().unwrap();
    assert_eq!((delivered(&harness, 1).await, rows(&harness, "queue").await), (20, 10));
    assert!(batches.try_recv().is_err(), "nothing else was begun");
}

#[tokio::test]
async fn another_side_that_is_away_is_asked_by_no_more_than_is_on_its_way() {
    let (side, mut batches) = Side::new(99);
    let side = Side {
        answer: |batch| {
            batch
                .iter()
                .map(|_| Err(Failure::snooze(Duration::from_secs(60))))
                .collect()
        },
        ..side
    };
    let harness = fresh::<Db>().await;
    let worker = process(&harness, &Clock::default(), Dispatcher::default()).await;
    declare(&worker, &side);
    worker.declare().await.unwrap();
    publish_all(&worker, &(0..40).map(tagged).collect::<Vec<_>>()).await;
    let dispatching = run(&worker);
    let given_back = format!(
        "SELECT count(*) FROM {} WHERE state = 'pending' AND attempts = 0 AND epoch = 1",
        Db::table("queue")
    );
    // As many as two hands take at once. The others stay where they are.
    eventually("what was claimed is given back", async || {
        Db::count(&harness.admin, &given_back).await == 10
    })
    .await;
    stop(&worker, dispatching).await;
    let asked = std::iter::from_fn(|| batches.try_recv().ok()).count();
    assert!((1..=2).contains(&asked), "{asked} batches");
}

/// Remembers which rows have passed which points.
#[derive(Clone, Default)]
struct Passed(Arc<Mutex<Vec<(String, WorkPoint)>>>);

impl Observer for Passed {
    fn worked(&self, point: WorkPoint, id: &WorkId<'_>) {
        assert_eq!((id.kind, id.attempt), ("test.side", 1));
        self.0.lock().unwrap().push((id.item.to_string(), point));
    }
}

#[tokio::test]
async fn each_row_of_a_batch_passes_every_point() {
    let (side, mut batches) = Side::new(9);
    let harness = fresh::<Db>().await;
    let passed = Passed::default();
    let builder = Steadfast::builder(Db::another_pool(&harness, PoolSize::default()));
    let worker = builder.observer(passed.clone()).build().await.unwrap();
    declare(&worker, &side);
    worker.declare().await.unwrap();
    publish_all(&worker, &["a", "b", "c"].map(tagged)).await;
    let dispatching = run(&worker);
    eventually("all are done", async || rows(&harness, "history").await == 3).await;
    stop(&worker, dispatching).await;
    let batch = batches.recv().await.unwrap();
    assert_eq!(batch.len(), 3);
    let passed = passed.0.lock().unwrap();
    for event in &batch {
        let id = event.id().to_string();
        let points = passed.iter().filter(|(item, _)| *item == id).map(|(_, point)| *point);
        assert_eq!(points.collect::<Vec<_>>(), WorkPoint::ALL);
    }
}
