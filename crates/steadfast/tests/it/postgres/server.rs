//! What only a database behind a socket can do to us.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use steadfast::testing::Point;
use steadfast::{Code, Error, EventCx, Failure, FailureClass, Reply, Steadfast};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::Db;
use super::proxy::proxy_before;
use super::purge::purged;
use super::queue::Tagged;
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

async fn run(harness: &Harness<Db>, sf: &Steadfast<Db>, key: &str) -> Result<Reply<u32>, Error> {
    sf.command("effects.make", key)
        .owner(&harness.owner)
        .run(async |tx| {
            sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
                .bind(key)
                .execute(tx.db())
                .await?;
            Ok(1)
        })
        .await
}

const ONE: PoolSize = PoolSize {
    connections: 1,
    patience: Duration::from_secs(5),
};

/// Polls a future as often as said, then drops it, as a hung-up client does to an axum handler. True: it had ended.
async fn give_up_after<F: Future>(polls: u32, future: F) -> bool {
    let mut future = Box::pin(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Pending if left > 0 => Poll::Pending,
            polled => Poll::Ready(polled.is_ready()),
        }
    })
    .await
}

/// A savepoint is only possible inside a transaction.
async fn is_in_transaction(pool: &sqlx::PgPool) -> bool {
    sqlx::raw_sql("SAVEPOINT probe").execute(pool).await.is_ok()
}

#[tokio::test]
async fn sqlx_begin_dropped_halfway_poisons_its_pool_and_cannot_reach_us() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .test_before_acquire(false)
        .connect_lazy_with(here);
    let sf = Steadfast::new(pool.clone()).await.unwrap();

    // The bug, with sqlx alone: a client hangs up while BEGIN is on its way; the next borrower's write is "Ok", and
    // nobody else ever sees it.
    eventually("the connection is back in the pool", async || pool.num_idle() == 1).await;
    proxy.reset_counts();
    proxy.hold_replies();
    let begin = tokio::spawn(async move { pool.begin().await.map(drop) });
    proxy.until(|counts| counts.begins == 1).await;
    begin.abort();
    assert!(begin.await.unwrap_err().is_cancelled());
    proxy.let_replies_through();
    let pool = sf.pool();
    assert!(
        is_in_transaction(pool).await,
        "sqlx issue 4393 is fixed: this test and its workaround can go"
    );
    sqlx::query("INSERT INTO effects (tag) VALUES ('lost')")
        .execute(pool)
        .await
        .unwrap();
    assert_eq!(
        harness.effects().await,
        0,
        "the stranger's write is in a transaction nobody will commit"
    );

    // Ours refuses the connection, takes a new one, and commits exactly its own rows.
    run(&harness, &sf, "k").await.unwrap();
    assert_eq!(harness.effects().await, 1);
    harness.assert_effects_match_keys().await;
    assert!(!is_in_transaction(pool).await);
}

#[tokio::test]
async fn dropping_our_calls_at_any_await_leaves_the_pool_clean() {
    let harness = fresh::<Db>().await;
    let pool = Db::another_pool(&harness, ONE);
    let sf = Steadfast::new(pool.clone()).await.unwrap();
    for polls in 1..60 {
        let key = format!("k{polls}");
        let ended = give_up_after(polls, run(&harness, &sf, &key)).await;
        assert!(!is_in_transaction(&pool).await, "after {polls} polls");
        if ended {
            break;
        }
    }
    eventually("commands that were under way have ended", async || {
        run(&harness, &sf, "last").await.is_ok()
    })
    .await;
    harness.assert_effects_match_keys().await;
}

