#![allow(unused)]

use serde::{Deserialize, Serialize};
use steadfast::{Event, EventCx, Failure, Tx};

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed")]
struct OrderPlaced;

struct Stock;

#[derive(Serialize, Deserialize, Event)]
#[event("order.paid")]
struct OrderPaid;

#[steadfast::service(db = [Sqlite, Postgres])]
impl Stock {
    #[on(OrderPlaced)]
    async fn reserve(&self, tx: &mut Tx<Db>, event: OrderPaid) -> Result<(), Failure> {
        Ok(())
    }

    #[on(OrderPlaced)]
    async fn mail(&self, cx: &Stock, event: &OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
