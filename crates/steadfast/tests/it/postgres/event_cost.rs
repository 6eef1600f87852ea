//! What events cost on the wire, counted; and how the statement that claims finds its rows among many.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use steadfast::testing::proxy::Proxy;
use steadfast::testing::{ENGINE_SETTINGS, ENGINE_STATEMENTS};
use steadfast::{EventCx, Steadfast};
use tokio::sync::Semaphore;

use super::Db;
use super::proxy::proxy_before;
use super::push::{self, Client, Heard, TAGS};
use super::queue::{Tagged, publish, rows, run, stop, tagged};
use crate::harness::{Harness, TestDatabase, eventually, fresh};

const INSERT: &str = "INSERT INTO effects (tag) VALUES ($1)";
const ANNOUNCE: &str = "SELECT pg_notify";

/// What only this statement has.
const CLAIM: &str = "wanted AS MATERIALIZED";
const FINISH: &str = "AS d (item, kind, epoch, token, state, detail)";
const SETTLE_WITH_EVENTS: &str = "INSERT INTO steadfast.messages";

/// A process behind a proxy, by a name that the server knows.
struct Process {
    harness: Harness<Db>,
    proxy: Proxy,
    pool: PgPool,
    sf: Steadfast<Db>,
}

impl Process {
    async fn new() -> Self {
        let harness = fresh::<Db>().await;
        let (proxy, here) = proxy_before(&harness).await;
        let pool = PgPoolOptions::new()
            .max_connections(2)
            .test_before_acquire(false)
            .connect_lazy_with(here.application_name("counted"));
        let sf = Steadfast::new(pool.clone()).await.unwrap();
        Self {
            harness,
            proxy,
            pool,
            sf,
        }
    }

    /// Declares reactions that call the outside, and do nothing.
    fn react(&self, names: &[&str]) {
        for name in names {
            let reaction = self.sf.reaction::<Tagged>(name).concurrency(500);
            reaction.run_outside(|_: &EventCx, _: Tagged| std::future::ready(Ok(())));
        }
    }

    /// How many statements were sent that have this part.
    fn sent(&self, part: &str) -> usize {
        let sent = self.proxy.statements();
        sent.iter().filter(|statement| statement.contains(part)).count()
    }

    /// How many connections of this process the server has.
    async fn connections(&self) -> i64 {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE application_name = 'counted' AND datname = current_database()";
        Db::count(&self.harness.admin, sql).await
    }
}

#[tokio::test]
async fn an_event_adds_no_statement_and_no_round_trip_to_its_command() {
    let process = Process::new().await;
    process.react(&["test.a", "test.b"]);
    process.sf.declare().await.unwrap();
    let run = async |key: &str, events: usize| {
        let command = process.sf.command("effects.make", key).owner(&process.harness.owner);
        let running = command.run(async |tx| {
            sqlx::query(INSERT).bind(key).execute(tx.db()).await?;
            for _ in 0..events {
                tx.publish(&tagged(key))?;
            }
            Ok(1)
        });
        running.await.unwrap();
        // Others are told after the commit, by nobody who waits, and once for all commits of ten milliseconds.
        let told = usize::from(events > 0);
        eventually("others are told", async || process.sent(ANNOUNCE) == told).await;
    };
    // Both connections learn all statements.
    for key in 0..8 {
        run(&format!("warm-{key}"), 0).await;
        run(&format!("warmer-{key}"), 1).await;
        process.proxy.reset_counts();
        run(&format!("warmest-{key}"), 2).await;
        process.proxy.reset_counts();
    }
    for (events, settle) in [
        (0, "INSERT INTO steadfast.keys"),
        (1, SETTLE_WITH_EVENTS),
        (100, SETTLE_WITH_EVENTS),
    ] {
        process.proxy.reset_counts();
        run(&format!("{events}-events"), events).await;
        let sent = process.proxy.statements();
        let expected = ["BEGIN", "EXECUTE sf_claim_", INSERT, settle, "COMMIT"];
        let own: Vec<_> = sent
            .iter()
            .filter(|statement| !statement.starts_with(ANNOUNCE))
            .collect();
        let is_same = own.len() == expected.len() && own.iter().zip(expected).all(|(own, part)| own.contains(part));
        assert!(is_same, "{events} events: {own:#?}");
        let counts = process.proxy.counts();
        let told = u64::from(events > 0);
        assert_eq!(
            counts.round_trips - counts.pings - told,
            4,
            "{events} events: {sent:#?}"
        );
    }
    assert_eq!(rows(&process.harness, "queue").await, 2 * (8 + 16 + 101));
}

