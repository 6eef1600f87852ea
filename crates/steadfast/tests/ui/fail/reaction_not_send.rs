#![allow(unused)]

use serde::{Deserialize, Serialize};
use steadfast::{Event, EventCx, Failure, Tx};

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed")]
struct OrderPlaced;

struct Stock;

#[steadfast::service(db = [Sqlite, Postgres])]
impl Stock {
    #[on(OrderPlaced)]
    async fn reserve(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        let shared = std::rc::Rc::new(1);
        std::future::ready(()).await;
        drop(shared);
        Ok(())
    }
}

fn main() {}
