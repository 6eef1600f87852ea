//! The proxy that our other tests rely on, against the real server.

use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool};
use steadfast::testing::proxy::{Answer, Counts, Fault, Fired, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::Db;
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

/// How long anything may take that is not meant to hang.
const LIMIT: Duration = Duration::from_secs(20);

/// How long something has to take to count as hanging.
const HANGS: Duration = Duration::from_millis(300);

/// A proxy before the harness's server, and the way through it.
pub(crate) async fn proxy_before(harness: &Harness<Db>) -> (Proxy, PgConnectOptions) {
    let there = (*Db::another_pool(harness, PoolSize::default()).connect_options()).clone();
    let proxy = Proxy::start(format!("{}:{}", there.get_host(), there.get_port()))
        .await
        .unwrap();
    let here = there.host("127.0.0.1").port(proxy.port());
    (proxy, here)
}

async fn until(proxy: &Proxy, fact: impl FnMut(&Counts) -> bool) {
    let in_time = timeout(LIMIT, proxy.until(fact)).await;
    assert!(in_time.is_ok(), "never came true: {:#?}", proxy.counts());
}

/// A transaction of three statements, and whose process did it.
async fn insert(conn: &mut PgConnection, tag: &str) -> Result<(), sqlx::Error> {
    let mut tx = conn.begin().await?;
    sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
        .bind(tag)
        .execute(&mut *tx)
        .await?;
    tx.commit().await
}

async fn backend(conn: &mut PgConnection) -> i32 {
    let pid = sqlx::query_scalar("SELECT pg_backend_pid()");
    pid.fetch_one(conn).await.unwrap()
}

#[tokio::test]
async fn a_bare_transaction_is_counted_message_by_message() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let mut conn = PgConnection::connect_with(&here).await.unwrap();
    assert_eq!(proxy.counts().connections, 1);
    for parses in [1, 0] {
        proxy.reset_counts();
        insert(&mut conn, "a").await.unwrap();
        let counts = proxy.counts();
        // BEGIN, INSERT and COMMIT; the first time, sqlx asks in a round trip of its own what INSERT needs.
        assert_eq!(
            (counts.round_trips, counts.statements, counts.parses, counts.pings),
            (3 + parses, 3, parses, 0)
        );
        assert_eq!((counts.begins, counts.commits, counts.rollbacks), (1, 1, 0));
        assert_eq!((counts.connections, counts.cancels, counts.fired), (0, 0, 0));
        assert!(counts.bytes_up > 50 && counts.bytes_down > 50, "{counts:?}");
        assert_eq!(
            proxy.statements(),
            ["BEGIN", "INSERT INTO effects (tag) VALUES ($1)", "COMMIT"]
        );
    }
    conn.close().await.unwrap();
    assert_eq!(proxy.counts().round_trips, 3, "a good-bye is no question");
    assert_eq!(harness.effects().await, 2);
}

#[tokio::test]
async fn each_statement_of_one_message_is_counted_and_the_message_is_one_round_trip() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let mut conn = PgConnection::connect_with(&here).await.unwrap();
    proxy.reset_counts();
    conn.execute("BEGIN; INSERT INTO effects (tag)\n  VALUES ('a; b'); /* why */ COMMIT")
        .await
        .unwrap();
    let counts = proxy.counts();
    assert_eq!((counts.round_trips, counts.statements, counts.commits), (1, 3, 1));
    assert_eq!(
        proxy.statements(),
        ["BEGIN", "INSERT INTO effects (tag) VALUES ('a; b')", "COMMIT"]
    );

    // A transaction that was dropped: sqlx sends its ROLLBACK together with the next question.
    drop(conn.begin().await.unwrap());
    proxy.reset_counts();
    conn.ping().await.unwrap();
    let counts = proxy.counts();
    assert_eq!(
        (counts.round_trips, counts.statements, counts.rollbacks, counts.pings),
        (1, 1, 1, 1)
    );
}

#[tokio::test]
async fn the_pings_of_a_pool_are_round_trips_without_a_statement() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(here)
        .await
        .unwrap();
    eventually("the connection is in the pool", async || pool.num_idle() == 1).await;
    proxy.reset_counts();
    drop(pool.acquire().await.unwrap());
    eventually("the connection is back", async || pool.num_idle() == 1).await;
    let counts = proxy.counts();
    assert_eq!((counts.pings, counts.round_trips, counts.statements), (2, 2, 0));
    assert!(proxy.statements().is_empty());
}

