//! The shop's jobs, whatever happens to the processes that do them: each payment has one receipt, each unpaid order one reminder and each
//! day one digest.
//!
//! A lease is 2 s in the lab. Nobody waits for one, nor for a day: the lab's clock is moved.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;

use serde_json::{Value, json};

use super::dispatchers::{LEASE_AND_MORE, publisher, work};
use super::{Database, PREFIX};
use crate::eventually;
use crate::http::{Request, Response};
use crate::outside::{Outside, of};
use crate::process::{Shop, send_until_settled};

/// What the mails of each job begin with.
const RECEIPT: &str = "Your payment";
const REMINDER: &str = "Not paid yet";
const DIGEST: &str = "The day until";

fn pay(shop: &Shop, key: &str, currency: &str, order: Option<&Response>) -> Request {
    let order_id = order.map(|order| order.json()["id"].clone());
    let request = shop.request("POST", "/payments").user("user-a").key(key);
    request.json(json!({ "amount": 5, "currency": currency, "order_id": order_id }).to_string())
}

/// Makes so many payments.
async fn make_payments(shop: &Shop, payments: usize) {
    for number in 0..payments {
        let paid = send_until_settled(&pay(shop, &format!("p-{number}"), "EUR", None)).await;
        assert_eq!(paid.status, 201, "{}", paid.text());
    }
}

/// The mails that were sent, of those that begin like this.
async fn mails(outside: &Outside, subject: &str) -> Vec<Value> {
    let mut sent = outside.ledger("effects", "mail").await;
    sent.retain(|mail| mail["detail"]["subject"].as_str().unwrap().starts_with(subject));
    sent
}

fn keys(mails: &[Value]) -> HashSet<String> {
    of(mails, "key").iter().map(ToString::to_string).collect()
}

/// Each mail was sent once, with the key of its job, and no call had another one.
async fn assert_sent_once(outside: &Outside, subject: &str, mails_wanted: usize) {
    let sent = mails(outside, subject).await;
    assert_eq!(sent.len(), mails_wanted, "{subject}");
    assert_eq!(keys(&sent).len(), mails_wanted, "{subject}");
    for mail in &sent {
        assert!(mail["key"].as_str().unwrap().starts_with("job:"), "{mail}");
    }
    let subjects: HashSet<_> = sent.iter().map(|mail| mail["detail"].to_string()).collect();
    assert_eq!(subjects.len(), mails_wanted, "{subject}: one for each");
}

impl Database {
    /// Jobs of this name that have ended like this.
    async fn ended(&self, job: &str, state: &str) -> i64 {
        self.rows(&format!("history WHERE kind = 'job:{job}' AND state = '{state}'"))
            .await
    }

    /// Waits until no job of this name is left.
    async fn has_no(&self, job: &str) {
        eventually("its jobs have ended", async || {
            self.rows(&format!("queue WHERE kind = 'job:{job}'")).await == 0
        })
        .await;
    }
}

/// Kills a process at this point of a receipt, and checks that each payment has one all the same.
async fn kill_and_restart(point: &str, is_asked_again: bool) {
    let (database, outside) = (Database::fresh().await, Outside::start().await);
    let shop = publisher(&database, &[]).await;
    make_payments(&shop, 3).await;
    let fault = format!("receipt.send:kill={point}@1");
    let flags = ["--lab", "--outside", &outside.process.url(), "--fault", &fault];
    let deaths = work(&database, &shop, &flags).await;
    assert!((1..=3).contains(&deaths), "{deaths}");
    assert_sent_once(&outside, RECEIPT, 3).await;
    assert_eq!(database.ended("receipt.send", "completed").await, 3);
    assert!(database.rows("failures WHERE code = 'lease_expired'").await > 0);
    let calls = outside.ledger("calls", "mail").await;
    assert_eq!(of(&calls, "replayed").contains(&json!(true)), is_asked_again);
}

#[tokio::test]
async fn a_kill_after_the_claim_of_a_receipt_leaves_it_to_the_next_process() {
    kill_and_restart("after_claim_message", false).await;
}

#[tokio::test]
async fn a_kill_before_a_receipt_is_sent_leaves_it_to_the_next_process() {
    kill_and_restart("before_handler", false).await;
}

#[tokio::test]
async fn a_kill_after_a_receipt_was_sent_makes_no_second_one() {
    kill_and_restart("after_handler", true).await;
}

#[tokio::test]
async fn a_kill_before_it_is_noted_that_a_receipt_was_sent_makes_no_second_one() {
    kill_and_restart("before_finish", true).await;
}

