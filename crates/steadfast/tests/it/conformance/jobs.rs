//! Jobs, from the transaction that enqueues them to their end.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use steadfast::breaker::{Breaker, BreakerState};
use steadfast::{
    BatchId, BulkVerb, Clock, Code, DeliveryState, Dispatcher, Failure, FailureClass, Job, JobCx, JobId, JobState,
    QueueOptions, Steadfast, Tx,
};
use tokio::sync::Semaphore;

use super::Db;
use super::queue::{Tagged, at_once, in_state, pass, process, rows, run, stop, tagged};
use crate::harness::{Harness, TestDatabase, eventually, fresh};

/// Leaves its tag.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Mark {
    tag: String,
}

impl Job for Mark {
    const NAME: &'static str = "test.mark";
    const REDACTED: &'static [&'static str] = &["secret"];
}

fn mark(tag: impl Into<String>) -> Mark {
    Mark { tag: tag.into() }
}

/// Writes the tag.
async fn keep(tx: &mut Tx<Db>, job: Mark) -> Result<(), Failure> {
    sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
        .bind(&job.tag)
        .execute(tx.db())
        .await?;
    Ok(())
}

async fn enqueue(sf: &Steadfast<Db>, job: &Mark) -> JobId {
    sf.transact(async |tx| Ok(tx.enqueue(job).await?)).await.unwrap()
}

async fn state(sf: &Steadfast<Db>, id: JobId) -> JobState {
    sf.job(id).look().await.unwrap().expect("it was enqueued").job.state
}

#[tokio::test]
async fn a_job_is_run_once_and_with_its_effect() {
    let harness = fresh::<Db>().await;
    harness.sf.handler::<Mark>().run(keep);
    let id = enqueue(&harness.sf, &mark("a")).await;
    assert_eq!(state(&harness.sf, id).await, JobState::Available);
    assert_eq!(harness.sf.drain().await.unwrap(), 1);
    assert_eq!(harness.effects().await, 1);
    assert_eq!((rows(&harness, "queue").await, rows(&harness, "history").await), (0, 1));
    assert_eq!(state(&harness.sf, id).await, JobState::Completed);
    assert_eq!(harness.sf.drain().await.unwrap(), 0);
    let word = format!("SELECT count(*) FROM {} WHERE state = 'completed'", Db::table("jobs"));
    assert_eq!(
        Db::count(&harness.admin, &word).await,
        1,
        "people with SQL see the same word"
    );
}

#[tokio::test]
async fn a_job_of_a_transaction_that_fails_is_never_seen() {
    let harness = fresh::<Db>().await;
    harness.sf.handler::<Mark>().run(keep);
    let failed = harness.sf.transact(async |tx| {
        tx.enqueue(&mark("lost")).await?;
        Err::<(), _>(Failure::transient("no", "not today"))
    });
    failed.await.unwrap_err();
    let part = harness.sf.transact(async |tx| {
        tx.enqueue(&mark("before")).await?;
        let part = tx.savepoint(async |tx| {
            tx.enqueue(&mark("lost")).await?;
            Err::<(), _>(Failure::transient("no", "not today"))
        });
        part.await.unwrap_err();
        tx.enqueue(&mark("after")).await?;
        Ok(())
    });
    part.await.unwrap();
    assert_eq!(rows(&harness, "messages").await, 2);
    harness.sf.drain().await.unwrap();
    let kept = Db::count(
        &harness.admin,
        "SELECT count(*) FROM effects WHERE tag IN ('before', 'after')",
    );
    assert_eq!((kept.await, harness.effects().await), (2, 2));
}

#[tokio::test]
async fn a_command_enqueues_with_its_key_and_a_replay_does_not_enqueue_again() {
    let harness = fresh::<Db>().await;
    harness.sf.handler::<Mark>().run(keep);
    harness.sf.reaction::<Tagged>("test.keep").run(super::queue::keep);
    harness.sf.declare().await.unwrap();
    for (key, jobs, events) in [("one", 1, 0), ("many", 3, 0), ("both", 1, 1)] {
        for _ in 0..2 {
            let command = harness.sf.command("effects.make", key).owner(&harness.owner);
            let reply = command.run(async |tx| {
                for job in 0..jobs {
                    tx.enqueue(&mark(format!("{key} {job}"))).await?;
                }
                for event in 0..events {
                    tx.publish(&tagged(format!("{key} event {event}")))?;
                }
                Ok(1)
            });
            assert_eq!(reply.await.unwrap().value, 1);
        }
    }
    assert_eq!((harness.keys().await, rows(&harness, "messages").await), (3, 6));
    assert_eq!(
        rows(&harness, "queue").await,
        6,
        "a job has a row, and an event one for each target"
    );
    harness.sf.drain().await.unwrap();
    assert_eq!(harness.effects().await, 6);
}

