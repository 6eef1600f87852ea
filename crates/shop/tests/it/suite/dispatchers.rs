//! Processes that deliver, on one database: two at once, paused, killed, stopped, poisoned, old and new. Whatever happens to
//! them, each order is reserved once and each mail is asked for with one key.
//!
//! A lease is 2 s in the lab. Nobody waits for one: the lab's clock is moved.

use std::collections::HashSet;

use serde_json::json;

use super::{Database, PREFIX};
use crate::eventually;
use crate::outside::{Outside, of};
use crate::process::{Shop, send_until_settled};

/// How much tea a fresh shop has.
const TEA: i64 = 100_000;

/// Who is told of an order where mail is sent: stock, mail, and customers who look on.
const TARGETS: i64 = 3;

/// What is to be delivered, and what was. Reminders of these orders, and digests, have their own tests.
const QUEUE: &str = "queue WHERE kind NOT LIKE 'job:%'";
const HISTORY: &str = "history WHERE kind NOT LIKE 'job:%'";

/// Longer than a lease.
pub(super) const LEASE_AND_MORE: &str = "3s";

impl Database {
    /// How many rows of the toolkit's there are.
    pub(super) async fn rows(&self, table: &str) -> i64 {
        self.count(&format!("{PREFIX}{table}")).await
    }

    /// Waits until there is nothing to deliver any more.
    async fn is_quiet(&self) {
        eventually("everything is delivered", async || self.rows(QUEUE).await == 0).await;
    }

    /// Orders of two teas each took their tea once, and said so once.
    async fn assert_reserved_once(&self, orders: i64) {
        assert_eq!(self.count("reservations WHERE state = 'reserved'").await, orders);
        assert_eq!(
            self.ask("SELECT on_hand FROM stock WHERE sku = 'tea'").await,
            TEA - 2 * orders
        );
        assert_eq!(self.rows("history WHERE kind = 'stock.reserve'").await, orders);
    }
}

/// A shop that leaves deliveries to others.
pub(super) async fn publisher(database: &Database, flags: &[&str]) -> Shop {
    Shop::start(&database.url(), &[&["--lab", "--no-dispatch"], flags].concat()).await
}

/// Places so many orders, each for two teas.
async fn place(shop: &Shop, orders: i64) {
    for number in 0..orders {
        let placed = send_until_settled(&shop.order(&format!("key-{number}"))).await;
        assert_eq!(placed.status, 201, "{}", placed.text());
    }
}

/// Every mail was sent once, and all calls for it had its key.
async fn assert_mailed_once(outside: &Outside, orders: usize) {
    let sent = outside.ledger("effects", "mail").await;
    assert_eq!(sent.len(), orders);
    let keys = |rows| -> HashSet<String> { of(rows, "key").iter().map(ToString::to_string).collect() };
    assert_eq!(keys(&sent).len(), orders);
    assert_eq!(keys(&sent), keys(&outside.ledger("calls", "mail").await));
}

/// Runs workers one after another, each of which may be killed by its accident, until nothing is left to do but what is dead, or due
/// in days.
/// Says how many died.
pub(super) async fn work(database: &Database, publisher: &Shop, flags: &[&str]) -> u32 {
    let mut deaths = 0;
    loop {
        let mut worker = Shop::doomed_worker(&database.url(), flags);
        let mut is_done = false;
        eventually("the worker is done or dead", async || {
            is_done = database
                .rows("queue WHERE state <> 'dead' AND kind <> 'job:reminder.send'")
                .await
                == 0;
            is_done || !worker.is_alive()
        })
        .await;
        if is_done {
            // It must not be there any more when the next order is placed.
            worker.kill().await;
            return deaths;
        }
        assert_eq!(worker.ended().await.code(), None, "it was not killed, it ended");
        deaths += 1;
        publisher.advance(LEASE_AND_MORE).await;
    }
}

#[tokio::test]
async fn two_dispatchers_on_one_database_reserve_once_and_ask_for_each_mail_with_one_key() {
    let (database, outside) = (Database::fresh().await, Outside::start().await);
    let flags = ["--lab", "--outside", &outside.process.url()];
    let shop = Shop::start(&database.url(), &flags).await;
    let worker = Shop::worker(&database.url(), &flags).await;
    place(&shop, 30).await;
    database.is_quiet().await;
    database.assert_reserved_once(30).await;
    assert_mailed_once(&outside, 30).await;
    assert_eq!(database.rows(HISTORY).await, 30 * TARGETS);
    assert_eq!(database.rows("failures").await, 0);

    let lab = worker.request("GET", "/lab").send().await.json();
    let targets = lab["deliveries"]["targets"].as_array().unwrap();
    for target in targets {
        let row = format!("targets WHERE name = '{}'", target.as_str().unwrap());
        assert!(database.rows(&row).await > 0, "{target}");
    }
    let names = format!("SELECT count(DISTINCT name) FROM {PREFIX}targets");
    assert_eq!(database.ask(&names).await, targets.len() as i64);
    let refused = worker.order("key-1").send().await;
    assert_eq!((refused.status, refused.text().contains("sells nothing")), (404, true));
}

