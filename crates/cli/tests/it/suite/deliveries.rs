//! Deliveries: listing them, deciding about one, deciding about many, and asking why.

use serde::{Deserialize, Serialize};
use steadfast::{Event, EventCx, Failure, FailureClass, MessageId, Steadfast};

use super::{Database, Db};
use crate::process::Call;

#[derive(Serialize, Deserialize)]
pub(super) struct OrderPlaced {
    order: u32,
    email: String,
}

impl Event for OrderPlaced {
    const TYPE: &'static str = "order.placed";
    const REDACTED: &'static [&'static str] = &["email"];

    fn ordering_key(&self) -> Option<String> {
        Some("customer-1".to_owned())
    }
}

/// A shop whose stock refuses every order, and whose mail goes out.
struct Shop {
    database: Database,
    sf: Steadfast<Db>,
}

impl Shop {
    async fn open() -> Self {
        let database = Database::fresh().await;
        let sf = Steadfast::open(&database.url()).await.unwrap();
        let refuse = |_: &EventCx, event: OrderPlaced| async move {
            let what = format!("order {} is out of stock", event.order);
            Err(Failure::definitive(FailureClass::BusinessRule, "out_of_stock", what))
        };
        sf.reaction::<OrderPlaced>("stock.reserve").run_outside(refuse);
        sf.reaction::<OrderPlaced>("mail.confirm")
            .run_outside(|_: &EventCx, _: OrderPlaced| async { Ok(()) });
        sf.declare().await.unwrap();
        Self { database, sf }
    }

    async fn place(&self, order: u32) -> MessageId {
        let event = OrderPlaced {
            order,
            email: "ann@example.org".to_owned(),
        };
        self.sf.transact(async |tx| Ok(tx.publish(&event)?)).await.unwrap()
    }

    fn call(&self, line: &str) -> Call {
        Call::new(line).env("DATABASE_URL", &self.database.url())
    }

    async fn count(&self, line: &str) -> usize {
        self.call(line).run().await.ok().lines().count()
    }
}

