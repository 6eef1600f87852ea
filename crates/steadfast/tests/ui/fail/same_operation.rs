#![allow(unused)]

use steadfast::{Failure, Tx};

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Orders {
    #[command("orders.place")]
    async fn place(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.place")]
    async fn place_many(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
