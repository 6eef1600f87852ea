#![deny(deprecated)]
#![allow(unused)]

use steadfast::{Failure, Tx};

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Orders {
    #[command("orders.place", scope = global)]
    async fn place(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[allow(deprecated)]
    #[command("orders.import", scope = global)]
    async fn import(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
