//! Queues: hands that jobs share, priorities, and limits over all nodes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::{Clock, Code, Dispatcher, Failure, Job, JobCx, Priority, QueueOptions, Steadfast};
use tokio::sync::Semaphore;

use super::Db;
use super::queue::{pass, process, rows, run, stop};
use crate::harness::{Harness, TestDatabase, eventually, fresh};

/// Stands in the queue `mail`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Mail {
    tag: String,
}

impl Job for Mail {
    const NAME: &'static str = "test.mail";
    const QUEUE: Option<&'static str> = Some("mail");
}

/// Stands in the same one.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Parcel {
    tag: String,
}

impl Job for Parcel {
    const NAME: &'static str = "test.parcel";
    const QUEUE: Option<&'static str> = Some("mail");
}

/// Stands in none.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plain {
    tag: String,
}

impl Job for Plain {
    const NAME: &'static str = "test.plain";
}

fn mail(tag: impl std::fmt::Display) -> Mail {
    Mail { tag: format!("{tag}") }
}

/// Handlers that begin, and end when they may.
#[derive(Clone)]
struct Doors {
    begun: Arc<Mutex<Vec<String>>>,
    may_end: Arc<Semaphore>,
}

impl Doors {
    fn closed() -> Self {
        Self {
            begun: Arc::default(),
            may_end: Arc::new(Semaphore::new(0)),
        }
    }

    fn open() -> Self {
        let doors = Self::closed();
        doors.may_end.add_permits(Semaphore::MAX_PERMITS / 2);
        doors
    }

    fn begun(&self) -> Vec<String> {
        self.begun.lock().unwrap().clone()
    }

    async fn pass(self, tag: String) -> Result<(), Failure> {
        self.begun.lock().unwrap().push(tag);
        self.may_end.acquire().await.unwrap().forget();
        Ok(())
    }

    fn handle(&self, sf: &Steadfast<Db>) {
        let doors = self.clone();
        sf.handler::<Mail>()
            .run_outside(move |_: &JobCx<Db>, job: Mail| doors.clone().pass(job.tag));
        let doors = self.clone();
        sf.handler::<Parcel>()
            .run_outside(move |_: &JobCx<Db>, job: Parcel| doors.clone().pass(job.tag));
        let doors = self.clone();
        sf.handler::<Plain>()
            .run_outside(move |_: &JobCx<Db>, job: Plain| doors.clone().pass(job.tag));
    }
}

async fn node(harness: &Harness<Db>, doors: &Doors, options: QueueOptions) -> Steadfast<Db> {
    let sf = harness.another().await;
    sf.queue("mail", options).unwrap();
    doors.handle(&sf);
    sf.declare().await.unwrap();
    sf
}

async fn running(harness: &Harness<Db>) -> i64 {
    let leased = format!("SELECT count(*) FROM {} WHERE state = 'leased'", Db::table("queue"));
    Db::count(&harness.admin, &leased).await
}

#[tokio::test]
async fn jobs_of_a_queue_share_its_hands_and_others_have_their_own() {
    let harness = fresh::<Db>().await;
    let doors = Doors::closed();
    let sf = node(&harness, &doors, QueueOptions::new().concurrency(3)).await;
    let enqueuing = sf.transact(async |tx| {
        for tag in 0..5 {
            tx.enqueue(&mail(tag)).await?;
            tx.enqueue(&Parcel { tag: tag.to_string() }).await?;
        }
        tx.enqueue(&Plain { tag: "plain".into() }).await?;
        Ok(())
    });
    enqueuing.await.unwrap();
    let dispatching = run(&sf);
    eventually("three of the queue and the one beside it", async || {
        doors.begun().len() == 4
    })
    .await;
    assert!(doors.begun().contains(&"plain".to_owned()));
    doors.may_end.add_permits(1_000);
    eventually("all", async || doors.begun().len() == 11).await;
    stop(&sf, dispatching).await;
    assert_eq!(rows(&harness, "queue").await, 0);
}

