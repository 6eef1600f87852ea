//! How the outbox is doing: counts, the forecast, the gauges, the doctor, and whether the process is ready.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use steadfast::{
    Backlog, Check, Clock, Count, Dispatcher, EventCx, Failure, FailureClass, KindStats, OutboxStats, Steadfast,
    Verdict,
};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use super::Db;
use super::queue::{Heard, Tagged, at_once, ordered, process, publish, rows, run, stop, tagged};
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

const MINUTE: Duration = Duration::from_secs(60);

fn exactly(number: u64) -> Count {
    Count {
        number,
        is_capped: false,
    }
}

async fn kind(sf: &Steadfast<Db>, name: &str) -> KindStats {
    let OutboxStats { kinds, .. } = sf.outbox_stats().await.unwrap();
    let found = kinds.iter().find(|kind| kind.kind == name);
    found.unwrap_or_else(|| panic!("{name} is not among {kinds:?}")).clone()
}

/// A reaction that waits for a permit before each message, and says that it has begun.
fn hold(sf: &Steadfast<Db>, name: &str) -> (Arc<Semaphore>, Arc<Semaphore>) {
    let (started, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begins, may_end) = (started.clone(), go_on.clone());
    let work = move |_: &EventCx, _: Tagged| {
        let (begins, may_end) = (begins.clone(), may_end.clone());
        async move {
            begins.add_permits(1);
            may_end.acquire().await.unwrap().forget();
            Ok(())
        }
    };
    sf.reaction::<Tagged>(name).run_outside(work);
    (started, go_on)
}

/// A reaction that gives up on everything.
fn refuse(sf: &Steadfast<Db>, name: &str) {
    let refuse =
        |_: &EventCx, _: Tagged| async { Err(Failure::definitive(FailureClass::BusinessRule, "bad", "never")) };
    sf.reaction::<Tagged>(name).run_outside(refuse);
}

#[tokio::test]
async fn rows_are_counted_by_what_they_wait_for() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    refuse(&sf, "test.refuse");
    sf.declare().await.unwrap();
    publish(&sf, &tagged("dead")).await;
    sf.drain().await.unwrap();
    let dead = kind(&sf, "test.refuse").await;
    assert_eq!(
        (dead.dead, dead.pending, dead.leased),
        (exactly(1), exactly(0), exactly(0))
    );
    assert_eq!((dead.oldest, dead.lag), (None, None), "what is dead is not late");
    assert!(dead.is_known() && dead.is_target && dead.paused.is_none());

    // One of each key is worked on; the one behind it is put off.
    let worker = process(&harness, &clock, Dispatcher::default()).await;
    let (started, go_on) = hold(&worker, "test.hold");
    worker.declare().await.unwrap();
    for (key, tag) in [("a", 1), ("a", 2), ("b", 3)] {
        publish(&sf, &ordered(key, tag)).await;
    }
    let dispatching = run(&worker);
    started.acquire_many(2).await.unwrap().forget();
    eventually("two are leased and one waits", async || {
        let held = kind(&sf, "test.hold").await;
        (held.leased, held.waiting, held.pending, held.due) == (exactly(2), exactly(1), exactly(1), exactly(0))
    })
    .await;
    clock.set_offset(Duration::from_secs(5));
    let held = kind(&sf, "test.hold").await;
    assert!(
        held.oldest.unwrap() >= Duration::from_secs(5) && held.lag.unwrap() >= Duration::from_secs(5),
        "{held:?}"
    );
    let others = kind(&sf, "test.refuse").await;
    assert_eq!(others.due, exactly(3), "nobody has looked at those");
    go_on.add_permits(3);
    eventually("all three are finished", async || {
        kind(&sf, "test.hold").await.finished_per_hour == 3
    })
    .await;
    stop(&worker, dispatching).await;
    assert_eq!(sf.outbox_stats().await.unwrap().backlog(), exactly(3));
}

#[tokio::test]
async fn what_comes_and_goes_in_an_hour_says_what_becomes_of_the_backlog() {
    let harness = fresh::<Db>().await;
    let heard = Heard::default();
    heard.hear(&harness.sf, "test.hear", at_once(0));
    harness.sf.declare().await.unwrap();
    for number in 0..6 {
        publish(&harness.sf, &tagged(number)).await;
    }
    let stats = harness.sf.outbox_stats().await.unwrap();
    assert_eq!((stats.flow.messages_per_hour, stats.flow.entered_per_hour), (6, 6));
    assert_eq!(stats.forecast().backlog, Backlog::DoublesIn(60 * MINUTE));
    assert_eq!(
        stats.forecast().to_string(),
        "the backlog grows by 6 an hour; at this pace it doubles in 60 min"
    );
    harness.sf.drain().await.unwrap();
    let stats = harness.sf.outbox_stats().await.unwrap();
    assert_eq!((stats.flow.entered_per_hour, stats.flow.finished_per_hour), (6, 6));
    assert_eq!(
        stats.forecast().to_string(),
        "nothing waits; 6 rows come in an hour, and are done"
    );
    assert_eq!(stats.forecast().retained_messages, 6 * 24 * 7);
    assert_eq!(stats.flow.window, 60 * MINUTE);
    let payload = r#"{"tag":"0","key":null}"#.len() as u64;
    assert!(
        (payload..payload + 8).contains(&stats.flow.payload_bytes),
        "{:?}",
        stats.flow
    );
    assert!(
        stats.tables.iter().any(|table| table.name == "messages"),
        "{:?}",
        stats.tables
    );
    assert!(
        stats
            .tables
            .iter()
            .any(|table| table.bytes.is_some_and(|bytes| bytes > 0))
    );
}

