//! Dead letters of the inbox: the database has them first and the broker a copy, and none of them holds anybody up.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Pool};
use steadfast::testing::{Observer, TestQueue};
use steadfast::{
    BulkVerb, Clock, Code, DeliveryState, Dispatcher, EventCx, Failure, FailureClass, Incoming, ListedDelivery,
    Steadfast, Tx,
};
use tokio::sync::Semaphore;

use super::Db;
use super::inbox::{all_are_acked, consume, message};
use super::queue::{Tagged, at_once, keep, process, rows, run, stop};
use crate::harness::{PoolSize, TestDatabase, eventually, fresh};

/// What carries letters to the broker of the queue.
const LETTERS: &str = "test.queue:dead_letters";

/// A process that refuses what is called bad, and counts how often it does.
fn refuse(sf: &Steadfast<Db>, queue: &TestQueue) -> Arc<AtomicU32> {
    let refused = Arc::new(AtomicU32::new(0));
    let count = refused.clone();
    sf.reaction::<Tagged>("test.keep")
        .run_boxed(move |tx: &mut Tx<Db>, event: Tagged| {
            let count = count.clone();
            Box::pin(async move {
                if event.tag.starts_with("bad") {
                    count.fetch_add(1, Ordering::SeqCst);
                    return Err(Failure::definitive(FailureClass::BusinessRule, "bad", "it is no good"));
                }
                keep(tx, event).await
            })
        });
    sf.source("test.queue").events("test.*").consume_from(queue.clone());
    refused
}

async fn dead(sf: &Steadfast<Db>) -> Vec<ListedDelivery> {
    let page = sf.deliveries().state(DeliveryState::Dead).page().await.unwrap();
    page.deliveries
}

#[tokio::test]
async fn a_dead_letter_and_its_copy_are_one_commit_whoever_carries_it_to_the_broker() {
    for is_redelivered in [false, true] {
        let (harness, queue) = (fresh::<Db>().await, TestQueue::with_dead_letters());
        let refused = refuse(&harness.sf, &queue);
        queue.refuse_dead_letters(true);
        let running = run(&harness.sf);
        queue.send(message("bad").redelivered(is_redelivered));
        queue.send(message("good"));
        all_are_acked(&queue, 2).await;
        eventually("it is dead", || async { dead(&harness.sf).await.len() == 1 }).await;
        let letter = dead(&harness.sf).await.remove(0);
        let handled = refused.load(Ordering::SeqCst);
        assert_eq!((&*letter.target, letter.attempts), ("test.keep", 1));
        assert_eq!(harness.effects().await, 1, "the broker's dead letters hold nobody up");
        assert_eq!(rows(&harness, "queue").await, 2, "the copy is in line");
        // Whatever becomes of this process, the letter is somebody's.
        stop(&harness.sf, running).await;
        assert!(queue.dead_letters().is_empty());
        queue.refuse_dead_letters(false);
        let heir = harness.another().await;
        let again = refuse(&heir, &queue);
        let running = run(&heir);
        eventually("the broker has it", || async { queue.dead_letters().len() == 1 }).await;
        eventually("the letter is done", || async { rows(&harness, "queue").await == 1 }).await;
        let came = &queue.dead_letters()[0];
        assert_eq!((came.message_id(), came.body()), (Some("bad"), message("bad").body()));
        assert_eq!(
            (refused.load(Ordering::SeqCst), again.load(Ordering::SeqCst)),
            (handled, 0),
            "the verdict is remembered: nobody handles it again to bury it"
        );
        stop(&heir, running).await;
    }
}

