//! Leases while somebody stands in the way of a statement of the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use steadfast::{Clock, Code, Dispatcher, EventCx, Failure, Steadfast, Tx};
use tokio::sync::{Semaphore, mpsc};

use super::Db;
use super::queue::{Tagged, at_once, held_reaction, ordered, process, publish, rows, run, stop, tagged};
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

#[tokio::test]
async fn a_row_that_cannot_be_finished_costs_no_other_its_lease() {
    let harness = fresh::<Db>().await;
    let worker = process(&harness, &Clock::default(), Dispatcher::default()).await;
    let (quick, slow) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let gates = (quick.clone(), slow.clone());
    let react = move |_: &EventCx, event: Tagged| {
        let gate = if event.tag == "quick" {
            gates.0.clone()
        } else {
            gates.1.clone()
        };
        async move {
            gate.acquire().await?.forget();
            Ok(())
        }
    };
    worker.reaction::<Tagged>("test.react").lease("3s").run_outside(react);
    worker.declare().await.unwrap();
    publish(&worker, &tagged("quick")).await;
    publish(&worker, &tagged("slow")).await;
    let dispatching = run(&worker);
    let of = |tag: &str| {
        format!(
            "FROM steadfast.queue AS q JOIN steadfast.messages AS m ON m.id = q.item
             WHERE convert_from(m.payload, 'UTF8') LIKE '%{tag}%' AND q.state = 'leased' AND q.attempts = 1"
        )
    };
    let both = format!(
        "SELECT (SELECT count(*) {}) + (SELECT count(*) {})",
        of("quick"),
        of("slow")
    );
    eventually("both are begun", async || Db::count(&harness.admin, &both).await == 2).await;

    let until = format!(
        "SELECT (extract(epoch FROM leased_until) * 1000)::bigint {}",
        of("slow")
    );
    let leased_until = Db::count(&harness.admin, &until).await;
    let mut locked = harness.admin.begin().await.unwrap();
    let lock = format!("SELECT 1 {} FOR UPDATE OF q", of("quick"));
    sqlx::query(sqlx::AssertSqlSafe(lock))
        .execute(&mut *locked)
        .await
        .unwrap();
    quick.add_permits(1);
    // For longer than a lease lasts.
    eventually("the other one is renewed all the same", async || {
        Db::count(&harness.admin, &until).await > leased_until + 4_000
    })
    .await;
    drop(locked);
    slow.add_permits(1);
    eventually("the other one is done", async || rows(&harness, "history").await >= 1).await;
    let again = "SELECT count(*) FROM steadfast.failures AS f JOIN steadfast.messages AS m ON m.id = f.item
                 WHERE convert_from(m.payload, 'UTF8') LIKE '%slow%'";
    assert_eq!(Db::count(&harness.admin, again).await, 0);
    quick.add_permits(1);
    stop(&worker, dispatching).await;
}

#[tokio::test]
async fn a_row_that_was_put_off_when_it_was_claimed_is_taken_over_beyond_its_lease() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let zombie = process(&harness, &Clock::default(), Dispatcher::default()).await;
    let heir = process(&harness, &clock, Dispatcher::default()).await;
    let (gate, (entered, mut entries)) = (Arc::new(Semaphore::new(1)), mpsc::unbounded_channel());
    held_reaction(&zombie, &gate, &entered);
    held_reaction(&heir, &Arc::new(Semaphore::new(9)), &entered);
    zombie.declare().await.unwrap();
    // As the claim of another process would that looks just before the head of the chain is gone.
    harness
        .run(
            "CREATE FUNCTION put_off() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 UPDATE steadfast.queue SET visible_at = clock_timestamp() + interval '1 hour' WHERE chain = OLD.chain;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER put_off AFTER DELETE ON steadfast.queue FOR EACH ROW EXECUTE FUNCTION put_off()",
        )
        .await;
    publish(&harness.sf, &ordered("key", "head")).await;
    publish(&harness.sf, &ordered("key", "tail")).await;
    let dispatching = run(&zombie);
    for _ in ["head", "tail"] {
        assert_eq!(entries.recv().await, Some(1));
    }

    assert_eq!(heir.drain().await.unwrap(), 0, "the lease holds");
    clock.set_offset(Duration::from_secs(31));
    assert_eq!(heir.drain().await.unwrap(), 1, "beyond its lease it is taken over");
    assert_eq!(entries.recv().await, Some(2));
    gate.add_permits(1);
    stop(&zombie, dispatching).await;
    assert_eq!((rows(&harness, "queue").await, rows(&harness, "history").await), (0, 2));
}

