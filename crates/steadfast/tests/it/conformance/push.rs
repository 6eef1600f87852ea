//! Push: what live clients hear.

use std::collections::VecDeque;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::response::IntoResponse;
use futures_util::StreamExt;
use http::{Request, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::{Clock, DeliveryState, Event, Push, Steadfast, StreamName};
use tower::ServiceExt;

use super::Db;
use super::queue::{Tagged, ordered, publish, run, stop, tagged};
use crate::harness::{Harness, TestDatabase, eventually, fresh};

/// How long a client waits for something that must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a client hears.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Heard {
    Ready,
    Resync,
    Entry(Value),
    Heartbeat,
}

impl Heard {
    fn tag(&self) -> &str {
        match self {
            Heard::Entry(entry) => entry["data"]["tag"].as_str().unwrap(),
            other => panic!("{other:?} is no entry"),
        }
    }
}

/// A client, as a browser is one.
pub(super) struct Client {
    body: BodyDataStream,
    text: String,
    heard: VecDeque<Heard>,
    last_event_id: Option<String>,
}

impl Client {
    pub(super) async fn connect(router: &Router, uri: &str, last_event_id: Option<&str>) -> Self {
        let mut request = Request::get(uri);
        if let Some(last_event_id) = last_event_id {
            request = request.header("last-event-id", last_event_id);
        }
        let answer = router
            .clone()
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        assert_eq!(answer.headers()["cache-control"], "no-store");
        Self {
            body: answer.into_body().into_data_stream(),
            text: String::new(),
            heard: VecDeque::new(),
            last_event_id: last_event_id.map(str::to_owned),
        }
    }

    /// The next thing; `None`: the connection has ended.
    async fn next(&mut self) -> Option<Heard> {
        loop {
            if let Some(heard) = self.heard.pop_front() {
                return Some(heard);
            }
            let next = tokio::time::timeout(PATIENCE, self.body.next()).await;
            let bytes = next.expect("something comes, or the end").transpose().unwrap()?;
            self.text.push_str(std::str::from_utf8(&bytes).unwrap());
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                self.read(&event);
            }
        }
    }

    /// Reads an event as the standard says.
    fn read(&mut self, event: &str) {
        let (mut kind, mut data) = ("", "");
        for line in event.lines() {
            match line.split_once(':') {
                Some(("", _)) => return self.heard.push_back(Heard::Heartbeat),
                Some(("id", id)) => self.last_event_id = Some(id.trim_start().to_owned()),
                Some(("event", name)) => kind = name.trim_start(),
                Some(("data", json)) => data = json.trim_start(),
                Some(("retry", _)) => {}
                _ => panic!("{line:?} is no line of an event"),
            }
        }
        self.heard.extend(match (kind, data) {
            ("ready", _) => Some(Heard::Ready),
            ("resync", _) => Some(Heard::Resync),
            (_, "") => None,
            (_, json) => Some(Heard::Entry(serde_json::from_str(json).unwrap())),
        });
    }

    pub(super) async fn expect(&mut self, expected: &Heard) {
        assert_eq!(self.next().await.as_ref(), Some(expected));
    }

    /// The tags of the next entries.
    pub(super) async fn tags(&mut self, count: usize) -> Vec<String> {
        let mut tags = Vec::new();
        while tags.len() < count {
            let heard = self.next().await.expect("there is more");
            tags.push(heard.tag().to_owned());
        }
        tags
    }
}

/// A process whose events go to the topic `tags`, and to the user who is their key.
pub(super) fn push(sf: &Steadfast<Db>) -> Push<Db> {
    let tell = |event: &Tagged, to: &mut steadfast::Pushes| {
        to.push(StreamName::topic("tags"), event);
        if let Some(key) = &event.key {
            to.push(StreamName::user(key), event);
        }
    };
    sf.push("test.live").event(tell).start()
}

/// Everybody may hear what they ask for, unless it is of the user `secret`.
pub(super) fn routes(push: &Push<Db>) -> Router {
    let route = push.route(async |request| {
        let streams = StreamName::requested(&request).map_err(IntoResponse::into_response)?;
        match streams.contains(&StreamName::user("secret")) {
            true => Err(StatusCode::FORBIDDEN.into_response()),
            false => Ok(streams),
        }
    });
    Router::new().route("/events", route)
}

pub(super) const TAGS: &str = "/events?stream=topic:tags";

