//! The engine of leased rows, through deliveries: attempts, leases, chains, kinds, and stopping.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::{
    Backoff, Clock, Dispatcher, Event, EventCx, Failure, FailureClass, Jitter, OnDead, RetryPolicy, Steadfast, Tx,
};
use tokio::sync::{Semaphore, mpsc};

use super::Db;
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

/// Something happened, and left a tag.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Tagged {
    pub(super) tag: String,
    #[serde(default)]
    pub(super) key: Option<String>,
}

impl Event for Tagged {
    const TYPE: &'static str = "test.tagged";

    fn ordering_key(&self) -> Option<String> {
        self.key.clone()
    }
}

#[allow(clippy::needless_pass_by_value, reason = "a number or a text, as it comes")]
pub(super) fn tagged(tag: impl ToString) -> Tagged {
    Tagged {
        tag: tag.to_string(),
        key: None,
    }
}

#[allow(clippy::needless_pass_by_value, reason = "a number or a text, as it comes")]
pub(super) fn ordered(key: &str, tag: impl ToString) -> Tagged {
    Tagged {
        tag: tag.to_string(),
        key: Some(key.to_owned()),
    }
}

/// Writes the tag.
pub(super) async fn keep(tx: &mut Tx<Db>, event: Tagged) -> Result<(), Failure> {
    sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
        .bind(&event.tag)
        .execute(tx.db())
        .await?;
    Ok(())
}

pub(super) async fn publish(sf: &Steadfast<Db>, event: &Tagged) {
    sf.transact(async |tx| {
        tx.publish(event)?;
        Ok(())
    })
    .await
    .unwrap();
}

pub(super) async fn rows(harness: &Harness<Db>, table: &str) -> i64 {
    Db::count(&harness.admin, &format!("SELECT count(*) FROM {}", Db::table(table))).await
}

pub(super) async fn in_state(harness: &Harness<Db>, state: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {} WHERE state = '{state}'", Db::table("queue"));
    Db::count(&harness.admin, &sql).await
}

/// Tries again at once.
pub(super) fn at_once(retries: u32) -> RetryPolicy {
    let policy = RetryPolicy::builder().retries(retries).backoff(Backoff::Immediate);
    policy.jitter(Jitter::None).build().unwrap()
}

/// Another process, with a lease of its own and a clock that is shared.
pub(super) async fn process(harness: &Harness<Db>, clock: &Clock, dispatcher: Dispatcher) -> Steadfast<Db> {
    let builder = Steadfast::builder(Db::another_pool(harness, PoolSize::default()));
    let builder = builder.clock(clock.clone()).dispatcher(dispatcher);
    builder.build().await.unwrap()
}

/// Lets time pass.
pub(super) fn pass(clock: &Clock, time: Duration) {
    clock.set_offset(clock.offset() + time);
}

pub(super) fn run(sf: &Steadfast<Db>) -> tokio::task::JoinHandle<steadfast::Result<()>> {
    let sf = sf.clone();
    tokio::spawn(async move { sf.dispatch().await })
}

pub(super) async fn stop(sf: &Steadfast<Db>, dispatching: tokio::task::JoinHandle<steadfast::Result<()>>) {
    sf.stop();
    dispatching.await.unwrap().unwrap();
}

/// What was heard, in order.
#[derive(Clone, Default)]
pub(super) struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    pub(super) fn add(&self, tag: &str) {
        self.0.lock().unwrap().push(tag.to_owned());
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// A reaction that hears.
    pub(super) fn hear(&self, sf: &Steadfast<Db>, name: &str, retry: RetryPolicy) {
        let heard = self.clone();
        let hear = move |_: &EventCx, event: Tagged| {
            heard.add(&event.tag);
            async { Ok(()) }
        };
        sf.reaction::<Tagged>(name).retry(retry).run_outside(hear);
    }
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
    let dispatching = run(&harness.sf);
    eventually("the target is declared", || async {
        rows(&harness, "targets").await == 1
    })
    .await;
    for tag in ["a", "b", "c"] {
        publish(&harness.sf, &tagged(tag)).await;
        let (heard, key) = heard.recv().await.unwrap();
        assert_eq!(heard, tag);
        assert!(key.ends_with(":test.tell"), "{key}");
    }
    eventually("all are finished", || async { rows(&harness, "history").await == 3 }).await;
    stop(&harness.sf, dispatching).await;
    assert_eq!(rows(&harness, "queue").await, 0);
}