#[tokio::test]
async fn a_worker_that_was_paused_beyond_its_lease_changes_nothing_when_it_goes_on() {
    let (database, outside) = (Database::fresh().await, Outside::start().await);
    let world = outside.process.url();
    let shop = publisher(&database, &["--outside", &world]).await;
    let held = ["--lab", "--outside", &world, "--fault", "hold=until-released@1"];
    let mut zombie = Shop::worker(&database.url(), &held).await;
    place(&shop, 1).await;
    zombie.holds(3).await;
    zombie.pause().await;
    shop.advance(LEASE_AND_MORE).await;

    let other = Shop::worker(&database.url(), &["--lab", "--outside", &world]).await;
    database.is_quiet().await;
    database.assert_reserved_once(1).await;

    zombie.wake().await;
    zombie.release().await;
    // It ends when it has done whatever it still wanted to do.
    zombie.terminate().await;
    assert_eq!(zombie.ended().await.code(), Some(0));
    database.assert_reserved_once(1).await;
    assert_mailed_once(&outside, 1).await;
    assert_eq!(database.rows(HISTORY).await, TARGETS);
    assert_eq!(
        database.rows("history WHERE attempts = 2").await,
        TARGETS,
        "by the other one"
    );
    assert_eq!(database.rows("failures WHERE code = 'lease_expired'").await, TARGETS);
    drop(other);
}

/// Kills a process at this point of a reservation, and another one at the same point of a mail; checks that both effects are
/// there once, and whether the mail was asked for again.
async fn kill_and_restart(point: &str, is_asked_again: bool) {
    let (database, outside) = (Database::fresh().await, Outside::start().await);
    let world = outside.process.url();
    let shop = publisher(&database, &["--outside", &world]).await;
    for (key, target) in [("key-1", "stock.reserve"), ("key-2", "mail.confirm")] {
        assert_eq!(shop.order(key).send().await.status, 201);
        let fault = format!("{target}:kill={point}@1");
        let deaths = work(&database, &shop, &["--lab", "--outside", &world, "--fault", &fault]).await;
        // A reservation is said with its commit, so that nothing is left to do when that process dies before the finish.
        let is_said = target == "stock.reserve" && point == "before_finish";
        assert!(deaths == 1 || is_said, "{target}: {deaths}");
    }
    database.assert_reserved_once(2).await;
    assert_mailed_once(&outside, 2).await;
    assert_eq!(database.rows(HISTORY).await, 2 * TARGETS);
    assert!(database.rows("failures WHERE code = 'lease_expired'").await > 0);
    let last = outside.ledger("calls", "mail").await.pop().unwrap();
    assert_eq!(last["replayed"], is_asked_again);
}

#[tokio::test]
async fn a_kill_after_the_claim_of_a_message_leaves_it_to_the_next_process() {
    kill_and_restart("after_claim_message", false).await;
}

#[tokio::test]
async fn a_kill_before_the_handler_leaves_the_message_to_the_next_process() {
    kill_and_restart("before_handler", false).await;
}

#[tokio::test]
async fn a_kill_after_the_handler_leaves_its_effect_there_once() {
    kill_and_restart("after_handler", true).await;
}

#[tokio::test]
async fn a_kill_before_the_finish_leaves_the_effect_there_once() {
    kill_and_restart("before_finish", true).await;
}

