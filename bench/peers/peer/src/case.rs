//! The cases. Each has a counterpart of the same meaning in `crates/bench/src/jobs`.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::{Order, Peer, Result, ready};

/// How long anything may take before something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long it may take to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// Jobs of one call when the table is filled.
const JOBS_AT_ONCE: usize = 1_000;

/// Jobs that are worked on before it counts, so that connections are open, statements prepared and code compiled.
const JOBS_FOR_WARMTH: usize = 1_000;

/// Jobs that each caller enqueues before it counts.
const CALLS_FOR_WARMTH: usize = 10;

/// Jobs that are enqueued one after another before their latency counts.
const TICKS_FOR_WARMTH: usize = 10;

/// Between two jobs whose latency is measured. It varies, or it would keep step with whoever polls.
const GAP_MILLISECONDS: std::ops::Range<u64> = 40..60;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// One job a transaction, by many callers at once. Nobody works on them.
    Enqueue,
    /// Jobs that have piled up, to a handler that does nothing: from the start of the worker to the last call of the handler.
    Drain,
    /// From the call that enqueues to the first line of the handler, while nothing else is to do.
    Latency,
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "enqueue" => Ok(Self::Enqueue),
            "drain" => Ok(Self::Drain),
            "latency" => Ok(Self::Latency),
            _ => Err(format!("{text:?} is no case; write enqueue, drain or latency")),
        }
    }
}

/// What came out.
#[derive(Serialize)]
pub(crate) struct Figures {
    count: usize,
    seconds: f64,
    /// Of each job, where it means something.
    latencies_us: Vec<u64>,
}

pub(crate) async fn measure<P: Peer>(peer: Arc<P>, case: Case, amount: usize, callers: usize) -> Result<Figures> {
    match case {
        Case::Enqueue => {
            enqueue(&peer, callers * CALLS_FOR_WARMTH, callers).await?;
            ready().await?;
            enqueue(&peer, amount, callers).await
        }
        Case::Drain => {
            fill(&*peer, JOBS_FOR_WARMTH).await?;
            drain(&*peer, JOBS_FOR_WARMTH).await?;
            fill(&*peer, amount).await?;
            ready().await?;
            drain(&*peer, amount).await
        }
        Case::Latency => latency(&*peer, amount).await,
    }
}

async fn enqueue<P: Peer>(peer: &Arc<P>, amount: usize, callers: usize) -> Result<Figures> {
    let begun = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut calls: JoinSet<Result<Vec<u64>>> = JoinSet::new();
    for _ in 0..callers {
        let (peer, begun) = (peer.clone(), begun.clone());
        calls.spawn(async move {
            let mut latencies = Vec::new();
            while begun.fetch_add(1, Ordering::Relaxed) < amount {
                let since = Instant::now();
                peer.enqueue(Order::of(2)).await?;
                latencies.push(micros(since.elapsed()));
            }
            Ok(latencies)
        });
    }
    let mut latencies_us = Vec::with_capacity(amount);
    while let Some(called) = calls.join_next().await {
        latencies_us.extend(called??);
    }
    Ok(Figures {
        count: latencies_us.len(),
        seconds: began.elapsed().as_secs_f64(),
        latencies_us,
    })
}

async fn fill<P: Peer>(peer: &P, amount: usize) -> Result<()> {
    let mut left = amount;
    while left > 0 {
        let count = left.min(JOBS_AT_ONCE);
        peer.fill(vec![Order::of(2); count]).await?;
        left -= count;
    }
    Ok(())
}

async fn drain<P: Peer>(peer: &P, amount: usize) -> Result<Figures> {
    let (handled, enough) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let handler = {
        let (handled, enough) = (handled.clone(), enough.clone());
        Arc::new(move |_: &Order| {
            if handled.fetch_add(1, Ordering::Relaxed) + 1 == amount {
                enough.notify_one();
            }
        })
    };
    let began = Instant::now();
    let worker = peer.work(handler).await?;
    let waited = timeout(PATIENCE, enough.notified()).await;
    let took = began.elapsed();
    let count = handled.load(Ordering::Relaxed);
    waited.map_err(|_| format!("{count} of {amount} jobs were handled in {PATIENCE:?}"))?;
    timeout(PATIENCE, peer.stop(worker)).await??;
    let left = peer.left().await?;
    if left > 0 {
        return Err(format!("{left} jobs were handled and are not done").into());
    }
    Ok(Figures {
        count: amount,
        seconds: took.as_secs_f64(),
        latencies_us: Vec::new(),
    })
}

async fn latency<P: Peer>(peer: &P, amount: usize) -> Result<Figures> {
    let (told, mut heard) = mpsc::unbounded_channel();
    let handler = Arc::new(move |order: &Order| {
        // Whoever listened has given up.
        let _ = told.send((order.quantity, Instant::now()));
    });
    let worker = peer.work(handler).await?;
    tick(peer, TICKS_FOR_WARMTH, &mut heard).await?;
    ready().await?;
    let figures = tick(peer, amount, &mut heard).await?;
    // All were heard of. Who does not come to an end now is ended with the process.
    match timeout(STOP_PATIENCE, peer.stop(worker)).await {
        Ok(stopped) => stopped?,
        Err(_) => eprintln!("it does not stop; its figures count all the same"),
    }
    Ok(figures)
}

async fn tick<P: Peer>(
    peer: &P,
    amount: usize,
    heard: &mut mpsc::UnboundedReceiver<(i32, Instant)>,
) -> Result<Figures> {
    let began = Instant::now();
    let mut called = HashMap::with_capacity(amount);
    for number in 0..i32::try_from(amount)? {
        called.insert(number, Instant::now());
        peer.enqueue(Order::of(number)).await?;
        sleep(Duration::from_millis(fastrand::u64(GAP_MILLISECONDS))).await;
    }
    let mut latencies_us = Vec::with_capacity(amount);
    while latencies_us.len() < amount {
        let (number, at) = timeout(PATIENCE, heard.recv()).await?.ok_or("nobody listens")?;
        let since = called.remove(&number).ok_or("a job was handled twice")?;
        latencies_us.push(micros(at.saturating_duration_since(since)));
    }
    Ok(Figures {
        count: amount,
        seconds: began.elapsed().as_secs_f64(),
        latencies_us,
    })
}

fn micros(latency: Duration) -> u64 {
    u64::try_from(latency.as_micros()).unwrap_or(u64::MAX)
}