#[tokio::test]
async fn another_process_hears_of_a_commit() {
    let harness = fresh::<Db>().await;
    let heard = Heard::default();
    let worker = harness.another().await;
    heard.hear(&worker, "test.hear", at_once(0));
    let dispatching = run(&worker);
    eventually("the target is declared", || async {
        rows(&harness, "targets").await == 1
    })
    .await;
    publish(&harness.sf, &tagged("a")).await;
    eventually("it is heard", || async { heard.all().len() == 1 }).await;
    stop(&worker, dispatching).await;
}

/// The dispatcher panics when it claims for the first time.
#[derive(Default)]
struct Stumbles(std::sync::atomic::AtomicBool);

impl steadfast::testing::Observer for Stumbles {
    fn asked(&self, statement: &'static str) {
        let is_first = statement == "claim rows" && !self.0.swap(true, std::sync::atomic::Ordering::SeqCst);
        assert!(!is_first, "it stumbles");
    }
}

#[tokio::test]
async fn a_dispatcher_that_panics_begins_anew() {
    let harness = fresh::<Db>().await;
    let builder = Steadfast::builder(Db::another_pool(&harness, PoolSize::default())).observer(Stumbles::default());
    let sf = builder.build().await.unwrap();
    sf.reaction::<Tagged>("test.keep").run(keep);
    sf.declare().await.unwrap();
    publish(&sf, &tagged("a")).await;
    let dispatching = run(&sf);
    eventually("it is delivered", || async { harness.effects().await == 1 }).await;
    stop(&sf, dispatching).await;
}

#[tokio::test]
async fn what_nobody_announced_is_found_by_looking() {
    let harness = fresh::<Db>().await;
    let heard = Heard::default();
    heard.hear(&harness.sf, "test.hear", at_once(0));
    let dispatching = run(&harness.sf);
    eventually("the target is declared", || async {
        rows(&harness, "targets").await == 1
    })
    .await;
    let mut tx = harness.sf.pool().begin().await.unwrap();
    harness.sf.on(&mut tx).publish(&tagged("a")).await.unwrap();
    tx.commit().await.unwrap();
    eventually("it is heard", || async { heard.all().len() == 1 }).await;
    stop(&harness.sf, dispatching).await;
}

#[tokio::test]
async fn a_fixed_dispatcher_delivers_a_batch_each_time_and_no_more() {
    let harness = fresh::<Db>().await;
    let heard = Heard::default();
    let clock = Clock::default();
    let fixed = Dispatcher::fixed(Duration::from_secs(3600), 2);
    let worker = process(&harness, &clock, fixed).await;
    heard.hear(&worker, "test.hear", at_once(0));
    worker.declare().await.unwrap();
    for tag in 0..5 {
        publish(&harness.sf, &tagged(tag)).await;
    }
    let dispatching = run(&worker);
    eventually("a batch is finished", || async { rows(&harness, "history").await == 2 }).await;
    publish(&worker, &tagged("more")).await;
    assert_eq!(heard.all().len(), 2);
    stop(&worker, dispatching).await;
    assert_eq!(in_state(&harness, "pending").await, 4);
}

