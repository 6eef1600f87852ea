//! Those who know nothing of us: consumers in Python, written with pika, nats-py, redis-py and the library of Standard Webhooks,
//! read what a shop with `--sink` has sent. The SDK of CloudEvents judges every message (`tests/foreign/*.py`).
//!
//! The shop sells in the meantime, with commands that are rolled back and processes that are killed. What is on the other side must
//! be what was committed, and nothing else, however often it was sent. Others produce, and a warehouse consumes (`producers`).

#[path = "foreign_producers.rs"]
mod producers;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;
use uuid::Uuid;

use super::{Database, PREFIX};
use crate::http::{Request, Response};
use crate::process::{Shop, send_until_settled};
use crate::{PATIENCE, eventually};

/// Longer than a lease of the lab.
const LEASE_AND_MORE: &str = "3s";

/// What an event is about: its type, and the id of the order or payment in it.
type Fact = (String, String);

/// A sink of the shop.
struct Sink {
    target: &'static str,
    url: String,
    /// What is on the other side is called after it.
    name: String,
    secret: &'static str,
}

impl Sink {
    /// A sink to the server in a variable of the environment, on which nobody else uses its name.
    fn to_broker(target: &'static str, variable: &str) -> Self {
        let url = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run `cargo xtask test`"));
        Self::to(target, url)
    }

    fn to(target: &'static str, url: String) -> Self {
        Self {
            target,
            url,
            name: format!("t{}", Uuid::now_v7().simple()),
            secret: SECRET,
        }
    }

    async fn shop(&self, database: &Database, flags: &[&str]) -> Shop {
        let sink = [
            "--lab",
            "--sink",
            &self.url,
            "--sink-name",
            &self.name,
            "--webhook-secret",
            self.secret,
        ];
        Shop::start(&database.url(), &[&sink, flags].concat()).await
    }
}

/// What a shop has committed.
struct Sold {
    facts: BTreeSet<Fact>,
    /// The one that was confirmed by the other side when its process died.
    sent_again: Fact,
}

/// Sells, has commands rolled back and processes killed, and ends when everything is delivered.
async fn sell(database: &Database, sink: &Sink) -> Sold {
    let mut facts = BTreeSet::new();
    let mut shop = sink.shop(database, &[]).await;
    let cancelled = placed(&shop.order("cancelled")).await;
    assert!(shop.order("cancelled").send().await.is_replayed());
    let path = format!("{}/cancel", cancelled.header("location").unwrap());
    let cancel = shop.request("POST", &path).user("user-a").key("cancel");
    assert_eq!(cancel.send().await.status, 200);
    facts.extend([fact("order.placed", &cancelled), fact("order.cancelled", &cancelled)]);

    let paid = placed(&shop.order("paid")).await;
    let amount = json!({ "amount": 5, "currency": "EUR", "order_id": paid.json()["id"] });
    let pay = shop.request("POST", "/payments").user("user-a").key("pay");
    let payment = pay.json(amount.to_string()).send().await;
    assert_eq!(payment.status, 201, "{}", payment.text());
    facts.extend([fact("order.placed", &paid), fact("payment.captured", &payment)]);

    for (fault, status) in [("fail=transient", 503), ("fail=definitive", 422), ("panic", 500)] {
        let lost = shop.order("rolled-back").fault(fault).send().await;
        assert_eq!(lost.status, status, "{fault}");
    }
    database.all_is_delivered().await;
    assert!(
        shop.order("killed")
            .fault("kill=before_commit")
            .try_send()
            .await
            .is_err()
    );
    shop.ended().await;

    let dies_confirmed = format!("{}:kill=before_finish@1", sink.target);
    let mut shop = sink.shop(database, &["--fault", &dies_confirmed]).await;
    // It may die before it has answered.
    drop(shop.order("sent-again").try_send().await);
    assert_eq!(shop.ended().await.code(), None, "it was not killed, it ended");

    let shop = sink.shop(database, &[]).await;
    shop.advance(LEASE_AND_MORE).await;
    let again = send_until_settled(&shop.order("sent-again")).await;
    assert_eq!((again.status, again.is_replayed()), (201, true));
    let sent_again = fact("order.placed", &again);
    facts.insert(sent_again.clone());
    database.all_is_delivered().await;
    let twice = format!("{PREFIX}history WHERE kind = '{}' AND attempts > 1", sink.target);
    assert!(database.count(&twice).await > 0, "it was sent again");
    Sold { facts, sent_again }
}

async fn placed(order: &Request) -> Response {
    let placed = order.send().await;
    assert_eq!(placed.status, 201, "{}", placed.text());
    placed
}

fn fact(kind: &str, about: &Response) -> Fact {
    (kind.to_owned(), about.json()["id"].as_str().unwrap().to_owned())
}

impl Database {
    async fn all_is_delivered(&self) {
        eventually("everything is delivered", async || {
            assert_eq!(self.count(&format!("{PREFIX}queue WHERE state = 'dead'")).await, 0);
            self.count(&format!("{PREFIX}queue WHERE kind NOT LIKE 'job:%'")).await == 0
        })
        .await;
    }
}

/// What a consumer says that it has seen: a line of JSON for each message.
struct Seen(Vec<Value>);

