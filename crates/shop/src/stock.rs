//! The stock: what is there, and for whom it is kept. It changes by reactions only, each in one transaction with its
//! delivery, so that every order takes its pieces once.
//!
//! A shop keeps its own, or a warehouse does, in another process with another database. The reactions are the same: the events come
//! from the shop's own outbox there, and from a broker here.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sqlx::Pool;
use steadfast::{Failure, Tx, rfc3339};

use crate::events::{OrderCancelled, OrderPlaced, StockReserved};
use crate::lab::{self, Lab};
use crate::orders::LIST_LENGTH_MAX;

pub(crate) struct Stock {
    pub(crate) keeper: Keeper,
    pub(crate) lab: Option<Arc<Lab>>,
}

/// Who keeps it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// The orders are in the same database.
    Shop,
    /// All that is known of an order is what was told, and what is reserved is told in turn.
    Warehouse,
}

#[steadfast::service(db = [Sqlite, Postgres])]
impl Stock {
    /// Keeps pieces for an order. What is not there is back-ordered as a whole: nobody gets half of his tea, and the stock
    /// is never less than nothing.
    ///
    /// It does not look whether it has done so before: it is called once, as far as its transaction goes.
    #[on(OrderPlaced, retry(retries = 5, backoff = exponential("200ms"), cap = "30s"))]
    pub(crate) async fn reserve(&self, tx: &mut Tx<Db>, event: &OrderPlaced) -> Result<(), Failure> {
        if !self.hold(tx, &event.order_id).await? {
            let take = "UPDATE stock SET on_hand = on_hand - $2 WHERE sku = $1 AND on_hand >= $2";
            let take = sqlx::query(take).bind(&event.sku).bind(event.quantity);
            let state = match take.execute(tx.db()).await?.rows_affected() {
                0 => "back_ordered",
                _ => "reserved",
            };
            let insert = "
                INSERT INTO reservations (order_id, sku, quantity, state, created_at)
                VALUES ($1, $2, $3, $4, $5)";
            let created_at = rfc3339(tx.now().await?);
            sqlx::query(insert)
                .bind(&event.order_id)
                .bind(&event.sku)
                .bind(event.quantity)
                .bind(state)
                .bind(&created_at)
                .execute(tx.db())
                .await?;
            if self.keeper == Keeper::Warehouse {
                tx.publish(&StockReserved {
                    order_id: event.order_id.clone(),
                    sku: event.sku.clone(),
                    quantity: event.quantity,
                    state: state.to_owned(),
                    reserved_at: created_at,
                })?;
            }
        }
        lab::after_reaction(self.lab.as_ref(), tx.event(), Some(&event.sku)).await
    }

    /// Puts back what was kept for an order. If the order itself has not come here yet, nothing was, and nothing will be.
    #[on(OrderCancelled, retry(retries = 5, backoff = exponential("200ms"), cap = "30s"))]
    pub(crate) async fn release(&self, tx: &mut Tx<Db>, event: &OrderCancelled) -> Result<(), Failure> {
        self.hold(tx, &event.order_id).await?;
        if self.keeper == Keeper::Warehouse {
            let cancelled_at = rfc3339(tx.now().await?);
            let note = sqlx::query("UPDATE known_orders SET cancelled_at = $2 WHERE id = $1");
            note.bind(&event.order_id).bind(cancelled_at).execute(tx.db()).await?;
        }
        let put_back = "
            UPDATE stock SET on_hand = on_hand + kept.quantity
            FROM reservations AS kept
            WHERE kept.order_id = $1 AND kept.state = 'reserved' AND kept.sku = stock.sku";
        sqlx::query(put_back).bind(&event.order_id).execute(tx.db()).await?;
        let release = "UPDATE reservations SET state = 'released' WHERE order_id = $1";
        sqlx::query(release).bind(&event.order_id).execute(tx.db()).await?;
        lab::after_reaction(self.lab.as_ref(), tx.event(), Some(&event.sku)).await
    }

    /// Holds an order until the end, so that it is reserved before it is released or the other way round, and says whether it
    /// was cancelled. Each target hears of an order in order, but two targets do not wait for each other.
    async fn hold(&self, tx: &mut Tx<Db>, order_id: &str) -> Result<bool, Failure> {
        if self.keeper == Keeper::Warehouse {
            // Whoever hears of it first makes it known, so that there is something to hold.
            let hold = "
                INSERT INTO known_orders (id) VALUES ($1)
                ON CONFLICT (id) DO UPDATE SET id = excluded.id
                RETURNING cancelled_at";
            let cancelled_at: Option<String> = sqlx::query_scalar(hold).bind(order_id).fetch_one(tx.db()).await?;
            return Ok(cancelled_at.is_some());
        }
        let hold = "UPDATE orders SET owner = owner WHERE id = $1";
        sqlx::query(hold).bind(order_id).execute(tx.db()).await?;
        let select = "SELECT EXISTS (SELECT 1 FROM cancellations WHERE order_id = $1)";
        Ok(sqlx::query_scalar(select).bind(order_id).fetch_one(tx.db()).await?)
    }

    /// What is there, and what waits for more.
    #[query("stock.list", route = "GET /stock")]
    pub(crate) async fn list(&self, db: &Pool<Db>) -> Result<StockList, Failure> {
        let select = "
            SELECT sku, coalesce(on_hand, 0),
                   (SELECT CAST(coalesce(sum(quantity), 0) AS BIGINT) FROM reservations AS kept
                    WHERE kept.sku = articles.sku AND kept.state = 'reserved'),
                   (SELECT CAST(coalesce(sum(quantity), 0) AS BIGINT) FROM reservations AS wanted
                    WHERE wanted.sku = articles.sku AND wanted.state = 'back_ordered')
            FROM (SELECT sku FROM stock UNION SELECT sku FROM reservations) AS articles
            LEFT JOIN stock USING (sku)
            ORDER BY sku
            LIMIT $1";
        let rows: Vec<(String, i64, i64, i64)> = sqlx::query_as(select).bind(LIST_LENGTH_MAX).fetch_all(db).await?;
        let stock = rows.into_iter().map(Article::from).collect();
        Ok(StockList { stock })
    }
}

/// An article, in pieces.
#[derive(Serialize, Deserialize)]
pub(crate) struct Article {
    sku: String,
    on_hand: i64,
    reserved: i64,
    back_ordered: i64,
}

impl From<(String, i64, i64, i64)> for Article {
    fn from((sku, on_hand, reserved, back_ordered): (String, i64, i64, i64)) -> Self {
        Self {
            sku,
            on_hand,
            reserved,
            back_ordered,
        }
    }
}

/// The answer to `GET /stock`.
#[derive(Serialize, Deserialize)]
pub(crate) struct StockList {
    stock: Vec<Article>,
}