#[tokio::test]
async fn a_failure_is_tried_again_and_then_dead_with_its_history() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let worker = process(&harness, &clock, Dispatcher::default()).await;
    async fn fail(tx: &mut Tx<Db>, event: Tagged) -> Result<(), Failure> {
        keep(tx, event).await?;
        let attempt = tx.event().unwrap().attempt();
        Err(Failure::transient("busy", format!("attempt {attempt} of order 17")))
    }
    let policy = RetryPolicy::builder().retries(2);
    let policy = policy
        .backoff(Backoff::Constant(Duration::from_secs(60)))
        .jitter(Jitter::None);
    let reaction = worker.reaction::<Tagged>("test.fail").retry(policy.build().unwrap());
    reaction.run(fail);
    worker.declare().await.unwrap();
    publish(&worker, &tagged("a")).await;
    for attempts in 1..=3 {
        assert_eq!(worker.drain().await.unwrap(), 1);
        assert_eq!(worker.drain().await.unwrap(), 0, "it waits for its time");
        assert_eq!(rows(&harness, "failures").await, attempts);
        clock.set_offset(clock.offset() + Duration::from_secs(60));
    }
    assert_eq!((in_state(&harness, "dead").await, harness.effects().await), (1, 0));
    assert_eq!(worker.drain().await.unwrap(), 0);
    let kinds = format!("SELECT count(DISTINCT fingerprint) FROM {}", Db::table("failures"));
    assert_eq!(
        Db::count(&harness.admin, &kinds).await,
        1,
        "they differ in numbers only"
    );
}

#[tokio::test]
async fn a_retry_does_not_wait_for_the_next_look() {
    let harness = fresh::<Db>().await;
    let policy = RetryPolicy::builder()
        .retries(40)
        .backoff(Backoff::Constant(Duration::from_millis(20)));
    let policy = policy.jitter(Jitter::None).build().unwrap();
    let stumble = |cx: &EventCx, _: Tagged| {
        let is_last = cx.attempt() == 41;
        async move {
            match is_last {
                true => Ok(()),
                false => Err(Failure::transient("busy", "once more")),
            }
        }
    };
    let reaction = harness.sf.reaction::<Tagged>("test.stumble").retry(policy);
    reaction.run_outside(stumble);
    let dispatching = run(&harness.sf);
    eventually("the target is declared", || async {
        rows(&harness, "targets").await == 1
    })
    .await;
    publish(&harness.sf, &tagged("plain")).await;
    publish(&harness.sf, &ordered("k", "in a chain")).await;
    // Forty looks, one in two seconds, would take far longer than anything is waited for here.
    eventually("both are delivered", || async { rows(&harness, "history").await == 2 }).await;
    stop(&harness.sf, dispatching).await;
}

#[tokio::test]
async fn a_failure_with_absurd_numbers_and_bytes_stops_nobody() {
    let harness = fresh::<Db>().await;
    let absurd = async |_: &EventCx, event: Tagged| match &*event.tag {
        "for ever" => Err(Failure::snooze(Duration::MAX)),
        "much later" => Err(Failure::transient("busy", "busy").with_retry_after(Duration::MAX)),
        "nul" => Err(Failure::transient("a\0b", "c\0d")),
        _ => Ok(()),
    };
    harness.sf.reaction::<Tagged>("test.absurd").run_outside(absurd);
    harness.sf.declare().await.unwrap();
    for tag in ["for ever", "much later", "nul", "good"] {
        publish(&harness.sf, &tagged(tag)).await;
    }
    assert_eq!(harness.sf.drain().await.unwrap(), 4);
    assert_eq!(
        (rows(&harness, "history").await, in_state(&harness, "pending").await),
        (1, 3)
    );
    let failures = Db::table("failures");
    let cleaned = format!("SELECT count(*) FROM {failures} WHERE code = 'ab' AND message = 'cd'");
    assert_eq!(Db::count(&harness.admin, &cleaned).await, 1);
}

