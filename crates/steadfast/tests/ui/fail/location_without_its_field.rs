#![allow(unused)]

use steadfast::{Failure, Tx};

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    number: u64,
}

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Orders {
    #[command("orders.place", route = "POST /orders", location = "/orders/{id}")]
    async fn place(&self, tx: &mut Tx<Db>) -> Result<Order, Failure> {
        Ok(Order { number: 1 })
    }
}

fn main() {}
