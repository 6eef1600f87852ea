//! Jobs that are cancelled while somebody works on them: the request, who hears of it, and the one winner.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::testing::{Observer, WorkId, WorkPoint};
use steadfast::{
    Cancellation, Clock, Code, Dispatcher, Failure, FailureKind, Job, JobCx, JobId, JobState, Steadfast, Tx,
};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::Db;
use super::queue::{at_once, process, rows, run, stop};
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

/// Takes as long as the test wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Export;

impl Job for Export {
    const NAME: &'static str = "test.export";
}

/// A lease that is not renewed within a test: who hears of a request did not find out by renewing.
const LONG: &str = "10m";

async fn enqueue(sf: &Steadfast<Db>) -> JobId {
    sf.transact(async |tx| Ok(tx.enqueue(&Export).await?)).await.unwrap()
}

async fn state(sf: &Steadfast<Db>, id: JobId) -> JobState {
    sf.job(id).look().await.unwrap().expect("it was enqueued").job.state
}

async fn becomes(sf: &Steadfast<Db>, id: JobId, wanted: JobState) {
    eventually(wanted.as_str(), || async { state(sf, id).await == wanted }).await;
}

async fn audited(harness: &Harness<Db>, id: JobId) -> i64 {
    let noted = format!(
        "SELECT count(*) FROM {} WHERE action = 'job.cancel' AND subject = '{id} test.export'",
        Db::table("audit")
    );
    Db::count(&harness.admin, &noted).await
}

/// A handler without a transaction that says when it has begun, and ends when it may, or when it is cancelled if it listens.
#[derive(Clone, Default)]
struct Gate {
    began: Arc<Notify>,
    may_end: Arc<Notify>,
    calls: Arc<Mutex<u32>>,
}

impl Gate {
    /// With a lease, and so many retries.
    fn keep(sf: &Steadfast<Db>, (lease, retries): (&str, u32), ends: Ends) -> Self {
        let gate = Self::default();
        let there = gate.clone();
        let handler = sf.handler::<Export>().lease(lease).retry(at_once(retries));
        handler.run_outside_boxed(move |cx: &JobCx<Db>, _: Export| {
            let there = there.clone();
            Box::pin(async move {
                *there.calls.lock().unwrap() += 1;
                there.began.notify_one();
                match ends {
                    Ends::Cancelled => cx.cancelled().await,
                    Ends::Done | Ends::Failed => there.may_end.notified().await,
                }
                match ends {
                    Ends::Done => Ok(()),
                    Ends::Failed => Err(Failure::transient("no_paper", "there is no paper")),
                    Ends::Cancelled => Err(Failure::cancelled()),
                }
            })
        });
        gate
    }

    fn calls(&self) -> u32 {
        *self.calls.lock().unwrap()
    }
}

#[derive(Clone, Copy)]
enum Ends {
    /// It hears nothing, and succeeds.
    Done,
    /// It hears nothing, and fails.
    Failed,
    /// As soon as it hears of it.
    Cancelled,
}

#[tokio::test]
async fn a_running_job_is_cancelled_from_another_node() {
    let harness = fresh::<Db>().await;
    let node = harness.another().await;
    // On PostgreSQL it is told at once. On SQLite it finds out when it renews.
    let lease = if Db::IS_SQLITE { "1s" } else { LONG };
    let gate = Gate::keep(&node, (lease, 5), Ends::Cancelled);
    let working = run(&node);
    let id = enqueue(&harness.sf).await;
    gate.began.notified().await;
    let asked = harness
        .sf
        .job(id)
        .cancel("ann", "the order was withdrawn")
        .await
        .unwrap();
    assert_eq!(asked, Cancellation::Requested);
    becomes(&harness.sf, id, JobState::Cancelled).await;
    let job = harness.sf.job(id).look().await.unwrap().unwrap().job;
    assert_eq!(job.detail.as_deref(), Some("the order was withdrawn"));
    assert_eq!((job.attempts, job.cancel_request), (1, None));
    assert_eq!((rows(&harness, "queue").await, rows(&harness, "history").await), (0, 1));
    stop(&node, working).await;
    assert_eq!((gate.calls(), audited(&harness, id).await), (1, 1));
}

#[tokio::test]
async fn a_request_in_the_same_process_is_heard_at_once() {
    let harness = fresh::<Db>().await;
    let gate = Gate::keep(&harness.sf, (LONG, 5), Ends::Cancelled);
    let working = run(&harness.sf);
    let id = enqueue(&harness.sf).await;
    gate.began.notified().await;
    harness.sf.job(id).cancel("ann", "not wanted").await.unwrap();
    becomes(&harness.sf, id, JobState::Cancelled).await;
    stop(&harness.sf, working).await;
}

