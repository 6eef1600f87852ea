//! What a source has to hold, whoever has written it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Harness;
use super::database::TestDatabase;
use super::wait::eventually;
use crate::broker::{Feed, Incoming, Source};
use crate::failure::Failure;
use crate::inbox::Envelope;
use crate::outbox::Event;
use crate::tx::Tx;

/// Another side that a [`Source`] is tried on, by [`try_source`]. Nobody else uses it meanwhile.
pub trait SourceTrial: Send + Sync {
    /// The source under trial.
    type Source: Source;

    /// A source from the other side, as a process opens it. What it does not acknowledge should come again within seconds.
    fn source(&self) -> Self::Source;

    /// Sends a message to the other side as somebody else would: with its body and its headers, and with its id and its type wherever
    /// the other side has them, or as attributes of CloudEvents.
    fn send(&self, message: &Incoming) -> impl Future<Output = ()> + Send;

    /// How many messages the other side still has that nobody has acknowledged.
    fn left(&self) -> impl Future<Output = usize> + Send;
}

/// What is sent on trial.
#[derive(Serialize, Deserialize)]
struct Tried {
    number: usize,
}

impl Event for Tried {
    const TYPE: &'static str = "source.tried";
}

/// How many messages are sent at a time, each twice: more than one batch of any lane.
const MANY: usize = 120;

/// How many are received at once.
const FEW: usize = 3;

/// How long the other side may take to hand something out that is there.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tries a source: sends messages, receives them, and lets them act. It panics at the first thing that does not hold.
///
/// - A message comes with its bytes, its id and its headers, whatever they are, and no more come at once than was asked for.
/// - What was not acknowledged comes again when its feed is closed, and when its process is gone; and it says so.
/// - What was acknowledged does not come again.
/// - Many that come twice act once each, and nothing is left on the other side.
pub async fn try_source<Db: TestDatabase, T: SourceTrial>(t: &Harness<Db>, trial: &T) {
    let sent = odd();
    for message in &sent {
        trial.send(message).await;
    }
    let source = trial.source();
    let mut feed = open(&source).await;
    let first = receive(&mut feed, sent.len()).await;
    for message in &sent {
        let came = first.iter().find(|came| came.body() == message.body());
        compare(
            &source,
            message,
            came.expect("everything that was sent has come, byte for byte"),
        );
    }
    assert!(
        first.iter().all(|message| !message.is_redelivered()),
        "what comes for the first time does not say that it came before"
    );
    let (done, open_ones) = first.split_at(sent.len() / 2);
    let receipts: Vec<_> = done.iter().map(Incoming::receipt).collect();
    feed.ack(&receipts).await.expect("it hears of what was handled");
    feed.close().await;

    let mut feed = open(&source).await;
    let second = receive(&mut feed, open_ones.len()).await;
    assert_eq!(
        bodies(&second),
        bodies(open_ones),
        "what was not acknowledged comes again, and nothing else"
    );
    assert!(
        second.iter().all(Incoming::is_redelivered),
        "what comes again says that it came before"
    );
    // A process that is gone says nothing.
    drop((feed, source));
    let source = trial.source();
    let mut feed = open(&source).await;
    let third = receive(&mut feed, open_ones.len()).await;
    assert_eq!(
        bodies(&third),
        bodies(open_ones),
        "what a process had that is gone comes again"
    );
    let receipts: Vec<_> = third.iter().map(Incoming::receipt).collect();
    feed.ack(&receipts).await.expect("it hears of what was handled");
    feed.close().await;
    eventually("nothing is left", || async { trial.left().await == 0 }).await;

    act_once(t, trial).await;
}