#[tokio::test]
async fn a_letter_that_the_broker_refuses_for_good_says_so_and_holds_nobody_up() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::with_dead_letters());
    refuse(&harness.sf, &queue);
    queue.refuse_dead_letters_for_good();
    let running = run(&harness.sf);
    for id in ["bad", "good"] {
        queue.send(message(id));
    }
    queue.send(Incoming::new("no id"));
    all_are_acked(&queue, 3).await;
    eventually("two letters and their copies are dead", || async {
        dead(&harness.sf).await.len() == 4
    })
    .await;
    assert_eq!(harness.effects().await, 1);
    let letters = dead(&harness.sf).await;
    let copies: Vec<_> = letters.iter().filter(|letter| letter.target == LETTERS).collect();
    assert_eq!(copies.len(), 2);
    for copy in copies {
        let looked = harness.sf.message(copy.id).look().await.unwrap().unwrap();
        let codes: Vec<_> = looked
            .failures
            .iter()
            .map(|failed| (&*failed.target, &*failed.code))
            .collect();
        assert!(codes.contains(&(LETTERS, "too_large")), "{codes:?}");
        assert_eq!(looked.deliveries.len(), 2, "the dead letter itself is there");
    }
    // Somebody has made room for it.
    queue.refuse_dead_letters(false);
    for copy in letters.iter().filter(|letter| letter.target == LETTERS) {
        let requeued = harness.sf.delivery(copy.id, LETTERS).requeue("ann", "there is room");
        requeued.await.unwrap();
    }
    eventually("the broker has them", || async { queue.dead_letters().len() == 2 }).await;
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn what_dies_with_its_last_lease_goes_to_the_dead_letters_of_its_broker_too() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::with_dead_letters());
    let (clock, slow) = (Clock::default(), Clock::default());
    let begun = Arc::new(Semaphore::new(0));
    let stand_still = |sf: &Steadfast<Db>| {
        let begun = begun.clone();
        let react = move |_: &EventCx, _: Tagged| {
            let begun = begun.clone();
            async move {
                begun.add_permits(1);
                std::future::pending().await
            }
        };
        sf.reaction::<Tagged>("test.held").retry(at_once(0)).run_outside(react);
        sf.source("test.queue").events("test.*").consume_from(queue.clone());
    };
    let zombie = process(&harness, &slow, Dispatcher::default()).await;
    stand_still(&zombie);
    let running = run(&zombie);
    queue.send(message("poison"));
    begun.acquire().await.unwrap().forget();
    all_are_acked(&queue, 1).await;

    let heir = process(&harness, &clock, Dispatcher::default()).await;
    stand_still(&heir);
    clock.set_offset(Duration::from_secs(31));
    heir.drain().await.unwrap();
    let letters = queue.dead_letters();
    assert_eq!((letters.len(), letters[0].message_id()), (1, Some("poison")));
    let looked = heir.message(dead(&heir).await[0].id).look().await.unwrap().unwrap();
    assert_eq!(looked.failures[0].code, "lease_expired");
    running.abort();
}

#[tokio::test]
async fn a_letter_whose_acknowledgement_was_lost_is_at_the_broker_once() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::with_dead_letters());
    refuse(&harness.sf, &queue);
    let running = run(&harness.sf);
    let came = async |times: u32| {
        eventually("it has come so often, and its copy is done", || async {
            let letters = dead(&harness.sf).await;
            letters.len() == 1 && letters[0].attempts == times && rows(&harness, "queue").await == 1
        })
        .await;
    };
    queue.send(Incoming::new("no id"));
    all_are_acked(&queue, 1).await;
    came(1).await;
    assert_eq!(queue.dead_letters().len(), 1);
    // The broker has not heard of it, and hands it out again when its copy has long been carried.
    queue.send(Incoming::new("no id").redelivered(true));
    all_are_acked(&queue, 2).await;
    came(2).await;
    // What would be in line is in line since the commit that has counted it.
    assert_eq!(queue.dead_letters().len(), 1);
    let copies = format!("SELECT count(*) FROM {} WHERE kind = '{LETTERS}'", Db::table("history"));
    assert_eq!(Db::count(&harness.admin, &copies).await, 1);
    stop(&harness.sf, running).await;
}

/// Takes every connection of a pool for a second when a message is about to be read, so often.
#[derive(Clone, Default)]
struct TakesAll {
    pool: Arc<Mutex<Option<Pool<Db>>>>,
    times: Arc<AtomicU32>,
}

impl Observer for TakesAll {
    fn asked(&self, statement: &'static str) {
        let pool = self.pool.lock().unwrap().clone();
        let Some(pool) = pool.filter(|_| statement == "read a message") else {
            return;
        };
        let one_less = |left: u32| left.checked_sub(1);
        if self
            .times
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
            .is_err()
        {
            return;
        }
        let all = async { futures_util::future::join_all((0..CONNECTIONS).map(|_| pool.acquire())).await };
        let all = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(all));
        let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(all);
        });
    }
}