#[tokio::test]
async fn a_panic_has_one_code_with_a_transaction_and_without() {
    let harness = fresh::<Db>().await;
    let reaction = harness.sf.reaction::<Tagged>("test.inside").retry(at_once(0));
    reaction.run(async |_: &mut Tx<Db>, event: Tagged| -> Result<(), Failure> { panic!("{}", event.tag) });
    let reaction = harness.sf.reaction::<Tagged>("test.outside").retry(at_once(0));
    reaction.run_outside(async |_: &EventCx, event: Tagged| -> Result<(), Failure> { panic!("{}", event.tag) });
    harness.sf.declare().await.unwrap();
    publish(&harness.sf, &tagged("on purpose")).await;
    harness.sf.drain().await.unwrap();
    let failures = Db::table("failures");
    let panicked = format!("SELECT count(*) FROM {failures} WHERE code = 'panicked'");
    assert_eq!(Db::count(&harness.admin, &panicked).await, 2);
}

#[tokio::test]
async fn a_definitive_failure_is_dead_at_once_and_a_snooze_costs_no_attempt() {
    let harness = fresh::<Db>().await;
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let react = move |cx: &EventCx, event: Tagged| {
        count.fetch_add(1, Ordering::SeqCst);
        let attempt = cx.attempt();
        async move {
            assert_eq!(attempt, 1, "an attempt that was given back");
            match event.tag.as_str() {
                "refused" => Err(Failure::definitive(FailureClass::BusinessRule, "no", "never")),
                _ => Err(Failure::snooze(Duration::from_secs(60))),
            }
        }
    };
    let clock = Clock::default();
    let worker = process(&harness, &clock, Dispatcher::default()).await;
    worker
        .reaction::<Tagged>("test.react")
        .retry(at_once(5))
        .run_outside(react);
    worker.declare().await.unwrap();
    publish(&worker, &tagged("refused")).await;
    worker.drain().await.unwrap();
    assert_eq!((calls.load(Ordering::SeqCst), in_state(&harness, "dead").await), (1, 1));

    publish(&worker, &tagged("snoozed")).await;
    for calls_until in 2..12 {
        worker.drain().await.unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), calls_until);
        clock.set_offset(clock.offset() + Duration::from_secs(61));
    }
    assert_eq!(in_state(&harness, "pending").await, 1);
    assert_eq!(rows(&harness, "failures").await, 1, "a snooze is no failure");
}

#[tokio::test]
async fn a_payload_that_cannot_be_read_is_dead_with_its_bytes() {
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    harness.sf.declare().await.unwrap();
    publish(&harness.sf, &tagged("a")).await;
    let messages = Db::table("messages");
    harness
        .run(&format!("UPDATE {messages} SET payload = '{{\"tag\":7}}'"))
        .await;
    assert_eq!(harness.sf.drain().await.unwrap(), 1);
    assert_eq!((in_state(&harness, "dead").await, harness.effects().await), (1, 0));
    let why = format!(
        "SELECT count(*) FROM {} WHERE code = 'undecodable'",
        Db::table("failures")
    );
    assert_eq!(Db::count(&harness.admin, &why).await, 1);
    let kept = format!("SELECT count(*) FROM {messages} WHERE length(payload) = 9");
    assert_eq!(Db::count(&harness.admin, &kept).await, 1);
}

/// Nobody wants to hear of it after a minute, nor within the first second.
#[derive(Serialize, Deserialize)]
struct Fleeting;

impl Event for Fleeting {
    const TYPE: &'static str = "test.fleeting";
    const DELAY: Duration = Duration::from_secs(1);
    const EXPIRES_AFTER: Option<Duration> = Some(Duration::from_secs(60));
}

