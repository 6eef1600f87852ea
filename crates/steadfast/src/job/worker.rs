//! The handlers of jobs that this process has, and the work that they are to the engine.

use std::any::Any;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;

use super::batch::Waits;
use super::cx::JobCx;
use super::{Job, Priority};
use crate::breaker::Breaker;
use crate::clock::ReadDuration;
use crate::command::AsyncReact;
use crate::command::attempt::{self, AttemptOptions, HandlerFuture, InTransaction, attempt_options};
use crate::error::{Code, Error};
use crate::failure::{Failure, FailureClass};
use crate::outbox::name;
use crate::queue::{Ended, JOBS, Place, Row, Work, WorkId, WorkOptions};
use crate::registry::{Declared, Registry};
use crate::retry::RetryPolicy;
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};
use crate::tx::Tx;

/// What a node must know to run a job of this version that stands here: `job:NAME`, and behind an `@` what is not as usual, the version, a
/// queue that is not its type's, and the priority.
pub(crate) fn kind(name: &str, version: u32, queue: Option<&str>, priority: Priority) -> Arc<str> {
    let mut kind = format!("{JOBS}{name}");
    if version != 1 || queue.is_some() || priority != Priority::Normal {
        kind.push_str(&format!("@{version}"));
    }
    if let Some(queue) = queue {
        kind.extend(["/", queue]);
    }
    if priority != Priority::Normal {
        kind.extend(["!", priority.as_str()]);
    }
    kind.into()
}

/// The queue that is named in a kind, and its priority.
pub(crate) fn read_kind(kind: &str) -> (Option<&str>, Priority) {
    let (rest, word) = kind.split_once('!').unwrap_or((kind, Priority::Normal.as_str()));
    let queue = rest.split_once('/').map(|(_, queue)| queue);
    (queue, Priority::read(word).unwrap_or_default())
}

/// The queue that jobs of a kind stand in: the one that it names, or that of their type, as far as anybody knows it.
pub(crate) fn queue_of<'k>(kind: &'k str, known: Option<&'k str>) -> Option<&'k str> {
    read_kind(kind).0.or(known)
}

/// The handler of a job that is being declared: [`Steadfast::handler`].
#[must_use = "a job has a handler when it is given one"]
pub struct JobHandler<'r, Db: Database, J: Job> {
    sf: &'r Steadfast<Db>,
    options: AttemptOptions,
    breaker: Option<String>,
    location: &'static Location<'static>,
    job: PhantomData<fn(J)>,
}

impl<Db: Database> Steadfast<Db> {
    /// The handler of jobs of type `J` in this process. Processes without one leave them to others.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use steadfast::sqlx::{self, Sqlite};
    /// # use steadfast::{Failure, Job, Steadfast, Tx};
    /// # #[derive(Serialize, Deserialize)]
    /// struct CloseMonth { month: u32 }
    ///
    /// impl Job for CloseMonth { // or derive it
    ///     const NAME: &'static str = "books.close_month";
    /// }
    ///
    /// async fn close(tx: &mut Tx<Sqlite>, job: CloseMonth) -> Result<(), Failure> {
    ///     sqlx::query("INSERT INTO closed (month) VALUES ($1)").bind(job.month).execute(tx.db()).await?;
    ///     Ok(()) // the row, and that the job is done, are one COMMIT
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// # sf.transact(async |tx| {
    /// #     sqlx::query("CREATE TABLE closed (month INTEGER)").execute(tx.db()).await?;
    /// #     Ok(())
    /// # }).await?;
    /// sf.handler::<CloseMonth>().run(close);
    ///
    /// sf.transact(async |tx| {
    ///     tx.enqueue(&CloseMonth { month: 11 }).await?; // commits with whatever else is written here
    ///     tx.enqueue(&CloseMonth { month: 12 }).delay("30d").await?;
    ///     Ok(())
    /// }).await?;
    ///
    /// sf.drain().await?; // `serve` and `dispatch` do it all the time
    /// let closed: Vec<i64> = sqlx::query_scalar("SELECT month FROM closed").fetch_all(sf.pool()).await?;
    /// assert_eq!(closed, [11]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn handler<J: Job>(&self) -> JobHandler<'_, Db, J> {
        JobHandler {
            sf: self,
            options: AttemptOptions::default(),
            breaker: None,
            location: Location::caller(),
            job: PhantomData,
        }
    }
}

