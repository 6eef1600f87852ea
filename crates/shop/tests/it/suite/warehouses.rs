//! A shop and its warehouse: two databases with a broker between them. Whoever is killed, each order is reserved once, and shown so
//! once.
//!
//! In the lab a broker hands out after 2 s what a dead process had, where it does not see by itself that it is dead.

use serde_json::{Value, json};
use uuid::Uuid;

use super::{Database, PREFIX};
use crate::eventually;
use crate::http::{Request, Response};
use crate::process::{Shop, send_until_settled};

/// How much tea a fresh warehouse has, and how much jam.
const TEA: i64 = 100_000;
const JAM: i64 = 5;

/// A shop, a warehouse, and the broker between them, on which nobody else uses their name.
struct Trade {
    url: String,
    name: String,
    sold: Database,
    kept: Database,
}

impl Trade {
    async fn by(kind: &str) -> Self {
        let variable = format!("TEST_{}_URL", kind.to_uppercase());
        let url = std::env::var(&variable).unwrap_or_else(|_| panic!("{variable} is not set: run `cargo xtask test`"));
        Self {
            url,
            name: format!("t{}", Uuid::now_v7().simple()),
            sold: Database::fresh().await,
            kept: Database::fresh().await,
        }
    }

    async fn shop(&self, flags: &[&str]) -> Shop {
        let source = ["--lab", "--source", &self.url, "--sink-name", &self.name];
        Shop::start(&self.sold.url(), &[&source, flags].concat()).await
    }

    async fn warehouse(&self, flags: &[&str]) -> Shop {
        let flags = [&self.of_warehouse(), flags].concat();
        Shop::warehouse(&self.kept.url(), &flags).await
    }

    fn of_warehouse(&self) -> [&str; 5] {
        ["--lab", "--source", &self.url, "--source-name", &self.name]
    }

    /// Waits until the shop shows the reservations of so many orders.
    async fn all_are_shown(&self, orders: i64) {
        eventually("the shop shows what was reserved", async || {
            self.sold.count("warehouse_reservations").await >= orders
        })
        .await;
    }

    /// Orders of two teas each took their tea once, were said to be reserved once, and are shown so once; nothing is dead.
    async fn assert_reserved_once(&self, orders: i64) {
        let kept = &self.kept;
        assert_eq!(kept.count("reservations WHERE state = 'reserved'").await, orders);
        assert_eq!(
            kept.ask("SELECT count(DISTINCT order_id) FROM reservations").await,
            orders
        );
        let tea = kept.ask("SELECT on_hand FROM stock WHERE sku = 'tea'").await;
        assert_eq!(tea, TEA - 2 * orders);
        let told = kept
            .count(&format!("{PREFIX}messages WHERE type = 'stock.reserved'"))
            .await;
        assert_eq!(told, orders, "what is reserved is said once");
        let shown = "SELECT count(DISTINCT order_id) FROM warehouse_reservations";
        assert_eq!(self.sold.ask(shown).await, orders);
        assert_eq!(self.sold.count("warehouse_reservations").await, orders);
        assert_eq!(self.sold.count("reservations").await, 0, "the shop reserves nothing");
        for database in [&self.sold, kept] {
            assert_eq!(database.count(&format!("{PREFIX}queue WHERE state = 'dead'")).await, 0);
        }
    }
}

impl Database {
    /// Waits until a process has said that it reacts by this name.
    async fn knows(&self, name: &str) {
        let kinds = format!("{PREFIX}kinds WHERE kind = '{name}'");
        eventually(&format!("{name} is known"), async || self.count(&kinds).await == 1).await;
    }
}

async fn placed(request: &Request) -> Response {
    let placed = send_until_settled(request).await;
    assert_eq!(placed.status, 201, "{}", placed.text());
    placed
}

/// Places so many orders, each for two teas.
async fn place(shop: &Shop, keys: std::ops::Range<i64>) {
    for key in keys {
        placed(&shop.order(&format!("key-{key}"))).await;
    }
}