#[tokio::test]
async fn deliveries_are_claimed_by_one_statement_and_finished_by_another_however_many() {
    let process = Process::new().await;
    process.react(&["test.a"]);
    process.sf.declare().await.unwrap();
    for deliveries in [1, 50, 500] {
        let publishing = process.sf.transact(async |tx| {
            for number in 0..deliveries {
                tx.publish(&tagged(number))?;
            }
            Ok(())
        });
        publishing.await.unwrap();
        process.proxy.reset_counts();
        assert_eq!(process.sf.drain().await.unwrap(), deliveries);
        // The second claim finds nothing.
        assert_eq!((process.sent(CLAIM), process.sent(FINISH)), (2, 1), "{deliveries}");
        let others = [
            "LISTEN",
            "INSERT INTO steadfast.targets",
            "INSERT INTO steadfast.kinds",
            ANNOUNCE,
        ];
        let known: usize = others.iter().map(|part| process.sent(part)).sum();
        let sent = process.proxy.statements();
        assert_eq!(sent.len(), 3 + known, "{sent:#?}");
    }
}

#[tokio::test]
async fn an_idle_process_has_one_more_connection_and_sends_a_statement_every_two_seconds() {
    /// Long enough for three looks.
    const WINDOW: Duration = Duration::from_secs(6);
    let process = Process::new().await;
    process.react(&["test.a", "test.b", "test.c"]);
    let dispatching = tokio::spawn({
        let sf = process.sf.clone();
        async move { sf.dispatch().await }
    });
    // It is idle when something was delivered to everybody, and finished.
    eventually("all are declared", async || {
        rows(&process.harness, "targets").await == 3
    })
    .await;
    publish(&process.sf, &tagged("a")).await;
    eventually("all are finished", async || {
        rows(&process.harness, "history").await == 3
    })
    .await;
    eventually("others are told", async || process.sent(ANNOUNCE) == 1).await;

    process.proxy.reset_counts();
    tokio::time::sleep(WINDOW).await;
    let sent = process.proxy.statements();
    let looks = process.sent(CLAIM);
    assert_eq!(looks, sent.len(), "nothing but claims: {sent:#?}");
    assert!((2..=4).contains(&looks), "{sent:#?}");
    // And once a minute it says which kinds it knows.
    let windows = Duration::from_secs(60).div_duration_f64(WINDOW);
    assert!(looks as f64 * windows + 1.0 <= 60.0, "{looks} in {WINDOW:?}");
    assert_eq!(process.proxy.counts().connections, 0, "it keeps what it has");
    // One of the pool may just be opened or closed.
    eventually("it has one more than the pool", async || {
        process.connections().await == i64::from(process.pool.size()) + 1
    })
    .await;
    process.sf.stop();
    dispatching.await.unwrap().unwrap();
}

/// Publishes so many events, and opens all that the pool may have, so that whatever is opened from now on is the engine's.
async fn prepare_backlog(process: &Process, events: i64) {
    process.react(&["test.a"]);
    process.sf.declare().await.unwrap();
    for _ in 0..events / 1_000 {
        let publishing = process.sf.transact(async |tx| {
            for _ in 0..1_000 {
                tx.publish(&tagged("a"))?;
            }
            Ok(())
        });
        publishing.await.unwrap();
    }
    let both = (
        process.pool.acquire().await.unwrap(),
        process.pool.acquire().await.unwrap(),
    );
    drop(both);
    process.proxy.reset_counts();
}

#[tokio::test]
async fn a_backlog_is_finished_over_a_second_connection_which_is_closed_when_nothing_is_left() {
    const EVENTS: i64 = 4_000;
    let process = Process::new().await;
    prepare_backlog(&process, EVENTS).await;
    let dispatching = run(&process.sf);
    eventually("all are finished", async || {
        rows(&process.harness, "history").await == EVENTS
    })
    .await;
    assert!(process.proxy.counts().connections >= 2, "{:?}", process.proxy.counts());
    eventually("one is left", async || {
        process.connections().await == i64::from(process.pool.size()) + 1
    })
    .await;
    stop(&process.sf, dispatching).await;
}

#[tokio::test]
async fn a_backlog_is_finished_over_one_connection_where_there_is_no_room_for_a_second() {
    const EVENTS: i64 = 4_000;
    let process = Process::new().await;
    prepare_backlog(&process, EVENTS).await;
    // Room for one more: the one by which the engine claims.
    let limit = "DO $$ BEGIN
                     EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT %s', current_database(),
                                    (SELECT count(*) + 1 FROM pg_stat_activity WHERE datname = current_database()));
                 END $$";
    process.harness.run(limit).await;
    let dispatching = run(&process.sf);
    eventually("all are finished", async || {
        rows(&process.harness, "history").await == EVENTS
    })
    .await;
    assert!(process.proxy.counts().connections >= 2, "another one was wanted");
    assert_eq!(process.connections().await, i64::from(process.pool.size()) + 1);
    stop(&process.sf, dispatching).await;
}

