//! Leases while somebody stands in the way of a statement of the engine.

use std::sync::Arc;

use steadfast::{Clock, Dispatcher, EventCx};
use tokio::sync::Semaphore;

use super::Db;
use super::queue::{Tagged, process, publish, rows, run, stop, tagged};
use crate::harness::{TestDatabase, eventually, fresh};

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
