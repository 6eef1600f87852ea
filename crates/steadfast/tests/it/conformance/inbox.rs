//! The inbox: messages from elsewhere, each of which acts once, whatever comes twice and whoever dies.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use steadfast::testing::TestQueue;
use steadfast::{
    Duplicates, Envelope, Event, EventCx, Failure, FailureClass, Feed, Incoming, RetryPolicy, Source, Steadfast, Tx,
};
use tokio::sync::Semaphore;

use super::Db;
use super::queue::{Tagged, at_once, keep, publish, rows, run, stop, tagged};
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

/// A message as a service of ours sends it, with an id of this source.
pub(super) fn message_of(source: &str, id: &str, tag: &str) -> Incoming {
    Incoming::new(format!(r#"{{"tag":"{tag}"}}"#))
        .with_message_id(id)
        .with_content_type("application/json")
        .with_header("cloudEvents_specversion", "1.0")
        .with_header("cloudEvents_id", id)
        .with_header("cloudEvents_source", source)
        .with_header("cloudEvents_type", Tagged::TYPE)
}

pub(super) fn message(id: &str) -> Incoming {
    message_of("/shop", id, id)
}

/// A process that reacts in a transaction, and consumes from a queue.
pub(super) fn consume(sf: &Steadfast<Db>, queue: &TestQueue) {
    sf.reaction::<Tagged>("test.keep").retry(at_once(2)).run(keep);
    sf.source("test.queue").events("test.*").consume_from(queue.clone());
}

/// Waits until the queue has nothing left, here or on its way.
pub(super) async fn all_are_acked(queue: &TestQueue, count: usize) {
    let acked = || async { queue.acked() == count && queue.waiting() == 0 && queue.out() == 0 };
    eventually("everything is acknowledged", acked).await;
}

async fn effects_of(harness: &Harness<Db>, tag: &str) -> i64 {
    Db::count(
        &harness.admin,
        &format!("SELECT count(*) FROM effects WHERE tag = '{tag}'"),
    )
    .await
}

#[tokio::test]
async fn a_message_that_comes_again_acts_once() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    consume(&harness.sf, &queue);
    let running = run(&harness.sf);
    queue.send(message("a"));
    all_are_acked(&queue, 1).await;
    // After the commit, and twice within one batch.
    queue.send(message("a"));
    all_are_acked(&queue, 2).await;
    for id in ["b", "b", "a", "b"] {
        queue.send(message(id));
    }
    all_are_acked(&queue, 6).await;
    assert_eq!(
        (effects_of(&harness, "a").await, effects_of(&harness, "b").await),
        (1, 1)
    );
    assert_eq!(
        (rows(&harness, "inbox").await, rows(&harness, "messages").await),
        (2, 0)
    );
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn what_comes_at_the_same_time_to_several_processes_acts_once() {
    #[derive(Serialize, Deserialize)]
    struct Told(u32);
    impl Event for Told {
        const TYPE: &'static str = "test.told";
    }
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    let (begun, go_on) = (Arc::new(AtomicU32::new(0)), Arc::new(Semaphore::new(0)));
    let mut running = Vec::new();
    for _ in 0..3 {
        let sf = harness.another().await;
        let (begun, go_on) = (begun.clone(), go_on.clone());
        sf.reaction::<Tagged>("test.slow")
            .run_boxed(move |tx: &mut Tx<Db>, event: Tagged| {
                let begun = begun.clone();
                let go_on = go_on.clone();
                Box::pin(async move {
                    begun.fetch_add(1, Ordering::SeqCst);
                    let _pass = go_on.acquire().await?;
                    for number in 0..100 {
                        tx.publish(&Told(number))?;
                    }
                    keep(tx, event).await
                })
            });
        sf.source("test.queue")
            .events("test.tagged")
            .consume_from(queue.clone());
        running.push((run(&sf), sf));
    }
    eventually("three processes listen", || async { queue.opened() == 3 }).await;
    for _ in 0..3 {
        queue.send(message("a"));
    }
    let held = || async { begun.load(Ordering::SeqCst) == 1 && queue.out() == 3 };
    eventually("one works, and two wait for it", held).await;
    assert_eq!(queue.acked(), 0, "a claim that is in progress is never acknowledged");
    go_on.add_permits(10);
    all_are_acked(&queue, 3).await;
    assert_eq!(effects_of(&harness, "a").await, 1);
    assert_eq!(
        rows(&harness, "messages").await,
        100,
        "exactly what one of them has published"
    );
    for (running, sf) in running {
        stop(&sf, running).await;
    }
}

#[tokio::test]
async fn each_consumer_of_a_message_acts_once() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    consume(&harness.sf, &queue);
    let fails = Arc::new(AtomicU32::new(2));
    harness
        .sf
        .reaction::<Tagged>("test.moody")
        .retry(at_once(5))
        .run_boxed(move |tx: &mut Tx<Db>, event: Tagged| {
            let fails = fails.clone();
            Box::pin(async move {
                if fails
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                    .is_ok()
                {
                    return Err(Failure::transient("moody", "not now"));
                }
                let tag = format!("moody {}", event.tag);
                keep(tx, Tagged { tag, ..event }).await
            })
        });
    let running = run(&harness.sf);
    for id in ["a", "b", "a"] {
        queue.send(message(id));
    }
    all_are_acked(&queue, 3).await;
    eventually("what was kept is done", || async { harness.effects().await == 4 }).await;
    for tag in ["a", "b", "moody a", "moody b"] {
        assert_eq!(effects_of(&harness, tag).await, 1, "{tag}");
    }
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn a_message_is_acknowledged_after_its_commit() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    let (begun, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (tell, wait) = (begun.clone(), go_on.clone());
    harness
        .sf
        .reaction::<Tagged>("test.slow")
        .run_boxed(move |tx: &mut Tx<Db>, event: Tagged| {
            let tell = tell.clone();
            let wait = wait.clone();
            Box::pin(async move {
                keep(tx, event).await?;
                tell.add_permits(1);
                wait.acquire().await?.forget();
                Ok(())
            })
        });
    harness.sf.source("test.queue").events("*").consume_from(queue.clone());
    let running = run(&harness.sf);
    queue.send(message("a"));
    begun.acquire().await.unwrap().forget();
    assert_eq!((queue.acked(), queue.out(), rows(&harness, "inbox").await), (0, 1, 0));
    go_on.add_permits(1);
    all_are_acked(&queue, 1).await;
    assert_eq!((harness.effects().await, rows(&harness, "inbox").await), (1, 1));
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn the_next_messages_are_received_while_others_are_handled_and_keep_their_order() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    let (begun, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let (tell, wait, note) = (begun.clone(), go_on.clone(), order.clone());
    harness
        .sf
        .reaction::<Tagged>("test.slow")
        .run_boxed(move |tx: &mut Tx<Db>, event: Tagged| {
            let (tell, wait) = (tell.clone(), wait.clone());
            note.lock().unwrap().push(event.tag.clone());
            Box::pin(async move {
                keep(tx, event).await?;
                tell.add_permits(1);
                wait.acquire().await?.forget();
                Ok(())
            })
        });
    let source = harness.sf.source("test.queue").events("*").batch(1);
    source.consume_from(queue.clone());
    let all = ["a", "b", "c", "d", "e"];
    for id in all {
        queue.send(message(id));
    }
    let running = run(&harness.sf);
    for handled in 0..all.len() {
        begun.acquire().await.unwrap().forget();
        // One that is handled, and one that is at hand; none is acknowledged that is not committed.
        let out = 2.min(all.len() - handled);
        let is_ahead = || async { (queue.acked(), queue.out()) == (handled, out) };
        eventually("the next one is here, and those before are acknowledged", is_ahead).await;
        assert_eq!(rows(&harness, "inbox").await, i64::try_from(handled).unwrap());
        go_on.add_permits(1);
    }
    all_are_acked(&queue, all.len()).await;
    assert_eq!(*order.lock().unwrap(), all);
    stop(&harness.sf, running).await;
}

/// A source that hands out whatever it is asked for, and remembers how many were here at the most.
#[derive(Clone, Default)]
struct Generous(Arc<Mutex<GenerousState>>);

#[derive(Default)]
struct GenerousState {
    left: usize,
    handed_out: u64,
    acked: u64,
    here_at_most: u64,
}

impl Generous {
    fn take(&self, max: usize) -> Vec<Incoming> {
        let mut state = self.0.lock().unwrap();
        let count = max.min(state.left);
        state.left -= count;
        let hand_out = |_| {
            state.handed_out += 1;
            message(&state.handed_out.to_string()).with_receipt(state.handed_out)
        };
        let messages = (0..count).map(hand_out).collect();
        state.here_at_most = state.here_at_most.max(state.handed_out - state.acked);
        messages
    }
}

impl Source for Generous {
    type Feed = Self;

    async fn open(&self, _: usize) -> Result<Self, Failure> {
        Ok(self.clone())
    }
}

impl Feed for Generous {
    async fn receive(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        match self.take(max) {
            messages if messages.is_empty() => std::future::pending().await,
            messages => Ok(messages),
        }
    }

    async fn receive_ahead(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        Ok(self.take(max))
    }

    async fn ack(&mut self, receipts: &[u64]) -> Result<(), Failure> {
        self.0.lock().unwrap().acked += receipts.len() as u64;
        Ok(())
    }
}

#[tokio::test]
async fn no_more_messages_are_here_than_the_prefetch_allows_however_many_wait() {
    for (batch, prefetch) in [(4, 6), (100, 3), (2, 100)] {
        let (harness, source) = (fresh::<Db>().await, Generous::default());
        source.0.lock().unwrap().left = 100;
        harness.sf.reaction::<Tagged>("test.keep").run(keep);
        let intake = harness
            .sf
            .source("test.queue")
            .events("*")
            .batch(batch)
            .prefetch(prefetch);
        intake.consume_from(source.clone());
        let running = run(&harness.sf);
        let all_acked = || async { source.0.lock().unwrap().acked == 100 };
        eventually("everything is acknowledged", all_acked).await;
        // A batch that is handled, one that is at hand, and no more than was allowed.
        let expected = prefetch.min(batch * 2) as u64;
        assert_eq!(source.0.lock().unwrap().here_at_most, expected, "{batch} {prefetch}");
        assert_eq!(harness.effects().await, 100);
        stop(&harness.sf, running).await;
    }
}

#[tokio::test]
async fn an_acknowledgement_that_is_lost_brings_a_duplicate_that_is_dropped() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    consume(&harness.sf, &queue);
    queue.lose_acks(2);
    let running = run(&harness.sf);
    for id in ["a", "b"] {
        queue.send(message(id));
    }
    all_are_acked(&queue, 2).await;
    assert_eq!((harness.effects().await, rows(&harness, "inbox").await), (2, 2));
    assert_eq!(rows(&harness, "queue").await, 0);
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn one_bad_message_harms_none_of_the_others() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    harness
        .sf
        .reaction::<Tagged>("test.keep")
        .retry(at_once(2))
        .run(async |tx: &mut Tx<Db>, event: Tagged| {
            let is_bad = event.tag.starts_with("bad");
            keep(tx, event).await?;
            match is_bad {
                true => Err(Failure::transient("bad", "it is no good")),
                false => Ok(()),
            }
        });
    harness.sf.source("test.queue").events("*").consume_from(queue.clone());
    for id in ["a", "bad 1", "b", "bad 2", "c"] {
        queue.send(
            message(id)
                .with_correlation_id("c-17")
                .with_header("x-trace", "all of it"),
        );
    }
    let running = run(&harness.sf);
    all_are_acked(&queue, 5).await;
    let dead = || async { harness.sf.outbox_stats().await.unwrap().dead().number == 2 };
    eventually("the bad ones are dead after three attempts", dead).await;
    assert_eq!(harness.effects().await, 3);
    let page = harness
        .sf
        .deliveries()
        .state(steadfast::DeliveryState::Dead)
        .page()
        .await
        .unwrap();
    for delivery in page.deliveries {
        assert_eq!((&*delivery.target, delivery.attempts), ("test.keep", 3));
        let message = harness
            .sf
            .message(delivery.id)
            .revealed()
            .look()
            .await
            .unwrap()
            .unwrap();
        assert!(message.payload == r#"{"tag":"bad 1"}"# || message.payload == r#"{"tag":"bad 2"}"#);
        assert_eq!(message.correlation_id.as_deref(), Some("c-17"));
        let codes: Vec<_> = message
            .failures
            .iter()
            .map(|failure| (failure.attempt, &*failure.code))
            .collect();
        assert_eq!(codes, [(1, "bad"), (2, "bad"), (3, "bad")]);
        let incoming = message.incoming.expect("it came from elsewhere");
        assert_eq!(incoming.header("x-trace"), Some("all of it"));
        assert_eq!(
            incoming.message_id(),
            Some(if message.payload.contains('1') {
                "bad 1"
            } else {
                "bad 2"
            })
        );
        assert_eq!(incoming.body(), message.payload.as_bytes(), "byte for byte");
    }
    // They come again, and are known.
    queue.send(message("bad 1"));
    all_are_acked(&queue, 6).await;
    assert_eq!((rows(&harness, "queue").await, rows(&harness, "inbox").await), (2, 5));
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn what_cannot_be_read_is_dead_byte_for_byte_and_read_again_when_it_is_requeued() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    consume(&harness.sf, &queue);
    let envelope = |version: &str| {
        Incoming::new(format!(
            r#"{{"specversion":"{version}","id":"1","source":"/s","type":"test.tagged","data":{{}}}}"#
        ))
        .with_content_type("application/cloudevents+json")
    };
    let sent = [
        (
            "no_id",
            Incoming::new(&b"\xff\x00no id"[..])
                .with_event_type(Tagged::TYPE)
                .with_header("x-odd", "\u{0}é"),
        ),
        (
            "undecodable",
            Incoming::new("{")
                .with_content_type("application/cloudevents+json")
                .with_message_id("m"),
        ),
        ("undecodable", envelope("2.0")),
        ("too_large", message("large").with_header("x", "y").with_event_type("t")),
        (
            "no_reaction",
            Incoming::new("{}")
                .with_message_id("17")
                .with_event_type("test.unknown"),
        ),
    ];
    let large = Incoming::new(vec![b'x'; 1024 * 1024 + 1])
        .with_message_id("large")
        .with_event_type(Tagged::TYPE);
    let running = run(&harness.sf);
    for (code, incoming) in &sent {
        let incoming = if *code == "too_large" { &large } else { incoming };
        // Twice, as something that was not acknowledged.
        queue.send(incoming.clone());
        queue.send(incoming.clone().redelivered(true));
    }
    queue.send(message("good"));
    all_are_acked(&queue, 11).await;
    assert_eq!(harness.effects().await, 1, "the good one got through");
    let page = harness
        .sf
        .deliveries()
        .state(steadfast::DeliveryState::Dead)
        .page()
        .await
        .unwrap();
    assert_eq!(page.deliveries.len(), 5);
    let (mut codes, mut unknown) = (Vec::new(), None);
    for delivery in page.deliveries {
        assert_eq!(&*delivery.target, "test.queue");
        let message = harness.sf.message(delivery.id).look().await.unwrap().unwrap();
        let code = message.failures[0].code.clone();
        let found = message.incoming.expect("it came from elsewhere");
        let same = sent
            .iter()
            .map(|(_, sent)| sent)
            .chain([&large])
            .find(|sent| sent.body() == found.body());
        let same = same.expect("the same bytes");
        assert_eq!(found, *same, "with all its headers");
        if code == "no_reaction" {
            unknown = Some(delivery.id);
        }
        codes.push(code);
    }
    codes.sort_unstable();
    assert_eq!(
        codes,
        ["no_id", "no_reaction", "too_large", "undecodable", "undecodable"]
    );
    stop(&harness.sf, running).await;

    let newer = harness.another().await;
    consume(&newer, &TestQueue::default());
    let say = async |tx: &mut Tx<Db>, _: Unknown| keep(tx, tagged("known at last")).await;
    newer.reaction::<Unknown>("test.unknown").run(say);
    let requeued = newer
        .delivery(unknown.unwrap(), "test.queue")
        .requeue("ann", "somebody reacts now");
    requeued.await.unwrap();
    newer.drain().await.unwrap();
    assert_eq!(effects_of(&harness, "known at last").await, 1);
    assert_eq!((rows(&harness, "queue").await, rows(&harness, "inbox").await), (4, 2));
}

/// An event that nobody reacts to at first.
#[derive(Serialize, Deserialize)]
struct Unknown {}

impl Event for Unknown {
    const TYPE: &'static str = "test.unknown";
}

#[tokio::test]
async fn what_nobody_asked_for_is_acknowledged_and_forgotten() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    consume(&harness.sf, &queue);
    let running = run(&harness.sf);
    queue.send(
        Incoming::new("{}")
            .with_message_id("1")
            .with_event_type("other.happened"),
    );
    queue.send(message("a"));
    all_are_acked(&queue, 2).await;
    assert_eq!(
        (
            harness.effects().await,
            rows(&harness, "queue").await,
            rows(&harness, "inbox").await
        ),
        (1, 0, 1)
    );
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn a_newer_version_waits_for_a_node_that_knows_it() {
    #[derive(Serialize, Deserialize)]
    struct TaggedTwo {
        tag: String,
    }
    impl Event for TaggedTwo {
        const TYPE: &'static str = "test.tagged";
        const VERSION: u32 = 2;
    }
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    consume(&harness.sf, &queue);
    let running = run(&harness.sf);
    queue.send(message("new").with_header("cloudEvents_dataversion", "2"));
    queue.send(message("old"));
    all_are_acked(&queue, 2).await;
    assert_eq!((harness.effects().await, rows(&harness, "queue").await), (1, 1));
    stop(&harness.sf, running).await;
    let newer = harness.another().await;
    newer
        .reaction::<TaggedTwo>("test.keep")
        .run(async |tx: &mut Tx<Db>, event: TaggedTwo| keep(tx, tagged(event.tag)).await);
    newer.source("test.queue").events("*").consume_from(queue.clone());
    newer.drain().await.unwrap();
    assert_eq!(effects_of(&harness, "new").await, 1);
}

#[tokio::test]
async fn an_id_of_another_source_suppresses_nothing() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    consume(&harness.sf, &queue);
    let running = run(&harness.sf);
    // Somebody registers an id before the one whose it is, and is kept with it too.
    queue.send(message_of("/evil", "17", "evil"));
    queue.send(message_of("/evil", "18", "evil").redelivered(true));
    all_are_acked(&queue, 2).await;
    queue.send(message_of("/shop", "17", "good 17"));
    queue.send(message_of("/shop", "18", "good 18").redelivered(true));
    queue.send(message_of("/sh", "op17", "also good"));
    all_are_acked(&queue, 5).await;
    eventually("what was kept is done", || async { harness.effects().await == 5 }).await;
    for tag in ["good 17", "good 18", "also good"] {
        assert_eq!(effects_of(&harness, tag).await, 1, "{tag}");
    }
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn what_does_not_exist_yet_is_tried_again() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    harness
        .sf
        .reaction::<Tagged>("test.after")
        .retry(at_once(50))
        .run(async |tx: &mut Tx<Db>, event: Tagged| {
            let orders = sqlx::query_scalar("SELECT count(*) FROM effects WHERE tag = 'order'");
            let orders: i64 = orders.fetch_one(tx.db()).await?;
            if orders == 0 {
                return Err(Failure::definitive(
                    FailureClass::NotFound,
                    "no_order",
                    "there is no such order",
                ));
            }
            keep(tx, event).await
        });
    harness.sf.source("test.queue").events("*").consume_from(queue.clone());
    queue.send(message("payment"));
    let running = run(&harness.sf);
    all_are_acked(&queue, 1).await;
    let failures = || async { rows(&harness, "failures").await > 0 };
    eventually("it has failed", failures).await;
    harness.run("INSERT INTO effects (tag) VALUES ('order')").await;
    eventually("it is done", || async { effects_of(&harness, "payment").await == 1 }).await;
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn what_is_put_off_for_ever_comes_back_within_a_month() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    harness
        .sf
        .reaction::<Tagged>("test.later")
        .retry(at_once(2))
        .run(async |_: &mut Tx<Db>, event: Tagged| match &*event.tag {
            "snooze" => Err(Failure::snooze(Duration::MAX)),
            _ => Err(Failure::transient("busy", "not now").with_retry_after(Duration::MAX)),
        });
    harness.sf.source("test.queue").events("*").consume_from(queue.clone());
    for id in ["snooze", "retry"] {
        queue.send(message(id));
    }
    let running = run(&harness.sf);
    all_are_acked(&queue, 2).await;
    let pending = harness.sf.deliveries().state(steadfast::DeliveryState::Pending);
    let deliveries = pending.page().await.unwrap().deliveries;
    assert_eq!(deliveries.len(), 2);
    let in_a_month = SystemTime::now() + Duration::from_secs(31 * 24 * 60 * 60);
    for delivery in deliveries {
        let due_at = delivery.due_at.unwrap();
        assert!(due_at > SystemTime::now() && due_at < in_a_month, "{due_at:?}");
    }
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn what_was_handed_out_before_is_kept_and_its_attempts_are_counted() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = attempts.clone();
    harness
        .sf
        .reaction::<Tagged>("test.keep")
        .run_boxed(move |tx: &mut Tx<Db>, event: Tagged| {
            let counted = counted.clone();
            Box::pin(async move {
                let attempt = tx.event().map_or(0, EventCx::attempt);
                counted.fetch_add(attempt, Ordering::SeqCst);
                keep(tx, event).await
            })
        });
    harness.sf.source("test.queue").events("*").consume_from(queue.clone());
    let running = run(&harness.sf);
    queue.send(message("a").redelivered(true));
    all_are_acked(&queue, 1).await;
    eventually("it is done", || async { rows(&harness, "history").await == 1 }).await;
    assert_eq!((harness.effects().await, attempts.load(Ordering::SeqCst)), (1, 1));
    queue.send(message("a").redelivered(true));
    queue.send(message("a"));
    all_are_acked(&queue, 3).await;
    assert_eq!((harness.effects().await, rows(&harness, "queue").await), (1, 0));
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn a_reaction_may_allow_duplicates() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    let reaction = harness.sf.reaction::<Tagged>("test.keep").duplicates(Duplicates::Allow);
    reaction.run(keep);
    harness.sf.source("test.queue").events("*").consume_from(queue.clone());
    let running = run(&harness.sf);
    for _ in 0..3 {
        queue.send(message("a"));
    }
    all_are_acked(&queue, 3).await;
    assert_eq!((harness.effects().await, rows(&harness, "inbox").await), (3, 0));
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn a_reaction_without_a_transaction_has_a_key_that_stays() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    let keys = Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = keys.clone();
    let tell = move |cx: &EventCx, _: Tagged| {
        told.lock()
            .unwrap()
            .push((cx.key().to_owned(), cx.message_id().into_owned(), cx.attempt()));
        let is_first = cx.attempt() == 1;
        async move {
            match is_first {
                true => Err(Failure::transient("moody", "not now")),
                false => Ok(()),
            }
        }
    };
    harness
        .sf
        .reaction::<Tagged>("test.tell")
        .retry(at_once(3))
        .run_outside(tell);
    harness.sf.source("test.queue").events("*").consume_from(queue.clone());
    let running = run(&harness.sf);
    queue.send(message("a"));
    queue.send(message("a"));
    all_are_acked(&queue, 2).await;
    eventually("it is done", || async { rows(&harness, "history").await == 1 }).await;
    let keys = keys.lock().unwrap().clone();
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert_eq!((&*keys[0].1, keys[0].2, keys[1].2), ("a", 1, 2));
    assert_eq!(keys[0].0, keys[1].0);
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn correlation_and_trace_flow_into_what_is_published() {
    #[derive(Serialize, Deserialize)]
    struct Followed;
    impl Event for Followed {
        const TYPE: &'static str = "other.followed";
    }
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    let ids = Arc::new(std::sync::Mutex::new(Vec::new()));
    let published = ids.clone();
    harness
        .sf
        .reaction::<Tagged>("test.follow")
        .run_boxed(move |tx: &mut Tx<Db>, _: Tagged| {
            let published = published.clone();
            Box::pin(async move {
                let id = tx.publish(&Followed)?;
                published.lock().unwrap().push(id);
                Ok(())
            })
        });
    harness
        .sf
        .source("test.queue")
        .events("test.*")
        .consume_from(queue.clone());
    let running = run(&harness.sf);
    let traced = |id| {
        message(id)
            .with_header("cloudEvents_correlationid", "c-17")
            .with_header("cloudEvents_traceparent", TRACE)
    };
    queue.send(traced("direct"));
    queue.send(traced("kept").redelivered(true));
    all_are_acked(&queue, 2).await;
    eventually("both have published", || async { ids.lock().unwrap().len() == 2 }).await;
    eventually("and it is durable", || async { rows(&harness, "history").await == 1 }).await;
    let mut causes = Vec::new();
    let ids = ids.lock().unwrap().clone();
    for id in ids {
        let message = harness.sf.message(id).look().await.unwrap().unwrap();
        assert_eq!(
            (message.correlation_id.as_deref(), message.traceparent.as_deref()),
            (Some("c-17"), Some(TRACE))
        );
        causes.push(message.causation_id.unwrap());
    }
    causes.sort_unstable();
    assert_eq!(causes, ["direct", "kept"]);
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn a_process_that_stops_ends_what_it_works_on_and_gives_the_rest_back() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    let (begun, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (tell, wait) = (begun.clone(), go_on.clone());
    harness
        .sf
        .reaction::<Tagged>("test.slow")
        .run_boxed(move |tx: &mut Tx<Db>, event: Tagged| {
            let tell = tell.clone();
            let wait = wait.clone();
            Box::pin(async move {
                tell.add_permits(1);
                wait.acquire().await?.forget();
                keep(tx, event).await
            })
        });
    harness
        .sf
        .source("test.queue")
        .events("*")
        .batch(1)
        .consume_from(queue.clone());
    let running = run(&harness.sf);
    for id in ["a", "b", "c"] {
        queue.send(message(id));
    }
    begun.acquire().await.unwrap().forget();
    harness.sf.stop();
    go_on.add_permits(10);
    running.await.unwrap().unwrap();
    assert_eq!((queue.acked(), queue.waiting(), queue.out()), (1, 2, 0));
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn a_source_that_is_away_is_called_again_and_again_but_not_all_the_time() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    consume(&harness.sf, &queue);
    queue.set_away(true);
    let running = run(&harness.sf);
    eventually("it is called", || async { queue.opened() >= 2 }).await;
    queue.send(message("a"));
    queue.set_away(false);
    all_are_acked(&queue, 1).await;
    assert!(queue.opened() < 12, "{} calls", queue.opened());
    queue.set_away(true);
    queue.send(message("b"));
    queue.set_away(false);
    all_are_acked(&queue, 2).await;
    assert_eq!(harness.effects().await, 2);
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn events_that_come_from_elsewhere_are_not_delivered_from_here() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    harness.sf.declare().await.unwrap();
    assert_eq!(rows(&harness, "targets").await, 1);
    let fed = harness.another().await;
    consume(&fed, &queue);
    fed.declare().await.unwrap();
    assert_eq!(rows(&harness, "targets").await, 0, "it would act twice");
    publish(&fed, &tagged("here")).await;
    fed.drain().await.unwrap();
    assert_eq!(harness.effects().await, 0);
}

#[tokio::test]
async fn messages_of_strangers_are_read_by_a_function() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    let source = harness
        .sf
        .source("test.queue")
        .events("*")
        .read_with(|message: &Incoming| {
            let id = message.header("x-request").unwrap_or_default();
            let payload = format!(r#"{{"tag":{:?}}}"#, String::from_utf8_lossy(message.body()));
            Ok(Envelope::new(id, Tagged::TYPE, payload).with_source("/strangers"))
        });
    source.consume_from(queue.clone());
    let running = run(&harness.sf);
    for _ in 0..2 {
        queue.send(Incoming::new("tea").with_header("X-Request", "17"));
    }
    all_are_acked(&queue, 2).await;
    assert_eq!(effects_of(&harness, "tea").await, 1);
    let record = harness.sf.inbox().page().await.unwrap().records.remove(0);
    assert_eq!(
        (&*record.consumer, &*record.source, &*record.message_id),
        ("test.keep", "/strangers", "17")
    );
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn a_message_of_a_stranger_that_is_kept_keeps_its_bytes() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    harness
        .sf
        .reaction::<Tagged>("test.keep")
        .run(async |_: &mut Tx<Db>, _: Tagged| Err(Failure::definitive(FailureClass::BusinessRule, "bad", "no")));
    let source = harness
        .sf
        .source("test.queue")
        .events("*")
        .read_with(|_: &Incoming| Ok(Envelope::new("1", Tagged::TYPE, r#"{"tag":"x"}"#)));
    source.consume_from(queue.clone());
    let running = run(&harness.sf);
    queue.send(Incoming::new(&b"\xff\x00 packed"[..]));
    all_are_acked(&queue, 1).await;
    let page = harness
        .sf
        .deliveries()
        .state(steadfast::DeliveryState::Dead)
        .page()
        .await
        .unwrap();
    let message = harness.sf.message(page.deliveries[0].id).look().await.unwrap().unwrap();
    assert_eq!(
        (&*message.payload, &**message.incoming.unwrap().body()),
        (r#"{"tag":"x"}"#, &b"\xff\x00 packed"[..])
    );
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn an_event_in_its_envelope_is_handled_and_kept_with_the_envelope() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    let refused = RetryPolicy::builder().retries(0).build().unwrap();
    harness
        .sf
        .reaction::<Tagged>("test.keep")
        .retry(refused)
        .run(async |tx: &mut Tx<Db>, event: Tagged| {
            let is_bad = event.tag == "bad";
            keep(tx, event).await?;
            if is_bad {
                Err(Failure::transient("bad", "no"))
            } else {
                Ok(())
            }
        });
    harness.sf.source("test.queue").events("*").consume_from(queue.clone());
    let whole = |tag: &str| {
        format!(
            r#"{{"specversion":"1.0","id":"{tag}","source":"/s","type":"test.tagged", "data": {{"tag":"{tag}"}} , "odd":1.10}}"#
        )
    };
    let running = run(&harness.sf);
    for tag in ["good", "bad", "later"] {
        let message = Incoming::new(whole(tag)).with_content_type("application/cloudevents+json");
        queue.send(message.redelivered(tag == "later"));
    }
    all_are_acked(&queue, 3).await;
    eventually("what was kept is done", || async { harness.effects().await == 2 }).await;
    let page = harness
        .sf
        .deliveries()
        .state(steadfast::DeliveryState::Dead)
        .page()
        .await
        .unwrap();
    let message = harness.sf.message(page.deliveries[0].id).look().await.unwrap().unwrap();
    assert_eq!(message.payload, r#"{"tag":"bad"}"#);
    assert_eq!(
        message.incoming.unwrap().body(),
        whole("bad").as_bytes(),
        "byte for byte"
    );
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn a_commit_whose_reply_is_lost_is_settled_by_the_record() {
    struct Loses(AtomicU32);
    impl steadfast::testing::Observer for Loses {
        fn commit_applied(&self) -> steadfast::testing::CommitReply {
            match self
                .0
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            {
                Ok(_) => steadfast::testing::CommitReply::IsLost,
                Err(_) => steadfast::testing::CommitReply::Arrives,
            }
        }
    }
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    let builder = Steadfast::builder(Db::another_pool(&harness, PoolSize::default()));
    let sf = builder.observer(Loses(AtomicU32::new(1))).build().await.unwrap();
    consume(&sf, &queue);
    queue.send(message("a"));
    let running = run(&sf);
    all_are_acked(&queue, 1).await;
    assert_eq!((harness.effects().await, rows(&harness, "inbox").await), (1, 1));
    stop(&sf, running).await;
}

#[tokio::test]
async fn a_function_that_panics_on_a_message_holds_up_no_other() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    harness.sf.reaction::<Tagged>("test.keep").run(keep);
    let source = harness.sf.source("test.queue").events("*");
    let source = source.read_with(|message: &Incoming| {
        assert_ne!(&message.body()[..], b"poison", "on purpose");
        Ok(Envelope::new("17", Tagged::TYPE, r#"{"tag":"tea"}"#))
    });
    source.consume_from(queue.clone());
    let running = run(&harness.sf);
    queue.send(Incoming::new("poison"));
    queue.send(Incoming::new("fine"));
    all_are_acked(&queue, 2).await;
    assert_eq!(effects_of(&harness, "tea").await, 1);
    let dead = format!("SELECT count(*) FROM {} WHERE state = 'dead'", Db::table("queue"));
    assert_eq!(Db::count(&harness.admin, &dead).await, 1);
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn one_id_for_two_things_gives_neither_the_bytes_of_the_other() {
    #[derive(Serialize, Deserialize)]
    struct Other {
        tag: String,
    }
    impl Event for Other {
        const TYPE: &'static str = "test.other";
    }
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    // Without a transaction, so both are kept.
    let heard = Arc::new(Mutex::new(Vec::<String>::new()));
    let (one, other) = (heard.clone(), heard.clone());
    harness
        .sf
        .reaction::<Tagged>("test.one")
        .run_outside(move |_: &EventCx, event: Tagged| {
            one.lock().unwrap().push(event.tag);
            std::future::ready(Ok(()))
        });
    harness
        .sf
        .reaction::<Other>("test.two")
        .run_outside(move |_: &EventCx, event: Other| {
            other.lock().unwrap().push(event.tag);
            std::future::ready(Ok(()))
        });
    harness
        .sf
        .source("test.queue")
        .events("test.*")
        .consume_from(queue.clone());
    let running = run(&harness.sf);
    for (event_type, tag) in [(Tagged::TYPE, "first"), (Other::TYPE, "second")] {
        let body = format!(r#"{{"tag":{tag:?}}}"#);
        queue.send(Incoming::new(body).with_message_id("17").with_event_type(event_type));
    }
    eventually("both have heard their own", async || {
        let mut heard = heard.lock().unwrap().clone();
        heard.sort_unstable();
        heard == ["first", "second"]
    })
    .await;
    stop(&harness.sf, running).await;
}
