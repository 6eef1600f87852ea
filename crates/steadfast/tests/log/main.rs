//! What reaches the log. A binary of its own: the log belongs to the whole process.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]
#![allow(dead_code, reason = "the harness is that of the other tests")]

#[path = "../it/harness.rs"]
mod harness;

use std::io::Write;
use std::sync::{Mutex, Once};

use axum::body::Body;
use axum::extract::Request;
use axum::routing::post;
use axum::{Extension, Router};
use harness::{TestDatabase, fresh};
use http::StatusCode;
use steadfast::{CmdTx, Failure};
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

/// Sends requests that end in every way, with a canary wherever a client can put one.
async fn canaries_stay_out_of_the_log<Db: TestDatabase>() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(|| Log);
        subscriber.init();
    });
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
    let text = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    assert!(
        text.contains("command ended") && text.contains("harmless"),
        "the log says something: {text}"
    );
    if let Some(line) = text.lines().find(|line| line.contains("canary")) {
        panic!("a client's words are in the log: {line}");
    }
}

mod sqlite {
    #[tokio::test]
    async fn keys_bodies_and_answers_do_not_reach_the_log() {
        super::canaries_stay_out_of_the_log::<sqlx::Sqlite>().await;
    }
}

mod postgres {
    #[tokio::test]
    async fn keys_bodies_and_answers_do_not_reach_the_log() {
        super::canaries_stay_out_of_the_log::<sqlx::Postgres>().await;
    }
}
