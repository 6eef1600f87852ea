//! Dying at every point between the command that publishes an event and the end of its last delivery.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use steadfast::testing::{Harness, TestDatabase};
use steadfast::{
    Confirmation, Event, EventCx, Failure, Job, JobCx, Pushes, QueueOptions, Sink, Steadfast, StreamName, Tx, sqlx,
};

const TABLES: &str = "CREATE TABLE orders (sku TEXT NOT NULL);
                      CREATE TABLE reserved (sku TEXT NOT NULL);
                      CREATE TABLE shipped (sku TEXT NOT NULL)";

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    sku: String,
}

impl Event for OrderPlaced {
    const TYPE: &'static str = "order.placed";

    fn ordering_key(&self) -> Option<String> {
        Some(self.sku.clone())
    }
}

#[derive(Serialize, Deserialize)]
struct StockReserved {
    sku: String,
}

impl Event for StockReserved {
    const TYPE: &'static str = "stock.reserved";
}

/// The world outside: it remembers every call, whatever becomes of whoever made it.
#[derive(Clone, Default)]
struct Outside(Arc<Mutex<Vec<String>>>);

impl Outside {
    fn call(&self, key: &str) {
        self.0.lock().unwrap().push(key.to_owned());
    }

    /// How many things were asked for, and how often.
    fn asked(&self) -> (usize, usize) {
        let calls = std::mem::take(&mut *self.0.lock().unwrap());
        let keys: HashSet<_> = calls.iter().collect();
        (keys.len(), calls.len())
    }
}

/// The name of a table of ours.
fn table<Db: TestDatabase>(short: &str) -> String {
    match Db::NAME {
        "SQLite" => format!("steadfast_{short}"),
        _ => format!("steadfast.{short}"),
    }
}

#[steadfast::test(sqlite, postgres)]
async fn an_event_takes_effect_once_wherever_its_process_dies(t: Harness<Db>) {
    async fn reserve(tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        sqlx::query("INSERT INTO reserved (sku) VALUES ($1)")
            .bind(&event.sku)
            .execute(tx.db())
            .await?;
        tx.publish(&StockReserved { sku: event.sku })?;
        Ok(())
    }

    async fn ship(tx: &mut Tx<Db>, event: StockReserved) -> Result<(), Failure> {
        sqlx::query("INSERT INTO shipped (sku) VALUES ($1)")
            .bind(&event.sku)
            .execute(tx.db())
            .await?;
        Ok(())
    }

    fn react(sf: &Steadfast<Db>, outside: &Outside) {
        sf.reaction::<OrderPlaced>("stock.reserve").run(reserve);
        sf.reaction::<StockReserved>("parcels.ship").run(ship);
        let outside = outside.clone();
        let mail = move |cx: &EventCx, _: OrderPlaced| {
            outside.call(cx.key());
            async { Ok(()) }
        };
        sf.reaction::<OrderPlaced>("mail.confirm").run_outside(mail);
    }

    /// What a client does, and what a dispatcher does then.
    async fn place_and_deliver(t: &Harness<Db>, outside: &Outside) -> steadfast::Result<()> {
        react(t.sf(), outside);
        t.sf().declare().await?;
        let command = t.sf().command("orders.place", "key-1").owner(t.owner());
        let placed = command.run(async |tx| {
            sqlx::query("INSERT INTO orders (sku) VALUES ('tea')")
                .execute(tx.db())
                .await?;
            tx.publish(&OrderPlaced { sku: "tea".into() })?;
            Ok(())
        });
        placed.await?;
        t.sf().drain().await?;
        Ok(())
    }

    t.prepare(TABLES).await;
    let outside = Outside::default();
    let report = t
        .crash_everywhere(
            async |t| place_and_deliver(t, &outside).await,
            async |t, _| {
                // What died held leases.
                t.advance("31s");
                place_and_deliver(t, &outside).await.unwrap();
                for what in ["orders", "reserved", "shipped"] {
                    t.assert_count(what, 1).await;
                }
                t.assert_count(&table::<Db>("queue"), 0).await;
                t.assert_count(&table::<Db>("history"), 3).await;
                let (things, calls) = outside.asked();
                assert_eq!(things, 1, "one key in every attempt");
                assert!((1..=2).contains(&calls), "{calls} calls for one crash");
            },
        )
        .await;
    let names = report.names();
    for name in ["claim rows", "finish rows", "seal", "after COMMIT"] {
        assert!(
            names.iter().any(|point| point.contains(name)),
            "{name} is not in {names:?}"
        );
    }
}

impl Sink for Outside {
    async fn send(&self, batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
        batch.iter().for_each(|event| self.call(&event.id().to_string()));
        batch.iter().map(|_| Ok(Confirmation::new("entry"))).collect()
    }
}