#[tokio::test]
async fn a_delayed_event_waits_and_an_expired_one_is_skipped() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let worker = process(&harness, &clock, Dispatcher::default()).await;
    async fn hear(tx: &mut Tx<Db>, _: Fleeting) -> Result<(), Failure> {
        keep(tx, tagged("heard")).await
    }
    worker.reaction::<Fleeting>("test.hear").run(hear);
    worker.declare().await.unwrap();
    let raise = async || {
        worker
            .transact(async |tx| {
                tx.publish(&Fleeting)?;
                Ok(())
            })
            .await
            .unwrap()
    };
    raise().await;
    assert_eq!(worker.drain().await.unwrap(), 0);
    clock.set_offset(Duration::from_secs(2));
    assert_eq!(worker.drain().await.unwrap(), 1);
    assert_eq!(harness.effects().await, 1);

    raise().await;
    clock.set_offset(Duration::from_secs(70));
    worker.drain().await.unwrap();
    assert_eq!((harness.effects().await, rows(&harness, "queue").await), (1, 0));
    let skipped = format!("SELECT count(*) FROM {} WHERE state = 'skipped'", Db::table("history"));
    assert_eq!(Db::count(&harness.admin, &skipped).await, 1);
}

/// A reaction that stands still in its first calls, so that others can overtake it.
pub(super) fn held_reaction(sf: &Steadfast<Db>, gate: &Arc<Semaphore>, entered: &mpsc::UnboundedSender<u32>) {
    let (gate, entered) = (gate.clone(), entered.clone());
    let react = move |cx: &EventCx, _: Tagged| {
        let (gate, entered, attempt) = (gate.clone(), entered.clone(), cx.attempt());
        async move {
            entered.send(attempt).unwrap();
            gate.acquire().await?.forget();
            Ok(())
        }
    };
    sf.reaction::<Tagged>("test.held").retry(at_once(5)).run_outside(react);
}

#[tokio::test]
async fn a_row_whose_process_says_nothing_any_more_is_taken_over_and_the_zombie_changes_nothing() {
    let harness = fresh::<Db>().await;
    let (clock, slow) = (Clock::default(), Clock::default());
    let zombie = process(&harness, &slow, Dispatcher::default()).await;
    let heir = process(&harness, &clock, Dispatcher::default()).await;
    let (gate, (entered, mut entries)) = (Arc::new(Semaphore::new(0)), mpsc::unbounded_channel());
    held_reaction(&zombie, &gate, &entered);
    held_reaction(&heir, &Arc::new(Semaphore::new(9)), &entered);
    zombie.declare().await.unwrap();
    publish(&harness.sf, &tagged("a")).await;
    let dispatching = run(&zombie);
    assert_eq!(entries.recv().await, Some(1));

    assert_eq!(heir.drain().await.unwrap(), 0, "the lease holds");
    clock.set_offset(Duration::from_secs(31));
    assert_eq!(heir.drain().await.unwrap(), 1, "beyond its lease it is taken over");
    assert_eq!(entries.recv().await, Some(2));
    assert_eq!((rows(&harness, "queue").await, rows(&harness, "history").await), (0, 1));
    let expired = format!(
        "SELECT count(*) FROM {} WHERE code = 'lease_expired'",
        Db::table("failures")
    );
    assert_eq!(Db::count(&harness.admin, &expired).await, 1);

    gate.add_permits(1);
    stop(&zombie, dispatching).await;
    assert_eq!(
        rows(&harness, "history").await,
        1,
        "the zombie's end counts for nothing"
    );
}

