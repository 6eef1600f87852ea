//! The inbox: which messages from elsewhere were handled, and dead letters that it may have forgotten.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast::{DeliveryState, Event, Failure, FailureClass, Feed, Incoming, MessageId, Source, Steadfast, Tx};

use super::{Database, Db};
use crate::process::Call;

#[derive(Serialize, Deserialize)]
struct Placed {
    order: String,
}

impl Event for Placed {
    const TYPE: &'static str = "order.placed";
}

#[derive(Serialize, Deserialize)]
struct Paid {
    order: String,
}

impl Event for Paid {
    const TYPE: &'static str = "order.paid";
}

/// A broker that hands each message out once.
#[derive(Clone, Default)]
struct Broker(Arc<Mutex<(Vec<Incoming>, usize)>>);

impl Source for Broker {
    type Feed = Self;

    async fn open(&self, _: usize) -> Result<Self, Failure> {
        Ok(self.clone())
    }
}

impl Feed for Broker {
    async fn receive(&mut self, _: usize) -> Result<Vec<Incoming>, Failure> {
        let messages = std::mem::take(&mut self.0.lock().unwrap().0);
        if messages.is_empty() {
            std::future::pending::<()>().await;
        }
        Ok(messages)
    }

    async fn ack(&mut self, receipts: &[u64]) -> Result<(), Failure> {
        self.0.lock().unwrap().1 += receipts.len();
        Ok(())
    }
}

