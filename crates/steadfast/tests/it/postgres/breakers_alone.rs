//! A shared breaker when its database does not answer.

use std::time::{Duration, Instant};

use sqlx::postgres::PgPoolOptions;
use steadfast::breaker::{Breaker, BreakerOptions, BreakerState};
use steadfast::{Failure, Steadfast};

use super::Db;
use super::proxy::proxy_before;
use crate::harness::{eventually, fresh};

/// Opens at the first failure, for longer than a test takes.
fn payments() -> BreakerOptions {
    Breaker::named("payments")
        .consecutive_failures(1)
        .open_for("1h")
        .shared()
}

fn fail(breaker: &Breaker) {
    let permit = breaker.permit().expect("it is closed");
    permit.failure(&Failure::transient("lost", "no reply"));
}

/// How long a call may take that waits for nobody: far less than any time limit of ours.
const AT_ONCE: Duration = Duration::from_millis(250);

#[tokio::test]
async fn a_shared_breaker_works_without_its_database_and_shares_again_when_it_is_back() {
    let harness = fresh::<Db>().await;
    let there = harness.sf.breaker(payments()).unwrap();
    for is_silent in [true, false] {
        let (proxy, here) = proxy_before(&harness).await;
        let sf = Steadfast::<Db>::new(PgPoolOptions::new().connect_lazy_with(here))
            .await
            .unwrap();
        let here = sf.breaker(payments()).unwrap();
        eventually("the table is read", async || {
            proxy
                .statements()
                .iter()
                .any(|statement| statement.contains("steadfast.breakers"))
        })
        .await;
        if is_silent {
            // A server that takes questions and says nothing.
            proxy.black_hole(true);
        } else {
            // No server at all.
            proxy.set_upstream("127.0.0.1:9");
            proxy.cut();
        }
        let began = Instant::now();
        here.permit().expect("closed").success();
        fail(&here);
        assert!(here.permit().is_err(), "it opens by what it sees itself");
        assert!(
            began.elapsed() < AT_ONCE,
            "nobody waits for the database: {:?}",
            began.elapsed()
        );
        assert_eq!(there.state(), BreakerState::Closed, "nobody could hear of it");

        if is_silent {
            proxy.black_hole(false);
        } else {
            let server = harness.admin.connect_options();
            proxy.set_upstream(format!("{}:{}", server.get_host(), server.get_port()));
        }
        eventually("what happened meanwhile is shared", async || {
            there.state() == BreakerState::Open
        })
        .await;
        there.reset();
        eventually("and goes on to be", async || here.state() == BreakerState::Closed).await;
    }
}
