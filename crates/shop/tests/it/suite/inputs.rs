//! Bad input over the wire: always a problem with a code, never a row.

use super::{Database, KEYS};
use crate::http::Request;
use crate::process::Shop;

/// Sends requests that must be refused, and then looks at every table.
async fn refused(requests: impl AsyncFnOnce(&Shop) -> Vec<(&'static str, u16, Request)>) {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    for (what, status, request) in requests(&shop).await {
        let response = request.send().await;
        assert_eq!(response.status, status, "{what}: {}", response.text());
        let media_type = response.header("content-type");
        assert_eq!(media_type, Some("application/problem+json"), "{what}");
        assert!(response.json()["code"].is_string(), "{what}");
    }
    for table in ["orders", "payments", KEYS] {
        assert_eq!(database.count(table).await, 0, "{table}");
    }
    assert_eq!(
        shop.order("good").send().await.status,
        201,
        "the shop is as well as before"
    );
}

#[tokio::test]
async fn bad_keys_are_refused_and_change_nothing() {
    refused(async |shop| {
        let order = || {
            shop.request("POST", "/orders")
                .user("user-a")
                .json(r#"{"sku":"tea","quantity":2}"#)
        };
        vec![
            ("missing", 400, order()),
            ("empty", 400, order().key("")),
            ("empty in quotes", 400, order().key("\"\"")),
            ("too long", 400, order().key(&"k".repeat(256))),
            ("doubled", 400, order().key("a").key("a")),
            (
                "doubled by the old name",
                400,
                order().key("a").header("X-Idempotency-Key", "a"),
            ),
            ("not ASCII", 400, order().key("clé")),
            ("not even UTF-8", 400, order().header("Idempotency-Key", b"\xff")),
            ("with a space", 400, order().key("a b")),
            ("parametrised", 400, order().key("\"a\";v=1")),
            ("a list", 400, order().key("a, b")),
            ("an open quote", 400, order().key("\"a")),
        ]
    })
    .await;
}

#[tokio::test]
async fn bad_orders_are_refused_and_change_nothing() {
    refused(async |shop| {
        let order = |body: &[u8]| shop.request("POST", "/orders").user("user-a").key("key-1").json(body);
        let long_sku = format!(r#"{{"sku":"{}","quantity":1}}"#, "x".repeat(65));
        let big = format!(r#"{{"sku":"{}","quantity":1}}"#, "x".repeat(3 * 1024 * 1024));
        vec![
            ("no body", 400, order(b"")),
            ("not JSON", 400, order(b"tea, please")),
            ("cut off", 400, order(br#"{"sku":"tea","#)),
            ("not UTF-8", 400, order(b"{\"sku\":\"\xff\",\"quantity\":1}")),
            (
                "duplicate members",
                400,
                order(br#"{"sku":"tea","quantity":1,"quantity":2}"#),
            ),
            ("a depth bomb", 400, order("[".repeat(100_000).as_bytes())),
            ("too large", 413, order(big.as_bytes())),
            (
                "a huge number",
                400,
                order(br#"{"sku":"tea","quantity":123456789012345678901234567890}"#),
            ),
            ("an endless number", 400, order(br#"{"sku":"tea","quantity":1e999999}"#)),
            ("half a tea", 400, order(br#"{"sku":"tea","quantity":0.5}"#)),
            ("no quantity", 400, order(br#"{"sku":"tea"}"#)),
            ("none", 400, order(br#"{"sku":"tea","quantity":0}"#)),
            ("less than none", 400, order(br#"{"sku":"tea","quantity":-1}"#)),
            ("too many", 400, order(br#"{"sku":"tea","quantity":1001}"#)),
            ("a number in words", 400, order(br#"{"sku":"tea","quantity":"two"}"#)),
            ("NUL", 400, order(br#"{"sku":"te\u0000a","quantity":1}"#)),
            ("a line break", 400, order(br#"{"sku":"te\na","quantity":1}"#)),
            ("no name", 400, order(br#"{"sku":"","quantity":1}"#)),
            ("a long name", 400, order(long_sku.as_bytes())),
            (
                "an unknown member",
                400,
                order(br#"{"sku":"tea","quantity":1,"coupon":"x"}"#),
            ),
            ("another type", 400, order(b"[]")),
        ]
    })
    .await;
}

#[tokio::test]
async fn bad_payments_are_refused_and_change_nothing() {
    refused(async |shop| {
        let pay = || shop.request("POST", "/payments").user("user-a").key("key-1");
        vec![
            ("nothing", 400, pay().json(r#"{"amount":0,"currency":"EUR"}"#)),
            (
                "a fortune",
                400,
                pay().json(r#"{"amount":1000000001,"currency":"EUR"}"#),
            ),
            ("a fraction", 400, pay().json(r#"{"amount":12.5,"currency":"EUR"}"#)),
            ("small letters", 400, pay().json(r#"{"amount":5,"currency":"eur"}"#)),
            ("four letters", 400, pay().json(r#"{"amount":5,"currency":"EURO"}"#)),
            (
                "NUL",
                400,
                pay().json(r#"{"amount":5,"currency":"EUR","description":"\u0000"}"#),
            ),
            (
                "no id",
                400,
                pay().json(r#"{"amount":5,"currency":"EUR","order_id":"tea"}"#),
            ),
            ("words in a form", 400, pay().form("amount=five&currency=EUR")),
            (
                "NUL in a form",
                400,
                pay().form("amount=5&currency=EUR&description=%00"),
            ),
            ("twice in a form", 400, pay().form("amount=5&amount=6&currency=EUR")),
            ("an empty form", 400, pay().form("")),
            ("another media type", 415, pay().header("Content-Type", "text/plain")),
            ("no media type", 415, pay()),
        ]
    })
    .await;
}

#[tokio::test]
async fn bad_paths_and_methods_are_refused() {
    refused(async |shop| {
        let get = |path: &str| shop.request("GET", path).user("user-a");
        vec![
            (
                "an unknown order",
                404,
                get("/orders/01890000-0000-7000-8000-000000000000"),
            ),
            ("no id", 400, get("/orders/tea")),
            ("NUL", 400, get("/orders/%00")),
            ("not UTF-8", 400, get("/payments/%ff")),
            ("nowhere", 404, get("/nowhere")),
            ("another method", 405, shop.request("DELETE", "/orders").user("user-a")),
        ]
    })
    .await;
}