#[tokio::test]
async fn the_callers_commit_enqueues() {
    let harness = fresh::<Db>().await;
    harness.sf.handler::<Mark>().run(keep);
    let pool = harness.sf.pool();

    let mut tx = pool.begin().await.unwrap();
    harness.sf.on(&mut tx).enqueue(&mark("lost")).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let enqueued = harness.sf.on(&mut tx).enqueue(&mark("a")).await.unwrap();
    let later = harness.sf.on(&mut tx).enqueue(&mark("b")).delay("1h").await.unwrap();
    tx.commit().await.unwrap();
    enqueued.wake();
    assert_eq!(rows(&harness, "messages").await, 2);
    harness.sf.drain().await.unwrap();
    assert_eq!(harness.effects().await, 1);
    assert_eq!(state(&harness.sf, later.id()).await, JobState::Scheduled);

    let mut conn = pool.acquire().await.unwrap();
    let refused = harness.sf.on(&mut conn).enqueue(&mark("b")).await;
    assert_eq!(refused.unwrap_err().code(), Code::NotInTransaction);
}

#[tokio::test]
async fn a_job_is_run_when_it_is_due_and_not_before() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    sf.handler::<Mark>().run(keep);
    let hour = Duration::from_secs(60 * 60);
    let ids = sf.transact(async |tx| {
        let delayed = tx.enqueue(&mark("delayed")).delay("1h").await?;
        let at = tx.enqueue(&mark("at")).at(SystemTime::now() + hour).await?;
        let past = tx.enqueue(&mark("past")).at(SystemTime::UNIX_EPOCH).await?;
        Ok([delayed, at, past])
    });
    let [delayed, at, past] = ids.await.unwrap();
    assert_eq!(sf.drain().await.unwrap(), 1);
    assert_eq!(state(&sf, past).await, JobState::Completed);
    for id in [delayed, at] {
        assert_eq!(state(&sf, id).await, JobState::Scheduled);
    }
    clock.set_offset(hour + Duration::from_secs(60));
    assert_eq!(state(&sf, delayed).await, JobState::Available);
    assert_eq!(sf.drain().await.unwrap(), 2);
    assert_eq!(harness.effects().await, 3);
}

#[tokio::test]
async fn a_worker_runs_a_job_at_once_and_another_process_does_too() {
    let harness = fresh::<Db>().await;
    let other = harness.another().await;
    other.handler::<Mark>().run(keep);
    let working = run(&other);
    eventually("its kinds are known", || async { rows(&harness, "kinds").await == 3 }).await;
    for tag in ["a", "b", "c"] {
        enqueue(&harness.sf, &mark(tag)).await;
    }
    eventually("all are done", || async { harness.effects().await == 3 }).await;
    stop(&other, working).await;
    assert_eq!(in_state(&harness, "leased").await, 0);
}

#[tokio::test]
async fn a_job_that_nobody_here_knows_is_left_to_those_who_do() {
    #[derive(Serialize, Deserialize)]
    struct NewMark {
        tag: String,
    }

    impl Job for NewMark {
        const NAME: &'static str = Mark::NAME;
        const VERSION: u32 = 2;
    }

    async fn keep_new(tx: &mut Tx<Db>, job: NewMark) -> Result<(), Failure> {
        keep(tx, mark(job.tag)).await
    }

    let harness = fresh::<Db>().await;
    let new = harness.another().await;
    harness.sf.handler::<Mark>().run(keep);
    new.handler::<NewMark>().run(keep_new);
    let newer = NewMark { tag: "2".into() };
    new.transact(async |tx| Ok(tx.enqueue(&newer).await?)).await.unwrap();
    enqueue(&new, &mark("1")).await;
    assert_eq!(
        harness.sf.drain().await.unwrap(),
        1,
        "the old node leaves the new version alone"
    );
    assert_eq!(new.drain().await.unwrap(), 1);
    assert_eq!(harness.effects().await, 2);
}

