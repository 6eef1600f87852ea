#![allow(unused)]

use steadfast::Tx;

struct OutOfStock;

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Orders {
    #[command("orders.place")]
    async fn place(&self, tx: &mut Tx<Db>) -> Result<u64, OutOfStock> {
        Err(OutOfStock)
    }
}

fn main() {}