impl Seen {
    fn read(lines: &str) -> Self {
        Self(lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    /// Every event that was committed is there, under one id, and nothing else. Says how often the one was sent that had to be
    /// sent again.
    fn assert_is(&self, sold: &Sold) -> usize {
        let mut facts: BTreeMap<String, Fact> = BTreeMap::new();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        for event in &self.0 {
            assert_eq!(event["source"], "/shop");
            let (kind, data) = (text(&event["type"]), &event["data"]);
            let about = match kind.as_str() {
                "payment.captured" => text(&data["payment_id"]),
                _ => text(&data["order_id"]),
            };
            let known = facts
                .entry(text(&event["id"]))
                .or_insert_with(|| (kind.clone(), about.clone()));
            assert_eq!(*known, (kind, about), "one id, one event");
        }
        let seen: BTreeSet<_> = facts.values().cloned().collect();
        assert_eq!(seen, sold.facts);
        assert_eq!(facts.len(), seen.len(), "one event, one id: {facts:?}");
        let sent_again = |event: &&Value| facts[&text(&event["id"])] == sold.sent_again;
        self.0.iter().filter(sent_again).count()
    }
}

/// A program in Python, from `tests/foreign`.
fn python(script: &str, arguments: &[&str]) -> Command {
    let python =
        std::env::var("TEST_PYTHON").unwrap_or_else(|_| panic!("TEST_PYTHON is not set: run `cargo xtask test`"));
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/foreign");
    let mut command = Command::new(python);
    // It leaves nothing compiled in the checkout.
    command.arg("-B").arg(format!("{directory}/{script}")).args(arguments);
    command.stdout(Stdio::piped()).kill_on_drop(true);
    command
}

/// Runs a consumer that reads what is there and ends.
async fn consume(script: &str, arguments: &[&str]) -> Seen {
    let running = python(script, arguments).output();
    let ended = tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    Seen::read(&String::from_utf8(ended.stdout).unwrap())
}

mod rabbitmq {
    use super::*;

    #[tokio::test]
    async fn a_consumer_sees_every_committed_event_and_nothing_else() {
        let database = Database::fresh().await;
        let sink = Sink::to_broker("shop.rabbitmq", "TEST_RABBITMQ_URL");
        let sold = sell(&database, &sink).await;
        let queue = format!("{}.events", sink.name);
        let seen = consume("consume_rabbitmq.py", &[&sink.url, &queue]).await;
        assert!(seen.assert_is(&sold) >= 2, "it is there twice, with the same id");
    }
}

mod nats {
    use super::*;

    #[tokio::test]
    async fn a_consumer_sees_every_committed_event_once_and_nothing_else() {
        let database = Database::fresh().await;
        let sink = Sink::to_broker("shop.nats", "TEST_NATS_URL");
        let sold = sell(&database, &sink).await;
        let seen = consume("consume_nats.py", &[&sink.url, &sink.name.to_uppercase()]).await;
        assert_eq!(seen.assert_is(&sold), 1, "the stream knew its id");
    }
}

mod redis {
    use super::*;

    #[tokio::test]
    async fn a_consumer_sees_every_committed_event_and_nothing_else() {
        let database = Database::fresh().await;
        let sink = Sink::to_broker("shop.redis", "TEST_REDIS_URL");
        let sold = sell(&database, &sink).await;
        let stream = format!("{}.events", sink.name);
        let seen = consume("consume_redis.py", &[&sink.url, &stream]).await;
        assert!(seen.assert_is(&sold) >= 2, "it is there twice, with the same id");
    }
}

/// What the receiver of webhooks knows, and so does the shop.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

mod webhook {
    use tokio::process::{Child, ChildStdout};

    use super::*;

    /// A server that verifies, and refuses what it cannot verify.
    struct Receiver {
        process: Child,
        said: BufReader<ChildStdout>,
        sink: Sink,
    }

    impl Receiver {
        async fn start() -> Self {
            let mut process = python("receive_webhooks.py", &[SECRET]).spawn().unwrap();
            let mut said = BufReader::new(process.stdout.take().unwrap());
            let mut url = String::new();
            let reading = tokio::time::timeout(PATIENCE, said.read_line(&mut url));
            reading.await.unwrap().unwrap();
            let sink = Sink::to("shop.webhook", url.trim().to_owned());
            Self { process, said, sink }
        }

        /// What it has accepted: it tells of a request before it answers.
        async fn seen(mut self) -> Seen {
            self.process.kill().await.unwrap();
            let mut lines = String::new();
            self.said.read_to_string(&mut lines).await.unwrap();
            Seen::read(&lines)
        }
    }

    #[tokio::test]
    async fn a_receiver_verifies_every_committed_event_and_nothing_else() {
        let (database, receiver) = (Database::fresh().await, Receiver::start().await);
        let sold = sell(&database, &receiver.sink).await;
        let seen = receiver.seen().await;
        assert!(seen.assert_is(&sold) >= 2, "it came twice, with the same id");
    }

    #[tokio::test]
    async fn a_receiver_that_knows_another_secret_takes_nothing() {
        let (database, mut receiver) = (Database::fresh().await, Receiver::start().await);
        receiver.sink.secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
        let shop = receiver.sink.shop(&database, &[]).await;
        placed(&shop.order("key-1")).await;
        eventually("it is refused", async || {
            database.count(&format!("{PREFIX}queue WHERE state = 'dead'")).await == 1
        })
        .await;
        assert_eq!(receiver.seen().await.0, [json!(null); 0]);
    }
}