/// Rows that are due, by plain SQL.
async fn fill_queue(harness: &Harness<Db>, kind: &str, count: u32) {
    let queue = Db::table("queue");
    let (numbers, id, now) = if Db::IS_SQLITE {
        let numbers = format!(
            "(WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count}) SELECT n FROM n)"
        );
        (
            numbers,
            "printf('019b0000-0000-7000-8000-%012x', n)",
            "unixepoch() * 1000000",
        )
    } else {
        let id = "('019b0000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid";
        (format!("generate_series(1, {count}) AS s (n)"), id, "clock_timestamp()")
    };
    harness
        .run(&format!(
            "INSERT INTO {queue} (visible_at, due_at, item, state, kind)
             SELECT {now}, {now}, {id}, 'pending', '{kind}' FROM {numbers}"
        ))
        .await;
}

#[tokio::test]
async fn a_huge_backlog_is_counted_up_to_a_limit_and_says_so() {
    let harness = fresh::<Db>().await;
    fill_queue(&harness, "test.huge", 100_010).await;
    let (sf, clock) = harness.another_with_clock().await;
    clock.set_offset(10 * MINUTE);
    let huge = kind(&sf, "test.huge").await;
    assert_eq!(huge.pending.to_string(), "at least 100000");
    assert!(huge.lag.unwrap() >= 10 * MINUTE);
    assert!(!huge.is_known() && !huge.is_target);
    assert!(sf.outbox_stats().await.unwrap().backlog().is_capped);
}

async fn examined(harness: &Harness<Db>, clock: &Clock) -> Vec<Check> {
    let pool = Db::another_pool(harness, PoolSize::default());
    Steadfast::builder(pool).clock(clock.clone()).examine().await
}

/// The checks of the outbox that are not as they should be.
async fn wrong(harness: &Harness<Db>, clock: &Clock) -> Vec<(&'static str, String)> {
    let names = [
        "kinds",
        "targets",
        "pending",
        "paused",
        "dead_letters",
        "retention",
        "outbox",
    ];
    let checks = examined(harness, clock).await.into_iter();
    let wrong = checks.filter(|check| names.contains(&check.name) && check.verdict != Verdict::Ok);
    wrong.map(|check| (check.name, check.found)).collect()
}

#[tokio::test]
async fn the_doctor_tells_what_is_wrong_with_the_outbox() {
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let sf = process(&harness, &clock, Dispatcher::default()).await;
    assert_eq!(wrong(&harness, &clock).await, []);
    refuse(&sf, "test.refuse");
    sf.declare().await.unwrap();
    publish(&sf, &tagged("dead")).await;
    sf.drain().await.unwrap();
    let found = wrong(&harness, &clock).await;
    assert_eq!(
        found,
        [("dead_letters", "deliveries were given up: test.refuse (1)".to_owned())]
    );

    clock.set_offset(6 * MINUTE);
    publish(&sf, &tagged("late")).await;
    let found = wrong(&harness, &clock).await;
    let lost = "rows wait that no running process knows: test.refuse (1 pending, last seen 6 min ago)";
    assert_eq!(found[0], ("kinds", lost.to_owned()));

    clock.set_offset(12 * MINUTE);
    sf.declare().await.unwrap();
    let found = wrong(&harness, &clock).await;
    assert!(
        found[0].0 == "pending" && found[0].1.contains("test.refuse (1 pending, the oldest for 6 min)"),
        "{found:?}"
    );

    let (kinds, now) = (Db::table("kinds"), if Db::IS_SQLITE { "0" } else { "'epoch'" });
    harness
        .run(&format!(
            "UPDATE {kinds} SET paused_at = {now}, paused_by = 'ops', paused_reason = 'the provider is down'"
        ))
        .await;
    let found = wrong(&harness, &clock).await;
    let paused = "targets or queues are paused: test.refuse (1 pending, by ops: the provider is down)";
    assert_eq!(found[0], ("paused", paused.to_owned()));

    publish(&harness.sf, &tagged("old")).await;
    harness.run(&format!("DELETE FROM {}", Db::table("queue"))).await;
    clock.set_offset(9 * 24 * 60 * MINUTE);
    let found = wrong(&harness, &clock).await;
    let names: Vec<_> = found.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["targets", "paused", "retention"], "{found:?}");
    sf.purge().await.unwrap();
    let found = wrong(&harness, &clock).await;
    assert_eq!(found.len(), 2, "the purge has been there: {found:?}");
}

