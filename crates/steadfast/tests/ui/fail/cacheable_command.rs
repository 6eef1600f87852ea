#![deny(deprecated)]
#![allow(unused)]

use steadfast::{Failure, Tx};

struct Orders;

#[steadfast::service(db = [Sqlite, Postgres])]
impl Orders {
    #[command("orders.place", route = "POST /orders", max_age = "60s")]
    async fn place(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
