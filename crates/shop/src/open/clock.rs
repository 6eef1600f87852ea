//! The lab's clock: an offset in the database, so that all processes on it live at the same time.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use steadfast::{AuditEntry, Failure, FailureClass, Steadfast, parse_duration};

use super::Db;
use crate::input::{Input, Rules};

/// How far ahead the clock can be moved in all: a hundred years, far from the end of any column.
const AHEAD_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The body of `POST /lab/clock`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Advance {
    advance: String,
}

impl Rules for Advance {
    fn check(&self) -> Result<(), String> {
        let advance = parse_duration(&self.advance).map_err(|error| error.to_string())?;
        if advance > AHEAD_MAX {
            return Err(format!(
                "advance is {}; move the clock by at most a hundred years",
                self.advance
            ));
        }
        Ok(())
    }
}

/// `GET /lab/clock` and `POST /lab/clock {"advance":"24h"}`.
pub(super) fn routes() -> Router<Steadfast<Db>> {
    Router::new().route("/lab/clock", get(show).post(advance))
}

/// Before each request: takes over what the other processes have done to the time.
pub(super) async fn follow(State(sf): State<Steadfast<Db>>, request: Request, next: Next) -> Response {
    match read(&sf).await {
        Ok(ahead) => {
            sf.clock().set_offset(ahead);
            next.run(request).await
        }
        // A wrong time would let the lab prove wrong things.
        Err(failure) => failure.into_response(),
    }
}

async fn read(sf: &Steadfast<Db>) -> Result<Duration, Failure> {
    let offset_ms: Option<i64> = sqlx::query_scalar("SELECT offset_ms FROM lab_clock")
        .fetch_optional(sf.pool())
        .await?;
    Ok(millis(offset_ms.unwrap_or(0)))
}

async fn show(State(sf): State<Steadfast<Db>>) -> Result<Json<Value>, Failure> {
    Ok(describe(read(&sf).await?))
}

async fn advance(State(sf): State<Steadfast<Db>>, Input(body): Input<Advance>) -> Result<Json<Value>, Response> {
    let advance = parse_duration(&body.advance).map_err(IntoResponse::into_response)?;
    let ahead = sf
        .transact(async |tx| {
            let upsert = "
                INSERT INTO lab_clock (id, offset_ms) VALUES (1, $1)
                ON CONFLICT (id) DO UPDATE SET offset_ms = lab_clock.offset_ms + excluded.offset_ms
                RETURNING offset_ms";
            let offset_ms: i64 = sqlx::query_scalar(upsert)
                .bind(i64::try_from(advance.as_millis())?)
                .fetch_one(tx.db())
                .await?;
            let ahead = millis(offset_ms);
            if ahead > AHEAD_MAX {
                return Err(Failure::definitive(
                    FailureClass::BusinessRule,
                    "too_far_ahead",
                    "the clock would be more than a hundred years ahead; start with a fresh database",
                ));
            }
            let entry =
                AuditEntry::new("lab", "clock.advance", body.advance.as_str()).because("asked by POST /lab/clock");
            tx.audit(&entry).await?;
            Ok(ahead)
        })
        .await
        .map_err(IntoResponse::into_response)?;
    sf.clock().set_offset(ahead);
    Ok(describe(ahead))
}

fn describe(ahead: Duration) -> Json<Value> {
    Json(json!({ "ahead_ms": ahead.as_millis() as u64 }))
}

fn millis(offset_ms: i64) -> Duration {
    Duration::from_millis(offset_ms.unsigned_abs())
}
