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
}

fn on_postgres(sf: &steadfast::Steadfast<steadfast::sqlx::Postgres>) {
    Stock.on(sf);
}

fn main() {}
