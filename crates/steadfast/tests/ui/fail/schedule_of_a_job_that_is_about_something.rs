#![allow(unused_variables)]

use serde::{Deserialize, Serialize};
use steadfast::{Failure, Job, Tx};

#[derive(Serialize, Deserialize, Job)]
#[job("stock.count")]
struct CountStock {
    warehouse: u32,
}

struct Shop;

#[steadfast::service(db = Sqlite)]
impl Shop {
    #[every("15m")]
    #[job(CountStock)]
    async fn count(&self, tx: &mut Tx<Db>, job: CountStock) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
