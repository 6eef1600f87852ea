//! `steadfast queues`: jobs that share hands and limits, what stands in each, and how one is paused, resumed or drained.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use serde::Serialize;
use steadfast::ListedQueue;

use crate::Context;
use crate::change::{NamedChange, check_reason};
use crate::database::{Access, on_database};
use crate::error::{Exit, Result};
use crate::job_options::{NamedOptions, QueuesVerb};
use crate::output::{escape, relative};

/// A queue as it is shown to programs.
#[derive(Serialize)]
struct Shown {
    name: String,
    limit: Option<u32>,
    limit_per_key: Option<u32>,
    rate_count: Option<u32>,
    rate_seconds: Option<f64>,
    seen_at: Option<String>,
    known: bool,
    paused_at: Option<String>,
    paused_by: Option<String>,
    paused_reason: Option<String>,
    available: u64,
    scheduled: u64,
    running: u64,
    dead: u64,
    exact: bool,
    #[serde(skip)]
    cells: [String; 6],
}

impl Shown {
    fn new(queue: &ListedQueue) -> Self {
        let paused = queue.paused.as_ref();
        let seen = queue
            .seen_at
            .map_or("never".to_owned(), |at| relative(at, SystemTime::now()));
        let counts = [queue.available, queue.scheduled, queue.running, queue.dead];
        let [available, scheduled, running, dead] = counts.map(|count| count.to_string());
        Self {
            name: queue.name.clone(),
            limit: queue.limit,
            limit_per_key: queue.limit_per_key,
            rate_count: queue.rate.map(|(count, _)| count),
            rate_seconds: queue.rate.map(|(_, every)| every.as_secs_f64()),
            seen_at: queue.seen_at.map(steadfast::rfc3339),
            known: queue.is_known,
            paused_at: paused.map(|paused| steadfast::rfc3339(paused.at)),
            paused_by: paused.map(|paused| paused.by.clone()),
            paused_reason: paused.map(|paused| paused.reason.clone()),
            available: queue.available.number,
            scheduled: queue.scheduled.number,
            running: queue.running.number,
            dead: queue.dead.number,
            exact: !counts.iter().any(|count| count.is_capped),
            cells: [limits(queue), seen, available, scheduled, running, dead],
        }
    }

    fn row(&self) -> Vec<String> {
        let paused = match (&self.paused_by, &self.paused_reason) {
            (Some(by), Some(reason)) => format!("by {}: {}", escape(by), escape(reason)),
            _ => "no".to_owned(),
        };
        let mut row = vec![escape(&self.name)];
        row.extend(self.cells.clone());
        row.push(paused);
        row
    }
}

const HEADER: [&str; 8] = [
    "queue",
    "limits",
    "seen",
    "available",
    "scheduled",
    "running",
    "dead",
    "paused",
];

/// The limits of a queue, as people say them.
fn limits(queue: &ListedQueue) -> String {
    let all = [
        queue.limit.map(|limit| format!("{limit} at once")),
        queue.limit_per_key.map(|limit| format!("{limit} a key")),
        queue.rate.map(|(count, every)| format!("{count} in {every:?}")),
    ];
    let said: Vec<_> = all.into_iter().flatten().collect();
    match said.is_empty() {
        true => "none".to_owned(),
        false => said.join(", "),
    }
}

pub(crate) async fn run(context: &Context, verb: &QueuesVerb) -> Result<Exit> {
    match verb {
        QueuesVerb::List => list(context).await,
        QueuesVerb::Pause(options) => pause(context, options, true).await,
        QueuesVerb::Resume(options) => pause(context, options, false).await,
        QueuesVerb::Drain(options) => drain(context, options).await,
    }
}

async fn list(context: &Context) -> Result<Exit> {
    let queues = on_database!(context, Access::Read, builder => builder?.build().await?.list_queues().await?);
    let shown: Vec<_> = queues.iter().map(Shown::new).collect();
    context.output.records(&shown, &HEADER, Shown::row)?;
    Ok(Exit::Ok)
}

async fn pause(context: &Context, options: &NamedOptions, is_pause: bool) -> Result<Exit> {
    let (name, reason) = (&*options.name, &*options.because.reason);
    check_reason(reason)?;
    let operator = context.config.operator()?;
    on_database!(context, Access::Write, builder => {
        let sf = builder?.build().await?;
        match is_pause {
            true => sf.pause_queue(name, operator, reason).await?,
            false => sf.resume_queue(name, operator, reason).await?,
        }
    });
    let (done, meaning) = match is_pause {
        true => ("paused", "what runs ends; what is enqueued meanwhile waits"),
        false => ("resumed", "what has waited is run"),
    };
    let changed = NamedChange {
        name,
        done,
        operator,
        reason,
    };
    changed.show(context, meaning)
}

/// Pauses a queue and waits, until nothing of it runs or until Ctrl-C, which leaves it paused.
async fn drain(context: &Context, options: &NamedOptions) -> Result<Exit> {
    let (name, reason) = (&*options.name, &*options.because.reason);
    check_reason(reason)?;
    let operator = context.config.operator()?;
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let interrupt = is_interrupted.clone();
    let listening = tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            interrupt.store(true, Ordering::Relaxed);
        }
    });
    let mut last = None;
    let watch = |queue: &ListedQueue| {
        if last != Some(queue.running.number) {
            context.output.remark(&format!("{} running", queue.running));
            last = Some(queue.running.number);
        }
        match is_interrupted.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let drained = on_database!(context, Access::Write, builder => {
        builder?.build().await?.drain_queue(name, operator, reason, watch).await
    });
    listening.abort();
    let drained = drained?;
    let shown = Shown::new(&drained);
    context
        .output
        .records(std::slice::from_ref(&shown), &HEADER, Shown::row)?;
    let resume = format!("`steadfast queues resume {} --reason WHY` goes on", escape(name));
    if drained.running.number > 0 {
        context
            .output
            .remark(&format!("it was stopped, and the queue stays paused; {resume}"));
        return Ok(Exit::Failed);
    }
    context
        .output
        .remark(&format!("nothing of it runs, and it stays paused; {resume}"));
    Ok(Exit::Ok)
}
