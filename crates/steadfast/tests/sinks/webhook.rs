//! The webhook against servers on this machine.

#[path = "webhook/hostile.rs"]
mod hostile;
#[path = "webhook/server.rs"]
mod server;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use steadfast::breaker::BreakerState;
use steadfast::testing::{Arrived, Harness, SinkTrial, TestDatabase, eventually, try_sink};
use steadfast::{Breaker, Code, DeliveryState, Event, ListedDelivery, MessageId, Steadfast, Webhook, WebhookOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Barrier;

use hostile::HOSTILE;
use server::{Received, SECRET, Server, reserve};

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    number: usize,
}

impl Event for OrderPlaced {
    const TYPE: &'static str = "order.placed";
}

const TARGET: &str = "partner";

async fn ok(_: usize) -> Response {
    StatusCode::NO_CONTENT.into_response()
}

fn declare<Db: TestDatabase>(t: &Harness<Db>, webhook: WebhookOptions) {
    let webhook = webhook.build().unwrap_or_else(|error| panic!("{error:?}"));
    t.sf().sink(TARGET).deliver_to(webhook);
}

async fn publish<Db: TestDatabase>(t: &Harness<Db>, number: usize) -> MessageId {
    t.sf().declare().await.expect("the sink is declared");
    let publishing = t.sf().transact(async |tx| Ok(tx.publish(&OrderPlaced { number })?));
    publishing.await.expect("it is published")
}

async fn look<Db: TestDatabase>(sf: &Steadfast<Db>, id: MessageId) -> ListedDelivery {
    let message = sf.message(id).look().await.expect("it is read").expect("it is there");
    message.deliveries.into_iter().next().expect("a delivery")
}

/// Publishes an event, tries once to deliver it, and says what became of it.
async fn deliver<Db: TestDatabase>(t: &Harness<Db>, webhook: WebhookOptions) -> ListedDelivery {
    declare(t, webhook);
    let id = publish(t, 0).await;
    assert_eq!(t.sf().drain().await.expect("a database"), 1, "one attempt");
    look(t.sf(), id).await
}

fn code(delivery: &ListedDelivery) -> &str {
    let failure = delivery.last_failure.as_ref();
    failure.map_or("", |failure| &failure.code)
}

/// Whether a request is signed by whoever knows the secret, worked out from the specification alone.
fn is_signed_by(received: &Received, secret: &[u8]) -> bool {
    use base64::Engine;
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    let (id, timestamp) = (received.header("webhook-id"), received.header("webhook-timestamp"));
    mac.update(&[id.as_bytes(), b".", timestamp.as_bytes(), b".", &received.body].concat());
    let expected = base64::prelude::BASE64_STANDARD.encode(mac.finalize().into_bytes());
    let mut signatures = received.header("webhook-signature").split(' ');
    signatures.any(|signature| signature == format!("v1,{expected}"))
}

struct Trial(Server);

impl SinkTrial for Trial {
    type Sink = Webhook;

    fn sink(&self) -> Webhook {
        self.0.webhook().build().expect("a webhook")
    }

    async fn arrived(&self) -> Vec<Arrived> {
        self.0.received().iter().map(arrived).collect()
    }
}

fn arrived(received: &Received) -> Arrived {
    let attributes = received.headers.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix("ce-")?;
        Some((name.to_owned(), decode(value.to_str().expect("ASCII"))))
    });
    Arrived {
        attributes: attributes.collect(),
        payload: received.body.to_vec(),
    }
}

/// As the HTTP binding of CloudEvents reads a header.
fn decode(value: &str) -> String {
    let mut decoded = Vec::new();
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digits: Vec<_> = bytes.by_ref().take(2).collect();
                let digits = std::str::from_utf8(&digits).unwrap();
                decoded.push(u8::from_str_radix(digits, 16).expect("two digits"));
            }
            b'!'..=b'~' if byte != b'"' => decoded.push(byte),
            _ => panic!("{value:?} has {byte} in it, which is not encoded"),
        }
    }
    String::from_utf8(decoded).expect("UTF-8")
}

