//! What an order sets off: stock and mail, and what is left of it when it is cancelled.

use serde_json::{Value, json};

use super::{Database, PREFIX};
use crate::eventually;
use crate::http::{Request, Response};
use crate::outside::{Outside, of};
use crate::process::{Shop, send_until_settled};

fn order(shop: &Shop, key: &str, sku: &str, quantity: u32) -> Request {
    let request = shop.request("POST", "/orders").user("user-a").key(key);
    request.json(json!({ "sku": sku, "quantity": quantity }).to_string())
}

fn cancel(shop: &Shop, order: &Response, key: &str) -> Request {
    let path = format!("{}/cancel", order.header("location").unwrap());
    shop.request("POST", &path).user("user-a").key(key)
}

fn pay(shop: &Shop, order: &Response, key: &str) -> Request {
    let request = shop.request("POST", "/payments").user("user-a").key(key);
    request.json(json!({ "amount": 5, "currency": "EUR", "order_id": order.json()["id"] }).to_string())
}

/// What is there of an article, what is kept and what is wanted, as the shop shows it.
async fn stock(shop: &Shop, sku: &str) -> [i64; 3] {
    let shown = shop.request("GET", "/stock").user("user-a").send().await.json();
    let articles = shown["stock"].as_array().unwrap();
    let article = articles.iter().find(|article| article["sku"] == sku);
    ["on_hand", "reserved", "back_ordered"].map(|field| article.map_or(0, |article| article[field].as_i64().unwrap()))
}

async fn stock_becomes(shop: &Shop, sku: &str, wanted: [i64; 3]) {
    eventually(&format!("the stock of {sku} is {wanted:?}"), async || {
        stock(shop, sku).await == wanted
    })
    .await;
}

#[tokio::test]
async fn an_order_takes_its_pieces_and_a_cancelled_one_gives_them_back() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    let placed = order(&shop, "key-1", "coffee", 7).send().await;
    stock_becomes(&shop, "coffee", [993, 7, 0]).await;

    let cancelled = cancel(&shop, &placed, "key-2").send().await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.text());
    assert_eq!(cancelled.json()["id"], placed.json()["id"]);
    stock_becomes(&shop, "coffee", [1000, 0, 0]).await;

    let shown = shop.request("GET", placed.header("location").unwrap()).user("user-a");
    assert_eq!(shown.send().await.body, cancelled.body);
    let again = cancel(&shop, &placed, "key-2").send().await;
    assert!(again.is_replayed());
    assert_eq!(again.body, cancelled.body);
    assert_eq!(database.count(&format!("{PREFIX}messages WHERE kind IS NULL")).await, 2);
}

#[tokio::test]
async fn what_is_not_there_is_back_ordered_and_the_stock_is_never_negative() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    let first = order(&shop, "key-1", "jam", 4).send().await;
    stock_becomes(&shop, "jam", [1, 4, 0]).await;
    let second = order(&shop, "key-2", "jam", 4).send().await;
    stock_becomes(&shop, "jam", [1, 4, 4]).await;
    order(&shop, "key-3", "unicorn", 1).send().await;
    stock_becomes(&shop, "unicorn", [0, 0, 1]).await;

    cancel(&shop, &second, "key-4").send().await;
    stock_becomes(&shop, "jam", [1, 4, 0]).await;
    cancel(&shop, &first, "key-5").send().await;
    stock_becomes(&shop, "jam", [5, 0, 0]).await;
}

#[tokio::test]
async fn a_cancellation_that_comes_before_its_order_leaves_nothing_reserved() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &["--lab", "--no-dispatch"]).await;
    let worker = Shop::worker(
        &database.url(),
        &["--lab", "--fault", "stock.reserve:hold=until-released"],
    )
    .await;
    let placed = order(&shop, "key-1", "coffee", 7).send().await;
    worker.holds(1).await;
    assert_eq!(cancel(&shop, &placed, "key-2").send().await.status, 200);
    eventually("the cancellation is delivered", async || {
        database
            .count(&format!("{PREFIX}history WHERE kind LIKE 'stock.%'"))
            .await
            == 1
    })
    .await;
    worker.release().await;
    eventually("both are delivered", async || {
        database
            .count(&format!("{PREFIX}history WHERE kind LIKE 'stock.%'"))
            .await
            == 2
    })
    .await;
    assert_eq!(stock(&shop, "coffee").await, [1000, 0, 0]);
}

#[tokio::test]
async fn a_paid_order_cannot_be_cancelled_and_a_cancelled_one_cannot_be_paid_for() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    let refused = |response: Response, code: &str| {
        assert_eq!((response.status, response.json()["code"].as_str()), (422, Some(code)));
    };
    let paid = order(&shop, "key-1", "coffee", 1).send().await;
    assert_eq!(pay(&shop, &paid, "key-1").send().await.status, 201);
    refused(cancel(&shop, &paid, "key-2").send().await, "already_paid");

    let cancelled = order(&shop, "key-2", "coffee", 1).send().await;
    assert_eq!(cancel(&shop, &cancelled, "key-3").send().await.status, 200);
    refused(pay(&shop, &cancelled, "key-4").send().await, "order_cancelled");
    refused(cancel(&shop, &cancelled, "key-4").send().await, "already_cancelled");

    let path = format!("{}/cancel", cancelled.header("location").unwrap());
    for (status, path, user) in [
        (404, path.as_str(), "user-b"),
        (404, "/orders/01890000-0000-7000-8000-000000000000/cancel", "user-a"),
        (400, "/orders/tea/cancel", "user-a"),
    ] {
        let refused = shop.request("POST", path).user(user).key("key-5").send().await;
        assert_eq!(refused.status, status, "{path}");
    }
    assert_eq!(database.count("cancellations").await, 1);
    assert_eq!(database.count("payments").await, 1);
}