async fn node() -> (Harness<Db>, Router) {
    let harness = fresh::<Db>().await;
    let router = routes(&push(&harness.sf));
    harness.sf.declare().await.unwrap();
    (harness, router)
}

async fn say(sf: &Steadfast<Db>, tags: std::ops::Range<i32>) {
    for tag in tags {
        publish(sf, &tagged(tag)).await;
    }
    sf.drain().await.unwrap();
}

/// The same, many in one transaction.
async fn say_many(sf: &Steadfast<Db>, tags: std::ops::Range<i32>, event: fn(i32) -> Tagged) {
    for some in tags.collect::<Vec<_>>().chunks(500) {
        let publishing = sf.transact(async |tx| {
            for tag in some {
                tx.publish(&event(*tag))?;
            }
            Ok(())
        });
        publishing.await.unwrap();
    }
    sf.drain().await.unwrap();
}

fn texts(tags: std::ops::Range<i32>) -> Vec<String> {
    tags.map(|tag| tag.to_string()).collect()
}

#[tokio::test]
async fn a_client_hears_what_was_committed_and_nothing_else() {
    let (harness, router) = node().await;
    let mut client = Client::connect(&router, TAGS, None).await;
    client.expect(&Heard::Ready).await;

    let rolled_back = harness.sf.transact(async |tx| {
        tx.publish(&tagged("never"))?;
        Err::<(), _>(steadfast::Failure::transient("test", "no"))
    });
    rolled_back.await.unwrap_err();
    let id = harness
        .sf
        .transact(async |tx| Ok(tx.publish(&tagged("tea"))?))
        .await
        .unwrap();
    harness.sf.drain().await.unwrap();

    let Some(Heard::Entry(entry)) = client.next().await else {
        panic!("an entry comes");
    };
    assert_eq!(entry["stream"], "topic:tags");
    assert_eq!(entry["id"], id.to_string());
    assert_eq!(entry["type"], Tagged::TYPE);
    assert_eq!(entry["data"], json!({ "tag": "tea", "key": null }));
    assert!(entry["time"].as_str().unwrap().ends_with('Z'), "{entry}");
    let message = harness.sf.message(id).look().await.unwrap().unwrap();
    assert_eq!(message.deliveries[0].detail.as_deref(), Some("topic:tags"));
}

#[tokio::test]
async fn a_client_that_comes_back_hears_what_it_missed_once_and_in_order() {
    let (harness, router) = node().await;
    let mut client = Client::connect(&router, TAGS, None).await;
    client.expect(&Heard::Ready).await;
    say(&harness.sf, 0..3).await;
    assert_eq!(client.tags(3).await, texts(0..3));
    let place = client.last_event_id.clone().unwrap();
    drop(client);
    say(&harness.sf, 3..9).await;

    // By another process, which has nothing of it in memory.
    let other = harness.another().await;
    let elsewhere = routes(&push(&other));
    for router in [&elsewhere, &router, &elsewhere] {
        let mut client = Client::connect(router, TAGS, Some(&place)).await;
        client.expect(&Heard::Ready).await;
        assert_eq!(client.tags(6).await, texts(3..9));
        // Where it was says the same as a parameter.
        let uri = format!(
            "{TAGS}&last_event_id={}",
            client.last_event_id.unwrap().replace('=', "%3D")
        );
        let mut client = Client::connect(router, &uri, None).await;
        client.expect(&Heard::Ready).await;
        assert!(client.heard.is_empty(), "it has missed nothing");
    }
}

#[tokio::test]
async fn a_client_that_came_before_the_first_entry_misses_none() {
    let (harness, router) = node().await;
    let mut client = Client::connect(&router, TAGS, None).await;
    client.expect(&Heard::Ready).await;
    let place = client.last_event_id.clone().unwrap();
    drop(client);
    say(&harness.sf, 0..2).await;
    let mut client = Client::connect(&router, TAGS, Some(&place)).await;
    client.expect(&Heard::Ready).await;
    assert_eq!(client.tags(2).await, texts(0..2));
}

