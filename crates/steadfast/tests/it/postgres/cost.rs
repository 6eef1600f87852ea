//! What a command costs on the wire, counted: statements and round trips. Times are the bench's business.

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use steadfast::testing::proxy::Proxy;
use steadfast::{Code, Error, Failure, Reply, Steadfast};

use super::Db;
use super::proxy::proxy_before;
use crate::harness::{Harness, fresh};

/// A process behind a proxy, with one connection whose statements are all prepared.
struct Counted {
    harness: Harness<Db>,
    proxy: Proxy,
    pool: PgPool,
    sf: Steadfast<Db>,
}

const INSERT: &str = "INSERT INTO effects (tag) VALUES ($1)";

impl Counted {
    async fn new() -> Self {
        let harness = fresh::<Db>().await;
        let (proxy, here) = proxy_before(&harness).await;
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .connect_lazy_with(here);
        let sf = Steadfast::new(pool.clone()).await.unwrap();
        let counted = Self {
            harness,
            proxy,
            pool,
            sf,
        };
        for key in ["warm", "warmer"] {
            counted.run(&counted.sf, key, 1).await.unwrap();
            assert!(counted.run(&counted.sf, key, 1).await.unwrap().replayed);
        }
        counted
    }

    async fn run(&self, sf: &Steadfast<Db>, key: &str, wish: u32) -> Result<Reply<u32>, Error> {
        sf.command("effects.make", key)
            .owner(&self.harness.owner)
            .input(&wish)
            .run(async |tx| {
                sqlx::query(INSERT).bind(key).execute(tx.db()).await?;
                Ok(wish)
            })
            .await
    }

    /// Another process on the same connection: it has seen no key end.
    async fn elsewhere(&self) -> Steadfast<Db> {
        let sf = Steadfast::new(self.pool.clone()).await.unwrap();
        self.run(&sf, "warm", 1).await.unwrap();
        sf
    }

    /// Fails unless exactly this happened since the last look: round trips, and statements by how they begin.
    fn assert_cost(&self, round_trips: u64, statements: &[&str]) {
        let sent = self.proxy.statements();
        let is_same = sent.len() == statements.len()
            && sent
                .iter()
                .zip(statements)
                .all(|(sent, expected)| sent.starts_with(expected));
        assert!(is_same, "sent {sent:#?}, expected {statements:#?}");
        let counts = self.proxy.counts();
        assert_eq!(counts.statements, statements.len() as u64);
        // sqlx's pool asks every connection that comes back whether it still lives, ours and anybody's.
        assert_eq!(counts.round_trips - counts.pings, round_trips, "{sent:#?}");
        self.proxy.reset_counts();
    }
}

const BEGIN: &str = "BEGIN";
const CLAIM: &str = "EXECUTE sf_claim_";
const SETTLE: &str = "INSERT INTO steadfast.keys";
const LOOK_UP: &str = "SELECT (extract(epoch FROM clock_timestamp())";

#[tokio::test]
async fn a_command_costs_one_round_trip_more_than_a_bare_transaction() {
    let counted = Counted::new().await;
    counted.proxy.reset_counts();
    let mut tx = counted.pool.begin().await.unwrap();
    sqlx::query(INSERT).bind("bare").execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    counted.assert_cost(3, &[BEGIN, INSERT, "COMMIT"]);

    counted.run(&counted.sf, "k", 1).await.unwrap();
    counted.assert_cost(4, &[BEGIN, CLAIM, INSERT, SETTLE, "COMMIT"]);
}

#[tokio::test]
async fn a_command_that_fails_costs_a_rollback_and_a_look() {
    let counted = Counted::new().await;
    let fail = async || {
        let command = counted
            .sf
            .command("effects.make", "fails")
            .owner(&counted.harness.owner);
        let failed = command.run_once(async |tx| {
            sqlx::query(INSERT).bind("fails").execute(tx.db()).await?;
            Err::<u32, _>(Failure::transient("not_today", "not today"))
        });
        assert_eq!(failed.await.unwrap_err().code(), Code::HandlerFailed);
    };
    fail().await;
    counted.proxy.reset_counts();
    fail().await;
    counted.assert_cost(4, &[BEGIN, CLAIM, INSERT, "ROLLBACK", LOOK_UP]);
}