#[steadfast::test(sqlite, postgres)]
async fn a_webhook_holds_what_every_sink_holds(t: Harness<Db>) {
    try_sink(&t, &Trial(Server::start_tls(ok))).await;
}

#[steadfast::test(sqlite)]
async fn a_request_has_everything_that_the_other_side_needs(t: Harness<Db>) {
    let server = Server::start_tls(ok);
    let new = [7; 32];
    let webhook = server
        .webhook()
        .signed_by([new.to_vec(), b"not the old one, 24 bytes and more".to_vec()]);
    let delivery = deliver(&t, webhook).await;
    assert_eq!(delivery.state, DeliveryState::Delivered);
    assert_eq!(delivery.detail.as_deref(), Some("204 No Content"));

    let [received] = &server.received()[..] else {
        panic!("one request")
    };
    let id = delivery.id.to_string();
    assert_eq!(received.path, "/hooks?a=b");
    assert_eq!(received.header("host"), server.address().to_string());
    assert_eq!(received.header("content-type"), "application/json");
    assert_eq!(received.header("webhook-id"), id);
    assert_eq!(received.header("idempotency-key"), id);
    assert_eq!(received.header("ce-id"), id);
    assert_eq!(received.header("ce-type"), "order.placed");
    assert!(received.header("user-agent").starts_with("steadfast/"));
    assert_eq!(&received.body[..], br#"{"number":0}"#);

    let sent: u64 = received.header("webhook-timestamp").parse().expect("a number");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert!(now.as_secs().abs_diff(sent) < 60, "the time of the attempt");
    assert!(is_signed_by(received, &new));
    assert!(is_signed_by(received, b"not the old one, 24 bytes and more"));
    assert!(!is_signed_by(received, SECRET.as_bytes()));
}

#[test]
fn hostile_urls_are_refused() {
    let different: BTreeSet<_> = HOSTILE.iter().collect();
    assert_eq!(different.len(), HOSTILE.len());
    assert!(HOSTILE.len() >= 60);
    for url in HOSTILE {
        let refused = Webhook::to(*url).signed_by([SECRET]).build().expect_err(url);
        assert_eq!(refused.code(), Code::ConfigurationInvalid, "{url}");
        assert!(refused.to_string().contains("; "), "{url}: what to do? {refused}");
    }
    for url in [
        "https://example.org/hooks",
        "https://1.1.1.1",
        "HTTPS://[2606:4700::1111]:8443/?a=b",
    ] {
        let allowed = Webhook::to(url).signed_by([SECRET]).build();
        assert!(allowed.is_ok(), "{url}: {allowed:?}");
    }
}

/// Private addresses may be allowed. Credentials of the cloud are nobody's endpoint.
#[test]
fn no_permission_leads_to_the_credentials_of_a_cloud() {
    for url in HOSTILE.iter().filter(|url| {
        let hands_out = ["169", "a9fe", "fd00:ec2::254", "100.100.100.200"];
        hands_out.iter().any(|address| url.contains(address))
    }) {
        let refused = Webhook::to(*url).unsigned().allow_private().allow_plaintext().build();
        assert!(refused.is_err(), "{url}");
    }
}

#[steadfast::test(sqlite)]
async fn nobody_is_followed(t: Harness<Db>) {
    let elsewhere = Server::start(ok);
    let there = format!("http://{}/", elsewhere.address());
    let server = Server::start(move |_| {
        let redirect = (StatusCode::TEMPORARY_REDIRECT, [("location", there.clone())]);
        async move { redirect.into_response() }
    });
    let delivery = deliver(&t, server.webhook()).await;
    assert_eq!((delivery.state, code(&delivery)), (DeliveryState::Dead, "redirected"));
    assert_eq!((server.connections(), elsewhere.connections()), (1, 0));
}

#[steadfast::test(sqlite)]
async fn a_message_that_is_refused_is_dead_and_harms_no_neighbour(t: Harness<Db>) {
    let server = Server::start(|number| async move {
        match number {
            1 => (StatusCode::UNPROCESSABLE_ENTITY, "no such sku").into_response(),
            _ => StatusCode::OK.into_response(),
        }
    });
    declare(&t, server.webhook());
    let mut ids = Vec::new();
    for number in 0..3 {
        ids.push(publish(&t, number).await);
    }
    t.sf().drain().await.expect("a database");
    let mut states = Vec::new();
    for id in &ids {
        let delivery = look(t.sf(), *id).await;
        if let Some(failure) = &delivery.last_failure {
            assert_eq!(failure.code, "http_422");
            assert!(
                failure.message.ends_with("422 Unprocessable Entity: no such sku"),
                "{failure:?}"
            );
        }
        states.push(delivery.state);
    }
    states.sort_by_key(|state| *state == DeliveryState::Dead);
    let delivered = DeliveryState::Delivered;
    assert_eq!(states, [delivered, delivered, DeliveryState::Dead]);
    assert_eq!(server.connections(), 1, "a connection is used again");
}

#[steadfast::test(sqlite)]
async fn whoever_says_when_to_come_back_is_asked_then(t: Harness<Db>) {
    let server = Server::start(|number| async move {
        let seconds = "120".to_owned();
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(120));
        match number {
            0 => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", seconds)]).into_response(),
            1 => (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", date)]).into_response(),
            _ => StatusCode::OK.into_response(),
        }
    });
    let delivery = deliver(&t, server.webhook()).await;
    assert_eq!((delivery.state, code(&delivery)), (DeliveryState::Pending, "http_429"));
    for attempts in [1, 2] {
        assert_eq!(look(t.sf(), delivery.id).await.attempts, attempts);
        t.advance("110s");
        assert_eq!(t.sf().drain().await.expect("a database"), 0, "it is too early");
        t.advance("15s");
        assert_eq!(t.sf().drain().await.expect("a database"), 1);
    }
    assert_eq!(look(t.sf(), delivery.id).await.state, DeliveryState::Delivered);
    assert_eq!(server.received().len(), 3);
}

#[steadfast::test(sqlite)]
async fn an_endpoint_that_does_not_answer_may_have_it(t: Harness<Db>) {
    let server = Server::start(|_| std::future::pending());
    let delivery = deliver(&t, server.webhook().time_limit("1s")).await;
    assert_eq!(
        (delivery.state, code(&delivery)),
        (DeliveryState::Pending, "unconfirmed")
    );
    assert_eq!((delivery.attempts, server.received().len()), (1, 1));
}

#[steadfast::test(sqlite)]
async fn an_endpoint_that_hangs_up_may_have_it(t: Harness<Db>) {
    let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", server.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut socket, _) = server.accept().await.expect("a client");
        let _ = socket.read(&mut [0; 16 * 1024]).await;
    });
    let webhook = Webhook::to(url).unsigned().allow_private().allow_plaintext();
    let delivery = deliver(&t, webhook).await;
    assert_eq!(
        (delivery.state, code(&delivery)),
        (DeliveryState::Pending, "unconfirmed")
    );
    assert_eq!(delivery.attempts, 1);
}