#[tokio::test]
async fn every_client_of_every_process_hears_everything_in_the_order_of_its_key() {
    const EACH: usize = 40;
    let (harness, router) = node().await;
    let other = harness.another().await;
    let elsewhere = routes(&push(&other));
    let mut clients = Vec::new();
    for router in [&router, &router, &elsewhere, &elsewhere] {
        let mut client = Client::connect(router, "/events?stream=topic:tags&stream=user:a", None).await;
        client.expect(&Heard::Ready).await;
        clients.push(client);
    }
    let dispatchers = [run(&harness.sf), run(&other)];
    let publish_all = async |sf: &Steadfast<Db>, key: &str| {
        for tag in 0..EACH {
            publish(sf, &ordered(key, tag)).await;
        }
    };
    tokio::join!(publish_all(&harness.sf, "a"), publish_all(&other, "b"));

    for client in &mut clients {
        let mut heard: Vec<(String, String, usize)> = Vec::new();
        // Those of `a` are in both of its streams.
        while heard.len() < 3 * EACH {
            let Some(Heard::Entry(entry)) = client.next().await else {
                panic!("an entry comes");
            };
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let tag = text(&entry["data"]["tag"]).parse().unwrap();
            heard.push((text(&entry["stream"]), text(&entry["data"]["key"]), tag));
        }
        for (stream, key) in [("topic:tags", "a"), ("topic:tags", "b"), ("user:a", "a")] {
            let tags: Vec<_> = heard
                .iter()
                .filter(|(of, by, _)| of == stream && by == key)
                .map(|(.., tag)| *tag)
                .collect();
            assert_eq!(tags, (0..EACH).collect::<Vec<_>>(), "{stream} {key}");
        }
    }
    let [first, second] = dispatchers;
    stop(&harness.sf, first).await;
    stop(&other, second).await;
}

#[tokio::test]
async fn a_client_hears_only_the_streams_it_was_allowed() {
    let (harness, router) = node().await;
    let refused = Request::get("/events?stream=user:secret").body(Body::empty()).unwrap();
    let refused = router.clone().oneshot(refused).await.unwrap();
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);

    publish(&harness.sf, &ordered("secret", "hush")).await;
    publish(&harness.sf, &ordered("me", "hello")).await;
    harness.sf.drain().await.unwrap();
    // A place in a stream is no right to hear it.
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap() - Duration::from_secs(60);
    let place = format!("user:secret={0},user:me={0}", now.as_micros());
    let mut client = Client::connect(&router, "/events?stream=user:me", Some(&place)).await;
    client.expect(&Heard::Ready).await;
    assert_eq!(client.tags(1).await, ["hello"]);
    publish(&harness.sf, &ordered("secret", "hush")).await;
    publish(&harness.sf, &ordered("me", "bye")).await;
    harness.sf.drain().await.unwrap();
    assert_eq!(client.tags(1).await, ["bye"]);
}

#[tokio::test]
async fn requests_that_name_no_stream_too_many_or_nonsense_are_told_so() {
    let (_harness, router) = node().await;
    let many: String = (0..17).map(|n| format!("stream=user:{n}&")).collect();
    for (query, says) in [
        ("", "name at least one stream"),
        (&*many, "16 are the most"),
        ("stream=orders", "is no stream; write `user:`, `tenant:` or `topic:`"),
    ] {
        let request = Request::get(format!("/events?{query}")).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{query}");
        let body = axum::body::to_bytes(answer.into_body(), 10_000).await.unwrap();
        let problem: Value = serde_json::from_slice(&body).unwrap();
        assert!(problem["detail"].as_str().unwrap().contains(says), "{problem}");
    }
}

#[tokio::test]
async fn who_was_away_for_too_long_is_told_to_fetch_everything_and_hears_what_comes() {
    let harness = fresh::<Db>().await;
    let (sf, clock): (_, Clock) = harness.another_with_clock().await;
    let router = routes(&push(&sf));
    sf.declare().await.unwrap();
    say(&sf, 0..1).await;
    let mut client = Client::connect(&router, TAGS, None).await;
    client.expect(&Heard::Ready).await;
    let place = client.last_event_id.clone().unwrap();
    drop(client);

    clock.set_offset(Duration::from_secs(30 * 60 * 60));
    let mut client = Client::connect(&router, TAGS, Some(&place)).await;
    client.expect(&Heard::Ready).await;
    assert!(
        client.heard.is_empty(),
        "nothing has come since, however long ago that is"
    );
    drop(client);

    say(&sf, 1..2).await;
    sf.purge().await.unwrap();
    let mut client = Client::connect(&router, TAGS, Some(&place)).await;
    client.expect(&Heard::Ready).await;
    client.expect(&Heard::Resync).await;
    say(&sf, 2..3).await;
    assert_eq!(client.tags(1).await, ["2"]);
}

