//! A receiver of webhooks: `POST /webhooks/{name}`. It takes what comes, and acts once for each `webhook-id`.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::post;
use serde_json::{Map, Value, json};

use super::ledger::{Answer, Call};
use super::{Outside, Service, kept};

pub(super) fn routes() -> Router<Outside> {
    Router::new().route("/webhooks/{name}", post(receive))
}

async fn receive(
    State(outside): State<Outside>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let signed = headers.iter().filter(|(name, _)| name.as_str().starts_with("webhook-"));
    let signed: Map<String, Value> = signed
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()))
        .collect();
    let call = Call {
        service: Service::Webhooks,
        operation: "webhooks.receive",
        key: headers.get("webhook-id").and_then(|id| id.to_str().ok()),
        request: &json!({ "name": name, "body": kept(&body) }),
        is_remembered: true,
    };
    let detail = json!({ "name": name, "headers": signed, "body": kept(&body) });
    let received = async |_: &mut _| Ok(Answer::done(200, json!({ "received": true }), detail));
    outside.receive(call, received).await
}