#[tokio::test]
async fn messages_cut_into_single_bytes_are_understood_all_the_same() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let (mut seen, mut connections) = (Vec::new(), Vec::new());
    for slice in [0, 1, 3] {
        proxy.slice(slice);
        proxy.reset_counts();
        let mut conn = PgConnection::connect_with(&here).await.unwrap();
        insert(&mut conn, "a").await.unwrap();
        let rows: Vec<String> = sqlx::query_scalar("SELECT 'row ' || n FROM generate_series(1, 200) n")
            .fetch_all(&mut conn)
            .await
            .unwrap();
        assert_eq!((rows.len(), rows[199].as_str()), (200, "row 200"));
        // The length of the answers depends on process numbers.
        let counts = proxy.counts();
        seen.push((counts.round_trips, counts.parses, counts.bytes_up, proxy.statements()));
        connections.push(conn); // so that no good-bye is counted
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
    assert_eq!(harness.effects().await, 3);
}

#[tokio::test]
async fn megabytes_pass_in_both_directions() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let mut conn = PgConnection::connect_with(&here).await.unwrap();
    let large = "0123456789abcdef".repeat(1 << 18);
    let back: String = sqlx::query_scalar("SELECT $1 || '!'")
        .bind(&large)
        .fetch_one(&mut conn)
        .await
        .unwrap();
    assert!(back.len() == large.len() + 1 && back.starts_with(&large));
    let sql = format!("SELECT length('{large}')");
    conn.execute(AssertSqlSafe(sql)).await.unwrap();
    insert(&mut conn, "a").await.unwrap();
    assert_eq!(
        (proxy.counts().commits, proxy.counts().statements),
        (1, 5),
        "and it still knows where it is"
    );
    assert!(proxy.counts().bytes_up > 8 << 20 && proxy.counts().bytes_down > 4 << 20);
}

#[tokio::test]
async fn a_connection_cut_before_commit_leaves_nothing() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let mut conn = PgConnection::connect_with(&here).await.unwrap();
    let backend = backend(&mut conn).await;
    proxy.arm(Fault::CutBeforeCommit);
    assert!(insert(&mut conn, "lost").await.is_err());
    let [
        Fired {
            fault: Fault::CutBeforeCommit,
            answer: Answer::NotAsked,
            backend: Some(fired_at),
            connection: 1,
            ..
        },
    ] = proxy.fired()[..]
    else {
        panic!("{:?}", proxy.fired())
    };
    assert_eq!(fired_at, backend);
    let counts = proxy.counts();
    assert_eq!(
        (counts.begins, counts.commits, counts.fired, counts.settled),
        (1, 0, 1, 1)
    );
    let gone = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {backend}");
    eventually("the server has ended the session", async || {
        Db::count(&harness.admin, &gone).await == 0
    })
    .await;
    assert_eq!(harness.effects().await, 0);

    let mut conn = PgConnection::connect_with(&here).await.unwrap();
    insert(&mut conn, "next").await.unwrap();
    assert_eq!(harness.effects().await, 1, "one fault for one COMMIT");
}

/// Commits as a prepared statement, which sqlx by itself does not.
async fn insert_with_prepared_commit(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    conn.execute("BEGIN").await?;
    conn.execute("INSERT INTO effects (tag) VALUES ('prepared')").await?;
    sqlx::query("COMMIT").execute(conn).await.map(drop)
}

#[tokio::test]
async fn a_connection_cut_after_commit_leaves_the_row() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    for (n, slice) in [(1, 0), (2, 0), (3, 1), (4, 1)] {
        proxy.slice(slice);
        let mut conn = PgConnection::connect_with(&here).await.unwrap();
        proxy.arm(Fault::CutAfterCommit);
        let lost = match n % 2 {
            1 => insert(&mut conn, "kept").await,
            _ => insert_with_prepared_commit(&mut conn).await,
        };
        assert!(matches!(lost, Err(sqlx::Error::Io(_))), "{lost:?}");
        until(&proxy, |counts| counts.settled == n).await;
        let fired = proxy.fired().pop().unwrap();
        assert_eq!((fired.fault, fired.answer), (Fault::CutAfterCommit, Answer::Committed));
        assert_eq!(harness.effects().await, n as i64);
        assert_eq!(proxy.counts().commits, n);
    }
}

