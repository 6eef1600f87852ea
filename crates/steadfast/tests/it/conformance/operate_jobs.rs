//! Looking after queues and jobs: what stands where, what a person decides, and why a job waits.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use steadfast::{
    BulkVerb, Clock, Code, Dispatcher, Failure, FailureClass, Job, JobCx, JobId, JobState, Priority, QueueOptions,
    Steadfast, WhyWord,
};
use tokio::sync::Semaphore;

use super::Db;
use super::queue::{in_state, pass, process, rows, run, stop};
use crate::harness::{Harness, TestDatabase, eventually, fresh};

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Stands in the queue `mail`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Mail {
    is_bad: bool,
}

impl Job for Mail {
    const NAME: &'static str = "test.mail";
    const QUEUE: Option<&'static str> = Some("mail");
}

/// Stands in none.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plain;

impl Job for Plain {
    const NAME: &'static str = "test.plain";
}

const MAIL: Mail = Mail { is_bad: false };
const BAD_MAIL: Mail = Mail { is_bad: true };

/// Handlers that end when they may; bad mail is dead at once.
fn handle(sf: &Steadfast<Db>, may_end: &Arc<Semaphore>) {
    let gate = may_end.clone();
    sf.handler::<Mail>().run_outside(move |_: &JobCx<Db>, job: Mail| {
        let gate = gate.clone();
        async move {
            if job.is_bad {
                return Err(Failure::definitive(FailureClass::BusinessRule, "bad", "no address"));
            }
            gate.acquire().await.unwrap().forget();
            Ok(())
        }
    });
    sf.handler::<Plain>()
        .run_outside(|_: &JobCx<Db>, _: Plain| async { Ok(()) });
}

/// A process that has the queue `mail`, and what lets its handlers end.
async fn office(harness: &Harness<Db>, options: QueueOptions) -> (Steadfast<Db>, Arc<Semaphore>) {
    let (sf, may_end) = (harness.another().await, Arc::new(Semaphore::new(0)));
    sf.queue("mail", options).unwrap();
    handle(&sf, &may_end);
    sf.declare().await.unwrap();
    (sf, may_end)
}

async fn enqueue(sf: &Steadfast<Db>, job: &Mail, delay: Duration) -> JobId {
    let enqueuing = sf.transact(async |tx| Ok(tx.enqueue(job).delay(delay).await?));
    enqueuing.await.unwrap()
}

async fn look(sf: &Steadfast<Db>, id: JobId) -> steadfast::LookedJob {
    sf.job(id).look().await.unwrap().expect("it was enqueued")
}

async fn reasons(sf: &Steadfast<Db>, id: JobId) -> Vec<(WhyWord, String)> {
    let why = sf
        .why(id.to_string().parse().unwrap())
        .await
        .unwrap()
        .expect("it is there");
    let reasons = why.deliveries.into_iter().flat_map(|delivery| delivery.reasons);
    reasons.map(|reason| (reason.word, reason.what)).collect()
}

/// How often this stands in the audit, which a service may not read.
async fn audited(harness: &Harness<Db>, action: &str) -> i64 {
    let entries = format!("SELECT count(*) FROM {} WHERE action = '{action}'", Db::table("audit"));
    Db::count(&harness.admin, &entries).await
}

#[tokio::test]
async fn queues_are_listed_with_their_limits_and_what_stands_in_them() {
    let harness = fresh::<Db>().await;
    let options = QueueOptions::new().limit(1).limit_per_key(1).rate(100, "1m");
    let (sf, may_end) = office(&harness, options).await;
    enqueue(&sf, &BAD_MAIL, Duration::ZERO).await;
    assert_eq!(sf.drain().await.unwrap(), 1);
    enqueue(&sf, &MAIL, Duration::ZERO).await;
    enqueue(&sf, &MAIL, Duration::ZERO).await;
    enqueue(&sf, &MAIL, HOUR).await;
    let elsewhere = sf.transact(async |tx| Ok(tx.enqueue(&Plain).queue("slow").await?));
    elsewhere.await.unwrap();
    let dispatching = run(&sf);
    eventually("one runs", async || in_state(&harness, "leased").await == 1).await;

    let queues = sf.list_queues().await.unwrap();
    let [mail, slow] = &queues[..] else {
        panic!("{queues:?}");
    };
    assert_eq!(
        (&*mail.name, mail.limit, mail.limit_per_key),
        ("mail", Some(1), Some(1))
    );
    assert_eq!(mail.rate, Some((100, Duration::from_secs(60))));
    let counts = [mail.available, mail.scheduled, mail.running, mail.dead].map(|count| count.to_string());
    assert_eq!(counts, ["1", "1", "1", "1"]);
    assert!(mail.is_known && mail.seen_at.is_some() && mail.paused.is_none());
    assert_eq!((&*slow.name, slow.is_known, slow.seen_at), ("slow", false, None));
    assert_eq!(slow.available.number, 1, "it waits for somebody who declares the queue");
    may_end.add_permits(10);
    eventually("those that are due", async || rows(&harness, "queue").await == 3).await;
    stop(&sf, dispatching).await;
}

