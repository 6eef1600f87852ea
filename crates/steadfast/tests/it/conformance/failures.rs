//! What `?` makes of the database's errors, and what becomes of a command that ends in each kind of failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::routing::post;
use axum::{Extension, Router};
use http::StatusCode;
use sqlx::AssertSqlSafe;
use steadfast::{CmdTx, Code, Failure, FailureClass, FailureExt, FailureKind, StoreFailures};
use tower::ServiceExt;

use super::Db;
use crate::harness::{TestDatabase, fresh};

const REFUSED: FailureKind = FailureKind::Definitive(FailureClass::BusinessRule);

#[tokio::test]
async fn what_a_constraint_refuses_is_definitive_and_what_else_fails_may_pass() {
    let harness = fresh::<Db>().await;
    harness
        .run(
            "CREATE TABLE parents (id INTEGER PRIMARY KEY);
             CREATE TABLE children (id INTEGER NOT NULL UNIQUE CHECK (id > 0), parent INTEGER REFERENCES parents (id));
             INSERT INTO children VALUES (1, NULL)",
        )
        .await;
    let fail = async |statement: &str| {
        let ended = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&harness.admin)
            .await;
        Failure::from(ended.unwrap_err()).kind()
    };
    for row in ["(1, NULL)", "(NULL, NULL)", "(-1, NULL)", "(2, 42)"] {
        assert_eq!(
            fail(&format!("INSERT INTO children VALUES {row}")).await,
            REFUSED,
            "{row}"
        );
    }
    if !Db::IS_SQLITE {
        harness
            .run("ALTER TABLE children ADD EXCLUDE USING btree (id WITH =)")
            .await;
        assert_eq!(fail("INSERT INTO children VALUES (1, NULL)").await, REFUSED);
    }
    assert_eq!(fail("SELECT nonsense FROM nowhere").await, FailureKind::Transient);
}

#[tokio::test]
async fn a_row_that_is_not_there_is_told_as_such_and_may_be_kept() {
    let harness = fresh::<Db>().await;
    let ask = async || {
        let command = harness.sf.command("effects.find", "k").owner(&harness.owner);
        let find = command.store_failures(StoreFailures::Definitive).run(async |tx| {
            let tag: String = sqlx::query_scalar("SELECT tag FROM effects WHERE tag = 'none'")
                .fetch_one(tx.db())
                .await?;
            Ok(tag)
        });
        find.await.unwrap_err()
    };
    let (first, again) = (ask().await, ask().await);
    assert!(!first.is_replayed() && again.is_replayed());
    for error in [first, again] {
        let failure = error.failure().unwrap();
        assert_eq!(failure.kind(), FailureKind::Definitive(FailureClass::NotFound));
        assert_eq!(failure.code(), "not_found");
    }
}

#[tokio::test]
async fn a_failure_that_is_not_definitive_is_never_kept() {
    let harness = fresh::<Db>().await;
    let failures: [fn() -> Failure; 4] = [
        || Failure::transient("later", "not now"),
        || Failure::unknown("lost", "no reply"),
        || Failure::snooze(Duration::from_secs(1)),
        Failure::cancelled,
    ];
    for fail in failures {
        let command = harness.sf.command("effects.make", "k").owner(&harness.owner);
        let run = command.store_failures(StoreFailures::Definitive).run(async |tx| {
            sqlx::query("INSERT INTO effects (tag) VALUES ('k')")
                .execute(tx.db())
                .await?;
            Err::<(), _>(fail())
        });
        let error = run.await.unwrap_err();
        assert_eq!(error.code(), Code::HandlerFailed);
        assert_eq!(error.failure().unwrap().kind(), fail().kind());
        assert_eq!((harness.effects().await, harness.keys().await), (0, 0));
    }
}

/// A connection that is lost is trouble, and trouble is repeated; but not against the handler's word.
#[tokio::test]
async fn a_handler_that_calls_trouble_something_else_is_not_run_again() {
    let harness = fresh::<Db>().await;
    let lost = || Err::<(), _>(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()));
    let words: [(&str, fn(_) -> _, _, _); 2] = [
        (
            "definitive",
            FailureExt::definitive,
            REFUSED,
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            "unknown",
            FailureExt::unknown,
            FailureKind::Unknown,
            StatusCode::INTERNAL_SERVER_ERROR,
        ),
    ];
    for (word, say, kind, status) in words {
        let runs = Arc::new(AtomicU32::new(0));
        let command = harness.sf.command("effects.make", word).owner(&harness.owner);
        let run = command.run(async |_| {
            runs.fetch_add(1, Ordering::Relaxed);
            say(lost())
        });
        assert_eq!(run.await.unwrap_err().failure().unwrap().kind(), kind);
        assert_eq!(runs.swap(0, Ordering::Relaxed), 1, "{word}");

        let counted = runs.clone();
        let handler = async move |_: CmdTx<Db>| {
            counted.fetch_add(1, Ordering::Relaxed);
            say(lost())
        };
        let app = Router::new()
            .route("/effects", post(handler).layer(harness.sf.idempotent()))
            .layer(Extension(harness.owner.clone()));
        let request = Request::post("/effects").header("idempotency-key", word);
        let response = app.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(runs.load(Ordering::Relaxed), 1, "{word}");
    }
}