#[tokio::test]
async fn what_a_zombie_wrote_in_its_transaction_is_rolled_back() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let (held, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let zombie = harness.another().await;
    let (entered, go) = (held.clone(), gate.clone());
    zombie.reaction::<Tagged>("test.keep").run_boxed(move |tx, event| {
        let (entered, go) = (entered.clone(), go.clone());
        Box::pin(async move {
            entered.add_permits(1);
            go.acquire().await?.forget();
            keep(tx, tagged(event.tag + " by the zombie")).await
        })
    });
    zombie.declare().await.unwrap();
    publish(&harness.sf, &tagged("a")).await;
    // SQLite lets nobody else write while a handler has the turn, so the claim is taken from under it by hand.
    let dispatching = run(&zombie);
    held.acquire().await.unwrap().forget();
    if Db::IS_SQLITE {
        gate.add_permits(1);
        eventually("it is done", || async { harness.effects().await == 1 }).await;
        return stop(&zombie, dispatching).await;
    }
    let heir = process(&harness, &clock, Dispatcher::default()).await;
    heir.reaction::<Tagged>("test.keep").run(keep);
    clock.set_offset(Duration::from_secs(31));
    assert_eq!(heir.drain().await.unwrap(), 1);
    gate.add_permits(1);
    stop(&zombie, dispatching).await;
    assert_eq!(harness.effects().await, 1);
    let late = "SELECT count(*) FROM effects WHERE tag LIKE '%zombie'";
    assert_eq!(Db::count(&harness.admin, late).await, 0);
}

#[tokio::test]
async fn a_lease_is_renewed_for_as_long_as_the_work_lasts() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let short = Dispatcher::default().lease(Duration::from_millis(300));
    let (worker, other) = (
        process(&harness, &clock, short).await,
        process(&harness, &clock, short).await,
    );
    let (gate, (entered, mut entries)) = (Arc::new(Semaphore::new(0)), mpsc::unbounded_channel());
    held_reaction(&worker, &gate, &entered);
    held_reaction(&other, &gate, &entered);
    worker.declare().await.unwrap();
    publish(&harness.sf, &tagged("a")).await;
    let (one, two) = (run(&worker), run(&other));
    assert_eq!(entries.recv().await, Some(1));
    // Longer than three leases; whoever took it over would say so.
    let overtaken = tokio::time::timeout(Duration::from_secs(1), entries.recv()).await;
    assert!(overtaken.is_err(), "{overtaken:?}");
    gate.add_permits(1);
    eventually("it is done", || async { rows(&harness, "history").await == 1 }).await;
    stop(&worker, one).await;
    stop(&other, two).await;
    assert_eq!(rows(&harness, "failures").await, 0);
}

#[tokio::test]
async fn work_that_is_under_way_ends_before_the_process_does_and_the_rest_stays_untouched() {
    let harness = fresh::<Db>().await;
    let heard = Heard::default();
    let (slow, gate) = (heard.clone(), Arc::new(Semaphore::new(0)));
    let go = gate.clone();
    let hear = move |_: &EventCx, event: Tagged| {
        let (heard, go) = (slow.clone(), go.clone());
        async move {
            heard.add(&event.tag);
            go.acquire().await?.forget();
            Ok(())
        }
    };
    let reaction = harness.sf.reaction::<Tagged>("test.hear").concurrency(3);
    reaction.run_outside(hear);
    harness.sf.declare().await.unwrap();
    for tag in 0..10 {
        publish(&harness.sf, &tagged(tag)).await;
    }
    let dispatching = run(&harness.sf);
    eventually("three are under way", || async { heard.all().len() == 3 }).await;
    harness.sf.stop();
    gate.add_permits(100);
    dispatching.await.unwrap().unwrap();
    let done = rows(&harness, "history").await;
    assert_eq!((done, in_state(&harness, "leased").await), (3, 0));
    let untouched = format!("SELECT count(*) FROM {} WHERE attempts = 0", Db::table("queue"));
    assert_eq!(Db::count(&harness.admin, &untouched).await, 7);
}

/// Hears, but never what is called bad.
fn hear_the_good(sf: &Steadfast<Db>, heard: &Heard, on_dead: OnDead) {
    let heard = heard.clone();
    let hear = move |_: &EventCx, event: Tagged| {
        let is_bad = event.tag == "bad";
        if !is_bad {
            heard.add(&event.tag);
        }
        async move {
            match is_bad {
                true => Err(Failure::definitive(FailureClass::BusinessRule, "bad", "bad")),
                false => Ok(()),
            }
        }
    };
    sf.reaction::<Tagged>("test.hear").on_dead(on_dead).run_outside(hear);
}