#[tokio::test]
async fn a_limit_holds_over_all_nodes_whoever_claims() {
    let harness = fresh::<Db>().await;
    let doors = Doors::closed();
    let options = QueueOptions::new().concurrency(8).limit(3);
    let nodes = [
        node(&harness, &doors, options).await,
        node(&harness, &doors, options).await,
    ];
    let enqueuing = harness.sf.transact(async |tx| {
        for tag in 0..20 {
            tx.enqueue(&mail(tag)).await?;
        }
        Ok(())
    });
    enqueuing.await.unwrap();
    let dispatching = nodes.each_ref().map(run);
    for begun in 3..=20 {
        eventually("as many as may", async || doors.begun().len() == begun).await;
        assert!(running(&harness).await <= 3, "at every moment");
        doors.may_end.add_permits(1);
    }
    doors.may_end.add_permits(20);
    eventually("the end", async || rows(&harness, "queue").await == 0).await;
    for (sf, dispatching) in nodes.iter().zip(dispatching) {
        stop(sf, dispatching).await;
    }
}

#[tokio::test]
async fn a_node_that_dies_frees_its_places_with_its_leases_and_not_before() {
    let harness = fresh::<Db>().await;
    let (dead, alive) = (Doors::closed(), Doors::open());
    let clock = Clock::default();
    let options = QueueOptions::new().concurrency(8).limit(2);
    let zombie = process(&harness, &clock, Dispatcher::default()).await;
    zombie.queue("mail", options).unwrap();
    dead.handle(&zombie);
    zombie.declare().await.unwrap();
    let enqueuing = harness.sf.transact(async |tx| {
        for tag in 0..4 {
            tx.enqueue(&mail(tag)).await?;
        }
        Ok(())
    });
    enqueuing.await.unwrap();
    let working = run(&zombie);
    eventually("it has both places", async || dead.begun().len() == 2).await;
    working.abort();
    let _ = working.await;

    let survivor = process(&harness, &clock, Dispatcher::default()).await;
    survivor.queue("mail", options).unwrap();
    alive.handle(&survivor);
    assert_eq!(
        survivor.drain().await.unwrap(),
        0,
        "both places are taken, as far as anybody can see"
    );
    pass(&clock, Duration::from_secs(31));
    assert_eq!(
        survivor.drain().await.unwrap(),
        4,
        "the two that were left behind, and then the others"
    );
    assert_eq!(rows(&harness, "queue").await, 0);
    assert!(
        rows(&harness, "slots").await <= 2,
        "what is left of them makes room for the next"
    );
}

#[tokio::test]
async fn keys_take_turns_and_none_has_more_than_its_limit() {
    let harness = fresh::<Db>().await;
    let doors = Doors::closed();
    let options = QueueOptions::new().concurrency(6).limit_per_key(2);
    let nodes = [
        node(&harness, &doors, options).await,
        node(&harness, &doors, options).await,
    ];
    // One has a lot, and came first.
    for (tenant, count) in [("large", 200), ("small", 4), ("tiny", 1)] {
        let enqueuing = harness.sf.transact(async |tx| {
            for _ in 0..count {
                tx.enqueue(&mail(tenant)).limit_key(tenant).await?;
            }
            Ok(())
        });
        enqueuing.await.unwrap();
    }
    let dispatching = nodes.each_ref().map(run);
    let begun = || {
        let mut counts = HashMap::<String, usize>::new();
        for tag in doors.begun() {
            *counts.entry(tag).or_default() += 1;
        }
        counts
    };
    eventually("two, two and one", async || doors.begun().len() == 5).await;
    assert_eq!(
        begun(),
        HashMap::from([("large".into(), 2), ("small".into(), 2), ("tiny".into(), 1)])
    );
    let by_key = format!(
        "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM {} WHERE state = 'leased' GROUP BY chain) AS c",
        Db::table("queue")
    );
    // The first of each key end, and then one after another.
    for ended in 1..=20 {
        doors.may_end.add_permits(1);
        let done = async || rows(&harness, "history").await >= ended;
        eventually("one more has ended", done).await;
        assert!(Db::count(&harness.admin, &by_key).await <= 2, "at every moment");
    }
    doors.may_end.add_permits(1_000);
    eventually("the end", async || rows(&harness, "queue").await == 0).await;
    for (sf, dispatching) in nodes.iter().zip(dispatching) {
        stop(sf, dispatching).await;
    }
    let order = doors.begun();
    let last_small = order.iter().rposition(|tag| tag == "small").unwrap();
    assert!(
        last_small < 30,
        "the small one did not wait for the large one: {last_small}"
    );
}

