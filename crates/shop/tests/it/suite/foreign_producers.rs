//! Producers in Python, written with pika, nats-py and redis-py, send orders to a warehouse: twice, at the same time, in each other's
//! name, and wrong in every way. Each order is reserved once, what nobody can read is dead as it came, and the others get through.

use std::process::Stdio;

use serde_json::{Value, json};
use steadfast::{Incoming, Steadfast};
use tokio::io::AsyncWriteExt;
use uuid::Uuid;

use super::super::{Database, Db, PREFIX};
use super::python;
use crate::process::Shop;
use crate::{PATIENCE, eventually};

/// More than a warehouse takes.
const TOO_LARGE: usize = 70_000;

/// How often each of three producers sends the same event, all at the same time.
const COPIES: usize = 5;

/// A warehouse, and the broker that producers reach it by.
struct Intake {
    kind: &'static str,
    url: String,
    name: String,
    kept: Database,
}

impl Intake {
    async fn by(kind: &'static str) -> Self {
        let variable = format!("TEST_{}_URL", kind.to_uppercase());
        let url = std::env::var(&variable).unwrap_or_else(|_| panic!("{variable} is not set: run `cargo xtask test`"));
        Self {
            kind,
            url,
            name: format!("t{}", Uuid::now_v7().simple()),
            kept: Database::fresh().await,
        }
    }

    async fn warehouse(&self) -> Shop {
        let flags = ["--lab", "--source", &self.url, "--source-name", &self.name];
        Shop::warehouse(&self.kept.url(), &flags).await
    }

    /// Starts a warehouse, and waits until it takes orders: before that there is no place to send them to.
    async fn open_warehouse(&self) -> Shop {
        let warehouse = self.warehouse().await;
        let first = [binary("first", "/shop", "order.placed", "first")];
        eventually("there is a place to send to", async || self.try_produce(&first).await).await;
        self.all_are_reserved(1).await;
        warehouse
    }

    async fn all_are_reserved(&self, orders: i64) {
        eventually("all are reserved", async || {
            self.kept.count("reservations").await >= orders
        })
        .await;
    }

    /// Sends messages, one after another.
    async fn produce(&self, messages: &[Value]) {
        assert!(self.try_produce(messages).await);
    }

    async fn try_produce(&self, messages: &[Value]) -> bool {
        let (exchange, subject) = (format!("{}.events", self.name), format!("{}.order.placed", self.name));
        let script = format!("produce_{}.py", self.kind);
        let place: &[&str] = match self.kind {
            "rabbitmq" => &[&self.url, &exchange, "order.placed"],
            "nats" => &[&self.url, &subject],
            _ => &[&self.url, &exchange],
        };
        let lines: String = messages.iter().map(|message| format!("{message}\n")).collect();
        let mut python = python(&script, place);
        let mut producer = python.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = producer.stdin.take().unwrap();
        stdin.write_all(lines.as_bytes()).await.unwrap();
        drop(stdin);
        let ended = tokio::time::timeout(PATIENCE, producer.wait_with_output()).await;
        let ended = ended.unwrap().unwrap();
        if !ended.status.success() {
            eprintln!("{}", String::from_utf8_lossy(&ended.stderr));
        }
        ended.status.success()
    }

    async fn reservations(&self, order: &str) -> i64 {
        self.kept
            .count(&format!("reservations WHERE order_id = '{order}'"))
            .await
    }
}

/// What happened, as the shop would say it.
fn order(id: &str) -> Value {
    json!({ "order_id": id, "customer": "tenant-1/user-a", "sku": "tea", "quantity": 2, "email": "a@example.com" })
}

/// A CloudEvent about an order, whose attributes are headers.
fn binary(id: &str, source: &str, event_type: &str, of: &str) -> Value {
    let attributes = json!({ "id": id, "source": source, "type": event_type, "datacontenttype": "application/json" });
    json!({ "mode": "binary", "attributes": attributes, "data": order(of), "headers": {} })
}

/// The same event in another mode.
fn in_mode(mode: &str, mut message: Value) -> Value {
    message["mode"] = mode.into();
    message
}

