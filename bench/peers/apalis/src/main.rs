//! `apalis-postgres` of crates.io, with batches, and told of new jobs.

use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage};
use peer::{Case, Handler, Order, Peer, Result};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

const QUEUE: &str = "orders";

/// How many jobs are fetched at once, and how many are handled at once.
const BATCH: usize = 500;
const CONCURRENCY: usize = 32;

/// It looks by itself as well, as the page about being told recommends.
const POLL_EVERY: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    peer::main::<Apalis>()
}

struct Apalis {
    pool: PgPool,
    storage: PostgresStorage<Order>,
    workers: AtomicUsize,
}

/// The handler, where the job finds it.
#[derive(Clone)]
struct Called {
    handler: Handler,
}

async fn place(order: Order, called: Data<Called>) -> Result<(), BoxDynError> {
    (called.handler)(&order);
    Ok(())
}

impl Peer for Apalis {
    type Worker = (WorkerContext, JoinHandle<Result<()>>);

    async fn open(url: &str, connections: u32, _: Case) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(connections).connect(url).await?;
        PostgresStorage::setup(&pool).await?;
        let config = Config::default().queue(QUEUE).batch_size(BATCH).lock_tasks(false);
        let storage = PostgresStorage::new(&pool).with_config(config);
        Ok(Self {
            pool,
            storage,
            workers: AtomicUsize::new(0),
        })
    }

    async fn enqueue(&self, order: Order) -> Result<()> {
        Ok(self.storage.clone().push(order).await?)
    }

    async fn fill(&self, orders: Vec<Order>) -> Result<()> {
        Ok(self.storage.clone().push_bulk(orders).await?)
    }

    async fn work(&self, handler: Handler) -> Result<Self::Worker> {
        // A name is locked for as long as the connection lives that registered it.
        let number = self.workers.fetch_add(1, Ordering::Relaxed);
        let context = WorkerContext::new(&format!("peer-{}-{number}", process::id()));
        let backend = self
            .storage
            .clone()
            .with_pubsub()
            .poll_with_strategy(IntervalStrategy::new(POLL_EVERY));
        let worker = WorkerBuilder::new(&context)
            .backend(backend)
            .concurrency(CONCURRENCY)
            .parallelize(tokio::spawn)
            .data(Called { handler })
            .build(place);
        // As in its examples, on a thread of its own: the future is none that can be spawned.
        let runtime = Handle::current();
        let running = tokio::task::spawn_blocking(move || Ok(runtime.block_on(worker.run())?));
        Ok((context, running))
    }

    async fn stop(&self, (context, running): Self::Worker) -> Result<()> {
        context.stop()?;
        running.await?
    }

    async fn left(&self) -> Result<i64> {
        let counting = sqlx::query_scalar("SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'");
        Ok(counting.fetch_one(&self.pool).await?)
    }
}
