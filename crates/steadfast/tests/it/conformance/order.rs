//! The order of events with one key, while publishers compete, handlers fail and dispatchers die.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use steadfast::{Dispatcher, EventCx, Failure, Steadfast};
use tokio::runtime::Runtime;

use super::Db;
use super::queue::{Tagged, at_once, ordered, publish, rows};
use crate::harness::{Harness, PoolSize, TestDatabase, eventually, fresh};

const PUBLISHERS: usize = 8;
const KEYS: usize = 100;
const ROUNDS: usize = 2;
const DISPATCHERS: usize = 4;
const KILLS: usize = 4;

/// When somebody began to publish, and when he knew that it was committed.
type Span = (Instant, Instant);

/// What handlers see of the world.
#[derive(Clone, Default)]
struct Witness(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// The keys that somebody works on right now.
    at_work: HashMap<String, String>,
    /// The first deliveries of each key, in order.
    first: HashMap<String, Vec<String>>,
    /// What went wrong.
    broken: Vec<String>,
}

/// Somebody works on a key. It ends by itself, also when his process is killed.
struct AtWork {
    witness: Witness,
    key: String,
}

impl Witness {
    fn begin(&self, cx: &EventCx, tag: &str) -> AtWork {
        let key = cx.ordering_key().unwrap().to_owned();
        let mut seen = self.0.lock().unwrap();
        if let Some(other) = seen.at_work.insert(key.clone(), tag.to_owned()) {
            seen.broken.push(format!("{other} and {tag} of {key} at once"));
        }
        let first = seen.first.entry(key.clone()).or_default();
        if !first.iter().any(|known| known == tag) {
            first.push(tag.to_owned());
        }
        AtWork {
            witness: self.clone(),
            key,
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.witness.0.lock().unwrap().at_work.remove(&self.key);
    }
}

/// A dispatcher that can be killed: it has a runtime of its own, and dies with all its tasks and connections.
fn dispatcher(harness: &Harness<Db>, witness: &Witness) -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let _here = runtime.enter();
    let builder = Steadfast::builder(Db::another_pool(harness, PoolSize::default()));
    let builder = builder.dispatcher(Dispatcher::default().lease(Duration::from_secs(1)).batch(40));
    let witness = witness.clone();
    runtime.spawn(async move {
        let sf = builder.build().await.unwrap();
        let reaction = sf.reaction::<Tagged>("test.hear").retry(at_once(50));
        reaction.run_outside(move |cx: &EventCx, event: Tagged| {
            let (cx, witness) = (cx.clone(), witness.clone());
            async move {
                let _at_work = witness.begin(&cx, &event.tag);
                tokio::time::sleep(Duration::from_millis(1)).await;
                match event.tag.ends_with('3') && cx.attempt() == 1 {
                    true => Err(Failure::transient("busy", "once more")),
                    false => Ok(()),
                }
            }
        });
        sf.dispatch().await.unwrap();
    });
    runtime
}

/// Publishes to every key, again and again, and says when.
async fn publish_to_all(sf: Steadfast<Db>, publisher: usize) -> Vec<(String, Span)> {
    let mut spans = Vec::new();
    for round in 0..ROUNDS {
        for key in 0..KEYS {
            // Not all in the same order.
            let key = (key * 7 + publisher * 13) % KEYS;
            let tag = format!("{key}/{publisher}-{round}");
            let began = Instant::now();
            publish(&sf, &ordered(&format!("k{key}"), &tag)).await;
            spans.push((tag, (began, Instant::now())));
        }
    }
    spans
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_one_key_come_one_after_another_in_the_order_of_their_commits_whoever_dies() {
    let harness = fresh::<Db>().await;
    let witness = Witness::default();
    let mut dispatchers: Vec<_> = (0..DISPATCHERS).map(|_| dispatcher(&harness, &witness)).collect();
    eventually("the target is declared", || async {
        rows(&harness, "targets").await == 1
    })
    .await;
    let mut publishers = Vec::new();
    for publisher in 0..PUBLISHERS {
        publishers.push(tokio::spawn(publish_to_all(harness.another().await, publisher)));
    }
    let all = PUBLISHERS * KEYS * ROUNDS;
    for kill in 1..=KILLS {
        let so_many = i64::try_from(all * kill / (KILLS + 1)).unwrap();
        eventually("some are delivered", || async {
            rows(&harness, "history").await >= so_many
        })
        .await;
        dispatchers.remove(0).shutdown_background();
        dispatchers.push(dispatcher(&harness, &witness));
    }
    let mut spans = HashMap::new();
    for publisher in publishers {
        spans.extend(publisher.await.unwrap());
    }
    eventually("all are delivered", || async {
        rows(&harness, "history").await == i64::try_from(all).unwrap()
    })
    .await;
    for dispatcher in dispatchers {
        dispatcher.shutdown_background();
    }

    let seen = witness.0.lock().unwrap();
    assert_eq!(seen.broken, Vec::<String>::new());
    assert_eq!(seen.first.len(), KEYS);
    for (key, tags) in &seen.first {
        assert_eq!(tags.len(), PUBLISHERS * ROUNDS, "{key}: {tags:?}");
        for (place, tag) in tags.iter().enumerate() {
            for later in &tags[place + 1..] {
                let (began, _) = spans[tag];
                let (_, committed) = spans[later];
                assert!(
                    committed >= began,
                    "{key}: {later} was committed before {tag} began: {tags:?}"
                );
            }
        }
    }
}