/// The order as the shop shows it.
async fn shown(shop: &Shop, order: &Response) -> Value {
    let show = shop.request("GET", order.header("location").unwrap()).user("user-a");
    show.send().await.json()
}

/// How many messages a process has dropped because they had come before.
async fn duplicates(process: &Shop) -> f64 {
    let metrics = process.request("GET", "/metrics").send().await.text();
    let is_it =
        |line: &&str| line.starts_with("steadfast_inbox_messages_total{") && line.contains("result=\"duplicate\"");
    let counts = metrics.lines().filter(is_it).filter_map(|line| line.rsplit(' ').next());
    counts.map(|count| count.parse::<f64>().unwrap()).sum()
}

async fn an_order_goes_to_the_warehouse_and_back(kind: &str) {
    let trade = Trade::by(kind).await;
    let mut shop = trade.shop(&[]).await;
    // Before there is any warehouse.
    let tea = placed(&shop.order("tea")).await;
    let mut warehouse = trade.warehouse(&[]).await;
    let jam = shop.request("POST", "/orders").user("user-a").key("jam");
    let jam = placed(&jam.json(json!({ "sku": "jam", "quantity": JAM + 1 }).to_string())).await;
    trade.all_are_shown(2).await;
    for (order, state) in [(&tea, "reserved"), (&jam, "back_ordered")] {
        let order = shown(&shop, order).await;
        assert_eq!(order["reservation"], state, "{order}");
        assert!(order["reserved_at"].as_str() > order["created_at"].as_str(), "{order}");
    }
    let told = shop.request("GET", "/orders").user("user-a").send().await.json();
    assert_eq!(told["orders"][1]["reservation"], "reserved", "{told}");

    let cancel = format!("{}/cancel", tea.header("location").unwrap());
    let cancel = shop.request("POST", &cancel).user("user-a").key("cancel");
    assert_eq!(cancel.send().await.status, 200);
    eventually("the pieces are put back", async || {
        trade.kept.ask("SELECT on_hand FROM stock WHERE sku = 'tea'").await == TEA
    })
    .await;
    let stock = warehouse.request("GET", "/stock").send().await.json();
    let jam = &stock["stock"][1];
    assert_eq!(
        (&jam["on_hand"], &jam["back_ordered"]),
        (&json!(JAM), &json!(JAM + 1)),
        "{stock}"
    );

    let elsewhere = shop.request("GET", "/stock").user("user-a").send().await;
    assert_eq!(
        (elsewhere.status, &elsewhere.json()["code"]),
        (404, &json!("stock_elsewhere"))
    );
    let refused = warehouse.order("key-1").send().await;
    assert_eq!((refused.status, refused.text().contains("sells nothing")), (404, true));
    for process in [&mut shop, &mut warehouse] {
        process.terminate().await;
        assert_eq!(process.ended().await.code(), Some(0));
    }
    assert_eq!(trade.kept.count("reservations").await, 2);
    assert_eq!(trade.sold.count("reservations").await, 0);
}

/// Kills a warehouse at this point of a message, and a shop at the same point of what is said of it.
async fn killed_at(kind: &str, point: &str) {
    let trade = Trade::by(kind).await;
    let shop = trade.shop(&["--no-dispatch"]).await;
    let fault = |source: &str| format!("{source}.{kind}:kill={point}@1");
    let (of_orders, of_reservations) = (fault("orders"), fault("reservations"));

    place(&shop, 0..1).await;
    let flags = [&trade.of_warehouse()[..], &["--fault", &of_orders]].concat();
    let mut doomed = Shop::doomed_warehouse(&trade.kept.url(), &flags);
    let mut carrier = trade.shop(&["--fault", &of_reservations]).await;
    assert_eq!(doomed.ended().await.code(), None, "it was not killed, it ended");
    let is_durable = point == "after_commit_before_ack";
    assert_eq!(trade.kept.count("reservations").await, i64::from(is_durable));

    let warehouse = trade.warehouse(&[]).await;
    assert_eq!(carrier.ended().await.code(), None, "it was not killed, it ended");
    assert_eq!(trade.sold.count("warehouse_reservations").await, i64::from(is_durable));
    let next = trade.shop(&[]).await;
    trade.all_are_shown(1).await;
    if is_durable {
        for process in [&warehouse, &next] {
            eventually("the message has come again, and was dropped", async || {
                duplicates(process).await >= 1.0
            })
            .await;
        }
    }
    // Both go on with others.
    place(&shop, 1..3).await;
    trade.all_are_shown(3).await;
    trade.assert_reserved_once(3).await;
}

