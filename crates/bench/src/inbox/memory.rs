//! How much memory a consumer has at the most while it works a long queue off, and while it works off one that is twice as long: what
//! waits is the broker's, and no more than a prefetch of it is ours.
//!
//! The consumer is a process of its own, a fresh one each time, since memory that was given back may stay with its process.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use sqlx::ConnectOptions;
use sqlx::postgres::PgPoolOptions;
use steadfast::{RabbitMq, Steadfast};

use super::{Desk, RabbitMqDesk, consume, send};
use crate::child::{self, Child};
use crate::command::order::{ORDER, Order};
use crate::error::{Context, Result};
use crate::measure::{Aim, Called, Case, Ready, Series, Stage};
use crate::meter::{Meter, Process, Used};
use crate::outbox::place::{Ground, Place};
use crate::outbox::postgres::OnServer;
use crate::server::Server;

/// Tells this program that it is a consumer, and what it has to do.
pub(crate) const VARIABLE: &str = "BENCH_INBOX_CONSUMER";

/// How long the note of an order is, so that a message has a kilobyte.
const NOTE_LENGTH: usize = 950;

/// What the allocator and the two connections vary by; a queue that is twice as long would add a hundred megabytes.
const GOAL: f64 = 1.1;

/// A few times are enough: there is no clock in it.
const ROUNDS_MAX: usize = 3;

/// Messages that are made at once when the queue is filled.
const EVENTS_AT_ONCE: usize = 20_000;

/// What the consumer is told.
#[derive(Serialize, Deserialize)]
struct Task {
    database: String,
    broker: String,
    queue: String,
    messages: usize,
}

pub(super) fn series(server: Server, url: String, backlog: usize) -> Series {
    let name = |messages: usize| format!("memory, {messages} messages of 1 kB waiting");
    let (once, twice) = (name(backlog), name(backlog * 2));
    let no_more = Aim::Memory {
        baseline: once.clone(),
        at_most: GOAL,
    };
    let cases = [Case::new(&once), Case::new(&twice).aiming(no_more)];
    let series = Series::new(Server::DATABASE, cases, async move |_| {
        let desk: Arc<RabbitMqDesk> = Arc::new(Desk::open(&server, &url, backlog).await?);
        let removed = desk.clone();
        let unmetered = Meter {
            server: None,
            process: Process::Nobodys,
        };
        Ok(Stage::default()
            .gets_ready(once, &desk, |desk, _| weigh(desk, 1))
            .gets_ready(twice, &desk, |desk, _| weigh(desk, 2))
            .counted_by(unmetered)
            .ends_with(async move { removed.remove().await }))
    });
    series.rounds_at_most(ROUNDS_MAX)
}

async fn weigh(desk: Arc<RabbitMqDesk>, times: usize) -> Result<Ready> {
    let messages = desk.messages * times;
    desk.fill(&[]).await?;
    let order = Order {
        note: "x".repeat(NOTE_LENGTH),
        ..ORDER.clone()
    };
    let mut left = messages;
    while left > 0 {
        let count = left.min(EVENTS_AT_ONCE);
        send::send(&desk.sink, &send::events(count, &order).await?).await?;
        left -= count;
    }
    let (broker, queue) = desk.broker.queue();
    let task = Task {
        database: desk.place.pool().connect_options().to_url_lossy().into(),
        broker: broker.to_owned(),
        queue: queue.to_string(),
        messages,
    };
    let task = serde_json::to_string(&task)?;
    let weighing = async move {
        let (child, line) = Child::start(VARIABLE, task).await?.says().await?;
        let took: f64 = line
            .trim()
            .parse()
            .context("the consumer did not say how long it took")?;
        let called = desk.judge(messages, messages, Duration::from_secs_f64(took)).await?;
        Ok(Called {
            // It is the memory of all of them.
            count: 1,
            used: Used {
                memory_bytes: child.memory_peak(),
                ..Used::default()
            },
            ..called
        })
    };
    Ok(weighing.boxed())
}

/// What the process of a consumer does: says how long it took, and stays until somebody has looked at it.
pub(crate) async fn work_off(task: &str) -> Result<()> {
    child::end_with_parent();
    let task: Task = serde_json::from_str(task)?;
    let pool = PgPoolOptions::new().connect_lazy(&task.database)?;
    let sf = Steadfast::new(pool).await?;
    let source = RabbitMq::at(&task.broker)?.queue(&task.queue);
    let took = consume::until::<OnServer>(&sf, source, 1, task.messages).await?;
    println!("{}", took.as_secs_f64());
    io::stdout().flush()?;
    std::future::pending().await
}