/// Bytes with whatever attributes they are said to have, and a header that knows what is wrong with them.
fn wrong(note: &str, attributes: &Value, body: &[u8]) -> Value {
    json!({ "mode": "wrong", "attributes": attributes, "body": body, "headers": { "x-note": note } })
}

/// Attributes of an order by the shop.
fn attributes(id: &str) -> Value {
    json!({ "specversion": "1.0", "id": id, "source": "/shop", "type": "order.placed" })
}

/// How many messages these processes have seen to, whether they were new or not.
async fn seen(processes: &[&Shop]) -> f64 {
    let mut sum = 0.0;
    for process in processes {
        let metrics = process.request("GET", "/metrics").send().await.text();
        let is_it = |line: &&str| {
            let counts = |result: &str| line.contains(&format!("result=\"{result}\""));
            line.starts_with("steadfast_inbox_messages_total{") && (counts("handled") || counts("duplicate"))
        };
        let counts = metrics.lines().filter(is_it).filter_map(|line| line.rsplit(' ').next());
        sum += counts.map(|count| count.parse::<f64>().unwrap()).sum::<f64>();
    }
    sum
}

async fn what_is_sent_more_than_once_is_reserved_once(kind: &'static str) {
    let intake = Intake::by(kind).await;
    let mut one = intake.open_warehouse().await;
    let mut other = intake.warehouse().await;
    let before = seen(&[&one, &other]).await;

    // At the same time, to two processes; and once more when it is long done.
    let same = binary("e-1", "/shop", "order.placed", "same");
    let copies = vec![same.clone(); COPIES];
    tokio::join!(
        intake.produce(&copies),
        intake.produce(&copies),
        intake.produce(&copies)
    );
    let all = before + 3.0 * COPIES as f64;
    eventually("all have come", async || seen(&[&one, &other]).await >= all).await;
    intake.produce(&[same]).await;
    eventually("it has come again", async || seen(&[&one, &other]).await > all).await;
    assert_eq!(intake.reservations("same").await, 1);

    // Within one batch, in both modes of CloudEvents.
    one.kill().await;
    other.kill().await;
    let twin = |id: &str| binary(id, "/shop", "order.placed", id);
    let (two, three) = (twin("two"), twin("three"));
    let mut batch = vec![
        two.clone(),
        three.clone(),
        in_mode("structured", two.clone()),
        three,
        two,
    ];
    // Whoever uses an id first, under his own name, takes it from nobody.
    batch.push(binary("mine", "/elsewhere", "order.placed", "theirs"));
    batch.push(binary("mine", "/shop", "order.placed", "ours"));
    if kind != "nats" {
        // What the broker calls it is enough, where it says what it is about; there the source is the broker's.
        let plain = in_mode("plain", binary("mine", "/shop", "order.placed", "plain"));
        batch.extend([plain.clone(), plain]);
    }
    intake.produce(&batch).await;
    let warehouse = intake.warehouse().await;
    eventually("all have come", async || {
        seen(&[&warehouse]).await >= batch.len() as f64
    })
    .await;
    let plain = if kind == "nats" { 0 } else { 1 };
    for (order, times) in [
        ("two", 1),
        ("three", 1),
        ("theirs", 1),
        ("ours", 1),
        ("plain", plain),
        ("same", 1),
    ] {
        assert_eq!(intake.reservations(order).await, times, "{order}");
    }
    assert_eq!(
        intake.kept.count(&format!("{PREFIX}queue WHERE state = 'dead'")).await,
        0
    );
    let told = format!("{PREFIX}messages WHERE type = 'stock.reserved'");
    let reserved = intake.kept.count("reservations").await;
    assert_eq!(intake.kept.count(&told).await, reserved, "each is said once");
}

/// What is wrong with a message, where it ends, and why.
struct Bad {
    message: Value,
    body: Vec<u8>,
    target: String,
    code: &'static str,
}