#[tokio::test]
async fn streams_are_purged_after_a_day_and_go_on_upwards() {
    let harness = fresh::<Db>().await;
    let (sf, clock): (_, Clock) = harness.another_with_clock().await;
    let router = routes(&push(&sf));
    sf.declare().await.unwrap();
    say(&sf, 0..3).await;
    let rows =
        async |table: &str| Db::count(&harness.admin, &format!("SELECT count(*) FROM {}", Db::table(table))).await;
    clock.set_offset(Duration::from_secs(24 * 60 * 60));
    sf.purge().await.unwrap();
    assert_eq!(
        (rows("entries").await, rows("streams").await),
        (3, 1),
        "they are kept for a day"
    );
    let mut client = Client::connect(&router, TAGS, None).await;
    client.expect(&Heard::Ready).await;
    let place = client.last_event_id.clone().unwrap();

    clock.set_offset(Duration::from_secs(26 * 60 * 60));
    let steadfast::Purged::Done(expired) = sf.purge().await.unwrap() else {
        panic!("nobody else purges");
    };
    assert_eq!((expired.entries, expired.streams), (3, 1));
    assert_eq!((rows("entries").await, rows("streams").await), (0, 0));
    say(&sf, 3..4).await;
    let (_, before) = place.split_once('=').unwrap();
    assert_eq!(client.tags(1).await, ["3"]);
    let place = client.last_event_id.clone().unwrap();
    let (_, after) = place.split_once('=').unwrap();
    assert!(
        after.parse::<i64>().unwrap() > before.parse().unwrap(),
        "{before} {after}"
    );
}

#[tokio::test]
async fn who_says_what_nobody_said_or_missed_too_much_is_told_to_fetch_everything() {
    let (harness, router) = node().await;
    let mut client = Client::connect(&router, TAGS, None).await;
    client.expect(&Heard::Ready).await;
    let place = client.last_event_id.clone().unwrap();
    drop(client);
    say_many(&harness.sf, 0..1_001, tagged).await;
    for place in ["17", "topic:tags=9007199254740991", "nonsense \u{7f}", &*place] {
        let Ok(_) = http::HeaderValue::from_str(place) else {
            continue;
        };
        let mut client = Client::connect(&router, TAGS, Some(place)).await;
        client.expect(&Heard::Ready).await;
        client.expect(&Heard::Resync).await;
        let place = client.last_event_id.clone().unwrap();
        let mut client = Client::connect(&router, TAGS, Some(&place)).await;
        client.expect(&Heard::Ready).await;
        assert!(client.heard.is_empty(), "it goes on from there");
    }
}

#[tokio::test]
async fn a_client_that_is_a_thousand_behind_is_told_each_of_them() {
    let (harness, router) = node().await;
    let mut live = Client::connect(&router, TAGS, None).await;
    live.expect(&Heard::Ready).await;
    let place = live.last_event_id.clone().unwrap();
    say_many(&harness.sf, 0..1_000, |tag| ordered("a", tag)).await;
    let mut late = Client::connect(&router, TAGS, Some(&place)).await;
    late.expect(&Heard::Ready).await;
    for client in [&mut late, &mut live] {
        assert_eq!(client.tags(1_000).await, texts(0..1_000));
    }
}

#[tokio::test]
async fn a_client_that_takes_less_than_comes_is_dropped_with_resync() {
    let (harness, router) = node().await;
    let mut client = Client::connect(&router, TAGS, None).await;
    client.expect(&Heard::Ready).await;
    say_many(&harness.sf, 0..2_000, tagged).await;
    let last = format!("SELECT last FROM {} WHERE stream = 'topic:tags'", Db::table("streams"));
    let last = format!("topic:tags={}", Db::count(&harness.admin, &last).await);
    // Where a new client begins is what the process has read: all of it, which is more than it keeps.
    eventually("everything is read", async || {
        let mut new = Client::connect(&router, TAGS, None).await;
        new.expect(&Heard::Ready).await;
        new.last_event_id.as_ref() == Some(&last)
    })
    .await;
    let mut heard = client.next().await;
    while let Some(Heard::Entry(_)) = heard {
        heard = client.next().await;
    }
    assert_eq!(heard, Some(Heard::Resync));
    assert_eq!(client.next().await, None, "it has to come back");
    let place = client.last_event_id.clone().unwrap();
    let mut client = Client::connect(&router, TAGS, Some(&place)).await;
    client.expect(&Heard::Ready).await;
    publish(&harness.sf, &tagged("next")).await;
    harness.sf.drain().await.unwrap();
    assert_eq!(client.tags(1).await, ["next"]);
}

