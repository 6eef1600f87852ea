//! Bulk operations: many dead letters, in batches that survive a stop, a crash and each other.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use steadfast::{
    BULK_BATCH, Backoff, BulkState, BulkVerb, Code, DeliveryState, EventCx, Failure, Jitter, RetryPolicy, Steadfast,
};

use super::Db;
use super::letters::{World, ordered, say};
use super::queue::{Tagged, publish, rows, tagged};
use crate::harness::{Harness, TestDatabase, fresh};

/// Dead deliveries to `test.hear`, each with a failure, written past the library.
pub(crate) fn graves(is_sqlite: bool, count: u32) -> String {
    let (now, never, table) = if is_sqlite {
        ("1000000", "9223372036854775807", "steadfast_")
    } else {
        ("timestamptz '1970-01-01 00:00:01Z'", "'infinity'", "steadfast.")
    };
    let (series, id, number) = if is_sqlite {
        (
            format!("WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count}) SELECT"),
            "printf('01890000-0000-7000-8000-%012d', n)",
            "",
        )
    } else {
        (
            "SELECT".to_owned(),
            "('01890000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid",
            "number, ",
        )
    };
    let from = if is_sqlite {
        "FROM n".to_owned()
    } else {
        format!("FROM generate_series(1, {count}) AS n")
    };
    let value = if is_sqlite { "" } else { "n, " };
    format!(
        "INSERT INTO {table}messages ({number}created_at, version, id, type, source, content_type, payload)
         {series} {value}{now}, 1, {id}, 'test.tagged', '/test', 'application/json', '{{\"tag\":\"x\"}}' {from};
         INSERT INTO {table}queue (visible_at, due_at, epoch, attempts, item, state, kind)
         {series} {never}, {now}, 3, 3, {id}, 'dead', 'test.hear' {from};
         INSERT INTO {table}failures (at, epoch, attempt, item, kind, failure, code, message, fingerprint)
         {series} {now}, 3, 3, {id}, 'test.hear', 'transient', 'busy', 'busy', 'abc' {from};"
    )
}

async fn with_graves(count: u32) -> Harness<Db> {
    let harness = fresh::<Db>().await;
    World::default().reacts(&harness.sf, "test.hear");
    harness.sf.declare().await.unwrap();
    harness.run(&graves(Db::IS_SQLITE, count)).await;
    harness
}

async fn in_state(harness: &Harness<Db>, state: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {} WHERE state = '{state}'", Db::table("queue"));
    Db::count(&harness.admin, &sql).await
}

fn go_on(_: &steadfast::BulkOperation) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn stop(_: &steadfast::BulkOperation) -> ControlFlow<()> {
    ControlFlow::Break(())
}

#[tokio::test]
async fn twenty_thousand_dead_letters_are_requeued_in_batches_of_five_hundred() {
    let harness = with_graves(20_000).await;
    let sf = &harness.sf;
    let count = sf.dead_letters().count_for(BulkVerb::Requeue).await.unwrap();
    assert_eq!((count.number, count.is_capped), (20_000, false));
    let operation = sf
        .dead_letters()
        .code("busy")
        .start(BulkVerb::Requeue, "ann", "it is back")
        .await
        .unwrap();
    assert_eq!((operation.expected, operation.done), (20_000, 0));
    assert_eq!(
        in_state(&harness, "dead").await,
        20_000,
        "nothing is changed before it is resumed"
    );
    let mut steps = Vec::new();
    let ended = sf.bulk_operation(operation.id).resume(|progress| {
        steps.push(progress.done);
        ControlFlow::Continue(())
    });
    let ended = ended.await.unwrap();
    assert_eq!((ended.state, ended.done, ended.batches), (BulkState::Done, 20_000, 40));
    let most = steps
        .iter()
        .scan(0, |last, done| Some(done - std::mem::replace(last, *done)))
        .max();
    assert_eq!(most, Some(u64::from(BULK_BATCH)), "each batch is bounded");
    assert_eq!(in_state(&harness, "pending").await, 20_000);
    let fresh = format!(
        "SELECT count(*) FROM {} WHERE attempts = 0 AND epoch = 3",
        Db::table("queue")
    );
    assert_eq!(Db::count(&harness.admin, &fresh).await, 20_000);
    let leases = format!(
        "SELECT count(*) FROM {} WHERE name LIKE 'operation%'",
        Db::table("leases")
    );
    assert_eq!(Db::count(&harness.admin, &leases).await, 0);
}

