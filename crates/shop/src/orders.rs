//! Orders: place one, cancel it, list them, look at one.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::Pool;
use steadfast::{Failure, FailureClass, Owner, Tx, rfc3339};
use uuid::Uuid;

use crate::events::{OrderCancelled, OrderPlaced, email_of};
use crate::jobs::SendReminder;
use crate::lab;
use crate::live;
use crate::order::{NewOrder, Order, OrderRow};
use crate::quotes::{Quote, Quotes};

/// The most entries a list shows.
pub(crate) const LIST_LENGTH_MAX: i64 = 100;

pub(crate) struct Orders {
    pub(crate) retention: Duration,
    pub(crate) cancel_retention: Duration,
    /// How long a customer may take to pay before he is reminded.
    pub(crate) remind_after: Duration,
    /// Without an outside world there are none.
    pub(crate) quotes: Option<Quotes>,
}

#[steadfast::service(db = [Sqlite, Postgres])]
impl Orders {
    /// Places an order. The row, the key, the answer, what is told of it and the reminder to pay are one COMMIT.
    #[command(
        "orders.place",
        route = "POST /orders",
        status = 201,
        location = "/orders/{id}",
        retention = self.retention
    )]
    pub(crate) async fn place(&self, tx: &mut Tx<Db>, owner: &Owner, new: NewOrder) -> Result<Order, Failure> {
        new.check()?;
        let order = Order {
            id: Uuid::now_v7().to_string(),
            owner: owner.user().to_owned(),
            sku: new.sku,
            quantity: new.quantity,
            created_at: rfc3339(tx.now().await?),
            cancelled_at: None,
            reservation: None,
            reserved_at: None,
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
        tx.publish(&OrderPlaced {
            order_id: order.id.clone(),
            customer: live::customer(owner),
            sku: order.sku.clone(),
            quantity: order.quantity,
            email: email_of(owner),
        })?;
        let reminder = SendReminder {
            order_id: order.id.clone(),
            sku: order.sku.clone(),
            quantity: order.quantity,
            email: email_of(owner),
        };
        tx.enqueue(&reminder).unique(&order.id).delay(self.remind_after).await?;
        lab::after_write().await?;
        Ok(order)
    }

    /// Cancels an order that nobody has paid for. One that is paid, or cancelled already, is refused with 422: a client that
    /// lost the answer asks with the same key and gets it, and another wish to cancel comes too late.
    #[command("orders.cancel", route = "POST /orders/{id}/cancel", retention = self.cancel_retention)]
    pub(crate) async fn cancel(&self, tx: &mut Tx<Db>, owner: &Owner, id: Uuid) -> Result<Order, Failure> {
        let id = id.to_string();
        // It changes nothing, and lets nobody pay for the order until we are done; what others did before is seen by the next
        // statement, not by this one.
        let hold = "
            UPDATE orders SET owner = owner
            WHERE id = $1 AND tenant = $2 AND owner = $3
            RETURNING id, owner, sku, quantity, created_at, CAST(NULL AS TEXT), CAST(NULL AS TEXT), CAST(NULL AS TEXT)";
        let row: Option<OrderRow> = sqlx::query_as(hold)
            .bind(&id)
            .bind(owner.tenant())
            .bind(owner.user())
            .fetch_optional(tx.db())
            .await?;
        let mut order = row.map(Order::from).ok_or_else(|| unknown(&id))?;
        let select = "
            SELECT (SELECT cancelled_at FROM cancellations WHERE order_id = $1),
                   EXISTS (SELECT 1 FROM payments WHERE order_id = $1)";
        match sqlx::query_as(select).bind(&id).fetch_one(tx.db()).await? {
            (None::<String>, false) => {}
            (Some(at), _) => {
                return Err(refused(
                    "already_cancelled",
                    format!("the order {id} was cancelled at {at}"),
                ));
            }
            (None, true) => {
                return Err(refused(
                    "already_paid",
                    format!("the order {id} is paid; it can no longer be cancelled"),
                ));
            }
        }
        let cancelled_at = rfc3339(tx.now().await?);
        sqlx::query("INSERT INTO cancellations (order_id, cancelled_at) VALUES ($1, $2)")
            .bind(&id)
            .bind(&cancelled_at)
            .execute(tx.db())
            .await?;
        tx.cancel_job::<SendReminder>(&id).await?;
        tx.publish(&OrderCancelled {
            order_id: id,
            customer: live::customer(owner),
            sku: order.sku.clone(),
            quantity: order.quantity,
        })?;
        order.cancelled_at = Some(cancelled_at);
        lab::after_write().await?;
        Ok(order)
    }

    /// One's own, the newest first.
    #[query("orders.list", route = "GET /orders")]
    pub(crate) async fn list(&self, db: &Pool<Db>, owner: &Owner) -> Result<OrderList, Failure> {
        let select = "
            SELECT id, owner, sku, quantity, created_at, cancelled_at, state, reserved_at
            FROM orders
            LEFT JOIN cancellations ON cancellations.order_id = id
            LEFT JOIN warehouse_reservations ON warehouse_reservations.order_id = id
            WHERE tenant = $1 AND owner = $2
            ORDER BY created_at DESC, id DESC
            LIMIT $3";
        let rows: Vec<OrderRow> = sqlx::query_as(select)
            .bind(owner.tenant())
            .bind(owner.user())
            .bind(LIST_LENGTH_MAX)
            .fetch_all(db)
            .await?;
        let orders = rows.into_iter().map(Order::from).collect();
        Ok(OrderList { orders })
    }

    /// One of them, with what its shipping would cost, if that can be had. Somebody else's order is as unknown as one that
    /// never was.
    #[query("orders.show", route = "GET /orders/{id}")]
    pub(crate) async fn show(&self, db: &Pool<Db>, owner: &Owner, id: Uuid) -> Result<ShownOrder, Failure> {
        let select = "
            SELECT id, owner, sku, quantity, created_at, cancelled_at, state, reserved_at
            FROM orders
            LEFT JOIN cancellations ON cancellations.order_id = id
            LEFT JOIN warehouse_reservations ON warehouse_reservations.order_id = id
            WHERE id = $1 AND tenant = $2 AND owner = $3";
        let row: Option<OrderRow> = sqlx::query_as(select)
            .bind(id.to_string())
            .bind(owner.tenant())
            .bind(owner.user())
            .fetch_optional(db)
            .await?;
        let order = row.map(Order::from).ok_or_else(|| unknown(&id.to_string()))?;
        let shipping = match &self.quotes {
            Some(quotes) => quotes.quote(&order).await,
            None => None,
        };
        Ok(ShownOrder { order, shipping })
    }
}

fn unknown(id: &str) -> Failure {
    Failure::definitive(FailureClass::NotFound, "not_found", format!("you have no order {id}"))
}

fn refused(code: &'static str, detail: String) -> Failure {
    Failure::definitive(FailureClass::BusinessRule, code, detail)
}

/// The answer to `GET /orders/{id}`.
#[derive(Serialize, Deserialize)]
pub(crate) struct ShownOrder {
    #[serde(flatten)]
    order: Order,
    #[serde(skip_serializing_if = "Option::is_none")]
    shipping: Option<Quote>,
}

/// The answer to `GET /orders`.
#[derive(Serialize, Deserialize)]
pub(crate) struct OrderList {
    orders: Vec<Order>,
}
