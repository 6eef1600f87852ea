//! How long messages stay: what the purge takes, and what it must not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfast::{Clock, Code, Dispatcher, EventCx, Expired, Failure, FailureClass, Purged, Steadfast};
use tokio::sync::Semaphore;

use super::Db;
use super::queue::{Heard, Tagged, at_once, in_state, process, publish, rows, run, stop, tagged};
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What a purge deletes.
async fn purge(sf: &Steadfast<Db>) -> Expired {
    match sf.purge().await.unwrap() {
        Purged::Done(expired) => expired,
        Purged::Elsewhere => panic!("nobody else purges"),
    }
}

/// Messages, deliveries in the history, and failed attempts.
async fn left(harness: &Harness<Db>) -> (i64, i64, i64) {
    (
        rows(harness, "messages").await,
        rows(harness, "history").await,
        rows(harness, "failures").await,
    )
}

/// A reaction that hears what is good, gives up on what is bad, and takes two attempts for what is slow.
fn hear_the_good(sf: &Steadfast<Db>, heard: &Heard) {
    let ear = heard.clone();
    let hear = move |cx: &EventCx, event: Tagged| {
        let ended = match &*event.tag {
            "bad" => Err(Failure::definitive(FailureClass::BusinessRule, "bad", "never")),
            "slow" if cx.attempt() == 1 => Err(Failure::transient("slow", "not yet")),
            tag => {
                ear.add(tag);
                Ok(())
            }
        };
        async move { ended }
    };
    sf.reaction::<Tagged>("test.hear").retry(at_once(3)).run_outside(hear);
}

#[tokio::test]
async fn purge_takes_messages_that_nobody_waits_for_and_nothing_else() {
    let harness = fresh::<Db>().await;
    let (sf, clock) = harness.another_with_clock().await;
    publish(&sf, &tagged("unwanted")).await;
    let heard = Heard::default();
    hear_the_good(&sf, &heard);
    sf.declare().await.unwrap();
    for tag in ["good", "slow", "bad"] {
        publish(&sf, &tagged(tag)).await;
    }
    sf.drain().await.unwrap();
    publish(&sf, &tagged("late")).await;
    assert_eq!(left(&harness).await, (5, 2, 2));

    clock.set_offset(6 * DAY);
    assert_eq!(purge(&sf).await, Expired::default(), "nothing is a week old");
    clock.set_offset(8 * DAY);
    let counted = sf.count_expired(|_| ()).await.unwrap();
    assert_eq!(left(&harness).await, (5, 2, 2), "counting deletes nothing");
    let purged = purge(&sf).await;
    assert_eq!((purged.messages, purged.deliveries, purged.keys), (3, 2, 0));
    assert_eq!(purged, counted);
    assert_eq!(
        left(&harness).await,
        (2, 0, 1),
        "what is pending or dead keeps its message, and what is dead its errors"
    );
    assert_eq!(purge(&sf).await, Expired::default());

    sf.drain().await.unwrap();
    assert_eq!(heard.all(), ["good", "slow", "late"], "the payload was there");
    assert_eq!(in_state(&harness, "dead").await, 1);
    assert_eq!(purge(&sf).await.messages, 1);
    assert_eq!(
        left(&harness).await,
        (1, 1, 1),
        "the delivery has ended just now, and stays a week"
    );
}

#[tokio::test]
async fn a_dead_letter_keeps_its_message_for_years_and_can_be_requeued() {
    let harness = fresh::<Db>().await;
    let (sf, clock) = harness.another_with_clock().await;
    hear_the_good(&sf, &Heard::default());
    sf.declare().await.unwrap();
    publish(&sf, &tagged("bad")).await;
    sf.drain().await.unwrap();
    clock.set_offset(2 * 365 * DAY);
    assert_eq!(purge(&sf).await.messages, 0);

    let mended = process(&harness, &clock, Dispatcher::default()).await;
    let heard = Heard::default();
    heard.hear(&mended, "test.hear", at_once(0));
    let (queue, now) = (Db::table("queue"), if Db::IS_SQLITE { "0" } else { "'epoch'" });
    harness
        .run(&format!(
            "UPDATE {queue} SET state = 'pending', visible_at = {now} WHERE state = 'dead'"
        ))
        .await;
    assert_eq!(purge(&sf).await.messages, 0, "it is pending now");
    mended.drain().await.unwrap();
    assert_eq!(heard.all(), ["bad"]);
    assert_eq!(purge(&sf).await.messages, 1);
}