#[tokio::test]
async fn a_job_that_fails_is_tried_again_and_then_dead_with_its_history() {
    async fn fail(tx: &mut Tx<Db>, job: Mark) -> Result<(), Failure> {
        keep(tx, job).await?;
        let attempt = tx.job().expect("it is a job").attempt();
        Err(Failure::transient(
            "no_paper",
            format!("attempt {attempt} ran out of paper"),
        ))
    }

    let harness = fresh::<Db>().await;
    harness.sf.handler::<Mark>().retry(at_once(2)).run(fail);
    let id = enqueue(&harness.sf, &mark("a")).await;
    assert_eq!(harness.sf.drain().await.unwrap(), 3);
    assert_eq!(harness.effects().await, 0, "nothing of an attempt that failed is there");
    let job = harness.sf.job(id).look().await.unwrap().unwrap();
    assert_eq!((job.job.state, job.job.attempts), (JobState::Dead, 3));
    let failures: Vec<_> = job
        .failures
        .iter()
        .map(|failed| (failed.attempt, &*failed.code))
        .collect();
    assert_eq!(failures, [(1, "no_paper"), (2, "no_paper"), (3, "no_paper")]);
    let letters = harness.sf.dead_letters().page().await.unwrap().deliveries;
    assert_eq!(letters.len(), 1, "it is among the dead letters");
    assert_eq!(
        harness.sf.deliveries().count().await.unwrap().to_string(),
        "0",
        "but no delivery"
    );

    let sf = harness.another().await;
    sf.handler::<Mark>().run(keep);
    sf.job(id).run_now("ann", "there is paper").await.unwrap();
    assert_eq!(sf.drain().await.unwrap(), 1);
    assert_eq!(
        (state(&sf, id).await, harness.effects().await),
        (JobState::Completed, 1)
    );
    let noted = format!(
        "SELECT count(*) FROM {} WHERE action = 'job.run_now' AND subject = '{id} test.mark'",
        Db::table("audit")
    );
    assert_eq!(Db::count(&harness.admin, &noted).await, 1);
}

#[derive(Serialize, Deserialize)]
struct Other;

impl Job for Other {
    const NAME: &'static str = "test.other";
}

#[tokio::test]
async fn a_snooze_costs_no_attempt_and_a_definitive_failure_is_dead_at_once() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let seen = attempts.clone();
    let handler = move |cx: &JobCx<Db>, job: Mark| {
        let mut seen = seen.lock().unwrap();
        seen.push((job.tag.clone(), cx.attempt()));
        let count = seen.iter().filter(|(tag, _)| *tag == job.tag).count();
        let ended = match (&*job.tag, count) {
            ("sleepy", 1 | 2) => Err(Failure::snooze(Duration::from_secs(60))),
            ("wrong", _) => Err(Failure::definitive(FailureClass::Validation, "wrong", "never")),
            _ => Ok(()),
        };
        async move { ended }
    };
    sf.handler::<Mark>().retry(at_once(1)).run_outside(handler);
    let sleepy = enqueue(&sf, &mark("sleepy")).await;
    let wrong = enqueue(&sf, &mark("wrong")).await;
    sf.drain().await.unwrap();
    assert_eq!(state(&sf, wrong).await, JobState::Dead);
    assert_eq!(state(&sf, sleepy).await, JobState::Scheduled);
    for minutes in [2, 4] {
        clock.set_offset(Duration::from_secs(60 * minutes));
        sf.drain().await.unwrap();
    }
    assert_eq!(state(&sf, sleepy).await, JobState::Completed);
    let attempts = attempts.lock().unwrap();
    let slept: Vec<_> = attempts.iter().filter(|(tag, _)| tag == "sleepy").collect();
    assert!(
        slept.iter().all(|(_, attempt)| *attempt == 1) && slept.len() == 3,
        "{slept:?}"
    );
}

#[tokio::test]
async fn a_zombie_of_a_job_changes_nothing() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let zombie = process(&harness, &clock, Dispatcher::default()).await;
    let (began, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (began_there, end_there) = (began.clone(), may_end.clone());
    // Without a transaction: on SQLite one would keep the other process out.
    let slow = move |_: &JobCx<Db>, _: Mark| {
        let (began, may_end) = (began_there.clone(), end_there.clone());
        async move {
            began.add_permits(1);
            let _ = may_end.acquire().await;
            Ok(())
        }
    };
    zombie.handler::<Mark>().run_outside(slow);
    let working = run(&zombie);
    let id = enqueue(&harness.sf, &mark("a")).await;
    let _ = began.acquire().await.unwrap();
    assert_eq!(state(&harness.sf, id).await, JobState::Running);
    let refused = harness.sf.job(id).run_now("ann", "too late").await.unwrap_err();
    assert_eq!(refused.code(), Code::Conflict, "{refused}");

    // For everybody else its lease has expired; nobody has told it so.
    let other = process(&harness, &Clock::default(), Dispatcher::default()).await;
    other.clock().set_offset(Duration::from_secs(60));
    other.handler::<Mark>().run(keep);
    assert_eq!(other.drain().await.unwrap(), 1);
    assert_eq!(state(&harness.sf, id).await, JobState::Completed);
    may_end.add_permits(1);
    stop(&zombie, working).await;
    assert_eq!(state(&harness.sf, id).await, JobState::Completed);
    assert_eq!((harness.effects().await, rows(&harness, "history").await), (1, 1));
}

