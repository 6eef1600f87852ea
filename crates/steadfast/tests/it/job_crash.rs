//! Dying at every point of what a running job is told, and on the way to the end of a batch.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use steadfast::testing::{Harness, TestDatabase};
use steadfast::{BatchId, Failure, Job, JobCx, Tx, sqlx};
use tokio::sync::{Notify, mpsc};

/// The name of a table of ours.
fn table<Db: TestDatabase>(short: &str) -> String {
    match Db::NAME {
        "SQLite" => format!("steadfast_{short}"),
        _ => format!("steadfast.{short}"),
    }
}

#[derive(Serialize, Deserialize)]
struct Export;

impl Job for Export {
    const NAME: &'static str = "books.export";
}

#[steadfast::test(sqlite, postgres)]
async fn a_job_that_is_cancelled_while_it_runs_ends_so_wherever_a_process_dies(t: Harness<Db>) {
    /// A job that is cancelled in the middle of its first attempt, and would succeed in the second.
    async fn work(t: &Harness<Db>) -> steadfast::Result<()> {
        let (began, mut has_begun) = mpsc::unbounded_channel();
        let may_end = Arc::new(Notify::new());
        let end = may_end.clone();
        let handler = t.sf().handler::<Export>();
        handler.run_outside_boxed(move |cx: &JobCx<Db>, _: Export| {
            let end = end.clone();
            let _ = began.send(cx.id());
            Box::pin(async move {
                end.notified().await;
                Err(Failure::transient("no_paper", "there is no paper"))
            })
        });
        let command = t.sf().command("books.order_export", "key-1").owner(t.owner());
        let ordered = command.run(async |tx| {
            tx.enqueue(&Export).await?;
            Ok(())
        });
        ordered.await?;
        let cancelling = async {
            while let Some(id) = has_begun.recv().await {
                t.sf().job(id).cancel("ann", "not wanted").await?;
                may_end.notify_one();
            }
            std::future::pending::<steadfast::Result<()>>().await
        };
        tokio::select! {
            drained = t.sf().drain() => drained.map(drop),
            refused = cancelling => refused,
        }
    }

    let report = t
        .crash_everywhere(
            async |t| work(t).await,
            async |t, _| {
                // What died held the lease.
                t.advance("31s");
                work(t).await.unwrap();
                t.assert_count(&table::<Db>("queue"), 0).await;
                let cancelled = format!(
                    "SELECT count(*) FROM {} WHERE state = 'cancelled' AND detail = 'not wanted'",
                    table::<Db>("history")
                );
                t.assert_count(&cancelled, 1).await;
                t.assert_count(&table::<Db>("history"), 1).await;
                t.assert_count(&table::<Db>("audit"), 1).await;
            },
        )
        .await;
    let names = report.names();
    for name in [
        "ask for the end of a job",
        "append to the audit",
        "put rows back",
        "after COMMIT",
    ] {
        assert!(
            names.iter().any(|point| point.contains(name)),
            "{name} is not in {names:?}"
        );
    }
}

#[derive(Serialize, Deserialize)]
struct Part;

impl Job for Part {
    const NAME: &'static str = "books.part";
}

#[derive(Serialize, Deserialize)]
struct Whole;

impl Job for Whole {
    const NAME: &'static str = "books.whole";
}

#[steadfast::test(sqlite, postgres)]
async fn the_end_of_a_batch_takes_effect_once_wherever_a_process_dies(t: Harness<Db>) {
    async fn do_part(tx: &mut Tx<Db>, _: Part) -> Result<(), Failure> {
        sqlx::query("INSERT INTO parts (done) VALUES (1)")
            .execute(tx.db())
            .await?;
        Ok(())
    }

    async fn finish(tx: &mut Tx<Db>, _: Whole) -> Result<(), Failure> {
        let counts = tx.job().and_then(|cx| cx.batch().copied()).expect("it is of a batch");
        assert_eq!((counts.jobs, counts.completed), (2, 2));
        sqlx::query("INSERT INTO wholes (done) VALUES (1)")
            .execute(tx.db())
            .await?;
        Ok(())
    }

    async fn work(t: &Harness<Db>) -> steadfast::Result<()> {
        let command = t.sf().command("books.write", "key-1").owner(t.owner());
        let begun = command.run(async |tx| {
            let batch = BatchId::new();
            tx.enqueue(&Part).in_batch(batch).await?;
            tx.enqueue(&Part).in_batch(batch).await?;
            tx.enqueue(&Whole).when_ended(batch).await?;
            Ok(())
        });
        begun.await?;
        // In this order every time. Of an old batch the end is put off for half a minute.
        t.advance("10m");
        t.sf().handler::<Whole>().run(finish);
        t.sf().drain().await?;
        t.sf().handler::<Part>().run(do_part);
        t.sf().drain().await?;
        t.advance("31s");
        t.sf().drain().await?;
        Ok(())
    }

    t.prepare("CREATE TABLE parts (done INTEGER NOT NULL); CREATE TABLE wholes (done INTEGER NOT NULL)")
        .await;
    let report = t
        .crash_everywhere(
            async |t| work(t).await,
            async |t, _| {
                // What died held leases.
                t.advance("31s");
                work(t).await.unwrap();
                t.assert_count("parts", 2).await;
                t.assert_count("wholes", 1).await;
                t.assert_count(&table::<Db>("queue"), 0).await;
                t.assert_count(&table::<Db>("history"), 3).await;
                t.assert_count(&table::<Db>("members"), 2).await;
            },
        )
        .await;
    let names = report.names();
    for name in [
        "join batches",
        "look at a batch",
        "count a batch",
        "seal",
        "after COMMIT",
    ] {
        assert!(
            names.iter().any(|point| point.contains(name)),
            "{name} is not in {names:?}"
        );
    }
}
