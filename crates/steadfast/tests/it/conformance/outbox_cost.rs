//! What events cost, by what the engine and the corridor ask of the database. What goes over the wire is counted in
//! `postgres/event_cost.rs`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use steadfast::testing::Observer;
use steadfast::{EventCx, Steadfast};

use super::Db;
use super::queue::{Tagged, keep, publish, rows, tagged};
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

/// What was asked for, in order.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<&'static str>>>);

impl Observer for Asked {
    fn asked(&self, statement: &'static str) {
        self.0.lock().unwrap().push(statement);
    }
}

impl Asked {
    /// What was asked for since the last look.
    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// A process that is watched, with reactions that call the outside and do nothing.
async fn process(harness: &Harness<Db>, names: &[&str]) -> (Steadfast<Db>, Asked) {
    let asked = Asked::default();
    let builder = Steadfast::builder(Db::another_pool(harness, PoolSize::default()));
    let sf = builder.observer(asked.clone()).build().await.unwrap();
    for name in names {
        let reaction = sf.reaction::<Tagged>(name).concurrency(500);
        reaction.run_outside(|_: &EventCx, _: Tagged| std::future::ready(Ok(())));
    }
    sf.declare().await.unwrap();
    (sf, asked)
}

#[tokio::test]
async fn a_command_asks_for_the_same_with_events_and_without() {
    let harness = fresh::<Db>().await;
    let (sf, asked) = process(&harness, &["test.a", "test.b"]).await;
    let mut all = Vec::new();
    for events in [0, 1, 100] {
        asked.take();
        let key = format!("{events}-events");
        let command = sf.command("effects.make", &key).owner(&harness.owner);
        let running = command.run(async |tx| {
            keep(tx, tagged(&key)).await?;
            for _ in 0..events {
                tx.publish(&tagged(&key))?;
            }
            Ok(1)
        });
        running.await.unwrap();
        all.push(asked.take());
    }
    assert!(all[0].len() > 1, "{all:?}");
    assert!(all.iter().all(|asked| *asked == all[0]), "{all:?}");
    assert_eq!(rows(&harness, "queue").await, 2 * 101);
}

#[tokio::test]
async fn deliveries_are_claimed_and_finished_at_once_however_many() {
    let harness = fresh::<Db>().await;
    let (sf, asked) = process(&harness, &["test.a"]).await;
    for deliveries in [1, 50, 500] {
        let publishing = sf.transact(async |tx| {
            for number in 0..deliveries {
                tx.publish(&tagged(number))?;
            }
            Ok(())
        });
        publishing.await.unwrap();
        asked.take();
        assert_eq!(sf.drain().await.unwrap(), deliveries);
        let asked = asked.take();
        // The second claim finds nothing.
        let expected = [
            "declare targets",
            "say which kinds are known",
            "claim rows",
            "finish rows",
            "claim rows",
        ];
        assert_eq!(asked, expected, "{deliveries}");
    }
}

#[tokio::test]
async fn an_idle_process_looks_every_two_seconds_and_asks_for_nothing_else() {
    /// Long enough for three looks.
    const WINDOW: Duration = Duration::from_secs(6);
    let harness = fresh::<Db>().await;
    let (sf, asked) = process(&harness, &["test.a", "test.b", "test.c"]).await;
    let dispatching = tokio::spawn({
        let sf = sf.clone();
        async move { sf.dispatch().await }
    });
    publish(&sf, &tagged("a")).await;
    eventually("all are finished", async || rows(&harness, "history").await == 3).await;
    asked.take();
    tokio::time::sleep(WINDOW).await;
    let asked = asked.take();
    assert!(asked.iter().all(|statement| *statement == "claim rows"), "{asked:?}");
    assert!((2..=5).contains(&asked.len()), "{asked:?}");
    sf.stop();
    dispatching.await.unwrap().unwrap();
}