#[tokio::test]
async fn a_command_on_behalf_of_a_job_is_executed_once_however_often_the_job_is_tried() {
    async fn charge(cx: &JobCx<Db>, job: Mark) -> Result<(), Failure> {
        let owner = steadfast::Owner::new("tenant-1", "user-a");
        let command = cx.command("effects.make", &job.tag).owner(&owner);
        let tag = &job.tag;
        let reply = command.run(async |tx| {
            sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
                .bind(tag)
                .execute(tx.db())
                .await?;
            Ok(7)
        });
        let reply = reply.await?;
        assert_eq!((reply.value, reply.replayed), (7, cx.attempt() > 1));
        match cx.attempt() {
            1 => Err(Failure::transient("no", "it was done, and nobody was told")),
            _ => Ok(()),
        }
    }

    let harness = fresh::<Db>().await;
    harness.sf.handler::<Mark>().retry(at_once(3)).run_outside(charge);
    let id = enqueue(&harness.sf, &mark("a")).await;
    assert_eq!(harness.sf.drain().await.unwrap(), 2);
    assert_eq!(harness.effects().await, 1);
    let keys = harness.sf.keys().page().await.unwrap().keys;
    assert_eq!(keys[0].value, format!("job:{id}:effects.make:a"));
}

#[tokio::test]
async fn what_a_job_publishes_and_enqueues_commits_with_its_end_and_belongs_to_the_same_thing() {
    #[derive(Serialize, Deserialize)]
    struct First;

    impl Job for First {
        const NAME: &'static str = "test.first";
    }

    async fn first(tx: &mut Tx<Db>, _: First) -> Result<(), Failure> {
        tx.publish(&tagged("event"))?;
        tx.enqueue(&mark("job")).await?;
        Ok(())
    }

    let harness = fresh::<Db>().await;
    harness.sf.handler::<First>().run(first);
    harness.sf.handler::<Mark>().run(keep);
    harness.sf.reaction::<Tagged>("test.keep").run(super::queue::keep);
    harness.sf.declare().await.unwrap();
    let enqueued = harness.sf.transact(async |tx| {
        tx.set_correlation_id("order-7")?;
        Ok(tx.enqueue(&First).await?)
    });
    let id = enqueued.await.unwrap();
    harness.sf.drain().await.unwrap();
    assert_eq!(harness.effects().await, 2);
    let next = harness
        .sf
        .jobs()
        .name("test.mark")
        .state(JobState::Completed)
        .page()
        .await;
    let next = harness.sf.job(next.unwrap().jobs[0].id).look().await.unwrap().unwrap();
    assert_eq!(next.correlation_id.as_deref(), Some("order-7"));
    assert_eq!(next.causation_id, Some(id.to_string()));
}

