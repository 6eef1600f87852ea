//! What customers hear live: that something has become of their orders. What exactly, they ask the shop as ever.

use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use steadfast::{Database, Owner, Push, Pushes, Steadfast, StreamName};

use crate::across::Across;
use crate::auth;
use crate::events::{OrderCancelled, OrderPlaced, OrderReserved, PaymentCaptured};
use crate::problem::Problem;

/// What the push is called.
pub(crate) const TARGET: &str = "shop.live";

/// Declares which events customers hear of. Every process does: any of them may be the one that carries an event there.
pub(crate) fn declare<Db: Database>(sf: &Steadfast<Db>, across: Option<Across>) -> Push<Db> {
    let push = sf.push(TARGET);
    let push = match across {
        Some(across) => across.carry(push),
        None => push,
    };
    push.event(|placed: &OrderPlaced, to| tell(to, &placed.customer, Some(&placed.order_id)))
        .event(|cancelled: &OrderCancelled, to| tell(to, &cancelled.customer, Some(&cancelled.order_id)))
        .event(|reserved: &OrderReserved, to| tell(to, &reserved.customer, Some(&reserved.order_id)))
        .event(|captured: &PaymentCaptured, to| tell(to, &captured.customer, captured.order_id.as_deref()))
        .start()
}

fn tell(to: &mut Pushes, customer: &str, order_id: Option<&str>) {
    to.push(StreamName::user(customer), &json!({ "order_id": order_id }));
}

/// How a customer is called in events, and in the name of his stream: users of two tenants may have the same name.
pub(crate) fn customer(owner: &Owner) -> String {
    format!("{}/{}", owner.tenant(), owner.user())
}

/// Everybody hears of their own orders, and of nobody else's.
pub(crate) async fn authorize(request: Parts) -> Result<Vec<StreamName>, Response> {
    let Some(owner) = auth::find_owner(&request.headers).or_else(|| auth::find_session(&request.headers)) else {
        let detail = "send one of the demo tokens: Authorization: Bearer user-a (or user-b, user-c); a page first has it kept \
                      by POST /session";
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail).into_response());
    };
    Ok(vec![StreamName::user(customer(&owner))])
}