#[tokio::test]
async fn so_many_begin_within_a_time() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let doors = Doors::open();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    sf.queue("mail", QueueOptions::new().rate(10, "1m")).unwrap();
    doors.handle(&sf);
    let enqueuing = sf.transact(async |tx| {
        for tag in 0..25 {
            tx.enqueue(&mail(tag)).await?;
        }
        Ok(())
    });
    enqueuing.await.unwrap();
    let mut begun = Vec::new();
    for seconds in [0, 1, 6, 12, 60, 600] {
        pass(&clock, Duration::from_secs(seconds));
        sf.drain().await.unwrap();
        begun.push(doors.begun().len());
    }
    // Ten at once, then one in six seconds: after 7, 19 and 79 of them.
    assert_eq!(begun, [10, 10, 11, 13, 23, 25]);
}

/// In a queue with these options, of those that begin one after another most are urgent, and some are not.
async fn assert_urgent_first(options: QueueOptions) {
    let harness = fresh::<Db>().await;
    let doors = Doors::closed();
    let sf = node(&harness, &doors, options).await;
    let enqueuing = sf.transact(async |tx| {
        for priority in [Priority::Low, Priority::Normal, Priority::High] {
            for _ in 0..100 {
                tx.enqueue(&mail(priority)).priority(priority).await?;
            }
        }
        Ok(())
    });
    enqueuing.await.unwrap();
    let dispatching = run(&sf);
    one_after_another(&doors, 1, 84).await;
    let mut begun = doors.begun();
    begun.truncate(84);
    let count = |priority: Priority| begun.iter().filter(|tag| **tag == priority.to_string()).count();
    let [high, normal, low] = Priority::ALL.map(count);
    assert!((2..=8).contains(&low), "{high}, {normal}, {low}");
    assert!((12..=22).contains(&normal), "{high}, {normal}, {low}");
    assert!(high >= 55, "{high}, {normal}, {low}");
    doors.may_end.add_permits(1_000);
    eventually("the end", async || rows(&harness, "queue").await == 0).await;
    stop(&sf, dispatching).await;
}

#[tokio::test]
async fn what_is_urgent_goes_first_and_nothing_waits_for_ever() {
    assert_urgent_first(QueueOptions::new().concurrency(1)).await;
}

/// Lets jobs that have begun end, one after another, until so many have begun.
async fn one_after_another(doors: &Doors, at_once: usize, until: usize) {
    for begun in at_once..=until {
        eventually("the next", async || doors.begun().len() == begun).await;
        doors.may_end.add_permits(1);
    }
}

#[tokio::test]
async fn jobs_under_a_limit_take_turns_whatever_their_names_and_however_many_there_are() {
    let harness = fresh::<Db>().await;
    let doors = Doors::closed();
    let sf = node(&harness, &doors, QueueOptions::new().concurrency(16).limit(2)).await;
    let enqueuing = sf.transact(async |tx| {
        for _ in 0..200 {
            tx.enqueue(&mail("mail")).await?;
        }
        for _ in 0..40 {
            tx.enqueue(&Parcel { tag: "parcel".into() }).await?;
        }
        Ok(())
    });
    enqueuing.await.unwrap();
    let dispatching = run(&sf);
    one_after_another(&doors, 2, 60).await;
    let parcels = doors.begun().iter().take(60).filter(|tag| *tag == "parcel").count();
    assert!((25..=35).contains(&parcels), "{parcels} of 60");
    doors.may_end.add_permits(1_000);
    eventually("the end", async || rows(&harness, "queue").await == 0).await;
    stop(&sf, dispatching).await;
}

#[tokio::test]
async fn under_a_limit_what_is_urgent_goes_first_and_nothing_waits_for_ever() {
    assert_urgent_first(QueueOptions::new().concurrency(16).limit(1)).await;
}

