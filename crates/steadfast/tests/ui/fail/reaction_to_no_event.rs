#![allow(unused)]

use serde::{Deserialize, Serialize};
use steadfast::{Event, EventCx, Failure, Tx};

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed")]
struct OrderPlaced;

struct Stock;

struct OrderPaid;

#[steadfast::service(db = Sqlite)]
impl Stock {
    #[on(OrderPaid)]
    async fn reserve(&self, tx: &mut Tx<Db>, event: OrderPaid) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
