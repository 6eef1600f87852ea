//! What is described in the guide compiles without a warning of ours.
#![deny(warnings)]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::service::React;
use steadfast::sqlx::{Postgres, Sqlite};
use steadfast::{Event, EventCx, Failure, Tx};

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed", version = 2, ordering_key = order_id, expires_after = "7d", delay = "10m")]
#[serde(rename_all = "camelCase")]
pub struct OrderPlaced {
    order_id: u64,
    #[redact]
    email_address: String,
}

#[derive(Serialize, Deserialize, Event)]
#[event("cache.dropped", in_process)]
pub enum CacheDropped {
    All,
    One(u64),
}

pub struct Stock {
    workers: u32,
    lease: Duration,
}

#[steadfast::service(db = [Sqlite, Postgres])]
impl Stock {
    #[on(OrderPlaced, retry(retries = 5, backoff = exponential("1s"), cap = "5m"), concurrency = self.workers)]
    pub async fn reserve(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        let _ = (tx.db(), event.order_id, event.email_address);
        Ok(())
    }

    #[on(OrderPlaced, name = "stock.mail", lease = self.lease, on_dead = skip, duplicates = allow, time_limit = "30s")]
    async fn mail(&self, cx: &EventCx, event: &OrderPlaced) -> Result<(), std::io::Error> {
        let _ = (cx.key(), &event.email_address);
        Ok(())
    }

    #[on(CacheDropped)]
    async fn forget(&self, _: &EventCx, event: CacheDropped) -> Result<(), Failure> {
        match event {
            CacheDropped::All | CacheDropped::One(_) => Ok(()),
        }
    }
}

fn main() {
    fn reacts<S: React<Sqlite> + React<Postgres>>() {}
    reacts::<Stock>();
    assert_eq!(OrderPlaced::REDACTED, ["emailAddress"]);
    let _ = Stock {
        workers: 1,
        lease: Duration::from_secs(1),
    };
}
