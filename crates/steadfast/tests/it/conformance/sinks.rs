//! Sinks: batches in, a verdict for each message out.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::{Confirmation, DeliveryState, Event, EventCx, Failure, FailureClass, Sink, Steadfast};
use tokio::sync::Semaphore;

use super::Db;
use super::letters::{ordered, say};
use super::queue::{Tagged, at_once, in_state, keep, publish, rows, run, stop, tagged};
use crate::harness::{Harness, eventually, fresh};

/// What the other side does with a batch.
#[derive(Clone, Copy)]
enum Answer {
    Hangs,
    Says(fn(&[EventCx]) -> Vec<Result<Confirmation, Failure>>),
}

/// Another side that answers as it is told to, then takes everything.
#[derive(Clone, Default)]
struct Side {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    /// The tags of each batch.
    batches: Arc<Mutex<Vec<Vec<String>>>>,
    gate: Option<Arc<Semaphore>>,
}

impl Side {
    fn says(answers: &[Answer]) -> Self {
        let side = Self::default();
        side.answers.lock().unwrap().extend(answers);
        side
    }

    fn tags(&self) -> Vec<String> {
        self.batches.lock().unwrap().concat()
    }
}

fn tag(event: &EventCx) -> String {
    let payload: serde_json::Value = serde_json::from_slice(event.payload()).unwrap();
    payload["tag"].as_str().unwrap_or_default().to_owned()
}

fn take(batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
    batch.iter().map(|event| Ok(Confirmation::new(tag(event)))).collect()
}

impl Sink for Side {
    async fn send(&self, batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
        self.batches.lock().unwrap().push(batch.iter().map(tag).collect());
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        let answer = self.answers.lock().unwrap().pop_front();
        match answer.unwrap_or(Answer::Says(take)) {
            Answer::Says(say) => say(batch),
            Answer::Hangs => std::future::pending().await,
        }
    }

    fn batch_max(&self) -> usize {
        5
    }
}

async fn with_sink(side: &Side) -> Harness<Db> {
    let harness = fresh::<Db>().await;
    let sink = harness.sf.sink("test.side").retry(at_once(3)).time_limit("200ms");
    sink.deliver_to(side.clone());
    harness.sf.declare().await.unwrap();
    harness
}

/// How the delivery of a message to the sink stands: its state, attempts and detail.
async fn stands(sf: &Steadfast<Db>, id: steadfast::MessageId) -> (DeliveryState, u32, Option<String>) {
    let message = sf.message(id).look().await.unwrap().unwrap();
    let delivery = message.deliveries.into_iter().next().unwrap();
    (delivery.state, delivery.attempts, delivery.detail)
}

#[tokio::test]
async fn what_comes_while_batches_are_on_their_way_goes_with_the_next() {
    let gate = Arc::new(Semaphore::new(0));
    let side = Side {
        gate: Some(gate.clone()),
        ..Side::default()
    };
    let harness = fresh::<Db>().await;
    harness.sf.sink("test.side").deliver_to(side.clone());
    harness.sf.declare().await.unwrap();
    let dispatching = run(&harness.sf);
    for batches in [1, 2] {
        publish(&harness.sf, &tagged("first")).await;
        let sent = || async { side.batches.lock().unwrap().len() == batches };
        eventually("a message alone goes at once", sent).await;
    }
    for _ in 0..8 {
        publish(&harness.sf, &tagged("later")).await;
    }
    assert_eq!(
        in_state(&harness, "leased").await,
        2,
        "others may have a hand for the rest"
    );
    gate.add_permits(10);
    eventually("all are delivered", || async { rows(&harness, "history").await == 10 }).await;
    let sizes: Vec<_> = side.batches.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!((&sizes[..2], sizes.iter().sum()), (&[1, 1][..], 10));
    assert!(sizes.len() < 10 && sizes.iter().all(|size| *size <= 5), "{sizes:?}");
    stop(&harness.sf, dispatching).await;
}

#[tokio::test]
async fn each_message_has_a_verdict_of_its_own() {
    fn refuse_one(batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
        let answer = |event: &EventCx| match &*tag(event) {
            "bad" => Err(Failure::definitive(
                FailureClass::Validation,
                "refused",
                "no such queue",
            )),
            tag => Ok(Confirmation::new(format!("place of {tag}"))),
        };
        batch.iter().map(answer).collect()
    }
    let side = Side::says(&[Answer::Says(refuse_one); 3]);
    let harness = with_sink(&side).await;
    let mut ids = Vec::new();
    for tag in ["a", "bad", "b"] {
        ids.push(say(&harness.sf, &tagged(tag)).await);
    }
    harness.sf.drain().await.unwrap();
    let place = |tag: &str| Some(format!("place of {tag}"));
    assert_eq!(
        stands(&harness.sf, ids[0]).await,
        (DeliveryState::Delivered, 1, place("a"))
    );
    assert_eq!(stands(&harness.sf, ids[1]).await, (DeliveryState::Dead, 1, None));
    assert_eq!(
        stands(&harness.sf, ids[2]).await,
        (DeliveryState::Delivered, 1, place("b"))
    );
}

