//! The outside world: it does as it is told, and its ledger says what it did.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::eventually;
use crate::http::Request;
use crate::process::Shop;

pub(crate) struct Outside {
    pub(crate) process: Shop,
    directory: TempDir,
}

impl Outside {
    pub(crate) async fn start() -> Self {
        let directory = TempDir::new().unwrap();
        Self {
            process: Shop::outside(&ledger(&directory)).await,
            directory,
        }
    }

    /// `kill -9`, and up again on the same ledger.
    async fn crash(&mut self) {
        self.process.kill().await;
        self.process = Shop::outside(&ledger(&self.directory)).await;
    }

    pub(crate) async fn behave(&self, behaviour: Value) {
        let told = self.process.request("POST", "/behaviour").json(behaviour.to_string());
        assert_eq!(told.send().await.status, 201);
    }

    fn pay(&self, key: &str) -> Request {
        let request = self.process.request("POST", "/payments").key(key);
        request.json(r#"{"amount":1250,"currency":"EUR"}"#)
    }

    fn mail(&self) -> Request {
        let request = self.process.request("POST", "/mail");
        request.json(r#"{"to":"user-a","subject":"your tea"}"#)
    }

    /// The calls or the effects of a service.
    pub(crate) async fn ledger(&self, part: &str, service: &str) -> Vec<Value> {
        let path = format!("/ledger?service={service}");
        let shown = self.process.request("GET", &path).send().await.json();
        shown[part].as_array().unwrap().clone()
    }
}

/// A shop that asks this outside world, with an order in it.
async fn shop_with_an_order(outside: &Outside) -> (Shop, Request) {
    let url = format!("sqlite://{}", outside.directory.path().join("shop.db").display());
    let shop = Shop::start(&url, &["--lab", "--outside", &outside.process.url()]).await;
    let placed = shop.order("key-1").send().await;
    let order = shop.request("GET", placed.header("location").unwrap()).user("user-a");
    (shop, order)
}

fn ledger(directory: &TempDir) -> String {
    format!("sqlite://{}", directory.path().join("outside.db").display())
}

pub(crate) fn of(rows: &[Value], field: &str) -> Vec<Value> {
    rows.iter().map(|row| row[field].clone()).collect()
}

#[tokio::test]
async fn a_payment_happens_once_for_its_key_and_can_be_looked_up_by_it() {
    let outside = Outside::start().await;
    let first = outside.pay("p-1").send().await;
    let again = outside.pay("p-1").send().await;
    assert_eq!((first.status, again.status), (201, 201));
    assert_eq!(first.body, again.body);
    assert!(!first.is_replayed() && again.is_replayed());
    let other = outside.process.request("POST", "/payments").key("p-1");
    assert_eq!(other.json(r#"{"amount":1,"currency":"EUR"}"#).send().await.status, 422);

    let found = outside.process.request("GET", "/payments?key=p-1").send().await;
    assert_eq!(found.json(), first.json());
    assert_eq!(
        outside.process.request("GET", "/payments?key=p-2").send().await.status,
        404
    );
    assert_eq!(outside.ledger("effects", "payments").await.len(), 1);
    assert_eq!(
        of(&outside.ledger("calls", "payments").await, "status"),
        [201, 201, 422, 200, 404]
    );
}

#[tokio::test]
async fn a_payment_is_authorised_then_captured_then_refunded() {
    let outside = Outside::start().await;
    let id = outside.pay("p-1").send().await.json()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let step = |step: &str, key: &str| {
        outside
            .process
            .request("POST", &format!("/payments/{id}/{step}"))
            .key(key)
    };
    assert_eq!(step("refund", "r-1").send().await.status, 409);
    assert_eq!(step("capture", "c-1").send().await.json()["state"], "captured");
    assert!(step("capture", "c-1").send().await.is_replayed());
    assert_eq!(step("capture", "c-2").send().await.status, 409);
    assert_eq!(step("refund", "r-1").send().await.json()["state"], "refunded");
    let done = outside.ledger("effects", "payments").await;
    assert_eq!(
        of(&done, "operation"),
        ["payments.authorise", "payments.capture", "payments.refund"]
    );
}

#[tokio::test]
async fn what_is_told_to_fail_does_nothing_and_says_so() {
    let outside = Outside::start().await;
    outside
        .behave(json!({ "service": "mail", "do": "fail", "status": 503, "next": 2 }))
        .await;
    for status in [503, 503, 202] {
        assert_eq!(outside.mail().send().await.status, status);
    }
    assert_eq!(
        of(&outside.ledger("calls", "mail").await, "behaviour"),
        ["fail 503", "fail 503", "succeed"]
    );
    assert_eq!(outside.ledger("effects", "mail").await.len(), 1);
}

#[tokio::test]
async fn a_dropped_connection_has_its_effect_and_no_answer() {
    let outside = Outside::start().await;
    outside
        .behave(json!({ "service": "payments", "do": "drop", "next": 1 }))
        .await;
    assert!(outside.pay("p-1").try_send().await.is_err(), "not a byte is answered");
    assert_eq!(outside.ledger("effects", "payments").await.len(), 1);
    let again = outside.pay("p-1").send().await;
    assert!(again.is_replayed());
    assert_eq!(outside.ledger("effects", "payments").await.len(), 1);
}

#[tokio::test]
async fn a_slow_answer_comes_after_its_effect() {
    let outside = Outside::start().await;
    outside
        .behave(json!({ "service": "mail", "do": "slow", "delay": "60s" }))
        .await;
    let waiting = outside.mail().dispatch().await.unwrap();
    eventually("the mail is sent", async || {
        outside.ledger("effects", "mail").await.len() == 1
    })
    .await;
    drop(waiting);
    let clear = outside.process.request("DELETE", "/behaviour").send().await;
    assert_eq!(clear.status, 204);
    assert_eq!(outside.mail().send().await.status, 202);
}

#[tokio::test]
async fn the_ledger_and_the_keys_survive_a_kill() {
    let mut outside = Outside::start().await;
    let first = outside.pay("p-1").send().await;
    outside.crash().await;
    assert_eq!(outside.pay("p-1").send().await.body, first.body);
    assert_eq!(outside.ledger("effects", "payments").await.len(), 1);
    assert_eq!(outside.ledger("calls", "payments").await.len(), 2);
}

#[tokio::test]
async fn the_ledger_can_be_asked_for_one_key_and_shows_a_row_at_least() {
    let outside = Outside::start().await;
    for key in ["p-1", "p-2", "p-2"] {
        assert_eq!(outside.pay(key).send().await.status, 201);
    }
    for (query, calls, effects) in [("key=p-2", 2, 1), ("key=p-3", 0, 0), ("limit=0", 1, 1)] {
        let path = format!("/ledger?{query}");
        let shown = outside.process.request("GET", &path).send().await.json();
        let count = |part: &str| shown[part].as_array().unwrap().len();
        assert_eq!((count("calls"), count("effects")), (calls, effects), "{query}");
    }
}

#[tokio::test]
async fn a_webhook_acts_once_for_its_id_and_is_kept_with_what_signs_it() {
    let outside = Outside::start().await;
    let hook = |id: &str| {
        let request = outside
            .process
            .request("POST", "/webhooks/orders")
            .header("Webhook-Id", id);
        request
            .header("Webhook-Signature", "v1,abc")
            .json(r#"{"type":"order.placed"}"#)
    };
    for id in ["w-1", "w-1", "w-2"] {
        assert_eq!(hook(id).send().await.status, 200);
    }
    let effects = outside.ledger("effects", "webhooks").await;
    assert_eq!(of(&effects, "key"), ["w-1", "w-2"]);
    assert_eq!(effects[0]["detail"]["headers"]["webhook-signature"], "v1,abc");
    assert_eq!(effects[0]["detail"]["body"]["type"], "order.placed");
}

#[tokio::test]
async fn nonsense_is_refused_with_a_problem_and_the_ledger_can_be_read_in_parts() {
    let outside = Outside::start().await;
    for (status, request) in [
        (400, outside.process.request("POST", "/mail").json("nonsense")),
        (
            400,
            outside
                .process
                .request("POST", "/payments")
                .json(r#"{"amount":0,"currency":"EUR"}"#),
        ),
        (
            400,
            outside
                .process
                .request("POST", "/behaviour")
                .json(r#"{"service":"mail","do":"explode"}"#),
        ),
        (400, outside.process.request("GET", "/shipping/quote?sku=tea")),
        (400, outside.process.request("GET", "/payments")),
        (400, outside.process.request("GET", "/ledger?limit=many")),
        (404, outside.process.request("POST", "/payments/none/capture")),
        (404, outside.process.request("GET", "/nowhere")),
        (405, outside.process.request("DELETE", "/mail")),
    ] {
        let refused = request.send().await;
        assert_eq!(refused.status, status, "{}", refused.text());
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    }
    let quote = outside
        .process
        .request("GET", "/shipping/quote?sku=tea&quantity=2")
        .send()
        .await;
    assert_eq!(quote.json(), json!({ "price": 590, "currency": "EUR", "days": 2 }));
    let all = outside.process.request("GET", "/ledger?limit=2").send().await.json();
    let ids = of(all["calls"].as_array().unwrap(), "id");
    let rest = format!("/ledger?after={}", ids[1]);
    let rest = outside.process.request("GET", &rest).send().await.json();
    let rest = rest["calls"].as_array().unwrap();
    assert_eq!(ids.len(), 2);
    assert_eq!(
        of(rest, "status"),
        [400, 400, 404, 200],
        "what was refused was received, too"
    );
    assert_eq!(rest[0]["request"], "sku=tea");
    assert_eq!(all["effects"], json!([]));
}

#[tokio::test]
async fn no_body_makes_the_ledger_unreadable() {
    let outside = Outside::start().await;
    for depth in [100, 127, 1_000] {
        let deep = "[".repeat(depth) + &"]".repeat(depth);
        let hook = outside.process.request("POST", "/webhooks/deep").json(deep.as_str());
        assert_eq!(hook.send().await.status, 200);
        let kept = outside.ledger("effects", "webhooks").await.pop().unwrap();
        assert_eq!(kept["detail"]["body"].is_string(), depth > 100, "{depth}");
    }
}

#[tokio::test]
async fn an_order_is_shown_with_its_quote_and_without_it_while_the_breaker_is_open() {
    let outside = Outside::start().await;
    let (shop, order) = shop_with_an_order(&outside).await;
    let shown = order.send().await.json();
    assert_eq!(shown["shipping"], json!({ "price": 590, "currency": "EUR", "days": 2 }));

    outside
        .behave(json!({ "service": "shipping", "do": "fail", "status": 503 }))
        .await;
    for _ in 0..5 {
        let shown = order.send().await;
        assert_eq!(shown.status, 200);
        assert_eq!(
            (&shown.json()["sku"], &shown.json()["shipping"]),
            (&json!("tea"), &Value::Null)
        );
    }
    // One that succeeded and three that failed; after those the breaker is open, and nobody is asked.
    assert_eq!(
        of(&outside.ledger("calls", "shipping").await, "status"),
        [200, 503, 503, 503]
    );
    let metrics = shop.request("GET", "/metrics").send().await.text();
    assert!(metrics.contains("steadfast_breaker_state"), "{metrics}");

    assert_eq!(outside.process.request("DELETE", "/behaviour").send().await.status, 204);
    assert_eq!(order.send().await.json()["shipping"], Value::Null, "it is still open");
    let later = shop.request("POST", "/lab/clock").json(r#"{"advance":"5s"}"#);
    assert_eq!(later.send().await.status, 200);
    assert_eq!(
        order.send().await.json()["shipping"]["price"],
        590,
        "one probe closes it"
    );
}

#[tokio::test]
async fn a_quote_whose_answer_is_lost_is_asked_for_again_and_one_that_is_refused_is_not() {
    let outside = Outside::start().await;
    let (_shop, order) = shop_with_an_order(&outside).await;
    outside
        .behave(json!({ "service": "shipping", "do": "fail", "status": 404, "next": 1 }))
        .await;
    assert_eq!(order.send().await.json()["shipping"], Value::Null);
    outside
        .behave(json!({ "service": "shipping", "do": "drop", "next": 1 }))
        .await;
    assert_eq!(order.send().await.json()["shipping"]["price"], 590);
    assert_eq!(
        of(&outside.ledger("calls", "shipping").await, "behaviour"),
        ["fail 404", "drop", "succeed"]
    );
}

#[tokio::test]
async fn an_outside_world_that_is_slow_or_gone_keeps_nobody_waiting() {
    let mut outside = Outside::start().await;
    let (_shop, order) = shop_with_an_order(&outside).await;
    // Longer than the test is patient.
    outside
        .behave(json!({ "service": "shipping", "do": "slow", "delay": "60s" }))
        .await;
    let asked = Instant::now();
    assert_eq!(order.send().await.json()["shipping"], Value::Null);
    assert!(asked.elapsed() < Duration::from_secs(5), "two attempts of 300 ms each");
    outside.process.kill().await;
    let shown = order.send().await;
    assert_eq!((shown.status, &shown.json()["shipping"]), (200, &Value::Null));
}

#[tokio::test]
async fn a_client_that_hangs_up_is_in_the_ledger_all_the_same() {
    let outside = Outside::start().await;
    for _ in 0..20 {
        drop(outside.mail().dispatch().await.unwrap());
    }
    eventually("all calls are there", async || {
        outside.ledger("calls", "mail").await.len() == 20 && outside.ledger("effects", "mail").await.len() == 20
    })
    .await;
}
