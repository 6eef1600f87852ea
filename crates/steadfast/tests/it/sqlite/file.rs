//! What only a database in a file can do to us.

use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use steadfast::{Clock, Code, Dispatcher, Error, EventCx, Failure, Reply, Steadfast};
use tokio::sync::Semaphore;

use super::Db;
use super::queue::{Tagged, process, rows, tagged};
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

async fn run(harness: &Harness<Db>, sf: &Steadfast<Db>, key: &str) -> Result<Reply<u32>, Error> {
    sf.command("effects.make", key)
        .owner(&harness.owner)
        .run(async |tx| {
            let _: i64 = sqlx::query_scalar("SELECT count(*) FROM effects")
                .fetch_one(tx.db())
                .await?;
            sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
                .bind(key)
                .execute(tx.db())
                .await?;
            Ok(1)
        })
        .await
}

#[tokio::test]
async fn reading_before_writing_never_meets_a_stale_snapshot() {
    let harness = fresh::<Db>().await;
    // The trap: a deferred transaction that has read cannot write once somebody else has, whatever its patience.
    let mut deferred = harness.admin.begin().await.unwrap();
    let count = "SELECT count(*) FROM effects";
    let _: i64 = sqlx::query_scalar(count).fetch_one(&mut *deferred).await.unwrap();
    run(&harness, &harness.sf, "k0").await.unwrap();
    let insert = sqlx::query("INSERT INTO effects (tag) VALUES ('x')")
        .execute(&mut *deferred)
        .await;
    assert!(insert.unwrap_err().to_string().contains("locked"));
    drop(deferred);
    // Ours begins by writing, so two processes that read and write take turns.
    let other = harness.another().await;
    for i in 1..10 {
        let (left, right) = (format!("l{i}"), format!("r{i}"));
        let (left, right) = tokio::join!(run(&harness, &harness.sf, &left), run(&harness, &other, &right));
        left.unwrap();
        right.unwrap();
    }
    assert_eq!(harness.effects().await, 19);
}

#[tokio::test]
async fn a_file_locked_by_another_process_gives_503_in_time_and_recovers() {
    let size = PoolSize {
        connections: 4,
        patience: Duration::from_millis(300),
    };
    let harness = Db::create(size).await;
    run(&harness, &harness.sf, "warm").await.unwrap();
    let other = harness.admin.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let error = run(&harness, &harness.sf, "k").await.unwrap_err();
    assert_eq!(error.code(), Code::Locked, "{error:?}");
    assert!(error.retry_after().is_some());
    assert!(
        !error.to_string().contains("database is locked"),
        "the database's words stay on the server"
    );
    assert!(
        run(&harness, &harness.sf, "warm").await.unwrap().replayed,
        "a completed key needs no writer"
    );
    other.rollback().await.unwrap();
    run(&harness, &harness.sf, "k").await.unwrap();
    assert_eq!(harness.effects().await, 2);
}

#[tokio::test]
async fn a_full_disk_gives_503_loses_nothing_and_recovers_without_restart() {
    let harness = fresh::<Db>().await;
    run(&harness, &harness.sf, "before").await.unwrap();
    set_page_limit(&harness, 30).await;
    let command = harness.sf.command("effects.make", "k1").owner(&harness.owner);
    let error = command
        .run(async |tx| {
            sqlx::query("INSERT INTO effects (tag) VALUES ('small')")
                .execute(tx.db())
                .await?;
            let insert = sqlx::query("INSERT INTO effects (tag) VALUES ($1)").bind("x".repeat(1_000_000));
            insert.execute(tx.db()).await?;
            Ok(1)
        })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::Full, "{error:?}");
    assert!(error.retry_after().is_some());
    assert_eq!((harness.effects().await, harness.keys().await), (1, 1));

    // The connection that lost its transaction was closed, and its limit with it.
    set_page_limit(&harness, 30).await;
    let answer = harness.sf.command("effects.make", "k3").owner(&harness.owner);
    let error = answer.run(async |_| Ok("x".repeat(500_000))).await.unwrap_err();
    assert_eq!(error.code(), Code::Full, "the outcome itself does not fit: {error:?}");

    set_page_limit(&harness, 1_000_000).await;
    run(&harness, &harness.sf, "k1").await.unwrap();
    assert!(run(&harness, &harness.sf, "before").await.unwrap().replayed);
    assert_eq!((harness.effects().await, harness.keys().await), (2, 2));
}