#[tokio::test]
async fn a_client_that_hears_nothing_hears_that_the_connection_lives() {
    let harness = fresh::<Db>().await;
    let tell = |_: &Tagged, _: &mut steadfast::Pushes| {};
    let live = harness.sf.push("test.live").event(tell).heartbeat("20ms").start();
    let mut client = Client::connect(&routes(&live), TAGS, None).await;
    client.expect(&Heard::Ready).await;
    client.expect(&Heard::Heartbeat).await;
    client.expect(&Heard::Heartbeat).await;
}

#[tokio::test]
async fn a_client_has_to_come_back_after_a_while_and_is_asked_about_again() {
    let harness = fresh::<Db>().await;
    let tell = |_: &Tagged, _: &mut steadfast::Pushes| {};
    let live = harness
        .sf
        .push("test.live")
        .event(tell)
        .subscription_max("50ms")
        .start();
    let mut client = Client::connect(&routes(&live), TAGS, None).await;
    client.expect(&Heard::Ready).await;
    assert_eq!(client.next().await, None);
}

#[tokio::test]
async fn a_process_that_ends_lets_its_clients_go_and_asks_new_ones_to_come_back() {
    let (harness, router) = node().await;
    let mut client = Client::connect(&router, TAGS, None).await;
    client.expect(&Heard::Ready).await;
    harness.sf.stop();
    assert_eq!(client.next().await, None);

    // A browser would not come back by itself after an error.
    let request = Request::get(TAGS).body(Body::empty()).unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let body = axum::body::to_bytes(answer.into_body(), 10_000).await.unwrap();
    let text = std::str::from_utf8(&body).unwrap();
    assert!(text.starts_with(": SF") && text.contains("retry: 5000\n\n"), "{text}");
}

#[tokio::test]
async fn more_clients_than_a_process_may_serve_are_asked_to_come_back() {
    let harness = fresh::<Db>().await;
    let tell = |_: &Tagged, _: &mut steadfast::Pushes| {};
    let live = harness.sf.push("test.live").event(tell).subscribers_max(1).start();
    let router = routes(&live);
    let mut first = Client::connect(&router, TAGS, None).await;
    first.expect(&Heard::Ready).await;
    let mut second = Client::connect(&router, TAGS, None).await;
    second.expect(&Heard::Heartbeat).await;
    assert_eq!(second.next().await, None);
    drop(first);
    let mut third = Client::connect(&router, TAGS, None).await;
    third.expect(&Heard::Ready).await;
}

#[derive(Serialize, Deserialize)]
struct Odd(String);

impl Event for Odd {
    const TYPE: &'static str = "test.odd";
}

#[tokio::test]
async fn an_event_that_cannot_be_pushed_is_dead_and_harms_no_other() {
    let harness = fresh::<Db>().await;
    let live = harness
        .sf
        .push("test.live")
        .event(|Odd(what): &Odd, to| match &**what {
            "long" => to.push(StreamName::topic("tags"), &"x".repeat(20_000)),
            "twice" => {
                to.push(StreamName::topic("tags"), &1);
                to.push(StreamName::topic("tags"), &2);
            }
            "nobody" => {}
            what => to.push(StreamName::topic("tags"), &json!({ "tag": what })),
        })
        .start();
    harness.sf.declare().await.unwrap();
    let mut client = Client::connect(&routes(&live), TAGS, None).await;
    client.expect(&Heard::Ready).await;
    let mut ids = Vec::new();
    for what in ["long", "twice", "nobody", "fine"] {
        let id = harness
            .sf
            .transact(async |tx| Ok(tx.publish(&Odd(what.to_owned()))?))
            .await;
        ids.push(id.unwrap());
    }
    harness.sf.drain().await.unwrap();
    assert_eq!(client.tags(1).await, ["fine"]);
    for (id, expected, says) in [
        (ids[0], DeliveryState::Dead, "more than 16384"),
        (ids[1], DeliveryState::Dead, "named twice"),
        (ids[2], DeliveryState::Delivered, ""),
        (ids[3], DeliveryState::Delivered, ""),
    ] {
        let message = harness.sf.message(id).look().await.unwrap().unwrap();
        let delivery = &message.deliveries[0];
        assert_eq!(delivery.state, expected);
        let failure = delivery.last_failure.as_ref().map_or("", |failure| &failure.message);
        assert!(failure.contains(says), "{failure}");
    }
}

