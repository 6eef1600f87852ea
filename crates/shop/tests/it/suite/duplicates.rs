//! The same command more than once: at once, in flight, across processes, after its time.

use super::{Database, HAS_ONE_WRITER, KEYS};
use crate::process::{Shop, send_until_settled};

#[tokio::test]
async fn two_hundred_concurrent_duplicates_over_two_processes_make_one_order() {
    let database = Database::fresh().await;
    let shops = [Shop::lab(&database.url()).await, Shop::lab(&database.url()).await];
    // Whoever comes first holds its transaction for a while, so that the others really meet it.
    let requests = shops.each_ref().map(|shop| shop.order("key-1").fault("hold=300ms"));
    let mut sending = tokio::task::JoinSet::new();
    for number in 0..200 {
        let request = requests[number % requests.len()].clone();
        sending.spawn(async move { request.send().await });
    }
    let responses = sending.join_all().await;

    let mut created = Vec::new();
    for response in responses {
        assert!(!response.text().contains("database is locked"), "{}", response.text());
        match response.status {
            201 => created.push(response),
            409 => assert!(response.header("retry-after").is_some()),
            503 if HAS_ONE_WRITER => assert!(response.header("retry-after").is_some()),
            status => panic!("{status}: {}", response.text()),
        }
    }
    assert_eq!(created.iter().filter(|response| !response.is_replayed()).count(), 1);
    assert_eq!(database.count("orders").await, 1);
    assert_eq!(database.count(KEYS).await, 1);

    for shop in &shops {
        let last = send_until_settled(&shop.order("key-1")).await;
        assert_eq!(last.status, 201);
        assert!(last.is_replayed());
        assert!(created.iter().all(|response| response.body == last.body));
    }
}

#[tokio::test]
async fn a_duplicate_in_flight_gets_409_with_retry_after() {
    let database = Database::fresh().await;
    let shop = Shop::lab(&database.url()).await;
    let held = shop.order("key-1").fault("hold=until-released");
    let first = tokio::spawn(async move { held.send().await });
    shop.holds(1).await;

    let duplicate = shop.order("key-1").send().await;
    assert_eq!(duplicate.status, 409, "{}", duplicate.text());
    assert_eq!(duplicate.json()["code"], "SF103");
    assert!(duplicate.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);

    shop.release().await;
    let first = first.await.unwrap();
    assert_eq!(first.status, 201);
    let retry = send_until_settled(&shop.order("key-1")).await;
    assert!(retry.is_replayed());
    assert_eq!(retry.body, first.body);
    assert_eq!(database.count("orders").await, 1);
}

#[tokio::test]
async fn an_answer_is_replayed_whole_in_every_process() {
    let database = Database::fresh().await;
    let first = Shop::start(&database.url(), &[]).await.order("key-1").send().await;
    assert_eq!(first.status, 201);
    assert!(!first.is_replayed());
    let id = first.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(first.header("location"), Some(format!("/orders/{id}").as_str()));

    // That process is gone; another one answers.
    let retry = Shop::start(&database.url(), &[]).await.order("key-1").send().await;
    assert_eq!(retry.status, 201);
    assert!(retry.is_replayed());
    assert_eq!(retry.body, first.body);
    for name in ["content-type", "location"] {
        assert_eq!(retry.header(name), first.header(name), "{name}");
    }
}

#[tokio::test]
async fn the_same_key_for_another_order_is_refused() {
    let database = Database::fresh().await;
    let shop = Shop::start(&database.url(), &[]).await;
    assert_eq!(shop.order("key-1").send().await.status, 201);
    let other = shop.request("POST", "/orders").user("user-a").key("key-1");
    let other = other.json(r#"{"sku":"tea","quantity":3}"#).send().await;
    assert_eq!(other.status, 422);
    assert_eq!(other.json()["code"], "SF104");
    assert_eq!(database.count("orders").await, 1);
}

#[tokio::test]
async fn an_expired_key_executes_again_in_every_process() {
    let database = Database::fresh().await;
    let (here, there) = (Shop::lab(&database.url()).await, Shop::lab(&database.url()).await);
    let first = here.order("key-1").send().await;
    assert!(there.order("key-1").send().await.is_replayed());

    let advance = here
        .request("POST", "/lab/clock")
        .json(r#"{"advance":"24h"}"#)
        .send()
        .await;
    assert_eq!(advance.status, 200, "{}", advance.text());
    let second = there.order("key-1").send().await;
    assert_eq!(second.status, 201);
    assert!(!second.is_replayed());
    assert_ne!(second.body, first.body);
    let retry = here.order("key-1").send().await;
    assert!(retry.is_replayed());
    assert_eq!(retry.body, second.body);
    assert_eq!(database.count("orders").await, 2);
}