#[tokio::test]
async fn dead_letters_and_a_paused_target_leave_the_process_ready() {
    let harness = fresh::<Db>().await;
    refuse(&harness.sf, "test.refuse");
    harness.sf.declare().await.unwrap();
    publish(&harness.sf, &tagged("dead")).await;
    harness.sf.drain().await.unwrap();
    let kinds = Db::table("kinds");
    harness.run(&format!("UPDATE {kinds} SET paused_at = seen_at")).await;
    let (status, body) = get(&harness.sf, "/readyz?verbose").await;
    assert_eq!(status, StatusCode::OK);
    assert!(body.contains("[+] dispatcher ok"), "{body}");
}

pub(super) async fn get(sf: &Steadfast<Db>, uri: &str) -> (StatusCode, String) {
    let app: Router = sf.routes();
    let response = app
        .oneshot(Request::get(uri).body(Body::empty()).unwrap())
        .await
        .unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// The value of a metric, by its name and labels as they are written.
#[cfg(feature = "prometheus")]
async fn metric(sf: &Steadfast<Db>, name: &str) -> Option<f64> {
    let (_, text) = get(sf, "/metrics").await;
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
}

#[cfg(feature = "prometheus")]
#[tokio::test]
async fn one_process_shows_the_gauges_and_the_others_zeros() {
    assert!(steadfast::telemetry::install_prometheus());
    // All tests of this program share a recorder.
    let name = if Db::IS_SQLITE {
        "gauge.sqlite"
    } else {
        "gauge.postgres"
    };
    let gauge = |state: &str| format!("steadfast_queue_rows{{kind=\"{name}\",state=\"{state}\"}}");
    let harness = fresh::<Db>().await;
    let clock = Clock::default();
    let one = process(&harness, &clock, Dispatcher::off()).await;
    let other = process(&harness, &clock, Dispatcher::off()).await;
    refuse(&one, name);
    one.declare().await.unwrap();
    publish(&one, &tagged("dead")).await;
    one.drain().await.unwrap();
    for tag in ["a", "b"] {
        publish(&one, &tagged(tag)).await;
    }
    clock.set_offset(Duration::from_secs(30));
    assert!(one.refresh_gauges().await.unwrap());
    assert!(!other.refresh_gauges().await.unwrap(), "one looks at a time");
    for (state, number) in [("pending", 2.0), ("leased", 0.0), ("dead", 1.0)] {
        assert_eq!(metric(&one, &gauge(state)).await, Some(number), "{state}");
    }
    let oldest = format!("steadfast_queue_oldest_seconds{{kind=\"{name}\"}}");
    assert!(metric(&one, &oldest).await.unwrap() >= 30.0);

    clock.set_offset(Duration::from_secs(30 + 91));
    assert!(other.refresh_gauges().await.unwrap(), "the lease has run out");
    assert!(!one.refresh_gauges().await.unwrap());
    assert_eq!(
        metric(&one, &gauge("pending")).await,
        Some(0.0),
        "who lost it shows zeros"
    );
}

#[cfg(feature = "prometheus")]
#[tokio::test]
async fn every_attempt_to_deliver_is_counted_by_how_it_ended() {
    assert!(steadfast::telemetry::install_prometheus());
    let database = if Db::IS_SQLITE { "sqlite" } else { "postgres" };
    let (keep, hear) = (format!("count.keep.{database}"), format!("count.hear.{database}"));
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>(&keep).run(super::queue::keep);
    let try_twice = move |cx: &EventCx, event: Tagged| {
        let is_first = cx.attempt() == 1;
        async move {
            match (&*event.tag, is_first) {
                ("bad", _) => Err(Failure::definitive(FailureClass::BusinessRule, "bad", "never")),
                (_, true) => Err(Failure::transient("slow", "not yet")),
                (_, false) => Ok(()),
            }
        }
    };
    harness
        .sf
        .reaction::<Tagged>(&hear)
        .retry(at_once(3))
        .run_outside(try_twice);
    harness.sf.declare().await.unwrap();
    for tag in ["good", "bad"] {
        publish(&harness.sf, &tagged(tag)).await;
    }
    harness.sf.drain().await.unwrap();
    let ended = async |kind: &str, result: &str| {
        let name = format!("steadfast_deliveries_total{{kind=\"{kind}\",result=\"{result}\"}}");
        metric(&harness.sf, &name).await
    };
    assert_eq!(ended(&keep, "delivered").await, Some(2.0), "with the handler's commit");
    assert_eq!(ended(&hear, "delivered").await, Some(1.0));
    assert_eq!(
        (ended(&hear, "retried").await, ended(&hear, "dead").await),
        (Some(1.0), Some(1.0))
    );
    let lag = format!("steadfast_delivery_lag_seconds_count{{kind=\"{hear}\"}}");
    assert_eq!(metric(&harness.sf, &lag).await, Some(2.0), "the first attempt of each");
    assert_eq!(rows(&harness, "failures").await, 2);
}
