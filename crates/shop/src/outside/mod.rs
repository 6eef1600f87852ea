//! The outside world to practise on: mail, payments, shipping and webhooks, in a process of its own that survives the
//! shop's death (`shop outside`).
//!
//! The way of a call: [`behaviour`] decides what happens to it, [`ledger`] writes it down together with the effect that its
//! service makes, and then the answer is sent, late, or not at all ([`connection`]). It is plain sqlx on a file of its own:
//! whoever is to be judged by a ledger should not have written it.

mod behaviour;
mod connection;
mod ledger;
mod mail;
mod payments;
mod shipping;
mod webhooks;

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::problem::{Problem, no_such_method};
use crate::{StartError, listen, sqlite};
use behaviour::{Behaviour, Behaviours};
use ledger::{Answer, Call, Ledger, Page};

/// How the outside world is opened.
#[derive(Args)]
pub(crate) struct OutsideOptions {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7979")]
    listen: String,
    /// Where every call and every effect is written down
    #[arg(long, value_name = "URL", default_value = "sqlite://.steadfast/outside.db")]
    ledger: String,
}

/// A service that can be told how to behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Mail,
    Payments,
    Shipping,
    Webhooks,
}

impl Service {
    const ALL: [Self; 4] = [Self::Mail, Self::Payments, Self::Shipping, Self::Webhooks];

    fn as_str(self) -> &'static str {
        match self {
            Self::Mail => "mail",
            Self::Payments => "payments",
            Self::Shipping => "shipping",
            Self::Webhooks => "webhooks",
        }
    }

    fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|service| service.as_str() == text)
    }
}

/// What all services share.
#[derive(Clone)]
struct Outside {
    ledger: Ledger,
    behaviours: Arc<Behaviours>,
}

pub(crate) async fn serve(options: &OutsideOptions) -> Result<(), StartError> {
    if !options.ledger.starts_with("sqlite:") {
        return Err(format!("the ledger is {:?}; write sqlite://FILE", options.ledger).into());
    }
    sqlite::make_directory(&options.ledger)?;
    let outside = Outside {
        ledger: Ledger::open(&options.ledger).await?,
        behaviours: Arc::default(),
    };
    let listener = listen::bind(Some(&options.listen), 0).await?;
    println!("{}", greeting(&format!("http://{}", listener.local_addr()?)));
    connection::serve(listener, router(outside)).await
}

fn greeting(url: &str) -> String {
    format!(
        "
The outside world is there:
{url}

Take some money, once for each key
  curl -i {url}/payments -H 'Idempotency-Key: p-1' -H 'Content-Type: application/json' -d '{{\"amount\":1250,\"currency\":\"EUR\"}}'
Let the next two payments be made, and their answers be lost
  curl -i {url}/behaviour -H 'Content-Type: application/json' -d '{{\"service\":\"payments\",\"do\":\"drop\",\"next\":2}}'
Everything that was asked and everything that was done
  curl {url}/ledger
Open the shop with it, in another terminal
  cargo run -- --outside {url}
"
    )
}

fn router(outside: Outside) -> Router {
    Router::new()
        .merge(mail::routes())
        .merge(payments::routes())
        .merge(shipping::routes())
        .merge(webhooks::routes())
        .merge(behaviour::routes())
        .route("/ledger", get(show_ledger))
        .route("/livez", get(StatusCode::OK))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(outside)
}

async fn no_such_path() -> Problem {
    let detail = "there is nothing at this path; the outside world has /mail, /payments, /shipping/quote, /webhooks/{name}, /behaviour \
                  and /ledger";
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}

async fn show_ledger(State(outside): State<Outside>, page: Result<Query<Page>, QueryRejection>) -> Response {
    let Query(page) = match page {
        Ok(page) => page,
        Err(rejection) => {
            return Problem::new(StatusCode::BAD_REQUEST, "invalid", rejection.body_text()).into_response();
        }
    };
    match outside.ledger.page(&page).await {
        Ok(shown) => Json(shown).into_response(),
        Err(error) => broken(&error),
    }
}

impl Outside {
    /// Takes a call through: what happens to it, what it does, and when its answer is sent.
    async fn receive(&self, call: Call<'_>, work: impl ledger::Work) -> Response {
        let behaviour = self.behaviours.next(call.service);
        let (call, answered) = match behaviour {
            Behaviour::Fail(status) => {
                let answer = Answer::refused(status, "told_to_fail", "the outside world was told to fail");
                (
                    call,
                    self.ledger.record(&call, behaviour, &answer).await.map(|()| answer),
                )
            }
            Behaviour::Succeed | Behaviour::Slow(_) | Behaviour::Drop => {
                (call, self.ledger.carry_out(&call, behaviour, work).await)
            }
        };
        let answer = match answered {
            Ok(answer) => answer,
            Err(error) => return broken(&error),
        };
        tracing::info!(service = call.service.as_str(), operation = call.operation, status = answer.status, %behaviour, "called");
        let mut response = answer.into_response();
        match behaviour {
            Behaviour::Slow(delay) => tokio::time::sleep(delay).await,
            Behaviour::Drop => {
                response.extensions_mut().insert(connection::Dropped);
            }
            Behaviour::Succeed | Behaviour::Fail(_) => {}
        }
        response
    }
}

/// The ledger could not be written: nothing was done.
fn broken(error: &sqlx::Error) -> Response {
    tracing::error!(%error, "the ledger cannot be used");
    let detail = "the ledger cannot be used; nothing was done";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "ledger", detail).into_response()
}

/// The key of a call, if it has one.
fn key(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get("idempotency-key")?.to_str().ok()?.trim();
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    Some(quoted.unwrap_or(text)).filter(|key| !key.is_empty())
}

/// The body as JSON of a type, or what is wrong with it.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Answer> {
    serde_json::from_slice(body)
        .map_err(|error| Answer::refused(400, "invalid", &format!("the body is not usable: {error}")))
}

/// The query of a call, or what is wrong with it.
fn asked<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Answer> {
    match query {
        Ok(Query(asked)) => Ok(asked),
        Err(rejection) => Err(Answer::refused(400, "invalid", &rejection.body_text())),
    }
}

/// How deep the JSON of a body may be nested in the ledger. serde_json reads 128 levels, and a row has some of its own.
const DEPTH_MAX: usize = 100;

/// The body as it is kept in the ledger: as text if it is no JSON, or such that nobody could read the row around it.
fn kept(body: &[u8]) -> Value {
    let read = serde_json::from_slice(body).ok();
    let flat = read.filter(|value| depth(value) <= DEPTH_MAX);
    flat.unwrap_or_else(|| String::from_utf8_lossy(body).into())
}

/// How deep it is nested, which is no deeper than serde_json has read it.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_ledger_is_a_file_of_sqlite() {
        let options = OutsideOptions {
            listen: "127.0.0.1:0".into(),
            ledger: "postgres://127.0.0.1/ledger".into(),
        };
        let refused = serve(&options).await.expect_err("no file").to_string();
        assert!(refused.contains("write sqlite://FILE"), "{refused}");
    }
}
