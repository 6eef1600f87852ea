#![allow(unused)]

use serde::{Deserialize, Serialize};
use steadfast::{Event, EventCx, Failure, Tx};

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed")]
struct OrderPlaced;

struct Stock;

#[steadfast::service(db = Sqlite)]
impl Stock {
    #[on]
    async fn to_what(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }

    #[on("order.placed")]
    async fn by_name(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }

    #[on(OrderPlaced)]
    fn at_once(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }

    #[on(OrderPlaced)]
    async fn nowhere(&self, event: OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }

    #[on(OrderPlaced)]
    async fn read_only(&self, tx: &Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }

    #[on(OrderPlaced)]
    async fn without(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[on(OrderPlaced)]
    async fn changing(&self, tx: &mut Tx<Db>, event: &mut OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }

    #[on(OrderPlaced)]
    async fn more(&self, cx: &EventCx, event: OrderPlaced, amount: u64) -> Result<(), Failure> {
        Ok(())
    }

    #[on(OrderPlaced)]
    async fn silent(&self, tx: &mut Tx<Db>, event: OrderPlaced) {}

    #[on(OrderPlaced)]
    async fn answering(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<u64, Failure> {
        Ok(1)
    }

    #[on(OrderPlaced)]
    #[query("stock.both")]
    async fn both(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