#[tokio::test]
async fn a_queue_that_is_paused_begins_nothing_on_any_node_until_it_is_resumed() {
    for options in [QueueOptions::new(), QueueOptions::new().limit(5)] {
        let harness = fresh::<Db>().await;
        let (sf, may_end) = office(&harness, options).await;
        may_end.add_permits(10);
        sf.pause_queue("mail", "ann", "the server is down").await.unwrap();
        let id = enqueue(&sf, &MAIL, Duration::ZERO).await;
        let plain = sf.transact(async |tx| Ok(tx.enqueue(&Plain).await?));
        plain.await.unwrap();
        let (other, _) = office(&harness, options).await;
        assert_eq!(
            other.drain().await.unwrap(),
            1,
            "others go on, and who declares it leaves it paused"
        );
        assert_eq!(look(&sf, id).await.job.state, JobState::Available);
        let paused = sf.list_queues().await.unwrap().remove(0).paused.expect("it is");
        assert_eq!((&*paused.by, &*paused.reason), ("ann", "the server is down"));
        let [(WhyWord::Paused, what)] = &reasons(&sf, id).await[..] else {
            panic!("one reason");
        };
        assert!(what.starts_with("its queue mail was paused by ann at "), "{what}");

        sf.resume_queue("mail", "ann", "it is back").await.unwrap();
        assert_eq!(sf.drain().await.unwrap(), 1);
        assert_eq!(
            (
                audited(&harness, "queue.pause").await,
                audited(&harness, "queue.resume").await
            ),
            (1, 1)
        );
        let refused = sf.pause_queue("mial", "ann", "x").await.unwrap_err();
        assert_eq!(refused.code(), Code::InputInvalid);
        assert!(refused.to_string().contains("did you mean `mail`?"), "{refused}");
        assert_eq!(audited(&harness, "queue.pause").await, 1);
    }
}

#[tokio::test]
async fn a_queue_is_drained_when_nothing_of_it_runs_any_more() {
    let harness = fresh::<Db>().await;
    let (sf, may_end) = office(&harness, QueueOptions::new().concurrency(2)).await;
    for _ in 0..3 {
        enqueue(&sf, &MAIL, Duration::ZERO).await;
    }
    let dispatching = run(&sf);
    eventually("two run", async || in_state(&harness, "leased").await == 2).await;
    let given_up = sf
        .drain_queue("mail", "ann", "deploy", |_| ControlFlow::Break(()))
        .await;
    assert_eq!(
        given_up.unwrap().running.number,
        2,
        "who breaks off is told how it stands"
    );
    let mut seen = Vec::new();
    let drained = sf.drain_queue("mail", "ann", "deploy", |queue| {
        seen.push(queue.running.number);
        may_end.add_permits(1);
        ControlFlow::Continue(())
    });
    let drained = drained.await.unwrap();
    assert_eq!((seen[0], drained.running.number, drained.available.number), (2, 0, 1));
    assert!(drained.paused.is_some(), "it stays paused");
    stop(&sf, dispatching).await;
}