#[tokio::test]
async fn what_was_done_long_ago_keeps_nobody_waiting() {
    let harness = fresh::<Db>().await;
    let doors = Doors::closed();
    let sf = node(&harness, &doors, QueueOptions::new().limit(1)).await;
    let enqueue = async |mails: usize, parcels: usize| {
        let enqueuing = sf.transact(async move |tx| {
            for _ in 0..mails {
                tx.enqueue(&mail("mail")).await?;
            }
            for _ in 0..parcels {
                tx.enqueue(&Parcel { tag: "parcel".into() }).await?;
            }
            Ok(())
        });
        enqueuing.await.unwrap();
    };
    enqueue(150, 0).await;
    let dispatching = run(&sf);
    doors.may_end.add_permits(150);
    eventually("mail has had its time", async || rows(&harness, "queue").await == 0).await;

    enqueue(0, 100).await;
    one_after_another(&doors, 151, 155).await;
    enqueue(5, 0).await;
    one_after_another(&doors, 156, 175).await;
    let last_mails = doors
        .begun()
        .iter()
        .skip(150)
        .take(25)
        .filter(|tag| *tag == "mail")
        .count();
    assert_eq!(
        last_mails,
        5,
        "they had their turns at once: {:?}",
        &doors.begun()[150..]
    );
    doors.may_end.add_permits(1_000);
    eventually("the end", async || rows(&harness, "queue").await == 0).await;
    stop(&sf, dispatching).await;
}

/// Leaves jobs behind that have killed their process twice, as far as anybody can tell: each is worked on while no other such one is.
async fn leave_suspects(harness: &Harness<Db>, clock: &Clock, options: QueueOptions, count: usize) {
    for _ in 0..2 {
        let dead = Doors::closed();
        let zombie = process(harness, clock, Dispatcher::default()).await;
        zombie.queue("mail", options).unwrap();
        dead.handle(&zombie);
        zombie.declare().await.unwrap();
        let working = run(&zombie);
        eventually("they are worked on", async || dead.begun().len() == count).await;
        working.abort();
        let _ = working.await;
        pass(clock, Duration::from_secs(31));
    }
}

#[tokio::test]
async fn who_may_not_begin_yet_takes_nobodys_place_under_a_limit() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let options = QueueOptions::new().concurrency(8).limit(3);
    let enqueuing = harness.sf.transact(async |tx| {
        tx.enqueue(&mail("suspect")).await?;
        tx.enqueue(&mail("suspect")).await?;
        Ok(())
    });
    enqueuing.await.unwrap();
    leave_suspects(&harness, &clock, options, 2).await;

    let doors = Doors::closed();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    sf.queue("mail", options).unwrap();
    doors.handle(&sf);
    let enqueuing = sf.transact(async |tx| {
        for _ in 0..5 {
            tx.enqueue(&Parcel { tag: "parcel".into() }).await?;
        }
        Ok(())
    });
    enqueuing.await.unwrap();
    let dispatching = run(&sf);
    let begun = |tag: &str| doors.begun().iter().filter(|begun| *begun == tag).count();
    let one_of_each = async || begun("parcel") == 1 && begun("suspect") == 1;
    eventually("one suspect, and what there is a place for beside both", one_of_each).await;
    doors.may_end.add_permits(1_000);
    eventually("the end", async || rows(&harness, "queue").await == 0).await;
    stop(&sf, dispatching).await;
}

#[tokio::test]
async fn of_those_that_may_kill_their_process_one_is_worked_on_wherever_they_stand() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let options = QueueOptions::new().concurrency(8).limit(3);
    let enqueuing = harness.sf.transact(async |tx| {
        tx.enqueue(&mail("in a queue")).await?;
        tx.enqueue(&Plain { tag: "in none".into() }).await?;
        Ok(())
    });
    enqueuing.await.unwrap();
    leave_suspects(&harness, &clock, options, 2).await;

    let doors = Doors::closed();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    sf.queue("mail", options).unwrap();
    doors.handle(&sf);
    let dispatching = run(&sf);
    eventually("the first", async || !doors.begun().is_empty()).await;
    // Long enough for many looks.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(doors.begun().len(), 1, "{:?}", doors.begun());
    doors.may_end.add_permits(2);
    eventually("then the other", async || rows(&harness, "queue").await == 0).await;
    stop(&sf, dispatching).await;
}

