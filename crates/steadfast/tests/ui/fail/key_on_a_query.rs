#![allow(unused)]

use steadfast::sqlx::Pool;
use steadfast::{Failure, Tx};

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Orders {
    #[command("orders.place", route = "GET /orders/place")]
    async fn place(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[query("orders.search", route = "POST /orders/search")]
    async fn search(&self, db: &Pool<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[query("orders.count", route = "GET /orders", retention = "24h")]
    async fn count(&self, db: &Pool<Db>) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
