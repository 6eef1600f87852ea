//! `graphile_worker` of crates.io, with the settings of its own benchmark `perf_test`.

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext, WorkerOptions, WorkerUtils,
};
use peer::{Case, Handler, Order, Peer, Result};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinHandle;

const SCHEMA: &str = "graphile_worker";

/// How many jobs are handled at once, and how many are fetched at once.
const CONCURRENCY: usize = 500;
const LOCAL_QUEUE: usize = 5_000;

/// How long ends of jobs are collected.
const COMPLETE_AFTER: Duration = Duration::from_millis(5);
const POLL_EVERY: Duration = Duration::from_millis(5);

fn main() -> ExitCode {
    peer::main::<GraphileWorker>()
}

struct GraphileWorker {
    pool: PgPool,
    utils: WorkerUtils,
}

#[derive(Clone, Serialize, Deserialize)]
struct Place(Order);

/// The handler, where the job finds it.
#[derive(Clone)]
struct Called(Handler);

impl fmt::Debug for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Called")
    }
}

impl TaskHandler for Place {
    const IDENTIFIER: &'static str = "place";

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        let Some(called) = ctx.get_ext::<Called>() else {
            return Err("nobody has said what to do");
        };
        (called.0)(&self.0);
        Ok(())
    }
}

impl Peer for GraphileWorker {
    type Worker = (Arc<Worker>, JoinHandle<Result<()>>);

    async fn open(url: &str, connections: u32, _: Case) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(connections).connect(url).await?;
        let utils = WorkerUtils::new(pool.clone(), SCHEMA);
        utils.migrate().await?;
        Ok(Self { pool, utils })
    }

    async fn enqueue(&self, order: Order) -> Result<()> {
        self.utils.add_job(Place(order), JobSpec::default()).await?;
        Ok(())
    }

    async fn fill(&self, orders: Vec<Order>) -> Result<()> {
        let spec = JobSpec::default();
        let jobs: Vec<_> = orders.into_iter().map(|order| (Place(order), &spec)).collect();
        self.utils.add_jobs(&jobs).await?;
        Ok(())
    }

    async fn work(&self, handler: Handler) -> Result<Self::Worker> {
        let options = WorkerOptions::default()
            .pg_pool(self.pool.clone())
            .schema(SCHEMA)
            .concurrency(CONCURRENCY)
            .poll_interval(POLL_EVERY)
            .complete_job_batch_delay(COMPLETE_AFTER)
            .local_queue(LocalQueueConfig::default().with_size(LOCAL_QUEUE))
            .listen_os_shutdown_signals(false)
            .add_extension(Called(handler))
            .define_job::<Place>();
        let worker = Arc::new(options.init().await?);
        let running = worker.clone();
        let running = tokio::spawn(async move { Ok(running.run().await?) });
        Ok((worker, running))
    }

    async fn stop(&self, (worker, running): Self::Worker) -> Result<()> {
        worker.request_shutdown();
        running.await?
    }

    async fn left(&self) -> Result<i64> {
        let counting = sqlx::query_scalar("SELECT count(*) FROM graphile_worker._private_jobs");
        Ok(counting.fetch_one(&self.pool).await?)
    }
}
