//! What the log says of a broker that carries no notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use steadfast::{Ear, Event, Failure, Messenger, StreamName};
use tower::ServiceExt;

use crate::harness::{eventually, fresh};
use crate::{listen, logged};

/// Where nobody is.
const NOWHERE: &str = "a broker that is away";

/// How often each end tries in vain.
const TRIES: u32 = 3;

#[derive(serde::Serialize, serde::Deserialize)]
struct Placed;

impl Event for Placed {
    const TYPE: &'static str = "order.placed";
}

/// A broker that comes back after a while, and then is silent.
#[derive(Clone, Default)]
struct Away {
    told: Arc<AtomicU32>,
    listened: Arc<AtomicU32>,
}

impl Away {
    fn answer(tries: &AtomicU32) -> Result<(), Failure> {
        match tries.fetch_add(1, Ordering::SeqCst) {
            0..TRIES => Err(Failure::transient("away", "nobody is there")),
            _ => Ok(()),
        }
    }
}

impl Messenger for Away {
    type Ear = Silence;

    async fn tell(&self, _channel: &str, _notice: &str) -> Result<(), Failure> {
        Self::answer(&self.told)
    }

    async fn listen(&self, _channel: &str) -> Result<Silence, Failure> {
        Self::answer(&self.listened).map(|()| Silence)
    }

    fn address(&self) -> String {
        NOWHERE.to_owned()
    }
}

struct Silence;

impl Ear for Silence {
    async fn hear(&mut self) -> Result<String, Failure> {
        std::future::pending().await
    }
}

/// How many lines of this level have these words.
fn lines(level: &str, words: &str) -> usize {
    let text = logged();
    let lines = text.lines().filter(|line| line.contains(NOWHERE));
    lines
        .filter(|line| line.contains(level) && line.contains(words))
        .count()
}

#[tokio::test]
async fn a_broker_that_is_away_is_worth_one_line_for_each_way_and_one_when_it_is_back() {
    listen();
    let harness = fresh::<sqlx::Postgres>().await;
    let broker = Away::default();
    let live = harness.sf.push("live").across(broker.clone());
    let live = live.event(|_: &Placed, to| to.push(StreamName::topic("orders"), &()));
    let live = live.start();
    harness.sf.declare().await.unwrap();
    let route = live.route(async |_| Ok(vec![StreamName::topic("orders")]));
    let request = Request::get("/").body(Body::empty()).unwrap();
    // Somebody follows for as long as the answer is kept.
    let _answer = Router::<()>::new().route("/", route).oneshot(request).await.unwrap();
    harness.sf.transact(async |tx| Ok(tx.publish(&Placed)?)).await.unwrap();
    harness.sf.drain().await.unwrap();

    eventually("it is back", || async {
        lines("INFO", "are told of what is pushed again") > 0 && lines("INFO", "is heard of again") > 0
    })
    .await;
    assert_eq!(lines("WARN", "cannot be told"), 1);
    assert_eq!(lines("WARN", "nothing is heard"), 1);
    assert_eq!(broker.told.load(Ordering::SeqCst), TRIES + 1, "it is told once");
    assert_eq!(broker.listened.load(Ordering::SeqCst), TRIES + 1);
}
