#![allow(unused)]

use serde::{Deserialize, Serialize};
use steadfast::{Event, EventCx, Failure, Tx};

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed")]
struct OrderPlaced;

struct Stock;

#[steadfast::service(db = Sqlite)]
impl Stock {
    #[on(OrderPlaced)]
    async fn reserve(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }

    #[on(OrderPlaced, name = "stock.reserve")]
    async fn mail(&self, cx: &EventCx, event: &OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