async fn two_warehouses_reserve_once(kind: &str) {
    let trade = Trade::by(kind).await;
    let shop = trade.shop(&[]).await;
    let one = trade.warehouse(&[]).await;
    let other = trade.warehouse(&[]).await;
    place(&shop, 0..30).await;
    trade.all_are_shown(30).await;
    trade.assert_reserved_once(30).await;
    drop((one, other));
}

macro_rules! on_broker {
    ($kind:ident) => {
        mod $kind {
            const KIND: &str = stringify!($kind);

            #[tokio::test]
            async fn an_order_goes_to_the_warehouse_and_back() {
                super::an_order_goes_to_the_warehouse_and_back(KIND).await;
            }

            #[tokio::test]
            async fn a_kill_when_a_message_has_come_leaves_it_to_the_next_process() {
                super::killed_at(KIND, "after_receive").await;
            }

            #[tokio::test]
            async fn a_kill_between_commit_and_acknowledgement_leaves_the_effect_there_once() {
                super::killed_at(KIND, "after_commit_before_ack").await;
            }

            #[tokio::test]
            async fn two_warehouses_on_one_database_reserve_each_order_once() {
                super::two_warehouses_reserve_once(KIND).await;
            }
        }
    };
}

on_broker!(rabbitmq);
on_broker!(nats);
on_broker!(redis);

/// Where no broker is: nothing of what follows needs one.
const NOWHERE: &str = "nats://127.0.0.1:1";

#[tokio::test]
async fn a_shop_and_its_warehouse_open_without_their_broker() {
    let (sold, kept) = (Database::fresh().await, Database::fresh().await);
    let shop = Shop::start(&sold.url(), &["--source", NOWHERE]).await;
    let warehouse = Shop::warehouse(&kept.url(), &["--source", NOWHERE]).await;
    let order = placed(&shop.order("key-1")).await;
    assert_eq!(shown(&shop, &order).await, order.json(), "nothing is said of it yet");
    assert_eq!(warehouse.request("GET", "/stock").send().await.status, 200);
}

#[tokio::test]
async fn two_who_would_both_keep_the_stock_do_not_come_together() {
    let (own, elsewhere) = (Database::fresh().await, Database::fresh().await);
    let keeps = Shop::start(&own.url(), &[]).await;
    own.knows("stock.reserve").await;
    drop(keeps);
    let said = Shop::refused(&["serve", "--source", NOWHERE, "--database-url", &own.url()]).await;
    assert!(said.contains("keeps its stock itself"), "{said}");

    let shop = Shop::start(&elsewhere.url(), &["--source", NOWHERE]).await;
    elsewhere.knows("warehouse.reserved").await;
    let said = Shop::refused(&["worker", "--database-url", &elsewhere.url()]).await;
    assert!(said.contains("kept by a warehouse"), "{said}");
    drop(Shop::worker(&elsewhere.url(), &["--source", NOWHERE]).await);

    for database in [&own, &elsewhere] {
        let said = Shop::refused(&["warehouse", "--source", NOWHERE, "--database-url", &database.url()]).await;
        assert!(said.contains("is a shop's"), "{said}");
    }
    drop(shop);
}