#[tokio::test]
async fn an_order_that_kills_every_process_is_dead_after_its_attempts_and_others_get_through() {
    let database = Database::fresh().await;
    let shop = publisher(&database, &[]).await;
    place(&shop, 3).await;
    let poison = shop.request("POST", "/orders").user("user-a").key("poison");
    let poison = poison.json(r#"{"sku":"poison","quantity":1}"#).send().await;
    assert_eq!(poison.status, 201);
    let deaths = work(
        &database,
        &shop,
        &["--lab", "--fault", "stock.reserve/poison:kill=after_write"],
    )
    .await;
    assert_eq!(deaths, 6, "one for each attempt");
    database.assert_reserved_once(3).await;
    assert_eq!(database.count("reservations").await, 3, "there is none of the poison");
    assert_eq!(database.rows("queue WHERE state = 'dead' AND attempts = 6").await, 1);
    let noted = format!("failures WHERE kind = 'stock.reserve' AND item = (SELECT item FROM {PREFIX}{QUEUE})");
    assert_eq!(database.rows(&noted).await, 6, "each death is in its history");

    let worker = Shop::worker(&database.url(), &["--lab"]).await;
    assert_eq!(shop.order("later").send().await.status, 201);
    eventually("later orders get through", async || {
        database.count("reservations").await == 4
    })
    .await;
    assert_eq!(database.rows(QUEUE).await, 1, "nobody touches what is dead");
    drop(worker);
}

#[tokio::test]
async fn sigterm_under_load_leaves_no_lease_and_no_attempt_behind() {
    let database = Database::fresh().await;
    let shop = publisher(&database, &[]).await;
    let orders = 50;
    place(&shop, orders).await;
    let mut worker = Shop::worker(&database.url(), &["--lab", "--fault", "hold=until-released"]).await;
    eventually("it is in the middle of it", async || {
        database.rows("queue WHERE state = 'leased'").await > 0
    })
    .await;
    worker.terminate().await;
    let (ready, release) = (worker.request("GET", "/readyz"), worker.request("POST", "/lab/release"));
    eventually("it says that it stops", async || {
        ready.try_send().await.is_ok_and(|answer| answer.status == 503)
    })
    .await;
    eventually("what was under way has ended, and so has the worker", async || {
        drop(release.try_send().await);
        !worker.is_alive()
    })
    .await;
    assert_eq!(worker.ended().await.code(), Some(0));
    let left = database.rows(QUEUE).await;
    assert!(left > 0, "it was stopped in the middle of it");
    assert_eq!(
        database
            .rows(&format!("{QUEUE} AND state = 'pending' AND attempts = 0"))
            .await,
        left
    );
    let wanted = orders * (TARGETS - 1);
    assert_eq!(database.rows("history WHERE attempts = 1").await, wanted - left);
    assert_eq!(database.rows("failures").await, 0);

    let next = Shop::worker(&database.url(), &["--lab"]).await;
    database.is_quiet().await;
    database.assert_reserved_once(orders).await;
    assert_eq!(database.rows("history WHERE attempts = 1").await, wanted);
    drop(next);
}

#[tokio::test]
async fn a_worker_leaves_alone_what_it_does_not_know_and_a_newer_one_delivers_it() {
    let (database, outside) = (Database::fresh().await, Outside::start().await);
    let world = outside.process.url();
    let shop = publisher(&database, &["--outside", &world]).await;
    place(&shop, 2).await;
    // As a publisher writes it that knows the next version of the event.
    let raise = format!(
        "UPDATE {PREFIX}queue SET kind = 'stock.reserve@2'
         WHERE kind = 'stock.reserve' AND item = (SELECT item FROM {PREFIX}{QUEUE} ORDER BY item DESC LIMIT 1)"
    );
    database.change(&raise).await;

    let old = Shop::worker(&database.url(), &["--lab"]).await;
    eventually("it does what it knows", async || database.rows(HISTORY).await == 3).await;
    assert_eq!(old.request("GET", "/readyz").send().await.status, 200);
    let untouched = format!("{QUEUE} AND state = 'pending' AND attempts = 0 AND epoch = 0");
    assert_eq!(
        database.rows(&untouched).await,
        3,
        "two mails, and a version that it does not know"
    );

    let new = Shop::worker(&database.url(), &["--lab", "--outside", &world]).await;
    eventually("the mails are sent", async || database.rows(HISTORY).await == 5).await;
    assert_mailed_once(&outside, 2).await;
    assert_eq!(
        database
            .rows("queue WHERE kind = 'stock.reserve@2' AND attempts = 0")
            .await,
        1
    );
    drop((old, new));
}

#[tokio::test]
async fn a_publisher_that_never_knew_a_target_of_another_process_loses_nothing() {
    let (database, outside) = (Database::fresh().await, Outside::start().await);
    let flags = ["--lab", "--outside", &outside.process.url()];
    let mut declaring = Shop::worker(&database.url(), &flags).await;
    declaring.kill().await;

    let shop = publisher(&database, &[]).await;
    place(&shop, 3).await;
    assert_eq!(outside.ledger("calls", "mail").await, [json!(null); 0]);
    let worker = Shop::worker(&database.url(), &flags).await;
    database.is_quiet().await;
    database.assert_reserved_once(3).await;
    assert_mailed_once(&outside, 3).await;
    drop(worker);
}
