//! Orders: place one, list them, look at one.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use steadfast::{CmdTx, Failure, Owner, Steadfast, rfc3339};
use uuid::Uuid;

use super::{Db, LIST_LENGTH_MAX};
use crate::input::{Id, Input};
use crate::lab::Faults;
use crate::order::{NewOrder, Order, OrderRow};
use crate::problem::Problem;

/// `POST /orders`. The row, the key and this answer are one COMMIT.
pub(super) async fn place(
    mut tx: CmdTx<Db>,
    Extension(owner): Extension<Owner>,
    faults: Faults,
    Input(new): Input<NewOrder>,
) -> Result<impl IntoResponse, Failure> {
    let order = Order {
        id: Uuid::now_v7().to_string(),
        owner: owner.user().to_owned(),
        sku: new.sku,
        quantity: new.quantity,
        created_at: rfc3339(tx.now().await?),
    };
    let insert = "
        INSERT INTO orders (id, tenant, owner, sku, quantity, created_at)
        VALUES ($1, $2, $3, $4, $5, $6)";
    sqlx::query(insert)
        .bind(&order.id)
        .bind(owner.tenant())
        .bind(&order.owner)
        .bind(&order.sku)
        .bind(order.quantity)
        .bind(&order.created_at)
        .execute(tx.db())
        .await?;
    faults.after_write().await?;
    let location = format!("/orders/{}", order.id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(order)))
}

/// The answer to `GET /orders`.
#[derive(Serialize)]
pub(super) struct List {
    orders: Vec<Order>,
}

/// `GET /orders`: one's own, the newest first.
pub(super) async fn list(
    State(sf): State<Steadfast<Db>>,
    Extension(owner): Extension<Owner>,
) -> Result<Json<List>, Failure> {
    let select = "
        SELECT id, owner, sku, quantity, created_at
        FROM orders
        WHERE tenant = $1 AND owner = $2
        ORDER BY created_at DESC, id DESC
        LIMIT $3";
    let rows: Vec<OrderRow> = sqlx::query_as(select)
        .bind(owner.tenant())
        .bind(owner.user())
        .bind(LIST_LENGTH_MAX)
        .fetch_all(sf.pool())
        .await?;
    let orders = rows.into_iter().map(Order::from).collect();
    Ok(Json(List { orders }))
}

/// `GET /orders/{id}`. Somebody else's order is as unknown as one that never was.
pub(super) async fn show(
    State(sf): State<Steadfast<Db>>,
    Extension(owner): Extension<Owner>,
    Id(id): Id,
) -> Result<Response, Failure> {
    let select = "
        SELECT id, owner, sku, quantity, created_at
        FROM orders
        WHERE id = $1 AND tenant = $2 AND owner = $3";
    let row: Option<OrderRow> = sqlx::query_as(select)
        .bind(&id)
        .bind(owner.tenant())
        .bind(owner.user())
        .fetch_optional(sf.pool())
        .await?;
    Ok(match row {
        Some(row) => Json(Order::from(row)).into_response(),
        None => Problem::not_found(format!("you have no order {id}")).into_response(),
    })
}