/// It answers each connection once and hangs up: what was on its way there is sent again, and what was not, at once.
#[steadfast::test(sqlite)]
async fn an_endpoint_that_hangs_up_after_each_answer_gets_everything(t: Harness<Db>) {
    let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", server.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = server.accept().await.expect("a client");
            let _ = socket.read(&mut [0; 16 * 1024]).await;
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    declare(&t, Webhook::to(url).unsigned().allow_private().allow_plaintext());
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(publish(&t, number).await);
    }
    eventually("all of them are delivered", async || {
        t.sf().drain().await.expect("a database");
        t.advance("1m");
        t.sf().outbox_stats().await.expect("a database").backlog().number == 0
    })
    .await;
    for id in ids {
        assert_eq!(look(t.sf(), id).await.state, DeliveryState::Delivered);
    }
}

/// What became of an answer that never ends.
#[derive(Clone, Default)]
struct Endless {
    kilobytes: Arc<AtomicUsize>,
    hung_up: Arc<AtomicBool>,
}

/// Says when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Endless {
    /// What of it fits into the buffers between the two sides, and more.
    const KILOBYTES_MAX: usize = 32 * 1024;

    /// It goes on and on, or stops after the first kilobyte and does not end.
    fn answer(&self, status: StatusCode, is_huge: bool) -> Response {
        let (kilobytes, dropped) = (self.kilobytes.clone(), Dropped(self.hung_up.clone()));
        let chunks = stream::iter(0..).map(move |_: usize| {
            let _ = &dropped;
            kilobytes.fetch_add(1, Ordering::SeqCst);
            Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 1024]))
        });
        let body = match is_huge {
            true => Body::from_stream(chunks),
            false => Body::from_stream(chunks.take(1).chain(stream::pending())),
        };
        (status, body).into_response()
    }

    async fn is_left(&self) {
        eventually("the client hangs up", async || self.hung_up.load(Ordering::SeqCst)).await;
        let kilobytes = self.kilobytes.load(Ordering::SeqCst);
        assert!(kilobytes < Self::KILOBYTES_MAX, "{kilobytes} KiB were taken");
    }
}