#[tokio::test]
async fn a_dead_head_keeps_its_tail_and_other_keys_flow() {
    let harness = fresh::<Db>().await;
    let heard = Heard::default();
    hear_the_good(&harness.sf, &heard, OnDead::Wait);
    harness.sf.declare().await.unwrap();
    for (key, tag) in [("a", "1"), ("a", "bad"), ("a", "2"), ("b", "3"), ("a", "4"), ("b", "5")] {
        publish(&harness.sf, &ordered(key, tag)).await;
    }
    harness.sf.drain().await.unwrap();
    let mut flowed = heard.all();
    flowed.sort();
    assert_eq!(flowed, ["1", "3", "5"]);
    assert_eq!(
        (in_state(&harness, "dead").await, in_state(&harness, "pending").await),
        (1, 2)
    );
}

#[tokio::test]
async fn a_dead_head_that_makes_room_is_passed_by() {
    let harness = fresh::<Db>().await;
    let heard = Heard::default();
    hear_the_good(&harness.sf, &heard, OnDead::Skip);
    harness.sf.declare().await.unwrap();
    for tag in ["1", "bad", "2", "3"] {
        publish(&harness.sf, &ordered("a", tag)).await;
    }
    harness.sf.drain().await.unwrap();
    assert_eq!(heard.all(), ["1", "2", "3"]);
    assert_eq!(in_state(&harness, "dead").await, 1);
}

#[tokio::test]
async fn fifty_poisoned_rows_at_the_head_hold_nobody_up() {
    let harness = fresh::<Db>().await;
    let heard = Heard::default();
    let ear = heard.clone();
    let hear = move |_: &EventCx, event: Tagged| {
        let is_bad = event.tag == "bad";
        if !is_bad {
            ear.add(&event.tag);
        }
        async move {
            match is_bad {
                true => Err(Failure::transient("bad", "bad")),
                false => Ok(()),
            }
        }
    };
    let worker = process(&harness, &Clock::default(), Dispatcher::default().batch(10)).await;
    worker.reaction::<Tagged>("test.hear").run_outside(hear);
    worker.declare().await.unwrap();
    for _ in 0..50 {
        publish(&harness.sf, &tagged("bad")).await;
    }
    publish(&harness.sf, &tagged("good")).await;
    let dispatching = run(&worker);
    eventually("it is heard", || async { heard.all() == ["good"] }).await;
    stop(&worker, dispatching).await;
}

#[tokio::test]
async fn a_transaction_that_commits_late_is_delivered_too() {
    let harness = fresh::<Db>().await;
    let heard = Heard::default();
    heard.hear(&harness.sf, "test.hear", at_once(0));
    harness.sf.declare().await.unwrap();
    if Db::IS_SQLITE {
        return; // Writers come one after another there.
    }
    let mut late = harness.sf.pool().begin().await.unwrap();
    harness.sf.on(&mut late).publish(&tagged("late")).await.unwrap();
    publish(&harness.sf, &tagged("early")).await;
    harness.sf.drain().await.unwrap();
    assert_eq!(heard.all(), ["early"]);
    late.commit().await.unwrap();
    harness.sf.drain().await.unwrap();
    assert_eq!(heard.all(), ["early", "late"]);
}

#[tokio::test]
async fn two_dispatchers_share_the_work_and_do_nothing_twice() {
    let harness = fresh::<Db>().await;
    let workers = [harness.another().await, harness.another().await];
    for worker in &workers {
        worker.reaction::<Tagged>("test.keep").run(keep);
        worker.declare().await.unwrap();
    }
    let tags: Vec<_> = (0..200).map(tagged).collect();
    let batch = harness.sf.transact(async |tx| {
        for tag in &tags {
            tx.publish(tag)?;
        }
        Ok(())
    });
    batch.await.unwrap();
    let running: Vec<_> = workers.iter().map(run).collect();
    eventually("all are done", || async { rows(&harness, "history").await == 200 }).await;
    for (worker, dispatching) in workers.iter().zip(running) {
        stop(worker, dispatching).await;
    }
    let doubled = "SELECT count(*) FROM (SELECT tag FROM effects GROUP BY tag HAVING count(*) > 1) AS twice";
    assert_eq!(Db::count(&harness.admin, doubled).await, 0);
    assert_eq!(harness.effects().await, 200);
}