#[tokio::test]
async fn jobs_are_listed_by_state_and_name_page_by_page() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let flaky = |_: &JobCx<Db>, job: Mark| async move {
        match &*job.tag {
            "later" => Err(Failure::transient("busy", "later").with_retry_after(Duration::from_secs(600))),
            "never" => Err(Failure::definitive(FailureClass::Validation, "wrong", "never")),
            _ => Ok(()),
        }
    };
    sf.handler::<Mark>().run_outside(flaky);
    for tag in ["fine", "later", "never"] {
        enqueue(&sf, &mark(tag)).await;
    }
    sf.drain().await.unwrap();
    let scheduled = sf.transact(async |tx| Ok(tx.enqueue(&mark("tomorrow")).delay("1d").await?));
    scheduled.await.unwrap();
    enqueue(&sf, &mark("now")).await;
    sf.transact(async |tx| Ok(tx.enqueue(&Other).await?)).await.unwrap();
    let tomorrow = enqueue(&sf, &mark("cancelled")).await;
    sf.job(tomorrow).cancel("ann", "not wanted").await.unwrap();

    let count = async |state: JobState| {
        sf.jobs()
            .name("test.mark")
            .state(state)
            .count()
            .await
            .unwrap()
            .to_string()
    };
    for (state, expected) in [
        (JobState::Completed, "1"),
        (JobState::WaitingRetry, "1"),
        (JobState::Dead, "1"),
        (JobState::Scheduled, "1"),
        (JobState::Available, "1"),
        (JobState::Cancelled, "1"),
        (JobState::Running, "0"),
        (JobState::Discarded, "0"),
    ] {
        assert_eq!(count(state).await, expected, "{state:?}");
    }
    let mut seen = Vec::new();
    let mut after: Option<JobId> = None;
    loop {
        let mut list = sf.jobs().limit(2);
        if let Some(after) = after {
            list = list.after(after);
        }
        let page = list.page().await.unwrap();
        seen.extend(page.jobs.iter().map(|job| job.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 5, "still to do, or dead");
    assert!(seen.is_sorted());
}

#[tokio::test]
async fn a_job_that_has_ended_or_is_run_is_not_decided_about() {
    let harness = fresh::<Db>().await;
    harness.sf.handler::<Mark>().run(keep);
    let id = enqueue(&harness.sf, &mark("a")).await;
    harness.sf.drain().await.unwrap();
    let late = harness.sf.job(id).cancel("ann", "too late").await.unwrap_err();
    assert_eq!(late.code(), Code::InputInvalid);
    assert!(late.to_string().contains("is completed"), "{late}");
    let unknown: JobId = "01890000-0000-7000-8000-000000000000".parse().unwrap();
    let missing = harness.sf.job(unknown).run_now("ann", "now").await.unwrap_err();
    assert!(missing.to_string().contains("there is no job"), "{missing}");
    assert!(harness.sf.job(unknown).look().await.unwrap().is_none());
    let event = harness.sf.reaction::<Tagged>("test.keep");
    event.run(super::queue::keep);
    harness.sf.declare().await.unwrap();
    let message = harness
        .sf
        .transact(async |tx| Ok(tx.publish(&tagged("e"))?))
        .await
        .unwrap();
    let as_job: JobId = message.to_string().parse().unwrap();
    assert!(
        harness.sf.job(as_job).look().await.unwrap().is_none(),
        "an event is no job"
    );
}

#[tokio::test]
async fn absurd_jobs_are_refused_and_harm_nobody() {
    #[derive(Serialize, Deserialize)]
    struct Misnamed;

    impl Job for Misnamed {
        const NAME: &'static str = "Test Mark";
    }

    let harness = fresh::<Db>().await;
    harness.sf.handler::<Mark>().run(keep);
    let huge = mark("x".repeat(300 * 1024));
    let ended = harness.sf.transact(async |tx| {
        let refused = [
            tx.enqueue(&huge).await.unwrap_err(),
            tx.enqueue(&mark("far"))
                .delay(Duration::from_secs(11 * 365 * 86_400))
                .await
                .unwrap_err(),
            tx.enqueue(&mark("far"))
                .at(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40))
                .await
                .unwrap_err(),
            tx.enqueue(&Misnamed).await.unwrap_err(),
        ];
        for (refused, says) in
            refused
                .iter()
                .zip(["bytes as JSON", "ten years", "ten years", "\"Test Mark\" has 'T' in it"])
        {
            assert_eq!(refused.code(), Code::EventInvalid);
            assert!(refused.to_string().contains(says), "{refused}");
        }
        tx.enqueue(&mark("fine")).await?;
        Ok(())
    });
    ended.await.unwrap();
    harness.sf.drain().await.unwrap();
    assert_eq!(harness.effects().await, 1);
    // What another program has stored under the name.
    let id = enqueue(&harness.sf, &mark("a")).await;
    let spoil = format!(
        "UPDATE {} SET payload = {} WHERE kind = 'job:test.mark'",
        Db::table("messages"),
        if Db::IS_SQLITE {
            "CAST('[1' AS BLOB)"
        } else {
            "'[1'::bytea"
        }
    );
    Db::run(&harness.admin, &spoil).await;
    harness.sf.drain().await.unwrap();
    let job = harness.sf.job(id).look().await.unwrap().unwrap();
    assert_eq!((job.job.state, &*job.failures[0].code), (JobState::Dead, "undecodable"));
}

#[tokio::test]
async fn one_job_has_one_handler() {
    let harness = fresh::<Db>().await;
    harness.sf.handler::<Mark>().run(keep);
    let second = std::panic::AssertUnwindSafe(|| harness.sf.handler::<Mark>().run(keep));
    let panic = std::panic::catch_unwind(second).unwrap_err();
    let said = panic.downcast_ref::<String>().unwrap();
    assert!(
        said.contains("SF305") && said.contains("are both called \"test.mark\""),
        "{said}"
    );
}