/// Messages that come twice act once each.
async fn act_once<Db: TestDatabase, T: SourceTrial>(t: &Harness<Db>, trial: &T) {
    let sf = t.another().await;
    let acted: Arc<Mutex<BTreeMap<usize, usize>>> = Arc::default();
    let acts = acted.clone();
    sf.reaction::<Tried>("source.act")
        .run_boxed(move |_: &mut Tx<Db>, event: Tried| {
            let mut acted = acts.lock().unwrap_or_else(PoisonError::into_inner);
            *acted.entry(event.number).or_default() += 1;
            Box::pin(async { Ok(()) })
        });
    sf.source("source.trial")
        .events(Tried::TYPE)
        .batch(50)
        .consume_from(trial.source());
    for number in (0..MANY).chain(0..MANY) {
        let message = Incoming::new(format!(r#"{{"number":{number}}}"#));
        trial
            .send(
                &message
                    .with_message_id(format!("many-{number}"))
                    .with_event_type(Tried::TYPE),
            )
            .await;
    }
    let dispatcher = sf.clone();
    let dispatching = tokio::spawn(async move { dispatcher.dispatch().await });
    eventually("all of them have acted, and nothing is left", || async {
        let count = acted.lock().unwrap_or_else(PoisonError::into_inner).len();
        count == MANY && trial.left().await == 0
    })
    .await;
    sf.stop();
    dispatching.await.expect("no panic").expect("the dispatcher has run");
    let acted = acted.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(acted.values().all(|times| *times == 1), "each acts once: {acted:?}");
    let stats = sf.inbox_stats().await.expect("it is counted");
    assert!(stats.records.number == MANY as u64, "each has its record");
}

/// Messages that make no sense, or are no text.
fn odd() -> Vec<Incoming> {
    let mut messages = Vec::new();
    for (number, body) in [
        &b"{}"[..],
        b"",
        b"\x00\xff\xfe no text",
        "ünï-cødé €".as_bytes(),
        b"a\r\nb",
        b"%41",
    ]
    .into_iter()
    .enumerate()
    {
        let mut bytes = number.to_string().into_bytes();
        bytes.extend_from_slice(body);
        let message = Incoming::new(bytes)
            .with_message_id(format!("odd-{number}"))
            .with_event_type("source.odd")
            .with_header("x-number", number.to_string())
            .with_header("x-words", "two words, and 100%");
        messages.push(message);
    }
    messages.push(
        Incoming::new(vec![b'x'; 200 * 1024])
            .with_message_id("odd-large")
            .with_event_type("source.odd"),
    );
    messages
}

fn compare(source: &impl Source, sent: &Incoming, came: &Incoming) {
    let envelope = Envelope::read(came, source.attributes(came)).expect("it can be read");
    assert_eq!(Some(envelope.id()), sent.message_id(), "its id");
    assert_eq!(Some(envelope.event_type()), sent.event_type(), "its type");
    for (name, value) in sent.headers() {
        assert_eq!(came.header(name), Some(&**value), "its header {name}");
    }
}

/// Which messages these are, in words that fit on a screen: how they begin, and how long they are.
fn bodies(messages: &[Incoming]) -> BTreeSet<String> {
    let words = |message: &Incoming| {
        let body = message.body();
        format!(
            "{:?} ({} bytes)",
            String::from_utf8_lossy(&body[..body.len().min(20)]),
            body.len()
        )
    };
    messages.iter().map(words).collect()
}

async fn open<S: Source>(source: &S) -> S::Feed {
    let opening = tokio::time::timeout(PATIENCE, source.open(100)).await;
    let opened: Result<_, Failure> = opening.expect("it opens in time");
    opened.expect("it opens")
}

/// Receives so many, a few at a time. What comes more than once counts once.
async fn receive(feed: &mut impl Feed, count: usize) -> Vec<Incoming> {
    let mut messages: Vec<Incoming> = Vec::new();
    let receiving = async {
        while messages.len() < count {
            let received = feed.receive(FEW).await.expect("it receives");
            assert!(received.len() <= FEW, "no more come at once than was asked for");
            for message in received {
                messages.retain(|other| other.body() != message.body());
                messages.push(message);
            }
        }
    };
    let received = tokio::time::timeout(PATIENCE, receiving).await;
    assert!(
        received.is_ok(),
        "{} of {count} messages have come within {PATIENCE:?}",
        messages.len()
    );
    messages
}