/// How many connections there are to take.
const CONNECTIONS: u32 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_whose_message_cannot_be_read_just_then_loses_no_attempt() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::with_dead_letters());
    let size = PoolSize {
        connections: CONNECTIONS,
        patience: Duration::from_millis(300),
    };
    let (pool, takes_all) = (Db::another_pool(&harness, size), TakesAll::default());
    let builder = Steadfast::builder(pool.clone()).observer(takes_all.clone());
    let sf = builder.build().await.unwrap();
    takes_all.times.store(2, Ordering::SeqCst);
    *takes_all.pool.lock().unwrap() = Some(pool);
    refuse(&sf, &queue);
    let running = run(&sf);
    queue.send(Incoming::new("no id"));
    all_are_acked(&queue, 1).await;
    eventually("the broker has it", || async { queue.dead_letters().len() == 1 }).await;
    assert_eq!(takes_all.times.load(Ordering::SeqCst), 0, "there was no connection");
    stop(&sf, running).await;
    let looked = harness.sf.message(dead(&harness.sf).await[0].id).look().await.unwrap();
    let failed: Vec<_> = looked
        .unwrap()
        .failures
        .into_iter()
        .map(|failed| failed.target)
        .collect();
    assert_eq!(failed, ["test.queue"], "the letter has failed nobody");
}

#[tokio::test]
async fn a_letter_that_is_requeued_and_dies_again_is_at_the_broker_twice() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::with_dead_letters());
    refuse(&harness.sf, &queue);
    let running = run(&harness.sf);
    queue.send(message("bad"));
    queue.send(Incoming::new("no id"));
    all_are_acked(&queue, 2).await;
    eventually("the broker has both", || async { queue.dead_letters().len() == 2 }).await;
    eventually("the copies are done", || async { rows(&harness, "queue").await == 2 }).await;
    for letter in dead(&harness.sf).await {
        let requeued = harness
            .sf
            .delivery(letter.id, &letter.target)
            .requeue("ann", "once more");
        requeued.await.unwrap();
    }
    eventually("it has both twice", || async { queue.dead_letters().len() == 4 }).await;
    eventually("the copies are done", || async { rows(&harness, "queue").await == 2 }).await;
    assert_eq!(dead(&harness.sf).await.len(), 2);
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn a_message_that_the_database_refuses_is_set_apart_and_holds_nobody_up() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    consume(&harness.sf, &queue);
    let messages = Db::table("messages");
    let refuse = match Db::IS_SQLITE {
        true => format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON {messages}
             WHEN NEW.type = 'test.tagged' AND instr(NEW.payload, 'cursed')
             BEGIN SELECT RAISE(ABORT, 'such a thing is not stored'); END"
        ),
        false => format!(
            "ALTER TABLE {messages} ADD CONSTRAINT refuse
             CHECK (type <> 'test.tagged' OR position('cursed' IN encode(payload, 'escape')) = 0)"
        ),
    };
    sqlx::raw_sql(AssertSqlSafe(refuse))
        .execute(&harness.admin)
        .await
        .unwrap();
    let running = run(&harness.sf);
    let cursed = message("cursed")
        .with_header("x-name", "Zoë \u{0}")
        .with_correlation_id("c");
    // What was handed out before is kept, so the database is to store it.
    for sent in [message("before"), cursed.clone(), message("after")] {
        queue.send(sent.redelivered(true));
    }
    all_are_acked(&queue, 3).await;
    eventually("the others act", || async { harness.effects().await == 2 }).await;
    let letters = dead(&harness.sf).await;
    assert_eq!((letters.len(), &*letters[0].target), (1, "test.queue"));
    let looked = harness.sf.message(letters[0].id).look().await.unwrap().unwrap();
    assert_eq!(looked.failures[0].code, "unstorable");
    assert_eq!(looked.incoming.unwrap(), cursed, "with its bytes and all its headers");
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn a_copy_for_the_broker_is_requeued_with_many_others_however_old_it_is() {
    let (harness, queue, clock) = (fresh::<Db>().await, TestQueue::with_dead_letters(), Clock::default());
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    refuse(&sf, &queue);
    queue.refuse_dead_letters_for_good();
    let running = run(&sf);
    queue.send(message("bad"));
    all_are_acked(&queue, 1).await;
    eventually("it is dead, and so is its copy", || async {
        dead(&sf).await.len() == 2
    })
    .await;
    stop(&sf, running).await;
    clock.set_offset(Duration::from_secs(8 * 24 * 60 * 60));
    let all = || sf.deliveries().state(DeliveryState::Dead);
    let counted = all().count_for(BulkVerb::Requeue).await.unwrap();
    assert_eq!(counted.number, 1, "the message may have been handled since");
    let copies = all().target(LETTERS).count_for(BulkVerb::Requeue).await.unwrap();
    assert_eq!(copies.number, 1);
}

