//! Brokers that are there to be killed, and what has to hold when they are.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use steadfast::testing::{Harness, TestDatabase, eventually};
use steadfast::{DeliveryState, LookedMessage, MessageId, Sink, Steadfast};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::sleep;

use super::order::{Described, Placed, look, publish, publish_all};

/// How long a broker may take to come back: RabbitMQ needs five seconds, and many times that on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// How long messages may wait when the broker is back. A batch that was on its way may have to give up first, which takes ten seconds, and
/// so may others that went out before the broker had its queues again.
const DELIVERED_WITHIN: Duration = Duration::from_secs(180);

/// The longest pause that a sink makes when its broker is away.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How often a message is tried in five minutes with pauses of 1, 2, 4, 8 and 16 seconds, and then of 15 to 30.
pub(crate) const TRIES_IN_FIVE_MINUTES: RangeInclusive<u64> = 10..=26;

const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How many messages there are when the broker is killed, and how many are published while it is away.
const MESSAGES: u32 = 2_000;
const MESSAGES_WHILE_AWAY: u32 = 50;

/// A broker that comes back by itself, on the same data, whenever it is killed. One test at a time has it.
pub(crate) struct Victim {
    pub(crate) url: String,
    /// Where its data is, and the number of its process.
    pub(crate) home: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Victim {
    /// The broker of this name, as it stands in the variables.
    pub(crate) async fn take(name: &str, turn: &'static Mutex<()>) -> Self {
        let variable = |what: &str| {
            let variable = format!("CHAOS_{name}_{what}");
            let value = std::env::var(&variable);
            value.unwrap_or_else(|_| panic!("{variable} says where a {name} to kill is; `cargo xtask test` brings one"))
        };
        Self {
            url: variable("URL"),
            home: variable("HOME").into(),
            _turn: turn.lock().await,
        }
    }

    /// Its host and port.
    pub(crate) fn host(&self) -> &str {
        let after = self.url.split("://").last().unwrap();
        let after = after.split('@').next_back().unwrap();
        after.split('/').next().unwrap()
    }

    fn pid(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.home.join("server.pid")).ok()?;
        text.trim().parse().ok()
    }

    /// `kill -9`. It says when another process of it takes connections.
    pub(crate) fn kill(&self) -> impl Future<Output = ()> {
        let pid = self.pid().expect("a broker that runs");
        let killed = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        assert!(killed.unwrap().success(), "it was there to be killed");
        async move {
            let start = Instant::now();
            while self.pid() == Some(pid) || tokio::net::TcpStream::connect(self.host()).await.is_err() {
                assert!(start.elapsed() < BACK_WITHIN, "the broker did not come back");
                sleep(LOOK_AGAIN).await;
            }
        }
    }
}

/// The first of these messages that was not delivered, with what became of it so far.
async fn first_that_waits<Db: TestDatabase>(t: &Harness<Db>, ids: &[MessageId]) -> Option<LookedMessage> {
    for id in ids {
        let message = look(t, *id).await;
        if message.deliveries[0].state != DeliveryState::Delivered {
            return Some(message);
        }
    }
    None
}

/// Kills a broker while messages flow to it: all of them arrive, without anybody's help, and only what has an unconfirmed attempt
/// in its history may be there twice. `arrived` says which ids are at the broker, as often as they are.
pub(crate) async fn outlives_a_kill<Db: TestDatabase>(
    t: &Harness<Db>,
    victim: &Victim,
    sink: impl Sink,
    arrived: impl AsyncFnOnce() -> Vec<String>,
) {
    // The lease outlasts the pauses that are skipped below.
    t.sf().sink("orders").lease("1h").deliver_to(sink);
    t.sf().declare().await.unwrap();
    let mut ids = publish_all(t, 0..MESSAGES / 2).await;
    ids.extend(publish_all(t, MESSAGES / 2..MESSAGES).await);
    let dispatching = dispatch(t.sf());
    eventually("some have arrived", || async { backlog(t).await < u64::from(MESSAGES) }).await;
    let back = victim.kill();
    assert!(backlog(t).await > 0, "some were still to be sent");
    for order in 0..MESSAGES_WHILE_AWAY {
        ids.push(publish(t, MESSAGES + order).await);
    }
    back.await;

    let start = Instant::now();
    while backlog(t).await > 0 {
        if start.elapsed() > DELIVERED_WITHIN {
            panic!("messages still wait: {:#?}", first_that_waits(t, &ids).await);
        }
        t.advance(PAUSE_MAX);
        // The dispatcher looks at the clock now and then.
        sleep(Duration::from_secs(1)).await;
    }
    t.sf().stop();
    dispatching.await.unwrap().unwrap();

    let mut there: BTreeMap<String, usize> = BTreeMap::new();
    for id in arrived().await {
        *there.entry(id).or_default() += 1;
    }
    for id in &ids {
        let message = look(t, *id).await;
        assert_eq!(message.deliveries[0].state, DeliveryState::Delivered);
        let has_cause = message.failures.iter().any(|failure| failure.code == "unconfirmed");
        let times = there.remove(&id.to_string()).unwrap_or(0);
        assert!(times > 0, "{id} is lost: {:?}", message.failures);
        assert!(
            times == 1 || has_cause,
            "{id} is there {times} times: {:?}",
            message.failures
        );
    }
    assert!(there.is_empty(), "nobody has published {there:?}");
}

