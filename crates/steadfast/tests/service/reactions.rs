//! Every shape of reaction that a user may write. Most of it is proved by being compiled.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::service::React;
use steadfast::sqlx::{self, Pool, Postgres, Sqlite};
use steadfast::{Event, EventCx, Failure, RetryPolicy, Steadfast, Tx};

mod events {
    use super::{Deserialize, Event, Serialize};

    #[derive(Clone, Serialize, Deserialize, Event)]
    #[event("order.placed")]
    pub(crate) struct OrderPlaced {
        pub(crate) sku: String,
    }
}

use events::OrderPlaced;

const POLICY: RetryPolicy = RetryPolicy::checked(
    1,
    steadfast::Backoff::Immediate,
    Duration::from_secs(1),
    steadfast::Jitter::None,
    None,
);

async fn open() -> Steadfast<Sqlite> {
    Steadfast::<Sqlite>::open("sqlite::memory:").await.unwrap()
}

/// Only reactions, on two databases, with every option.
struct Stock {
    limit: Duration,
    workers: u32,
}

#[steadfast::service(db = [Sqlite, Postgres])]
impl Stock {
    #[on(
        OrderPlaced,
        retry(retries = 5, backoff = exponential("1s"), cap = "5m"),
        name = "stock.take",
        lease = "5m",
        concurrency = 8,
        on_dead = skip,
        time_limit = "30s",
    )]
    async fn reserve(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        self.take(tx, &event.sku).await
    }

    #[on(events::OrderPlaced, time_limit = self.limit, concurrency = self.workers * 2, retry = POLICY, on_dead = wait)]
    async fn count(&self, tx: &mut Tx<Db>, OrderPlaced { sku }: &OrderPlaced) -> sqlx::Result<()> {
        sqlx::query("UPDATE stock SET orders = orders + 1 WHERE sku = $1")
            .bind(sku)
            .execute(tx.db())
            .await?;
        Ok(())
    }

    /// It does not speak of `Db`, so it is there once, for whoever calls it.
    #[on(OrderPlaced, lease = self.lease())]
    async fn mail(&self, cx: &EventCx, event: OrderPlaced) -> Result<(), std::io::Error> {
        let _ = (cx.key(), event);
        Ok(())
    }

    async fn take(&self, tx: &mut Tx<Db>, sku: &str) -> Result<(), Failure> {
        let take = "UPDATE stock SET free = free - 1 WHERE sku = $1";
        sqlx::query(take).bind(sku).execute(tx.db()).await?;
        Ok(())
    }

    fn lease(&self) -> Duration {
        self.limit * 2
    }
}

fn reacts_on_both<S: React<Sqlite> + React<Postgres>>() {}

#[tokio::test]
async fn a_service_may_be_reactions_only_and_each_database_has_its_own() {
    reacts_on_both::<Stock>();
    let service = Stock {
        limit: Duration::from_secs(1),
        workers: 2,
    };
    let _face = service.on(&open().await).clone();
}

/// Beside commands and queries, on one database: all methods stay callable.
struct Orders;

#[steadfast::service(db = Sqlite)]
impl Orders {
    #[command("reacting.place")]
    async fn place(&self, tx: &mut Tx<Db>, sku: String) -> Result<(), Failure> {
        tx.publish(&OrderPlaced { sku })?;
        Ok(())
    }

    #[query("reacting.count")]
    async fn count(&self, db: &Pool<Db>) -> Result<i64, Failure> {
        Ok(sqlx::query_scalar("SELECT count(*) FROM placed").fetch_one(db).await?)
    }

    #[on(OrderPlaced)]
    async fn keep(&self, tx: &mut Tx<Db>, event: &OrderPlaced) -> Result<(), Failure> {
        let insert = "INSERT INTO placed (sku) VALUES ($1)";
        sqlx::query(insert).bind(&event.sku).execute(tx.db()).await?;
        Ok(())
    }

    #[cfg(false)]
    #[on(NoEvent)]
    async fn never(&self, tx: &mut Tx<Db>, event: NoEvent) -> Result<(), Failure> {}

