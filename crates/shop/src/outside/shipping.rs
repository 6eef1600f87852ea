//! A shipping service: `GET /shipping/quote?sku=tea&quantity=2` says what it would cost, and does nothing.

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, RawQuery, State};
use axum::response::Response;
use axum::routing::get;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ledger::{Answer, Call};
use super::{Outside, Service, asked};

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
    query: RawQuery,
    parcel: Result<Query<Parcel>, QueryRejection>,
) -> Response {
    let parcel = asked(parcel);
    let call = Call {
        service: Service::Shipping,
        operation: "shipping.quote",
        key: None,
        request: &parcel.as_ref().map_or_else(|_| json!(query.0), |parcel| json!(parcel)),
        is_remembered: false,
    };
    let quoted = async |_: &mut _| {
        Ok(parcel.as_ref().map_or_else(Answer::clone, |parcel| {
            let price = PARCEL.saturating_add(PIECE.saturating_mul(parcel.quantity));
            Answer::found(200, json!({ "price": price, "currency": "EUR", "days": 2 }))
        }))
    };
    outside.receive(call, quoted).await
}
