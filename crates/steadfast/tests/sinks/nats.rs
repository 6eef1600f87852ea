//! NATS JetStream, the real server.

use std::collections::BTreeMap;

use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::{self, stream};
use steadfast::testing::{Arrived, Harness, SinkTrial, eventually, try_sink};
use steadfast::{DeliveryState, Nats};

use super::chaos::{arrive_with_room, refuses_what_is_too_large, wait_for_room};
use super::line::Line;
use super::order::{all_are_delivered, look, publish};

/// Where the server is, as host and port.
fn server() -> String {
    let url = std::env::var("TEST_NATS_URL");
    let url = url.expect("TEST_NATS_URL says where NATS is; `cargo xtask test` brings one");
    url.trim_start_matches("nats://").to_owned()
}

/// A stream of its own.
pub(super) struct Stream {
    pub(super) name: String,
    server: String,
    stream: stream::Stream,
}

impl Stream {
    async fn create() -> Self {
        Self::create_at(server()).await
    }

    /// On the server at this address.
    pub(super) async fn create_at(server: String) -> Self {
        Self::create_with(server, stream::Config::default()).await
    }

    /// Changes how it is set.
    async fn resize(&self, config: stream::Config) {
        let client = async_nats::connect(&self.server).await.unwrap();
        let config = Self::named(&self.name, config);
        jetstream::new(client).update_stream(config).await.unwrap();
    }

    fn named(name: &str, config: stream::Config) -> stream::Config {
        stream::Config {
            name: name.to_owned(),
            subjects: vec![format!("{name}.>")],
            ..config
        }
    }

    async fn create_with(server: String, config: stream::Config) -> Self {
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        let client = async_nats::connect(&server).await.unwrap();
        let config = Self::named(&name, config);
        let stream = jetstream::new(client).create_stream(config).await.unwrap();
        Self { name, server, stream }
    }

    /// A sink to it, over this address.
    fn sink_at(&self, address: impl std::fmt::Display) -> Nats {
        let name = self.name.clone();
        let nats = Nats::at(&format!("nats://{address}")).unwrap();
        nats.stream(&self.name)
            .subject(move |event| format!("{name}.{}", event.event_type()))
    }

    /// The ids of what is there.
    pub(super) async fn ids(&self) -> Vec<String> {
        let id = |message: StreamMessage| message.headers.get("Nats-Msg-Id").unwrap().to_string();
        self.messages().await.into_iter().map(id).collect()
    }

    pub(super) async fn messages(&self) -> Vec<StreamMessage> {
        let last = self.stream.get_info().await.unwrap().state.last_sequence;
        let mut messages = Vec::new();
        for number in 1..=last {
            messages.push(self.stream.get_raw_message(number).await.unwrap());
        }
        messages
    }
}

/// A header, as somebody reads it who knows the binding of CloudEvents.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let [first, after @ ..] = rest {
        match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}

impl SinkTrial for Stream {
    type Sink = Nats;

    fn sink(&self) -> Nats {
        self.sink_at(&self.server)
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let arrived = |message: StreamMessage| Arrived {
            attributes: message
                .headers
                .iter()
                .filter_map(|(name, values)| {
                    let name = AsRef::<str>::as_ref(name).strip_prefix("ce-")?.to_owned();
                    Some((name, decoded(values.first()?.as_str())))
                })
                .collect::<BTreeMap<_, _>>(),
            payload: message.payload.to_vec(),
        };
        self.messages().await.into_iter().map(arrived).collect()
    }
}

#[steadfast::test(sqlite, postgres)]
async fn a_stream_gets_everything(t: Harness<Db>) {
    try_sink(&t, &Stream::create().await).await;
}

