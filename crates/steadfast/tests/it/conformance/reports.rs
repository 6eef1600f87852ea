//! What jobs tell while they run: how far they are, lines, and what came of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::testing::Observer;
use steadfast::{
    Clock, Code, Dispatcher, Failure, Job, JobCx, JobId, JobState, LOG_LINE_LENGTH_MAX, LOG_LINES_MAX, LookedJob,
    OUTPUT_LENGTH_MAX, Steadfast, Tx,
};
use tokio::sync::Notify;

use super::Db;
use super::queue::{at_once, process, rows, run, stop};
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Import;

impl Job for Import {
    const NAME: &'static str = "test.import";
}

async fn enqueue(sf: &Steadfast<Db>) -> JobId {
    sf.transact(async |tx| Ok(tx.enqueue(&Import).await?)).await.unwrap()
}

async fn look(sf: &Steadfast<Db>, id: JobId) -> LookedJob {
    sf.job(id).look().await.unwrap().expect("it was enqueued")
}

fn lines(job: &LookedJob) -> Vec<(u32, &str)> {
    job.log.iter().map(|line| (line.attempt, &*line.text)).collect()
}

/// Counts how often something is written that a job told.
#[derive(Clone, Default)]
struct Writes(Arc<AtomicU32>);

impl Observer for Writes {
    fn asked(&self, statement: &'static str) {
        self.0
            .fetch_add(u32::from(statement == "write what a job told"), Ordering::SeqCst);
    }
}

async fn counting(harness: &Harness<Db>) -> (Steadfast<Db>, Writes) {
    let writes = Writes::default();
    let builder = Steadfast::builder(Db::another_pool(harness, PoolSize::default()));
    (builder.observer(writes.clone()).build().await.unwrap(), writes)
}

