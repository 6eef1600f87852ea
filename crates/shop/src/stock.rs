//! The stock: what is there, and for whom it is kept. It changes by reactions only, each in one transaction with its
//! delivery, so that every order takes its pieces once.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sqlx::Pool;
use steadfast::{Failure, FailureClass, Tx, rfc3339};

use crate::events::{OrderCancelled, OrderPlaced};
use crate::lab::{self, Lab};
use crate::orders::LIST_LENGTH_MAX;

pub(crate) struct Stock {
    pub(crate) lab: Option<Arc<Lab>>,
}

#[steadfast::service(db = [Sqlite, Postgres])]
impl Stock {
    /// Keeps pieces for an order. What is not there is back-ordered as a whole: nobody gets half of his tea, and the stock
    /// is never less than nothing.
    #[on(OrderPlaced, retry(retries = 5, backoff = exponential("200ms"), cap = "30s"))]
    pub(crate) async fn reserve(&self, tx: &mut Tx<Db>, event: &OrderPlaced) -> Result<(), Failure> {
        let OrderPlaced {
            order_id,
            sku,
            quantity,
            ..
        } = event;
        let take = "UPDATE stock SET on_hand = on_hand - $2 WHERE sku = $1 AND on_hand >= $2";
        let is_there = self.note(tx, order_id, sku, *quantity, "back_ordered").await?;
        if is_there {
            let taken = sqlx::query(take).bind(sku).bind(quantity).execute(tx.db()).await?;
            if taken.rows_affected() == 1 {
                self.mark(tx, order_id, "reserved").await?;
            }
        } else {
            self.expect_cancelled(tx, order_id).await?;
        }
        lab::after_reaction(self.lab.as_ref(), tx.event(), Some(sku)).await
    }

    /// Puts back what was kept for an order. It may come before the order itself, whose reservation is then none.
    #[on(OrderCancelled, retry(retries = 5, backoff = exponential("200ms"), cap = "30s"))]
    pub(crate) async fn release(&self, tx: &mut Tx<Db>, event: &OrderCancelled) -> Result<(), Failure> {
        let OrderCancelled {
            order_id,
            sku,
            quantity,
        } = event;
        if !self.note(tx, order_id, sku, *quantity, "released").await? {
            let put_back = "
                UPDATE stock SET on_hand = on_hand + kept.quantity
                FROM reservations AS kept
                WHERE kept.order_id = $1 AND kept.state = 'reserved' AND kept.sku = stock.sku";
            sqlx::query(put_back).bind(order_id).execute(tx.db()).await?;
            self.mark(tx, order_id, "released").await?;
        }
        lab::after_reaction(self.lab.as_ref(), tx.event(), Some(sku)).await
    }

    /// Writes the reservation of an order, unless there is one.
    async fn note(
        &self,
        tx: &mut Tx<Db>,
        order_id: &str,
        sku: &str,
        quantity: i64,
        state: &str,
    ) -> Result<bool, Failure> {
        let insert = "
            INSERT INTO reservations (order_id, sku, quantity, state, created_at)
            VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT (order_id) DO NOTHING";
        let created_at = rfc3339(tx.now().await?);
        let written = sqlx::query(insert)
            .bind(order_id)
            .bind(sku)
            .bind(quantity)
            .bind(state)
            .bind(created_at)
            .execute(tx.db())
            .await?;
        Ok(written.rows_affected() == 1)
    }

    async fn mark(&self, tx: &mut Tx<Db>, order_id: &str, state: &str) -> Result<(), Failure> {
        let update = "UPDATE reservations SET state = $2 WHERE order_id = $1";
        sqlx::query(update).bind(order_id).bind(state).execute(tx.db()).await?;
        Ok(())
    }

    /// An order has a reservation before it is made only if it was cancelled. Any other would be a second delivery, which
    /// must not be: it ends as a dead letter, for everybody to see.
    async fn expect_cancelled(&self, tx: &mut Tx<Db>, order_id: &str) -> Result<(), Failure> {
        let select = "SELECT state FROM reservations WHERE order_id = $1";
        let state: String = sqlx::query_scalar(select).bind(order_id).fetch_one(tx.db()).await?;
        match state.as_str() {
            "released" => Ok(()),
            state => Err(Failure::definitive(
                FailureClass::BusinessRule,
                "reserved_twice",
                format!("the order {order_id} has a reservation already, which is {state}"),
            )),
        }
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
