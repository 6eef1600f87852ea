//! A shared breaker while another process keeps the file locked.

use std::time::{Duration, Instant};

use steadfast::Failure;
use steadfast::breaker::{Breaker, BreakerOptions, BreakerState};

use super::Db;
use crate::harness::{eventually, fresh};

/// Opens at the first failure, for longer than a test takes.
fn payments() -> BreakerOptions {
    Breaker::named("payments")
        .consecutive_failures(1)
        .open_for("1h")
        .shared()
}

#[tokio::test]
async fn a_shared_breaker_works_while_the_file_is_locked_and_shares_again_when_it_is_free() {
    let harness = fresh::<Db>().await;
    let another = harness.another().await;
    let (here, there) = (
        harness.sf.breaker(payments()).unwrap(),
        another.breaker(payments()).unwrap(),
    );
    let mut lock = harness.admin.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut *lock).await.unwrap();

    let began = Instant::now();
    let permit = here.permit().expect("closed");
    permit.failure(&Failure::transient("lost", "no reply"));
    assert!(here.permit().is_err(), "it opens by what it sees itself");
    assert!(
        began.elapsed() < Duration::from_millis(250),
        "nobody waits for the file"
    );

    sqlx::raw_sql("COMMIT").execute(&mut *lock).await.unwrap();
    eventually("it is shared", async || there.state() == BreakerState::Open).await;
}
