//! A shared breaker while another process keeps the file locked, or cannot write to it.

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

#[tokio::test]
async fn a_persons_word_that_cannot_be_written_holds_against_newer_rows_until_it_can() {
    let harness = fresh::<Db>().await;
    let another = harness.another().await;
    let (here, there) = (
        harness.sf.breaker(payments()).unwrap(),
        another.breaker(payments()).unwrap(),
    );
    for event in ["INSERT", "UPDATE"] {
        let refuse = format!(
            "CREATE TRIGGER refuse_{event} BEFORE {event} ON steadfast_breakers WHEN NEW.state = 'forced_closed'
             BEGIN SELECT RAISE(ABORT, 'not now'); END"
        );
        let refuse = sqlx::AssertSqlSafe(refuse);
        sqlx::raw_sql(refuse).execute(&harness.admin).await.unwrap();
    }
    here.force_closed();
    let permit = there.permit().expect("closed");
    permit.failure(&Failure::transient("lost", "no reply"));
    let third = harness.another().await;
    let elsewhere = third.breaker(payments()).unwrap();
    eventually("the row is there", async || elsewhere.state() == BreakerState::Open).await;
    // All rows are read at once: who has seen this one has seen that one.
    let mail = || Breaker::named("mail").shared();
    let seen = harness.sf.breaker(mail()).unwrap();
    another.breaker(mail()).unwrap().force_open();
    eventually("it was read here", async || seen.state() == BreakerState::ForcedOpen).await;
    assert_eq!(here.state(), BreakerState::ForcedClosed);

    let allow = "DROP TRIGGER refuse_INSERT; DROP TRIGGER refuse_UPDATE";
    sqlx::raw_sql(allow).execute(&harness.admin).await.unwrap();
    eventually("it holds in all", async || there.state() == BreakerState::ForcedClosed).await;
}
