//! Unique jobs: one at a time for each key.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::{
    CancelOutcome, Clock, Code, Dispatcher, Failure, FailureClass, Job, JobCx, JobId, JobState, Steadfast,
    UniqueConflict, UniqueJob, UniqueOutcome, UniqueWhile,
};
use tokio::sync::Semaphore;

use super::Db;
use super::queue::{pass, process, rows, run, stop};
use crate::harness::{TestDatabase, eventually, fresh};

/// Writes its tag, or fails for good.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Index {
    tag: String,
}

impl Job for Index {
    const NAME: &'static str = "test.index";
}

fn index(tag: &str) -> Index {
    Index { tag: tag.to_owned() }
}

async fn keep(tx: &mut steadfast::Tx<Db>, job: Index) -> Result<(), Failure> {
    if job.tag == "bad" {
        return Err(Failure::definitive(FailureClass::Validation, "bad", "never"));
    }
    let insert = sqlx::query("INSERT INTO effects (tag) VALUES ($1)").bind(&job.tag);
    insert.execute(tx.db()).await?;
    Ok(())
}

async fn enqueue(sf: &Steadfast<Db>, tag: &str, conflict: UniqueConflict) -> Result<UniqueJob, steadfast::Error> {
    let enqueuing = sf.transact(async |tx| {
        let job = index(tag);
        Ok(tx.enqueue(&job).unique("doc:7").on_conflict(conflict).delay("1m").await)
    });
    enqueuing.await.unwrap()
}

async fn state(sf: &Steadfast<Db>, id: JobId) -> JobState {
    sf.job(id).look().await.unwrap().expect("it was enqueued").job.state
}

#[tokio::test]
async fn of_a_key_there_is_one_job_until_it_has_ended() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    sf.handler::<Index>().run(keep);
    let first = enqueue(&sf, "first", UniqueConflict::Ignore).await.unwrap();
    assert_eq!(first.outcome, UniqueOutcome::Enqueued);
    let second = enqueue(&sf, "second", UniqueConflict::Ignore).await.unwrap();
    assert_eq!((second.id, second.outcome), (first.id, UniqueOutcome::Found));
    let refused = enqueue(&sf, "third", UniqueConflict::Error).await.unwrap_err();
    assert_eq!(refused.code(), Code::Conflict);
    assert!(refused.to_string().contains(&first.id.to_string()), "{refused}");
    assert_eq!(rows(&harness, "queue").await, 1);
    // Another key, and the same one of another type, are others.
    let others = sf.transact(async |tx| {
        let job = index("other");
        Ok(tx.enqueue(&job).unique("doc:8").await?.outcome)
    });
    assert_eq!(others.await.unwrap(), UniqueOutcome::Enqueued);
    pass(&clock, Duration::from_secs(61));
    sf.drain().await.unwrap();
    assert_eq!(state(&sf, first.id).await, JobState::Completed);
    let again = enqueue(&sf, "again", UniqueConflict::Error).await.unwrap();
    assert_eq!(
        again.outcome,
        UniqueOutcome::Enqueued,
        "nobody had to give the key back"
    );
    assert_eq!(harness.effects().await, 2);
}

#[tokio::test]
async fn of_those_who_enqueue_a_key_at_once_one_does() {
    let harness = fresh::<Db>().await;
    let enqueuing = (0..8).map(|at| {
        let sf = harness.sf.clone();
        tokio::spawn(async move { enqueue(&sf, &at.to_string(), UniqueConflict::Ignore).await.unwrap() })
    });
    let all = futures_util::future::join_all(enqueuing).await;
    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    let enqueued: Vec<_> = all
        .iter()
        .filter(|job| job.outcome == UniqueOutcome::Enqueued)
        .collect();
    assert_eq!(enqueued.len(), 1);
    assert!(
        all.iter().all(|job| job.id == enqueued[0].id),
        "all are told of the one"
    );
    assert_eq!(rows(&harness, "queue").await, 1);
}