#[steadfast::test(sqlite)]
async fn a_message_has_its_id_and_the_delivery_its_place(t: Harness<Db>) {
    let stream = Stream::create().await;
    t.sf().sink("orders").deliver_to(stream.sink());
    t.sf().declare().await.unwrap();
    let id = publish(&t, 7).await;
    t.sf().drain().await.unwrap();
    let message = stream.messages().await.remove(0);
    let header = |name: &str| message.headers.get(name).map(|value| value.as_str().to_owned());
    assert_eq!(header("Nats-Msg-Id"), Some(id.to_string()));
    assert_eq!(header("Content-Type").as_deref(), Some("application/json"));
    assert_eq!(message.subject.as_str(), format!("{}.order.placed", stream.name));
    assert_eq!(&*message.payload, br#"{"order":7}"#);
    let delivery = look(&t, id).await.deliveries.remove(0);
    assert_eq!(delivery.detail, Some(format!("{} 1", stream.name)));
}

#[steadfast::test(sqlite)]
async fn a_subject_without_a_stream_is_a_failure_that_says_so_and_a_declared_one_is_made(t: Harness<Db>) {
    let name = format!("t{}", uuid::Uuid::now_v7().simple());
    let nats = || {
        let subject = format!("{name}.placed");
        let nats = Nats::at(&format!("nats://{}", server())).unwrap();
        nats.subject(move |_| subject.clone())
    };
    t.sf().sink("orders").deliver_to(nats());
    t.sf().declare().await.unwrap();
    let id = publish(&t, 7).await;
    t.sf().drain().await.unwrap();
    let message = look(&t, id).await;
    assert_eq!(message.deliveries[0].state, DeliveryState::Pending);
    let failure = &message.failures[0];
    assert_eq!(failure.code, "no_stream");
    assert!(
        failure.message.contains(&format!("{name}.placed")),
        "{}",
        failure.message
    );

    let other = t.another().await;
    let declaring = nats().declare_stream(&name, &[&format!("{name}.>")]);
    other.sink("orders").deliver_to(declaring);
    t.advance("1h");
    other.drain().await.unwrap();
    let delivery = look(&t, id).await.deliveries.remove(0);
    assert_eq!(
        (delivery.state, delivery.detail),
        (DeliveryState::Delivered, Some(format!("{name} 1")))
    );
}

#[steadfast::test(sqlite)]
async fn while_the_server_is_away_messages_wait_and_lose_no_attempt(t: Harness<Db>) {
    let stream = Stream::create().await;
    let line = Line::to(&server()).await;
    line.cut();
    t.sf().sink("orders").deliver_to(stream.sink_at(line.address()));
    t.sf().declare().await.unwrap();
    let mut ids = Vec::new();
    for order in 0..20 {
        ids.push(publish(&t, order).await);
    }
    t.sf().drain().await.unwrap();
    assert!(
        line.calls() <= 20,
        "it is not called more often than there are messages"
    );
    let waiting = look(&t, ids[0]).await;
    assert_eq!(
        (waiting.deliveries[0].state, waiting.failures.len()),
        (DeliveryState::Pending, 0)
    );

    line.mend();
    all_are_delivered(&t).await;
    for id in ids {
        let delivery = look(&t, id).await.deliveries.remove(0);
        assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Delivered, 1));
    }
    assert_eq!(stream.messages().await.len(), 20);
}

#[steadfast::test(sqlite)]
async fn messages_wait_for_a_full_stream_and_arrive_by_themselves(t: Harness<Db>) {
    let full = |bytes: i64| stream::Config {
        max_bytes: bytes,
        discard: stream::DiscardPolicy::New,
        ..stream::Config::default()
    };
    let stream = Stream::create_with(server(), full(1)).await;
    t.sf().sink("orders").deliver_to(stream.sink());
    t.sf().declare().await.unwrap();
    let id = publish(&t, 7).await;
    wait_for_room(&t, &[id]).await;
    stream.resize(full(1_000_000)).await;
    arrive_with_room(&t, &[id]).await;
    assert_eq!(look(&t, id).await.failures.len(), 0);
    assert_eq!(stream.ids().await, [id.to_string()]);
}

#[steadfast::test(sqlite)]
async fn what_is_larger_than_the_stream_takes_is_dead_and_harms_no_other(t: Harness<Db>) {
    let small = stream::Config {
        max_message_size: 10_000,
        ..stream::Config::default()
    };
    let stream = Stream::create_with(server(), small).await;
    let ids = refuses_what_is_too_large(&t, stream.sink()).await;
    assert_eq!(stream.messages().await.len(), ids.len());
}

#[steadfast::test(sqlite)]
async fn what_was_not_confirmed_is_sent_again_and_the_stream_knows_it(t: Harness<Db>) {
    let stream = Stream::create().await;
    let line = Line::to(&server()).await;
    let sink = t.sf().sink("orders").time_limit("500ms");
    sink.deliver_to(stream.sink_at(line.address()));
    t.sf().declare().await.unwrap();
    publish(&t, 1).await;
    t.sf().drain().await.unwrap();

    line.mute();
    let id = publish(&t, 2).await;
    t.sf().drain().await.unwrap();
    let message = look(&t, id).await;
    assert_eq!(message.failures[0].code, "unconfirmed");
    assert_eq!(stream.messages().await.len(), 2, "it has arrived all the same");

    line.mend();
    eventually("it is confirmed", || async {
        t.advance("1m");
        t.sf().drain().await.unwrap();
        look(&t, id).await.deliveries[0].state == DeliveryState::Delivered
    })
    .await;
    assert_eq!(stream.messages().await.len(), 2, "the stream has seen its id before");
}