#[tokio::test]
async fn a_payment_that_was_killed_before_its_commit_has_no_receipt_and_its_retry_has_one() {
    let (database, outside) = (Database::fresh().await, Outside::start().await);
    let flags = ["--lab", "--outside", &outside.process.url()];
    let mut shop = Shop::start(&database.url(), &flags).await;
    let order = shop.order("key-1").send().await;
    let doomed = pay(&shop, "p-1", "EUR", Some(&order)).fault("kill=before_commit");
    assert!(doomed.try_send().await.is_err(), "nobody is left to answer");
    assert_eq!(shop.ended().await.signal(), Some(9));
    assert_eq!(database.rows("queue WHERE kind = 'job:receipt.send'").await, 0);
    assert_eq!(database.ended("reminder.send", "cancelled").await, 0, "he has not paid");

    let shop = Shop::start(&database.url(), &flags).await;
    let paid = send_until_settled(&pay(&shop, "p-1", "EUR", Some(&order))).await;
    assert_eq!(paid.status, 201, "{}", paid.text());
    eventually("the receipt is sent", async || {
        database.ended("receipt.send", "completed").await == 1
    })
    .await;
    assert_sent_once(&outside, RECEIPT, 1).await;
    assert_eq!(database.ended("reminder.send", "cancelled").await, 1);
}

#[tokio::test]
async fn a_worker_that_was_paused_beyond_the_leases_of_its_jobs_changes_nothing_when_it_goes_on() {
    let (database, outside) = (Database::fresh().await, Outside::start().await);
    let world = outside.process.url();
    let shop = publisher(&database, &[]).await;
    let held = ["--lab", "--outside", &world, "--fault", "hold=until-released@1"];
    let mut zombie = Shop::worker(&database.url(), &held).await;
    // A job that writes, and one that calls the outside.
    shop.advance("24h").await;
    zombie.holds(1).await;
    make_payments(&shop, 1).await;
    zombie.holds(3).await;
    zombie.pause().await;
    shop.advance(LEASE_AND_MORE).await;

    let other = Shop::worker(&database.url(), &["--lab", "--outside", &world]).await;
    for job in ["receipt.send", "digest.write", "digest.send"] {
        eventually("the other one has done it", async || {
            database.ended(job, "completed").await == 1
        })
        .await;
    }
    zombie.wake().await;
    zombie.release().await;
    // It ends when it has done whatever it still wanted to do.
    zombie.terminate().await;
    assert_eq!(zombie.ended().await.code(), Some(0));
    assert_sent_once(&outside, RECEIPT, 1).await;
    assert_sent_once(&outside, DIGEST, 1).await;
    assert_eq!(database.count("digests").await, 1);
    let taken_over = "history WHERE attempts = 2 AND kind IN ('job:receipt.send', 'job:digest.write')";
    assert_eq!(database.rows(taken_over).await, 2);
    assert_eq!(database.rows("history WHERE kind LIKE 'job:%'").await, 3);
    drop(other);
}

#[tokio::test]
async fn a_receipt_that_kills_every_process_is_dead_after_its_attempts_and_others_get_through() {
    let (database, outside) = (Database::fresh().await, Outside::start().await);
    let world = outside.process.url();
    let shop = publisher(&database, &[]).await;
    make_payments(&shop, 3).await;
    // A currency for tests, by ISO 4217.
    assert_eq!(pay(&shop, "poison", "XTS", None).send().await.status, 201);
    let poison = "receipt.send/XTS:kill=after_write";
    let deaths = work(&database, &shop, &["--lab", "--outside", &world, "--fault", poison]).await;
    assert_eq!(deaths, 6, "one for each attempt");
    assert_eq!(database.ended("receipt.send", "completed").await, 3);
    let dead = "queue WHERE state = 'dead' AND attempts = 6 AND kind = 'job:receipt.send'";
    assert_eq!(database.rows(dead).await, 1);
    let noted = format!("failures WHERE item = (SELECT item FROM {PREFIX}queue WHERE state = 'dead')");
    assert_eq!(database.rows(&noted).await, 6, "each death is in its history");

    let worker = Shop::worker(&database.url(), &["--lab", "--outside", &world]).await;
    assert_eq!(pay(&shop, "later", "EUR", None).send().await.status, 201);
    eventually("later receipts get through", async || {
        database.ended("receipt.send", "completed").await == 4
    })
    .await;
    // It was asked for with one key, six times.
    assert_sent_once(&outside, RECEIPT, 5).await;
    drop(worker);
}

#[tokio::test]
async fn two_shops_write_and_send_one_digest_of_each_day() {
    let (database, outside) = (Database::fresh().await, Outside::start().await);
    let flags = ["--lab", "--outside", &outside.process.url()];
    let (first, second) = (
        Shop::start(&database.url(), &flags).await,
        Shop::start(&database.url(), &flags).await,
    );
    let order = first.order("key-1").send().await;
    assert_eq!(second.order("key-2").send().await.status, 201);
    assert_eq!(pay(&second, "p-1", "EUR", Some(&order)).send().await.status, 201);
    let days = 3;
    for day in 1..=days {
        first.advance("24h").await;
        eventually("the digest of the day is sent", async || {
            database.ended("digest.send", "completed").await == day
        })
        .await;
    }
    let ticks = format!("SELECT count(*) FROM {PREFIX}ticks WHERE schedule = 'digest.write'");
    assert_eq!(database.ask(&ticks).await, days);
    assert_eq!(database.count("digests").await, days);
    let distinct = "SELECT count(DISTINCT until) FROM digests";
    assert_eq!(database.ask(distinct).await, days);
    for (what, wanted) in [("orders", 2), ("pieces", 4), ("payments", 1)] {
        let sum = format!("SELECT CAST(sum({what}) AS BIGINT) FROM digests");
        assert_eq!(database.ask(&sum).await, wanted, "{what} are of one day");
    }
    assert_sent_once(&outside, DIGEST, 3).await;
    drop((first, second));
}