#[tokio::test]
async fn a_connection_lost_before_commit_aborts_and_the_command_runs_again() {
    let harness = fresh::<Db>().await;
    let runs = AtomicU32::new(0);
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    let reply = command
        .run(async |tx| {
            sqlx::query("INSERT INTO effects (tag) VALUES ('k')")
                .execute(tx.db())
                .await?;
            if runs.fetch_add(1, Ordering::Relaxed) == 0 {
                let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(tx.db()).await?;
                sqlx::query("SELECT pg_terminate_backend($1)")
                    .bind(pid)
                    .execute(&harness.admin)
                    .await?;
            }
            // The cut is found out here by the settle, on the second run nothing happens.
            Ok(runs.load(Ordering::Relaxed))
        })
        .await
        .unwrap();
    assert_eq!((reply.value, reply.replayed), (2, false));
    assert_eq!(harness.effects().await, 1);
    harness.assert_effects_match_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_without_a_reply_is_looked_into_before_anybody_is_told() {
    let harness = fresh::<Db>().await;
    let (admin, cuts) = (harness.admin.clone(), AtomicU32::new(0));
    let cut_once = move |point: Point, _: &steadfast::Key| {
        if point == Point::BeforeCommit && cuts.fetch_add(1, Ordering::Relaxed) == 0 {
            let cut = sqlx::raw_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE usename = 'steadfast_app' AND datname = current_database() AND state = 'idle in transaction'",
            );
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(cut.execute(&admin))).unwrap();
        }
    };
    let pool = Db::another_pool(&harness, PoolSize::default());
    let sf = Steadfast::builder(pool).observer(cut_once).build().await.unwrap();
    let runs = AtomicU32::new(0);
    let command = sf.command("effects.make", "k").owner(&harness.owner);
    let reply = command
        .run(async |tx| {
            sqlx::query("INSERT INTO effects (tag) VALUES ('k')")
                .execute(tx.db())
                .await?;
            Ok(runs.fetch_add(1, Ordering::Relaxed))
        })
        .await
        .unwrap();
    assert_eq!(
        (reply.value, reply.replayed),
        (1, false),
        "the first commit did not happen, the second did"
    );
    assert_eq!(harness.effects().await, 1);
    harness.assert_effects_match_keys().await;
}