#[tokio::test]
async fn what_nobody_can_read_and_copies_for_the_broker_are_not_edited() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::with_dead_letters());
    refuse(&harness.sf, &queue);
    queue.refuse_dead_letters_for_good();
    let running = run(&harness.sf);
    queue.send(message("bad"));
    queue.send(Incoming::new("no id"));
    all_are_acked(&queue, 2).await;
    eventually("two letters and their copies are dead", || async {
        dead(&harness.sf).await.len() == 4
    })
    .await;
    stop(&harness.sf, running).await;
    let letters = dead(&harness.sf).await;
    for letter in &letters {
        let why = harness.sf.why(letter.id).await.unwrap().unwrap();
        let why = why.deliveries.iter().find(|why| why.target == letter.target).unwrap();
        let suggests = why.reasons[0].remedy.contains("--edited");
        let edit = harness.sf.delivery(letter.id, &letter.target);
        let edited = edit.requeue_edited("ann", "to correct it", r#"{"tag":"good"}"#).await;
        if letter.target == "test.keep" {
            assert!(suggests);
            edited.unwrap();
            continue;
        }
        let refused = edited.unwrap_err();
        assert_eq!(refused.code(), Code::InputInvalid);
        assert!(refused.help().contains("requeue it without --edited"), "{refused}");
        assert!(!suggests, "{}", why.reasons[0].remedy);
    }
    let left: Vec<_> = dead(&harness.sf).await;
    let expected = letters.iter().filter(|letter| letter.target != "test.keep");
    assert_eq!(left, expected.cloned().collect::<Vec<_>>(), "a refusal changes nothing");
}

/// Counts how often messages are written.
#[derive(Clone, Default)]
struct Writes(Arc<AtomicU32>);

impl Observer for Writes {
    fn asked(&self, statement: &'static str) {
        self.0
            .fetch_add(u32::from(statement == "keep messages"), Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_refusal_that_is_no_fault_of_the_message_makes_no_dead_letter_when_it_is_over() {
    let (harness, queue, writes) = (fresh::<Db>().await, TestQueue::default(), Writes::default());
    let builder = Steadfast::builder(Db::another_pool(&harness, PoolSize::default()));
    let sf = builder.observer(writes.clone()).build().await.unwrap();
    consume(&sf, &queue);
    let messages = Db::table("messages");
    // On SQLite there are no rights that could be missing.
    let (refuse, allow) = match Db::IS_SQLITE {
        true => (
            format!(
                "CREATE TRIGGER refuse BEFORE INSERT ON {messages} BEGIN SELECT RAISE(ABORT, 'nothing is stored'); END"
            ),
            "DROP TRIGGER refuse".to_owned(),
        ),
        false => (
            format!("REVOKE INSERT ON {messages} FROM steadfast_app"),
            format!("GRANT INSERT ON {messages} TO steadfast_app"),
        ),
    };
    harness.run(&refuse).await;
    let running = run(&sf);
    // What was handed out before is kept, so the database is to store it.
    for id in ["a", "b"] {
        queue.send(message(id).redelivered(true));
    }
    // Together, the first one alone, and set apart; and then it is left alone for seconds.
    let mut last = (0, Instant::now());
    eventually("both forms were refused, and it waits", || {
        let now = writes.0.load(Ordering::SeqCst);
        if now != last.0 {
            last = (now, Instant::now());
        }
        let waits = now >= 5 && last.1.elapsed() > Duration::from_secs(1);
        async move { waits }
    })
    .await;
    assert_eq!((queue.acked(), dead(&sf).await.len()), (0, 0));
    harness.run(&allow).await;
    all_are_acked(&queue, 2).await;
    eventually("both act", || async { harness.effects().await == 2 }).await;
    assert!(dead(&sf).await.is_empty(), "nothing was wrong with them");
    stop(&sf, running).await;
}

#[tokio::test]
async fn what_differs_in_nothing_is_one_letter_that_says_how_often_it_came_unless_it_has_a_place() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    consume(&harness.sf, &queue);
    queue.lose_acks(1);
    let same = || Incoming::new("no id");
    // Two of one batch; their acknowledgement is lost, so both come again.
    queue.send(same());
    queue.send(same());
    let running = run(&harness.sf);
    all_are_acked(&queue, 2).await;
    queue.send(same().with_place("orders 1"));
    queue.send(same().with_place("orders 2"));
    queue.send(same().with_place("orders 2").redelivered(true));
    all_are_acked(&queue, 5).await;
    let mut times: Vec<_> = dead(&harness.sf).await.iter().map(|letter| letter.attempts).collect();
    times.sort_unstable();
    assert_eq!(times, [1, 2, 4]);
    stop(&harness.sf, running).await;
}