#[tokio::test]
async fn a_job_is_retried_rescheduled_or_snoozed_and_one_that_runs_is_left_alone() {
    let harness = fresh::<Db>().await;
    let (sf, may_end) = office(&harness, QueueOptions::new()).await;
    let dead = enqueue(&sf, &BAD_MAIL, Duration::ZERO).await;
    let later = enqueue(&sf, &MAIL, HOUR).await;
    assert_eq!(sf.drain().await.unwrap(), 1);
    assert_eq!(look(&sf, dead).await.job.state, JobState::Dead);

    let refused = sf.job(later).retry("ann", "x").await.unwrap_err();
    assert!(
        refused.code() == Code::InputInvalid && refused.to_string().contains("run-now"),
        "{refused}"
    );
    let refused = sf.job(dead).snooze("1h", "ann", "x").await.unwrap_err();
    assert!(refused.to_string().contains("is dead"), "{refused}");
    sf.job(dead).retry("ann", "the address is there").await.unwrap();
    let again = look(&sf, dead).await.job;
    assert_eq!((again.state, again.attempts), (JobState::Available, 0));
    sf.job(dead).cancel("ann", "it is not").await.unwrap();

    let due_in = async || {
        let due = look(&sf, later).await.job.due_at.expect("it waits");
        due.duration_since(SystemTime::now()).unwrap_or_default()
    };
    sf.job(later).snooze("1h", "ann", "not today").await.unwrap();
    let snoozed = due_in().await;
    assert!(
        snoozed > HOUR * 3 / 2 && snoozed <= 2 * HOUR,
        "an hour after its time: {snoozed:?}"
    );
    sf.job(later).reschedule_in("3h", "ann", "x").await.unwrap();
    assert!(due_in().await > HOUR * 5 / 2);
    let refused = sf
        .job(later)
        .reschedule_in(HOUR * 24 * 365 * 11, "ann", "x")
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("ten years"), "{refused}");
    let refused = sf.job(later).snooze(Duration::MAX, "ann", "x").await.unwrap_err();
    assert!(refused.to_string().contains("ten years"), "{refused}");
    sf.job(later)
        .reschedule(SystemTime::UNIX_EPOCH, "ann", "now")
        .await
        .unwrap();
    assert_eq!(look(&sf, later).await.job.state, JobState::Available);

    let dispatching = run(&sf);
    eventually("it runs", async || in_state(&harness, "leased").await == 1).await;
    for refused in [
        sf.job(later).retry("ann", "x").await,
        sf.job(later).run_now("ann", "x").await,
        sf.job(later).snooze("1h", "ann", "x").await,
        sf.job(later).reschedule_in("1h", "ann", "x").await,
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::Conflict, "{refused}");
        assert!(refused.to_string().contains("is run by"), "{refused}");
    }
    may_end.add_permits(1);
    eventually("its end", async || rows(&harness, "queue").await == 0).await;
    stop(&sf, dispatching).await;
    for (action, count) in [
        ("job.retry", 1),
        ("job.snooze", 1),
        ("job.reschedule", 2),
        ("job.cancel", 1),
    ] {
        assert_eq!(audited(&harness, action).await, count, "{action}");
    }
}