#[tokio::test]
async fn what_another_process_appends_is_heard_at_once() {
    let (harness, router) = node().await;
    let other = harness.another().await;
    let _push = push(&other);
    let mut client = Client::connect(&router, TAGS, None).await;
    client.expect(&Heard::Ready).await;
    // Twice, for the first one may have been found by the look with which the process begins.
    for tag in 0..2 {
        publish(&other, &tagged(tag)).await;
        other.drain().await.unwrap();
        assert_eq!(client.tags(1).await, [tag.to_string()]);
    }
}

/// A real server, for what needs a real socket.
async fn serve(router: Router) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

async fn open(address: std::net::SocketAddr, query: &str, origin: Option<&str>) -> Result<Socket, StatusCode> {
    use tokio_tungstenite::tungstenite::client::IntoClientRequest;
    let mut request = format!("ws://{address}/events?{query}").into_client_request().unwrap();
    if let Some(origin) = origin {
        request.headers_mut().insert("origin", origin.parse().unwrap());
    }
    match tokio_tungstenite::connect_async(request).await {
        Ok((socket, _)) => Ok(socket),
        Err(tokio_tungstenite::tungstenite::Error::Http(answer)) => Err(answer.status()),
        Err(error) => panic!("{error}"),
    }
}

/// The next message; `None`: the other side has closed.
async fn message(socket: &mut Socket) -> Option<Value> {
    use tokio_tungstenite::tungstenite::Message;
    loop {
        let next = tokio::time::timeout(PATIENCE, socket.next()).await;
        match next.expect("something comes, or the end")?.ok()? {
            Message::Text(text) => return Some(serde_json::from_str(&text).unwrap()),
            Message::Close(_) => return None,
            _ => {}
        }
    }
}

#[tokio::test]
async fn the_same_is_heard_over_websocket() {
    let (harness, router) = node().await;
    let address = serve(router).await;
    let mut socket = open(address, "stream=topic:tags", None).await.unwrap();
    assert_eq!(message(&mut socket).await.unwrap()["event"], "ready");
    say(&harness.sf, 0..2).await;
    let first = message(&mut socket).await.unwrap();
    assert_eq!(first["entry"]["data"]["tag"], "0");
    drop(socket);

    // It comes back after the first, and hears the second.
    let place = first["place"].as_str().unwrap().replace('=', "%3D");
    let query = format!("stream=topic:tags&last_event_id={place}");
    let mut socket = open(address, &query, Some(&format!("http://{address}"))).await.unwrap();
    assert_eq!(message(&mut socket).await.unwrap()["event"], "ready");
    assert_eq!(message(&mut socket).await.unwrap()["entry"]["data"]["tag"], "1");

    assert_eq!(
        open(address, "stream=topic:tags", Some("https://evil.example"))
            .await
            .err(),
        Some(StatusCode::FORBIDDEN)
    );
    assert_eq!(
        open(address, "stream=user:secret", None).await.err(),
        Some(StatusCode::FORBIDDEN)
    );
    assert_eq!(
        open(address, "stream=nonsense", None).await.err(),
        Some(StatusCode::BAD_REQUEST)
    );

    harness.sf.stop();
    assert_eq!(message(&mut socket).await, None, "the process ends");
    assert_eq!(
        open(address, "stream=topic:tags", None).await.err(),
        Some(StatusCode::SERVICE_UNAVAILABLE)
    );
}

#[tokio::test]
async fn a_client_that_says_nothing_any_more_or_too_much_is_let_go() {
    use futures_util::SinkExt;
    let harness = fresh::<Db>().await;
    let tell = |_: &Tagged, _: &mut steadfast::Pushes| {};
    let live = harness
        .sf
        .push("test.live")
        .event(tell)
        .subscribers_max(1)
        .heartbeat("50ms")
        .start();
    let address = serve(routes(&live)).await;
    // It reads nothing, so it answers no ping.
    let silent = open(address, "stream=topic:tags", None).await.unwrap();
    eventually("the silent one makes room", || async {
        open(address, "stream=topic:tags", None).await.is_ok()
    })
    .await;
    drop(silent);
    eventually("there is room", || async {
        let Ok(mut socket) = open(address, "stream=topic:tags", None).await else {
            return false;
        };
        assert_eq!(message(&mut socket).await.unwrap()["event"], "ready");
        socket.send("x".repeat(2_000).into()).await.unwrap();
        assert_eq!(message(&mut socket).await, None, "it has nothing to say");
        true
    })
    .await;
}
