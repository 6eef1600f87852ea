//! An event that is published with an order and reserves stock, once: `cargo run -p steadfast --example events --features sqlite,service`

use serde::{Deserialize, Serialize};
use steadfast::{Event, EventCx, Failure, Owner, Steadfast, Tx, sqlx, sqlx::Sqlite};

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed", ordering_key = order_id)]
struct OrderPlaced {
    order_id: i64,
    sku: String,
    #[redact]
    email: String,
}

struct Stock;

#[steadfast::service(db = Sqlite)]
impl Stock {
    /// What it writes and its delivery are one COMMIT.
    #[on(OrderPlaced)]
    async fn reserve(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), Failure> {
        let take = sqlx::query("UPDATE stock SET free = free - 1 WHERE sku = $1").bind(&event.sku);
        take.execute(tx.db()).await?;
        Ok(())
    }

    /// Nothing commits with a mail, so it may be asked for again: always with the same key.
    #[on(OrderPlaced, name = "mail.confirm", retry(retries = 8, backoff = exponential("1s"), cap = "5m"))]
    async fn confirm(&self, cx: &EventCx, event: &OrderPlaced) -> Result<(), Failure> {
        println!("mail to {} with the key {}", event.email, cx.key());
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    let tables = "CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT NOT NULL);
                  CREATE TABLE stock (sku TEXT PRIMARY KEY, free INTEGER NOT NULL);
                  INSERT INTO stock VALUES ('tea', 10)";
    sqlx::raw_sql(tables).execute(sf.pool()).await?;
    Stock.on(&sf); // the targets `stock.reserve` and `mail.confirm`
    sf.declare().await?; // from here on events are kept for them

    let owner = Owner::new("tenant-1", "user-a");
    let place = sf.command("orders.place", "key-1").owner(&owner).run(async |tx| {
        let insert = sqlx::query_scalar("INSERT INTO orders (sku) VALUES ('tea') RETURNING id");
        let order_id = insert.fetch_one(tx.db()).await?;
        let (sku, email) = ("tea".into(), "a@example.org".into());
        tx.publish(&OrderPlaced { order_id, sku, email })?;
        Ok(order_id)
    });
    let order: i64 = place.await?.value; // the order, the key, the event and its two deliveries are one COMMIT

    let dispatcher = sf.clone();
    let dispatching = tokio::spawn(async move { dispatcher.dispatch().await }); // `sf.serve(..)` does it by itself
    let free = || sqlx::query_scalar::<_, i64>("SELECT free FROM stock WHERE sku = 'tea'");
    while free().fetch_one(sf.pool()).await? == 10 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    println!("order {order} has reserved its tea");
    sf.stop(); // what is under way ends, the rest stays for the next process
    dispatching.await??;
    Ok(())
}
