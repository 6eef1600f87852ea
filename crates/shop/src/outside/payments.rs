//! A payment service that knows keys: authorise, capture and refund happen once for each, and a payment can be looked up by
//! the key that made it.

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::ledger::{Answer, Call};
use super::{Outside, Service, asked, kept, key, read};

#[derive(Deserialize)]
struct Amount {
    amount: i64,
    currency: String,
}

#[derive(Serialize)]
struct Payment {
    id: String,
    key: Option<String>,
    amount: i64,
    currency: String,
    state: String,
}

/// The columns of a payment, in the order of its fields.
type PaymentRow = (String, Option<String>, i64, String, String);

impl From<PaymentRow> for Payment {
    fn from((id, key, amount, currency, state): PaymentRow) -> Self {
        Self {
            id,
            key,
            amount,
            currency,
            state,
        }
    }
}

/// `POST /payments`, `POST /payments/{id}/capture`, `POST /payments/{id}/refund`, `GET /payments/{id}` and `GET
/// /payments?key=..`.
pub(super) fn routes() -> Router<Outside> {
    Router::new()
        .route("/payments", post(authorise).get(look_up))
        .route("/payments/{id}", get(show))
        .route("/payments/{id}/capture", post(capture))
        .route("/payments/{id}/refund", post(refund))
}

async fn authorise(State(outside): State<Outside>, headers: HeaderMap, body: Bytes) -> Response {
    let call = Call {
        service: Service::Payments,
        operation: "payments.authorise",
        key: key(&headers),
        request: &kept(&body),
        is_remembered: true,
    };
    let authorised = async |conn: &mut SqliteConnection| {
        let Amount { amount, currency } = match read(&body) {
            Ok(amount) => amount,
            Err(refused) => return Ok(refused),
        };
        if amount < 1 {
            return Ok(Answer::refused(
                400,
                "invalid",
                "amount is less than 1; send it in minor units",
            ));
        }
        let payment = Payment {
            id: Uuid::now_v7().to_string(),
            key: call.key.map(str::to_owned),
            amount,
            currency,
            state: "authorised".into(),
        };
        let insert = "INSERT INTO payments (id, key, amount, currency, state) VALUES ($1, $2, $3, $4, $5)";
        sqlx::query(insert)
            .bind(&payment.id)
            .bind(&payment.key)
            .bind(payment.amount)
            .bind(&payment.currency)
            .bind(&payment.state)
            .execute(conn)
            .await?;
        Ok(Answer::done(201, json!(payment), json!(payment)))
    };
    outside.receive(call, authorised).await
}

async fn capture(state: State<Outside>, id: Path<String>, headers: HeaderMap) -> Response {
    advance(state, id, &headers, "payments.capture", "authorised", "captured").await
}

async fn refund(state: State<Outside>, id: Path<String>, headers: HeaderMap) -> Response {
    advance(state, id, &headers, "payments.refund", "captured", "refunded").await
}

/// Moves a payment from one state to the next.
async fn advance(
    State(outside): State<Outside>,
    Path(id): Path<String>,
    headers: &HeaderMap,
    operation: &'static str,
    from: &str,
    to: &str,
) -> Response {
    let call = Call {
        service: Service::Payments,
        operation,
        key: key(headers),
        request: &json!({ "id": id }),
        is_remembered: true,
    };
    let advanced = async |conn: &mut SqliteConnection| {
        let update = "UPDATE payments SET state = $1 WHERE id = $2 AND state = $3";
        let updated = sqlx::query(update)
            .bind(to)
            .bind(&id)
            .bind(from)
            .execute(&mut *conn)
            .await?;
        Ok(match find(conn, BY_ID, &id).await? {
            None => unknown(),
            Some(payment) if updated.rows_affected() == 1 => {
                Answer::done(200, json!(payment), json!({ "id": id, "from": from, "to": to }))
            }
            Some(payment) => Answer::refused(
                409,
                "wrong_state",
                &format!("the payment is {}; only one that is {from} can be {to}", payment.state),
            ),
        })
    };
    outside.receive(call, advanced).await
}

async fn show(State(outside): State<Outside>, Path(id): Path<String>) -> Response {
    find_for(&outside, "payments.show", BY_ID, &id).await
}

#[derive(Deserialize)]
struct ByKey {
    key: String,
}

async fn look_up(
    State(outside): State<Outside>,
    query: RawQuery,
    wanted: Result<Query<ByKey>, QueryRejection>,
) -> Response {
    match asked(wanted) {
        Ok(ByKey { key }) => find_for(&outside, "payments.look_up", BY_KEY, &key).await,
        Err(refused) => {
            let call = Call {
                service: Service::Payments,
                operation: "payments.look_up",
                key: None,
                request: &json!(query.0),
                is_remembered: false,
            };
            outside.receive(call, async |_: &mut _| Ok(refused)).await
        }
    }
}

async fn find_for(outside: &Outside, operation: &'static str, select: &'static str, value: &str) -> Response {
    let call = Call {
        service: Service::Payments,
        operation,
        key: None,
        request: &json!({ "wanted": value }),
        is_remembered: false,
    };
    let found = async |conn: &mut SqliteConnection| {
        let payment = find(conn, select, value).await?;
        Ok(payment.map_or_else(unknown, |payment| Answer::found(200, json!(payment))))
    };
    outside.receive(call, found).await
}

const BY_ID: &str = "SELECT id, key, amount, currency, state FROM payments WHERE id = $1";
const BY_KEY: &str = "SELECT id, key, amount, currency, state FROM payments WHERE key = $1";

async fn find(conn: &mut SqliteConnection, select: &'static str, value: &str) -> sqlx::Result<Option<Payment>> {
    let row: Option<PaymentRow> = sqlx::query_as(select).bind(value).fetch_optional(conn).await?;
    Ok(row.map(Payment::from))
}

fn unknown() -> Answer {
    Answer::refused(404, "not_found", "there is no such payment")
}