#[tokio::test]
async fn a_commit_whose_reply_is_lost_is_found_and_told_as_the_success_it_is() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let proxy = Arc::new(proxy);
    let pool = PgPoolOptions::new().connect_lazy_with(here);
    let held = proxy.clone();
    let hold_the_reply = move |point: Point, _: &steadfast::Key| {
        if point == Point::BeforeCommit {
            held.hold_replies();
        }
    };
    let sf = Steadfast::builder(pool).observer(hold_the_reply).build().await.unwrap();
    let command = sf.command("effects.make", "k").owner(&harness.owner);
    let call = command.run_once(async |tx| {
        sqlx::query("INSERT INTO effects (tag) VALUES ('k')")
            .execute(tx.db())
            .await?;
        Ok("first".to_owned())
    });
    let accident = async {
        eventually("the server has committed", async || harness.effects().await == 1).await;
        proxy.cut();
        proxy.let_replies_through();
    };
    let (reply, ()) = tokio::join!(call, accident);
    assert_eq!(reply.unwrap().value, "first", "not an error, and not a second run");
    assert_eq!(harness.effects().await, 1);
    harness.assert_effects_match_keys().await;
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_and_the_retry_decides() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let proxy = Arc::new(proxy);
    let pool = PgPoolOptions::new().connect_lazy_with(here);
    let held = proxy.clone();
    let say_nothing = move |point: Point, _: &steadfast::Key| {
        if point == Point::BeforeCommit {
            held.hold_replies();
        }
    };
    let sf = Steadfast::builder(pool).observer(say_nothing).build().await.unwrap();
    let error = run(&harness, &sf, "k").await.unwrap_err();
    assert_eq!(error.code(), Code::CommitUnknown, "{error:?}");
    assert!(error.retry_after().is_some());
    proxy.let_replies_through();
    assert!(run(&harness, &harness.sf, "k").await.unwrap().replayed);
    assert!(
        run(&harness, &sf, "k").await.unwrap().replayed,
        "and the process itself is not stuck"
    );
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn all_connections_gone_stale_at_once_are_replaced_without_an_error() {
    let harness = fresh::<Db>().await;
    let sf = harness.another().await;
    let held: Vec<_> = futures_util::future::join_all((0..8).map(|_| sf.pool().acquire())).await;
    drop(held);
    harness
        .run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'steadfast_app' AND datname = current_database()")
        .await;
    run(&harness, &sf, "k").await.unwrap();
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn a_read_only_node_gives_503_and_recovers_without_restart() {
    let harness = fresh::<Db>().await;
    let database: String = sqlx::query_scalar("SELECT current_database()")
        .fetch_one(&harness.admin)
        .await
        .unwrap();
    let set = async |on: &str| {
        harness.run(&format!("SET default_transaction_read_only = off; ALTER DATABASE {database} SET default_transaction_read_only = {on}")).await;
        harness
            .run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'steadfast_app' AND datname = current_database()")
            .await;
    };
    set("on").await;
    let settle_refused = harness
        .sf
        .command("effects.make", "k")
        .owner(&harness.owner)
        .run(async |_| Ok(1))
        .await;
    let error = settle_refused.unwrap_err();
    assert_eq!(error.code(), Code::ReadOnly, "{error:?}");
    assert!(error.retry_after().is_some());
    set("off").await;
    run(&harness, &harness.sf, "k").await.unwrap();
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn a_full_disk_on_the_server_is_a_transient_error() {
    let harness = fresh::<Db>().await;
    harness
        .run(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$;
             CREATE TRIGGER full_disk BEFORE INSERT ON steadfast.keys FOR EACH ROW EXECUTE FUNCTION full_disk()",
        )
        .await;
    let error = run(&harness, &harness.sf, "k").await.unwrap_err();
    assert_eq!(error.code(), Code::Full, "{error:?}");
    assert!(error.retry_after().is_some());
    harness.run("DROP TRIGGER full_disk ON steadfast.keys").await;
    run(&harness, &harness.sf, "k").await.unwrap();
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn an_unreachable_server_is_told_in_time_and_nothing_ran() {
    let harness = fresh::<Db>().await;
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let pool = Db::another_pool(&harness, ONE);
    let sf = Steadfast::new(pool.clone()).await.unwrap();
    let there = (*pool.connect_options()).clone();
    pool.set_connect_options(there.clone().port(port));
    harness.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'steadfast_app' AND datname = current_database()").await;
    let error = run(&harness, &sf, "k").await.unwrap_err();
    assert_eq!(error.code(), Code::Unreachable, "{error:?}");
    assert!(error.retry_after().is_some());
    pool.set_connect_options(there);
    run(&harness, &sf, "k").await.unwrap();
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn real_serialization_and_deadlock_errors_run_the_handler_again() {
    let harness = fresh::<Db>().await;
    for (key, state) in [("a", "40001"), ("b", "40P01")] {
        let runs = AtomicU32::new(0);
        let command = harness.sf.command("effects.make", key).owner(&harness.owner);
        let reply = command
            .run(async |tx| {
                sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
                    .bind(key)
                    .execute(tx.db())
                    .await?;
                if runs.fetch_add(1, Ordering::Relaxed) == 0 {
                    let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '{state}'; END $$");
                    sqlx::raw_sql(sqlx::AssertSqlSafe(raise)).execute(tx.db()).await?;
                }
                Ok(runs.load(Ordering::Relaxed))
            })
            .await
            .unwrap();
        assert_eq!(reply.value, 2, "{state}");
    }
    harness.assert_effects_match_keys().await;
}

/// Makes the record and the effect of the key `k` appear, as if a duplicate had passed between our snapshot and our lock.
async fn let_a_twin_pass(harness: &Harness<Db>, other: &Steadfast<Db>) -> Result<(), Failure> {
    run(harness, other, "twin").await?;
    harness
        .run("UPDATE steadfast.keys SET value = 'k', hash = substring(sha256('\\x0000000000000004'::bytea || 'user' || '\\x0000000000000008'::bytea || 'tenant-1' || '\\x0000000000000006'::bytea || 'user-a' || '\\x000000000000000c'::bytea || 'effects.make' || '\\x0000000000000001'::bytea || 'k') FROM 1 FOR 16); UPDATE effects SET tag = 'k' WHERE tag = 'twin'")
        .await;
    Ok(())
}

#[tokio::test]
async fn a_duplicate_the_lock_did_not_see_is_judged_by_the_unique_constraint() {
    let harness = fresh::<Db>().await;
    let other = harness.another().await;
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    let reply = command
        .run_once(async |tx| {
            sqlx::query("INSERT INTO effects (tag) VALUES ('k')")
                .execute(tx.db())
                .await?;
            let_a_twin_pass(&harness, &other).await?;
            Ok(99)
        })
        .await
        .unwrap();
    assert_eq!((reply.value, reply.replayed), (1, true), "the other one's answer");
    assert_eq!((harness.effects().await, harness.keys().await), (1, 1));
}

#[tokio::test]
async fn a_handler_that_fails_for_its_duplicates_success_is_answered_by_that_success() {
    let harness = fresh::<Db>().await;
    let other = harness.another().await;
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    let reply = command
        .run_once(async |_| {
            let_a_twin_pass(&harness, &other).await?;
            // What it finds is the effect that its own duplicate has made.
            Err::<u32, _>(Failure::definitive(
                FailureClass::Validation,
                "effect.exists",
                "there is such an effect already",
            ))
        })
        .await
        .unwrap();
    assert_eq!((reply.value, reply.replayed), (1, true), "the other one's answer");
    assert_eq!((harness.effects().await, harness.keys().await), (1, 1));
}

#[tokio::test]
async fn a_command_that_fails_does_not_wait_for_the_pool_again() {
    let harness = fresh::<Db>().await;
    let patience = Duration::from_secs(60);
    let pool = Db::another_pool(&harness, PoolSize { patience, ..ONE });
    let sf = Steadfast::new(pool.clone()).await.unwrap();
    // Somebody waits for the one connection while the handler has it, and does not give it back.
    let mut waiting = Box::pin(pool.acquire());
    let command = sf.command("effects.make", "k").owner(&harness.owner);
    let failing = command.run_once(async |_| {
        assert!(futures_util::poll!(&mut waiting).is_pending());
        Err::<u32, _>(Failure::definitive(FailureClass::Validation, "no", "no"))
    });
    let told = tokio::time::timeout(patience / 3, failing);
    let told = told.await.expect("told before the pool's patience ends");
    assert_eq!(told.unwrap_err().code(), Code::HandlerFailed);
}

#[tokio::test]
async fn a_command_that_fails_while_the_network_is_silent_is_told_so() {
    let harness = fresh::<Db>().await;
    let (proxy, options) = proxy_before(&harness).await;
    let pool = PgPoolOptions::new()
        .test_before_acquire(false)
        .connect_lazy_with(options);
    let sf = Steadfast::<Db>::new(pool.clone()).await.unwrap();
    let command = sf.command("effects.make", "k").owner(&harness.owner);
    let failing = command.run_once(async |_| {
        proxy.black_hole(true);
        Err::<u32, _>(Failure::definitive(FailureClass::Validation, "no", "no"))
    });
    let told = tokio::time::timeout(Duration::from_secs(20), failing).await;
    assert_eq!(told.expect("told in time").unwrap_err().code(), Code::HandlerFailed);
    proxy.black_hole(false);
}

#[tokio::test]
async fn a_duplicate_in_another_process_is_refused_without_running() {
    let harness = fresh::<Db>().await;
    let other = harness.another().await;
    let runs = AtomicU32::new(0);
    let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
    command
        .run_once(async |_| {
            let duplicate = other.command("effects.make", "k").owner(&harness.owner);
            let refused = duplicate.run_once(async |_| {
                runs.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            assert_eq!(refused.await.unwrap_err().code(), Code::InFlight);
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(runs.into_inner(), 0);
}

#[tokio::test]
async fn the_isolation_level_is_part_of_the_contract_whatever_the_role_prefers() {
    let harness = fresh::<Db>().await;
    let options = (*Db::another_pool(&harness, ONE).connect_options()).clone();
    let pool = sqlx::PgPool::connect_lazy_with(options.options([("default_transaction_isolation", "serializable")]));
    let sf = Steadfast::new(pool).await.unwrap();
    let level: String = sf
        .transact(async |tx| {
            Ok(sqlx::query_scalar("SHOW transaction_isolation")
                .fetch_one(tx.db())
                .await?)
        })
        .await
        .unwrap();
    assert_eq!(level, "read committed");
}

#[tokio::test]
async fn a_silent_clients_transaction_is_ended_by_the_server() {
    let harness = fresh::<Db>().await;
    let timeout: String = harness
        .sf
        .transact(async |tx| {
            Ok(sqlx::query_scalar("SHOW idle_in_transaction_session_timeout")
                .fetch_one(tx.db())
                .await?)
        })
        .await
        .unwrap();
    assert_eq!(timeout, "35s");
    let outside: String = sqlx::query_scalar("SHOW idle_in_transaction_session_timeout")
        .fetch_one(harness.sf.pool())
        .await
        .unwrap();
    assert_eq!(outside, "0", "only inside our transactions");
}

#[tokio::test]
async fn the_toolkit_runs_as_a_role_that_may_not_create_anything() {
    let harness = fresh::<Db>().await;
    run(&harness, &harness.sf, "k").await.unwrap();
    let user: String = sqlx::query_scalar("SELECT current_user::text")
        .fetch_one(harness.sf.pool())
        .await
        .unwrap();
    assert_eq!(user, "steadfast_app");
    for forbidden in [
        "CREATE TABLE steadfast.x (a int)",
        "TRUNCATE steadfast.audit",
        "DELETE FROM steadfast.audit",
        "DELETE FROM steadfast.migrations",
    ] {
        let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(forbidden))
            .execute(harness.sf.pool())
            .await;
        assert!(
            refused.unwrap_err().to_string().contains("permission denied"),
            "{forbidden}"
        );
    }
}

#[tokio::test]
async fn purge_walks_through_pages_and_passes_by_what_is_locked() {
    let harness = fresh::<Db>().await;
    let (sf, clock) = harness.another_with_clock().await;
    for key in ["locked", "free"] {
        run(&harness, &sf, key).await.unwrap();
    }
    clock.set_offset(Duration::from_secs(48 * 3600));
    let mut lock = harness.admin.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM steadfast.keys WHERE value = 'locked' FOR UPDATE")
        .execute(&mut *lock)
        .await
        .unwrap();
    assert_eq!(purged(&sf).await, Some(1), "it does not wait");
    lock.rollback().await.unwrap();
    assert_eq!(purged(&sf).await, Some(1));

    // A table of a few rows is read whole; a large one is not.
    let mut conn = harness.admin.acquire().await.unwrap();
    sqlx::raw_sql("SET enable_seqscan = off")
        .execute(&mut *conn)
        .await
        .unwrap();
    let plan: Vec<String> = sqlx::query_scalar(
        "EXPLAIN SELECT ctid FROM steadfast.keys
         WHERE ctid >= '(0,0)'::text::tid AND ctid < '(256,0)'::text::tid
           AND expires_at <= (SELECT clock_timestamp() + 0 * interval '1 microsecond')
         FOR UPDATE SKIP LOCKED",
    )
    .fetch_all(&mut *conn)
    .await
    .unwrap();
    assert!(plan.join("\n").contains("Tid Range Scan"), "{plan:#?}");
}

#[tokio::test]
async fn a_role_that_may_not_read_the_audit_is_told_so() {
    let harness = fresh::<Db>().await;
    let error = harness.sf.audit_entries().page().await.unwrap_err();
    assert_eq!(error.code(), Code::NotPermitted, "{error:?}");
    assert!(error.help().contains("grants.sql"), "{error:?}");
}

#[tokio::test]
async fn a_right_that_a_service_lacks_is_found_by_the_examination() {
    let harness = fresh::<Db>().await;
    let examine = async || {
        let pool = Db::another_pool(&harness, PoolSize::default());
        let checks = Steadfast::builder(pool).examine().await;
        checks.into_iter().find(|check| check.name == "rights").unwrap()
    };
    assert_eq!(examine().await.verdict, steadfast::Verdict::Ok);
    harness.run("REVOKE DELETE ON steadfast.keys FROM steadfast_app").await;
    let rights = examine().await;
    assert_eq!(rights.verdict, steadfast::Verdict::Warn);
    assert!(rights.found.contains("DELETE keys"), "{rights:?}");
}

#[tokio::test]
async fn a_service_that_starts_while_the_database_is_away_waits_for_it() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let server = format!(
        "{}:{}",
        harness.admin.connect_options().get_host(),
        harness.admin.connect_options().get_port()
    );
    let sf = Steadfast::new(PgPoolOptions::new().connect_lazy_with(here))
        .await
        .unwrap();
    sf.reaction::<Tagged>("test.react")
        .run_outside(async |_: &EventCx, _: Tagged| Ok(()));

    // A server that is starting: it hangs up on whoever calls.
    let starting = TcpListener::bind("127.0.0.1:0").await.unwrap();
    proxy.set_upstream(starting.local_addr().unwrap().to_string());
    proxy.cut();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (service, routes) = (sf.clone(), sf.routes());
    let mut serving = tokio::spawn(async move { service.serve(listener, routes).await });
    for _ in 0..2 {
        tokio::select! {
            called = starting.accept() => drop(called.unwrap()),
            ended = &mut serving => panic!("it did not wait: {ended:?}"),
        }
    }

    proxy.set_upstream(server);
    let mut client = TcpStream::connect(address).await.unwrap();
    client
        .write_all(b"GET /readyz HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let declared = "SELECT count(*) FROM steadfast.targets WHERE name = 'test.react'";
    assert_eq!(
        Db::count(&harness.admin, declared).await,
        1,
        "before anybody was answered"
    );
    serving.abort();
}
