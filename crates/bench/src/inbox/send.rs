//! Filling queues, which nobody measures: with messages of our own sinks, so that each has the whole envelope.

use std::sync::{Arc, Mutex, PoisonError};

use sqlx::Sqlite;
use steadfast::{EventCx, Sink, Steadfast};

use crate::command::order::Order;
use crate::error::{Context, Result};
use crate::outbox::place::{Count, TARGET, draining, fill};

/// So many events about such an order, as a sink gets them. They are published in a database in memory, which is gone then.
pub(super) async fn events(count: usize, order: &Order) -> Result<Vec<EventCx>> {
    let opening = Steadfast::<Sqlite>::open("sqlite::memory:").await;
    let sf = opening.context("opening a database in memory")?;
    let (heard, enough) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Count::until(count)));
    let (noted, counted) = (heard.clone(), enough.clone());
    sf.reaction::<Order>(TARGET).run_outside(move |cx: &EventCx, _: Order| {
        noted.lock().unwrap_or_else(PoisonError::into_inner).push(cx.clone());
        counted.hear();
        std::future::ready(Ok(()))
    });
    sf.declare().await.context("declaring the target")?;
    fill(&sf, order, count).await?;
    draining(sf, enough).await?;
    let events = std::mem::take(&mut *heard.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(events)
}

/// Sends them, and waits until all of them are confirmed.
pub(super) async fn send(sink: &impl Sink, events: &[EventCx]) -> Result<()> {
    for batch in events.chunks(sink.batch_max()) {
        for verdict in sink.send(batch).await {
            verdict.map_err(|failure| format!("filling the queue: {failure}"))?;
        }
    }
    Ok(())
}
