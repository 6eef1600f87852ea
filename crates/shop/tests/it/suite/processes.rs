//! The process itself: how it opens, what it is without the lab, how it closes.

use super::Database;
use crate::eventually;
use crate::http::Request;
use crate::process::Shop;

#[tokio::test]
async fn several_processes_may_open_a_fresh_database_at_once() {
    let database = Database::fresh().await;
    let url = database.url();
    let open = || Shop::lab(&url);
    let (first, second, third, fourth) = tokio::join!(open(), open(), open(), open());
    for shop in [first, second, third, fourth] {
        assert_eq!(shop.request("GET", "/readyz").send().await.status, 200);
        assert_eq!(shop.order("key-1").send().await.status, 201);
    }
    assert_eq!(database.count("orders").await, 1);
}

#[tokio::test]
async fn sigterm_waits_for_the_command_under_way_and_exits_0() {
    let database = Database::fresh().await;
    let mut shop = Shop::lab(&database.url()).await;
    // Much longer than it takes to close the door, or the command would prove nothing.
    let held = shop.order("key-1").fault("hold=8s");
    let sending = tokio::spawn(async move { held.send().await });
    shop.holds(1).await;
    shop.terminate().await;
    let ready: Request = shop.request("GET", "/readyz");
    eventually("it says that it is not ready", async || {
        ready.try_send().await.is_ok_and(|answer| answer.status == 503)
    })
    .await;
    let knock: Request = shop.request("GET", "/livez");
    eventually("the door is closed", async || knock.try_send().await.is_err()).await;
    assert!(!sending.is_finished(), "the command is still under way");

    assert_eq!(sending.await.unwrap().status, 201);
    assert_eq!(shop.ended().await.code(), Some(0));
    assert_eq!(database.count("orders").await, 1);
}

#[tokio::test]
async fn without_the_lab_there_is_no_knob() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    for (method, path) in [
        ("GET", "/lab"),
        ("POST", "/lab/release"),
        ("GET", "/lab/clock"),
        ("POST", "/lab/clock"),
    ] {
        assert_eq!(shop.request(method, path).send().await.status, 404, "{method} {path}");
    }
    for fault in ["kill=before_commit", "panic", "fail=transient", "nonsense"] {
        assert_eq!(shop.order(fault).fault(fault).send().await.status, 201, "{fault}");
    }
    let page = shop.request("GET", "/").send().await.text();
    assert!(!page.contains("Crash now"));
}

#[tokio::test]
async fn the_lab_says_what_it_can_do() {
    let database = Database::fresh().await;
    let shop = Shop::lab(&database.url()).await;
    let lab = shop.request("GET", "/lab").send().await;
    assert_eq!(lab.status, 200);
    for word in [
        "hold=500ms",
        "after_write",
        "POST /lab/release",
        "POST /lab/clock",
        "user-c",
        "--fault stock.reserve/poison:kill=after_write",
        "before_finish",
    ] {
        assert!(lab.text().contains(word), "{word}");
    }
    let page = shop.request("GET", "/").send().await.text();
    assert!(page.contains("Crash now") && page.contains("curl-stock"));
}

#[tokio::test]
async fn the_page_and_what_operators_ask_need_no_token() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    for path in ["/", "/shop.js", "/shop.css", "/shop.svg"] {
        let file = shop.request("GET", path).send().await;
        assert_eq!(file.status, 200, "{path}");
        assert!(
            file.header("content-security-policy")
                .unwrap()
                .contains("script-src 'self'")
        );
    }
    for path in ["/livez", "/readyz", "/metrics", "/problems/SF104"] {
        assert_eq!(shop.request("GET", path).send().await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn the_clock_of_the_lab_refuses_what_is_no_duration() {
    let database = Database::fresh().await;
    let shop = Shop::lab(&database.url()).await;
    for body in [
        r#"{"advance":"soon"}"#,
        r#"{"advance":"40000d"}"#,
        r#"{"advance":1}"#,
        "{}",
        "[",
    ] {
        let refused = shop.request("POST", "/lab/clock").json(body).send().await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.text());
    }
    let clock = shop.request("GET", "/lab/clock").send().await.json();
    assert_eq!(clock["ahead_ms"], 0);
}
