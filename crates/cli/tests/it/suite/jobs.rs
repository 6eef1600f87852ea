//! Jobs: listing them, looking at one, and deciding about it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast::{BatchId, Failure, FailureClass, Job, JobCx, JobId, Steadfast};

use super::{Database, Db};
use crate::eventually;
use crate::process::Call;

const HOUR: Duration = Duration::from_secs(60 * 60);

#[derive(Serialize, Deserialize)]
struct SendReceipt {
    order: u32,
    email: String,
}

impl Job for SendReceipt {
    const NAME: &'static str = "receipt.send";
    const REDACTED: &'static [&'static str] = &["email"];
}

/// An office that sends receipts, but for odd orders.
struct Office {
    database: Database,
    sf: Steadfast<Db>,
}

impl Office {
    async fn open() -> Self {
        let database = Database::fresh().await;
        let sf = Steadfast::open(&database.url()).await.unwrap();
        let send = |_: &JobCx<Db>, job: SendReceipt| async move {
            match job.order % 2 {
                0 => Ok(()),
                _ => Err(Failure::definitive(
                    FailureClass::BusinessRule,
                    "no_address",
                    format!("order {} has none", job.order),
                )),
            }
        };
        sf.handler::<SendReceipt>().run_outside(send);
        Self { database, sf }
    }

    async fn enqueue(&self, order: u32) -> JobId {
        self.schedule(order, Duration::ZERO).await
    }

    async fn schedule(&self, order: u32, delay: Duration) -> JobId {
        let email = "ann@example.org".to_owned();
        let job = SendReceipt { order, email };
        let enqueued = self.sf.transact(async |tx| Ok(tx.enqueue(&job).delay(delay).await?));
        enqueued.await.unwrap()
    }

    fn call(&self, line: &str) -> Call {
        Call::new(line).env("DATABASE_URL", &self.database.url())
    }

    async fn count(&self, line: &str) -> usize {
        self.call(line).run().await.ok().lines().count()
    }
}

