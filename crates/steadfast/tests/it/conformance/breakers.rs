//! Breakers that processes share through their database, and the ones they do not.

use std::time::{Duration, Instant};

use steadfast::breaker::{Breaker, BreakerOptions, BreakerState};
use steadfast::{Clock, Code, Failure, Steadfast};

use super::Db;
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

const HOUR: Duration = Duration::from_secs(3600);

/// Opens at the first failure, for longer than a test takes.
fn payments() -> BreakerOptions {
    Breaker::named("payments")
        .consecutive_failures(1)
        .open_for("1h")
        .cap("4h")
        .shared()
}

/// A process of its own, which shares the clock with the others of the test.
async fn process(harness: &Harness<Db>, clock: &Clock) -> Steadfast<Db> {
    let pool = Db::another_pool(harness, PoolSize::default());
    Steadfast::builder(pool).clock(clock.clone()).build().await.unwrap()
}

/// Two processes with the same breaker, and their clock.
async fn pair(harness: &Harness<Db>) -> ([Breaker; 2], [Steadfast<Db>; 2], Clock) {
    let clock = Clock::default();
    let processes = [process(harness, &clock).await, process(harness, &clock).await];
    let breakers = [0, 1].map(|number: usize| processes[number].breaker(payments()).unwrap());
    (breakers, processes, clock)
}

fn fail(breaker: &Breaker) {
    let permit = breaker.permit().expect("it is closed, or half-open");
    permit.failure(&Failure::transient("lost", "no reply"));
}

async fn becomes(breaker: &Breaker, state: BreakerState) {
    eventually(state.as_str(), async || breaker.state() == state).await;
}

async fn row(harness: &Harness<Db>, condition: &str) -> bool {
    let rows = format!("SELECT count(*) FROM {} WHERE {condition}", Db::table("breakers"));
    Db::count(&harness.admin, &rows).await == 1
}

#[tokio::test]
async fn a_breaker_that_opens_in_one_process_is_open_in_all_within_a_second() {
    let harness = fresh::<Db>().await;
    let ([here, there], _processes, _) = pair(&harness).await;
    let mut quickest = Duration::MAX;
    // On a machine that does other things as well one of a few is quick enough.
    for _ in 0..5 {
        let opened = Instant::now();
        fail(&here);
        becomes(&there, BreakerState::Open).await;
        quickest = quickest.min(opened.elapsed());
        let postponed = there.permit().expect_err("open").retry_in().expect("time helps");
        assert!(postponed <= HOUR && postponed > HOUR / 2, "{postponed:?}");
        here.reset();
        becomes(&there, BreakerState::Closed).await;
        if quickest < Duration::from_secs(1) {
            return;
        }
    }
    panic!("it took {quickest:?} at least");
}

#[tokio::test]
async fn what_a_probe_finds_in_one_process_holds_in_all() {
    let harness = fresh::<Db>().await;
    let ([here, there], _processes, clock) = pair(&harness).await;
    fail(&here);
    becomes(&there, BreakerState::Open).await;

    clock.set_offset(HOUR);
    fail(&there);
    eventually("the second opening lasts twice as long here too", async || {
        here.permit()
            .is_err_and(|open| open.retry_in().is_some_and(|retry_in| retry_in > HOUR))
    })
    .await;
    assert!(row(&harness, "state = 'open' AND openings = 2").await);

    clock.set_offset(3 * HOUR);
    here.permit().expect("a probe").success();
    becomes(&there, BreakerState::Closed).await;
    assert!(row(&harness, "state = 'closed' AND openings = 0").await);
}

#[tokio::test]
async fn processes_that_open_at_once_agree_on_one_row() {
    let harness = fresh::<Db>().await;
    let ([here, there], _processes, _) = pair(&harness).await;
    fail(&here);
    fail(&there);
    eventually("both have heard of one opening", async || {
        row(&harness, "state = 'open'").await
    })
    .await;
    here.reset();
    becomes(&there, BreakerState::Closed).await;
    // Nothing of the first round is left over that would open it again.
    fail(&there);
    becomes(&here, BreakerState::Open).await;
    assert!(row(&harness, "state = 'open' AND openings = 1").await);
}

#[tokio::test]
async fn a_probe_that_is_out_gives_way_to_what_another_process_found() {
    let harness = fresh::<Db>().await;
    let ([here, there], _processes, clock) = pair(&harness).await;
    fail(&here);
    becomes(&there, BreakerState::Open).await;
    clock.set_offset(HOUR);
    let slow = here.permit().expect("a probe here");
    assert!(here.permit().is_err(), "one probe in each process");
    fail(&there);
    becomes(&here, BreakerState::Open).await;
    slow.success();
    assert_eq!(
        here.state(),
        BreakerState::Open,
        "it had ended when the other one's failed"
    );
}

#[tokio::test]
async fn a_persons_word_holds_in_all_processes_and_for_those_to_come() {
    let harness = fresh::<Db>().await;
    let ([here, there], _processes, clock) = pair(&harness).await;
    here.force_open();
    becomes(&there, BreakerState::ForcedOpen).await;
    clock.set_offset(48 * HOUR);
    assert_eq!(there.permit().expect_err("forced").retry_in(), None);

    let late = process(&harness, &clock).await;
    becomes(&late.breaker(payments()).unwrap(), BreakerState::ForcedOpen).await;
    there.force_closed();
    becomes(&here, BreakerState::ForcedClosed).await;
    fail(&here);
    here.reset();
    becomes(&there, BreakerState::Closed).await;
}

