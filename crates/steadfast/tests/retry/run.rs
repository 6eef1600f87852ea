//! Calls that are tried again, with tokio's own clock standing still.

use std::cell::Cell;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use steadfast::{Failure, FailureClass, FailureKind, RetryPolicy, retry};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const PLAIN: RetryPolicy = retry!(retries = 5, backoff = exponential("200ms"), jitter = none);

/// How often it was called, how long it took, and how it ended.
async fn run(policy: RetryPolicy, fail: impl Fn(u32) -> Failure) -> (u32, Duration, Failure) {
    let (started, calls) = (Instant::now(), Cell::new(0));
    let ended = policy.run(async || {
        calls.set(calls.get() + 1);
        Err::<(), _>(fail(calls.get()))
    });
    let failure = ended.await.unwrap_err();
    (calls.get(), started.elapsed(), failure)
}

#[tokio::test(start_paused = true)]
async fn five_retries_are_six_attempts_and_the_last_failure_is_returned() {
    let (calls, took, failure) = run(PLAIN, |call| Failure::transient(format!("call_{call}"), "not now")).await;
    assert_eq!((calls, failure.code()), (6, "call_6"));
    assert_eq!(took.as_millis(), 200 + 400 + 800 + 1_600 + 3_200);
}

#[tokio::test(start_paused = true)]
async fn a_success_ends_it() {
    let mut calls = 0;
    let ended = PLAIN.run(|| {
        calls += 1;
        let answer = match calls {
            3 => Ok("here you are"),
            _ => Err(std::io::Error::from(ErrorKind::ConnectionRefused)),
        };
        async { answer }
    });
    assert_eq!(ended.await.unwrap(), "here you are");
}

#[tokio::test(start_paused = true)]
async fn a_definitive_failure_is_never_tried_again() {
    let gone = |_| Failure::definitive(FailureClass::NotFound, "gone", "gone");
    let (calls, took, _) = run(PLAIN.with_key(), gone).await;
    assert_eq!((calls, took), (1, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_only_tried_again_with_a_key() {
    let lost = |_| Failure::unknown("lost", "no reply");
    assert_eq!(run(PLAIN, lost).await.0, 1);
    assert_eq!(run(PLAIN.with_key(), lost).await.0, 6);
}

#[tokio::test(start_paused = true)]
async fn a_snooze_spends_no_attempt_and_cannot_go_on_for_ever() {
    let minute = Duration::from_secs(60);
    let early = |call| match call {
        1..=3 => Failure::snooze(minute),
        _ => Failure::transient("busy", "not now"),
    };
    let (calls, took, _) = run(PLAIN, early).await;
    assert_eq!((calls, took), (9, 3 * minute + Duration::from_millis(6_200)));
    let (calls, _, failure) = run(PLAIN, |_| Failure::snooze(minute)).await;
    assert_eq!((calls, failure.kind()), (101, FailureKind::Snooze));
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_waited_for_and_the_age_ends_it() {
    let asked = |_| Failure::transient("busy", "not now").with_retry_after(Duration::from_secs(30));
    let once = retry!(retries = 1, jitter = none);
    assert_eq!(run(once, asked).await.1, Duration::from_secs(30));
    let (calls, took, _) = run(retry!(retries = 100, max_age = "1m"), asked).await;
    assert_eq!((calls, took), (3, Duration::from_secs(60)));
}

/// Cancels after a second, in the middle of an hour's wait.
async fn cancelled(fail: fn() -> Failure) -> (u32, Duration, Failure) {
    let (started, calls, token) = (Instant::now(), Cell::new(0), CancellationToken::new());
    let policy = retry!(backoff = constant("1h"), jitter = none).with_key();
    let run = policy.operation("test").cancelled_by(&token).run(async || {
        calls.set(calls.get() + 1);
        Err::<(), _>(fail())
    });
    let cancel = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        token.cancel();
    };
    let (ended, ()) = tokio::join!(run, cancel);
    (calls.get(), started.elapsed(), ended.unwrap_err())
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_wins_over_waiting_at_once() {
    let (calls, took, failure) = cancelled(|| Failure::transient("busy", "not now")).await;
    assert_eq!((calls, took), (1, Duration::from_secs(1)));
    assert_eq!(failure.kind(), FailureKind::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_does_not_hide_that_an_outcome_is_unknown() {
    let (calls, took, failure) = cancelled(|| Failure::unknown("lost", "no reply")).await;
    assert_eq!((calls, took), (1, Duration::from_secs(1)));
    assert_eq!(failure.kind(), FailureKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn what_was_unknown_once_stays_so_until_it_is_settled() {
    let first_lost = |then: fn() -> Failure| {
        move |call| match call {
            1 => Failure::unknown("lost", "no reply"),
            _ => then(),
        }
    };
    let busy = run(PLAIN.with_key(), first_lost(|| Failure::transient("busy", "not now"))).await;
    assert_eq!((busy.0, busy.2.kind()), (6, FailureKind::Unknown));
    let put_off = run(PLAIN.with_key(), first_lost(|| Failure::snooze(Duration::from_secs(1)))).await;
    assert_eq!((put_off.0, put_off.2.kind()), (102, FailureKind::Unknown));
    let gone = || Failure::definitive(FailureClass::NotFound, "gone", "gone");
    let denied = run(PLAIN.with_key(), first_lost(gone)).await;
    assert_eq!((denied.0, denied.2.kind()), (2, gone().kind()));
}

#[tokio::test(start_paused = true)]
async fn what_is_cancelled_beforehand_is_not_called_and_an_attempt_is_not_interrupted() {
    let token = CancellationToken::new();
    let retrying = PLAIN.operation("test").cancelled_by(&token);
    let interrupted = retrying.run(async || {
        token.cancel();
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok::<_, Failure>("done")
    });
    assert_eq!(interrupted.await.unwrap(), "done");
    let beforehand = retrying.run(async || -> Result<(), Failure> { unreachable!("it is cancelled") });
    assert_eq!(beforehand.await.unwrap_err().kind(), FailureKind::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_tried_again_may_move_between_threads() {
    let name = "tea".to_owned();
    let task = tokio::spawn(async move {
        let calls = AtomicU32::new(0);
        let call = async || {
            tokio::task::yield_now().await;
            match calls.fetch_add(1, Ordering::Relaxed) {
                0 => Err(Failure::transient("busy", "not now")),
                _ => Ok(name.len()),
            }
        };
        PLAIN.operation("test").correlation_id("id-1").run(call).await
    });
    assert_eq!(task.await.unwrap().unwrap(), 3);
}