#[steadfast::test(sqlite)]
async fn an_answer_without_end_confirms_the_message_all_the_same(t: Harness<Db>) {
    for is_huge in [true, false] {
        let endless = Endless::default();
        let side = endless.clone();
        let server = Server::start(move |_| std::future::ready(side.answer(StatusCode::OK, is_huge)));
        let name = format!("huge.{is_huge}");
        let webhook = server.webhook().build().expect("a webhook");
        t.sf().sink(&name).events("order.placed").deliver_to(webhook);
        publish(&t, 0).await;
        t.sf().drain().await.expect("a database");
        let stats = t.sf().outbox_stats().await.expect("a database");
        assert_eq!(
            (stats.backlog().number, stats.dead().number),
            (0, 0),
            "all is delivered"
        );
        endless.is_left().await;
    }
}

#[steadfast::test(sqlite)]
async fn of_a_huge_error_the_beginning_is_kept(t: Harness<Db>) {
    let endless = Endless::default();
    let side = endless.clone();
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    let server = Server::start(move |_| std::future::ready(side.answer(status, true)));
    let delivery = deliver(&t, server.webhook()).await;
    assert_eq!((delivery.state, code(&delivery)), (DeliveryState::Pending, "http_500"));
    let kept = delivery.last_failure.expect("a failure").message;
    assert_eq!(kept.matches('x').count(), 4 * 1024, "{kept}");
    endless.is_left().await;
}

#[steadfast::test(sqlite)]
async fn messages_wait_for_an_endpoint_that_is_away_and_spend_no_attempt(t: Harness<Db>) {
    let (socket, address) = reserve();
    let webhook = Webhook::to(format!("http://{address}/")).unsigned();
    let delivery = deliver(&t, webhook.allow_private().allow_plaintext()).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Pending, 0));
    assert_eq!(delivery.last_failure, None);
    assert_eq!(delivery.due_at, delivery.published_at, "it has been due all the time");
    assert_eq!(
        t.sf().drain().await.expect("a database"),
        0,
        "it is not tried again at once"
    );

    let server = Server::start_at(socket, ok);
    t.advance("2s");
    t.sf().drain().await.expect("a database");
    assert_eq!(look(t.sf(), delivery.id).await.state, DeliveryState::Delivered);
    assert_eq!(server.received().len(), 1);
}

#[steadfast::test(sqlite)]
async fn a_server_that_nobody_vouches_for_gets_nothing(t: Harness<Db>) {
    let server = Server::start_tls(ok);
    let url = format!("https://{}/", server.address());
    let delivery = deliver(&t, Webhook::to(url).signed_by([SECRET]).allow_private()).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Pending, 0));
    assert_eq!((server.connections(), server.received().len()), (1, 0));
}

#[steadfast::test(sqlite)]
async fn a_server_that_is_vouched_for_under_another_name_gets_nothing(t: Harness<Db>) {
    let server = Server::start_tls(ok);
    let url = format!("https://localhost:{}/", server.address().port());
    let webhook = Webhook::to(url).signed_by([SECRET]).allow_private();
    let delivery = deliver(&t, webhook.trust(server.certificate())).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Pending, 0));
    assert_eq!((server.connections(), server.received().len()), (1, 0));
}

