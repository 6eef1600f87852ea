//! Batches: jobs that belong together, and the one that is run when all of them have ended.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::{
    BatchCounts, BatchId, Clock, Dispatcher, Failure, FailureClass, Job, JobCx, JobId, JobState, Steadfast, Tx,
};

use super::Db;
use super::queue::{at_once, process, rows, run, stop};
use crate::harness::{eventually, fresh};

/// A part of the work.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Part {
    tag: String,
    batch: Option<String>,
}

impl Job for Part {
    const NAME: &'static str = "test.part";
}

fn part(tag: impl Into<String>) -> Part {
    Part {
        tag: tag.into(),
        batch: None,
    }
}

/// What is to be done when all parts are.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Whole;

impl Job for Whole {
    const NAME: &'static str = "test.whole";
}

/// What the job at the end was told, each time it was run.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<BatchCounts>>>);

impl Told {
    fn all(&self) -> Vec<BatchCounts> {
        self.0.lock().unwrap().clone()
    }

    /// Does parts as their tags say, and remembers what the end is told.
    fn work(&self, sf: &Steadfast<Db>) {
        async fn do_part(_: &JobCx<Db>, job: Part) -> Result<(), Failure> {
            match &*job.tag {
                "dead" => Err(Failure::definitive(FailureClass::Validation, "no", "never")),
                "cancelled" => Err(Failure::cancelled()),
                "later" => Err(Failure::snooze(Duration::from_secs(60))),
                _ => Ok(()),
            }
        }

        sf.handler::<Part>().retry(at_once(0)).run_outside(do_part);
        let told = self.clone();
        sf.handler::<Whole>()
            .run_outside_boxed(move |cx: &JobCx<Db>, _: Whole| {
                told.0
                    .lock()
                    .unwrap()
                    .push(*cx.batch().expect("it was enqueued for a batch"));
                Box::pin(async { Ok(()) })
            });
    }
}

/// What was counted: all, left, completed, cancelled, dead, discarded.
fn numbers(counts: &BatchCounts) -> [u64; 6] {
    [
        counts.jobs,
        counts.left,
        counts.completed,
        counts.cancelled,
        counts.dead,
        counts.discarded,
    ]
}

async fn begin(sf: &Steadfast<Db>, tags: &[&str]) -> BatchId {
    let batch = BatchId::new();
    let begun = sf.transact(async |tx| {
        for tag in tags {
            tx.enqueue(&part(*tag)).in_batch(batch).await?;
        }
        let callback = tx.enqueue(&Whole).when_ended(batch).await?;
        assert_eq!(callback, batch.callback());
        Ok(())
    });
    begun.await.unwrap();
    batch
}

async fn counts(sf: &Steadfast<Db>, batch: BatchId) -> [u64; 6] {
    numbers(&sf.batch(batch).counts().await.unwrap().expect("it has jobs"))
}

async fn state(sf: &Steadfast<Db>, id: JobId) -> JobState {
    sf.job(id).look().await.unwrap().expect("it was enqueued").job.state
}

#[tokio::test]
async fn the_end_of_a_batch_is_run_once_when_all_its_jobs_have_ended() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let told = Told::default();
    told.work(&sf);
    let batch = begin(&sf, &["a", "b", "dead", "cancelled", "later"]).await;
    assert_eq!(counts(&sf, batch).await, [5, 5, 0, 0, 0, 0]);
    sf.drain().await.unwrap();
    assert_eq!(counts(&sf, batch).await, [5, 1, 2, 1, 1, 0]);
    assert_eq!(state(&sf, batch.callback()).await, JobState::Scheduled);
    clock.set_offset(Duration::from_secs(31));
    sf.drain().await.unwrap();
    assert!(told.all().is_empty(), "one is left, which waits for its time");
    let dead = sf.jobs().batch(batch).state(JobState::Dead).page().await.unwrap().jobs;
    assert_eq!(dead.len(), 1);
    sf.job(dead[0].id).cancel("ann", "not wanted").await.unwrap();

    let left = sf.jobs().batch(batch).page().await.unwrap().jobs;
    assert_eq!(left.len(), 1);
    sf.job(left[0].id).cancel("ann", "not wanted").await.unwrap();
    clock.set_offset(Duration::from_secs(62));
    assert_eq!(sf.drain().await.unwrap(), 1);
    let ended: Vec<_> = told.all().iter().map(numbers).collect();
    assert_eq!(ended, [[5, 0, 2, 3, 0, 0]]);
    assert_eq!(told.all()[0].forgotten(), 0);
    assert_eq!(state(&sf, batch.callback()).await, JobState::Completed);
    clock.set_offset(Duration::from_secs(3_600));
    assert_eq!(sf.drain().await.unwrap(), 0);
    assert_eq!(told.all().len(), 1);
}

