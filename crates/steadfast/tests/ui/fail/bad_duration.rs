#![allow(unused)]

use steadfast::sqlx::Pool;
use steadfast::{Failure, Tx};

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Orders {
    #[command("orders.place", retention = "2 days", time_limit = "0s")]
    async fn place(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.cancel", retention = "4000d", time_limit = 30)]
    async fn cancel(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[query("orders.count", route = "GET /orders", max_age = "-5s")]
    async fn count(&self, db: &Pool<Db>) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {
    // What is left of the service stands: nothing is said about this.
    let _ = |orders: OrdersService<steadfast::sqlx::Sqlite>| {
        let _: axum::Router = orders.routes();
    };
}