/// A job by plain SQL, as the guide writes it.
#[tokio::test]
async fn a_job_can_be_enqueued_by_plain_sql() {
    let harness: Harness<Db> = fresh::<Db>().await;
    harness.sf.handler::<Mark>().run(keep);
    let statement = match Db::IS_SQLITE {
        true => {
            "INSERT INTO steadfast_publications (id, type, version, source, payload, created_at, due_at, kind)
             SELECT printf('%08x-%04x-7%03x-8%03x-%s', ms >> 16, ms & 65535, abs(random() % 4096), abs(random() % 4096),
                           lower(hex(randomblob(6)))),
                    'test.mark', 1, '/by-hand', CAST('{\"tag\":\"sql\"}' AS BLOB), ms * 1000, ms * 1000, 'job:test.mark'
             FROM (SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AS ms)"
        }
        false => {
            "WITH job AS (
                 INSERT INTO steadfast.messages (number, created_at, version, id, type, source, content_type, payload, kind)
                 VALUES (nextval('steadfast.numbers'), now(), 1,
                         (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
                          || '7' || substr(md5(random()::text), 1, 3) || '8' || substr(md5(random()::text), 1, 15))::uuid,
                         'test.mark', '/by-hand', 'application/json', '{\"tag\":\"sql\"}', 'job:test.mark')
                 RETURNING id, kind)
             INSERT INTO steadfast.queue (due_at, visible_at, item, kind, state)
             SELECT now(), now(), id, kind, 'pending' FROM job"
        }
    };
    Db::run(&harness.admin, statement).await;
    let listed = harness.sf.jobs().page().await.unwrap().jobs;
    assert_eq!(listed[0].id.as_uuid().get_version_num(), 7, "ids sort by time");
    assert_eq!(harness.sf.drain().await.unwrap(), 1);
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn a_bulk_operation_takes_the_jobs_that_it_has_counted_and_no_others() {
    async fn refuse(_: &mut Tx<Db>, _: Mark) -> Result<(), Failure> {
        Err(Failure::definitive(FailureClass::BusinessRule, "no", "never"))
    }

    async fn refuse_event(_: &mut Tx<Db>, _: Tagged) -> Result<(), Failure> {
        Err(Failure::definitive(FailureClass::BusinessRule, "no", "never"))
    }

    let harness = fresh::<Db>().await;
    let sf = &harness.sf;
    sf.handler::<Mark>().run(refuse);
    sf.reaction::<Tagged>("test.refuse").run(refuse_event);
    sf.declare().await.unwrap();
    let id = enqueue(sf, &mark("a")).await;
    super::queue::publish(sf, &tagged("b")).await;
    sf.drain().await.unwrap();
    assert_eq!(in_state(&harness, "dead").await, 2);

    let deliveries = || sf.deliveries().state(DeliveryState::Dead);
    assert_eq!(deliveries().count_for(BulkVerb::Skip).await.unwrap().number, 1);
    let begun = deliveries().start(BulkVerb::Skip, "ann", "enough").await.unwrap();
    let skipped = sf
        .bulk_operation(begun.id)
        .resume(|_| ControlFlow::Continue(()))
        .await
        .unwrap();
    assert_eq!(skipped.done, 1, "a job is no delivery");
    assert_eq!(state(sf, id).await, JobState::Dead);

    let all = || sf.dead_letters().target("job:test.mark");
    assert_eq!(all().count_for(BulkVerb::Skip).await.unwrap().number, 1);
    let begun = all().start(BulkVerb::Skip, "ann", "enough").await.unwrap();
    sf.bulk_operation(begun.id)
        .resume(|_| ControlFlow::Continue(()))
        .await
        .unwrap();
    assert_eq!(state(sf, id).await, JobState::Cancelled);
    let cancelled = sf.jobs().state(JobState::Cancelled).count().await.unwrap();
    assert_eq!(cancelled.to_string(), "1", "it has one word, wherever it is asked for");
}

