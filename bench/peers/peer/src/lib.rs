//! What the programs of all peers have in common, so that each of them only says how it enqueues and how it works.
//!
//! A program is called with the URL of a database of its own, the [case](Case), an amount and how many call at once. It makes its
//! tables, warms up, says `ready` and waits for a line: whoever measures reads their counters then. After that it does what was asked,
//! and says what came out in one line of JSON.

mod case;
mod order;

use std::env;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;

pub use case::Case;
pub use order::Order;

/// Nothing here is handled by code, so any error will do.
pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// What is called for each job.
pub type Handler = Arc<dyn Fn(&Order) + Send + Sync>;

/// A job queue of somebody else, at its best documented settings.
pub trait Peer: Sized + Send + Sync + 'static {
    /// Somebody who works on the jobs.
    type Worker: Send;

    /// Connects with so many connections, and makes the tables where they are missing.
    fn open(url: &str, connections: u32, case: Case) -> impl Future<Output = Result<Self>> + Send;

    /// One job in a transaction of its own.
    fn enqueue(&self, order: Order) -> impl Future<Output = Result<()>> + Send;

    /// Many jobs at once. Nobody measures it.
    fn fill(&self, orders: Vec<Order>) -> impl Future<Output = Result<()>> + Send;

    /// Begins to work.
    fn work(&self, handler: Handler) -> impl Future<Output = Result<Self::Worker>> + Send;

    /// Lets it end what it has begun.
    fn stop(&self, worker: Self::Worker) -> impl Future<Output = Result<()>> + Send;

    /// How many jobs are not done. A queue that counts its jobs as done later than it calls the handler must have none either, once
    /// it has stopped.
    fn left(&self) -> impl Future<Output = Result<i64>> + Send;
}

/// The whole program.
pub fn main<P: Peer>() -> ExitCode {
    match run::<P>() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run<P: Peer>() -> Result<()> {
    let words: Vec<_> = env::args().skip(1).collect();
    let [url, case, amount, callers] = &words[..] else {
        return Err("write: URL enqueue|drain|latency AMOUNT CONCURRENCY".into());
    };
    let (case, amount, callers) = (case.parse()?, amount.parse()?, callers.parse()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let figures = runtime.block_on(async {
        let peer = P::open(url, callers, case).await?;
        case::measure(Arc::new(peer), case, amount, callers as usize).await
    })?;
    println!("{}", serde_json::to_string(&figures)?);
    io::stdout().flush()?;
    // Whoever has started us looks at what we have used up, and ends our input.
    wait_for_a_line()
}

/// Says that it can begin, and waits for whoever measures.
async fn ready() -> Result<()> {
    println!("ready");
    io::stdout().flush()?;
    tokio::task::spawn_blocking(wait_for_a_line).await?
}

/// The end of the input will do.
fn wait_for_a_line() -> Result<()> {
    io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}
