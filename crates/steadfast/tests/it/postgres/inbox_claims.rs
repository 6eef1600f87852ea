//! A message whose record somebody else has written, and not committed yet: it is waited for, however long that takes. On SQLite
//! whoever writes is alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::postgres::PgPoolOptions;
use steadfast::Steadfast;
use steadfast::testing::{Observer, TestQueue};

use super::Db;
use super::inbox::{all_are_acked, consume, message};
use super::queue::{rows, run, stop};
use crate::harness::{Harness, eventually, fresh};

/// Counts how often messages are written, or their records.
#[derive(Clone, Default)]
struct Writes(Arc<AtomicU32>);

impl Observer for Writes {
    fn asked(&self, statement: &'static str) {
        let is_write = matches!(statement, "claim messages" | "keep messages");
        self.0.fetch_add(u32::from(is_write), Ordering::SeqCst);
    }
}

/// A process whose statements may wait for half a second.
async fn impatient(harness: &Harness<Db>, writes: &Writes) -> Steadfast<Db> {
    let options = (*harness.admin.connect_options()).clone();
    let options = options.username("steadfast_app").password("steadfast_app");
    let pool = PgPoolOptions::new().connect_lazy_with(options.options([("statement_timeout", "500ms")]));
    let builder = Steadfast::builder(pool).observer(writes.clone());
    builder.build().await.unwrap()
}

#[tokio::test]
async fn a_claim_in_progress_is_waited_for_however_long_and_holds_up_no_other() {
    for (is_redelivered, commits) in [(true, true), (true, false), (false, true), (false, false)] {
        let (harness, queue, writes) = (fresh::<Db>().await, TestQueue::default(), Writes::default());
        let sf = impatient(&harness, &writes).await;
        consume(&sf, &queue);
        let mut other = harness.admin.begin().await.unwrap();
        let claim = "INSERT INTO steadfast.inbox (received_at, consumer, source, message_id)
                     VALUES (now(), 'test.keep', '/shop', 'held')";
        sqlx::query(claim).execute(&mut *other).await.unwrap();
        for id in ["before", "held", "after"] {
            queue.send(message(id).redelivered(is_redelivered));
        }
        let running = run(&sf);
        eventually("the others act", || async { harness.effects().await == 2 }).await;
        let before = writes.0.load(Ordering::SeqCst);
        let is_tried = || async { writes.0.load(Ordering::SeqCst) >= before + 4 };
        eventually("it is tried again and again", is_tried).await;
        let dead = sf.outbox_stats().await.unwrap().dead().number;
        assert_eq!(
            (queue.acked(), queue.out(), dead),
            (0, 3, 0),
            "a claim that is in progress is never acknowledged"
        );
        match commits {
            true => other.commit().await.unwrap(),
            false => other.rollback().await.unwrap(),
        }
        all_are_acked(&queue, 3).await;
        let acted = if commits { 2 } else { 3 };
        let has_acted = || async { harness.effects().await == acted && rows(&harness, "queue").await == 0 };
        eventually("what was his is not done here, and what was not is", has_acted).await;
        assert_eq!(
            rows(&harness, "failures").await,
            0,
            "no attempt is booked where no handler was called"
        );
        stop(&sf, running).await;
    }
}
