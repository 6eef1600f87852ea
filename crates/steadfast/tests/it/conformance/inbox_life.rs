//! The inbox over time: a database that is away, processes that are killed, records that are purged, and people who look.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use steadfast::testing::{Observer, TestQueue, WorkId, WorkPoint};
use steadfast::{
    BulkVerb, Clock, Code, DeliveryState, Dispatcher, Failure, FailureClass, Feed, Incoming, MessageId, Purged, Source,
    Steadfast, Tx,
};

use super::Db;
use super::inbox::{all_are_acked, consume, message};
use super::outbox_stats::get;
use super::queue::{Tagged, at_once, keep, process, rows, run, stop};
use crate::harness::{PoolSize, TestDatabase, eventually, fresh};

/// Counts transactions that are begun.
#[derive(Clone, Default)]
struct Begins(Arc<AtomicU32>);

impl Observer for Begins {
    fn asked(&self, statement: &'static str) {
        self.0
            .fetch_add(u32::from(statement == "begin and claim"), Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_database_that_is_away_costs_no_message_and_no_acknowledgement() {
    let (harness, queue, begins) = (fresh::<Db>().await, TestQueue::default(), Begins::default());
    let size = PoolSize {
        connections: 3,
        patience: Duration::from_millis(300),
    };
    let builder = Steadfast::builder(Db::another_pool(&harness, size)).observer(begins.clone());
    let sf = builder.build().await.unwrap();
    consume(&sf, &queue);
    let running = run(&sf);
    queue.send(message("before"));
    all_are_acked(&queue, 1).await;

    let name = if Db::IS_SQLITE {
        "'a file'"
    } else {
        "current_database()::text"
    };
    let name = Db::text(&harness.admin, &format!("SELECT {name}")).await;
    let mut lock = harness.admin.acquire().await.unwrap();
    set_away(&name, &mut lock, true).await;
    let before = begins.0.load(Ordering::SeqCst);
    for id in ["a", "b", "c"] {
        queue.send(message(id));
    }
    let tried = || async { begins.0.load(Ordering::SeqCst) >= before + 2 && queue.out() > 0 };
    eventually("it is tried more than once", tried).await;
    assert_eq!(
        (queue.acked(), queue.out() + queue.waiting()),
        (1, 3),
        "nothing is acknowledged, nothing is lost"
    );
    let tries = begins.0.load(Ordering::SeqCst) - before;
    assert!(tries < 20, "{tries} transactions in a few seconds");
    set_away(&name, &mut lock, false).await;
    drop(lock);

    all_are_acked(&queue, 4).await;
    eventually("all have acted", || async { harness.effects().await == 4 }).await;
    assert_eq!((rows(&harness, "inbox").await, queue.opened()), (4, 1));
    stop(&sf, running).await;
}

#[tokio::test]
async fn a_source_that_receives_nothing_is_told_to_people_and_leaves_the_process_ready() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    consume(&harness.sf, &queue);
    queue.set_away(true);
    let running = run(&harness.sf);
    let health = async || get(&harness.sf, "/readyz?verbose").await;
    let is_told = || async {
        health()
            .await
            .1
            .contains("[!] source test.queue receives nothing: away\n")
    };
    eventually("it is told", is_told).await;
    assert_eq!(health().await.0, StatusCode::OK);
    queue.set_away(false);
    eventually("it is over", || async { !is_told().await }).await;
    stop(&harness.sf, running).await;
}

#[tokio::test]
async fn a_process_that_waits_for_its_database_stops_at_once() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    let size = PoolSize {
        connections: 3,
        patience: Duration::from_secs(60),
    };
    let sf = Steadfast::new(Db::another_pool(&harness, size)).await.unwrap();
    let (pool, held) = (sf.pool().clone(), Arc::new(Mutex::new(Vec::new())));
    let all = held.clone();
    sf.reaction::<Tagged>("test.keep")
        .run_boxed(move |_: &mut Tx<Db>, _: Tagged| {
            let (pool, all) = (pool.clone(), all.clone());
            Box::pin(async move {
                // Somebody takes every connection, and on PostgreSQL that of this transaction when it has ended.
                for number in 0..size.connections {
                    let (pool, all) = (pool.clone(), all.clone());
                    let taking = tokio::spawn(async move {
                        let taken = pool.acquire().await.unwrap();
                        all.lock().unwrap().push(taken);
                    });
                    if Db::IS_SQLITE || number + 1 < size.connections {
                        taking.await.unwrap();
                    }
                }
                tokio::task::yield_now().await;
                Err(sqlx::Error::PoolTimedOut.into())
            })
        });
    sf.source("test.queue").events("test.*").consume_from(queue.clone());
    let running = run(&sf);
    queue.send(message("a"));
    let all_held = || async { held.lock().unwrap().len() == size.connections as usize };
    eventually("nobody else has a connection", all_held).await;
    // It looks whether the database answers after a tenth of a second.
    tokio::time::sleep(Duration::from_millis(500)).await;
    sf.stop();
    let stopping = tokio::time::timeout(Duration::from_secs(10), running).await;
    stopping.expect("it does not wait for an answer").unwrap().unwrap();
    assert_eq!((queue.acked(), queue.waiting()), (0, 1));
}

/// Takes the database away from everybody who works in it: SQLite by its lock, PostgreSQL by refusing connections.
async fn set_away(name: &str, lock: &mut sqlx::pool::PoolConnection<Db>, is_away: bool) {
    if Db::IS_SQLITE {
        let statement = if is_away { "BEGIN IMMEDIATE" } else { "COMMIT" };
        sqlx::raw_sql(statement).execute(&mut **lock).await.unwrap();
        return;
    }
    let server = std::env::var("TEST_DATABASE_URL").unwrap();
    let mut server = sqlx::PgConnection::connect(&server).await.unwrap();
    let allow = format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {}", !is_away);
    server.execute(AssertSqlSafe(allow)).await.unwrap();
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND usename = 'steadfast_app'"
    );
    if is_away {
        server.execute(AssertSqlSafe(end)).await.unwrap();
    }
}