#[steadfast::test(sqlite)]
async fn the_breaker_of_an_endpoint_opens_and_closes(t: Harness<Db>) {
    let works = Arc::new(AtomicBool::default());
    let is_working = works.clone();
    let server = Server::start(move |_| {
        let works = is_working.load(Ordering::SeqCst);
        async move {
            match works {
                true => StatusCode::OK.into_response(),
                false => StatusCode::BAD_GATEWAY.into_response(),
            }
        }
    });
    let breaker = t
        .sf()
        .breaker(Breaker::named("partner").consecutive_failures(2).open_for("30s"))
        .expect("a breaker");
    declare(&t, server.webhook().breaker(breaker.clone()));
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(publish(&t, number).await);
    }
    t.sf().drain().await.expect("a database");
    assert_eq!(breaker.state(), BreakerState::Open);
    assert_eq!(server.received().len(), 2, "the others were not sent");
    let mut attempts = 0;
    for id in &ids {
        attempts += look(t.sf(), *id).await.attempts;
    }
    assert_eq!(attempts, 2, "and spent no attempt");

    t.advance("10s");
    t.sf().drain().await.expect("a database");
    assert_eq!(server.received().len(), 2, "it is still open");

    works.store(true, Ordering::SeqCst);
    t.advance("25s");
    t.sf().drain().await.expect("a database");
    assert_eq!(breaker.state(), BreakerState::Closed);
    for id in ids {
        assert_eq!(look(t.sf(), id).await.state, DeliveryState::Delivered);
    }
    assert_eq!(server.received().len(), 7);
}

#[steadfast::test(sqlite)]
async fn an_endpoint_that_is_away_is_asked_once_for_all_that_wait(t: Harness<Db>) {
    let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}/", server.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::default());
    let counted = connections.clone();
    tokio::spawn(async move {
        // Whoever hangs up before TLS has begun was never there.
        while server.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    declare(&t, Webhook::to(url).unsigned().allow_private());
    for number in 0..50 {
        publish(&t, number).await;
    }
    t.sf().drain().await.expect("a database");
    // On a slow machine, another one may have been due meanwhile.
    let connections = connections.load(Ordering::SeqCst);
    assert!((1..10).contains(&connections), "{connections} calls for 50 messages");
    let stats = t.sf().outbox_stats().await.expect("a database");
    assert_eq!((stats.backlog().number, stats.dead().number), (50, 0));
}

/// Sends some messages to an endpoint that answers when so many are there, and says how many were there at the most.
async fn most_at_once<Db: TestDatabase>(t: &Harness<Db>, limit: usize, wanted: usize) -> usize {
    let [now, most] = [(); 2].map(|()| Arc::new(AtomicUsize::default()));
    let barrier = Arc::new(Barrier::new(wanted));
    let highest = most.clone();
    let server = Server::start(move |_| {
        let (now, most, barrier) = (now.clone(), highest.clone(), barrier.clone());
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            barrier.wait().await;
            // It takes its time: one too many would come meanwhile.
            tokio::time::sleep(Duration::from_millis(20)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            StatusCode::OK.into_response()
        }
    });
    declare(t, server.webhook().concurrency(limit));
    for number in 0..6 * wanted {
        publish(t, number).await;
    }
    let sf = t.sf().clone();
    let dispatching = tokio::spawn(async move { sf.dispatch().await });
    eventually("all of them are delivered", async || {
        t.sf().outbox_stats().await.expect("a database").backlog().number == 0
    })
    .await;
    t.sf().stop();
    dispatching.await.expect("no panic").expect("the dispatcher has run");
    assert_eq!(server.received().len(), 6 * wanted, "each was sent once");
    most.load(Ordering::SeqCst)
}

#[steadfast::test(sqlite)]
async fn an_endpoint_that_can_take_one_request_gets_one_at_a_time(t: Harness<Db>) {
    assert_eq!(most_at_once(&t, 1, 1).await, 1);
}

#[steadfast::test(sqlite)]
async fn an_endpoint_that_can_take_two_requests_gets_two_at_a_time(t: Harness<Db>) {
    assert_eq!(most_at_once(&t, 2, 2).await, 2);
}