#[tokio::test]
async fn a_hundred_live_clients_cost_the_database_what_one_does() {
    const EVENTS: usize = 5;
    /// What only the statements of streams have.
    const APPEND: &str = "INSERT INTO steadfast.entries";
    const READ: &str = "SELECT e.stream, e.number";
    const LOOK: &str = "AS is_far";
    const LISTEN: &str = "LISTEN \"steadfast_streams\"";
    let process = Process::new().await;
    let router = push::routes(&push::push(&process.sf));
    process.sf.declare().await.unwrap();
    let both = (
        process.pool.acquire().await.unwrap(),
        process.pool.acquire().await.unwrap(),
    );
    drop(both);
    let mut clients = Vec::new();
    for count in [1, 100] {
        process.proxy.reset_counts();
        while clients.len() < count {
            let mut client = Client::connect(&router, TAGS, None).await;
            client.expect(&Heard::Ready).await;
            clients.push(client);
        }
        // For the first one the process looks where the stream is, listens, and reads. Those who come later ask nothing.
        let asked = usize::from(count == 1);
        eventually("it has begun to read", async || process.sent(READ) == asked).await;
        assert_eq!((process.sent(LOOK), process.sent(LISTEN)), (asked, asked));

        say(&process.sf, &mut clients, "first").await;
        process.proxy.reset_counts();
        for number in 0..EVENTS {
            say(&process.sf, &mut clients, &format!("{count} {number}")).await;
        }
        let sent = process.proxy.statements();
        let of_streams = [APPEND, READ, LOOK, LISTEN].map(|part| process.sent(part));
        assert_eq!(of_streams, [EVENTS, EVENTS, 0, 0], "{count} clients: {sent:#?}");
    }
    let listening = "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND query = 'LISTEN \"steadfast_streams\"'";
    assert_eq!(
        Db::count(&process.harness.admin, listening).await,
        1,
        "one hears for all"
    );
}

/// Publishes, delivers, and waits until all have heard of it.
async fn say(sf: &Steadfast<Db>, clients: &mut [Client], tag: &str) {
    publish(sf, &tagged(tag)).await;
    sf.drain().await.unwrap();
    for client in clients {
        assert_eq!(client.tags(1).await, [tag]);
    }
}

/// Makes a connection one of the engine's.
async fn become_engine(conn: &mut PgConnection) {
    for (name, value) in ENGINE_SETTINGS {
        let set = format!("SET {name} = {value}");
        sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut *conn).await.unwrap();
    }
    for (name, statement) in ENGINE_STATEMENTS {
        let claim =
            "bigint, text[], integer[], integer[], bigint[], text[], bigint, bigint, text, integer, boolean[], text[]";
        let leases = "bigint, uuid[], text[], bigint[], bigint[]";
        let types = match *name {
            "claim_limited" => format!("{claim}, text[], bigint[], bigint[]"),
            "finish" => format!("{leases}, text[], text[], boolean"),
            "renew" => format!("{leases}, bigint[]"),
            "put_back" => {
                format!("{leases}, bigint[], boolean[], text[], integer[], text[], text[], text[], text[], text[]")
            }
            _ => claim.to_owned(),
        };
        let prepare = format!("PREPARE {name} ({types}) AS {statement}");
        sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *conn).await.unwrap();
    }
}

/// How the server goes about claims for two kinds with a freed chain, and about finishing a row, renewing its lease and putting it
/// back.
async fn plans(conn: &mut PgConnection) -> [String; 6] {
    let claim = "0, '{test.a,test.b}', '{500,500}', '{10,10}', '{30000000,30000000}', '{test.a k}', 1, 7, 'me', 2, '{f,f}', '{mail,mail}'";
    let lease = "0, '{00000000-0000-0000-0000-000000000000}', '{test.a}', '{1}', '{7}'";
    let executions = [
        format!("claim({claim})"),
        format!("claim_in_queues({claim})"),
        format!("claim_limited({claim}, '{{mail}}', '{{0,0}}', '{{1,1}}')"),
        format!("finish({lease}, '{{delivered}}', '{{NULL}}', false)"),
        format!("renew({lease}, '{{30000000}}')"),
        format!(
            "put_back({lease}, '{{0}}', '{{t}}', '{{NULL}}', '{{NULL}}', '{{NULL}}', '{{NULL}}', '{{NULL}}', '{{NULL}}', '{{NULL}}')"
        ),
    ];
    let mut plans = Vec::new();
    for execution in executions {
        let explaining = sqlx::query_scalar(AssertSqlSafe(format!("EXPLAIN EXECUTE {execution}"))).persistent(false);
        let plan: Vec<String> = explaining.fetch_all(&mut *conn).await.unwrap();
        plans.push(plan.join("\n"));
    }
    plans.try_into().unwrap()
}