#[tokio::test]
async fn a_key_of_a_transaction_that_fails_is_free() {
    let harness = fresh::<Db>().await;
    let failing = harness.sf.transact(async |tx| {
        tx.enqueue(&index("lost")).unique("doc:7").await?;
        Err::<(), _>(Failure::transient("no", "not today"))
    });
    failing.await.unwrap_err();
    let half = harness.sf.transact(async |tx| {
        let part = tx.savepoint(async |tx| {
            tx.enqueue(&index("lost")).unique("doc:7").await?;
            Err::<(), _>(Failure::transient("no", "not today"))
        });
        part.await.unwrap_err();
        Ok(tx.enqueue(&index("kept")).unique("doc:7").await?.outcome)
    });
    assert_eq!(half.await.unwrap(), UniqueOutcome::Enqueued);
    assert_eq!(
        (rows(&harness, "queue").await, rows(&harness, "messages").await),
        (1, 1)
    );
}

#[tokio::test]
async fn a_job_that_waits_is_replaced_or_rescheduled_and_one_that_runs_is_left_alone() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let (begun, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let gates = (begun.clone(), may_end.clone());
    sf.handler::<Index>().run_outside(move |_: &JobCx<Db>, _: Index| {
        let (begun, may_end) = gates.clone();
        async move {
            begun.add_permits(1);
            may_end.acquire().await.unwrap().forget();
            Ok(())
        }
    });
    let first = enqueue(&sf, "first", UniqueConflict::Ignore).await.unwrap();
    let second = enqueue(&sf, "second", UniqueConflict::Replace).await.unwrap();
    assert_eq!(second.outcome, UniqueOutcome::Replaced);
    assert_ne!(second.id, first.id);
    assert_eq!(state(&sf, first.id).await, JobState::Cancelled);
    pass(&clock, Duration::from_secs(30));
    let same = enqueue(&sf, "third", UniqueConflict::Reschedule).await.unwrap();
    assert_eq!((same.id, same.outcome), (second.id, UniqueOutcome::Rescheduled));
    pass(&clock, Duration::from_secs(31));
    assert_eq!(state(&sf, second.id).await, JobState::Scheduled, "it was put off");
    pass(&clock, Duration::from_secs(30));
    let dispatching = run(&sf);
    begun.acquire().await.unwrap().forget();
    for conflict in [UniqueConflict::Replace, UniqueConflict::Reschedule] {
        let running = enqueue(&sf, "late", conflict).await.unwrap();
        assert_eq!((running.id, running.outcome), (second.id, UniqueOutcome::Running));
    }
    // Who wants the key only while the job waits can have another one meanwhile.
    let beside = sf.transact(async |tx| {
        let job = index("beside");
        Ok(tx
            .enqueue(&job)
            .unique("doc:7")
            .lasting(UniqueWhile::Waiting)
            .delay("1h")
            .await?
            .outcome)
    });
    assert_eq!(beside.await.unwrap(), UniqueOutcome::Enqueued);
    may_end.add_permits(1);
    eventually("its end", async || rows(&harness, "queue").await == 1).await;
    stop(&sf, dispatching).await;
}

#[tokio::test]
async fn a_debounced_job_runs_once_when_it_has_become_quiet_with_what_was_said_last() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    sf.handler::<Index>().run(keep);
    for tag in ["a", "b", "c"] {
        let enqueuing = sf.transact(async |tx| {
            tx.enqueue(&index(tag)).debounce("doc:7", "5s").await?;
            Ok(())
        });
        enqueuing.await.unwrap();
        pass(&clock, Duration::from_secs(4));
        assert_eq!(sf.drain().await.unwrap(), 0, "it has not been quiet for long enough");
    }
    pass(&clock, Duration::from_secs(2));
    assert_eq!(sf.drain().await.unwrap(), 1);
    let last = Db::count(&harness.admin, "SELECT count(*) FROM effects WHERE tag = 'c'");
    assert_eq!((last.await, harness.effects().await), (1, 1));
}

