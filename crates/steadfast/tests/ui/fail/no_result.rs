#![allow(unused)]

use steadfast::sqlx::Pool;
use steadfast::{Failure, Tx};

type Outcome<T> = Result<T, Failure>;

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Orders {
    #[command("orders.place")]
    async fn place(&self, tx: &mut Tx<Db>) {}

    #[command("orders.cancel")]
    async fn cancel(&self, tx: &mut Tx<Db>) -> Outcome<u64> {
        Ok(1)
    }

    #[query("orders.count")]
    async fn count(&self, db: &Pool<Db>) -> u64 {
        1
    }
}

fn main() {}
