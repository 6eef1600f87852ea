//! Producers that know nothing of us, in Python (`crates/shop/tests/foreign`), say three times what a slow handler works on.

mod nats;
mod rabbitmq;
mod redis;

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use steadfast::testing::{Harness, SourceTrial, TestDatabase, eventually};
use steadfast::{Envelope, Event, Failure, Incoming, Steadfast, Tx, sqlx};
use tokio::sync::Semaphore;

use super::order::{Described, Placed};
use super::source::run;

/// How many processes there are, and how often the producer says the same.
const THREE: usize = 3;

/// What a handler publishes.
const EVENTS: u32 = 100;

/// What the producer calls its message.
const ID: &str = "x-id";

/// Writes down what was published. Each of them once, as it is a reaction.
trait Told: TestDatabase {
    fn tell(tx: &mut Tx<Self>, text: String) -> impl Future<Output = Result<(), Failure>> + Send;
}

macro_rules! told {
    ($database:ty) => {
        impl Told for $database {
            async fn tell(tx: &mut Tx<Self>, text: String) -> Result<(), Failure> {
                let insert = sqlx::query("INSERT INTO told (text) VALUES ($1)").bind(text);
                insert.execute(tx.db()).await?;
                Ok(())
            }
        }
    };
}

told!(sqlx::Sqlite);
told!(sqlx::Postgres);

/// What the processes have in common.
#[derive(Clone, Default)]
struct Shared {
    received: Arc<AtomicUsize>,
    begun: Arc<AtomicUsize>,
    go_on: Arc<Gate>,
}

struct Gate(Semaphore);

impl Default for Gate {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

/// A process with a handler that publishes much, when it is let through.
fn consume<Db: Told>(sf: &Steadfast<Db>, source: impl steadfast::Source, shared: &Shared) {
    let (read, handle) = (shared.clone(), shared.clone());
    sf.reaction::<Placed>("orders.describe")
        .run_boxed(move |tx: &mut Tx<Db>, event: Placed| {
            let shared = handle.clone();
            Box::pin(async move {
                shared.begun.fetch_add(1, Ordering::SeqCst);
                shared.go_on.0.acquire().await?.forget();
                for number in 0..EVENTS {
                    let text = format!("{} {number}", event.order);
                    tx.publish(&Described { text })?;
                }
                Ok(())
            })
        });
    sf.reaction::<Described>("orders.tell")
        .run_boxed(|tx: &mut Tx<Db>, event: Described| Box::pin(Db::tell(tx, event.text)));
    sf.source("orders.foreign")
        .events(Placed::TYPE)
        .read_with(move |message: &Incoming| {
            read.received.fetch_add(1, Ordering::SeqCst);
            let id = message.header(ID).unwrap_or_default();
            Ok(Envelope::new(id, Placed::TYPE, message.body().clone()))
        })
        .consume_from(source);
}

/// Sends an order so many times, all within one call of a producer.
async fn produce(script: &'static str, place: Vec<String>, order: u32, times: usize) {
    let python =
        std::env::var("TEST_PYTHON").expect("TEST_PYTHON says where a Python is; `cargo xtask test` brings one");
    let line = format!(
        r#"{{"mode":"wrong","attributes":{{}},"headers":{{"{ID}":"{order}"}},"body":{:?}}}"#,
        format!(r#"{{"order":{order}}}"#).as_bytes()
    );
    let producing = tokio::task::spawn_blocking(move || {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../shop/tests/foreign");
        let mut command = Command::new(python);
        // It leaves nothing compiled in the checkout.
        command.arg("-B").arg(format!("{directory}/{script}")).args(place);
        let mut producer = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = producer.stdin.take().unwrap();
        for _ in 0..times {
            writeln!(stdin, "{line}").unwrap();
        }
        drop(stdin);
        producer.wait().unwrap()
    });
    assert!(producing.await.unwrap().success());
}

/// Lets three processes receive the same order three times while a handler works on it.
async fn publishes_once<Db: Told, T: SourceTrial>(t: &Harness<Db>, trial: &T, script: &'static str, place: &[&str]) {
    t.run("CREATE TABLE told (text TEXT NOT NULL)").await;
    let place: Vec<_> = place.iter().map(|&part| part.to_owned()).collect();
    let shared = Shared::default();
    let mut processes = Vec::new();
    for _ in 0..THREE {
        let sf = t.another().await;
        consume(&sf, trial.source(), &shared);
        processes.push((run(&sf), sf));
    }
    produce(script, place.clone(), 1, THREE).await;
    eventually("all were received, and one is worked on", || async {
        shared.received.load(Ordering::SeqCst) >= THREE && shared.begun.load(Ordering::SeqCst) == 1
    })
    .await;
    shared.go_on.0.add_permits(1_000);
    eventually("what it published is told", || async {
        t.count("told").await >= i64::from(EVENTS)
    })
    .await;
    for (running, sf) in processes {
        sf.stop();
        running.await.unwrap().unwrap();
    }

    // What was given back comes before what is sent now.
    let last = t.another().await;
    consume(&last, trial.source(), &shared);
    let running = run(&last);
    produce(script, place, 2, 1).await;
    eventually("the next one is told, and nothing is left", || async {
        t.count("told").await >= 2 * i64::from(EVENTS) && trial.left().await == 0
    })
    .await;
    last.stop();
    running.await.unwrap().unwrap();
    assert_eq!(
        t.count("SELECT count(DISTINCT text) FROM told").await,
        2 * i64::from(EVENTS)
    );
    assert_eq!(
        t.count("told").await,
        2 * i64::from(EVENTS),
        "exactly what two handlers have published"
    );
    assert_eq!(shared.begun.load(Ordering::SeqCst), 2, "one for each order");
}