#[tokio::test]
async fn a_prepared_commit_is_cut_like_any_other() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let mut conn = PgConnection::connect_with(&here).await.unwrap();
    insert_with_prepared_commit(&mut conn).await.unwrap();
    proxy.arm(Fault::CutBeforeCommit);
    assert!(insert_with_prepared_commit(&mut conn).await.is_err());
    assert_eq!(proxy.fired().len(), 1);
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn a_swallowed_reply_leaves_the_row_and_the_client_waiting() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(here)
        .await
        .unwrap();
    let mut conn = pool.acquire().await.unwrap();
    proxy.arm(Fault::SwallowCommitReply);
    {
        let mut committing = Box::pin(insert(&mut conn, "kept"));
        assert!(timeout(HANGS, &mut committing).await.is_err(), "it was answered");
        until(&proxy, |counts| counts.settled == 1).await;
        assert_eq!(proxy.fired()[0].answer, Answer::Committed);
        assert_eq!(harness.effects().await, 1);
        assert!(
            timeout(HANGS, &mut committing).await.is_err(),
            "it was answered after all"
        );
    }
    conn.close_on_drop();
    drop(conn);
    insert(&mut pool.acquire().await.unwrap(), "next").await.unwrap();
    assert_eq!(harness.effects().await, 2, "others are not affected");
}

#[tokio::test]
async fn what_the_server_said_to_a_lost_commit_is_known() {
    let harness = fresh::<Db>().await;
    harness.defer_a_foreign_key().await;
    let (proxy, here) = proxy_before(&harness).await;
    let broken = "BEGIN; SELECT 1; SAVEPOINT a";
    let deferred = "BEGIN; INSERT INTO children VALUES (404)";
    for (n, (before, spoil, expected)) in [
        (broken, "SELECT 1 / 0", Answer::RolledBack),
        (deferred, "SELECT 1", Answer::Refused),
        (deferred, "DELETE FROM children", Answer::Committed),
    ]
    .into_iter()
    .enumerate()
    {
        let mut conn = PgConnection::connect_with(&here).await.unwrap();
        conn.execute(before).await.unwrap();
        let _ = conn.execute(spoil).await;
        proxy.arm(Fault::CutAfterCommit);
        assert!(conn.execute("COMMIT").await.is_err());
        until(&proxy, |counts| counts.settled == n as u64 + 1).await;
        assert_eq!(proxy.fired()[n].answer, expected, "{before}; {spoil}");
    }
}

#[tokio::test]
async fn an_answer_is_lost_if_the_server_dies_over_it() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    harness
        .run(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION slow()",
        )
        .await;
    let mut conn = PgConnection::connect_with(&here).await.unwrap();
    let backend = backend(&mut conn).await;
    proxy.arm(Fault::CutAfterCommit);
    assert!(insert(&mut conn, "a").await.is_err());
    assert_eq!(proxy.fired()[0].answer, Answer::Awaited, "the server is at it");
    proxy.cut();
    harness.run(&format!("SELECT pg_terminate_backend({backend})")).await;
    until(&proxy, |counts| counts.settled == 1).await;
    assert_eq!(proxy.fired()[0].answer, Answer::Lost);
}

#[tokio::test]
async fn nothing_gets_through_a_black_hole_and_everything_after_it() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let mut conn = PgConnection::connect_with(&here).await.unwrap();
    let mut leaving = PgConnection::connect_with(&here).await.unwrap();
    let left = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {}",
        backend(&mut leaving).await
    );
    proxy.reset_counts();

    proxy.black_hole(true);
    leaving.close_hard().await.unwrap();
    let mut inserting = Box::pin(insert(&mut conn, "a"));
    let mut connecting = Box::pin(PgConnection::connect_with(&here));
    assert!(timeout(HANGS, &mut inserting).await.is_err());
    assert!(timeout(HANGS, &mut connecting).await.is_err());
    assert_eq!(proxy.counts(), Counts::default());
    assert_eq!(
        Db::count(&harness.admin, &left).await,
        1,
        "nor is it noticed that a client has left"
    );

    proxy.black_hole(false);
    timeout(LIMIT, inserting).await.unwrap().unwrap();
    timeout(LIMIT, connecting).await.unwrap().unwrap();
    assert_eq!(harness.effects().await, 1);
    eventually("it is noticed", async || Db::count(&harness.admin, &left).await == 0).await;
}

#[tokio::test]
async fn a_delay_is_paid_on_every_answer() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let mut conn = PgConnection::connect_with(&here).await.unwrap();
    proxy.delay(Duration::from_millis(50));
    let begun = Instant::now();
    conn.ping().await.unwrap();
    conn.ping().await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(100));
    assert_eq!(proxy.counts().pings, 2);
}

