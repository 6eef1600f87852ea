//! Our own side: the job, how many of it are enqueued, and how they are worked on until there were enough.

use std::sync::Arc;

use steadfast::{Dispatcher, Job, JobCx, Steadfast, Tx};

use crate::command::order::{ORDER, Order};
use crate::error::{Context, Result};
use crate::measure::{CALLERS, Ready};
use crate::outbox::place::{Count, Place, draining};

/// Jobs of one transaction when a table is filled: as many as one may enqueue.
const JOBS_AT_ONCE: usize = 1_000;

impl Job for Order {
    const NAME: &'static str = "order.place";
}

/// Enqueues one, in a transaction of its own.
pub(super) async fn enqueue<Db: steadfast::Database>(sf: &Steadfast<Db>, order: &Order) -> Result<()> {
    let enqueuing = sf.transact(async move |tx| {
        tx.enqueue(order).await?;
        Ok(())
    });
    enqueuing.await.context("enqueuing a job")
}

/// When the jobs of a table are due.
#[derive(Clone, Copy)]
pub(super) enum Due {
    Now,
    /// Later than anybody waits.
    Tomorrow,
}

/// Enqueues so many, as any process does.
pub(super) async fn fill<Db: steadfast::Database>(sf: &Steadfast<Db>, jobs: usize, due: Due) -> Result<()> {
    let mut left = jobs;
    while left > 0 {
        let count = left.min(JOBS_AT_ONCE);
        let enqueuing = sf.transact(async move |tx| {
            for _ in 0..count {
                let enqueue = tx.enqueue(&*ORDER);
                match due {
                    Due::Now => enqueue.await?,
                    Due::Tomorrow => enqueue.delay("1d").await?,
                };
            }
            Ok(())
        });
        enqueuing.await.context("enqueuing jobs")?;
        left -= count;
    }
    Ok(())
}

/// What the handler does.
#[derive(Clone, Copy)]
pub(super) enum Handling {
    /// Nothing, outside of transactions.
    Outside,
    /// One INSERT in the transaction of the job.
    InTransaction,
}

/// A process that is about to begin, and stops when it has handled so many: what it has in hand then is finished and counted as well.
pub(super) async fn worker<P: Place>(place: &P, handling: Handling, jobs: usize) -> Result<Ready> {
    let sf = match handling {
        Handling::Outside => place.open(Dispatcher::default()).await?,
        Handling::InTransaction => place.open_wide(Dispatcher::default()).await?,
    };
    let count = Arc::new(Count::until(jobs));
    let counted = count.clone();
    match handling {
        Handling::Outside => sf.handler::<Order>().run_outside(move |_: &JobCx<P::Db>, _: Order| {
            counted.hear();
            std::future::ready(Ok(()))
        }),
        // As many transactions at once as there are callers in the baseline.
        Handling::InTransaction => {
            sf.handler::<Order>()
                .concurrency(CALLERS as u32)
                .run_boxed(move |tx: &mut Tx<P::Db>, order: Order| {
                    let counted = counted.clone();
                    Box::pin(async move {
                        P::place_order(tx, &order).await?;
                        counted.hear();
                        Ok(())
                    })
                })
        }
    }
    Ok(draining(sf, count))
}
