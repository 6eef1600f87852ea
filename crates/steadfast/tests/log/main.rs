//! What reaches the log. A binary of its own: the log belongs to the whole process.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]
#![allow(dead_code, reason = "the harness is that of the other tests")]

#[path = "../it/harness.rs"]
mod harness;

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once};

use axum::body::Body;
use axum::extract::Request;
use axum::routing::post;
use axum::{Extension, Router};
use harness::{TestDatabase, fresh};
use http::StatusCode;
use steadfast::{CmdTx, Failure, RetryPolicy};
use tower::ServiceExt;

/// Everything that was logged, by anybody.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn listen() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(|| Log);
        subscriber.init();
    });
}

fn logged() -> String {
    String::from_utf8(LOG.lock().unwrap().clone()).unwrap()
}

/// Sends requests that end in every way, with a canary wherever a client can put one.
async fn canaries_stay_out_of_the_log<Db: TestDatabase>() {
    listen();
    let harness = fresh::<Db>().await;
    let succeed = async |_: CmdTx<Db>| (StatusCode::CREATED, "canary-answer");
    let refuse = async |_: CmdTx<Db>| Failure::transient("later", "canary-answer");
    let panic = async |_: CmdTx<Db>| -> StatusCode { panic!("harmless") };
    let app = Router::new()
        .route("/succeed", post(succeed))
        .route("/refuse", post(refuse))
        .route("/panic", post(panic))
        .route_layer(harness.sf.idempotent())
        .layer(Extension(harness.owner.clone()));
    for (path, key, body, status) in [
        ("/succeed", "canary-key", r#"{"pan":"canary-body"}"#, 201),
        ("/succeed", "canary-key", r#"{"pan":"canary-body"}"#, 201),
        ("/succeed", "canary-key", r#"{"pan":"canary-other"}"#, 422),
        ("/succeed", "canary-key2", "canary-nonsense", 400),
        ("/refuse", "canary-key3", r#"{"pan":"canary-body"}"#, 503),
        ("/panic", "canary-key4", r#"{"pan":"canary-body"}"#, 500),
    ] {
        let request = Request::post(path)
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .header("x-secret", "canary-header")
            .body(Body::from(body))
            .unwrap();
        assert_eq!(app.clone().oneshot(request).await.unwrap().status(), status, "{path}");
    }
    let text = logged();
    assert!(
        text.contains("command ended") && text.contains("harmless"),
        "the log says something: {text}"
    );
    if let Some(line) = text.lines().find(|line| line.contains("canary")) {
        panic!("a client's words are in the log: {line}");
    }
}

/// The line of the retry of this operation, which has all it must have.
#[track_caller]
fn assert_one_line_for_the_retry_of(operation: &str) -> String {
    let (text, operation) = (
        logged(),
        format!("operation=\"{operation}\" attempt=1 next_attempt=\"20"),
    );
    let mut lines = text.lines().filter(|line| line.contains("failed, is tried again"));
    let line = lines.find(|line| line.contains(&operation));
    line.unwrap_or_else(|| panic!("there is no {operation} in {text}"))
        .to_owned()
}

#[tokio::test]
async fn a_retry_is_logged_with_operation_attempt_next_attempt_and_correlation_id() {
    listen();
    let policy: RetryPolicy = "retries = 1, backoff = immediate".parse().unwrap();
    let calls = AtomicU32::new(0);
    let fail_once = async || match calls.fetch_add(1, Ordering::Relaxed) {
        0 => Err(Failure::transient("busy", "not now")),
        _ => Ok(()),
    };
    let run = policy.operation("quotes.ask").correlation_id("trace-7").run(fail_once);
    run.await.unwrap();
    let line = assert_one_line_for_the_retry_of("quotes.ask");
    assert!(line.contains("correlation_id=\"trace-7\" code=\"busy\""), "{line}");
}

/// The corridor's repetitions are retries like all others.
#[tokio::test]
async fn a_command_that_runs_again_is_logged_as_every_retry_is() {
    listen();
    let harness = fresh::<sqlx::Sqlite>().await;
    let runs = AtomicU32::new(0);
    let command = harness
        .sf
        .command("effects.repeat", "canary-key5")
        .owner(&harness.owner);
    let run = command.run(async |_| match runs.fetch_add(1, Ordering::Relaxed) {
        0 => Err(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()).into()),
        _ => Ok(()),
    });
    run.await.unwrap();
    let line = assert_one_line_for_the_retry_of("effects.repeat");
    assert!(
        line.contains("correlation_id=") && line.contains("code=\"SF109\""),
        "{line}"
    );
}

/// Rows of a kind that no process has ever known, looked at twice.
async fn rows_that_nobody_knows_are_worth_one_line<Db: TestDatabase>(kind: &str) {
    listen();
    let harness = fresh::<Db>().await;
    let (queue, now) = (Db::table("queue"), if Db::IS_SQLITE { "0" } else { "'epoch'" });
    let id = "019b0000-0000-7000-8000-000000000001";
    harness
        .run(&format!(
            "INSERT INTO {queue} (visible_at, due_at, item, state, kind) VALUES ({now}, {now}, '{id}', 'pending', '{kind}')"
        ))
        .await;
    for _ in 0..2 {
        assert!(harness.sf.refresh_gauges().await.unwrap());
    }
    let text = logged();
    let lines = text.lines().filter(|line| line.contains(kind) && line.contains("WARN"));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("rows are due that no running process knows") && lines[0].contains("due=1"),
        "{lines:?}"
    );
}

mod sqlite {
    #[tokio::test]
    async fn rows_that_nobody_knows_are_worth_one_line() {
        super::rows_that_nobody_knows_are_worth_one_line::<sqlx::Sqlite>("lost.sqlite").await;
    }

    #[tokio::test]
    async fn keys_bodies_and_answers_do_not_reach_the_log() {
        super::canaries_stay_out_of_the_log::<sqlx::Sqlite>().await;
    }
}

mod postgres {
    mod across;

    #[tokio::test]
    async fn rows_that_nobody_knows_are_worth_one_line() {
        super::rows_that_nobody_knows_are_worth_one_line::<sqlx::Postgres>("lost.postgres").await;
    }

    #[tokio::test]
    async fn keys_bodies_and_answers_do_not_reach_the_log() {
        super::canaries_stay_out_of_the_log::<sqlx::Postgres>().await;
    }
}