#[tokio::test]
async fn a_process_that_starts_late_finds_an_open_breaker_open_and_probes_one_whose_time_is_over() {
    let harness = fresh::<Db>().await;
    let ([here, _], _processes, clock) = pair(&harness).await;
    fail(&here);
    eventually("it is written", async || row(&harness, "state = 'open'").await).await;
    let sf = process(&harness, &clock).await;
    let late = sf.breaker(payments()).unwrap();
    becomes(&late, BreakerState::Open).await;
    assert!(late.permit().is_err());

    clock.set_offset(HOUR);
    let sf = process(&harness, &clock).await;
    let later = sf.breaker(payments()).unwrap();
    becomes(&later, BreakerState::Open).await;
    later.permit().expect("a probe").success();
    becomes(&here, BreakerState::Closed).await;
}

#[tokio::test]
async fn what_a_process_finds_before_its_first_look_is_not_undone_by_an_old_row() {
    let harness = fresh::<Db>().await;
    let ([here, there], _processes, clock) = pair(&harness).await;
    here.force_open();
    becomes(&there, BreakerState::ForcedOpen).await;
    here.reset();
    becomes(&there, BreakerState::Closed).await;
    let sf = process(&harness, &clock).await;
    let late = sf.breaker(payments()).unwrap();
    fail(&late); // nothing was awaited since, so the task has not looked
    becomes(&here, BreakerState::Open).await;
    assert_eq!(late.state(), BreakerState::Open);
}

#[tokio::test]
async fn a_name_is_one_breaker_in_a_process_and_nobody_elses_business_unless_it_is_shared() {
    let harness = fresh::<Db>().await;
    let (sf, other) = (&harness.sf, harness.another().await);
    let alone = || Breaker::named("mail").consecutive_failures(1);
    let breaker = sf.breaker(alone()).unwrap();
    fail(&breaker);
    assert_eq!(sf.breaker(alone()).unwrap().state(), BreakerState::Open);
    assert_eq!(other.breaker(alone()).unwrap().state(), BreakerState::Closed);
    for different in [alone().open_for("7s"), alone().shared()] {
        let error = sf.breaker(different).unwrap_err();
        assert_eq!(error.code(), Code::ConfigurationInvalid);
        assert!(error.to_string().contains("with other settings"), "{error}");
    }
    assert_eq!(sf.breakers().len(), 1);
    // A shared one is written, this one never was.
    fail(&sf.breaker(payments()).unwrap());
    eventually("the shared one is written", async || {
        row(&harness, "name = 'payments'").await
    })
    .await;
    assert!(!row(&harness, "name = 'mail'").await);
}

#[test]
fn a_shared_breaker_needs_somebody_to_look_after_it() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let harness = runtime.block_on(fresh::<Db>());
    let error = harness.sf.breaker(payments()).unwrap_err();
    assert!(error.to_string().contains("inside the tokio runtime"), "{error}");
    assert!(harness.sf.breakers().is_empty());
    let _inside = runtime.enter();
    harness.sf.breaker(payments()).unwrap();
}

#[tokio::test]
async fn an_operator_holds_a_shared_breaker_open_and_closes_it_in_every_process() {
    let harness = fresh::<Db>().await;
    let ([here, there], _processes, _) = pair(&harness).await;
    // From a process that does not have it.
    let sf = &harness.sf;
    let listed = async || sf.shared_breakers().await.unwrap();
    eventually("it is in the table before it ever opened", async || {
        listed().await.len() == 1
    })
    .await;
    let breaker = listed().await.remove(0);
    assert_eq!(
        (&*breaker.name, breaker.state, breaker.openings),
        ("payments", BreakerState::Closed, 0)
    );

    sf.open_breaker("payments", "ann", "maintenance").await.unwrap();
    becomes(&here, BreakerState::ForcedOpen).await;
    becomes(&there, BreakerState::ForcedOpen).await;
    assert_eq!(listed().await[0].state, BreakerState::ForcedOpen);
    sf.close_breaker("payments", "ann", "done").await.unwrap();
    becomes(&here, BreakerState::Closed).await;
    becomes(&there, BreakerState::Closed).await;
    fail(&here);
    becomes(&there, BreakerState::Open).await;
    let breaker = listed().await.remove(0);
    assert!(
        breaker.open_for.is_some_and(|open| open > HOUR / 2 && open <= HOUR),
        "{breaker:?}"
    );
    let refused = sf.open_breaker("payment", "ann", "x").await.unwrap_err();
    assert!(
        refused.code() == Code::InputInvalid && refused.to_string().contains("did you mean `payments`?"),
        "{refused}"
    );
    let entries = format!(
        "SELECT count(*) FROM {} WHERE action LIKE 'breaker.%'",
        Db::table("audit")
    );
    assert_eq!(Db::count(&harness.admin, &entries).await, 2);
}
