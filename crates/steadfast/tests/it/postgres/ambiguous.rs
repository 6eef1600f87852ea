//! Thousands of commits whose connection is cut on one side of COMMIT or the other, and all backends killed now and then.
//! Whatever a client is told is true, and after its retries there is one effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::postgres::PgPoolOptions;
use steadfast::testing::proxy::Fault;
use steadfast::{Code, Error, Reply, Steadfast};

use super::Db;
use super::proxy::proxy_before;
use crate::harness::fresh;

const CLIENTS: u32 = 8;
const COMMANDS: u32 = 250;

async fn run(sf: &Steadfast<Db>, owner: &steadfast::Owner, key: &str, runs: &AtomicU32) -> Result<Reply<u32>, Error> {
    sf.command("effects.make", key)
        .owner(owner)
        .run(async |tx| {
            let run = runs.fetch_add(1, Ordering::SeqCst);
            sqlx::query("INSERT INTO effects (tag, nonce) VALUES ($1, $2)")
                .bind(key)
                .bind(run.to_string())
                .execute(tx.db())
                .await?;
            Ok(run)
        })
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_cut_commits_end_as_one_effect_each_and_every_answer_is_true() {
    let harness = Arc::new(fresh::<Db>().await);
    let (proxy, here) = proxy_before(&harness).await;
    let pool = PgPoolOptions::new().max_connections(CLIENTS).connect_lazy_with(here);
    let sf = Steadfast::<Db>::new(pool).await.unwrap();
    proxy.arm_share(0.5, 42, &[Fault::CutBeforeCommit, Fault::CutAfterCommit]);

    let runs = Arc::new(AtomicU32::new(0));
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let (sf, harness, runs) = (sf.clone(), harness.clone(), runs.clone());
        clients.push(tokio::spawn(async move {
            for number in 0..COMMANDS {
                if client == 0 && number % 50 == 49 {
                    // As a fail-over does it: every connection is gone at once.
                    harness
                        .run(
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                             WHERE datname = current_database() AND usename = 'steadfast_app'",
                        )
                        .await;
                }
                let key = format!("{client}-{number}");
                let told = loop {
                    match run(&sf, &harness.owner, &key, &runs).await {
                        Ok(reply) => break reply.value,
                        Err(error) => {
                            let may_come_back = [Code::ConnectionLost, Code::CommitUnknown, Code::InFlight];
                            assert!(may_come_back.contains(&error.code()), "{key}: {error:?}");
                        }
                    }
                };
                let again = loop {
                    match run(&sf, &harness.owner, &key, &runs).await {
                        Ok(reply) => break reply,
                        Err(error) => assert!(error.is_transient(), "{key}: {error:?}"),
                    }
                };
                assert!(again.replayed, "{key} was done");
                assert_eq!(again.value, told, "{key}: two answers");
            }
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(harness.effects().await, i64::from(CLIENTS * COMMANDS));
    harness.assert_effects_match_keys().await;

    let count = |fault| proxy.fired().iter().filter(|fired| fired.fault == fault).count();
    let (before, after) = (count(Fault::CutBeforeCommit), count(Fault::CutAfterCommit));
    assert!(
        before > 500 && after > 500,
        "cut {before} times before and {after} times after COMMIT"
    );
}