#[tokio::test]
async fn a_message_stays_while_somebody_works_on_it() {
    let harness = fresh::<Db>().await;
    let (purger, clock) = harness.another_with_clock().await;
    clock.set_offset(8 * DAY);
    let (started, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begins, may_end) = (started.clone(), go_on.clone());
    let work = move |_: &EventCx, _: Tagged| {
        let (begins, may_end) = (begins.clone(), may_end.clone());
        async move {
            begins.add_permits(1);
            may_end.acquire().await.unwrap().forget();
            Ok(())
        }
    };
    harness.sf.reaction::<Tagged>("test.work").run_outside(work);
    harness.sf.declare().await.unwrap();
    publish(&harness.sf, &tagged("a")).await;
    let dispatching = run(&harness.sf);
    started.acquire().await.unwrap().forget();
    assert_eq!(in_state(&harness, "leased").await, 1);
    assert_eq!(purge(&purger).await.messages, 0);
    go_on.add_permits(1);
    eventually("it is finished", || async { rows(&harness, "queue").await == 0 }).await;
    stop(&harness.sf, dispatching).await;
    let purged = purge(&purger).await;
    assert_eq!((purged.messages, purged.deliveries), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_that_races_the_purge_never_loses_its_payload() {
    let harness = fresh::<Db>().await;
    let heard = Heard::default();
    let ear = heard.clone();
    // The first attempt fails, so that every row is pending, leased, pending and leased again while it is purged around.
    let hear = move |cx: &EventCx, event: Tagged| {
        let is_first = cx.attempt() == 1;
        if !is_first {
            ear.add(&event.tag);
        }
        async move {
            match is_first {
                true => Err(Failure::transient("slow", "not yet")),
                false => Ok(()),
            }
        }
    };
    let worker = process(&harness, &Clock::default(), Dispatcher::default()).await;
    worker
        .reaction::<Tagged>("test.hear")
        .retry(at_once(9))
        .run_outside(hear);
    worker.declare().await.unwrap();
    let dispatching = run(&worker);

    // For these everything that is published is a week old already.
    let is_over = Arc::new(AtomicBool::new(false));
    let mut purges = Vec::new();
    for _ in 0..2 {
        let (sf, clock) = harness.another_with_clock().await;
        clock.set_offset(8 * DAY);
        let is_over = is_over.clone();
        purges.push(tokio::spawn(async move {
            while !is_over.load(Ordering::SeqCst) {
                sf.purge().await.unwrap();
            }
        }));
    }
    let mut publishers = Vec::new();
    for publisher in 0..2 {
        let sf = harness.another().await;
        publishers.push(tokio::spawn(async move {
            for number in 0..50 {
                publish(&sf, &tagged(format!("{publisher}-{number}"))).await;
            }
        }));
    }
    for publisher in publishers {
        publisher.await.unwrap();
    }
    eventually("all are done", || async { rows(&harness, "queue").await == 0 }).await;
    is_over.store(true, Ordering::SeqCst);
    for purge in purges {
        purge.await.unwrap();
    }
    stop(&worker, dispatching).await;
    let mut all = heard.all();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 100, "each was heard with its payload");
    let (purger, clock) = harness.another_with_clock().await;
    clock.set_offset(8 * DAY);
    purger.purge().await.unwrap();
    assert_eq!(left(&harness).await, (0, 0, 0), "and is gone");
}

#[tokio::test]
async fn many_messages_are_purged_in_many_short_statements() {
    let harness = fresh::<Db>().await;
    let (sf, clock) = harness.another_with_clock().await;
    fill(&harness, 20_000).await;
    clock.set_offset(8 * DAY);
    let mut parts = Vec::new();
    let purged = sf.purge_watched(|walked| parts.push(walked.part)).await.unwrap();
    let Purged::Done(purged) = purged else {
        panic!("nobody else purges")
    };
    assert_eq!((purged.messages, purged.deliveries), (20_000, 20_000));
    assert!(
        parts.len() >= 3 && parts.is_sorted() && parts.last() == Some(&1.0),
        "{parts:?}"
    );
    assert_eq!(left(&harness).await, (0, 0, 0));
}

#[tokio::test]
async fn a_dead_letter_with_an_old_number_does_not_make_the_purge_walk_far() {
    let harness = fresh::<Db>().await;
    let (sf, clock) = harness.another_with_clock().await;
    hear_the_good(&sf, &Heard::default());
    sf.declare().await.unwrap();
    for tag in ["bad", "good"] {
        publish(&sf, &tagged(tag)).await;
    }
    sf.drain().await.unwrap();
    let (messages, far) = (Db::table("messages"), 1_000_000_000_000_i64);
    harness
        .run(&format!(
            "UPDATE {messages} SET number = {far} WHERE number = (SELECT max(number) FROM {messages})"
        ))
        .await;
    clock.set_offset(8 * DAY);
    let mut steps = 0;
    sf.purge_watched(|_| steps += 1).await.unwrap();
    assert!(steps <= 4, "{steps} steps");
    assert_eq!(left(&harness).await, (1, 0, 1));
}

/// Messages that were delivered, as many as that, by plain SQL.
async fn fill(harness: &Harness<Db>, count: u32) {
    let (messages, history) = (Db::table("messages"), Db::table("history"));
    let (numbers, id, now, blob) = if Db::IS_SQLITE {
        let numbers = format!(
            "(WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count}) SELECT n FROM n)"
        );
        let id = "printf('019b0000-0000-7000-8000-%012x', n)";
        (numbers, id, "unixepoch() * 1000000", "CAST('{}' AS BLOB)")
    } else {
        let numbers = format!("generate_series(1, {count}) AS s (n)");
        let id = "('019b0000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid";
        (numbers, id, "clock_timestamp()", "'{}'::bytea")
    };
    harness
        .run(&format!(
            "INSERT INTO {messages} (number, created_at, version, id, type, source, content_type, payload)
             SELECT n, {now}, 1, {id}, 'test.tagged', '/test', 'application/json', {blob} FROM {numbers};
             INSERT INTO {history} (finished_at, attempts, item, state, kind)
             SELECT {now}, 1, {id}, 'delivered', 'test.hear' FROM {numbers}"
        ))
        .await;
}

#[tokio::test]
async fn a_retention_that_cannot_be_is_refused_and_another_one_counts() {
    let harness = fresh::<Db>().await;
    let builder = || Steadfast::builder(Db::another_pool(&harness, PoolSize::default()));
    for wrong in ["soon", "0s", "59s", "36501d"] {
        let Err(error) = builder().message_retention(wrong) else {
            panic!("{wrong} is refused")
        };
        assert_eq!(error.code(), Code::ConfigurationInvalid, "{wrong}");
    }
    let clock = Clock::default();
    let sf = builder()
        .clock(clock.clone())
        .message_retention("36500d")
        .unwrap()
        .build()
        .await
        .unwrap();
    publish(&sf, &tagged("unwanted")).await;
    clock.set_offset(8 * DAY);
    assert_eq!(purge(&sf).await.messages, 0, "it is kept for a hundred years");
    let sf = builder()
        .clock(clock)
        .message_retention(Duration::from_secs(60))
        .unwrap()
        .build()
        .await
        .unwrap();
    assert_eq!(purge(&sf).await.messages, 1);
}
