//! The engine of leased rows when work rests, breaks, takes long or is never done.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use steadfast::testing::Observer;
use steadfast::{
    Clock, Confirmation, Dispatcher, Event, EventCx, Failure, FailureClass, Jitter, RetryPolicy, Sink, Steadfast,
};
use tokio::sync::Semaphore;

use super::Db;
use super::queue::{Heard, Tagged, at_once, in_state, ordered, process, publish, rows, run, stop, tagged};
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

async fn publish_all(sf: &Steadfast<Db>, tag: &str, events: usize) {
    let publishing = sf.transact(async |tx| {
        for _ in 0..events {
            tx.publish(&tagged(tag))?;
        }
        Ok(())
    });
    publishing.await.unwrap();
}

/// A process that is watched.
async fn watched(harness: &Harness<Db>, observer: impl Observer) -> Steadfast<Db> {
    let builder = Steadfast::builder(Db::another_pool(harness, PoolSize::default()));
    builder.observer(observer).build().await.unwrap()
}

/// What was asked of the database, and when.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<(&'static str, Instant)>>>);

impl Observer for Asked {
    fn asked(&self, statement: &'static str) {
        self.0.lock().unwrap().push((statement, Instant::now()));
    }
}

impl Asked {
    fn count(&self, statement: &str) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|(asked, _)| *asked == statement)
            .count()
    }
}

/// Another side that is away until it is back.
#[derive(Clone, Default)]
struct Side {
    calls: Arc<AtomicUsize>,
    is_back: Arc<AtomicBool>,
    pause: Duration,
}

impl Sink for Side {
    async fn send(&self, batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let verdict = |_: &EventCx| match self.is_back.load(Ordering::SeqCst) {
            true => Ok(Confirmation::silent()),
            false => Err(Failure::snooze(self.pause)),
        };
        batch.iter().map(verdict).collect()
    }

    fn batch_max(&self) -> usize {
        5
    }
}

#[tokio::test]
async fn a_backlog_stays_where_it_is_while_the_other_side_is_away() {
    let harness = fresh::<Db>().await;
    let asked = Asked::default();
    let sf = watched(&harness, asked.clone()).await;
    let side = Side {
        pause: Duration::from_millis(400),
        ..Side::default()
    };
    sf.sink("test.side").deliver_to(side.clone());
    sf.declare().await.unwrap();
    publish_all(&sf, "a", 300).await;
    let dispatching = run(&sf);
    eventually("it was asked five times", async || {
        side.calls.load(Ordering::SeqCst) >= 5
    })
    .await;
    // In each rest a batch is tried, and given back: never the backlog.
    let touched = format!("SELECT count(*) FROM {} WHERE epoch > 0", Db::table("queue"));
    let touched = Db::count(&harness.admin, &touched).await;
    assert!(touched <= 50, "{touched} rows of 300 were claimed and given back");
    let (claims, calls) = (asked.count("claim rows"), side.calls.load(Ordering::SeqCst));
    assert!(claims <= 4 * (calls + 1), "{claims} claims for {calls} calls");
    let untouched = format!(
        "SELECT count(*) FROM {} WHERE attempts > 0 AND state <> 'leased' OR began_at IS NOT NULL AND state = 'pending'",
        Db::table("queue")
    );
    assert_eq!(
        Db::count(&harness.admin, &untouched).await,
        0,
        "it cost no attempt, and no time"
    );

    side.is_back.store(true, Ordering::SeqCst);
    eventually("all are delivered", async || rows(&harness, "history").await == 300).await;
    stop(&sf, dispatching).await;
}