#[tokio::test]
async fn the_end_of_a_batch_comes_by_itself_on_whichever_node() {
    let harness = fresh::<Db>().await;
    let (parts, end) = (harness.another().await, harness.another().await);
    let told = Told::default();
    told.work(&parts);
    told.work(&end);
    let (doing, ending) = (run(&parts), run(&end));
    let batch = begin(&harness.sf, &["a"; 50]).await;
    eventually("the end is told", || async { !told.all().is_empty() }).await;
    assert_eq!(numbers(&told.all()[0]), [50, 0, 50, 0, 0, 0]);
    eventually("and done", || async {
        state(&harness.sf, batch.callback()).await == JobState::Completed
    })
    .await;
    stop(&parts, doing).await;
    stop(&end, ending).await;
    assert_eq!(told.all().len(), 1);
}

#[tokio::test]
async fn a_batch_may_be_enqueued_in_several_transactions_and_by_its_own_jobs() {
    async fn split(tx: &mut Tx<Db>, job: Part) -> Result<(), Failure> {
        if let Some(batch) = &job.batch {
            let batch: BatchId = batch.parse()?;
            tx.enqueue(&part("child")).in_batch(batch).await?;
            tx.enqueue(&part("later child")).in_batch(batch).delay("10s").await?;
        }
        sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
            .bind(&job.tag)
            .execute(tx.db())
            .await?;
        Ok(())
    }

    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let told = Told::default();
    sf.handler::<Part>().run(split);
    let batch = BatchId::new();
    let parent = Part {
        tag: "parent".into(),
        batch: Some(batch.to_string()),
    };
    sf.transact(async |tx| Ok(tx.enqueue(&parent).in_batch(batch).await?))
        .await
        .unwrap();
    let mut tx = sf.pool().begin().await.unwrap();
    let guest = sf.on(&mut tx).enqueue(&part("guest")).in_batch(batch).await.unwrap();
    tx.commit().await.unwrap();
    let failed = sf.transact(async |tx| {
        tx.enqueue(&part("lost")).in_batch(batch).await?;
        Err::<(), _>(Failure::transient("no", "not today"))
    });
    failed.await.unwrap_err();
    sf.drain().await.unwrap();
    assert_eq!(state(&sf, guest.id()).await, JobState::Completed);
    assert_eq!(
        counts(&sf, batch).await,
        [4, 1, 3, 0, 0, 0],
        "what failed is in no batch"
    );

    let end = process(&harness, &clock, Dispatcher::default()).await;
    told.work(&end);
    sf.transact(async |tx| Ok(tx.enqueue(&Whole).when_ended(batch).await?))
        .await
        .unwrap();
    clock.set_offset(Duration::from_secs(5));
    end.drain().await.unwrap();
    assert!(told.all().is_empty(), "a child is left");
    clock.set_offset(Duration::from_secs(60));
    sf.drain().await.unwrap();
    end.drain().await.unwrap();
    assert_eq!(numbers(&told.all()[0]), [4, 0, 4, 0, 0, 0]);
    assert_eq!(harness.effects().await, 4);
}