impl<Db: Database, J: Job> JobHandler<'_, Db, J> {
    attempt_options!();

    /// The circuit breaker of what the handler calls: the one that [`Steadfast::breaker`] has made under this name, or else one with the
    /// settings that are usual. Every attempt counts, as in [`Breaker::call`]. While it is open this process leaves these jobs
    /// alone, and they spend no attempt.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use steadfast::breaker::Breaker;
    /// # use steadfast::sqlx::Sqlite;
    /// # use steadfast::{Failure, Job, JobCx, Steadfast};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct SendReceipt;
    /// # impl Job for SendReceipt {
    /// #     const NAME: &'static str = "receipt.send";
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// sf.breaker(Breaker::named("mail").consecutive_failures(3).open_for("1m").shared())?;
    /// let down = async |_: &JobCx<Sqlite>, _: SendReceipt| Err(Failure::transient("down", "no route to host"));
    /// sf.handler::<SendReceipt>().breaker("mail").run_outside(down);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`run`](Self::run) and [`run_outside`](Self::run_outside) panic with SF303 if no breaker can have this name.
    pub fn breaker(mut self, name: &str) -> Self {
        self.breaker = Some(name.to_owned());
        self
    }

    /// Runs it in a transaction: what the handler writes, what it publishes and enqueues, and that the job is done commit as one.
    ///
    /// # Panics
    /// With SF305 if the job has another handler.
    pub fn run<F>(self, handler: F)
    where
        for<'t> F: AsyncFn(&'t mut Tx<Db>, J) -> Result<(), Failure>
            + AsyncReact<&'t mut Tx<Db>, J, Result<(), Failure>, Fut: Send>
            + Send
            + Sync
            + 'static,
    {
        self.run_boxed(move |tx, job| Box::pin(handler(tx, job)));
    }

    /// Runs it without a transaction, to call the outside: hand [`JobCx::key`] on, for it may be called again.
    ///
    /// # Panics
    /// With SF305 if the job has another handler.
    pub fn run_outside<F>(self, handler: F)
    where
        for<'t> F: AsyncFn(&'t JobCx<Db>, J) -> Result<(), Failure>
            + AsyncReact<&'t JobCx<Db>, J, Result<(), Failure>, Fut: Send>
            + Send
            + Sync
            + 'static,
    {
        self.run_outside_boxed(move |cx, job| Box::pin(handler(cx, job)));
    }

    /// [`run`](Self::run) with a handler that boxes its future by itself: what [`#[job]`](macro@crate::service) writes.
    #[doc(hidden)]
    pub fn run_boxed(self, handler: impl for<'t> Fn(&'t mut Tx<Db>, J) -> HandlerFuture<'t> + Send + Sync + 'static) {
        let call: InTx<Db> = Box::new(move |tx, payload| Ok(handler(tx, decode::<J>(payload)?)));
        self.register(Call::InTx(call));
    }

    /// [`run_outside`](Self::run_outside) with a handler that boxes its future by itself.
    #[doc(hidden)]
    pub fn run_outside_boxed(
        self,
        handler: impl for<'t> Fn(&'t JobCx<Db>, J) -> HandlerFuture<'t> + Send + Sync + 'static,
    ) {
        let call: Outside<Db> = Box::new(move |cx| Ok(handler(cx, decode::<J>(&cx.message().payload)?)));
        self.register(Call::Outside(call));
    }

    fn register(self, call: Call<Db>) {
        if let Err(rule) = name::check(J::NAME) {
            let message = format!("a job cannot be called {rule}");
            panic!("{:?}", Error::new(Code::ConfigurationInvalid, message));
        }
        if J::QUEUE.is_some() && self.options.concurrency.is_some() {
            let message = format!(
                "the job {} stands in a queue, whose concurrency counts, and its handler has one of its own; remove one of them",
                J::NAME
            );
            panic!("{:?}", Error::new(Code::ConfigurationInvalid, message));
        }
        if let Some(Err(error)) = self.breaker.as_deref().map(|name| Breaker::named(name).check()) {
            panic!("{error:?}");
        }
        self.sf.workers().add(Worker {
            name: J::NAME,
            version: J::VERSION.max(1),
            queue: J::QUEUE,
            options: self.options.work(self.sf, matches!(call, Call::InTx(_))),
            breaker: self.breaker,
            time_limit: self.options.time_limit,
            call,
            location: self.location,
        });
    }
}

