//! The page in a real browser: what it hears live, and what becomes of that when the shop dies, the tab sleeps or the network
//! goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinHandle;

use super::{Database, PREFIX};
use crate::browser::Browser;
use crate::http::{Request, Response};
use crate::process::{Shop, lasting_address};
use crate::{ASK_EVERY, PATIENCE, eventually};

/// Runs before the page does, and writes down what the browser hands to it: what is heard twice is seen here, even if the page
/// would hide it.
const RECORDER: &str = r#"
    window.recorded = [];
    window.hasSlept = false;
    document.addEventListener("freeze", () => (window.hasSlept = true));
    window.EventSource = class extends EventSource {
        constructor(url) {
            super(url);
            for (const event of ["ready", "resync", "message"]) {
                const write = ({ lastEventId, data }) => recorded.push({ event, place: lastEventId, entry: JSON.parse(data) });
                this.addEventListener(event, write);
            }
        }
    };
"#;

/// How many of the things that it heard the page shows at least, beside what it says of its connection.
const SHOWN_MIN: usize = 80;

/// How long the clerk rests between two orders, so that there are some, and not thousands, whatever happens meanwhile.
const PACE: Duration = Duration::from_millis(20);

/// What has become of which order.
type Fact = (String, String);

#[derive(Deserialize)]
struct Heard {
    event: String,
    /// The stream, and the number in it.
    place: String,
    entry: Entry,
}

/// Empty, if it is none.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    id: String,
    r#type: String,
    data: Data,
}

#[derive(Default, Deserialize)]
struct Data {
    order_id: String,
}

impl Heard {
    fn number(&self) -> i64 {
        self.place.rsplit_once('=').unwrap().1.parse().unwrap()
    }

