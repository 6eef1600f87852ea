//! A mail service: `POST /mail`. It knows keys, as some do: asked twice with one key it sends once, and without a key as often
//! as it is asked.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::post;
use serde::Deserialize;
use serde_json::json;

use super::ledger::{Answer, Call};
use super::{Outside, Service, kept, key, read};

#[derive(Deserialize)]
struct Mail {
    to: String,
    subject: String,
}

pub(super) fn routes() -> Router<Outside> {
    Router::new().route("/mail", post(send))
}

async fn send(State(outside): State<Outside>, headers: HeaderMap, body: Bytes) -> Response {
    let call = Call {
        service: Service::Mail,
        operation: "mail.send",
        key: key(&headers),
        request: &kept(&body),
        is_remembered: true,
    };
    let sent = async |_: &mut _| {
        Ok(match read::<Mail>(&body) {
            Ok(Mail { to, subject }) => {
                Answer::done(202, json!({ "sent": true }), json!({ "to": to, "subject": subject }))
            }
            Err(refused) => refused,
        })
    };
    outside.receive(call, sent).await
}