/// Rows of a message with this tag.
fn of(tag: &str) -> String {
    format!(
        "FROM steadfast.queue AS q JOIN steadfast.messages AS m ON m.id = q.item
         WHERE convert_from(m.payload, 'UTF8') LIKE '%{tag}%'"
    )
}

async fn leased_until(harness: &Harness<Db>, tag: &str) -> i64 {
    let until = format!(
        "SELECT coalesce(max(extract(epoch FROM leased_until) * 1000), 0)::bigint {} AND state = 'leased'",
        of(tag)
    );
    Db::count(&harness.admin, &until).await
}

#[tokio::test]
async fn a_handler_that_waits_to_commit_costs_no_other_row_its_lease() {
    let harness = fresh::<Db>().await;
    let worker = process(&harness, &Clock::default(), Dispatcher::default()).await;
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (closed, begins) = (gate.clone(), begun.clone());
    let slow = move |_: &EventCx, _: Tagged| {
        let (gate, begun) = (closed.clone(), begins.clone());
        async move {
            begun.add_permits(1);
            drop(gate.acquire().await);
            Ok(())
        }
    };
    worker.reaction::<Tagged>("test.slow").lease("3s").run_outside(slow);
    // What it publishes has to wait: the row is finished by then, and the transaction open.
    let entered = begun.clone();
    let reaction = worker.reaction::<Tagged>("test.keep").lease("3s").retry(at_once(9));
    reaction.run_boxed(move |tx: &mut Tx<Db>, event: Tagged| {
        let entered = entered.clone();
        Box::pin(async move {
            if event.key.is_none() {
                entered.add_permits(1);
                tx.publish(&ordered("key", "behind"))?;
            }
            Ok(())
        })
    });
    worker.declare().await.unwrap();
    let mut open = harness.admin.begin().await.unwrap();
    let theirs = Steadfast::new(harness.admin.clone()).await.unwrap();
    theirs.on(&mut open).publish(&ordered("key", "ahead")).await.unwrap();
    publish(&worker, &tagged("first")).await;
    let dispatching = run(&worker);
    begun.acquire_many(2).await.unwrap().forget();
    let (since, until) = (Instant::now(), leased_until(&harness, "first").await);
    eventually("the other one is renewed all the same", async || {
        leased_until(&harness, "first").await > until + 5_000
    })
    .await;
    assert!(since.elapsed() < Duration::from_secs(9), "{:?}", since.elapsed());
    let lost = "SELECT count(*) FROM steadfast.failures WHERE kind = 'test.slow'";
    assert_eq!(Db::count(&harness.admin, lost).await, 0);
    open.rollback().await.unwrap();
    gate.add_permits(9);
    // `first` to both, and `behind` to both.
    eventually("all are done", async || rows(&harness, "history").await == 4).await;
    stop(&worker, dispatching).await;
    let twice = "SELECT count(*) FROM steadfast.history WHERE kind = 'test.slow' AND attempts > 1";
    assert_eq!(Db::count(&harness.admin, twice).await, 0);
}