#[tokio::test]
async fn a_throttled_job_is_enqueued_once_in_a_time() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    sf.handler::<Index>().run(keep);
    let mut outcomes = Vec::new();
    for seconds in [0, 10, 45, 10, 60] {
        pass(&clock, Duration::from_secs(seconds));
        let enqueuing = sf.transact(async |tx| {
            let job = index("a");
            Ok(tx.enqueue(&job).throttle("doc:7", "1m").await?.outcome)
        });
        outcomes.push(enqueuing.await.unwrap());
        sf.drain().await.unwrap();
    }
    let (made, found) = (UniqueOutcome::Enqueued, UniqueOutcome::Found);
    assert_eq!(outcomes, [made, found, found, made, made]);
    assert_eq!(harness.effects().await, 3);
}

#[tokio::test]
async fn a_dead_job_that_is_run_again_needs_its_key() {
    let harness = fresh::<Db>().await;
    let sf = harness.sf.clone();
    sf.handler::<Index>().run(keep);
    let enqueue = async |tag: &str| {
        let job = index(tag);
        let enqueuing = sf.transact(async |tx| Ok(tx.enqueue(&job).unique("doc:7").delay("0s").await?));
        enqueuing.await.unwrap()
    };
    let dead = enqueue("bad").await;
    sf.drain().await.unwrap();
    assert_eq!(state(&sf, dead.id).await, JobState::Dead);
    let other = enqueue("other").await;
    assert_eq!(other.outcome, UniqueOutcome::Enqueued, "a dead one has no key");
    let refused = sf.job(dead.id).run_now("ann", "try it").await.unwrap_err();
    assert_eq!(refused.code(), Code::Conflict);
    assert!(refused.to_string().contains(&other.id.to_string()), "{refused}");
    assert_eq!(state(&sf, dead.id).await, JobState::Dead);
    sf.drain().await.unwrap();
    sf.job(dead.id).run_now("ann", "try it").await.unwrap();
    let third = enqueue("third").await;
    assert_eq!(
        (third.id, third.outcome),
        (dead.id, UniqueOutcome::Found),
        "it has its key back"
    );
}

#[tokio::test]
async fn a_unique_job_in_a_transaction_of_ones_own_commits_with_it() {
    let harness = fresh::<Db>().await;
    let job = index("a");
    let mut tx = harness.sf.pool().begin().await.unwrap();
    harness.sf.on(&mut tx).enqueue(&job).unique("doc:7").await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = harness.sf.pool().begin().await.unwrap();
    let made = harness.sf.on(&mut tx).enqueue(&job).unique("doc:7").await.unwrap();
    assert_eq!(made.outcome, UniqueOutcome::Enqueued);
    tx.commit().await.unwrap();
    assert_eq!(rows(&harness, "queue").await, 1);
}

#[tokio::test]
async fn a_key_that_cannot_be_stored_is_refused() {
    let harness = fresh::<Db>().await;
    let long = "k".repeat(256);
    for key in ["", "a\0b", &long] {
        let refused = harness.sf.transact(async |tx| {
            let job = index("a");
            Ok(tx.enqueue(&job).unique(key).await)
        });
        let refused = refused.await.unwrap().unwrap_err();
        assert!(
            refused.to_string().contains("unique key of the job test.index"),
            "{refused}"
        );
    }
}

async fn cancel(sf: &Steadfast<Db>, key: &str) -> CancelOutcome {
    let cancelling = sf.transact(async |tx| Ok(tx.cancel_job::<Index>(key).await?));
    cancelling.await.unwrap()
}

#[tokio::test]
async fn a_throttled_job_that_is_cancelled_frees_its_key() {
    let harness = fresh::<Db>().await;
    let throttled = async || {
        let enqueuing = harness.sf.transact(async |tx| {
            let job = index("a");
            Ok(tx.enqueue(&job).throttle("doc:7", "1h").await?)
        });
        enqueuing.await.unwrap()
    };
    let first = throttled().await;
    assert_eq!(throttled().await.outcome, UniqueOutcome::Found);
    assert_eq!(cancel(&harness.sf, "doc:7").await, CancelOutcome::Cancelled(first.id));
    assert_eq!(throttled().await.outcome, UniqueOutcome::Enqueued);
}