#[tokio::test]
async fn an_order_that_is_paid_for_and_cancelled_at_once_is_one_of_both() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    for number in 0..8 {
        let placed = order(&shop, &format!("key-{number}"), "coffee", 1).send().await;
        let (pay, cancel) = (
            pay(&shop, &placed, &format!("p-{number}")),
            cancel(&shop, &placed, &format!("c-{number}")),
        );
        let (paid, cancelled) = tokio::join!(send_until_settled(&pay), send_until_settled(&cancel));
        let statuses = (paid.status, cancelled.status);
        assert!(matches!(statuses, (201, 422) | (422, 200)), "{statuses:?}");
    }
    let both = "payments AS p JOIN cancellations AS c ON c.order_id = p.order_id";
    assert_eq!(database.count(both).await, 0);
}

#[tokio::test]
async fn a_mail_that_fails_or_whose_answer_is_lost_is_asked_for_again_with_its_key_and_sent_once() {
    let database = Database::fresh().await;
    let outside = Outside::start().await;
    outside
        .behave(json!({ "service": "mail", "do": "drop", "next": 1 }))
        .await;
    outside
        .behave(json!({ "service": "mail", "do": "fail", "status": 503, "next": 2 }))
        .await;
    let shop = Shop::start(&database.url(), &["--outside", &outside.process.url()]).await;
    let placed = order(&shop, "key-1", "tea", 2).send().await;
    eventually("the mail is delivered", async || {
        database
            .count(&format!("{PREFIX}history WHERE kind = 'mail.confirm'"))
            .await
            == 1
    })
    .await;
    let calls = outside.ledger("calls", "mail").await;
    assert_eq!(of(&calls, "status"), [503, 503, 202, 202]);
    assert_eq!(of(&calls, "replayed"), [false, false, false, true].map(Value::from));
    assert!(of(&calls, "key").iter().all(|key| *key == calls[0]["key"]));
    let sent = outside.ledger("effects", "mail").await;
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0]["detail"]["to"], "user-a@example.com");
    assert!(
        sent[0]["detail"]["subject"]
            .as_str()
            .unwrap()
            .contains(placed.json()["id"].as_str().unwrap())
    );

    assert_eq!(pay(&shop, &placed, "key-1").send().await.status, 201);
    eventually("the receipt is sent", async || {
        outside.ledger("effects", "mail").await.len() == 2
    })
    .await;
}

#[tokio::test]
async fn while_mail_is_broken_its_breaker_spares_it_and_stock_goes_on() {
    let database = Database::fresh().await;
    let outside = Outside::start().await;
    outside
        .behave(json!({ "service": "mail", "do": "fail", "status": 503 }))
        .await;
    let shop = Shop::start(&database.url(), &["--lab", "--outside", &outside.process.url()]).await;
    for number in 0..20 {
        order(&shop, &format!("key-{number}"), "coffee", 1).send().await;
    }
    stock_becomes(&shop, "coffee", [980, 20, 0]).await;
    // Five in a row open it; eight may be under way then, and some probe.
    let asked = outside.ledger("calls", "mail").await.len();
    assert!(asked < 20, "not everybody asked, and nobody twice: {asked}");
    let clear = outside.process.request("DELETE", "/behaviour").send().await;
    assert_eq!(clear.status, 204);
    eventually("every mail is sent", async || {
        outside.ledger("effects", "mail").await.len() == 20
    })
    .await;
    assert_eq!(database.count(&format!("{PREFIX}queue WHERE state = 'dead'")).await, 0);
}

#[tokio::test]
async fn accidents_happen_to_reactions_too_and_leave_nothing_half_done() {
    let database = Database::fresh().await;
    let faults = ["coffee:fail=transient@1", "jam:panic@1", "tea:fail=definitive"];
    let faults = faults.map(|fault| format!("stock.reserve/{fault}"));
    let [transient, panic, definitive] = &faults;
    let flags = ["--lab", "--fault", transient, "--fault", panic, "--fault", definitive];
    let shop = Shop::start(&database.url(), &flags).await;
    for sku in ["coffee", "jam", "tea"] {
        assert_eq!(order(&shop, sku, sku, 2).send().await.status, 201);
    }
    stock_becomes(&shop, "coffee", [998, 2, 0]).await;
    stock_becomes(&shop, "jam", [3, 2, 0]).await;
    eventually("the third is dead", async || {
        database.count(&format!("{PREFIX}queue WHERE state = 'dead'")).await == 1
    })
    .await;
    assert_eq!(stock(&shop, "tea").await, [100_000, 0, 0]);
    assert_eq!(database.count(&format!("{PREFIX}history WHERE attempts = 2")).await, 2);
    for (count, code) in [(1, "lab_transient"), (1, "lab_definitive"), (3, "%")] {
        let noted = format!("{PREFIX}failures WHERE code LIKE '{code}'");
        assert_eq!(database.count(&noted).await, count, "{code}");
    }
}