/// A message of a source.
fn message(event_type: &str, source: &str, id: &str) -> Incoming {
    Incoming::new(format!(r#"{{"order":"{id}"}}"#))
        .with_header("cloudEvents_specversion", "1.0")
        .with_header("cloudEvents_id", id)
        .with_header("cloudEvents_source", source)
        .with_header("cloudEvents_type", event_type)
        .with_header("Authorization", "Bearer secret")
        .redelivered(id.starts_with("again"))
}

async fn reserve(_: &mut Tx<Db>, event: Placed) -> Result<(), Failure> {
    match event.order.split('-').next() {
        Some("bad") => Err(Failure::definitive(
            FailureClass::BusinessRule,
            "out_of_stock",
            "there is no \x1b[31mtea",
        )),
        Some("later") => Err(Failure::snooze(Duration::from_secs(3600))),
        _ => Ok(()),
    }
}

async fn confirm(_: &mut Tx<Db>, _: Paid) -> Result<(), Failure> {
    Ok(())
}

/// A warehouse that has had messages of two sources: handled at once, dead, put off, and handled later.
struct Warehouse {
    database: Database,
    sf: Steadfast<Db>,
}

impl Warehouse {
    async fn open() -> Self {
        let database = Database::fresh().await;
        let sf = Steadfast::<Db>::open(&database.url()).await.unwrap();
        sf.reaction::<Placed>("stock.reserve").run(reserve);
        sf.reaction::<Paid>("mail.confirm").run(confirm);
        let broker = Broker::default();
        let mut messages = vec![
            message(Paid::TYPE, "/shop", "18"),
            message(Placed::TYPE, "/other", "17"),
        ];
        let ids = ["17", "again", "bad-1", "bad-2", "later"];
        messages.extend(ids.map(|id| message(Placed::TYPE, "/shop", id)));
        let count = messages.len();
        let numbered = (1..).zip(messages).map(|(receipt, one)| one.with_receipt(receipt));
        broker.0.lock().unwrap().0 = numbered.collect();
        sf.source("orders.rabbitmq").events("*").consume_from(broker.clone());
        let dispatching = tokio::spawn({
            let sf = sf.clone();
            async move { sf.dispatch().await }
        });
        let is_done = async || {
            let delivered = sf.deliveries().state(DeliveryState::Delivered).page().await.unwrap();
            broker.0.lock().unwrap().1 == count && delivered.deliveries.len() == 1
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), async {
            while !is_done().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        waited.await.unwrap();
        sf.stop();
        dispatching.await.unwrap().unwrap();
        Self { database, sf }
    }

    fn call(&self, line: &str) -> Call {
        Call::new(line).env("DATABASE_URL", &self.database.url())
    }

    async fn json(&self, line: &str) -> Value {
        let told = self.call(&format!("{line} --json")).run().await.ok();
        serde_json::from_str(&told).unwrap()
    }

    async fn count(&self, line: &str) -> usize {
        self.call(&format!("{line} --json")).run().await.ok().lines().count()
    }

    /// The message that is kept for this record.
    async fn kept(&self, id: &str) -> MessageId {
        let page = self.sf.inbox().source("/shop").message_id(id).page().await.unwrap();
        page.records[0].kept.unwrap()
    }

    /// Lets everything have come so many days earlier.
    async fn age(&self, days: u32) {
        let earlier = |table: &str, column: &str| match Database::FAR.starts_with('\'') {
            true => format!(
                "UPDATE {} SET {column} = {column} - interval '{days} days';",
                Database::table(table)
            ),
            false => format!(
                "UPDATE {} SET {column} = {column} - {days} * 86400000000;",
                Database::table(table)
            ),
        };
        let sql = earlier("inbox", "received_at") + &earlier("messages", "created_at");
        self.database.run(&sql).await;
    }
}

#[tokio::test]
async fn records_are_listed_by_consumer_and_source_page_by_page() {
    let warehouse = Warehouse::open().await;
    let told = warehouse.call("inbox list").run().await.ok();
    let mut rows = told.lines();
    assert!(
        rows.next()
            .unwrap()
            .starts_with("consumer       source  message id  received"),
        "{told}"
    );
    let rows: Vec<Vec<_>> = rows.map(|row| row.split_whitespace().collect()).collect();
    let keys: Vec<_> = rows.iter().map(|row| (row[0], row[1], row[2])).collect();
    assert_eq!(
        keys,
        [
            ("mail.confirm", "/shop", "18"),
            ("stock.reserve", "/other", "17"),
            ("stock.reserve", "/shop", "17"),
            ("stock.reserve", "/shop", "again"),
            ("stock.reserve", "/shop", "bad-1"),
            ("stock.reserve", "/shop", "bad-2"),
            ("stock.reserve", "/shop", "later"),
        ]
    );
    assert_eq!(*rows[2].last().unwrap(), "no", "it was handled at once: {told}");
    assert_eq!(
        *rows[4].last().unwrap(),
        warehouse.kept("bad-1").await.to_string(),
        "{told}"
    );
    assert_eq!(warehouse.count("inbox list --consumer stock.reserve").await, 6);
    assert_eq!(warehouse.count("inbox list --source /shop").await, 6);
    assert_eq!(
        warehouse
            .count("inbox list --consumer mail.confirm --source /other")
            .await,
        0,
        "both are there, only not together"
    );
    assert_eq!(warehouse.count("inbox list --since 1h").await, 7);
    assert_eq!(warehouse.count("inbox list --until 1h").await, 0);

    let first = warehouse.call("inbox list --limit 3").run().await;
    let after = first.err.trim().strip_prefix("there are more: add --after ").unwrap();
    assert_eq!(after, "stock.reserve/%2Fshop/17");
    let object = warehouse.json(&format!("inbox list --limit 1 --after {after}")).await;
    assert_eq!(
        (&object["consumer"], &object["source"], &object["message_id"]),
        (&"stock.reserve".into(), &"/shop".into(), &"again".into())
    );
    assert_eq!(object["place"], "stock.reserve/%2Fshop/again");
    assert_eq!(object["kept"], warehouse.kept("again").await.to_string());
    let rest = warehouse.call(&format!("inbox list --after {after}")).run().await;
    assert_eq!((rest.out.lines().count(), &*rest.err), (5, ""), "a header and four");
    let said = warehouse.call("inbox list --after 17").run().await;
    assert!(
        said.exit == 2 && said.err.contains("is not a place in the inbox"),
        "{}",
        said.err
    );

    warehouse.age(2).await;
    assert_eq!(warehouse.count("inbox list --since 1d").await, 0);
    assert_eq!(warehouse.count("inbox list --since 3d --until 1d").await, 7);
}

#[tokio::test]
async fn a_record_is_shown_with_what_became_of_its_message_and_until_when_it_is_remembered() {
    let warehouse = Warehouse::open().await;
    let show = |id: &str| warehouse.call(&format!("inbox show {id} --source /shop"));
    let told = show("17").run().await.ok();
    assert!(
        told.starts_with("consumer    stock.reserve\nsource      /shop\nmessage id  17\nreceived    "),
        "{told}"
    );
    let handled = told.lines().find(|line| line.starts_with("handled     ")).unwrap();
    assert!(handled.contains(" s ago, 20"), "{told}");
    assert!(
        told.contains("\nremembered  until 20") && !told.contains("kept as"),
        "{told}"
    );

    let bad = warehouse.kept("bad-1").await;
    let told = show("bad-1").run().await.ok();
    assert!(told.contains("\nhandled     no\n"), "{told}");
    assert!(
        told.contains(&format!("\nkept as     {bad}: dead, 1 attempt\n")),
        "{told}"
    );
    assert!(
        told.contains("\nfailure     out_of_stock: there is no \\u{1b}[31mtea\n"),
        "{told}"
    );
    assert!(
        told.contains("\nremembered  until its delivery has ended, and at least until 20"),
        "{told}"
    );
    assert!(told.contains(&format!("`steadfast dead show {bad}`")), "{told}");
    warehouse.call(&format!("dead show {bad}")).run().await.ok();
    warehouse.call(&format!("why {bad}")).run().await.ok();

    let later = show("later").run().await.ok();
    assert!(
        later.contains("\nhandled     not yet\n") && later.contains(": pending, 0 attempts\n"),
        "{later}"
    );
    assert!(later.contains("`steadfast why "), "{later}");
    let again = warehouse.json("inbox show again").await;
    assert_eq!((&again["state"], &again["held"]), (&"delivered".into(), &false.into()));
    assert!(again["handled_at"].is_string() && again["kept"].is_string(), "{again}");
    let handled = warehouse.json("inbox show 18").await;
    assert_eq!(
        (&handled["state"], &handled["handled_at"], &handled["kept"]),
        (&"handled".into(), &handled["received_at"], &Value::Null)
    );
    assert!(
        !handled.to_string().contains("order"),
        "payloads are not shown: {handled}"
    );

    warehouse.age(8).await;
    let told = show("17").run().await.ok();
    assert!(
        told.contains("\nremembered  until the next purge; its time was over 24 h ago, 20"),
        "{told}"
    );
    let told = show("17").env("STEADFAST_INBOX_RETENTION", "30d").run().await.ok();
    assert!(
        told.contains("\nremembered  until 20") && told.contains(", in 21 d\n"),
        "{told}"
    );
    let told = show("bad-1").run().await.ok();
    assert!(
        told.contains("\nremembered  until its delivery has ended; its time was over ")
            && told.contains(&format!("`steadfast dead requeue {bad} --force --reason ..`")),
        "{told}"
    );
}

#[tokio::test]
async fn a_message_id_of_several_sources_needs_one_of_them_and_unknown_names_get_the_nearest_one() {
    let warehouse = Warehouse::open().await;
    let said = warehouse.call("inbox show 17").run().await;
    said.refused(
        4,
        "several records are of a message with the id 17",
        "add which is meant:\n  --consumer stock.reserve --source /other\n  --consumer stock.reserve --source /shop\n",
    );
    for (line, cause, help) in [
        (
            "inbox show 19",
            "there is no record of a message with the id 19",
            "never received",
        ),
        (
            "inbox show 17 --consumer stock.reserv",
            "the inbox knows no consumer stock.reserv",
            "did you mean stock.reserve?",
        ),
        (
            "inbox list --source /shops",
            "the inbox knows no source /shops",
            "did you mean /shop?",
        ),
        (
            "inbox stats --consumer zzz",
            "the inbox knows no consumer zzz",
            "`steadfast inbox stats`",
        ),
    ] {
        warehouse.call(line).run().await.refused(3, cause, help);
    }
    let said = warehouse.call("inbox list --since soon").run().await;
    assert!(said.exit == 2 && said.err.contains("is not a duration"), "{}", said.err);
}

#[tokio::test]
async fn the_inbox_is_counted_by_consumer_and_source() {
    let warehouse = Warehouse::open().await;
    let told = warehouse.call("inbox stats").run().await.ok();
    let rows: Vec<Vec<_>> = told.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["consumer", "source", "records", "oldest", "newest"]);
    let counts: Vec<_> = rows[1..4].iter().map(|row| (row[0], row[1], row[2])).collect();
    assert_eq!(
        counts,
        [
            ("mail.confirm", "/shop", "1"),
            ("stock.reserve", "/other", "1"),
            ("stock.reserve", "/shop", "5"),
        ]
    );
    assert!(told.contains("\nrecords    7\noldest     "), "{told}");
    assert!(
        told.ends_with("\nretention  7 d: what comes again later than that is taken for new\n"),
        "{told}"
    );
    let stats = warehouse.json("inbox stats --source /shop --inbox-retention 30d").await;
    assert_eq!(
        (&stats["records"], &stats["at_least"], &stats["retention_seconds"]),
        (&6.into(), &false.into(), &2_592_000.into())
    );
    assert_eq!(stats["consumers"].as_array().unwrap().len(), 2);
    assert_eq!(stats["consumers"][1]["records"], 5);
    assert!(
        stats["oldest_at"].as_str() <= stats["consumers"][1]["newest_at"].as_str(),
        "{stats}"
    );

    let empty = Database::fresh().await;
    let call = |line: &str| Call::new(line).env("DATABASE_URL", &empty.url());
    call("migrate up").run().await.ok();
    let told = call("inbox stats").run().await.ok();
    assert!(
        told.starts_with("records    0\noldest     none\nretention  7 d"),
        "{told}"
    );
    let none = call("inbox list").run().await;
    assert_eq!((none.exit, &*none.out, &*none.err), (0, "", "there are none\n"));
}

#[tokio::test]
async fn a_dead_letter_that_the_inbox_may_have_forgotten_is_requeued_with_force_only() {
    let warehouse = Warehouse::open().await;
    let (one, two) = (warehouse.kept("bad-1").await, warehouse.kept("bad-2").await);
    let told = warehouse.call(&format!("dead show {one}")).run().await.ok();
    assert!(
        told.contains("\nheader       cloudEvents_source: /shop\n")
            && told.contains("\nheader       Authorization: [redacted]\n"),
        "{told}"
    );
    let told = warehouse.call(&format!("dead show {one} --reveal")).run().await.ok();
    assert!(told.contains("\nheader       Authorization: Bearer secret\n"), "{told}");
    let shown = warehouse.json(&format!("dead show {one}")).await;
    assert_eq!(shown["incoming"]["headers"][2][1], "/shop", "{shown}");
    warehouse.age(8).await;
    let requeue = |what: &str| warehouse.call(&format!("dead requeue {what} --reason mended"));
    let said = requeue(&one.to_string()).run().await;
    said.refused(
        2,
        "came from elsewhere longer ago than the inbox remembers (604800s), so it may have been handled since",
        "look whether it was, and requeue it by force (--force), or discard it",
    );
    let many = requeue("--target stock.reserve --yes").run().await;
    assert!(
        many.err.starts_with("2 more stay as they are: ") && many.err.contains("requeue it with --edited or --force"),
        "{}",
        many.err
    );
    let counted = warehouse.json("dead requeue --target stock.reserve --dry-run").await;
    assert_eq!(counted["deliveries"], 0, "what is left alone is not counted");
    let said = requeue("--all --force --yes").run().await;
    said.refused(2, "--force is for one delivery", "dead requeue ID --force");
    assert_eq!(warehouse.count("dead list").await, 2);

    let told = requeue(&format!("{one} --force")).run().await.ok();
    assert!(
        told.starts_with(&format!("requeued  {one} to stock.reserve\n")),
        "{told}"
    );
    // A service that remembers for longer has not forgotten it.
    requeue(&two.to_string())
        .env("STEADFAST_INBOX_RETENTION", "30d")
        .run()
        .await
        .ok();
    assert_eq!(warehouse.count("dead list").await, 0);
    assert_eq!(
        warehouse.count("dead list --target stock.reserve").await,
        0,
        "a consumer is no target of the outbox, but has dead letters"
    );
}

#[tokio::test]
async fn purge_takes_records_when_they_are_old_enough_but_not_those_of_what_is_still_to_do() {
    let warehouse = Warehouse::open().await;
    warehouse.age(8).await;
    let records = async |line: &str| warehouse.json(line).await["old_records"].clone();
    assert_eq!(records("purge --dry-run --inbox-retention 30d").await, 0);
    let told = warehouse.call("purge --dry-run").run().await.ok();
    assert!(told.contains("\nold inbox records    4, not deleted\n"), "{told}");
    assert_eq!(records("purge").await, 4);
    assert_eq!(warehouse.count("inbox list").await, 3, "two are dead, and one waits");
    let said = warehouse.call("purge --inbox-retention soon").run().await;
    said.refused(2, "\"soon\" is not a setting of inbox-retention", "from 1m to 36500d");
}