#[tokio::test]
async fn a_request_to_cancel_reaches_the_server() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    // sqlx keeps the key of its session to itself, so it is read on the way.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = here.port(listener.local_addr().unwrap().port());
    let port = proxy.port();
    let (tell_key, key) = tokio::sync::oneshot::channel();
    let spy = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        let replies = async {
            let (mut heard, mut tell_key) = (Vec::new(), Some(tell_key));
            while let Ok(1..) = from_server.read_buf(&mut heard).await {
                to_client.write_all(&heard).await.unwrap();
                let found = heard.windows(5).position(|bytes| bytes == b"K\0\0\0\x0c");
                if let (Some(at), Some(_)) = (found, &tell_key) {
                    let _ = tell_key.take().unwrap().send(heard[at + 5..at + 13].to_vec());
                }
                heard.clear();
            }
        };
        tokio::select! {
            _ = copy(&mut from_client, &mut to_server) => {}
            () = replies => {}
        }
    });
    let mut conn = PgConnection::connect_with(&here).await.unwrap();
    let key = key.await.unwrap();
    proxy.reset_counts();
    let sleeping = tokio::spawn(async move { conn.execute("SELECT pg_sleep(60)").await });
    until(&proxy, |counts| counts.statements == 1).await;
    let request = [&[0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e][..], &key].concat();
    // The server may not have begun the statement when it hears of it, and then there is nothing to cancel.
    eventually("the statement is cancelled", async || {
        let mut cancelling = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        cancelling.write_all(&request).await.unwrap();
        assert_eq!(cancelling.read(&mut [0]).await.unwrap(), 0, "the server only hangs up");
        sleeping.is_finished()
    })
    .await;
    let error = sleeping.await.unwrap().unwrap_err();
    assert_eq!(
        error.as_database_error().and_then(|e| e.code()).as_deref(),
        Some("57014")
    );
    assert!(proxy.counts().cancels >= 1);
    assert_eq!(proxy.counts().connections, 0);
    spy.abort();
}

#[tokio::test]
async fn a_server_that_restarts_is_survived() {
    let harness = fresh::<Db>().await;
    let there = (*harness.admin.connect_options()).clone();
    let (proxy, here) = proxy_before(&harness).await;
    let pool = PgPool::connect_lazy_with(here.clone());
    insert(&mut pool.acquire().await.unwrap(), "before").await.unwrap();

    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    proxy.set_upstream(nobody.to_string());
    harness
        .run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'steadfast_app' AND datname = current_database()")
        .await;
    for _ in 0..3 {
        assert!(PgConnection::connect_with(&here).await.is_err());
    }
    proxy.set_upstream(format!("{}:{}", there.get_host(), there.get_port()));
    insert(&mut pool.acquire().await.unwrap(), "after").await.unwrap();
    assert_eq!(harness.effects().await, 2);
    assert_eq!(proxy.counts().connections, 2, "those refused never reached a server");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_faults_leaves_exactly_what_is_on_record() {
    let harness = fresh::<Db>().await;
    let (proxy, here) = proxy_before(&harness).await;
    let seed = 20_250_701;
    let faults = [Fault::CutBeforeCommit, Fault::CutAfterCommit, Fault::SwallowCommitReply];
    proxy.arm_share(0.4, seed, &faults);
    let client = async |client: u32| {
        let mut acknowledged = 0;
        for n in 0..25 {
            let mut conn = PgConnection::connect_with(&here).await.unwrap();
            let (tag, backend) = (format!("{client}-{n}"), backend(&mut conn).await);
            let is_swallowed = |fired: &Fired| fired.backend == Some(backend) && fired.answer == Answer::Committed;
            tokio::select! {
                inserted = insert(&mut conn, &tag) => acknowledged += u64::from(inserted.is_ok()),
                () = eventually("an answer", async || proxy.fired().iter().any(is_swallowed)) => {}
            }
        }
        acknowledged
    };
    let acknowledged: u64 = futures_util::future::join_all((0..4).map(client)).await.iter().sum();
    until(&proxy, |counts| counts.settled == counts.fired).await;
    let (counts, fired) = (proxy.counts(), proxy.fired());
    let committed = fired.iter().filter(|fired| fired.answer == Answer::Committed).count();
    let not_asked = fired.iter().filter(|fired| fired.answer == Answer::NotAsked).count();
    assert_eq!(committed + not_asked, fired.len(), "seed {seed}: {fired:?}");
    assert_eq!(
        acknowledged + fired.len() as u64,
        100,
        "seed {seed}: each COMMIT was answered, or had a fault"
    );
    assert_eq!(harness.effects().await, (acknowledged + committed as u64) as i64);
    assert_eq!((counts.begins, counts.commits), (100, 100 - not_asked as u64));
    for fault in faults {
        assert!(
            fired.iter().any(|fired| fired.fault == fault),
            "seed {seed}: {fault:?} never fired"
        );
    }
}
