//! What a sink has to hold, whoever has written it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use serde::{Deserialize, Serialize};

use super::Harness;
use super::database::TestDatabase;
use super::wait::eventually;
use crate::broker::{Confirmation, Sink};
use crate::failure::Failure;
use crate::outbox::{DeliveryState, Event, EventCx, MessageId};
use crate::steadfast::Steadfast;

/// Another side that a [`Sink`] is tried on, by [`try_sink`].
pub trait SinkTrial: Send + Sync {
    /// The sink under trial.
    type Sink: Sink;

    /// A sink to the other side, as a process opens it.
    fn sink(&self) -> Self::Sink;

    /// Everything that has arrived there, in its order, read as somebody else would.
    fn arrived(&self) -> impl Future<Output = Vec<Arrived>> + Send;
}

/// A message that has arrived on the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The attributes of its envelope, by their names in CloudEvents 1.0 and as they were before they became headers.
    pub attributes: BTreeMap<String, String>,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// What is sent on trial.
#[derive(Clone, Serialize, Deserialize)]
struct Tried {
    number: usize,
    key: Option<String>,
    text: String,
}

impl Event for Tried {
    const TYPE: &'static str = "sink.tried";

    fn ordering_key(&self) -> Option<String> {
        self.key.clone()
    }
}

/// What is sent twice.
#[derive(Serialize, Deserialize)]
struct Again;

impl Event for Again {
    const TYPE: &'static str = "sink.again";
}

/// How many messages are sent at a time: more than a batch of any sink.
const MANY: usize = 250;

/// Tries a sink: sends messages to it and looks at what has arrived. It panics at the first thing that does not hold.
///
/// - A message arrives with every attribute of its envelope and the bytes of its payload, whatever they are.
/// - Many arrive, each of them, and nothing else.
/// - Messages of one ordering key arrive in the order in which they were published.
/// - One that is sent again has the same id.
pub async fn try_sink<Db: TestDatabase, T: SinkTrial>(t: &Harness<Db>, trial: &T) {
    let sf = t.another().await;
    sf.sink("sink.trial").events(Tried::TYPE).deliver_to(trial.sink());
    sf.sink("sink.again")
        .events(Again::TYPE)
        .deliver_to(Twice(trial.sink()));
    sf.declare().await.expect("the sinks are declared");

    let odd = [
        "",
        "plain",
        "ünï-cødé €",
        "a \"quoted\" 100%",
        "two\r\nlines: yes",
        "\u{1f980}",
    ];
    let mut published = Vec::new();
    for number in 0..MANY {
        let text = match number {
            0 => "x".repeat(200 * 1024),
            _ => odd[number % odd.len()].to_owned(),
        };
        let key = (number % 3 > 0).then(|| format!("key {} {}", number % 7, odd[number % 7 % odd.len()]));
        published.push(publish(t, Tried { number, key, text }).await);
    }
    let dispatcher = sf.clone();
    let dispatching = tokio::spawn(async move { dispatcher.dispatch().await });
    delivered(&sf).await;

    let arrived = trial.arrived().await;
    let ids: Vec<_> = arrived.iter().map(|message| &*message.attributes["id"]).collect();
    let wanted: BTreeSet<_> = published.iter().map(|(id, _)| id.to_string()).collect();
    let found: BTreeSet<_> = ids.iter().map(|id| (*id).to_owned()).collect();
    assert_eq!(
        found, wanted,
        "everything that was published has arrived, and nothing else"
    );
    let mut last = BTreeMap::new();
    for (id, event) in &published {
        let place = ids
            .iter()
            .position(|arrived| *arrived == id.to_string())
            .expect("it has arrived");
        let message = &arrived[place];
        let read: Tried = serde_json::from_slice(&message.payload).expect("the payload is what was published");
        assert_eq!((read.number, read.text), (event.number, event.text.clone()));
        check_attributes(t, *id, message).await;
        if let Some(key) = &event.key {
            let before = last.insert(key.clone(), place);
            assert!(
                before < Some(place),
                "{key:?}: number {} came out of order",
                event.number
            );
        }
    }
    send_again(&sf, trial).await;
    sf.stop();
    dispatching.await.expect("no panic").expect("the dispatcher has run");
}

/// Waits until nothing is left to do, and nothing has died.
async fn delivered<Db: TestDatabase>(sf: &Steadfast<Db>) {
    eventually("everything is delivered", || async {
        let stats = sf.outbox_stats().await.expect("it is counted");
        assert_eq!(stats.dead().number, 0, "no message of a trial is refused: {stats:?}");
        stats.backlog().number == 0
    })
    .await;
}

async fn publish<Db: TestDatabase>(t: &Harness<Db>, event: Tried) -> (MessageId, Tried) {
    let publishing = t.sf().transact(async |tx| Ok(tx.publish(&event)?));
    (publishing.await.expect("it is published"), event)
}

/// The attributes are those of the envelope, and the delivery has what the other side confirmed.
async fn check_attributes<Db: TestDatabase>(t: &Harness<Db>, id: MessageId, arrived: &Arrived) {
    let message = t
        .sf()
        .message(id)
        .look()
        .await
        .expect("it is read")
        .expect("it is there");
    let attribute = |name: &str| arrived.attributes.get(name).map(String::as_str);
    assert_eq!(attribute("specversion"), Some("1.0"));
    assert_eq!(attribute("type"), Some(Tried::TYPE));
    assert_eq!(attribute("time"), Some(&*crate::clock::rfc3339(message.published_at)));
    assert_eq!(attribute("dataversion"), Some("1"));
    assert_eq!(attribute("partitionkey"), message.ordering_key.as_deref());
    assert_eq!(attribute("correlationid"), message.correlation_id.as_deref());
    assert!(
        attribute("source").is_some_and(|source| !source.is_empty()),
        "who says it"
    );
    assert_eq!(message.deliveries[0].state, DeliveryState::Delivered);
}

/// What is sent again has the id that it had.
async fn send_again<Db: TestDatabase, T: SinkTrial>(sf: &Steadfast<Db>, trial: &T) {
    let known: BTreeSet<_> = trial.arrived().await.iter().map(id_of).collect();
    let publishing = sf.transact(async |tx| Ok(tx.publish(&Again)?));
    let id = publishing.await.expect("it is published").to_string();
    delivered(sf).await;
    let new: BTreeSet<_> = trial.arrived().await.iter().map(id_of).collect();
    let new: Vec<_> = new.difference(&known).collect();
    assert_eq!(new, [&id], "a message that is sent again is known by its id");
}

fn id_of(arrived: &Arrived) -> String {
    arrived.attributes["id"].clone()
}

/// Sends everything twice, as somebody does who did not hear the confirmation.
struct Twice<S>(S);

impl<S: Sink> Sink for Twice<S> {
    async fn send(&self, batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
        self.0.send(batch).await;
        self.0.send(batch).await
    }
}
