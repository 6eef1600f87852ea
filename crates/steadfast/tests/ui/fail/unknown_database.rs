#![allow(unused)]

use steadfast::{Failure, Tx};

struct Orders;

#[steadfast::service(db = Mysql)]
impl Orders {
    #[command("orders.start")]
    async fn start(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }
}

struct Payments;

#[steadfast::service(db = [Sqlite, Sqlite])]
impl Payments {
    #[command("payments.start")]
    async fn start(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }
}

struct Returns;

#[steadfast::service(database = Sqlite)]
impl Returns {
    #[command("returns.start")]
    async fn start(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