/// What a job fails with that this program cannot read.
const UNDECODABLE: &str = "undecodable";

fn decode<J: Job>(payload: &[u8]) -> Result<J, Failure> {
    serde_json::from_slice(payload).map_err(|error| {
        let message = format!("what is stored is no {} as this program knows it", J::NAME);
        Failure::definitive(FailureClass::Validation, UNDECODABLE, message).with_source(error)
    })
}

type InTx<Db> = Box<dyn for<'t> Fn(&'t mut Tx<Db>, &Bytes) -> Result<HandlerFuture<'t>, Failure> + Send + Sync>;
type Outside<Db> = Box<dyn for<'t> Fn(&'t JobCx<Db>) -> Result<HandlerFuture<'t>, Failure> + Send + Sync>;

enum Call<Db: Database> {
    InTx(InTx<Db>),
    Outside(Outside<Db>),
}

/// The handlers of jobs of this process.
pub(crate) type Workers<Db> = Registry<Worker<Db>>;

/// A handler of a job that is there.
pub(crate) struct Worker<Db: Database> {
    name: &'static str,
    version: u32,
    queue: Option<&'static str>,
    options: WorkOptions,
    breaker: Option<String>,
    time_limit: Duration,
    call: Call<Db>,
    location: &'static Location<'static>,
}

impl<Db: Database> Declared for Worker<Db> {
    const PLURAL: &'static str = "jobs";

    fn name(&self) -> &str {
        self.name
    }

    fn location(&self) -> &'static Location<'static> {
        self.location
    }
}

impl<Db: Database> Worker<Db> {
    async fn attempt(self: &Arc<Self>, sf: &Steadfast<Db>, row: &Row) -> Ended {
        let claimed = &row.claimed;
        let batch = match Waits::look(sf, &claimed.message).await {
            Waits::Not => None,
            Waits::NoLonger(counts) => Some(counts),
            Waits::Still(not_now) => return Ended::Failed(not_now),
        };
        // On SQLite nobody can write while a handler has its transaction.
        let is_live = Db::Store::NEEDS_ANNOUNCEMENTS || matches!(self.call, Call::Outside(_));
        let cx = JobCx::new(sf.clone(), claimed.clone(), row.lost.clone(), is_live);
        let cx = Arc::new(cx.after_batch(batch));
        let ended = match &self.call {
            Call::Outside(call) => {
                let calling = async { call(&cx)?.await };
                let id = row.id();
                let calling = attempt::outside(sf, self.time_limit, &id, calling);
                match AssertUnwindSafe(calling).catch_unwind().await {
                    Ok(ended) => ended,
                    Err(panic) => return go_on_panicking(&cx, panic).await,
                }
            }
            Call::InTx(_) => {
                let running = Running {
                    worker: self.clone(),
                    cx: cx.clone(),
                    row,
                };
                attempt::in_transaction(sf, self.time_limit, Some(&claimed.lease), running).await
            }
        };
        if let Some(report) = cx.report() {
            match &ended {
                Ended::Settled => report.has_ended(),
                ended => report.end(matches!(ended, Ended::Done(_))).await,
            }
        }
        ended
    }
}

/// The last lines of a handler that has panicked are the ones to read.
async fn go_on_panicking<Db: Database>(cx: &JobCx<Db>, panic: Box<dyn Any + Send>) -> Ended {
    #[cfg(feature = "testing")]
    let panic = crate::testing::crash_on(panic);
    if let Some(report) = cx.report() {
        report.end(false).await;
    }
    resume_unwind(panic)
}

/// A handler of a job at work: in its own queue, and in all others that this process has declared.
pub(crate) struct Working<Db: Database> {
    worker: Arc<Worker<Db>>,
    breaker: Option<Breaker>,
    kinds: Vec<Arc<str>>,
    places: Vec<Place>,
}