#[steadfast::test(sqlite, postgres)]
async fn a_message_leaves_by_a_sink_under_one_id_wherever_its_process_dies(t: Harness<Db>) {
    async fn place_and_send(t: &Harness<Db>, outside: &Outside) -> steadfast::Result<()> {
        t.sf()
            .sink("orders.outside")
            .events("order.*")
            .deliver_to(outside.clone());
        t.sf().declare().await?;
        let command = t.sf().command("orders.place", "key-1").owner(t.owner());
        let placed = command.run(async |tx| {
            tx.publish(&OrderPlaced { sku: "tea".into() })?;
            Ok(())
        });
        placed.await?;
        t.sf().drain().await?;
        Ok(())
    }

    let outside = Outside::default();
    let report = t
        .crash_everywhere(
            async |t| place_and_send(t, &outside).await,
            async |t, _| {
                // What died held a lease.
                t.advance("31s");
                place_and_send(t, &outside).await.unwrap();
                t.assert_count(&table::<Db>("queue"), 0).await;
                let confirmed = format!(
                    "SELECT count(*) FROM {} WHERE state = 'delivered' AND detail = 'entry'",
                    table::<Db>("history")
                );
                t.assert_count(&confirmed, 1).await;
                let (ids, calls) = outside.asked();
                assert_eq!(ids, 1, "one id, however often it is sent");
                assert!((1..=2).contains(&calls), "{calls} calls for one crash");
            },
        )
        .await;
    let names = report.names();
    assert!(names.iter().any(|point| point.contains("finish rows")), "{names:?}");
}

#[steadfast::test(sqlite, postgres)]
async fn an_event_is_in_its_stream_once_wherever_its_process_dies(t: Harness<Db>) {
    async fn place_and_push(t: &Harness<Db>) -> steadfast::Result<()> {
        let tell = |order: &OrderPlaced, to: &mut Pushes| {
            to.push(StreamName::topic("orders"), order);
            to.push(StreamName::user("ada"), order);
        };
        let _push = t.sf().push("orders.live").event(tell).start();
        t.sf().declare().await?;
        let command = t.sf().command("orders.place", "key-1").owner(t.owner());
        let placed = command.run(async |tx| {
            for _ in 0..2 {
                tx.publish(&OrderPlaced { sku: "tea".into() })?;
            }
            Ok(())
        });
        placed.await?;
        t.sf().drain().await?;
        Ok(())
    }

    let report = t
        .crash_everywhere(
            async |t| place_and_push(t).await,
            async |t, _| {
                // What died held leases.
                t.advance("31s");
                place_and_push(t).await.unwrap();
                t.assert_count(&table::<Db>("queue"), 0).await;
                t.assert_count(&table::<Db>("entries"), 4).await;
                let (entries, streams) = (table::<Db>("entries"), table::<Db>("streams"));
                let newest = format!(
                    "SELECT count(*) FROM {streams} AS s WHERE last = (SELECT max(number) FROM {entries} AS e WHERE e.stream = s.stream)"
                );
                t.assert_count(&newest, 2).await;
            },
        )
        .await;
    let names = report.names();
    assert!(
        names.iter().any(|point| point.contains("append to streams")),
        "{names:?}"
    );
}

#[steadfast::test(sqlite, postgres)]
async fn the_next_of_a_key_is_delivered_within_a_lease_wherever_a_process_dies(t: Harness<Db>) {
    async fn reserve(tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        sqlx::query("INSERT INTO reserved (sku) VALUES ($1)")
            .bind(&event.sku)
            .execute(tx.db())
            .await?;
        Ok(())
    }

    async fn publish(t: &Harness<Db>) -> steadfast::Result<()> {
        t.sf().reaction::<OrderPlaced>("stock.reserve").run(reserve);
        let mail = |_: &EventCx, _: OrderPlaced| async { Ok(()) };
        t.sf().reaction::<OrderPlaced>("mail.confirm").run_outside(mail);
        t.sf().declare().await?;
        let command = t.sf().command("orders.place", "key-1").owner(t.owner());
        let placed = command.run(async |tx| {
            for _ in 0..4 {
                tx.publish(&OrderPlaced { sku: "tea".into() })?;
            }
            Ok(())
        });
        placed.await.map(drop)
    }

    t.prepare(TABLES).await;
    t.crash_everywhere(
        async |t| {
            publish(t).await?;
            // They have waited for long: nobody looks at those behind the first one soon.
            t.advance("10m");
            t.sf().drain().await.map(drop)
        },
        async |t, _| {
            publish(t).await.unwrap();
            t.advance("31s");
            t.sf().drain().await.unwrap();
            t.assert_count("reserved", 4).await;
            t.assert_count(&table::<Db>("queue"), 0).await;
        },
    )
    .await;
}