/// A reaction that refuses what is called bad, as long as it is told to.
fn refuse(sf: &Steadfast<Db>) -> Arc<AtomicU32> {
    let refuses = Arc::new(AtomicU32::new(1));
    let told = refuses.clone();
    sf.reaction::<Tagged>("test.keep")
        .run_boxed(move |tx: &mut Tx<Db>, event: Tagged| {
            let is_refused = event.tag.starts_with("bad") && told.load(Ordering::SeqCst) == 1;
            Box::pin(async move {
                match is_refused {
                    true => Err(Failure::definitive(FailureClass::BusinessRule, "bad", "it is no good")),
                    false => keep(tx, event).await,
                }
            })
        });
    refuses
}

async fn dead(sf: &Steadfast<Db>) -> Vec<MessageId> {
    let page = sf.deliveries().state(DeliveryState::Dead).page().await.unwrap();
    page.deliveries.into_iter().map(|delivery| delivery.id).collect()
}

#[tokio::test]
async fn records_are_purged_when_their_time_is_over_but_not_those_of_dead_letters() {
    let (harness, queue, clock) = (fresh::<Db>().await, TestQueue::default(), Clock::default());
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    refuse(&sf);
    sf.source("test.queue").events("*").consume_from(queue.clone());
    let running = run(&sf);
    for id in ["good", "bad", "good too"] {
        queue.send(message(id));
    }
    all_are_acked(&queue, 3).await;
    stop(&sf, running).await;
    clock.set_offset(Duration::from_secs(6 * 24 * 60 * 60));
    assert!(matches!(sf.purge().await.unwrap(), Purged::Done(expired) if expired.records == 0));
    clock.set_offset(Duration::from_secs(8 * 24 * 60 * 60));
    assert_eq!(sf.count_expired(|_| ()).await.unwrap().records, 2);
    assert!(matches!(sf.purge().await.unwrap(), Purged::Done(expired) if expired.records == 2));
    let left = sf.inbox().page().await.unwrap().records;
    assert_eq!(left.len(), 1);
    assert_eq!((&*left[0].message_id, left[0].kept), ("bad", dead(&sf).await.pop()));
}