#[tokio::test]
async fn a_sink_that_panics_hangs_or_says_nothing_is_asked_again() {
    let (panics, is_silent) = (Answer::Says(|_| panic!("it stumbles")), Answer::Says(|_| Vec::new()));
    let side = Side::says(&[panics, Answer::Hangs, is_silent]);
    let harness = with_sink(&side).await;
    let id = say(&harness.sf, &tagged("a")).await;
    harness.sf.drain().await.unwrap();
    assert_eq!(
        stands(&harness.sf, id).await,
        (DeliveryState::Delivered, 4, Some("a".to_owned()))
    );
    let message = harness.sf.message(id).look().await.unwrap().unwrap();
    let codes: Vec<_> = message.failures.iter().map(|failure| &*failure.code).collect();
    assert_eq!(codes, ["panicked", "unconfirmed", "unanswered"]);
}

#[tokio::test]
async fn times_when_the_other_side_is_away_are_not_counted() {
    fn away(batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
        batch.iter().map(|_| Err(Failure::snooze(Duration::ZERO))).collect()
    }
    let side = Side::says(&[Answer::Says(away); 10]);
    let harness = with_sink(&side).await;
    let id = say(&harness.sf, &tagged("a")).await;
    harness.sf.drain().await.unwrap();
    assert_eq!(
        stands(&harness.sf, id).await,
        (DeliveryState::Delivered, 1, Some("a".to_owned()))
    );
    assert_eq!(side.tags().len(), 11);
}

#[tokio::test]
async fn messages_of_one_ordering_key_are_sent_in_their_order() {
    fn fail(batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
        let fail = |_: &EventCx| Err(Failure::transient("not_now", "not now"));
        batch.iter().map(fail).collect()
    }
    let side = Side::says(&[Answer::Says(fail), Answer::Says(take), Answer::Says(fail)]);
    let harness = with_sink(&side).await;
    for tag in ["a", "b", "c"] {
        publish(&harness.sf, &ordered("k", tag)).await;
    }
    harness.sf.drain().await.unwrap();
    assert_eq!(side.tags(), ["a", "a", "b", "b", "c"]);
}

/// An event of another family.
#[derive(Serialize, Deserialize)]
struct Elsewhere {
    tag: String,
}

impl Event for Elsewhere {
    const TYPE: &'static str = "elsewhere.happened";
    const VERSION: u32 = 3;
}

#[tokio::test]
async fn a_sink_gets_what_fits_its_patterns_in_any_version() {
    let harness = fresh::<Db>().await;
    let (all, some) = (Side::default(), Side::default());
    harness.sf.sink("test.all").deliver_to(all.clone());
    let sink = harness
        .sf
        .sink("test.some")
        .events("elsewhere.*")
        .events("*")
        .events("elsewhere.happened");
    sink.deliver_to(some.clone());
    harness
        .sf
        .sink("test.none")
        .events("nowhere.*")
        .deliver_to(Side::default());
    harness.sf.declare().await.unwrap();
    publish(&harness.sf, &tagged("here")).await;
    let elsewhere = Elsewhere {
        tag: "elsewhere".to_owned(),
    };
    let publishing = harness.sf.transact(async |tx| Ok(tx.publish(&elsewhere)?));
    publishing.await.unwrap();
    assert_eq!(harness.sf.drain().await.unwrap(), 4);
    for side in [all, some] {
        let mut tags = side.tags();
        tags.sort_unstable();
        assert_eq!(tags, ["elsewhere", "here"], "once, however many patterns fit");
    }
}

#[tokio::test]
async fn a_sink_whose_name_or_pattern_is_not_usable_is_refused() {
    let harness = fresh::<Db>().await;
    harness.sf.reaction::<Tagged>("test.taken").run(keep);
    let refused = |name: &str, pattern: &str| {
        let sf = harness.sf.clone();
        let declare = || sf.sink(name).events(pattern).deliver_to(Side::default());
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(declare)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    };
    for (name, pattern, says) in [
        ("test.taken", "*", "SF305"),
        ("Test", "*", "SF303"),
        ("test.side", "order*", "write \"order.*\""),
    ] {
        let words = refused(name, pattern);
        assert!(words.contains(says), "{words}");
    }
}

#[tokio::test]
async fn the_attributes_of_an_event_are_those_of_its_envelope() {
    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Vec<(serde_json::Value, serde_json::Value)>>>);
    impl Sink for Told {
        async fn send(&self, batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
            let tell = |event: &EventCx| {
                let mut attributes: serde_json::Map<_, _> = event
                    .attributes()
                    .map(|(name, value)| (name.to_owned(), value.into_owned().into()))
                    .collect();
                attributes.insert("datacontenttype".to_owned(), "application/json".into());
                attributes.insert("data".to_owned(), serde_json::from_slice(event.payload()).unwrap());
                let told = (attributes.into(), event.cloud_event());
                self.0.lock().unwrap().push(told);
                Ok(Confirmation::silent())
            };
            batch.iter().map(tell).collect()
        }
    }
    let harness = fresh::<Db>().await;
    let told = Told::default();
    harness.sf.sink("test.told").deliver_to(told.clone());
    harness.sf.declare().await.unwrap();
    publish(&harness.sf, &ordered("k", "a")).await;
    harness.sf.drain().await.unwrap();
    let (mut attributes, envelope) = told.0.lock().unwrap().pop().unwrap();
    // A header is a text.
    attributes["dataversion"] = 1.into();
    assert_eq!(attributes, envelope);
}
