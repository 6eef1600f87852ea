#![allow(unused)]

use std::rc::Rc;

use steadfast::{Failure, Tx};

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Orders {
    #[command("orders.place")]
    async fn place(&self, tx: &mut Tx<Db>) -> Result<u64, Failure> {
        let shared = Rc::new(1);
        tx.now().await?;
        Ok(*shared)
    }
}

fn main() {}