#[tokio::test]
async fn a_replay_or_a_mismatch_costs_one_statement_where_the_command_ended() {
    let counted = Counted::new().await;
    counted.proxy.reset_counts();
    assert!(counted.run(&counted.sf, "warm", 1).await.unwrap().replayed);
    counted.assert_cost(1, &[LOOK_UP]);
    let mismatch = counted.run(&counted.sf, "warm", 2).await.unwrap_err();
    assert_eq!(mismatch.code(), Code::Mismatch);
    counted.assert_cost(1, &[LOOK_UP]);
}

#[tokio::test]
async fn a_replay_elsewhere_costs_a_transaction_that_is_not_begun_and_a_look() {
    let counted = Counted::new().await;
    let elsewhere = counted.elsewhere().await;
    counted.proxy.reset_counts();
    assert!(counted.run(&elsewhere, "warmer", 1).await.unwrap().replayed);
    counted.assert_cost(3, &[BEGIN, CLAIM, "ROLLBACK", LOOK_UP]);
    assert!(counted.run(&elsewhere, "warmer", 1).await.unwrap().replayed);
    counted.assert_cost(1, &[LOOK_UP]);
}

#[tokio::test]
async fn a_conflict_costs_nothing_here_and_two_round_trips_elsewhere() {
    let counted = Counted::new().await;
    let elsewhere = counted.elsewhere().await;
    let command = counted
        .harness
        .sf
        .command("effects.make", "k")
        .owner(&counted.harness.owner)
        .input(&1);
    command
        .run_once(async |tx| {
            let here = counted.run(&counted.harness.sf, "k", 1).await.unwrap_err();
            assert_eq!(here.code(), Code::InFlight);
            counted.proxy.reset_counts();
            let there = counted.run(&elsewhere, "k", 1).await.unwrap_err();
            assert_eq!(there.code(), Code::InFlight);
            counted.assert_cost(2, &[BEGIN, CLAIM, "ROLLBACK"]);
            sqlx::query(INSERT).bind("k").execute(tx.db()).await?;
            Ok(1)
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_transaction_without_a_key_costs_one_round_trip_more() {
    let counted = Counted::new().await;
    let run = async || {
        counted
            .sf
            .transact(async |tx| Ok(sqlx::query(INSERT).bind("x").execute(tx.db()).await.map(drop)?))
            .await
            .unwrap();
    };
    run().await;
    counted.proxy.reset_counts();
    run().await;
    // The first four are one message.
    let statements = [
        "BEGIN ISOLATION LEVEL READ COMMITTED NOT DEFERRABLE",
        "SET LOCAL sf.transaction",
        "SET LOCAL idle_in_transaction_session_timeout",
        "SET LOCAL client_connection_check_interval",
        INSERT,
        "SELECT coalesce(current_setting",
        "COMMIT",
    ];
    counted.assert_cost(4, &statements);
}

#[tokio::test]
async fn a_new_connection_learns_the_claim_once() {
    let counted = Counted::new().await;
    let (_, here) = proxy_before(&counted.harness).await;
    let here = here.port(counted.proxy.port());
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(here);
    let sf = Steadfast::new(pool).await.unwrap();
    let count = |text: &str| {
        let sent = counted.proxy.statements();
        sent.iter().filter(|statement| statement.starts_with(text)).count()
    };
    counted.proxy.reset_counts();
    counted.run(&sf, "first", 1).await.unwrap();
    counted.run(&sf, "second", 1).await.unwrap();
    assert_eq!((count("PREPARE sf_claim_"), count(CLAIM)), (1, 3));
}

/// The house does it at most twice a minute, so that an idle process stays below 60 statements a minute.
#[tokio::test]
async fn the_gauges_cost_four_statements_and_one_where_another_process_has_them() {
    let counted = Counted::new().await;
    assert!(counted.sf.refresh_gauges().await.unwrap());
    counted.proxy.reset_counts();
    assert!(counted.sf.refresh_gauges().await.unwrap());
    const LEASE: &str = "INSERT INTO steadfast.leases";
    let inbox = "SELECT consumer, source, count(*)";
    counted.assert_cost(4, &[LEASE, "WITH RECURSIVE used", "WITH clock", inbox]);
    let another = Steadfast::new(counted.pool.clone()).await.unwrap();
    counted.proxy.reset_counts();
    assert!(!another.refresh_gauges().await.unwrap());
    counted.assert_cost(1, &[LEASE]);
}