impl<Db: Database> Working<Db> {
    pub(crate) fn new(sf: &Steadfast<Db>, worker: Arc<Worker<Db>>) -> Self {
        let own = worker.queue;
        let declared: Vec<_> = sf.queue_rows().into_iter().map(|queue| queue.name).collect();
        // Jobs that were put into what became their own queue later are there, too.
        let mut others: Vec<_> = declared.iter().map(|queue| &**queue).chain(own).collect();
        others.sort_unstable();
        others.dedup();
        let others = others.into_iter().map(Some);
        let (mut kinds, mut places) = (Vec::new(), Vec::new());
        for other in std::iter::once(None).chain(others) {
            for version in 1..=worker.version {
                for priority in Priority::ALL {
                    kinds.push(kind(worker.name, version, other, priority));
                    places.push(Place {
                        queue: other.or(own).map(|queue| sf.queue_of(queue)),
                        weight: priority.weight(),
                        is_rare: other.is_some() || version < worker.version || priority != Priority::Normal,
                    });
                }
            }
        }
        Self {
            breaker: worker.breaker.as_deref().map(|name| breaker(sf, name)),
            worker,
            kinds,
            places,
        }
    }

    /// An attempt, if the breaker lets it through.
    async fn attempt(&self, sf: &Steadfast<Db>, row: &Row) -> Ended {
        let permit = match self.breaker.as_ref().map(Breaker::permit).transpose() {
            Ok(permit) => permit,
            Err(open) => return Ended::Failed(open.into()),
        };
        let ended = self.worker.attempt(sf, row).await;
        match (permit, &ended) {
            (Some(permit), Ended::Done(_) | Ended::Settled) => permit.success(),
            // One that could not be read was not called.
            (Some(permit), Ended::Failed(failure)) if failure.code() != UNDECODABLE => permit.failure(failure),
            // What was lost says nothing of the other side.
            _ => {}
        }
        ended
    }
}

fn breaker<Db: Database>(sf: &Steadfast<Db>, name: &str) -> Breaker {
    sf.breaker_named(name).unwrap_or_else(|error| panic!("{error:?}"))
}

impl<Db: Database> Work<Db> for Working<Db> {
    fn kinds(&self) -> &[Arc<str>] {
        &self.kinds
    }

    fn options(&self) -> &WorkOptions {
        &self.worker.options
    }

    fn place(&self, kind: &str) -> Place {
        let place = self.kinds.iter().position(|known| &**known == kind);
        place
            .and_then(|place| self.places.get(place))
            .cloned()
            .unwrap_or_default()
    }

    fn rests_for(&self) -> Option<Duration> {
        self.breaker.as_ref()?.rests_for()
    }

    fn takes_at_most(&self) -> Option<u32> {
        self.breaker.as_ref()?.probes_left()
    }

    fn run(self: Arc<Self>, sf: Steadfast<Db>, rows: Arc<[Row]>) -> Pin<Box<dyn Future<Output = Vec<Ended>> + Send>> {
        Box::pin(async move {
            let mut ends = Vec::with_capacity(rows.len());
            for row in &*rows {
                ends.push(self.attempt(&sf, row).await);
            }
            ends
        })
    }
}

/// A job whose handler wants a transaction.
struct Running<'r, Db: Database> {
    worker: Arc<Worker<Db>>,
    cx: Arc<JobCx<Db>>,
    row: &'r Row,
}

impl<Db: Database> InTransaction<Db> for Running<'_, Db> {
    fn id(&self) -> WorkId<'_> {
        self.row.id()
    }

    async fn handle(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        let Call::InTx(call) = &self.worker.call else {
            unreachable!("only what runs in a transaction is called in one")
        };
        tx.belongs_to_job(self.cx.clone());
        call(tx, &self.cx.message().payload)?.await?;
        if let Some(report) = self.cx.report() {
            report.end_in(tx).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kind_says_is_read_from_it() {
        for (queue, priority) in [
            (None, Priority::Normal),
            (None, Priority::High),
            (Some("mail.bulk"), Priority::Normal),
            (Some("mail.bulk"), Priority::Low),
        ] {
            let kind = kind("receipt.send", 2, queue, priority);
            assert_eq!(read_kind(&kind), (queue, priority), "{kind}");
            assert_eq!(queue_of(&kind, Some("own")), queue.or(Some("own")), "{kind}");
        }
        assert_eq!(read_kind("job:receipt.send"), (None, Priority::Normal));
    }
}