#[tokio::test]
async fn what_dies_after_an_operation_began_is_not_taken_by_it() {
    let harness = with_graves(1_200).await;
    let sf = &harness.sf;
    let operation = sf.dead_letters().start(BulkVerb::Requeue, "ann", "try").await.unwrap();
    let stopped = sf.bulk_operation(operation.id).resume(stop).await.unwrap();
    assert_eq!((stopped.state, stopped.done), (BulkState::Running, 500));
    // One that was passed dies again, and so does one that is still ahead.
    let (queue, failures) = (Db::table("queue"), Db::table("failures"));
    let (now, never) = if Db::IS_SQLITE {
        ("unixepoch() * 1000000 + 5000000", "9223372036854775807")
    } else {
        ("now() + interval '5 seconds'", "'infinity'")
    };
    for n in [1, 1_200] {
        let id = format!("01890000-0000-7000-8000-{n:012}");
        harness
            .run(&format!(
                "UPDATE {queue} SET state = 'dead', visible_at = {never}, epoch = 4 WHERE item = '{id}';
                 INSERT INTO {failures} (at, epoch, attempt, item, kind, failure, code, message, fingerprint)
                 VALUES ({now}, 4, 1, '{id}', 'test.hear', 'transient', 'busy', 'busy', 'abc')"
            ))
            .await;
    }
    let ended = sf.bulk_operation(operation.id).resume(go_on).await.unwrap();
    assert_eq!((ended.state, ended.done, ended.batches), (BulkState::Done, 1_199, 3));
    assert_eq!(in_state(&harness, "dead").await, 2);
}

#[tokio::test]
async fn what_is_published_after_an_operation_began_is_not_taken_by_it() {
    let harness = fresh::<Db>().await;
    let sf = &harness.sf;
    World::default().reacts(sf, "test.hear");
    sf.declare().await.unwrap();
    for tag in ["a", "b"] {
        publish(sf, &tagged(tag)).await;
    }
    let wrong = sf.deliveries().target("test.hear");
    let operation = wrong.start(BulkVerb::Skip, "ann", "these two").await.unwrap();
    publish(sf, &tagged("c")).await;
    let ended = sf.bulk_operation(operation.id).resume(go_on).await.unwrap();
    assert_eq!((ended.state, ended.done), (BulkState::Done, 2));
    assert_eq!((rows(&harness, "queue").await, rows(&harness, "history").await), (1, 2));
}