/// SQLite's own way to say "the disk is full" at a size we choose; it belongs to the writer's connection.
async fn set_page_limit(harness: &Harness<Db>, pages: u32) {
    harness
        .sf
        .transact(async |tx| {
            let set = format!("PRAGMA max_page_count = {pages}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(tx.db()).await?;
            Ok(())
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_read_only_file_gives_503_and_replays_still_work() {
    let harness = fresh::<Db>().await;
    run(&harness, &harness.sf, "k").await.unwrap();
    let options: SqliteConnectOptions = (*harness.admin.connect_options()).clone();
    let pool = SqlitePoolOptions::new().connect_lazy_with(options.read_only(true).create_if_missing(false));
    let read_only = Steadfast::<Db>::new(pool).await.unwrap();
    let error = run(&harness, &read_only, "k2").await.unwrap_err();
    assert_eq!(error.code(), Code::ReadOnly, "{error:?}");
    assert!(error.retry_after().is_some());
    assert!(run(&harness, &read_only, "k").await.unwrap().replayed);
    run(&harness, &harness.sf, "k2").await.unwrap();
}

#[tokio::test]
async fn a_replay_does_not_wait_for_the_writer() {
    let harness = fresh::<Db>().await;
    run(&harness, &harness.sf, "done").await.unwrap();
    let command = harness.sf.command("effects.make", "long").owner(&harness.owner);
    command
        .run_once(async |_| {
            let reply = run(&harness, &harness.sf, "done")
                .await
                .map_err(|_| Failure::transient("x", "x"))?;
            assert!(reply.replayed);
            Ok(())
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn in_memory_is_a_private_file_that_disappears() {
    let sf = Steadfast::<Db>::open("sqlite::memory:").await.unwrap();
    let file = sf.pool().connect_options().get_filename().to_owned();
    assert!(file.exists());
    sf.transact(async |tx| {
        sqlx::raw_sql("CREATE TABLE t (x)").execute(tx.db()).await?;
        Ok(())
    })
    .await
    .unwrap();
    sf.pool().close().await;
    drop(sf);
    crate::harness::eventually("the file is gone", async || !file.exists()).await;

    let shared = SqlitePoolOptions::new().connect_lazy("sqlite::memory:").unwrap();
    let error = Steadfast::<Db>::new(shared).await.unwrap_err();
    assert_eq!(error.code(), Code::ConfigurationInvalid);
    assert!(error.to_string().contains("Steadfast::connect"));
}

#[tokio::test]
async fn the_writer_is_durable_and_checks_foreign_keys() {
    let harness = fresh::<Db>().await;
    let settings = harness
        .sf
        .transact(async |tx| {
            let mut settings = Vec::new();
            for pragma in ["PRAGMA synchronous", "PRAGMA foreign_keys", "PRAGMA busy_timeout"] {
                settings.push(
                    sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(pragma))
                        .fetch_one(tx.db())
                        .await?,
                );
            }
            Ok(settings)
        })
        .await
        .unwrap();
    assert_eq!(settings, [2, 1, 0], "FULL, on, and waiting for a lock is ours");
}

#[tokio::test]
async fn a_process_that_stops_while_the_file_is_locked_gives_its_rows_back_when_it_is_free() {
    let harness = fresh::<Db>().await;
    let worker = process(&harness, &Clock::default(), Dispatcher::default()).await;
    let gate = Arc::new(Semaphore::new(0));
    let closed = gate.clone();
    let react = move |_: &EventCx, event: Tagged| {
        let gate = closed.clone();
        async move {
            if event.tag == "slow" {
                gate.acquire().await?.forget();
            }
            Ok(())
        }
    };
    worker
        .reaction::<Tagged>("test.react")
        .lease("12s")
        .concurrency(1)
        .run_outside(react);
    worker.declare().await.unwrap();
    let publish = async |tag: &str, count: u32| {
        let publishing = worker.transact(async |tx| {
            for _ in 0..count {
                tx.publish(&tagged(tag))?;
            }
            Ok(())
        });
        publishing.await.unwrap();
    };
    publish("quick", 50).await;
    let dispatching = super::queue::run(&worker);
    eventually("the work is known to be quick", async || {
        rows(&harness, "history").await == 50
    })
    .await;
    publish("slow", 10).await;
    let leased = "SELECT count(*) FROM steadfast_queue WHERE state = 'leased'";
    eventually("all are claimed ahead", async || {
        Db::count(&harness.admin, leased).await == 10
    })
    .await;

    let locked = harness.admin.begin_with("BEGIN IMMEDIATE").await.unwrap();
    worker.stop();
    gate.add_permits(1);
    // Longer than a statement of the engine may take.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    drop(locked);
    dispatching.await.unwrap().unwrap();
    let free = "SELECT count(*) FROM steadfast_queue WHERE state = 'pending' AND attempts = 0";
    assert_eq!(
        (Db::count(&harness.admin, free).await, rows(&harness, "history").await),
        (9, 51)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn those_who_open_a_new_file_at_once_wait_for_each_other() {
    // SQLite refuses at once, and not each time, whoever switches a new file to WAL beside another: so there are many of them.
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", directory.path().join("new.db").display());
        let open = |_| {
            let url = url.clone();
            tokio::spawn(async move { Steadfast::<Db>::connect(&url).await?.migrate().await })
        };
        for opened in futures_util::future::join_all((0..8).map(open)).await {
            opened.unwrap().unwrap();
        }
    }
}
