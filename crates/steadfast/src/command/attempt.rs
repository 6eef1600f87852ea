//! One attempt at a leased row by a handler of the user: in a transaction that its row leaves the queue with, or outside of any.

use std::pin::Pin;
use std::time::Duration;

use super::execute::{self, Handled, Handler, Verdict};
use super::{CommandOptions, Outcome};
use crate::clock::ReadDuration;
use crate::error::{Code, Error};
use crate::failure::Failure;
use crate::lease::Lease;
use crate::queue::{Ended, WorkId, WorkOptions, WorkPoint};
use crate::retry::RetryPolicy;
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};
use crate::tx::Tx;

/// How many rows are handed to a handler at once that calls the outside, unless it says otherwise.
const OUTSIDE_CONCURRENCY: u32 = 64;

/// How many are on SQLite to one with a transaction. They take turns, and one COMMIT is for as many.
const TURNS: u32 = 32;

/// The future of a handler whose type is forgotten.
pub(crate) type HandlerFuture<'t> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 't>>;

/// How a handler of leased rows is called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptOptions {
    pub(crate) retry: RetryPolicy,
    pub(crate) lease: Option<Duration>,
    pub(crate) concurrency: Option<u32>,
    pub(crate) time_limit: Duration,
}

impl Default for AttemptOptions {
    fn default() -> Self {
        Self {
            retry: RetryPolicy::default(),
            lease: None,
            concurrency: None,
            time_limit: CommandOptions::default().time_limit,
        }
    }
}

impl AttemptOptions {
    /// What the engine has to know of it. Every row has a key, so what ended unknown is tried again too.
    pub(crate) fn work<Db: Database>(&self, sf: &Steadfast<Db>, is_in_transaction: bool) -> WorkOptions {
        let concurrency = self.concurrency.unwrap_or_else(|| match is_in_transaction {
            false => OUTSIDE_CONCURRENCY,
            // Half of the pool is left to everybody else.
            true if Db::Store::NEEDS_ANNOUNCEMENTS => (sf.pool().options().get_max_connections() / 2).clamp(1, TURNS),
            true => TURNS,
        });
        WorkOptions {
            retry: self.retry.with_key(),
            lease: self.lease,
            concurrency,
            batch: 1,
            dead_make_room: false,
        }
    }
}

/// The options of a handler that is being declared, as methods of whoever declares it.
macro_rules! attempt_options {
    () => {
        /// When it is tried again, and how often, before it is dead. It has a key, so what ended unknown is tried again too.
        pub fn retry(mut self, retry: RetryPolicy) -> Self {
            self.options.retry = retry;
            self
        }

        /// How long a row belongs to a process that says nothing any more; 30 seconds by default. It is renewed while the process
        /// lives, so it need not be longer than the handler takes.
        ///
        /// # Panics
        /// If the text is no duration.
        pub fn lease(mut self, lease: impl ReadDuration) -> Self {
            self.options.lease = Some($crate::command::attempt::read(lease));
            self
        }

        /// How many are worked on at once in one process.
        pub fn concurrency(mut self, concurrency: u32) -> Self {
            self.options.concurrency = Some(concurrency.max(1));
            self
        }

        /// How long one attempt may take; 30 seconds by default.
        ///
        /// # Panics
        /// If the text is no duration.
        pub fn time_limit(mut self, time_limit: impl ReadDuration) -> Self {
            self.options.time_limit = $crate::command::attempt::read(time_limit);
            self
        }
    };
}
pub(crate) use attempt_options;

pub(crate) fn read(duration: impl ReadDuration) -> Duration {
    duration.read_duration().unwrap_or_else(|error| panic!("{error:?}"))
}

/// A handler that wants a transaction, and the row that it is called for.
pub(crate) trait InTransaction<Db: Database>: Send + Sync {
    /// Which attempt this is, for those who watch.
    fn id(&self) -> WorkId<'_>;

    fn handle(&self, tx: &mut Tx<Db>) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// An attempt in a transaction. With a lease, the row leaves the queue with its commit.
pub(crate) async fn in_transaction<Db: Database>(
    sf: &Steadfast<Db>,
    time_limit: Duration,
    lease: Option<&Lease>,
    handler: impl InTransaction<Db>,
) -> Ended {
    sf.passes(WorkPoint::BeforeHandler, &handler.id());
    let options = CommandOptions {
        time_limit,
        ..CommandOptions::default()
    };
    let handler = Calling { handler, sf };
    // In a box of its own: who needs no transaction does not carry the room for one along.
    match Box::pin(execute::transact(sf, &options, lease, handler)).await {
        Ok(Ok(())) => Ended::Settled,
        Ok(Err(failure)) => Ended::Failed(failure),
        Err(error) if error.code() == Code::LeaseLost => Ended::Unsettled,
        Err(error) => Ended::Failed(rolled_back(error)),
    }
}

/// An attempt without one, by whatever calls the handler.
pub(crate) async fn outside<Db: Database>(
    sf: &Steadfast<Db>,
    time_limit: Duration,
    id: &WorkId<'_>,
    calling: impl Future<Output = Result<(), Failure>>,
) -> Ended {
    sf.passes(WorkPoint::BeforeHandler, id);
    let ended = tokio::time::timeout(time_limit, calling).await;
    sf.passes(WorkPoint::AfterHandler, id);
    match ended.unwrap_or_else(|_| Err(out_of_time(time_limit))) {
        Ok(()) => Ended::Done(None),
        Err(failure) => Ended::Failed(failure),
    }
}

/// What a handler with a transaction ended with, by the words that one without has. Nothing that it did is there.
pub(crate) fn rolled_back(error: Error) -> Failure {
    match error.code() {
        Code::HandlerPanicked => Failure::panicked(),
        Code::TimeLimit => Failure::transient("time_limit", error.to_string()),
        _ => error.into(),
    }
}

fn out_of_time(time_limit: Duration) -> Failure {
    Failure::unknown("time_limit", format!("the handler did not end within {time_limit:?}"))
}

/// A handler, as the corridor calls it.
struct Calling<'s, Db: Database, H> {
    handler: H,
    sf: &'s Steadfast<Db>,
}

impl<Db: Database, H: InTransaction<Db>> Handler<Db> for Calling<'_, Db, H> {
    type Answer = Result<(), Failure>;

    fn can_run(&self) -> bool {
        true
    }

    async fn run(&mut self, mut tx: Tx<Db>, _: &CommandOptions) -> Handled<Db, Self::Answer> {
        let ended = self.handler.handle(&mut tx).await;
        self.sf.passes(WorkPoint::AfterHandler, &self.handler.id());
        let verdict = match &ended {
            Ok(()) => Verdict::Commit(Outcome::empty()),
            Err(_) => Verdict::Discard,
        };
        Handled {
            tx: Some(tx),
            ended: Ok((verdict, ended)),
        }
    }
}