#[tokio::test]
async fn deliveries_are_listed_and_a_message_is_shown_whole_but_masked() {
    let shop = Shop::open().await;
    let id = shop.place(7).await;
    let other = shop.place(8).await;
    shop.sf.drain().await.unwrap();
    let told = shop.call("outbox list").run().await.ok();
    assert!(
        told.starts_with("message                               target         type          state    attempts  when"),
        "{told}"
    );
    assert!(
        told.contains(&format!("{id}  stock.reserve  order.placed  dead     1 ")),
        "{told}"
    );
    assert!(told.contains("out_of_stock: order 7 is out of stock"), "{told}");
    assert_eq!(
        shop.count("outbox list --json").await,
        2,
        "one is dead, and keeps the next one waiting"
    );
    assert_eq!(shop.count("outbox list --json --state delivered").await, 2);
    assert_eq!(
        shop.count("outbox list --json --state pending --target stock.reserve --key customer-1")
            .await,
        1
    );
    assert_eq!(
        shop.count("dead list --json --type order.placed --code out_of_stock --since 1h")
            .await,
        1
    );
    let first = shop.call("outbox list --limit 1").run().await;
    let after = first.err.trim().strip_prefix("there are more: add --after ").unwrap();
    assert_eq!(after, format!("{id}/stock.reserve"));
    let rest = shop
        .call(&format!("outbox list --json --after {after}"))
        .run()
        .await
        .ok();
    assert!(rest.contains(&other.to_string()) && rest.lines().count() == 1, "{rest}");

    let shown = shop
        .call(&format!("outbox show {}", &id.to_string()[..34]))
        .run()
        .await
        .ok();
    assert!(
        shown.contains(r#"payload      {"email":"[redacted]","order":7}"#),
        "{shown}"
    );
    assert!(
        shown.contains("delivery     stock.reserve: dead, 1 attempt\n"),
        "{shown}"
    );
    assert!(shown.contains("delivery     mail.confirm: delivered at 20"), "{shown}");
    assert!(
        shown.contains("definitive (business rule) out_of_stock: order 7 is out of stock"),
        "{shown}"
    );
    let revealed = shop.call(&format!("dead show {id} --reveal --json")).run().await.ok();
    assert!(revealed.contains(r#""email":"ann@example.org""#), "{revealed}");
    let exported = shop.call("dead export").run().await.ok();
    assert!(
        exported.lines().count() == 1 && exported.contains("[redacted]"),
        "{exported}"
    );
    let groups = shop.call("dead groups").run().await.ok();
    assert!(groups.contains("  1      stock.reserve  20"), "{groups}");
    let object = shop.call("dead groups --json").run().await.ok();
    assert!(
        object.contains(&format!(r#""targets":["stock.reserve"],"example":"{id}""#)),
        "{object}"
    );
}

#[tokio::test]
async fn a_name_that_is_not_there_is_an_error_with_the_nearest_one() {
    let shop = Shop::open().await;
    for (line, cause, help) in [
        (
            "dead list --target stock.reserv",
            "there is no target stock.reserv",
            "did you mean stock.reserve?",
        ),
        (
            "outbox list --type order.place",
            "there is no type of events order.place",
            "did you mean order.placed?",
        ),
        (
            "dead groups --target zzz",
            "there is no target zzz",
            "`steadfast targets list`",
        ),
        (
            "dead export --type zzz",
            "there is no type of events zzz",
            "`steadfast targets list`",
        ),
        (
            "dead requeue --target zzz --reason x --yes",
            "there is no target zzz",
            "`steadfast targets list`",
        ),
        (
            "targets pause stok.reserve --reason x",
            "there is no target stok.reserve",
            "did you mean stock.reserve?",
        ),
        ("outbox show 0000", "there is no message", "`steadfast outbox list`"),
        ("why 0000", "there is no message", "`steadfast outbox list`"),
        (
            "operations resume 0000",
            "there is no operation",
            "`steadfast operations list`",
        ),
    ] {
        shop.call(line).run().await.refused(3, cause, help);
    }
    let said = shop.call("outbox list --state ded").run().await;
    assert!(
        said.exit == 2 && said.err.contains("a similar value exists: 'dead'"),
        "{}",
        said.err
    );
    let said = shop.call("dead requeue --reason x --yes").run().await;
    said.refused(2, "it is not said which deliveries", "--all");
    let said = shop.call("dead requeue --all --edited - --reason x --yes").run().await;
    said.refused(2, "--edited is for one delivery", "dead requeue ID");
    let said = shop.call("outbox show xyz").run().await;
    said.refused(2, "\"xyz\" is not the id of a message", "hexadecimal digits");
    assert_eq!(
        shop.call("dead list --code zzz").run().await.ok(),
        "",
        "codes are the handlers' own"
    );
}

#[tokio::test]
async fn one_delivery_is_requeued_edited_skipped_or_discarded_and_audited() {
    let shop = Shop::open().await;
    let id = shop.place(7).await;
    shop.place(8).await;
    shop.sf.drain().await.unwrap();
    let told = shop
        .call(&format!("dead requeue {id} --reason counted-again --operator bob"))
        .run()
        .await
        .ok();
    assert!(
        told.starts_with(&format!("requeued  {id} to stock.reserve\n")),
        "{told}"
    );
    assert!(told.ends_with("audit     by bob: counted-again\n"), "{told}");
    assert_eq!(shop.count("dead list --json").await, 0);
    shop.sf.drain().await.unwrap();

    let edited = |input: &str| {
        let line = format!("dead requeue {id} --target stock.reserve --edited - --reason typo --json");
        shop.call(&line).input(input)
    };
    edited("{")
        .run()
        .await
        .refused(2, "the payload is no JSON", "the whole payload");
    edited(&format!("\"{}\"", "x".repeat(256 * 1024))).run().await.refused(
        2,
        "at most 262144 are delivered",
        "smaller",
    );
    let object = edited(r#"{"order":9,"email":"x"}"#).run().await.ok();
    let (_, new) = object.split_once(r#""replaced_by":""#).unwrap();
    let new = &new[..36];
    let shown = shop.call(&format!("outbox show {new} --reveal")).run().await.ok();
    assert!(
        shown.contains(&format!("replaces     {id}")) && shown.contains(r#"{"order":9,"email":"x"}"#),
        "{shown}"
    );
    let shown = shop.call(&format!("outbox show {id} --reveal")).run().await.ok();
    assert!(shown.contains(r#"{"order":7,"email":"ann@example.org"}"#), "{shown}");
    shop.sf.drain().await.unwrap();

    let discard = |more: &str| shop.call(&format!("dead discard {new} --reason gone {more}"));
    discard("").run().await.refused(2, "nobody can be asked", "add --yes");
    discard("--yes").run().await.ok();
    discard("--yes").run().await.refused(3, "no delivery of", "outbox show");
    assert_eq!(shop.sf.drain().await.unwrap(), 1, "the next one goes on");
    let last = shop.call("dead list --json").run().await.ok();
    let last = &last[7..43];
    let skipped = shop
        .call(&format!("outbox skip {last} --reason no --yes --json"))
        .run()
        .await
        .ok();
    assert!(
        skipped.contains(r#""target":"stock.reserve","verb":"skip""#),
        "{skipped}"
    );
    assert_eq!(shop.count("outbox list --json").await, 0);
    let audit = shop.call("audit --json").run().await.ok();
    let actions: Vec<_> = audit.lines().map(|line| line.split('"').nth(13).unwrap()).collect();
    assert_eq!(
        actions,
        ["delivery.skip", "delivery.discard", "delivery.edit", "delivery.requeue"]
    );
}

#[tokio::test]
async fn a_message_on_its_way_to_several_targets_needs_one_of_them() {
    let shop = Shop::open().await;
    let id = shop.place(7).await;
    let said = shop.call(&format!("outbox skip {id} --reason no --yes")).run().await;
    said.refused(
        4,
        "several targets",
        "add --target with one of mail.confirm, stock.reserve",
    );
    shop.call(&format!("outbox skip {id} --reason no --yes --target mail.confirm"))
        .run()
        .await
        .ok();
    assert_eq!(shop.count("outbox list --json").await, 1);
}

#[tokio::test]
async fn many_are_counted_asked_about_and_changed_as_an_operation() {
    let shop = Shop::open().await;
    for order in 0..3 {
        shop.place(order).await;
    }
    shop.sf.drain().await.unwrap();
    let skip = |more: &str| shop.call(&format!("outbox skip --target stock.reserve {more}"));
    assert_eq!(skip("--dry-run").run().await.ok(), "deliveries  3, not changed\n");
    assert_eq!(
        skip("--dry-run --json").run().await.ok(),
        "{\"deliveries\":3,\"exact\":true,\"verb\":\"skip\",\"changed\":false}\n"
    );
    skip("--reason closed")
        .run()
        .await
        .refused(2, "nobody can be asked", "add --yes");
    let said = skip("--yes").run().await;
    assert!(said.exit == 2 && said.err.contains("--reason <REASON>"), "{}", said.err);
    assert_eq!(shop.count("outbox list --json").await, 3);
    let done = skip("--yes --json --reason closed").run().await;
    assert_eq!(done.err, "", "no bar where there is no terminal");
    let done = done.ok();
    assert!(
        done.contains(r#""verb":"skip","filter":{"target":"stock.reserve"},"state":"done","done":3,"expected":3,"batches":1,"operator":"ops","reason":"closed""#),
        "{done}"
    );
    assert_eq!(shop.count("outbox list --json").await, 0);
    assert_eq!(shop.call("operations list --json").run().await.ok(), done);
    let id = &done[7..43];
    let said = shop.call(&format!("operations cancel {id} --reason x")).run().await;
    said.refused(2, "is done", "nothing to cancel");
    let again = shop
        .call(&format!("operations resume {} --json", &id[..13]))
        .run()
        .await
        .ok();
    assert_eq!(again, done, "there is nothing left to do");
}

#[tokio::test]
async fn targets_are_listed_paused_and_resumed_and_why_says_so() {
    let shop = Shop::open().await;
    let paused = shop
        .call("targets pause stock.reserve --reason stocktaking")
        .run()
        .await
        .ok();
    assert!(paused.starts_with("paused   stock.reserve\n"), "{paused}");
    let id = shop.place(7).await;
    shop.sf.drain().await.unwrap();
    let told = shop.call("targets list").run().await.ok();
    assert!(told.contains("stock.reserve  order.placed  "), "{told}");
    assert!(told.contains("by ops: stocktaking"), "{told}");
    let why = shop.call(&format!("why {id}")).run().await.ok();
    assert!(
        why.contains("mail.confirm is delivered\n  delivered: it was delivered at 20"),
        "{why}"
    );
    assert!(
        why.contains("stock.reserve is pending\n  paused: stock.reserve was paused by ops at 20"),
        "{why}"
    );
    assert!(
        why.contains("  do: `steadfast targets resume stock.reserve --reason WHY`\n"),
        "{why}"
    );
    let object = shop.call(&format!("why {id} --json")).run().await.ok();
    assert!(
        object.contains(r#""target":"stock.reserve","state":"pending","why":"paused""#),
        "{object}"
    );
    shop.call("targets resume stock.reserve --reason done").run().await.ok();
    assert_eq!(shop.sf.drain().await.unwrap(), 1);
    let said = shop
        .call("targets remove stock.reserve --reason gone --yes")
        .run()
        .await;
    said.refused(4, "would declare it again", "stop the nodes");
}
