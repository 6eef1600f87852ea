//! Payments: make one, list them, look at one.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use steadfast::{CmdTx, Failure, FailureClass, Owner, Steadfast, Tx, rfc3339};
use uuid::Uuid;

use super::{Db, LIST_LENGTH_MAX};
use crate::input::{Id, Input};
use crate::lab::Faults;
use crate::payment::{NewPayment, Payment, PaymentRow};
use crate::problem::Problem;

/// `POST /payments`. The row, the key and this answer are one COMMIT.
pub(super) async fn make(
    mut tx: CmdTx<Db>,
    Extension(owner): Extension<Owner>,
    faults: Faults,
    Input(new): Input<NewPayment>,
) -> Result<impl IntoResponse, Failure> {
    if let Some(order_id) = &new.order_id {
        find_order(&mut tx, &owner, order_id).await?;
    }
    let payment = Payment {
        id: Uuid::now_v7().to_string(),
        owner: owner.user().to_owned(),
        amount: new.amount,
        currency: new.currency,
        order_id: new.order_id,
        description: new.description,
        created_at: rfc3339(tx.now().await?),
    };
    let insert = "
        INSERT INTO payments (id, tenant, owner, amount, currency, order_id, description, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    sqlx::query(insert)
        .bind(&payment.id)
        .bind(owner.tenant())
        .bind(&payment.owner)
        .bind(payment.amount)
        .bind(&payment.currency)
        .bind(&payment.order_id)
        .bind(&payment.description)
        .bind(&payment.created_at)
        .execute(tx.db())
        .await?;
    faults.after_write().await?;
    let location = format!("/payments/{}", payment.id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(payment)))
}

/// Fails unless the order is the payer's own. Read in the command's transaction, as everything it depends on.
async fn find_order(tx: &mut Tx<Db>, owner: &Owner, id: &str) -> Result<(), Failure> {
    let select = "SELECT id FROM orders WHERE id = $1 AND tenant = $2 AND owner = $3";
    let found: Option<String> = sqlx::query_scalar(select)
        .bind(id)
        .bind(owner.tenant())
        .bind(owner.user())
        .fetch_optional(tx.db())
        .await?;
    match found {
        Some(_) => Ok(()),
        None => Err(Failure::definitive(
            FailureClass::NotFound,
            "order_not_found",
            format!("you have no order {id} to pay for"),
        )),
    }
}

/// The answer to `GET /payments`.
#[derive(Serialize)]
pub(super) struct List {
    payments: Vec<Payment>,
}

/// `GET /payments`: one's own, the newest first.
pub(super) async fn list(
    State(sf): State<Steadfast<Db>>,
    Extension(owner): Extension<Owner>,
) -> Result<Json<List>, Failure> {
    let select = "
        SELECT id, owner, amount, currency, order_id, description, created_at
        FROM payments
        WHERE tenant = $1 AND owner = $2
        ORDER BY created_at DESC, id DESC
        LIMIT $3";
    let rows: Vec<PaymentRow> = sqlx::query_as(select)
        .bind(owner.tenant())
        .bind(owner.user())
        .bind(LIST_LENGTH_MAX)
        .fetch_all(sf.pool())
        .await?;
    let payments = rows.into_iter().map(Payment::from).collect();
    Ok(Json(List { payments }))
}

/// `GET /payments/{id}`. Somebody else's payment is as unknown as one that never was.
pub(super) async fn show(
    State(sf): State<Steadfast<Db>>,
    Extension(owner): Extension<Owner>,
    Id(id): Id,
) -> Result<Response, Failure> {
    let select = "
        SELECT id, owner, amount, currency, order_id, description, created_at
        FROM payments
        WHERE id = $1 AND tenant = $2 AND owner = $3";
    let row: Option<PaymentRow> = sqlx::query_as(select)
        .bind(&id)
        .bind(owner.tenant())
        .bind(owner.user())
        .fetch_optional(sf.pool())
        .await?;
    Ok(match row {
        Some(row) => Json(Payment::from(row)).into_response(),
        None => Problem::not_found(format!("you have no payment {id}")).into_response(),
    })
}