#[tokio::test]
async fn a_dead_letter_that_the_inbox_may_have_forgotten_is_requeued_by_force_only() {
    let (harness, queue, clock) = (fresh::<Db>().await, TestQueue::default(), Clock::default());
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    let refuses = refuse(&sf);
    sf.source("test.queue").events("*").consume_from(queue.clone());
    let running = run(&sf);
    queue.send(message("bad 1"));
    queue.send(message("bad 2"));
    all_are_acked(&queue, 2).await;
    stop(&sf, running).await;
    refuses.store(0, Ordering::SeqCst);
    let letters = dead(&sf).await;
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    refuse(&sf).store(0, Ordering::SeqCst);

    clock.set_offset(Duration::from_secs(6 * 24 * 60 * 60));
    sf.delivery(letters[0], "test.keep")
        .requeue("ann", "it is mended")
        .await
        .unwrap();
    sf.drain().await.unwrap();
    assert_eq!(harness.effects().await, 1);

    clock.set_offset(Duration::from_secs(8 * 24 * 60 * 60));
    let requeue = sf.delivery(letters[1], "test.keep").requeue("ann", "it is mended");
    let refused = requeue.await.unwrap_err();
    assert_eq!(refused.code(), Code::InputInvalid);
    assert!(refused.to_string().contains("--force"), "{refused}");
    let edited = sf
        .delivery(letters[1], "test.keep")
        .requeue_edited("ann", "it is mended", "{}");
    assert!(edited.await.unwrap_err().to_string().contains("--force"));
    let all = || sf.deliveries().state(DeliveryState::Dead);
    let counted = all().count_for(BulkVerb::Requeue).await.unwrap();
    assert_eq!(counted.number, 0, "what is left alone is not counted");
    let all = all();
    let operation = all.start(BulkVerb::Requeue, "ann", "all of them").await.unwrap();
    let work = sf
        .bulk_operation(operation.id)
        .resume(|_| std::ops::ControlFlow::Continue(()));
    assert_eq!(work.await.unwrap().done, 0);
    assert_eq!(dead(&sf).await.len(), 1);

    let forced = sf.delivery(letters[1], "test.keep").forced();
    forced.requeue("ann", "nobody has handled it").await.unwrap();
    sf.drain().await.unwrap();
    assert_eq!(harness.effects().await, 2);
    let forced = format!(
        "SELECT count(*) FROM {} WHERE action = 'delivery.requeue.forced'",
        Db::table("audit")
    );
    assert_eq!(
        Db::count(&harness.admin, &forced).await,
        1,
        "the audit says that it was forced"
    );
}

#[tokio::test]
async fn the_inbox_can_be_looked_at() {
    let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
    consume(&harness.sf, &queue);
    let running = run(&harness.sf);
    for number in 0..5 {
        queue.send(message(&format!("m{number}")));
    }
    queue.send(message("later").redelivered(true));
    all_are_acked(&queue, 6).await;
    let first = harness.sf.inbox().limit(4).page().await.unwrap();
    assert!(first.has_more && first.records.len() == 4);
    let second = harness
        .sf
        .inbox()
        .limit(4)
        .after(&first.records[3])
        .page()
        .await
        .unwrap();
    assert!(!second.has_more && second.records.len() == 2);
    let all: Vec<_> = first
        .records
        .iter()
        .chain(&second.records)
        .map(|record| &*record.message_id)
        .collect();
    assert_eq!(all, ["later", "m0", "m1", "m2", "m3", "m4"]);
    let one = harness
        .sf
        .inbox()
        .consumer("test.keep")
        .source("/shop")
        .message_id("m3")
        .page()
        .await
        .unwrap();
    assert_eq!((one.records.len(), one.records[0].kept), (1, None));
    assert!(first.records[0].kept.is_some(), "what is kept says where it is");
    assert!(
        harness
            .sf
            .inbox()
            .consumer("other")
            .page()
            .await
            .unwrap()
            .records
            .is_empty()
    );
    let stats = harness.sf.inbox_stats().await.unwrap();
    assert_eq!((stats.records.number, stats.consumers.len()), (6, 1));
    assert_eq!(
        (&*stats.consumers[0].consumer, stats.consumers[0].records),
        ("test.keep", 6)
    );
    stop(&harness.sf, running).await;
}

/// Panics once at a point, as if the lane had died there.
struct Dies(WorkPoint, AtomicU32);

impl Observer for Dies {
    fn worked(&self, point: WorkPoint, _: &WorkId<'_>) {
        let is_time = point == self.0
            && self
                .1
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok();
        assert!(!is_time, "it dies here");
    }
}

#[tokio::test]
async fn a_lane_that_dies_at_any_point_loses_nothing_and_does_nothing_twice() {
    let points = [
        WorkPoint::AfterReceive,
        WorkPoint::BeforeHandler,
        WorkPoint::AfterHandler,
        WorkPoint::AfterCommitBeforeAck,
    ];
    for point in points {
        let (harness, queue) = (fresh::<Db>().await, TestQueue::default());
        let builder = Steadfast::builder(Db::another_pool(&harness, PoolSize::default()));
        let sf = builder.observer(Dies(point, AtomicU32::new(1))).build().await.unwrap();
        consume(&sf, &queue);
        for id in ["a", "b", "c"] {
            queue.send(message(id));
        }
        let running = run(&sf);
        all_are_acked(&queue, 3).await;
        eventually("all have acted", || async { harness.effects().await == 3 }).await;
        assert_eq!(rows(&harness, "inbox").await, 3, "{point:?}");
        stop(&sf, running).await;
    }
}

/// A queue of files, which outlives processes: `1.message`, and beside it `1.out` once it was handed out and `1.acked`.
#[derive(Clone)]
struct Files(PathBuf);