#[tokio::test]
async fn a_bulk_operation_on_a_batch_leaves_all_other_jobs_alone() {
    let harness = fresh::<Db>().await;
    let sf = &harness.sf;
    let batch = BatchId::new();
    let enqueuing = sf.transact(async |tx| {
        for _ in 0..3 {
            tx.enqueue(&mark("of the batch")).delay("1h").in_batch(batch).await?;
            tx.enqueue(&mark("of none")).delay("1h").await?;
        }
        tx.enqueue(&mark("at its end")).when_ended(batch).await?;
        Ok(())
    });
    enqueuing.await.unwrap();
    let count = async |state: JobState| sf.jobs().state(state).count().await.unwrap().number;
    let jobs = || sf.jobs().batch(batch);
    for (verb, word) in [
        (BulkVerb::Snooze(Duration::from_secs(60)), "snooze"),
        (BulkVerb::Skip, "skip"),
    ] {
        let begun = jobs().start(verb, "ann", "enough").await.unwrap();
        let work = sf.bulk_operation(begun.id);
        let ended = work.resume(|_| ControlFlow::Continue(())).await.unwrap();
        assert_eq!((ended.expected, ended.done), (3, 3), "{word}");
        assert_eq!(ended.verb, verb);
    }
    assert_eq!(count(JobState::Cancelled).await, 3);
    assert_eq!(count(JobState::Scheduled).await, 3, "the others");
}

#[tokio::test]
async fn jobs_are_snoozed_together_each_by_its_own_time_and_never_beyond_ten_years() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let year = Duration::from_secs(365 * 24 * 60 * 60);
    let mut ids = Vec::new();
    for delay in [Duration::ZERO, year, 9 * year] {
        let enqueuing = sf.transact(async |tx| Ok(tx.enqueue(&mark("a")).delay(delay).await?));
        ids.push(enqueuing.await.unwrap());
    }
    let due_in = async |id: JobId| {
        let due_at = sf.job(id).look().await.unwrap().unwrap().job.due_at.unwrap();
        let days = due_at.duration_since(SystemTime::now()).unwrap().as_secs_f64() / 86_400.0;
        days.round() as u64
    };
    let begun = sf
        .jobs()
        .start(BulkVerb::Snooze(2 * year), "ann", "later")
        .await
        .unwrap();
    let work = sf.bulk_operation(begun.id);
    assert_eq!(work.resume(|_| ControlFlow::Continue(())).await.unwrap().done, 3);
    for (id, years) in ids.into_iter().zip([2, 3, 10]) {
        assert_eq!(due_in(id).await, years * 365, "{years}");
    }
    for verb in [
        BulkVerb::Snooze(11 * year),
        BulkVerb::Reschedule(SystemTime::now() + 11 * year),
    ] {
        let refused = sf.jobs().count_for(verb).await.unwrap_err();
        assert_eq!(refused.code(), Code::InputInvalid);
    }
}

#[tokio::test]
async fn a_command_of_a_job_is_not_executed_again_when_the_job_is_tried_months_later() {
    async fn charge(cx: &JobCx<Db>, job: Mark) -> Result<(), Failure> {
        let (owner, tag) = (steadfast::Owner::new("tenant-1", "user-a"), &job.tag);
        let command = cx.command("effects.make", tag).owner(&owner);
        let charged = command.run(async |tx| {
            sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
                .bind(tag)
                .execute(tx.db())
                .await?;
            Ok(())
        });
        match charged.await?.replayed {
            true => Ok(()),
            false => Err(Failure::definitive(
                FailureClass::BusinessRule,
                "no",
                "the next step fails",
            )),
        }
    }

    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    sf.handler::<Mark>().run_outside(charge);
    let id = enqueue(&sf, &mark("a")).await;
    sf.drain().await.unwrap();
    assert_eq!(state(&sf, id).await, JobState::Dead);
    clock.set_offset(Duration::from_secs(80 * 86_400));
    sf.job(id).run_now("ann", "the next step is mended").await.unwrap();
    sf.drain().await.unwrap();
    assert_eq!(
        (state(&sf, id).await, harness.effects().await),
        (JobState::Completed, 1)
    );
}