#[tokio::test]
async fn sigterm_in_the_middle_of_receipts_leaves_no_lease_and_no_attempt_behind() {
    let (database, outside) = (Database::fresh().await, Outside::start().await);
    let world = outside.process.url();
    let shop = publisher(&database, &[]).await;
    let payments: i64 = 30;
    make_payments(&shop, 30).await;
    let held = [
        "--lab",
        "--outside",
        &world,
        "--fault",
        "receipt.send:hold=until-released",
    ];
    let mut worker = Shop::worker(&database.url(), &held).await;
    let receipts = "queue WHERE kind = 'job:receipt.send'";
    eventually("it is in the middle of it", async || {
        database.rows(&format!("{receipts} AND state = 'leased'")).await > 0
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
    let left = database.rows(receipts).await;
    assert!(left > 0, "it was stopped in the middle of it");
    let untouched = format!("{receipts} AND state = 'pending' AND attempts = 0");
    assert_eq!(database.rows(&untouched).await, left);
    let done = "history WHERE kind = 'job:receipt.send' AND attempts = 1";
    assert_eq!(database.rows(done).await, payments - left);
    assert_eq!(database.rows("failures").await, 0);

    let next = Shop::worker(&database.url(), &["--lab", "--outside", &world]).await;
    database.has_no("receipt.send").await;
    assert_eq!(database.rows(done).await, payments);
    assert_sent_once(&outside, RECEIPT, 30).await;
    drop(next);
}

#[tokio::test]
async fn an_unpaid_order_is_reminded_of_once_and_a_paid_or_cancelled_one_never() {
    let (database, outside) = (Database::fresh().await, Outside::start().await);
    let flags = ["--lab", "--remind-after", "1d", "--outside", &outside.process.url()];
    let shop = Shop::start(&database.url(), &flags).await;
    let worker = Shop::worker(&database.url(), &["--lab", "--outside", &outside.process.url()]).await;
    let unpaid = shop.order("key-1").send().await;
    let paid = shop.order("key-2").send().await;
    let cancelled = shop.order("key-3").send().await;
    assert_eq!(database.rows("queue WHERE kind = 'job:reminder.send'").await, 3);
    assert_eq!(pay(&shop, "p-1", "EUR", Some(&paid)).send().await.status, 201);
    let path = format!("{}/cancel", cancelled.header("location").unwrap());
    let cancel = shop.request("POST", &path).user("user-a").key("c-1");
    assert_eq!(cancel.send().await.status, 200);
    assert_eq!(database.ended("reminder.send", "cancelled").await, 2);
    assert_eq!(mails(&outside, REMINDER).await.len(), 0, "nobody is late yet");

    shop.advance("25h").await;
    database.has_no("reminder.send").await;
    let reminders = mails(&outside, REMINDER).await;
    assert_eq!(reminders.len(), 1);
    let id = unpaid.json()["id"].as_str().unwrap().to_owned();
    assert!(reminders[0].to_string().contains(&id), "{reminders:?}");
    // Who has not paid even then is not reminded again: the digests tell that the days have passed.
    let digests = async |count| {
        eventually("the day has passed", async || {
            database.ended("digest.send", "completed").await == count
        })
        .await;
    };
    digests(1).await;
    shop.advance("25h").await;
    digests(2).await;
    assert_eq!(mails(&outside, REMINDER).await.len(), 1);
    assert_eq!(database.ended("reminder.send", "completed").await, 1);
    drop(worker);
}

#[tokio::test]
async fn an_order_that_is_paid_while_its_reminder_is_under_way_is_not_reminded_of() {
    let (database, outside) = (Database::fresh().await, Outside::start().await);
    let shop = publisher(&database, &["--remind-after", "1h"]).await;
    let held = "reminder.send:hold=until-released";
    let flags = ["--lab", "--outside", &outside.process.url(), "--fault", held];
    let worker = Shop::worker(&database.url(), &flags).await;
    let order = shop.order("key-1").send().await;
    shop.advance("2h").await;
    worker.holds(1).await;
    assert_eq!(pay(&shop, "p-1", "EUR", Some(&order)).send().await.status, 201);
    assert_eq!(database.ended("reminder.send", "cancelled").await, 0, "it could not be");
    worker.release().await;
    eventually("it has seen that by itself", async || {
        database.ended("reminder.send", "completed").await == 1
    })
    .await;
    assert_eq!(mails(&outside, REMINDER).await.len(), 0);
}