#[tokio::test]
async fn what_a_job_tells_is_seen_while_it_runs_and_after() {
    let harness = fresh::<Db>().await;
    let may_end = Arc::new(Notify::new());
    let end = may_end.clone();
    let handler = harness.sf.handler::<Import>();
    handler.run_outside_boxed(move |cx: &JobCx<Db>, _: Import| {
        let end = end.clone();
        Box::pin(async move {
            cx.progress_with(3, 10, "reading the second file");
            cx.log("the first file had 16 lines");
            end.notified().await;
            cx.log("all read");
            cx.progress(10, 10);
            cx.output(&serde_json::json!({ "lines": 33 }))?;
            Ok(())
        })
    });
    let working = run(&harness.sf);
    let id = enqueue(&harness.sf).await;
    let other = harness.another().await;
    eventually("it is seen", || async { look(&other, id).await.progress.is_some() }).await;
    let job = look(&other, id).await;
    let progress = job.progress.clone().unwrap();
    assert_eq!((progress.done, progress.total), (3, Some(10)));
    assert_eq!(progress.doing.as_deref(), Some("reading the second file"));
    assert_eq!((job.job.state, job.output.clone()), (JobState::Running, None));
    // They were told together, and may have been written one after the other.
    eventually("its line is too", || async { look(&other, id).await.log.len() == 1 }).await;

    may_end.notify_one();
    eventually("it is done", || async {
        look(&other, id).await.job.state == JobState::Completed
    })
    .await;
    let job = look(&other, id).await;
    assert_eq!(lines(&job), [(1, "the first file had 16 lines"), (1, "all read")]);
    let progress = job.progress.clone().unwrap();
    assert_eq!((progress.done, progress.total, progress.doing), (10, Some(10), None));
    assert_eq!(job.output.as_deref(), Some(r#"{"lines":33}"#));
    assert!(job.told_at.is_some() && job.log_dropped == 0);
    stop(&harness.sf, working).await;
}

#[tokio::test]
async fn a_job_that_tells_nothing_writes_nothing_more() {
    async fn silent(_: &JobCx<Db>, _: Import) -> Result<(), Failure> {
        Ok(())
    }

    let harness = fresh::<Db>().await;
    let (sf, writes) = counting(&harness).await;
    sf.handler::<Import>().run_outside(silent);
    let id = enqueue(&sf).await;
    assert_eq!(sf.drain().await.unwrap(), 1);
    assert_eq!(writes.0.load(Ordering::SeqCst), 0);
    assert_eq!((rows(&harness, "reports").await, rows(&harness, "lines").await), (0, 0));
    let job = look(&sf, id).await;
    assert!(job.progress.is_none() && job.log.is_empty() && job.output.is_none() && job.told_at.is_none());
}

#[tokio::test]
async fn a_job_that_tells_very_much_is_written_seldom_and_kept_in_part() {
    async fn talk(cx: &JobCx<Db>, _: Import) -> Result<(), Failure> {
        for line in 0..10_000 {
            cx.log(format!("line {line}"));
            cx.progress(line, 10_000);
        }
        cx.log("é".repeat(10_000));
        cx.log("a NUL \0 is none");
        let large = "x".repeat(OUTPUT_LENGTH_MAX);
        let refused = cx.output(&large).unwrap_err();
        assert_eq!(refused.code(), Code::EventInvalid, "{refused}");
        Ok(())
    }

    let harness = fresh::<Db>().await;
    let (sf, writes) = counting(&harness).await;
    sf.handler::<Import>().run_outside(talk);
    let id = enqueue(&sf).await;
    assert_eq!(sf.drain().await.unwrap(), 1);
    let count = writes.0.load(Ordering::SeqCst);
    assert!((1..=2).contains(&count), "at the beginning and at the end: {count}");
    let job = look(&sf, id).await;
    assert_eq!((job.job.state, job.log.len()), (JobState::Completed, LOG_LINES_MAX));
    assert_eq!(job.log_dropped, 10_002 - LOG_LINES_MAX as u64);
    let [.., before, long, last] = &job.log[..] else {
        panic!("there are lines")
    };
    assert_eq!((&*before.text, &*last.text), ("line 9999", "a NUL  is none"));
    assert!(long.text.len() <= LOG_LINE_LENGTH_MAX + '…'.len_utf8() && long.text.ends_with('…'));
    assert_eq!(rows(&harness, "lines").await, LOG_LINES_MAX as i64);
    assert_eq!(job.progress.unwrap().done, 9_999);
    assert_eq!(job.output, None);
}

#[tokio::test]
async fn the_output_of_a_handler_with_a_transaction_commits_with_its_end_and_its_lines_stay() {
    async fn import(tx: &mut Tx<Db>, _: Import) -> Result<(), Failure> {
        sqlx::query("INSERT INTO effects (tag) VALUES ('import')")
            .execute(tx.db())
            .await?;
        let cx = tx.job().expect("it is a job");
        cx.log(format!("attempt {}", cx.attempt()));
        cx.progress(u64::from(cx.attempt()), None);
        cx.output(&cx.attempt())?;
        match cx.attempt() {
            1 => Err(Failure::transient("no", "not yet")),
            _ => Ok(()),
        }
    }

    let harness = fresh::<Db>().await;
    let handler = harness.sf.handler::<Import>().retry(at_once(1));
    handler.run(import);
    let id = enqueue(&harness.sf).await;
    assert_eq!(harness.sf.drain().await.unwrap(), 2);
    let job = look(&harness.sf, id).await;
    assert_eq!((job.job.state, harness.effects().await), (JobState::Completed, 1));
    assert_eq!(lines(&job), [(1, "attempt 1"), (2, "attempt 2")]);
    assert_eq!(job.output.as_deref(), Some("2"));
    assert_eq!(job.progress.unwrap().done, 2);
}

#[tokio::test]
async fn an_attempt_that_fails_has_no_output_and_keeps_its_lines() {
    async fn fail(cx: &JobCx<Db>, _: Import) -> Result<(), Failure> {
        cx.output(&"nothing to show")?;
        cx.log("it went wrong");
        Err(Failure::transient("no", "not yet"))
    }

    let harness = fresh::<Db>().await;
    harness.sf.handler::<Import>().retry(at_once(0)).run_outside(fail);
    let id = enqueue(&harness.sf).await;
    harness.sf.drain().await.unwrap();
    let job = look(&harness.sf, id).await;
    assert_eq!((job.job.state, job.output.clone()), (JobState::Dead, None));
    assert_eq!(lines(&job), [(1, "it went wrong")]);
}

#[tokio::test]
async fn the_last_lines_of_a_handler_that_panics_are_kept() {
    async fn panic(cx: &JobCx<Db>, _: Import) -> Result<(), Failure> {
        cx.log("here I am");
        panic!("and gone")
    }

    let harness = fresh::<Db>().await;
    harness.sf.handler::<Import>().retry(at_once(0)).run_outside(panic);
    let working = run(&harness.sf);
    let id = enqueue(&harness.sf).await;
    eventually("it is dead", || async {
        look(&harness.sf, id).await.job.state == JobState::Dead
    })
    .await;
    stop(&harness.sf, working).await;
    assert_eq!(lines(&look(&harness.sf, id).await), [(1, "here I am")]);
}

#[tokio::test]
async fn a_zombie_that_tells_something_changes_nothing() {
    let harness = fresh::<Db>().await;
    let zombie = harness.another().await;
    let (began, may_end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (began_there, end_there) = (began.clone(), may_end.clone());
    let handler = zombie.handler::<Import>().lease("10m");
    handler.run_outside_boxed(move |cx: &JobCx<Db>, _: Import| {
        let (began, may_end) = (began_there.clone(), end_there.clone());
        Box::pin(async move {
            began.notify_one();
            may_end.notified().await;
            cx.progress_with(7, 7, "as a zombie");
            cx.log("as a zombie");
            cx.output(&"as a zombie")?;
            Ok(())
        })
    });
    let working = run(&zombie);
    let id = enqueue(&harness.sf).await;
    began.notified().await;

    async fn import(cx: &JobCx<Db>, _: Import) -> Result<(), Failure> {
        cx.progress(1, 1);
        cx.log("alive");
        cx.output(&"alive")?;
        Err(Failure::snooze(Duration::from_secs(3_600)))
    }

    // For everybody else its lease has expired; nobody has told it so.
    let other = process(&harness, &Clock::default(), Dispatcher::default()).await;
    other.clock().set_offset(Duration::from_secs(601));
    other.handler::<Import>().run_outside(import);
    assert_eq!(other.drain().await.unwrap(), 1);
    let before = look(&other, id).await;
    assert_eq!(lines(&before).last(), Some(&(2, "alive")));
    may_end.notify_one();
    stop(&zombie, working).await;
    let after = look(&other, id).await;
    assert_eq!(
        (after.progress, after.log, after.output, after.told_at),
        (before.progress, before.log, before.output, before.told_at)
    );
}

#[tokio::test]
async fn what_a_job_told_is_purged_with_it() {
    async fn import(cx: &JobCx<Db>, _: Import) -> Result<(), Failure> {
        cx.log("one");
        cx.log("two");
        Ok(())
    }

    let harness = fresh::<Db>().await;
    let (sf, clock) = harness.another_with_clock().await;
    sf.handler::<Import>().run_outside(import);
    enqueue(&sf).await;
    sf.drain().await.unwrap();
    sf.purge().await.unwrap();
    assert_eq!((rows(&harness, "reports").await, rows(&harness, "lines").await), (1, 2));
    clock.set_offset(Duration::from_secs(8 * 24 * 60 * 60));
    sf.purge().await.unwrap();
    assert_eq!((rows(&harness, "reports").await, rows(&harness, "lines").await), (0, 0));
}
