#![allow(unused)]

use steadfast::sqlx::Pool;
use steadfast::{Failure, Tx};

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Orders {
    #[command("orders.place", retenion = "24h", timeout = "5s", scope = users, conflict = "wait")]
    async fn place(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.cancel", route = "DELETE /orders", status = 404, mismatch = 500, store_failures = [forbiden])]
    async fn cancel(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.pay", scope = user, scope = tenant)]
    async fn pay(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[query("orders.count", route = "GET /orders", maxage = "60s")]
    async fn count(&self, db: &Pool<Db>) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