#[tokio::test]
async fn how_late_messages_are_is_told_while_the_other_side_is_away() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let side = Side {
        pause: Duration::from_secs(60),
        ..Side::default()
    };
    sf.sink("test.side").deliver_to(side.clone());
    sf.declare().await.unwrap();
    publish(&sf, &tagged("a")).await;
    publish(&sf, &ordered("k", "b")).await;
    for minutes in 1..=5 {
        sf.drain().await.unwrap();
        assert_eq!(side.calls.load(Ordering::SeqCst), minutes);
        clock.set_offset(clock.offset() + Duration::from_secs(61));
    }
    let stats = sf.outbox_stats().await.unwrap();
    let kind = stats.kinds.iter().find(|kind| kind.kind == "test.side").unwrap();
    let late = Some(Duration::from_secs(300));
    assert!(kind.lag >= late && kind.oldest >= late, "{kind:?}");
    side.is_back.store(true, Ordering::SeqCst);
    sf.drain().await.unwrap();
    assert_eq!(rows(&harness, "history").await, 2);
}

#[tokio::test]
async fn what_is_given_back_is_looked_for_at_once() {
    let harness = fresh::<Db>().await;
    let asked = Asked::default();
    let sf = watched(&harness, asked.clone()).await;
    let gate = Arc::new(Semaphore::new(0));
    let closed = gate.clone();
    let react = move |_: &EventCx, event: Tagged| {
        let gate = closed.clone();
        async move {
            if event.tag == "slow" {
                drop(gate.acquire().await);
            }
            Ok(())
        }
    };
    sf.reaction::<Tagged>("test.react").concurrency(1).run_outside(react);
    sf.declare().await.unwrap();
    publish_all(&sf, "quick", 50).await;
    let dispatching = run(&sf);
    eventually("the work is known to be quick", async || {
        rows(&harness, "history").await == 50
    })
    .await;
    publish_all(&sf, "slow", 10).await;
    eventually("nine are given back", async || in_state(&harness, "pending").await == 9).await;
    gate.add_permits(1);
    eventually("all are done", async || rows(&harness, "history").await == 60).await;
    stop(&sf, dispatching).await;
    let asked = asked.0.lock().unwrap().clone();
    let given_back = asked
        .iter()
        .position(|(statement, _)| *statement == "put rows back")
        .unwrap();
    let claimed = asked[given_back..]
        .iter()
        .find(|(statement, _)| *statement == "claim rows");
    let finished = asked[given_back..]
        .iter()
        .find(|(statement, _)| *statement == "finish rows");
    let (claimed, finished) = (claimed.unwrap().1, finished.unwrap().1);
    let waited = claimed.max(finished) - finished;
    assert!(
        waited < Duration::from_millis(500),
        "{waited:?} after there was a hand again"
    );
}

/// An event in its first shape, and in its second.
#[derive(Serialize, Deserialize)]
struct First;

impl Event for First {
    const TYPE: &'static str = "test.shaped";
}

#[derive(Serialize, Deserialize)]
struct Second;

impl Event for Second {
    const TYPE: &'static str = "test.shaped";
    const VERSION: u32 = 2;
}