#[tokio::test]
async fn a_job_in_another_queue_is_for_those_who_have_declared_it() {
    let harness = fresh::<Db>().await;
    let (here, there) = (Doors::open(), Doors::open());
    let sf = node(&harness, &here, QueueOptions::new()).await;
    let enqueuing = sf.transact(async |tx| {
        tx.enqueue(&mail("bulk")).queue("bulk").await?;
        tx.enqueue(&Plain { tag: "plain".into() })
            .queue("bulk")
            .priority(Priority::Low)
            .await?;
        tx.enqueue(&mail("own")).queue("mail").await?;
        Ok(())
    });
    enqueuing.await.unwrap();
    sf.drain().await.unwrap();
    assert_eq!(here.begun(), ["own"]);
    let other = harness.another().await;
    other.queue("bulk", QueueOptions::new().limit(5)).unwrap();
    there.handle(&other);
    other.drain().await.unwrap();
    let mut begun = there.begun();
    begun.sort_unstable();
    assert_eq!(begun, ["bulk", "plain"]);
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused() {
    let harness = fresh::<Db>().await;
    for (name, options, says) in [
        ("mail", QueueOptions::new().limit(0), "limit is 0"),
        ("mail", QueueOptions::new().concurrency(0), "concurrency is 0"),
        ("mail", QueueOptions::new().limit_per_key(0), "limit_per_key is 0"),
        ("mail", QueueOptions::new().rate(0, "1m"), "rate is 0"),
        (
            "mail",
            QueueOptions::new().rate(1, Duration::ZERO),
            "rate counts within 0ns",
        ),
        ("Mail", QueueOptions::new(), "a queue cannot be called \"Mail\""),
    ] {
        let refused = harness.sf.queue(name, options).unwrap_err();
        assert_eq!(refused.code(), Code::ConfigurationInvalid);
        assert!(refused.to_string().contains(says), "{refused}");
    }
    let enqueuing = harness.sf.transact(async |tx| {
        let refused = tx.enqueue(&mail("a")).queue("no such/queue").await.unwrap_err();
        assert!(refused.to_string().contains("has ' ' in it"), "{refused}");
        let refused = tx
            .enqueue(&Plain { tag: "a".into() })
            .limit_key("ann")
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("stands in no queue"), "{refused}");
        let refused = tx.enqueue(&mail("a")).limit_key("").await.unwrap_err();
        assert!(refused.to_string().contains("limit key of 0 bytes"), "{refused}");
        Ok(())
    });
    enqueuing.await.unwrap();
}

#[tokio::test]
async fn a_lease_from_before_the_limit_is_taken_over_when_it_has_expired() {
    let harness = fresh::<Db>().await;
    let (dead, alive) = (Doors::closed(), Doors::open());
    let clock = Clock::default();
    let zombie = process(&harness, &clock, Dispatcher::default()).await;
    dead.handle(&zombie);
    zombie.declare().await.unwrap();
    let enqueuing = zombie.transact(async |tx| Ok(tx.enqueue(&mail("a")).await?));
    enqueuing.await.unwrap();
    let working = run(&zombie);
    eventually("it has begun", async || dead.begun().len() == 1).await;
    working.abort();
    let _ = working.await;
    let survivor = process(&harness, &clock, Dispatcher::default()).await;
    survivor.queue("mail", QueueOptions::new().limit(1)).unwrap();
    alive.handle(&survivor);
    assert_eq!(survivor.drain().await.unwrap(), 0);
    pass(&clock, Duration::from_secs(31));
    assert_eq!(survivor.drain().await.unwrap(), 1, "nobody had a slot for it");
    assert_eq!(rows(&harness, "queue").await, 0);
}

#[tokio::test]
async fn a_job_that_was_put_into_its_own_queue_before_it_was_its_own_is_run() {
    let harness = fresh::<Db>().await;
    let doors = Doors::open();
    let sf = node(&harness, &doors, QueueOptions::new()).await;
    let enqueuing = sf.transact(async |tx| Ok(tx.enqueue(&mail("a")).await?));
    enqueuing.await.unwrap();
    for table in ["queue", "messages"] {
        let put = format!("UPDATE {} SET kind = 'job:test.mail@1/mail'", Db::table(table));
        harness.run(&put).await;
    }
    assert_eq!(sf.drain().await.unwrap(), 1);
}