#[tokio::test]
async fn jobs_are_listed_and_one_is_shown_whole_but_masked() {
    let office = Office::open().await;
    let dead = office.enqueue(1).await;
    office.enqueue(2).await;
    office.sf.drain().await.unwrap();
    let later = office.schedule(3, HOUR).await;
    let told = office.call("jobs list").run().await.ok();
    assert!(
        told.starts_with(
            "job                                   name          queue  priority  state      attempts  when"
        ),
        "{told}"
    );
    assert!(
        told.contains(&format!("{dead}  receipt.send         normal    dead       1 ")),
        "{told}"
    );
    assert!(told.contains("no_address: order 1 has none"), "{told}");
    assert!(
        told.contains(&format!("{later}  receipt.send         normal    scheduled  0 ")),
        "{told}"
    );
    for (filter, count) in [
        ("", 2),
        ("--state completed", 1),
        ("--state dead --code no_address", 1),
        ("--name receipt.send --since 1h", 2),
        ("--name receipt.print", 0),
        ("--state running", 0),
        ("--priority normal", 2),
        ("--priority high", 0),
    ] {
        assert_eq!(
            office.count(&format!("jobs list --json {filter}")).await,
            count,
            "{filter}"
        );
    }
    assert_eq!(office.count("outbox list --json").await, 0, "a job is no delivery");
    assert_eq!(
        office.count("dead list --json").await,
        1,
        "but a dead one is a dead letter"
    );
    let first = office.call("jobs list --limit 1").run().await;
    let after = first.err.trim().strip_prefix("there are more: add --after ").unwrap();
    let rest = office
        .call(&format!("jobs list --json --after {after}"))
        .run()
        .await
        .ok();
    assert!(rest.contains(&later.to_string()) && rest.lines().count() == 1, "{rest}");

    let shown = office.call(&format!("jobs show {dead}")).run().await.ok();
    assert!(shown.contains(r#"{"email":"[redacted]","order":1}"#), "{shown}");
    assert!(shown.contains("state        dead, 1 attempt\n"), "{shown}");
    assert!(
        shown.contains(": definitive (business rule) no_address: order 1 has none"),
        "{shown}"
    );
    let object = office
        .call(&format!("jobs show {dead} --reveal --json"))
        .run()
        .await
        .ok();
    let object: Value = serde_json::from_str(&object).unwrap();
    assert_eq!(object["payload"]["email"], "ann@example.org");
    assert_eq!(
        (&object["failures"][0]["attempt"], &object["state"]),
        (&1.into(), &"dead".into())
    );
}

#[tokio::test]
async fn a_job_is_run_now_or_cancelled_with_a_reason() {
    let office = Office::open().await;
    let [now, never] = [office.schedule(2, HOUR).await, office.schedule(4, HOUR).await];
    let said = office
        .call(&format!("jobs run-now {now} --operator ann --reason urgent --json"))
        .run()
        .await
        .ok();
    assert!(
        said.contains(r#""verb":"run_now","due_at":null,"operator":"ann","reason":"urgent""#),
        "{said}"
    );
    assert_eq!(office.sf.drain().await.unwrap(), 1);
    assert_eq!(office.count("jobs list --json --state completed").await, 1);

    let cancel = |flags: &str| office.call(&format!("jobs cancel {never} --reason withdrawn {flags}"));
    cancel("").run().await.refused(2, "nobody can be asked", "add --yes");
    let said = cancel("--yes").run().await.ok();
    assert!(said.contains("it is not run again"), "{said}");
    let listed = office.call("jobs list --state cancelled --json").run().await.ok();
    assert!(listed.contains(r#""detail":"withdrawn""#), "{listed}");
    let late = office.call(&format!("jobs run-now {never} --reason x")).run().await;
    late.refused(2, "is cancelled", "enqueue another one");
    let unknown = office.call("jobs show ffff").run().await;
    unknown.refused(3, "there is no job whose id begins with ffff", "jobs list");
    let odd = office.call("jobs list --state done").run().await;
    assert!(odd.exit == 2 && odd.err.contains("waiting_retry"), "{}", odd.err);
}

/// Tells how it goes, and waits until it is cancelled.
#[derive(Serialize, Deserialize)]
struct Export;

impl Job for Export {
    const NAME: &'static str = "books.export";
}

#[tokio::test]
async fn a_running_job_shows_what_it_tells_and_is_cancelled() {
    let office = Office::open().await;
    let handler = office.sf.handler::<Export>().lease("1s");
    handler.run_outside_boxed(|cx: &JobCx<Db>, _: Export| {
        Box::pin(async move {
            cx.progress_with(1, 2, "page 1");
            cx.log("page 1 is written");
            cx.cancelled().await;
            Err(Failure::cancelled())
        })
    });
    let enqueued = office.sf.transact(async |tx| Ok(tx.enqueue(&Export).await?));
    let id = enqueued.await.unwrap();
    let working = tokio::spawn({
        let sf = office.sf.clone();
        async move { sf.dispatch().await }
    });
    let shown = async || office.call(&format!("jobs show {id}")).run().await.ok();
    let is_written = async || shown().await.contains("page 1 is written");
    eventually("it tells how it goes", is_written).await;
    let said = shown().await;
    assert!(said.contains("progress     1 of 2: page 1\n"), "{said}");
    let cancelled = office.call(&format!("jobs cancel {id} --operator ann --reason withdrawn --yes"));
    let cancelled = cancelled.run().await.ok();
    assert!(cancelled.contains("it is running, and told to stop"), "{cancelled}");
    let is_cancelled = async || office.count("jobs list --json --state cancelled").await > 0;
    eventually("it is cancelled", is_cancelled).await;
    office.sf.stop();
    working.await.unwrap().unwrap();
    let said = shown().await;
    assert!(said.contains("because      withdrawn\n"), "{said}");
    assert!(said.contains("attempt 1: page 1 is written"), "{said}");
}

#[tokio::test]
async fn jobs_that_fit_are_put_off_together() {
    let office = Office::open().await;
    for order in 1..=3 {
        office.schedule(order, HOUR).await;
    }
    let due = async || {
        let listed = office.call("jobs list --json").run().await.ok();
        let due = listed.lines().map(|line| {
            let job: Value = serde_json::from_str(line).unwrap();
            job["due_at"].as_str().unwrap().to_owned()
        });
        let mut due: Vec<String> = due.collect();
        due.sort_unstable();
        due
    };
    let counted = office.call("jobs reschedule --state scheduled --at 2036-01-02T03:04:05Z --dry-run");
    let counted = counted.run().await.ok();
    assert!(counted.contains("3, not changed"), "{counted}");

    let at = "jobs reschedule --all --at 2035-01-02T03:04:05Z --operator ann --reason holidays --yes";
    office.call(at).run().await.ok();
    assert!(
        due().await.iter().all(|at| at.starts_with("2035-01-02T03:04:05")),
        "{:?}",
        due().await
    );
    let by = "jobs snooze --name receipt.send --for 1d --operator ann --reason holidays --yes";
    office.call(by).run().await.ok();
    assert!(
        due().await.iter().all(|at| at.starts_with("2035-01-03T03:04:05")),
        "{:?}",
        due().await
    );
    let soon = "jobs reschedule --all --in 1m --operator ann --reason work --yes";
    office.call(soon).run().await.ok();
    assert!(
        due().await.iter().all(|at| !at.starts_with("2035")),
        "{:?}",
        due().await
    );
    for action in ["bulk.reschedule", "bulk.snooze"] {
        assert!(
            office.count(&format!("audit --json --action {action}")).await > 0,
            "{action}"
        );
    }

    let never = "jobs reschedule --all --at 9999-01-01 --reason never --yes";
    office
        .call(never)
        .run()
        .await
        .refused(2, "more than ten years ahead", "");
    let dead = "jobs snooze --state dead --for 1h --reason x --yes";
    office
        .call(dead)
        .run()
        .await
        .refused(2, "cannot be changed by snooze", "");
    let nothing = "jobs snooze --for 1h --reason x --yes";
    office
        .call(nothing)
        .run()
        .await
        .refused(2, "it is not said which jobs", "");
}

#[tokio::test]
async fn a_batch_is_counted_and_its_jobs_are_listed() {
    let office = Office::open().await;
    let batch = BatchId::new();
    let begun = office.sf.transact(async |tx| {
        for order in 1..=3 {
            let email = "ann@example.org".to_owned();
            tx.enqueue(&SendReceipt { order, email }).in_batch(batch).await?;
        }
        tx.enqueue(&Export).when_ended(batch).await?;
        Ok(())
    });
    begun.await.unwrap();
    office.enqueue(5).await;
    office.sf.drain().await.unwrap();
    let counted = office.call(&format!("jobs batch {batch} --json")).run().await.ok();
    let counted: Value = serde_json::from_str(&counted).unwrap();
    assert_eq!(
        (
            &counted["jobs"],
            &counted["completed"],
            &counted["dead"],
            &counted["left"]
        ),
        (&3.into(), &1.into(), &2.into(), &0.into())
    );
    assert_eq!(counted["callback"], "available");
    let listed = format!("jobs list --json --batch {batch}");
    assert_eq!(office.count(&listed).await, 2, "those that are dead");
    assert_eq!(office.count(&format!("{listed} --state completed")).await, 1);
    let unknown = office
        .call("jobs batch 0190f5c2-1a2b-7000-8000-0000000000c3")
        .run()
        .await;
    unknown.refused(3, "there is no batch", "write the whole id");
}

#[tokio::test]
async fn a_job_is_retried_rescheduled_or_snoozed_from_outside() {
    let office = Office::open().await;
    let (dead, later) = (office.enqueue(1).await, office.schedule(2, HOUR).await);
    office.sf.drain().await.unwrap();
    let untried = office.call(&format!("jobs retry {later} --reason x")).run().await;
    untried.refused(2, "was not tried yet", "jobs run-now");
    let said = office
        .call(&format!("jobs retry {dead} --reason fixed"))
        .run()
        .await
        .ok();
    assert!(said.contains("it is the same job, with all its attempts"), "{said}");
    assert_eq!(office.count("jobs list --json --state available").await, 1);

    let at = "2031-02-03T04:05:06.000Z";
    let line = format!("jobs reschedule {later} --at 2031-02-03T04:05:06Z --reason planned --json");
    let said = office.call(&line).run().await.ok();
    assert!(
        said.contains(&format!(r#""verb":"reschedule","due_at":"{at}""#)),
        "{said}"
    );
    let line = format!("jobs snooze {later} --for 1h --reason busy");
    let said = office.call(&line).run().await.ok();
    assert!(
        said.contains("it is due at 2031-02-03T05:05:06.000Z; its attempts stay counted"),
        "{said}"
    );
    let line = format!("jobs reschedule {later} --in 0s --reason now");
    office.call(&line).run().await.ok();
    assert_eq!(office.count("jobs list --json --state available").await, 2);
    let odd = office.call(&format!("jobs reschedule {later} --reason x")).run().await;
    assert!(odd.exit == 2 && odd.err.contains("--at"), "{}", odd.err);
    let odd = office
        .call(&format!("jobs reschedule {later} --at soon --reason x"))
        .run()
        .await;
    assert!(odd.exit == 2 && odd.err.contains("soon"), "{}", odd.err);
    let audit = office.call("audit --json --action job.snooze").run().await.ok();
    assert!(audit.contains("busy") && audit.lines().count() == 1, "{audit}");
}

#[tokio::test]
async fn jobs_that_fit_are_counted_and_then_retried_or_cancelled() {
    let office = Office::open().await;
    for order in [1, 3, 5] {
        office.enqueue(order).await;
    }
    office.sf.drain().await.unwrap();
    for order in [2, 4] {
        office.schedule(order, HOUR).await;
    }
    let unsaid = office.call("jobs retry --reason x --yes").run().await;
    unsaid.refused(2, "it is not said which jobs", "--queue");
    let odd = office.call("jobs retry --state scheduled --reason x --yes").run().await;
    odd.refused(2, "only jobs that have failed are retried", "run-now");
    let counted = office
        .call("jobs retry --name receipt.send --dry-run --json")
        .run()
        .await
        .ok();
    assert_eq!(
        counted,
        "{\"jobs\":3,\"exact\":true,\"verb\":\"retry\",\"changed\":false}\n"
    );
    let unsure = office.call("jobs retry --all --reason x").run().await;
    unsure.refused(2, "nobody can be asked", "add --yes");
    let done = office
        .call("jobs retry --code no_address --reason fixed --yes")
        .run()
        .await
        .ok();
    assert!(done.contains("done, 3 of 3 jobs"), "{done}");
    assert_eq!(office.count("jobs list --json --state available").await, 3);
    let done = office
        .call("jobs run-now --name receipt.send --reason early --yes --json")
        .run()
        .await
        .ok();
    assert!(
        done.contains(r#""verb":"requeue""#) && done.contains(r#""done":2"#),
        "{done}"
    );
    let done = office
        .call("jobs cancel --all --reason withdrawn --yes")
        .run()
        .await
        .ok();
    assert!(done.contains("done, 5 of 5 jobs"), "{done}");
    assert_eq!(office.count("jobs list --json --state cancelled").await, 5);
    let none = office.call("jobs cancel --queue mail --dry-run").run().await;
    none.refused(3, "there is no queue mail", "queues list");
}