async fn backlog<Db: TestDatabase>(t: &Harness<Db>) -> u64 {
    t.sf().outbox_stats().await.unwrap().backlog().number
}

/// Delivers as a service does: many in a batch.
fn dispatch<Db: TestDatabase>(sf: &Steadfast<Db>) -> tokio::task::JoinHandle<steadfast::Result<()>> {
    let sf = sf.clone();
    tokio::spawn(async move { sf.dispatch().await })
}

/// Lets five minutes go by while the broker takes nothing. Messages wait and lose nothing; they are tried again now and then, and
/// not all the time.
pub(crate) async fn wait_for_room<Db: TestDatabase>(t: &Harness<Db>, ids: &[MessageId]) {
    let mut attempts = 0;
    for _ in 0..150 {
        t.advance("2s");
        attempts += t.sf().drain().await.unwrap();
    }
    let most = TRIES_IN_FIVE_MINUTES.end() * ids.len() as u64;
    assert!(
        (*TRIES_IN_FIVE_MINUTES.start()..=most).contains(&attempts),
        "{attempts} attempts in five minutes"
    );
    for id in ids {
        assert_eq!(look(t, *id).await.deliveries[0].state, DeliveryState::Pending);
    }
}

/// There is room again: messages arrive by themselves, and have spent no attempt on the wait.
pub(crate) async fn arrive_with_room<Db: TestDatabase>(t: &Harness<Db>, ids: &[MessageId]) {
    t.advance(PAUSE_MAX);
    t.sf().drain().await.unwrap();
    for id in ids {
        let message = look(t, *id).await;
        let (delivery, failures) = (&message.deliveries[0], message.failures.len() as u32);
        assert_eq!(
            (delivery.state, delivery.attempts),
            (DeliveryState::Delivered, failures + 1)
        );
    }
}

/// Sends a message that is too large for the broker, among others: it is dead at once and says why, and the others arrive.
pub(crate) async fn refuses_what_is_too_large<Db: TestDatabase>(t: &Harness<Db>, sink: impl Sink) -> Vec<MessageId> {
    t.sf().sink("orders").deliver_to(sink);
    t.sf().declare().await.unwrap();
    let publishing = t.sf().transact(async |tx| {
        let mut ids = Vec::new();
        for order in 0..10 {
            ids.push(tx.publish(&Placed { order })?);
        }
        let text = "x".repeat(100_000);
        let large = tx.publish(&Described { text })?;
        for order in 10..20 {
            ids.push(tx.publish(&Placed { order })?);
        }
        Ok((ids, large))
    });
    let (ids, large) = publishing.await.unwrap();
    let dispatching = dispatch(t.sf());
    eventually("nothing is left to do", || async { backlog(t).await == 0 }).await;
    t.sf().stop();
    dispatching.await.unwrap().unwrap();
    let message = look(t, large).await;
    let delivery = &message.deliveries[0];
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Dead, 1));
    assert_eq!(message.failures[0].code, "too_large");
    for id in &ids {
        let message = look(t, *id).await;
        assert_eq!(message.deliveries[0].state, DeliveryState::Delivered);
        assert_eq!(message.failures.len(), 0);
    }
    ids
}
