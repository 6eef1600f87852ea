//! A warehouse as its shop sees it: what it says of an order is noted, and shown to the customer.

use std::sync::Arc;

use steadfast::{Failure, FailureClass, Owner, Tx};

use crate::events::{OrderReserved, StockReserved};
use crate::lab::{self, Lab};
use crate::live;

/// What the reaction to its word is called.
pub(crate) const TARGET: &str = "warehouse.reserved";

pub(crate) struct Warehouse {
    pub(crate) lab: Option<Arc<Lab>>,
}

#[steadfast::service(db = [Sqlite, Postgres])]
impl Warehouse {
    /// Notes what a warehouse has reserved. It does not look whether it has done so before: it is called once, as far as its
    /// transaction goes, however often the broker says it.
    #[on(StockReserved, retry(retries = 5, backoff = exponential("200ms"), cap = "30s"))]
    pub(crate) async fn reserved(&self, tx: &mut Tx<Db>, event: &StockReserved) -> Result<(), Failure> {
        let select = sqlx::query_as("SELECT tenant, owner FROM orders WHERE id = $1").bind(&event.order_id);
        let found: Option<(String, String)> = select.fetch_optional(tx.db()).await?;
        let (tenant, owner) = found.ok_or_else(|| {
            let detail = format!(
                "a warehouse has reserved the order {}, which is not here",
                event.order_id
            );
            Failure::definitive(FailureClass::NotFound, "order_not_found", detail)
        })?;
        let insert = "INSERT INTO warehouse_reservations (order_id, state, reserved_at) VALUES ($1, $2, $3)";
        sqlx::query(insert)
            .bind(&event.order_id)
            .bind(&event.state)
            .bind(&event.reserved_at)
            .execute(tx.db())
            .await?;
        tx.publish(&OrderReserved {
            order_id: event.order_id.clone(),
            customer: live::customer(&Owner::new(tenant, owner)),
            state: event.state.clone(),
        })?;
        lab::after_reaction(self.lab.as_ref(), tx.event(), Some(&event.sku)).await
    }
}