#[tokio::test]
async fn an_operation_goes_on_in_another_process_and_a_cancelled_one_does_not() {
    let harness = with_graves(1_100).await;
    let operation = harness
        .sf
        .dead_letters()
        .start(BulkVerb::Discard, "ann", "too old")
        .await
        .unwrap();
    harness.sf.bulk_operation(operation.id).resume(stop).await.unwrap();
    let other = harness.another().await;
    let stopped = other.bulk_operation(operation.id).resume(stop).await.unwrap();
    assert_eq!((stopped.done, rows(&harness, "history").await), (1_000, 1_000));
    let cancelled = other
        .bulk_operation(operation.id)
        .cancel("bob", "enough")
        .await
        .unwrap();
    assert_eq!(cancelled.state, BulkState::Cancelled);
    let resuming = harness.sf.bulk_operation(operation.id).resume(go_on).await;
    assert!(resuming.unwrap_err().to_string().contains("is cancelled"));
    assert_eq!(in_state(&harness, "dead").await, 100);
    let again = other
        .bulk_operation(operation.id)
        .cancel("bob", "enough")
        .await
        .unwrap_err();
    assert_eq!(again.code(), Code::InputInvalid);
    let listed = other.bulk_operations(10).await.unwrap();
    assert_eq!((listed.len(), &*listed[0].operator), (1, "ann"));
    let found = other
        .bulk_operations_beginning(&operation.id.to_string()[..13])
        .await
        .unwrap();
    assert_eq!(found[0].id, operation.id);
    let audit = Steadfast::new(harness.admin.clone())
        .await
        .unwrap()
        .audit_entries()
        .page()
        .await
        .unwrap();
    let actions: Vec<_> = audit.entries.iter().map(|entry| &*entry.action).collect();
    assert_eq!(actions, ["bulk.cancel", "bulk.discard"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_works_on_an_operation_that_is_cancelled_or_done_keeps_no_lease() {
    let harness = with_graves(1_100).await;
    let start = || harness.sf.dead_letters().start(BulkVerb::Discard, "ann", "too old");
    let cancelled = start().await.unwrap().id;
    let other = harness.another().await;
    let cancel = |_: &steadfast::BulkOperation| {
        let cancelling = other.bulk_operation(cancelled).cancel("bob", "enough");
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(cancelling)).unwrap();
        ControlFlow::Continue(())
    };
    let ended = harness.sf.bulk_operation(cancelled).resume(cancel).await.unwrap();
    assert_eq!((ended.state, ended.done), (BulkState::Cancelled, 500));
    assert_eq!(rows(&harness, "leases").await, 0);

    let done = start().await.unwrap().id;
    for _ in ["first", "when it is done already"] {
        let ended = harness.sf.bulk_operation(done).resume(go_on).await.unwrap();
        assert_eq!((ended.state, ended.done), (BulkState::Done, 600));
    }
    assert_eq!(rows(&harness, "leases").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_who_resume_an_operation_one_works() {
    let harness = with_graves(1_100).await;
    let operation = harness
        .sf
        .dead_letters()
        .start(BulkVerb::Requeue, "ann", "try")
        .await
        .unwrap();
    let (one, other) = (harness.another().await, harness.another().await);
    let (told, heard) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let id = operation.id;
    let working = tokio::spawn(async move {
        let watch = move |_: &steadfast::BulkOperation| {
            told.send(()).unwrap();
            // The test lets it go on, by hanging up.
            let _ = wait.lock().unwrap().recv();
            ControlFlow::Continue(())
        };
        one.bulk_operation(id).resume(watch).await
    });
    tokio::task::block_in_place(|| heard.recv().unwrap());
    let refused = other.bulk_operation(id).resume(go_on).await.unwrap_err();
    assert_eq!(refused.code(), Code::Conflict);
    assert!(
        refused.what().contains("another process works on operation"),
        "{refused}"
    );
    drop(go);
    let ended = working.await.unwrap().unwrap();
    assert_eq!((ended.state, ended.done, ended.batches), (BulkState::Done, 1_100, 3));
}

#[tokio::test]
async fn a_bulk_requeue_keeps_the_order_and_a_bulk_skip_lets_it_go_on() {
    let harness = fresh::<Db>().await;
    let world = World::refuses(&["a1", "b1"]);
    world.reacts(&harness.sf, "test.hear");
    harness.sf.declare().await.unwrap();
    let sf = &harness.sf;
    for (key, tag) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2")] {
        say(sf, &ordered(key, tag)).await;
    }
    sf.drain().await.unwrap();
    assert_eq!(in_state(&harness, "dead").await, 2);
    world.heals();
    let of_a = sf
        .dead_letters()
        .ordering_key("a")
        .start(BulkVerb::Requeue, "ann", "back")
        .await
        .unwrap();
    assert_eq!(sf.bulk_operation(of_a.id).resume(go_on).await.unwrap().done, 1);
    let of_b = sf.deliveries().ordering_key("b").state(DeliveryState::Dead);
    let of_b = of_b.start(BulkVerb::Skip, "ann", "no").await.unwrap();
    assert_eq!(sf.bulk_operation(of_b.id).resume(go_on).await.unwrap().done, 1);
    sf.drain().await.unwrap();
    let mut taken = world.taken();
    taken.retain(|tag| tag.contains(":a"));
    assert_eq!(taken, ["test.hear:a1", "test.hear:a2"]);
    assert!(
        world.taken().contains(&"test.hear:b2".to_owned()),
        "{:?}",
        world.taken()
    );
    assert_eq!(rows(&harness, "queue").await, 0);
}

#[tokio::test]
async fn what_waits_for_its_next_attempt_is_tried_at_once_when_it_is_requeued() {
    let harness = fresh::<Db>().await;
    let sf = &harness.sf;
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let react = move |_: &EventCx, _: Tagged| {
        let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            match is_first {
                true => Err(Failure::transient("busy", "not now")),
                false => Ok(()),
            }
        }
    };
    let policy = RetryPolicy::builder().backoff(Backoff::Constant(Duration::from_secs(3600)));
    let policy = policy.jitter(Jitter::None).build().unwrap();
    sf.reaction::<Tagged>("test.hear").retry(policy).run_outside(react);
    sf.declare().await.unwrap();
    say(sf, &ordered("k", "1")).await;
    assert_eq!(sf.drain().await.unwrap(), 1);
    assert_eq!(sf.drain().await.unwrap(), 0, "it waits for an hour");
    let waiting = sf.deliveries().state(DeliveryState::Pending);
    let operation = waiting.start(BulkVerb::Requeue, "ann", "it is back").await.unwrap();
    assert_eq!(sf.bulk_operation(operation.id).resume(go_on).await.unwrap().done, 1);
    assert_eq!(sf.drain().await.unwrap(), 1);
    assert_eq!(rows(&harness, "queue").await, 0);
}

#[tokio::test]
async fn everything_that_is_not_worked_on_can_be_skipped_and_what_has_ended_cannot_be_changed() {
    let harness = with_graves(3).await;
    let sf = &harness.sf;
    say(sf, &ordered("k", "1")).await;
    let skipped = sf
        .deliveries()
        .target("test.hear")
        .start(BulkVerb::Skip, "ann", "gone")
        .await
        .unwrap();
    assert_eq!(sf.bulk_operation(skipped.id).resume(go_on).await.unwrap().done, 4);
    assert_eq!((rows(&harness, "queue").await, rows(&harness, "history").await), (0, 4));
    for (state, verb) in [
        (DeliveryState::Skipped, BulkVerb::Requeue),
        (DeliveryState::Leased, BulkVerb::Skip),
        (DeliveryState::Pending, BulkVerb::Discard),
    ] {
        let refused = sf.deliveries().state(state).start(verb, "ann", "x").await.unwrap_err();
        assert_eq!(refused.code(), Code::InputInvalid, "{state:?} {verb:?}");
    }
    let nobody = "01890000-0000-7000-8000-000000000000".parse().unwrap();
    assert_eq!(
        sf.bulk_operation(nobody).resume(go_on).await.unwrap_err().code(),
        Code::InputInvalid
    );
}