async fn what_nobody_can_read_is_dead_as_it_came_and_harms_no_other(kind: &'static str) {
    let intake = Intake::by(kind).await;
    intake.open_warehouse().await.kill().await;
    let source = format!("orders.{kind}");
    let bad = |note: &str, attributes: Value, body: Vec<u8>, target: &str, code: &'static str| Bad {
        message: wrong(note, &attributes, &body),
        body,
        target: target.to_owned(),
        code,
    };
    let good_body = order("nobody").to_string().into_bytes();
    let without_id = json!({ "specversion": "1.0", "source": "/shop", "type": "order.placed" });
    let bad = [
        bad("no id", without_id, good_body, &source, "no_id"),
        bad(
            "malformed",
            attributes("m"),
            b"{\"order_id\": \xff\0".into(),
            "stock.reserve",
            "undecodable",
        ),
        bad(
            "too large",
            attributes("l"),
            vec![b' '; TOO_LARGE],
            &source,
            "too_large",
        ),
        bad(
            "wrong type",
            attributes("w"),
            br#"{"order_id":17}"#.into(),
            "stock.reserve",
            "undecodable",
        ),
        bad(
            "version 2.0",
            json!({ "specversion": "2.0", "id": "v" }),
            b"{}".into(),
            &source,
            "undecodable",
        ),
    ];
    let mut newer = binary("newer", "/shop", "order.placed", "newer");
    newer["attributes"]["dataversion"] = "7".into();
    let good = |id: &str| binary(id, "/shop", "order.placed", id);
    let mut batch = vec![good("before"), newer, binary("lost", "/shop", "order.lost", "lost")];
    for bad in &bad {
        batch.extend([
            bad.message.clone(),
            good(bad.message["headers"]["x-note"].as_str().unwrap()),
        ]);
    }
    intake.produce(&batch).await;

    let warehouse = intake.warehouse().await;
    let orders = 2 + bad.len() as i64;
    intake.all_are_reserved(orders).await;
    let dead = format!("{PREFIX}queue WHERE state = 'dead'");
    eventually("the others are dead", async || {
        intake.kept.count(&dead).await >= bad.len() as i64
    })
    .await;
    let sf = Steadfast::<Db>::open(&intake.kept.url()).await.unwrap();
    let letters = sf.dead_letters().page().await.unwrap().deliveries;
    assert_eq!(letters.len(), bad.len(), "{letters:?}");
    for letter in letters {
        let message = sf.message(letter.id).look().await.unwrap().unwrap();
        let came: &Incoming = message.incoming.as_ref().unwrap();
        let note = came.header("x-note").unwrap();
        let sent = bad.iter().find(|bad| bad.message["headers"]["x-note"] == note).unwrap();
        assert_eq!(
            (&letter.target, &*message.failures[0].code),
            (&sent.target, sent.code),
            "{note}"
        );
        assert!(came.body() == &sent.body, "{note}: {} bytes", came.body().len());
        for (name, value) in sent.message["attributes"].as_object().unwrap() {
            let prefix = if kind == "rabbitmq" { "cloudEvents_" } else { "ce-" };
            assert_eq!(
                came.header(&format!("{prefix}{name}")),
                value.as_str(),
                "{note}: {name}"
            );
        }
        assert_eq!(came.content_type(), Some("application/json"), "{note}");
    }
    assert_eq!(intake.kept.count("reservations").await, orders);
    let distinct = "SELECT count(DISTINCT order_id) FROM reservations";
    assert_eq!(intake.kept.ask(distinct).await, orders);
    let waits = format!("{PREFIX}queue WHERE kind = 'stock.reserve@7' AND state = 'pending' AND attempts = 0");
    assert_eq!(
        intake.kept.count(&waits).await,
        1,
        "it waits for somebody who knows its version"
    );
    drop(warehouse);
}

macro_rules! by_broker {
    ($kind:ident) => {
        mod $kind {
            const KIND: &str = stringify!($kind);

            #[tokio::test]
            async fn what_is_sent_more_than_once_is_reserved_once() {
                super::what_is_sent_more_than_once_is_reserved_once(KIND).await;
            }

            #[tokio::test]
            async fn what_nobody_can_read_is_dead_as_it_came_and_harms_no_other() {
                super::what_nobody_can_read_is_dead_as_it_came_and_harms_no_other(KIND).await;
            }
        }
    };
}

by_broker!(rabbitmq);
by_broker!(nats);
by_broker!(redis);
