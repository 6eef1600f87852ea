//! A shipping service: `GET /shipping/quote?sku=tea&quantity=2` says what it would cost, and does nothing.

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ledger::{Answer, Call};
use super::{Outside, Service};
use crate::problem::Problem;

/// In minor units, for one parcel and for each piece in it.
const PARCEL: i64 = 490;
const PIECE: i64 = 50;

#[derive(Serialize, Deserialize)]
struct Parcel {
    sku: String,
    quantity: i64,
}

pub(super) fn routes() -> Router<Outside> {
    Router::new().route("/shipping/quote", get(quote))
}

async fn quote(
    State(outside): State<Outside>,
    parcel: Result<Query<Parcel>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let Query(parcel) = match parcel {
        Ok(parcel) => parcel,
        Err(rejection) => {
            return Problem::new(StatusCode::BAD_REQUEST, "invalid", rejection.body_text()).into_response();
        }
    };
    let call = Call {
        service: Service::Shipping,
        operation: "shipping.quote",
        key: None,
        request: &json!(parcel),
        is_remembered: false,
    };
    let price = PARCEL.saturating_add(PIECE.saturating_mul(parcel.quantity));
    let quoted = async |_: &mut _| {
        Ok(Answer::found(
            200,
            json!({ "price": price, "currency": "EUR", "days": 2 }),
        ))
    };
    outside.receive(call, quoted).await
}