/// The condition of each scan by this index.
fn conditions<'p>(plan: &'p str, index: &str) -> Vec<&'p str> {
    let lines: Vec<_> = plan.lines().collect();
    let scans = lines
        .windows(2)
        .filter(|pair| pair[0].contains(&format!(" using {index} on ")));
    scans.map(|pair| pair[1].trim()).collect()
}

fn assert_finds_rows_by_index(plans: &[String; 6]) {
    let [claim, in_queues, limited, finish, _, put_back] = plans;
    for plan in plans {
        for table in ["queue", "history", "messages"] {
            for scan in [format!("Seq Scan on {table}"), format!("Bitmap Heap Scan on {table}")] {
                assert!(!plan.contains(&scan), "{plan}");
            }
        }
    }
    // What is due, what is suspect, and what is due next; whether anything is due in a queue with limits; suspects of those have slots.
    for (claim, count) in [(claim, 3), (in_queues, 4), (limited, 2)] {
        let ranges = conditions(claim, "queue_next");
        assert_eq!(ranges.len(), count, "{claim}");
        for range in ranges {
            let is_range = range.contains("(kind = ") && range.contains("(visible_at <");
            let is_next = range.contains("(kind = ") && range.contains("(visible_at > ");
            assert!(range.starts_with("Index Cond:") && (is_range || is_next), "{claim}");
        }
    }
    for plan in [claim, in_queues, limited, finish, put_back] {
        let by_chain = conditions(plan, "queue_order");
        let is_bound = |by_chain: &&str| by_chain.starts_with("Index Cond:") && by_chain.contains("(chain = ");
        assert!(!by_chain.is_empty() && by_chain.iter().all(is_bound), "{plan}");
    }
    for plan in plans {
        let by_key = conditions(plan, "queue_one");
        assert!(
            !by_key.is_empty() && by_key.iter().all(|by_key| by_key.starts_with("Index Cond: (item = ")),
            "{plan}"
        );
    }
}

#[tokio::test]
async fn a_claim_finds_its_rows_among_many_by_an_index_even_if_it_was_planned_when_there_were_none() {
    let harness = fresh::<Db>().await;
    harness.run("VACUUM (ANALYZE)").await;
    let mut conn = harness.admin.acquire().await.unwrap();
    become_engine(&mut conn).await;
    assert_finds_rows_by_index(&plans(&mut conn).await);
    harness
        .run(
            "INSERT INTO steadfast.messages (number, created_at, version, id, type, source, content_type, payload)
             SELECT n, now(), 1, gen_random_uuid(), 'test.tagged', '/test', 'application/json', '{}'
             FROM generate_series(1, 100000) AS n;
             INSERT INTO steadfast.queue (visible_at, due_at, item, state, kind, number, chain)
             SELECT now() + n * interval '1 second', now(), id, 'pending', 'test.' || CASE WHEN n % 2 = 0 THEN 'a' ELSE 'b' END,
                    number, CASE WHEN n % 10 = 0 THEN 'test.a ' || n END
             FROM (SELECT *, number - 50000 AS n FROM steadfast.messages) AS m;
             INSERT INTO steadfast.history (finished_at, attempts, item, state, kind)
             SELECT now(), 1, gen_random_uuid(), 'delivered', 'test.a' FROM generate_series(1, 100000);
             INSERT INTO steadfast.kinds (kind, seen_at) VALUES ('test.a', now()), ('test.b', now())",
        )
        .await;
    assert_finds_rows_by_index(&plans(&mut conn).await);
    harness.run("VACUUM (ANALYZE)").await;
    assert_finds_rows_by_index(&plans(&mut conn).await);
}

#[tokio::test]
async fn a_claim_is_written_on_the_page_of_the_row_and_into_no_index() {
    let process = Process::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let closed = gate.clone();
    let reaction = process.sf.reaction::<Tagged>("test.slow").concurrency(50);
    reaction.run_outside(move |_: &EventCx, _: Tagged| {
        let gate = closed.clone();
        async move {
            gate.acquire().await?.forget();
            Ok(())
        }
    });
    process.sf.declare().await.unwrap();
    for _ in 0..50 {
        publish(&process.sf, &tagged("a")).await;
    }
    let dispatching = run(&process.sf);
    let changed = |what: &str| {
        format!(
            "SELECT coalesce(sum({what}), 0)::bigint FROM pg_stat_user_tables WHERE relid = 'steadfast.queue'::regclass"
        )
    };
    let admin = &process.harness.admin;
    eventually("all are claimed", async || {
        Db::count(admin, &changed("n_tup_upd")).await == 50
    })
    .await;
    let elsewhere = changed("n_tup_upd - n_tup_hot_upd");
    assert_eq!(Db::count(admin, &elsewhere).await, 0);
    gate.add_permits(50);
    stop(&process.sf, dispatching).await;
}