#[tokio::test]
async fn a_dead_job_that_is_run_again_does_not_bring_the_end_about_once_more() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let told = Told::default();
    told.work(&sf);
    let batch = begin(&sf, &["a", "dead"]).await;
    sf.drain().await.unwrap();
    clock.set_offset(Duration::from_secs(31));
    sf.drain().await.unwrap();
    assert_eq!(numbers(&told.all()[0]), [2, 0, 1, 0, 1, 0]);
    let dead = sf.jobs().batch(batch).page().await.unwrap().jobs;
    sf.job(dead[0].id).run_now("ann", "once more").await.unwrap();
    clock.set_offset(Duration::from_secs(120));
    sf.drain().await.unwrap();
    assert_eq!(told.all().len(), 1);
    assert_eq!(counts(&sf, batch).await, [2, 0, 1, 0, 1, 0]);
}

#[tokio::test]
async fn a_batch_without_jobs_ends_at_once_and_jobs_without_a_batch_are_in_none() {
    let harness = fresh::<Db>().await;
    let told = Told::default();
    told.work(&harness.sf);
    let batch = begin(&harness.sf, &[]).await;
    let alone = harness.sf.transact(async |tx| Ok(tx.enqueue(&part("a")).await?));
    alone.await.unwrap();
    harness.sf.drain().await.unwrap();
    assert_eq!(numbers(&told.all()[0]), [0; 6]);
    assert!(harness.sf.batch(batch).counts().await.unwrap().is_none());
    assert_eq!(rows(&harness, "members").await, 0);
    let unknown = "x".parse::<BatchId>().unwrap_err();
    assert!(unknown.to_string().contains("not the id of a batch"), "{unknown}");
}

#[tokio::test]
async fn a_batch_may_be_a_part_of_another_one() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let told = Told::default();
    told.work(&sf);
    let (inner, outer) = (BatchId::new(), BatchId::new());
    let begun = sf.transact(async |tx| {
        tx.enqueue(&part("later")).in_batch(inner).await?;
        tx.enqueue(&Whole).when_ended(inner).in_batch(outer).await?;
        tx.enqueue(&Whole).when_ended(outer).await?;
        Ok(())
    });
    begun.await.unwrap();
    sf.drain().await.unwrap();
    let left = sf.jobs().batch(inner).page().await.unwrap().jobs;
    sf.job(left[0].id).cancel("ann", "not wanted").await.unwrap();
    for seconds in [31, 62, 93] {
        clock.set_offset(Duration::from_secs(seconds));
        sf.drain().await.unwrap();
    }
    let ended: Vec<_> = told.all().iter().map(numbers).collect();
    assert_eq!(ended, [[1, 0, 0, 1, 0, 0], [1, 0, 1, 0, 0, 0]]);
}

#[tokio::test]
async fn a_batch_is_forgotten_with_its_end() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let told = Told::default();
    told.work(&sf);
    let day = Duration::from_secs(24 * 60 * 60);
    let batch = begin(&sf, &["a", "b", "later"]).await;
    let unsealed = BatchId::new();
    let alone = sf.transact(async |tx| Ok(tx.enqueue(&part("c")).in_batch(unsealed).await?));
    alone.await.unwrap();
    sf.drain().await.unwrap();
    clock.set_offset(8 * day);
    sf.purge().await.unwrap();
    assert_eq!(
        counts(&sf, batch).await,
        [3, 1, 0, 0, 0, 0],
        "what has ended is forgotten, and what is left is not"
    );
    assert_eq!(rows(&harness, "members").await, 3, "nobody waits for the other batch");
    let left = sf.jobs().batch(batch).page().await.unwrap().jobs;
    sf.job(left[0].id).cancel("ann", "not wanted").await.unwrap();
    sf.drain().await.unwrap();
    assert_eq!((told.all()[0].forgotten(), told.all()[0].cancelled), (2, 1));
    clock.set_offset(16 * day);
    sf.purge().await.unwrap();
    assert_eq!(rows(&harness, "members").await, 0);
}