#[tokio::test]
async fn what_somebody_else_writes_is_said_when_he_is_done_and_nobody_waits_for_him() {
    let harness = fresh::<Db>().await;
    let worker = process(&harness, &Clock::default(), Dispatcher::default()).await;
    let gate = Arc::new(Semaphore::new(0));
    let closed = gate.clone();
    let react = move |cx: &EventCx, event: Tagged| {
        let (gate, is_first) = (closed.clone(), cx.attempt() == 1);
        async move {
            if event.tag != "others" {
                drop(gate.acquire().await);
            }
            match is_first && event.tag == "locked and failed" {
                true => Err(Failure::transient("busy", "once more")),
                false => Ok(()),
            }
        }
    };
    let reaction = worker.reaction::<Tagged>("test.react").retry(at_once(5));
    reaction.run_outside(react);
    worker.declare().await.unwrap();
    publish(&worker, &tagged("locked and done")).await;
    publish(&worker, &tagged("locked and failed")).await;
    let dispatching = run(&worker);
    let leased = format!("SELECT count(*) {} AND q.state = 'leased'", of("locked"));
    eventually("both are begun", async || Db::count(&harness.admin, &leased).await == 2).await;
    let mut open = harness.admin.begin().await.unwrap();
    let lock = format!("SELECT 1 {} FOR UPDATE OF q", of("locked"));
    let locking = sqlx::query(sqlx::AssertSqlSafe(lock)).execute(&mut *open).await;
    assert_eq!(locking.unwrap().rows_affected(), 2);
    gate.add_permits(99);
    for others in 1..=5 {
        publish(&worker, &tagged("others")).await;
        // Within less than a statement may take, and far less than a lease.
        let delivered = async || rows(&harness, "history").await == others;
        let waiting = eventually("others are delivered", delivered);
        tokio::time::timeout(Duration::from_secs(4), waiting).await.unwrap();
    }
    assert_eq!(
        Db::count(&harness.admin, &leased).await,
        2,
        "nobody has said anything of them"
    );
    open.rollback().await.unwrap();
    eventually("all are done", async || rows(&harness, "history").await == 7).await;
    stop(&worker, dispatching).await;
    let attempts = "SELECT sum(attempts)::bigint FROM steadfast.history";
    assert_eq!(
        Db::count(&harness.admin, attempts).await,
        8,
        "one failed once, and was tried again"
    );
}

#[tokio::test]
async fn a_transaction_that_cannot_write_its_end_is_rolled_back_in_time() {
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.react").run(super::queue::keep);
    harness.sf.declare().await.unwrap();
    let theirs = Steadfast::new(harness.admin.clone()).await.unwrap();
    let mut open = harness.admin.begin().await.unwrap();
    theirs.on(&mut open).publish(&ordered("key", "ahead")).await.unwrap();
    let publishing = harness.sf.transact(async |tx| {
        super::queue::keep(tx, tagged("a")).await?;
        Ok(tx.publish(&ordered("key", "behind"))?)
    });
    let ended = tokio::time::timeout(Duration::from_secs(9), publishing).await;
    let error = ended.expect("it does not wait for ever").unwrap_err();
    assert_eq!(error.code(), Code::TimeLimit, "{error:?}");
    open.rollback().await.unwrap();
    assert_eq!((harness.effects().await, rows(&harness, "messages").await), (0, 0));
}

#[tokio::test]
async fn however_many_reactions_there_are_half_of_the_pool_is_left_to_everybody_else() {
    let harness = fresh::<Db>().await;
    let size = PoolSize {
        connections: 4,
        patience: Duration::from_secs(2),
    };
    let worker = Steadfast::new(Db::another_pool(&harness, size)).await.unwrap();
    let (gate, now, most) = (
        Arc::new(Semaphore::new(0)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    for name in ["test.a", "test.b", "test.c"] {
        let (gate, now, most) = (gate.clone(), now.clone(), most.clone());
        let reaction = worker.reaction::<Tagged>(name).concurrency(4);
        reaction.run_boxed(move |_: &mut Tx<Db>, _: Tagged| {
            let (gate, now, most) = (gate.clone(), now.clone(), most.clone());
            Box::pin(async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                drop(gate.acquire().await);
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            })
        });
    }
    worker.declare().await.unwrap();
    for tag in 0..5 {
        publish(&worker, &tagged(tag)).await;
    }
    let dispatching = run(&worker);
    eventually("all are claimed that there is a hand for", async || {
        Db::count(
            &harness.admin,
            "SELECT count(*) FROM steadfast.queue WHERE state = 'leased'",
        )
        .await
            == 12
    })
    .await;
    eventually("two of them are at work", async || now.load(Ordering::SeqCst) >= 2).await;
    // Whoever has a command has a connection, whatever the handlers wait for.
    for _ in 0..5 {
        worker
            .transact(async |tx| super::queue::keep(tx, tagged("a")).await)
            .await
            .unwrap();
    }
    gate.add_permits(99);
    eventually("all are done", async || rows(&harness, "history").await == 15).await;
    stop(&worker, dispatching).await;
    assert_eq!(most.load(Ordering::SeqCst), 2);
}
