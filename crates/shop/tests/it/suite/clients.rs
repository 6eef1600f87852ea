//! What clients of the business meet: tokens, owners, orders, payments.

use super::{Database, KEYS};
use crate::process::Shop;

const USERS: [&str; 3] = ["user-a", "user-b", "user-c"];

#[tokio::test]
async fn nobody_gets_in_without_a_token() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    for (method, path) in [
        ("GET", "/orders"),
        ("POST", "/orders"),
        ("GET", "/payments"),
        ("POST", "/payments"),
        ("POST", "/orders/01890000-0000-7000-8000-000000000000/cancel"),
        ("GET", "/stock"),
    ] {
        let request = shop.request(method, path).key("key-1");
        for request in [
            request.clone(),
            request.clone().user("user-x"),
            request.clone().header("Authorization", "Basic user-a"),
            request.clone().header("Authorization", "Bearer"),
        ] {
            let refused = request.json(r#"{"sku":"tea","quantity":2}"#).send().await;
            assert_eq!(refused.status, 401, "{method} {path}");
            assert_eq!(refused.header("www-authenticate"), Some("bearer"));
            assert_eq!(refused.header("content-type"), Some("application/problem+json"));
        }
    }
    assert_eq!(database.count("orders").await, 0);
}

#[tokio::test]
async fn the_same_key_of_three_users_is_three_commands() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    let order = |user: &str| {
        let request = shop.request("POST", "/orders").user(user).key("key-1");
        request.json(r#"{"sku":"tea","quantity":2}"#)
    };
    for user in USERS {
        let first = order(user).send().await;
        assert_eq!(first.status, 201);
        assert!(!first.is_replayed(), "{user}");
        assert_eq!(first.json()["owner"], user);
        let retry = order(user).send().await;
        assert!(retry.is_replayed());
        assert_eq!(retry.body, first.body, "everybody gets his own answer");
    }
    assert_eq!(database.count("orders").await, 3);
    assert_eq!(database.count(KEYS).await, 3);
}

#[tokio::test]
async fn users_see_their_own_orders_only_and_the_newest_first() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    let older = shop.order("key-1").send().await;
    let newer = shop.order("key-2").send().await;
    let list = shop.request("GET", "/orders").user("user-a").send().await;
    assert_eq!(list.json()["orders"][0], newer.json());
    assert_eq!(list.json()["orders"][1], older.json());

    let path = format!("/orders/{}", newer.json()["id"].as_str().unwrap());
    let own = shop.request("GET", &path).user("user-a").send().await;
    assert_eq!(own.body, newer.body);
    for user in ["user-b", "user-c"] {
        let foreign = shop.request("GET", &path).user(user).send().await;
        assert_eq!(foreign.status, 404);
        assert_eq!(foreign.header("content-type"), Some("application/problem+json"));
        let list = shop.request("GET", "/orders").user(user).send().await;
        assert_eq!(list.text(), r#"{"orders":[]}"#);
    }
}

#[tokio::test]
async fn a_payment_may_come_as_json_or_as_a_form_and_is_replayed_in_kind() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    let pay = |key: &str| shop.request("POST", "/payments").user("user-a").key(key);
    let json = pay("json").json(r#"{"amount":1250,"currency":"EUR","description":"two teas"}"#);
    let form = pay("form").form("amount=1250&currency=EUR&description=two+teas");
    for (request, count) in [(json, 1), (form, 2)] {
        let first = request.send().await;
        assert_eq!(first.status, 201, "{}", first.text());
        let payment = first.json();
        assert_eq!(payment["amount"], 1250);
        assert_eq!(payment["description"], "two teas");
        assert_eq!(
            first.header("location"),
            Some(format!("/payments/{}", payment["id"].as_str().unwrap()).as_str())
        );
        let retry = request.send().await;
        assert!(retry.is_replayed());
        assert_eq!(retry.body, first.body);
        assert_eq!(database.count("payments").await, count);
        let shown = shop
            .request("GET", first.header("location").unwrap())
            .user("user-a")
            .send()
            .await;
        assert_eq!(shown.body, first.body);
    }
    // The same meaning in another form is another request: the key was not used for it.
    let other = pay("json")
        .form("amount=1250&currency=EUR&description=two+teas")
        .send()
        .await;
    assert_eq!(other.status, 422);
    let list = shop.request("GET", "/payments").user("user-a").send().await;
    assert_eq!(list.json()["payments"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn only_an_own_order_can_be_paid_for() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    let order_id = shop.order("key-1").send().await.json()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let pay = |user: &str, order_id: &str| {
        let request = shop.request("POST", "/payments").user(user).key("key-1");
        request.json(format!(r#"{{"amount":5,"currency":"EUR","order_id":"{order_id}"}}"#))
    };
    for (user, order_id) in [
        ("user-b", order_id.as_str()),
        ("user-c", &order_id),
        ("user-a", "01890000-0000-7000-8000-000000000000"),
    ] {
        let refused = pay(user, order_id).send().await;
        assert_eq!(refused.status, 404, "{}", refused.text());
        assert_eq!(refused.json()["code"], "order_not_found");
    }
    assert_eq!(database.count("payments").await, 0);
    let paid = pay("user-a", &order_id).send().await;
    assert_eq!(paid.status, 201);
    assert_eq!(paid.json()["order_id"], order_id.as_str());
}

#[tokio::test]
async fn orders_and_payments_have_separate_keys() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    let payment = shop.request("POST", "/payments").user("user-a").key("key-1");
    assert_eq!(shop.order("key-1").send().await.status, 201);
    assert_eq!(
        payment.json(r#"{"amount":5,"currency":"EUR"}"#).send().await.status,
        201
    );
    assert_eq!(database.count(KEYS).await, 2);
}
