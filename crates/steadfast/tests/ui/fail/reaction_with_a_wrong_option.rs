#![allow(unused)]

use serde::{Deserialize, Serialize};
use steadfast::{Event, EventCx, Failure, Tx};

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed")]
struct OrderPlaced;

struct Stock;

#[steadfast::service(db = Sqlite)]
impl Stock {
    #[on(OrderPlaced, leas = "5m", timeout = "30s", on_dead = skipp, concurrency = 0, time_limit = "soon")]
    async fn one(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }

    #[on(OrderPlaced, name = "Stock Reserve", lease = "1m", lease = "2m", retry)]
    async fn other(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }

    #[on(OrderPlaced, retry(retrys = 5, cap = "soon"))]
    async fn third(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }

    #[on(OrderPlaced, retry(backoff = exponential("30s"), cap = "10s"))]
    async fn fourth(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