impl Files {
    fn has(&self, number: u64, what: &str) -> bool {
        self.0.join(format!("{number}.{what}")).exists()
    }

    fn mark(&self, number: u64, what: &str) {
        std::fs::write(self.0.join(format!("{number}.{what}")), "").unwrap();
    }

    fn numbers(&self) -> Vec<u64> {
        (1..10).filter(|number| self.has(*number, "message")).collect()
    }

    fn acked(&self) -> usize {
        self.numbers()
            .into_iter()
            .filter(|number| self.has(*number, "acked"))
            .count()
    }
}

impl Source for Files {
    type Feed = FilesFeed;

    async fn open(&self, _: usize) -> Result<FilesFeed, Failure> {
        Ok(FilesFeed(self.clone(), false))
    }
}

struct FilesFeed(Files, bool);

impl Feed for FilesFeed {
    async fn receive(&mut self, _: usize) -> Result<Vec<Incoming>, Failure> {
        if std::mem::replace(&mut self.1, true) {
            return std::future::pending().await;
        }
        let files = &self.0;
        let left = files
            .numbers()
            .into_iter()
            .filter(|number| !files.has(*number, "acked"));
        let hand_out = |number: u64| {
            let tag = std::fs::read_to_string(files.0.join(format!("{number}.message"))).unwrap();
            let was_out = files.has(number, "out");
            files.mark(number, "out");
            message(&tag).redelivered(was_out).with_receipt(number)
        };
        Ok(left.map(hand_out).collect())
    }

    async fn ack(&mut self, receipts: &[u64]) -> Result<(), Failure> {
        receipts.iter().for_each(|number| self.0.mark(*number, "acked"));
        Ok(())
    }
}

const DATABASE: &str = "STEADFAST_TEST_ABORT_DATABASE";
const FILES: &str = "STEADFAST_TEST_ABORT_FILES";

/// A process of the test below, which runs it. A message called poison takes it down.
#[tokio::test]
#[ignore = "it is a process of another test"]
async fn process_that_aborts() {
    let (Ok(url), Ok(files)) = (std::env::var(DATABASE), std::env::var(FILES)) else {
        return;
    };
    let files = Files(files.into());
    let builder = Steadfast::<Db>::connect(&url).await.unwrap();
    let dispatcher = Dispatcher::default().lease(Duration::from_secs(1));
    let sf = builder.dispatcher(dispatcher).build().await.unwrap();
    sf.reaction::<Tagged>("test.keep")
        .retry(at_once(2))
        .run(async |tx: &mut Tx<Db>, event: Tagged| {
            if event.tag == "poison" {
                std::process::abort();
            }
            keep(tx, event).await
        });
    sf.source("test.files").events("*").consume_from(files.clone());
    let running = run(&sf);
    let is_done = || async { files.acked() == 3 && sf.outbox_stats().await.unwrap().backlog().number == 0 };
    eventually("nothing is left to do", is_done).await;
    stop(&sf, running).await;
}

/// Runs a process, and says whether it came to its end.
fn run_process(url: &str, files: &Path) -> bool {
    let name = if Db::IS_SQLITE { "sqlite" } else { "postgres" };
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &format!("{name}::inbox_life::process_that_aborts"),
            "--ignored",
        ])
        .env(DATABASE, url)
        .env(FILES, files)
        .output()
        .unwrap();
    child.status.success()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_aborts_its_process_is_dead_after_its_attempts_and_others_get_through() {
    let harness = fresh::<Db>().await;
    let directory = tempfile::tempdir().unwrap();
    for (number, tag) in ["one", "poison", "two"].iter().enumerate() {
        std::fs::write(directory.path().join(format!("{}.message", number + 1)), tag).unwrap();
    }
    let pool = Db::another_pool(&harness, PoolSize::default());
    let url = pool.connect_options().to_url_lossy().to_string();
    let files = directory.path().to_owned();
    let mut crashes = 0;
    loop {
        let (url, files) = (url.clone(), files.clone());
        let has_ended = tokio::task::spawn_blocking(move || run_process(&url, &files))
            .await
            .unwrap();
        if has_ended {
            break;
        }
        crashes += 1;
        assert!(crashes < 10, "it is never given up");
    }
    // Once with the others, then three attempts of its own.
    assert_eq!(crashes, 4);
    assert_eq!((Files(files).acked(), harness.effects().await), (3, 2));
    let stats = harness.sf.outbox_stats().await.unwrap();
    assert_eq!(stats.dead().number, 1);
    let letter = harness
        .sf
        .message(dead(&harness.sf).await[0])
        .look()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(letter.incoming.unwrap().message_id(), Some("poison"));
    assert_eq!((letter.deliveries[0].attempts, letter.failures.len()), (3, 3));
}