#[tokio::test]
async fn versions_of_an_event_share_the_hands_of_their_reaction() {
    let harness = fresh::<Db>().await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (here, peak) = (now.clone(), most.clone());
    let react = move |_: &EventCx, _: serde_json::Value| {
        let (here, peak) = (here.clone(), peak.clone());
        async move {
            peak.fetch_max(here.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            here.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    };
    /// Whatever shape it has.
    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Any(serde_json::Value);
    impl Event for Any {
        const TYPE: &'static str = "test.shaped";
        const VERSION: u32 = 2;
    }
    let reaction = harness.sf.reaction::<Any>("test.react").concurrency(2);
    reaction.run_outside(move |cx: &EventCx, event: Any| react(cx, event.0));
    harness.sf.declare().await.unwrap();
    let publishing = harness.sf.transact(async |tx| {
        for _ in 0..10 {
            tx.publish(&First)?;
            tx.publish(&Second)?;
        }
        Ok(())
    });
    publishing.await.unwrap();
    let dispatching = run(&harness.sf);
    eventually("all are done", async || rows(&harness, "history").await == 20).await;
    stop(&harness.sf, dispatching).await;
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

/// Counts when it is dropped.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The dispatcher panics when it renews for the first time.
#[derive(Default)]
struct Stumbles(AtomicBool);

impl Observer for Stumbles {
    fn asked(&self, statement: &'static str) {
        let is_first = statement == "renew leases" && !self.0.swap(true, Ordering::SeqCst);
        assert!(!is_first, "it stumbles");
    }
}

#[tokio::test]
async fn a_dispatcher_that_panics_stops_what_it_can_no_longer_renew() {
    let harness = fresh::<Db>().await;
    let sf = watched(&harness, Stumbles::default()).await;
    let dropped = Arc::new(AtomicUsize::new(0));
    let counts = dropped.clone();
    let hang = move |cx: &EventCx, _: Tagged| {
        let (dropped, is_first) = (Dropped(counts.clone()), cx.attempt() == 1);
        async move {
            let _dropped = dropped;
            match is_first {
                true => std::future::pending().await,
                false => Ok(()),
            }
        }
    };
    sf.reaction::<Tagged>("test.hang").lease("600ms").run_outside(hang);
    sf.declare().await.unwrap();
    publish(&sf, &tagged("a")).await;
    let dispatching = run(&sf);
    eventually("it is stopped, and done by the next one", async || {
        dropped.load(Ordering::SeqCst) == 2 && rows(&harness, "history").await == 1
    })
    .await;
    stop(&sf, dispatching).await;
}

#[tokio::test]
async fn a_fixed_dispatcher_delivers_a_whole_batch_however_few_hands_there_are() {
    let harness = fresh::<Db>().await;
    let worker = process(
        &harness,
        &Clock::default(),
        Dispatcher::fixed(Duration::from_secs(3600), 40),
    )
    .await;
    // Some of them wait for longer than others would be let wait.
    let react = async |_: &EventCx, _: Tagged| {
        tokio::time::sleep(Duration::from_millis(40)).await;
        Ok(())
    };
    worker
        .reaction::<Tagged>("test.react")
        .concurrency(2)
        .run_outside(react);
    worker.declare().await.unwrap();
    publish_all(&harness.sf, "a", 100).await;
    let dispatching = run(&worker);
    eventually("a batch is delivered", async || rows(&harness, "history").await == 40).await;
    stop(&worker, dispatching).await;
    let untouched = format!("SELECT count(*) FROM {} WHERE epoch = 0", Db::table("queue"));
    assert_eq!(Db::count(&harness.admin, &untouched).await, 60);
}

#[tokio::test]
async fn a_snooze_kills_nothing_however_often_it_comes() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let worker = process(&harness, &clock, Dispatcher::default()).await;
    let is_back = Arc::new(AtomicBool::new(false));
    let looks = is_back.clone();
    let react = move |_: &EventCx, _: Tagged| {
        let is_back = looks.load(Ordering::SeqCst);
        async move {
            Err(match is_back {
                true => Failure::transient("busy", "not now"),
                false => Failure::snooze(Duration::from_secs(3600)),
            })
        }
    };
    let policy = RetryPolicy::builder().retries(5).jitter(Jitter::None);
    let policy = policy.max_age(Duration::from_secs(1800)).build().unwrap();
    worker.reaction::<Tagged>("test.react").retry(policy).run_outside(react);
    worker.declare().await.unwrap();
    publish(&worker, &tagged("a")).await;
    for _ in 0..30 {
        assert_eq!(worker.drain().await.unwrap(), 1);
        assert_eq!(in_state(&harness, "dead").await, 0);
        clock.set_offset(clock.offset() + Duration::from_secs(3601));
    }
    // Its age counts from the first attempt that counts.
    is_back.store(true, Ordering::SeqCst);
    assert_eq!(worker.drain().await.unwrap(), 1);
    assert_eq!(
        (in_state(&harness, "pending").await, rows(&harness, "failures").await),
        (1, 1)
    );
    clock.set_offset(clock.offset() + Duration::from_secs(3601));
    worker.drain().await.unwrap();
    assert_eq!(in_state(&harness, "dead").await, 1);
}

/// Takes its time before rows are put off that wait for others, and says whether the one that was claimed has begun by then.
#[derive(Clone, Default)]
struct Parks {
    has_begun: Arc<AtomicBool>,
    had_begun: Arc<Mutex<Vec<bool>>>,
}

impl Observer for Parks {
    fn asked(&self, statement: &'static str) {
        if statement == "park rows" {
            // What this thread was about to do is done by another one.
            tokio::task::block_in_place(|| {
                let started = Instant::now();
                while started.elapsed() < Duration::from_secs(2) && !self.has_begun.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            self.had_begun
                .lock()
                .unwrap()
                .push(self.has_begun.load(Ordering::SeqCst));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_was_claimed_is_begun_before_others_are_put_off() {
    let harness = fresh::<Db>().await;
    let parks = Parks::default();
    let sf = watched(&harness, parks.clone()).await;
    let begun = parks.has_begun.clone();
    let hear = move |_: &EventCx, event: Tagged| {
        let begun = begun.clone();
        async move {
            match &*event.tag {
                "bad" => Err(Failure::definitive(FailureClass::BusinessRule, "no", "no")),
                _ => {
                    begun.store(true, Ordering::SeqCst);
                    Ok(())
                }
            }
        }
    };
    sf.reaction::<Tagged>("test.hear").concurrency(5).run_outside(hear);
    sf.declare().await.unwrap();
    publish(&sf, &ordered("k", "bad")).await;
    sf.drain().await.unwrap();
    // The first claim finds one that is free, and four that wait for the one that is dead.
    publish(&sf, &tagged("free")).await;
    for _ in 0..100 {
        publish(&sf, &ordered("k", "waits")).await;
    }
    let dispatching = run(&sf);
    eventually("the others are put off", async || {
        !parks.had_begun.lock().unwrap().is_empty()
    })
    .await;
    stop(&sf, dispatching).await;
    assert!(parks.had_begun.lock().unwrap()[0], "it waited for others to be put off");
}

#[tokio::test]
async fn work_that_panics_when_it_is_dropped_costs_no_hand() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("it cannot be dropped in peace");
        }
    }
    let harness = fresh::<Db>().await;
    let worker = process(&harness, &Clock::default(), Dispatcher::default()).await;
    let (heard, begun) = (Heard::default(), Arc::new(AtomicUsize::new(0)));
    let (hears, begins) = (heard.clone(), begun.clone());
    let react = move |cx: &EventCx, event: Tagged| {
        let (heard, is_first) = (hears.clone(), cx.attempt() == 1 && event.tag == "bad");
        begins.fetch_add(1, Ordering::SeqCst);
        async move {
            if is_first {
                let _panics = Panics;
                std::future::pending::<()>().await;
            }
            heard.add(&event.tag);
            Ok(())
        }
    };
    let reaction = worker.reaction::<Tagged>("test.react").retry(at_once(5));
    reaction.concurrency(1).lease("600ms").run_outside(react);
    worker.declare().await.unwrap();
    publish(&worker, &tagged("bad")).await;
    let dispatching = run(&worker);
    eventually("it hangs", async || begun.load(Ordering::SeqCst) == 1).await;
    // Somebody else claims it, and dies.
    let queue = Db::table("queue");
    harness
        .run(&format!("UPDATE {queue} SET epoch = epoch + 1, token = token + 1"))
        .await;
    publish(&worker, &tagged("good")).await;
    eventually("both are heard", async || heard.all().len() == 2).await;
    eventually("both are finished", async || rows(&harness, "history").await == 2).await;
    stop(&worker, dispatching).await;
}