    #[on(OrderPlaced)]
    #[deprecated = "callers use `keep`"]
    #[tracing::instrument(skip_all)]
    async fn keep_as_before(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        self.keep(tx, &event).await
    }
}

#[tokio::test]
async fn the_method_of_a_reaction_is_a_method_as_any_other() {
    let sf = open().await;
    let create = "CREATE TABLE placed (sku TEXT NOT NULL)";
    sqlx::query(create).execute(sf.pool()).await.unwrap();
    let orders = Orders.on(&sf);
    let event = OrderPlaced { sku: "tea".into() };
    sf.transact(async |tx| Orders.keep(tx, &event).await).await.unwrap();
    assert_eq!(orders.count().await.unwrap(), 1);
    let owner = steadfast::Owner::new("tenant-1", "user-a");
    orders.place(&owner, "k", "tea".into()).await.unwrap();
}

/// Dependencies by type, by lifetime, and a crate by another name.
struct Generic<T, const N: usize> {
    parts: [T; N],
}

mod renamed {
    pub(crate) use steadfast as reliable;
}

#[renamed::reliable::service(db = [Sqlite, Postgres], crate = renamed::reliable)]
impl<T: ToString + Send + Sync, const N: usize> Generic<T, N>
where
    T: Clone,
{
    #[on(OrderPlaced, retry(retries = 2), on_dead = skip, concurrency = N as u32)]
    pub(crate) async fn label(&self, tx: &mut Tx<Db>, event: &OrderPlaced) -> Result<(), Failure> {
        let labels = self.parts.clone().map(|part| part.to_string() + &event.sku);
        let insert = "INSERT INTO labels (label) VALUES ($1)";
        sqlx::query(insert).bind(labels.join("-")).execute(tx.db()).await?;
        Ok(())
    }

    #[on(OrderPlaced)]
    async fn call(&self, cx: &EventCx, event: &OrderPlaced) -> Result<(), Failure> {
        let parts = &self.parts;
        tokio::task::yield_now().await;
        let _ = (parts, cx, event);
        Ok(())
    }
}

struct Borrowing<'n> {
    name: &'n str,
}

type Db = Sqlite;

#[steadfast::service]
impl Borrowing<'_> {
    #[on(OrderPlaced)]
    async fn say(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        let _ = (tx, event, self.name);
        Ok(())
    }
}

/// All of it is compiled away.
struct Nothing;

#[steadfast::service(db = Sqlite)]
impl Nothing {
    #[cfg(false)]
    #[on(NoEvent)]
    async fn never(&self, cx: &EventCx, event: NoEvent) -> Result<(), Failure> {}
}

#[tokio::test]
async fn generic_and_borrowing_services_react_too() {
    let sf = open().await;
    Generic { parts: ["a"] }.on(&sf);
    Borrowing { name: "static" }.on(&sf);
    Nothing.on(&sf);
    reacts_on_both::<Generic<String, 3>>();
}

/// A service that is shared already is registered by hand.
#[tokio::test]
async fn a_shared_service_may_be_registered_by_its_trait() {
    let shared = Arc::new(Orders);
    Orders::react(&shared, &open().await);
}

mod by_macro {
    use super::*;

    struct Shop;

    macro_rules! reacting {
        ($service:ty, $event:ty, $name:ident, $target:literal, $workers:expr) => {
            #[steadfast::service(db = Sqlite)]
            impl $service {
                #[on($event, name = $target, concurrency = $workers)]
                pub(super) async fn $name(&self, tx: &mut Tx<Db>, event: &$event) -> Result<(), Failure> {
                    let _ = (tx, event);
                    Ok(())
                }

                fn workers(&self) -> u32 {
                    3
                }
            }
        };
    }
    reacting!(Shop, OrderPlaced, remember, "shop.remember", self.workers());

    #[tokio::test]
    async fn a_macro_may_write_reactions() {
        Shop.on(&open().await);
    }
}
