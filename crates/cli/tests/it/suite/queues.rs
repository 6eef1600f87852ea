//! Queues and breakers: listing them, pausing, draining, opening and closing.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use steadfast::breaker::{Breaker, BreakerState};
use steadfast::{Job, JobCx, JobId, Priority, QueueOptions, Steadfast};
use tokio::sync::Semaphore;

use super::{Database, Db};
use crate::eventually;
use crate::process::Call;

#[derive(Serialize, Deserialize)]
struct Mail {}

impl Job for Mail {
    const NAME: &'static str = "mail.send";
    const QUEUE: Option<&'static str> = Some("mail");
}

/// A post office with the queue `mail`, whose letters go out when they may.
struct Office {
    database: Database,
    sf: Steadfast<Db>,
    may_end: Arc<Semaphore>,
}

impl Office {
    async fn open() -> Self {
        let database = Database::fresh().await;
        let sf = Steadfast::open(&database.url()).await.unwrap();
        let may_end = Arc::new(Semaphore::new(0));
        sf.queue("mail", QueueOptions::new().limit(1).rate(100, "1m")).unwrap();
        let gate = may_end.clone();
        sf.handler::<Mail>().run_outside(move |_: &JobCx<Db>, _: Mail| {
            let gate = gate.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(())
            }
        });
        sf.declare().await.unwrap();
        Self { database, sf, may_end }
    }

    async fn enqueue(&self, priority: Priority) -> JobId {
        let enqueued = self
            .sf
            .transact(async |tx| Ok(tx.enqueue(&Mail {}).priority(priority).await?));
        enqueued.await.unwrap()
    }

    fn call(&self, line: &str) -> Call {
        Call::new(line).env("DATABASE_URL", &self.database.url())
    }

    async fn count(&self, line: &str) -> usize {
        self.call(line).run().await.ok().lines().count()
    }

    async fn running(&self) -> u64 {
        self.sf.list_queues().await.unwrap()[0].running.number
    }
}

#[tokio::test]
async fn a_queue_is_listed_paused_drained_and_resumed() {
    let office = Office::open().await;
    let first = office.enqueue(Priority::Normal).await;
    let told = office.call("queues list").run().await.ok();
    assert!(
        told.starts_with("queue  limits ") && told.contains("mail   1 at once, 100 in 60s  "),
        "{told}"
    );
    let sf = office.sf.clone();
    let dispatching = tokio::spawn(async move { sf.dispatch().await });
    while office.running().await == 0 {
        tokio::task::yield_now().await;
    }
    let second = office.enqueue(Priority::High).await;
    assert_eq!(office.count("jobs list --json --queue mail").await, 2);
    assert_eq!(office.count("jobs list --json --queue mail --priority high").await, 1);
    let mistyped = office.call("jobs list --queue mial").run().await;
    mistyped.refused(3, "there is no queue mial", "did you mean mail?");
    let why = office.call(&format!("why {second}")).run().await.ok();
    assert!(
        why.contains("at_limit: its queue mail is at its limit: 1 of 1 jobs"),
        "{why}"
    );

    let draining = office.call("queues drain mail --operator ann --reason deploy --json");
    let (drained, ()) = tokio::join!(draining.run(), async {
        while office.sf.list_queues().await.unwrap()[0].paused.is_none() {
            tokio::task::yield_now().await;
        }
        office.may_end.add_permits(1);
    });
    let drained = drained.ok();
    assert!(
        drained.contains(r#""paused_by":"ann","paused_reason":"deploy","available":1,"scheduled":0,"running":0"#),
        "{drained}"
    );
    let why = office.call(&format!("why {second}")).run().await.ok();
    assert!(why.contains("paused: its queue mail was paused by ann"), "{why}");
    assert!(why.contains("do: `steadfast queues resume mail --reason WHY`"), "{why}");
    let doctor = office.call("doctor --json").run().await.out;
    assert!(doctor.contains("targets or queues are paused: "), "{doctor}");

    office.may_end.add_permits(10);
    let said = office.call("queues resume mail --reason deployed").run().await.ok();
    assert!(said.contains("what has waited is run"), "{said}");
    while office.count("jobs list --json --state completed").await < 2 {
        tokio::task::yield_now().await;
    }
    office.sf.stop();
    dispatching.await.unwrap().unwrap();
    let said = office.call("queues pause mail --reason night").run().await.ok();
    assert!(
        said.contains("what runs ends; what is enqueued meanwhile waits"),
        "{said}"
    );
    let mistyped = office.call("queues pause mial --reason x").run().await;
    mistyped.refused(2, "there is no queue \"mial\"", "did you mean `mail`?");
    let shown = office.call(&format!("jobs show {first}")).run().await.ok();
    assert!(shown.contains("queue") && shown.contains("mail"), "{shown}");
}

#[tokio::test]
async fn a_shared_breaker_is_listed_opened_and_closed() {
    let office = Office::open().await;
    let breaker = office.sf.breaker(Breaker::named("payments").shared()).unwrap();
    let is_there = async || office.count("breakers list --json").await > 0;
    eventually("the process has it in the table", is_there).await;
    let said = office
        .call("breakers open payments --operator ann --reason maintenance")
        .run()
        .await
        .ok();
    assert!(said.contains("nobody is let through"), "{said}");
    let is_open = async || breaker.state() == BreakerState::ForcedOpen;
    eventually("the process has heard of it", is_open).await;
    let listed = office.call("breakers list").run().await.ok();
    assert!(listed.contains("payments  forced_open"), "{listed}");
    office.call("breakers close payments --reason done").run().await.ok();
    let is_closed = async || breaker.state() == BreakerState::Closed;
    eventually("the process has heard of that, too", is_closed).await;
    let mistyped = office.call("breakers open payment --reason x").run().await;
    mistyped.refused(2, "shares a breaker \"payment\"", "did you mean `payments`?");
    assert_eq!(office.count("audit --json --action breaker.open").await, 1);
}