    fn fact(&self) -> Fact {
        (self.entry.r#type.clone(), self.entry.data.order_id.clone())
    }
}

/// Opens the page, and waits until it follows.
async fn visit(browser: &Browser, address: &str) {
    let recorder = json!({ "source": RECORDER });
    browser
        .devtools("Page.addScriptToEvaluateOnNewDocument", recorder)
        .await;
    browser.go(&format!("http://{address}/")).await;
    says(browser, "live").await;
}

/// Waits until the page says so of its connection.
async fn says(browser: &Browser, words: &str) {
    eventually(&format!("the page says {words:?}"), async || {
        browser.run("return document.getElementById('live').textContent").await == words
    })
    .await;
}

/// Everything that the browser has heard.
async fn recorded(browser: &Browser) -> Vec<Heard> {
    serde_json::from_value(browser.run("return recorded").await).unwrap()
}

async fn entries(browser: &Browser) -> Vec<Heard> {
    let mut heard = recorded(browser).await;
    heard.retain(|heard| heard.event == "message");
    heard
}

/// The ids in a part of the page, from top to bottom.
async fn shown(browser: &Browser, place: &str) -> Vec<String> {
    let script = format!("return [...document.querySelectorAll('{place} [data-id]')].map((item) => item.dataset.id)");
    serde_json::from_value(browser.run(&script).await).unwrap()
}

/// Waits until the page has heard as many facts as there are, and sees that they are these, each once, in the order of their
/// stream, and that the page shows them so.
async fn has_heard(browser: &Browser, facts: &[Fact]) {
    eventually("the page has heard everything", async || {
        entries(browser).await.len() >= facts.len()
    })
    .await;
    let heard = entries(browser).await;
    let numbers: Vec<_> = heard.iter().map(Heard::number).collect();
    assert!(
        numbers.is_sorted_by(|a, b| a < b),
        "out of order, or twice: {numbers:?}"
    );
    let mut expected = facts.to_vec();
    let mut told: Vec<_> = heard.iter().map(Heard::fact).collect();
    for (at, (event_type, order_id)) in told.iter().enumerate() {
        let is_placed = |(before, order): &Fact| before == "order.placed" && order == order_id;
        let is_told_before = event_type == "order.placed" || told[..at].iter().any(is_placed);
        assert!(
            is_told_before,
            "{event_type} of {order_id} came before the order itself"
        );
    }
    expected.sort();
    told.sort();
    assert_eq!(told, expected);
    assert!(
        recorded(browser).await.iter().all(|heard| heard.event != "resync"),
        "nothing that it was told could have been missed"
    );

    let newest: Vec<_> = heard.iter().rev().map(|heard| heard.entry.id.clone()).collect();
    let shown = shown(browser, "#heard").await;
    assert!(newest.starts_with(&shown), "the page shows otherwise: {shown:?}");
    assert!(shown.len() >= newest.len().min(SHOWN_MIN));
}

/// Waits until the list of orders in the page is that of the shop.
async fn lists(browser: &Browser, address: &str, user: &str) {
    eventually("the page lists what there is", async || {
        let list = Request::new(address, "GET", "/orders").user(user).send().await.json();
        let orders = list["orders"].as_array().unwrap();
        let orders: Vec<_> = orders.iter().map(|order| order["id"].as_str().unwrap()).collect();
        shown(browser, "#orders").await == orders
    })
    .await;
}

/// Sends a request as a good client does: again, until there is an answer, also if the shop dies meanwhile.
async fn send_until_answered(request: Request) -> Response {
    let asking = async {
        loop {
            match request.try_send().await {
                Ok(response) if !matches!(response.status, 409 | 503) => return response,
                _ => tokio::time::sleep(ASK_EVERY).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap()
}

/// Somebody else than the page orders: with `curl`, say.
async fn place(address: &str, user: &str, key: &str) -> Fact {
    let order = Request::new(address, "POST", "/orders").user(user).key(key);
    let placed = send_until_answered(order.json(r#"{"sku":"tea","quantity":2}"#)).await;
    assert_eq!(placed.status, 201, "{}", placed.text());
    ("order.placed".into(), placed.json()["id"].as_str().unwrap().into())
}

async fn place_some(address: &str, keys: std::ops::Range<i32>) -> Vec<Fact> {
    let mut facts = Vec::new();
    for key in keys {
        facts.push(place(address, "user-a", &format!("key-{key}")).await);
    }
    facts
}

async fn cancel(address: &str, order_id: &str) -> Fact {
    let cancel = Request::new(address, "POST", &format!("/orders/{order_id}/cancel"));
    let cancelled = send_until_answered(cancel.user("user-a").key(&format!("cancel-{order_id}"))).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.text());
    ("order.cancelled".into(), order_id.into())
}

/// Somebody who orders, and cancels every third order, until he is stopped.
struct Clerk {
    is_stopped: Arc<AtomicBool>,
    facts: JoinHandle<Vec<Fact>>,
}

impl Clerk {
    fn begin(address: &str) -> Self {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (stopped, address) = (is_stopped.clone(), address.to_owned());
        let facts = tokio::spawn(async move {
            let mut facts = Vec::new();
            for number in 1.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let placed = place(&address, "user-a", &format!("clerk-{number}")).await;
                let order_id = placed.1.clone();
                facts.push(placed);
                if number % 3 == 0 {
                    facts.push(cancel(&address, &order_id).await);
                }
                tokio::time::sleep(PACE).await;
            }
            facts
        });
        Self { is_stopped, facts }
    }

    async fn stop(self) -> Vec<Fact> {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.facts.await.unwrap()
    }
}

#[tokio::test]
async fn orders_appear_on_the_page_without_a_reload_wherever_they_are_placed() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    let address = shop.address();
    let browser = Browser::open().await;
    visit(&browser, address).await;

    let mut facts = vec![place(address, "user-a", "curl").await];
    has_heard(&browser, &facts).await;
    lists(&browser, address, "user-a").await;

    browser.run("document.getElementById('twice').click()").await;
    eventually("the form's order is there", async || {
        shown(&browser, "#orders").await.len() == 2
    })
    .await;
    facts.push(("order.placed".into(), shown(&browser, "#orders").await[0].clone()));
    facts.push(cancel(address, &facts[0].1).await);
    has_heard(&browser, &facts).await;
    lists(&browser, address, "user-a").await;
    assert_eq!(
        browser.console().await,
        [] as [&str; 0],
        "the page has nothing to complain about"
    );
}

#[tokio::test]
async fn a_page_hears_every_event_once_although_the_shop_is_killed_in_the_middle() {
    let database = Database::fresh().await;
    let address = lasting_address();
    let mut shop = Shop::start_at(&address, &database.url()).await;
    let browser = Browser::open().await;
    visit(&browser, &address).await;

    let clerk = Clerk::begin(&address);
    for _ in 0..3 {
        let heard = entries(&browser).await.len();
        eventually("the page hears some more", async || {
            entries(&browser).await.len() >= heard + 5
        })
        .await;
        shop.kill().await;
        says(&browser, "reconnecting…").await;
        shop = Shop::start_at(&address, &database.url()).await;
        says(&browser, "live").await;
    }
    let facts = clerk.stop().await;
    has_heard(&browser, &facts).await;
    lists(&browser, &address, "user-a").await;
    let heard = recorded(&browser).await;
    assert_eq!(heard.iter().filter(|heard| heard.event == "ready").count(), 4);
}

#[tokio::test]
async fn a_tab_that_slept_hears_every_event_once() {
    let database = Database::fresh().await;
    let address = lasting_address();
    let mut shop = Shop::start_at(&address, &database.url()).await;
    let browser = Browser::open().await;
    visit(&browser, &address).await;
    let mut facts = place_some(&address, 0..3).await;
    has_heard(&browser, &facts).await;

    let sleep = json!({ "state": "frozen" });
    browser.devtools("Page.setWebLifecycleState", sleep).await;
    eventually("the tab sleeps", async || browser.run("return hasSlept").await == true).await;
    facts.extend(place_some(&address, 3..6).await);
    eventually("the shop has told it", async || {
        database.count(&format!("{PREFIX}entries")).await == 6
    })
    .await;
    // What the sleeping tab got but has not taken yet, and what it could not even get.
    shop.kill().await;
    let _shop = Shop::start_at(&address, &database.url()).await;
    facts.extend(place_some(&address, 6..9).await);
    assert_eq!(entries(&browser).await.len(), 3, "it sleeps");

    let wake = json!({ "state": "active" });
    browser.devtools("Page.setWebLifecycleState", wake).await;
    has_heard(&browser, &facts).await;
    lists(&browser, &address, "user-a").await;
}

#[tokio::test]
async fn a_browser_that_was_offline_hears_every_event_once() {
    let database = Database::fresh().await;
    let address = lasting_address();
    let mut shop = Shop::start_at(&address, &database.url()).await;
    let browser = Browser::open().await;
    visit(&browser, &address).await;
    browser.devtools("Network.enable", json!({})).await;
    let go = async |offline: bool| {
        let network = json!({ "offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 });
        browser.devtools("Network.emulateNetworkConditions", network).await;
    };
    let mut facts = place_some(&address, 0..3).await;
    has_heard(&browser, &facts).await;
    lists(&browser, &address, "user-a").await;

    // Chromium cuts no connection that is open: the page still hears, but cannot look.
    go(true).await;
    facts.extend(place_some(&address, 3..6).await);
    has_heard(&browser, &facts).await;
    let mut failed = 0;
    eventually("it looks again, although nothing reminds it", async || {
        let console = browser.console().await;
        failed += console.iter().filter(|line| line.contains("/orders")).count();
        failed > facts.len()
    })
    .await;
    assert_eq!(shown(&browser, "#orders").await.len(), 3);
    go(false).await;
    lists(&browser, &address, "user-a").await;

    // Without the connection it hears nothing either, although the shop is there.
    go(true).await;
    shop.kill().await;
    let _shop = Shop::start_at(&address, &database.url()).await;
    says(&browser, "reconnecting…").await;
    facts.extend(place_some(&address, 6..9).await);
    assert_eq!(entries(&browser).await.len(), 6);
    go(false).await;
    has_heard(&browser, &facts).await;
    lists(&browser, &address, "user-a").await;
}

#[tokio::test]
async fn a_page_that_was_refused_goes_on_where_it_was() {
    let database = Database::fresh().await;
    let address = lasting_address();
    let mut shop = Shop::start_at(&address, &database.url()).await;
    let browser = Browser::open().await;
    visit(&browser, &address).await;
    let mut facts = place_some(&address, 0..3).await;
    has_heard(&browser, &facts).await;

    // Without its cookie the browser is refused, and gives up; the page does not.
    browser.devtools("Network.clearBrowserCookies", json!({})).await;
    shop.kill().await;
    says(&browser, "reconnecting…").await;
    let _shop = Shop::start_at(&address, &database.url()).await;
    facts.extend(place_some(&address, 3..6).await);
    has_heard(&browser, &facts).await;
    lists(&browser, &address, "user-a").await;
    let console = browser.console().await;
    assert!(console.iter().any(|line| line.contains("401")), "{console:?}");
}

#[tokio::test]
async fn two_windows_of_one_browser_hear_their_own_customers_and_no_stranger() {
    let database = Database::fresh().await;
    let address = lasting_address();
    let mut shop = Shop::start_at(&address, &database.url()).await;
    let browser = Browser::open().await;
    let first = browser.open_window().await;
    visit(&browser, &address).await;
    let second = browser.open_window().await;
    visit(&browser, &address).await;
    let choose = "const user = document.querySelector('[name=user]');
                  user.value = 'user-c';
                  user.dispatchEvent(new Event('change', { bubbles: true }));";
    browser.run(choose).await;
    eventually("the second window follows its customer", async || {
        recorded(&browser).await.len() == 2
    })
    .await;

    // They come back by the cookies that they share. What a stranger was told in one round would be seen in the next.
    shop.kill().await;
    let _shop = Shop::start_at(&address, &database.url()).await;
    let mut customers = [(first, "user-a", Vec::new()), (second, "user-c", Vec::new())];
    for round in 0..3 {
        let key = format!("key-{round}");
        place(&address, "user-b", &key).await;
        for (_, user, facts) in &mut customers {
            facts.push(place(&address, user, &key).await);
        }
        for (window, user, facts) in &customers {
            browser.switch_to(window).await;
            has_heard(&browser, facts).await;
            lists(&browser, &address, user).await;
        }
    }
}

mod nats {
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn the_page_shows_what_a_warehouse_has_reserved_without_a_reload() {
        let (sold, kept) = (Database::fresh().await, Database::fresh().await);
        let url = std::env::var("TEST_NATS_URL")
            .unwrap_or_else(|_| panic!("TEST_NATS_URL is not set: run `cargo xtask test`"));
        let name = format!("t{}", Uuid::now_v7().simple());
        let shop = Shop::start(&sold.url(), &["--source", &url, "--sink-name", &name]).await;
        let browser = Browser::open().await;
        visit(&browser, shop.address()).await;
        let placed = place(shop.address(), "user-a", "key-1").await;
        has_heard(&browser, std::slice::from_ref(&placed)).await;

        let warehouse = Shop::warehouse(&kept.url(), &["--source", &url, "--source-name", &name]).await;
        let reserved = ("order.reserved".into(), placed.1.clone());
        has_heard(&browser, &[placed, reserved]).await;
        eventually("the order is shown as reserved", async || {
            browser
                .run("return document.querySelector('#orders .tag')?.textContent")
                .await
                == "reserved"
        })
        .await;
        let is_shown =
            "return !document.getElementById('stock-elsewhere').hidden && document.getElementById('stock-here').hidden";
        assert_eq!(browser.run(is_shown).await, true, "it says where the stock is");
        drop(warehouse);
    }
}