#[tokio::test]
async fn a_job_that_waits_is_cancelled_by_its_key_with_the_transaction_and_never_runs() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    sf.handler::<Index>().run(keep);
    assert_eq!(cancel(&sf, "doc:7").await, CancelOutcome::NotFound);
    let job = enqueue(&sf, "unwanted", UniqueConflict::Ignore).await.unwrap();
    let failing = sf.transact(async |tx| {
        let outcome = tx.cancel_job::<Index>("doc:7").await?;
        assert_eq!(outcome, CancelOutcome::Cancelled(job.id));
        Err::<(), _>(Failure::transient("no", "not today"))
    });
    failing.await.unwrap_err();
    assert_eq!(state(&sf, job.id).await, JobState::Scheduled, "nothing was committed");
    assert_eq!(cancel(&sf, "doc:8").await, CancelOutcome::NotFound, "another key");

    assert_eq!(cancel(&sf, "doc:7").await, CancelOutcome::Cancelled(job.id));
    assert_eq!(cancel(&sf, "doc:7").await, CancelOutcome::NotFound, "it has ended");
    pass(&clock, Duration::from_secs(61));
    assert_eq!(sf.drain().await.unwrap(), 0);
    assert_eq!(state(&sf, job.id).await, JobState::Cancelled);
    assert_eq!(harness.effects().await, 0);

    // The key is free, also within one transaction.
    let anew = sf.transact(async |tx| {
        let (first, second) = (index("first"), index("second"));
        let first = tx.enqueue(&first).unique("doc:7").await?;
        let cancelled = tx.cancel_job::<Index>("doc:7").await?;
        assert_eq!(cancelled, CancelOutcome::Cancelled(first.id));
        Ok(tx.enqueue(&second).unique("doc:7").await?.outcome)
    });
    assert_eq!(anew.await.unwrap(), UniqueOutcome::Enqueued);
    sf.drain().await.unwrap();
    assert_eq!(harness.effects().await, 1);
    let refused = sf.transact(async |tx| Ok(tx.cancel_job::<Index>("").await));
    assert_eq!(refused.await.unwrap().unwrap_err().code(), Code::EventInvalid);
}

#[tokio::test]
async fn a_job_that_runs_or_is_dead_is_not_cancelled_by_its_key() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let (begun, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let gates = (begun.clone(), may_end.clone());
    sf.handler::<Index>().run_outside(move |_: &JobCx<Db>, job: Index| {
        let (begun, may_end) = gates.clone();
        async move {
            begun.add_permits(1);
            may_end.acquire().await.unwrap().forget();
            match &*job.tag {
                "bad" => Err(Failure::definitive(FailureClass::Validation, "bad", "never")),
                _ => Ok(()),
            }
        }
    });
    let job = enqueue(&sf, "bad", UniqueConflict::Ignore).await.unwrap();
    pass(&clock, Duration::from_secs(61));
    let dispatching = run(&sf);
    begun.acquire().await.unwrap().forget();
    assert_eq!(cancel(&sf, "doc:7").await, CancelOutcome::Running(job.id));
    may_end.add_permits(1);
    eventually("its end", async || state(&sf, job.id).await == JobState::Dead).await;
    assert_eq!(cancel(&sf, "doc:7").await, CancelOutcome::NotFound);
    assert_eq!(state(&sf, job.id).await, JobState::Dead, "a person decides about it");
    stop(&sf, dispatching).await;
}

#[tokio::test]
async fn keys_that_nobody_has_any_more_are_purged_and_others_are_not() {
    let harness = fresh::<Db>().await;
    let sf = harness.sf.clone();
    sf.handler::<Index>().run(keep);
    let enqueuing = sf.transact(async |tx| {
        tx.enqueue(&index("done")).unique("done").await?;
        tx.enqueue(&index("dead")).unique("waits").delay("1h").await?;
        tx.enqueue(&index("held")).throttle("held", "1h").await?;
        Ok(())
    });
    enqueuing.await.unwrap();
    sf.drain().await.unwrap();
    sf.purge().await.unwrap();
    assert_eq!(rows(&harness, "unique_jobs").await, 2);
}