#[tokio::test]
async fn jobs_are_found_and_changed_in_bulk_by_queue_priority_and_state() {
    let harness = fresh::<Db>().await;
    let (sf, may_end) = office(&harness, QueueOptions::new()).await;
    may_end.add_permits(100);
    let enqueuing = sf.transact(async |tx| {
        for _ in 0..3 {
            tx.enqueue(&BAD_MAIL).await?;
        }
        let urgent = tx.enqueue(&BAD_MAIL).priority(Priority::High).await?;
        tx.enqueue(&BAD_MAIL).unique("one").await?;
        Ok(urgent)
    });
    let urgent = enqueuing.await.unwrap();
    assert_eq!(sf.drain().await.unwrap(), 5);
    // Another one has the key of the unique one by now; what is due later, or elsewhere, is not meant.
    let enqueuing = sf.transact(async |tx| {
        let unique = tx.enqueue(&MAIL).unique("one").limit_key("acme").delay(HOUR).await?;
        tx.enqueue(&Plain).delay(HOUR).await?;
        tx.enqueue(&Plain).queue("mail").delay(HOUR).await?;
        Ok(unique.id)
    });
    let unique = enqueuing.await.unwrap();
    let looked = look(&sf, unique).await;
    assert_eq!(
        (looked.unique_key.as_deref(), looked.limit_key.as_deref()),
        (Some("one"), Some("acme"))
    );
    assert_eq!(
        (looked.job.queue.as_deref(), looked.job.priority),
        (Some("mail"), Priority::Normal)
    );
    let looked = look(&sf, urgent).await;
    assert_eq!((looked.job.priority, looked.unique_key), (Priority::High, None));
    let count = async |list: steadfast::JobList<'_, Db>| list.count().await.unwrap().number;
    assert_eq!(count(sf.jobs().queue("mail")).await, 7);
    assert_eq!(count(sf.jobs().queue("mail").priority(Priority::High)).await, 1);
    assert_eq!(count(sf.jobs().priority(Priority::Normal)).await, 7);
    assert_eq!(count(sf.jobs().queue("mail").state(JobState::Scheduled)).await, 2);
    assert_eq!(count(sf.jobs().queue("post")).await, 0);

    let dead = || sf.jobs().queue("mail").state(JobState::Dead);
    assert_eq!(dead().count_for(BulkVerb::Requeue).await.unwrap().number, 5);
    let operation = dead()
        .start(BulkVerb::Requeue, "ann", "addresses are there")
        .await
        .unwrap();
    let ended = sf
        .bulk_operation(operation.id)
        .resume(|_| ControlFlow::Continue(()))
        .await
        .unwrap();
    assert_eq!(
        (ended.done, ended.expected),
        (4, 5),
        "all but the one whose key another one has"
    );
    assert_eq!(in_state(&harness, "dead").await, 1);
    assert_eq!(count(sf.jobs().state(JobState::Available)).await, 4);

    let later = || sf.jobs().queue("mail").state(JobState::Scheduled);
    let operation = later().start(BulkVerb::Skip, "ann", "not wanted").await.unwrap();
    let ended = sf
        .bulk_operation(operation.id)
        .resume(|_| ControlFlow::Continue(()))
        .await
        .unwrap();
    assert_eq!(ended.done, 2, "neither what is available, nor the one without a queue");
    assert_eq!(count(sf.jobs().state(JobState::Cancelled)).await, 2);
    assert_eq!(count(sf.jobs().state(JobState::Scheduled)).await, 1);
    let refused = sf
        .jobs()
        .state(JobState::Running)
        .start(BulkVerb::Requeue, "ann", "x")
        .await;
    assert_eq!(refused.unwrap_err().code(), Code::InputInvalid);
}

#[tokio::test]
async fn why_names_the_limit_of_the_queue_or_of_the_key_the_rate_and_a_queue_that_nobody_has() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let may_end = Arc::new(Semaphore::new(0));
    sf.queue("mail", QueueOptions::new().limit(2).limit_per_key(1).rate(2, "10m"))
        .unwrap();
    handle(&sf, &may_end);
    sf.declare().await.unwrap();
    let enqueuing = sf.transact(async |tx| {
        tx.enqueue(&MAIL).limit_key("acme").await?;
        tx.enqueue(&MAIL).await?;
        let next = tx.enqueue(&MAIL).limit_key("acme").delay("1ms").await?;
        let lost = tx.enqueue(&MAIL).queue("mial").await?;
        let later = tx.enqueue(&Plain).delay(HOUR).await?;
        Ok((next, lost, later))
    });
    let (next, lost, later) = enqueuing.await.unwrap();
    let dispatching = run(&sf);
    eventually("two run", async || in_state(&harness, "leased").await == 2).await;
    let found = reasons(&sf, next).await;
    let words: Vec<_> = found.iter().map(|(word, _)| word.as_str()).collect();
    assert_eq!(words, ["at_limit", "key_at_limit", "rate_used_up"], "{found:?}");
    assert!(found[0].1.contains("mail is at its limit: 2 of 2 jobs"), "{found:?}");
    assert!(
        found[1].1.contains("limit key \"acme\"") && found[1].1.contains("1 of 1"),
        "{found:?}"
    );
    assert!(found[2].1.contains("2 may begin within 600s"), "{found:?}");
    let [(WhyWord::UnknownKind, what)] = &reasons(&sf, lost).await[..] else {
        panic!("one reason");
    };
    assert!(what.ends_with("has ever declared its queue mial"), "{what}");
    let [(WhyWord::NotDue, _)] = &reasons(&sf, later).await[..] else {
        panic!("one reason");
    };
    may_end.add_permits(3);
    eventually("both have ended", async || in_state(&harness, "leased").await == 0).await;
    let [(WhyWord::RateUsedUp, _)] = &reasons(&sf, next).await[..] else {
        panic!("{:?}", reasons(&sf, next).await);
    };
    pass(&clock, Duration::from_secs(6 * 60));
    eventually("it runs", async || rows(&harness, "queue").await == 2).await;
    stop(&sf, dispatching).await;
}