#[tokio::test]
async fn while_its_breaker_is_open_a_job_is_left_alone_and_spends_no_attempt() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let mail = Breaker::named("mail").consecutive_failures(2).open_for("1m");
    let mail = sf.breaker(mail).unwrap();
    let (is_down, calls) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let handler = {
        let (is_down, calls) = (is_down.clone(), calls.clone());
        move |_: &JobCx<Db>, _: Mark| {
            calls.fetch_add(1, Ordering::Relaxed);
            let is_down = is_down.load(Ordering::Relaxed);
            async move {
                match is_down {
                    true => Err(Failure::transient("down", "no route to host")),
                    false => Ok(()),
                }
            }
        }
    };
    let retry = steadfast::retry!(retries = 5, backoff = constant("1s"));
    sf.handler::<Mark>().breaker("mail").retry(retry).run_outside(handler);
    let mut ids = Vec::new();
    for tag in 0..5 {
        ids.push(enqueue(&sf, &mark(tag.to_string())).await);
    }
    sf.drain().await.unwrap();
    assert_eq!((calls.load(Ordering::Relaxed), mail.state()), (2, BreakerState::Open));
    pass(&clock, Duration::from_secs(30));
    assert_eq!(sf.drain().await.unwrap(), 0, "nothing is claimed while it is open");

    // The first that tries finds that it is still down, and nobody else tries.
    pass(&clock, Duration::from_secs(31));
    sf.drain().await.unwrap();
    assert_eq!((calls.load(Ordering::Relaxed), mail.state()), (3, BreakerState::Open));

    is_down.store(false, Ordering::Relaxed);
    pass(&clock, Duration::from_secs(121));
    while rows(&harness, "queue").await > 0 {
        sf.drain().await.unwrap();
        pass(&clock, Duration::from_secs(2));
    }
    assert_eq!((calls.load(Ordering::Relaxed), mail.state()), (8, BreakerState::Closed));
    let mut attempts = Vec::new();
    for id in ids {
        attempts.push(sf.job(id).look().await.unwrap().expect("it was enqueued").job.attempts);
    }
    attempts.sort_unstable();
    assert_eq!(
        attempts.iter().sum::<u32>(),
        8,
        "only what was tried counts: {attempts:?}"
    );
}

/// The same, in a queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Queued {
    tag: String,
}

impl Job for Queued {
    const NAME: &'static str = "test.queued";
    const QUEUE: Option<&'static str> = Some("mail");
}

#[tokio::test]
async fn as_many_jobs_of_a_queue_as_there_are_probes_find_out_whether_a_breaker_may_close() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    sf.queue("mail", QueueOptions::new().rate(100, "1d")).unwrap();
    let mail = Breaker::named("mail").consecutive_failures(1).open_for("1m");
    let mail = sf.breaker(mail).unwrap();
    let down = async |_: &JobCx<Db>, _: Queued| Err(Failure::transient("down", "no route to host"));
    let retry = steadfast::retry!(retries = 5, backoff = constant("1h"));
    sf.handler::<Queued>().breaker("mail").retry(retry).run_outside(down);
    let enqueuing = sf.transact(async |tx| {
        for tag in 0..50 {
            tx.enqueue(&Queued { tag: tag.to_string() }).await?;
        }
        Ok(())
    });
    enqueuing.await.unwrap();
    sf.drain().await.unwrap();
    let claims = format!(
        "SELECT CAST(coalesce(sum(epoch), 0) AS bigint) FROM {}",
        Db::table("queue")
    );
    for probes in 1..=3 {
        let before = Db::count(&harness.admin, &claims).await;
        pass(&clock, Duration::from_secs(301 * probes));
        sf.drain().await.unwrap();
        assert_eq!(
            Db::count(&harness.admin, &claims).await,
            before + 1,
            "one tries, and no other is claimed"
        );
        assert_eq!(mail.state(), BreakerState::Open);
    }
}

#[tokio::test]
async fn a_job_that_cannot_be_read_says_nothing_about_what_it_would_have_called() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let mail = Breaker::named("mail").consecutive_failures(1).open_for("1m");
    let mail = sf.breaker(mail).unwrap();
    let down = async |_: &JobCx<Db>, _: Mark| Err(Failure::transient("down", "no route to host"));
    let retry = steadfast::retry!(retries = 5, backoff = constant("1h"));
    sf.handler::<Mark>().breaker("mail").retry(retry).run_outside(down);
    enqueue(&sf, &mark("a")).await;
    sf.drain().await.unwrap();
    assert_eq!(mail.state(), BreakerState::Open);
    /// What another version of the program has written under the same name.
    #[derive(Serialize, Deserialize)]
    struct Other {}
    impl Job for Other {
        const NAME: &'static str = Mark::NAME;
    }
    sf.transact(async |tx| Ok(tx.enqueue(&Other {}).await?)).await.unwrap();
    pass(&clock, Duration::from_secs(61));
    sf.drain().await.unwrap();
    assert_eq!(in_state(&harness, "dead").await, 1);
    assert_ne!(mail.state(), BreakerState::Closed);
}

#[tokio::test]
async fn a_job_that_names_no_breaker_that_can_be_is_refused() {
    let harness = fresh::<Db>().await;
    let declaring = std::panic::AssertUnwindSafe(|| harness.sf.handler::<Mark>().breaker("").run(keep));
    let refused = std::panic::catch_unwind(declaring).unwrap_err();
    let says = refused.downcast_ref::<String>().expect("it says why");
    assert!(says.contains("SF303"), "{says}");
}