#[tokio::test]
async fn a_clock_that_jumps_doubles_and_loses_nothing() {
    const ALL: i64 = 60;
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let mut running = Vec::new();
    for _ in 0..2 {
        let worker = process(&harness, &clock, Dispatcher::default().batch(5)).await;
        // Some fail at first, so that there are due times to jump over.
        let stumble = async |tx: &mut Tx<Db>, event: Tagged| {
            let is_first = tx.event().is_some_and(|cx| cx.attempt() == 1);
            keep(tx, event.clone()).await?;
            match is_first && event.tag.ends_with('3') {
                true => Err(Failure::transient("busy", "once more")),
                false => Ok(()),
            }
        };
        let reaction = worker.reaction::<Tagged>("test.keep");
        reaction.run(stumble);
        worker.declare().await.unwrap();
        running.push((run(&worker), worker));
    }
    for number in 0..ALL {
        publish(&harness.sf, &tagged(number)).await;
        // Ahead by hours, and back.
        let hours = [0, 1, 0, 3][usize::try_from(number / 5).unwrap() % 4];
        clock.set_offset(Duration::from_secs(hours * 3600));
    }
    // What was put off while the clock was ahead is due when it is there again.
    clock.set_offset(Duration::from_secs(4 * 3600));
    eventually("all have their effect", || async {
        rows(&harness, "history").await == ALL
    })
    .await;
    let distinct = Db::count(&harness.admin, "SELECT count(DISTINCT tag) FROM effects").await;
    assert_eq!((harness.effects().await, distinct), (ALL, ALL));
    for (dispatching, worker) in running {
        stop(&worker, dispatching).await;
    }
}

#[tokio::test]
async fn the_epoch_of_a_row_never_goes_back() {
    let harness = fresh::<Db>().await;
    if Db::IS_SQLITE {
        let queue = Db::table("queue");
        harness
            .run(&format!(
                "CREATE TRIGGER never_back BEFORE UPDATE ON {queue} WHEN NEW.epoch < OLD.epoch
                 BEGIN SELECT RAISE(ABORT, 'the epoch went back'); END"
            ))
            .await;
    } else {
        harness
            .run(
                "CREATE FUNCTION never_back() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN RAISE EXCEPTION 'the epoch went back'; END $$;
                 CREATE TRIGGER never_back BEFORE UPDATE ON steadfast.queue FOR EACH ROW
                 WHEN (NEW.epoch < OLD.epoch) EXECUTE FUNCTION never_back()",
            )
            .await;
    }
    let clock = Clock::default();
    let worker = process(&harness, &clock, Dispatcher::default()).await;
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let react = move |_: &EventCx, _: Tagged| {
        let call = count.fetch_add(1, Ordering::SeqCst);
        async move {
            match call {
                0 => Err(Failure::transient("busy", "not now")),
                1 => Err(Failure::snooze(Duration::ZERO)),
                2 => panic!("a handler that panics"),
                _ => Err(Failure::definitive(FailureClass::BusinessRule, "no", "never")),
            }
        }
    };
    worker
        .reaction::<Tagged>("test.react")
        .retry(at_once(9))
        .run_outside(react);
    worker.declare().await.unwrap();
    publish(&worker, &tagged("a")).await;
    worker.drain().await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    let epochs = format!("SELECT max(epoch) FROM {}", Db::table("queue"));
    assert_eq!(Db::count(&harness.admin, &epochs).await, 4);
    assert_eq!(in_state(&harness, "dead").await, 1);
}