#[tokio::test]
async fn a_request_is_shown_and_to_ask_again_changes_nothing() {
    let harness = fresh::<Db>().await;
    let gate = Gate::keep(&harness.sf, (LONG, 5), Ends::Failed);
    let working = run(&harness.sf);
    let id = enqueue(&harness.sf).await;
    gate.began.notified().await;
    for (operator, reason) in [("ann", "not wanted"), ("bob", "not by me either")] {
        let asked = harness.sf.job(id).cancel(operator, reason).await.unwrap();
        assert_eq!(asked, Cancellation::Requested);
    }
    let running = harness.sf.jobs().state(JobState::Running).page().await.unwrap().jobs;
    let request = running[0].cancel_request.clone().expect("it is shown");
    assert_eq!((&*request.operator, &*request.reason), ("ann", "not wanted"));
    assert_eq!(audited(&harness, id).await, 1);
    let refused = harness.sf.job(id).run_now("ann", "after all").await.unwrap_err();
    assert_eq!(refused.code(), Code::Conflict, "{refused}");

    gate.may_end.notify_one();
    becomes(&harness.sf, id, JobState::Cancelled).await;
    assert_eq!(
        harness.sf.job(id).cancel("ann", "again").await.unwrap(),
        Cancellation::Done
    );
    assert_eq!(audited(&harness, id).await, 1);
    stop(&harness.sf, working).await;
}

#[tokio::test]
async fn an_attempt_that_fails_after_the_request_is_not_tried_again() {
    let harness = fresh::<Db>().await;
    let gate = Gate::keep(&harness.sf, (LONG, 5), Ends::Failed);
    let working = run(&harness.sf);
    let id = enqueue(&harness.sf).await;
    gate.began.notified().await;
    harness
        .another()
        .await
        .job(id)
        .cancel("ann", "not wanted")
        .await
        .unwrap();
    gate.may_end.notify_one();
    becomes(&harness.sf, id, JobState::Cancelled).await;
    stop(&harness.sf, working).await;
    let job = harness.sf.job(id).look().await.unwrap().unwrap();
    assert_eq!((gate.calls(), job.job.attempts), (1, 1));
    let codes: Vec<_> = job.failures.iter().map(|failed| &*failed.code).collect();
    assert_eq!(codes, ["no_paper"], "what went wrong is known all the same");
}

#[tokio::test]
async fn a_handler_without_a_transaction_that_succeeds_all_the_same_has_completed_the_job() {
    let harness = fresh::<Db>().await;
    let gate = Gate::keep(&harness.sf, (LONG, 5), Ends::Done);
    let working = run(&harness.sf);
    let id = enqueue(&harness.sf).await;
    gate.began.notified().await;
    harness.sf.job(id).cancel("ann", "too late").await.unwrap();
    gate.may_end.notify_one();
    becomes(&harness.sf, id, JobState::Completed).await;
    let late = harness.sf.job(id).cancel("ann", "too late").await.unwrap_err();
    assert!(late.to_string().contains("is completed"), "{late}");
    stop(&harness.sf, working).await;
    assert_eq!(rows(&harness, "history").await, 1);
}

/// Cancels the job from elsewhere when its handler is about to run: nobody has told this process yet.
struct CancelsBefore {
    elsewhere: Steadfast<Db>,
    runtime: Handle,
}