#[steadfast::test(sqlite, postgres)]
async fn a_job_takes_effect_once_wherever_its_process_dies(t: Harness<Db>) {
    #[derive(Serialize, Deserialize)]
    struct Reserve {
        sku: String,
    }

    impl Job for Reserve {
        const NAME: &'static str = "stock.reserve";
    }

    #[derive(Serialize, Deserialize)]
    struct Mail {
        sku: String,
    }

    impl Job for Mail {
        const NAME: &'static str = "mail.confirm";
    }

    async fn reserve(tx: &mut Tx<Db>, job: Reserve) -> Result<(), Failure> {
        sqlx::query("INSERT INTO reserved (sku) VALUES ($1)")
            .bind(&job.sku)
            .execute(tx.db())
            .await?;
        tx.enqueue(&Mail { sku: job.sku }).await?;
        Ok(())
    }

    /// What a client does, and what a worker does then.
    async fn place_and_work(t: &Harness<Db>, outside: &Outside) -> steadfast::Result<()> {
        t.sf().handler::<Reserve>().run(reserve);
        let outside = outside.clone();
        let mail = move |cx: &JobCx<Db>, _: Mail| {
            outside.call(cx.key());
            async { Ok(()) }
        };
        t.sf().handler::<Mail>().run_outside(mail);
        let command = t.sf().command("orders.place", "key-1").owner(t.owner());
        let placed = command.run(async |tx| {
            sqlx::query("INSERT INTO orders (sku) VALUES ('tea')")
                .execute(tx.db())
                .await?;
            tx.enqueue(&Reserve { sku: "tea".into() }).await?;
            Ok(())
        });
        placed.await?;
        t.sf().drain().await?;
        Ok(())
    }

    t.prepare(TABLES).await;
    let outside = Outside::default();
    let report = t
        .crash_everywhere(
            async |t| place_and_work(t, &outside).await,
            async |t, _| {
                // What died held leases.
                t.advance("31s");
                place_and_work(t, &outside).await.unwrap();
                for what in ["orders", "reserved"] {
                    t.assert_count(what, 1).await;
                }
                t.assert_count(&table::<Db>("queue"), 0).await;
                t.assert_count(&table::<Db>("history"), 2).await;
                let (mails, calls) = outside.asked();
                assert_eq!(mails, 1, "one key in every attempt");
                assert!((1..=2).contains(&calls), "{calls} calls for one crash");
            },
        )
        .await;
    let names = report.names();
    for name in ["claim rows", "finish rows", "seal", "after COMMIT"] {
        assert!(
            names.iter().any(|point| point.contains(name)),
            "{name} is not in {names:?}"
        );
    }
}

#[steadfast::test(sqlite, postgres)]
async fn a_unique_job_of_a_limited_queue_takes_effect_once_wherever_its_process_dies(t: Harness<Db>) {
    #[derive(Serialize, Deserialize)]
    struct Reserve {
        sku: String,
    }

    impl Job for Reserve {
        const NAME: &'static str = "stock.reserve";
        const QUEUE: Option<&'static str> = Some("stock");
    }

    async fn reserve(tx: &mut Tx<Db>, job: Reserve) -> Result<(), Failure> {
        let insert = sqlx::query("INSERT INTO reserved (sku) VALUES ($1)").bind(&job.sku);
        insert.execute(tx.db()).await?;
        Ok(())
    }

    /// Two wishes for the same thing, and one for another.
    async fn place_and_work(t: &Harness<Db>) -> steadfast::Result<()> {
        t.sf().handler::<Reserve>().run(reserve);
        t.sf().queue("stock", QueueOptions::new().limit(1).limit_per_key(1))?;
        for (key, sku) in [("key-1", "tea"), ("key-2", "tea"), ("key-3", "rum")] {
            let command = t.sf().command("orders.place", key).owner(t.owner());
            let placed = command.run(async |tx| {
                let job = Reserve { sku: sku.into() };
                // The key is kept for a day: whoever tries again after a crash finds it, whatever became of the job.
                tx.enqueue(&job).limit_key("shop").throttle(sku, "1d").await?;
                Ok(())
            });
            placed.await?;
        }
        t.sf().drain().await?;
        Ok(())
    }

    t.prepare(TABLES).await;
    let report = t
        .crash_everywhere(
            async |t| place_and_work(t).await,
            async |t, _| {
                // What died held leases.
                t.advance("31s");
                place_and_work(t).await.unwrap();
                t.assert_count("reserved", 2).await;
                t.assert_count(&table::<Db>("queue"), 0).await;
                t.assert_count(&table::<Db>("history"), 2).await;
            },
        )
        .await;
    let names = report.names();
    for name in ["enqueue a unique job", "claim rows", "seal", "after COMMIT"] {
        let is_there = names.iter().any(|point| point.contains(name));
        assert!(is_there, "{name} is not in {names:?}");
    }
}