impl Observer for CancelsBefore {
    fn worked(&self, point: WorkPoint, id: &WorkId<'_>) {
        if point == WorkPoint::BeforeHandler {
            let id: JobId = id.item.to_string().parse().unwrap();
            let cancelling = self.elsewhere.job(id).cancel("ann", "not wanted");
            let asked = tokio::task::block_in_place(|| self.runtime.block_on(cancelling));
            assert_eq!(asked.unwrap(), Cancellation::Requested);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_cancelled_before_its_commit_is_rolled_back() {
    async fn keep(tx: &mut Tx<Db>, _: Export) -> Result<(), Failure> {
        sqlx::query("INSERT INTO effects (tag) VALUES ('export')")
            .execute(tx.db())
            .await?;
        Ok(())
    }

    async fn keep_and_enqueue(tx: &mut Tx<Db>, _: Export) -> Result<(), Failure> {
        keep(tx, Export).await?;
        tx.enqueue(&Export).delay("1h").await?;
        Ok(())
    }

    let harness = fresh::<Db>().await;
    // What ends a transaction is another statement if something was enqueued in it.
    for (count, enqueues) in [(1, false), (2, true)] {
        let cancels = CancelsBefore {
            elsewhere: harness.another().await,
            runtime: Handle::current(),
        };
        let builder = Steadfast::builder(Db::another_pool(&harness, PoolSize::default()));
        let sf = builder.observer(cancels).build().await.unwrap();
        let handler = sf.handler::<Export>().lease(LONG);
        match enqueues {
            true => handler.run(keep_and_enqueue),
            false => handler.run(keep),
        }
        let id = enqueue(&sf).await;
        assert_eq!(sf.drain().await.unwrap(), 1);
        assert_eq!(state(&sf, id).await, JobState::Cancelled);
        assert_eq!(harness.effects().await, 0, "what it wrote is not there");
        assert_eq!(rows(&harness, "messages").await, count, "nor what it enqueued");
        assert_eq!(
            (rows(&harness, "queue").await, rows(&harness, "history").await),
            (0, count)
        );
    }
}

#[tokio::test]
async fn a_handler_may_cancel_its_own_job() {
    async fn give_up(_: &JobCx<Db>, _: Export) -> Result<(), Failure> {
        Err(Failure::cancelled())
    }

    let harness = fresh::<Db>().await;
    harness.sf.handler::<Export>().run_outside(give_up);
    let id = enqueue(&harness.sf).await;
    assert_eq!(harness.sf.drain().await.unwrap(), 1);
    let job = harness.sf.job(id).look().await.unwrap().unwrap();
    assert_eq!((job.job.state, job.failures.len()), (JobState::Cancelled, 0));
    assert_eq!(job.job.detail.as_deref(), Some(Failure::cancelled().message()));
    assert_eq!(Failure::cancelled().kind(), FailureKind::Cancelled);
}

#[tokio::test]
async fn a_job_whose_node_died_after_the_request_is_cancelled_and_not_run_again() {
    for retries in [5, 0] {
        let harness = fresh::<Db>().await;
        let dead = harness.another().await;
        let gate = Gate::keep(&dead, ("30s", retries), Ends::Done);
        let id = enqueue(&harness.sf).await;
        let draining = tokio::spawn(async move { dead.drain().await });
        gate.began.notified().await;
        // Nobody knows that it is dead.
        draining.abort();
        let asked = harness.sf.job(id).cancel("ann", "not wanted").await.unwrap();
        assert_eq!(asked, Cancellation::Requested);

        let other = process(&harness, &Clock::default(), Dispatcher::default()).await;
        let again = Gate::keep(&other, ("30s", retries), Ends::Done);
        other.drain().await.unwrap();
        assert_eq!(state(&other, id).await, JobState::Running, "its lease lasts");
        other.clock().set_offset(Duration::from_secs(31));
        other.drain().await.unwrap();
        assert_eq!(state(&other, id).await, JobState::Cancelled);
        assert_eq!((again.calls(), rows(&harness, "queue").await), (0, 0));
        assert_eq!(rows(&harness, "history").await, 1);
    }
}

#[tokio::test]
async fn a_zombie_that_says_it_was_cancelled_changes_nothing() {
    let harness = fresh::<Db>().await;
    let zombie = harness.another().await;
    let gate = Gate::keep(&zombie, (LONG, 5), Ends::Cancelled);
    let working = run(&zombie);
    let id = enqueue(&harness.sf).await;
    gate.began.notified().await;

    // For everybody else its lease has expired; nobody has told it so.
    let other = process(&harness, &Clock::default(), Dispatcher::default()).await;
    other.clock().set_offset(Duration::from_secs(601));
    let done = Gate::keep(&other, (LONG, 5), Ends::Done);
    let draining = tokio::spawn({
        let other = other.clone();
        async move { other.drain().await.unwrap() }
    });
    done.began.notified().await;
    // It is asked of whoever has it now, and the zombie hears nothing of it.
    assert_eq!(
        harness.sf.job(id).cancel("ann", "not wanted").await.unwrap(),
        Cancellation::Requested
    );
    done.may_end.notify_one();
    assert_eq!(draining.await.unwrap(), 1);
    assert_eq!(state(&harness.sf, id).await, JobState::Completed);
    stop(&zombie, working).await;
    assert_eq!(state(&harness.sf, id).await, JobState::Completed);
    assert_eq!((rows(&harness, "queue").await, rows(&harness, "history").await), (0, 1));
}
