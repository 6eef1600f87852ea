//! The corridor: begin · claim · handler · settle · commit.
//!
//! The only function that begins and ends a handler's transaction. Doors lead to it (an HTTP request, a plain Rust
//! call; messages, jobs and saga steps follow) that differ in where the key comes from.
//!
//! What may be dropped by a caller that goes away: the handler, and nothing else. Beginning on PostgreSQL goes on to its end
//! in a task, because sqlx 0.9 is not safe to cancel there; so do settling and committing on both, because from the
//! moment the handler has answered, the command will end whether or not anybody listens. A caller who neither polls nor
//! drops its future holds the transaction, as with every future that holds something.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tracing::Instrument;

use super::finish::{Finish, Finished, SETTLE_LIMIT};
use super::in_flight::Work;
use super::point::Point;
use super::{Claimant, CommandOptions, Comparison, Conflict, Outcome, Record};
use crate::clock::{jitter, random};
use crate::error::{Code, Error, Result};
use crate::failure::{Failure, FailureKind};
use crate::lease::Lease;
use crate::retry::{Backoff, Jitter, RetryPolicy};
use crate::steadfast::Steadfast;
use crate::store::{self, Begin, Begun, CommitError, Database, LookUp, Store};
use crate::telemetry;
use crate::tx::Tx;

/// How long a duplicate waits for the first one before it is told to come back.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// How a handler is run again after the database ended its transaction to resolve a conflict. Deadlocks among a few
/// commands are over after four times; what still conflicts is a storm that repeating makes worse.
const REPEATS: RetryPolicy = RetryPolicy::checked(
    4,
    Backoff::Exponential(Duration::from_millis(20)),
    Duration::from_millis(160),
    Jitter::Equal,
    None,
);

/// How long a caller waits for a transaction that was dropped to be rolled back, before it is told of the panic or the
/// time limit.
const DROP_LIMIT: Duration = Duration::from_secs(2);

/// How long a transaction may sit idle on the server beyond its handler's time limit before the server ends it. Only
/// a client that vanished without a word gets there.
const IDLE_GRACE: Duration = Duration::from_secs(5);

/// How the corridor was left.
#[derive(Debug)]
pub(crate) enum Executed<A> {
    /// The handler succeeded, and everything it wrote is durable.
    Committed(A),
    /// The handler failed, and nothing it wrote is there.
    Failed(A),
    /// An earlier execution's end, byte for byte.
    Replayed(Outcome),
}

/// What becomes of a handler's transaction.
pub(crate) enum Verdict {
    /// Success: store the outcome, commit everything.
    Commit(Outcome),
    /// A failure worth keeping: undo the handler's writes, store the outcome, commit that.
    Keep(Outcome),
    /// Any other failure: undo everything, the key is free again.
    Discard,
}

/// A door's way of calling the user's code.
pub(crate) trait Handler<Db: Database> {
    type Answer: Send;

    /// Whether the handler can be called (again).
    fn can_run(&self) -> bool;

    /// Calls the user's code with the transaction, and gives it back.
    fn run(&mut self, tx: Tx<Db>, options: &CommandOptions) -> impl Future<Output = Handled<Db, Self::Answer>> + Send;
}

/// What a handler leaves: its transaction (unless the user's code let it escape), and its verdict.
pub(crate) struct Handled<Db: Database, A> {
    pub(crate) tx: Option<Tx<Db>>,
    pub(crate) ended: Result<(Verdict, A)>,
}

/// Executes a command, or replays it, waiting and repeating where its options and the handler allow.
pub(crate) async fn execute<Db, H>(
    sf: &Steadfast<Db>,
    claimant: &Claimant,
    mut handler: H,
) -> Result<Executed<H::Answer>>
where
    Db: Database,
    H: Handler<Db> + Send,
{
    let started = Instant::now();
    let span = telemetry::command_span(&claimant.key);
    let ended = async {
        let mut repeats = 0;
        loop {
            let Blocked { error, by } = match pass(sf, claimant, &mut handler, repeats > 0).await {
                Ok(executed) => return Ok(executed),
                Err(blocked) => blocked,
            };
            match error.code() {
                Code::InFlight if claimant.options.conflict == Conflict::Wait => {
                    wait(sf, by, started, error).await?;
                }
                code if is_repeatable(code) && handler.can_run() && repeats < REPEATS.retries() => {
                    repeats += 1;
                    let after = REPEATS.delay(repeats, random);
                    telemetry::repeated(&claimant.key, repeats, after, &error);
                    tokio::time::sleep(after).await;
                }
                _ => return Err(error),
            }
        }
    }
    .instrument(span.clone())
    .await;
    span.in_scope(|| telemetry::command_ended(&claimant.key, started.elapsed(), &ended));
    ended
}

/// Why a pass ended without an outcome, and whose end may be waited for.
struct Blocked {
    error: Error,
    by: Option<Work>,
}

impl From<Error> for Blocked {
    fn from(error: Error) -> Self {
        Self { error, by: None }
    }
}

/// One way through the corridor. A repeated one commits alone: it may have failed for its neighbours.
async fn pass<Db, H>(
    sf: &Steadfast<Db>,
    claimant: &Claimant,
    handler: &mut H,
    is_alone: bool,
) -> Result<Executed<H::Answer>, Blocked>
where
    Db: Database,
    H: Handler<Db> + Send,
{
    // The claim: mine to do, done already, or being done.
    sf.observe(Point::BeforeClaim, &claimant.key);
    let entered = match sf.in_flight().enter(&claimant.key) {
        Ok(entered) => entered,
        Err(work) if work.is_executing() => return Err(in_flight_by(work)),
        Err(work) => {
            let found = find(sf, claimant).await?;
            return found.map(Executed::Replayed).ok_or_else(|| in_flight_by(work));
        }
    };
    let is_worth_a_look = Db::Store::READS_ARE_CHEAP || sf.in_flight().has_ended_here(&claimant.key);
    let mut absent_at = None;
    if is_worth_a_look {
        let moment = Instant::now();
        match look(sf, claimant).await? {
            Look::Ended(outcome) => return Ok(Executed::Replayed(outcome)),
            Look::Absent => absent_at = Some(moment),
            Look::Expired => {}
        }
    }
    let begun = begin(
        sf,
        Begin {
            key: Some(claimant.key.clone()),
            absent_at,
            offset: sf.clock().ahead(),
            idle_limit: claimant.options.time_limit + IDLE_GRACE,
            is_alone,
        },
    );
    let mut tx = match begun.await? {
        Begun::Ours(tx) => tx,
        Begun::Ended(record) => {
            entered.has_ended();
            return Ok(Executed::Replayed(read(sf, claimant, record)?));
        }
        Begun::InFlight => return Err(in_flight().into()),
    };
    entered.begin_execution();
    if claimant.options.store_failures.keeps_any() {
        // The place to come back to when a failure is kept and the handler's writes are not.
        store::begin_savepoint::<Db>(tx.ask("set a savepoint"))
            .await
            .map_err(|error| Db::Store::error(error, "setting a savepoint"))?;
    }
    sf.observe(Point::AfterClaim, &claimant.key);

    // The handler, and then the end its verdict says, whether or not the caller still waits.
    let (tx, verdict, answer) = handle(handler, tx, &claimant.options).await?;
    let finish = Finish {
        sf: sf.clone(),
        claimant: claimant.clone(),
        entered,
    };
    match sf.to_the_end(finish.run(tx, verdict)).await? {
        Finished::Committed => Ok(Executed::Committed(answer)),
        Finished::Failed => Ok(Executed::Failed(answer)),
        Finished::Found(outcome) => Ok(Executed::Replayed(outcome)),
    }
}

/// Runs the user's code within its time limit. A panic or a time-out drops the transaction, which rolls it back.
async fn handle<Db, H>(handler: &mut H, tx: Tx<Db>, options: &CommandOptions) -> Result<(Tx<Db>, Verdict, H::Answer)>
where
    Db: Database,
    H: Handler<Db> + Send,
{
    let started = Instant::now();
    let ended = tx.ended();
    let running = AssertUnwindSafe(handler.run(tx, options)).catch_unwind();
    let handled = match tokio::time::timeout(options.time_limit, running).await {
        Ok(Ok(handled)) => handled,
        broken => {
            let error = match broken {
                Ok(Err(panic)) => panicked(panic),
                _ => timed_out(options.time_limit),
            };
            // It was dropped with the handler. Whoever is told that the key is free should find it so.
            let _ = tokio::time::timeout(DROP_LIMIT, ended.cancelled()).await;
            return Err(error);
        }
    };
    telemetry::handler_ran(started.elapsed());
    let Some(mut tx) = handled.tx else {
        return Err(escaped());
    };
    match handled.ended {
        Ok((verdict, answer)) => Ok((tx, verdict, answer)),
        Err(error) => {
            tx.rollback().await?;
            Err(error)
        }
    }
}

/// The same corridor without a key: nothing to claim, nothing to store, and nothing to ask after a lost commit.
///
/// Whoever works on a leased row has claimed it already. It leaves the queue with the commit, if the lease is still held.
pub(crate) async fn transact<Db, H>(
    sf: &Steadfast<Db>,
    options: &CommandOptions,
    lease: Option<&Lease>,
    mut handler: H,
) -> Result<H::Answer>
where
    Db: Database,
    H: Handler<Db> + Send,
{
    let without_key = Begin {
        key: None,
        absent_at: None,
        offset: sf.clock().ahead(),
        idle_limit: options.time_limit + IDLE_GRACE,
        is_alone: false,
    };
    // However many kinds of leased rows there are, they leave connections to everybody else.
    let place = match lease {
        Some(_) => sf.place_in_pool().await,
        None => None,
    };
    let Begun::Ours(tx) = begin(sf, without_key).await? else {
        unreachable!("what claims nothing finds nothing")
    };
    let (mut tx, verdict, answer) = handle(&mut handler, tx, options).await?;
    let lease = lease.cloned();
    sf.to_the_end(async move {
        let _place = place;
        if !matches!(verdict, Verdict::Commit(_)) {
            return tx.rollback().await;
        }
        tx.check_depth(1).await?;
        let sealing = tokio::time::timeout(SETTLE_LIMIT, tx.seal(lease.as_ref())).await;
        if !sealing.map_err(|_| not_sealed())?? {
            tx.rollback().await?;
            return Err(lease_lost());
        }
        match tx.commit().await {
            Ok(()) => Ok(()),
            Err(CommitError::Refused(error)) => Err(error),
            Err(CommitError::Unknown(error)) => Err(Error::new(
                Code::CommitUnknown,
                "the connection was lost while committing a transaction without a key; whether it was committed is not known",
            )
            .with_source(error)),
        }
    })
    .await?;
    Ok(answer)
}

/// Begins and claims, where nobody can cancel it if that is not safe.
async fn begin<Db: Database>(sf: &Steadfast<Db>, begin: Begin) -> Result<Begun<Tx<Db>>> {
    if Db::Store::BEGIN_IS_CANCEL_SAFE {
        return sf.begin(begin).await;
    }
    let task = sf.clone();
    sf.begin_to_the_end(async move { task.begin(begin).await }).await
}

/// What a look from outside any transaction finds.
pub(super) enum Look {
    /// The end of the command.
    Ended(Outcome),
    /// A record that no longer counts.
    Expired,
    /// Nothing.
    Absent,
}

impl Look {
    pub(super) fn ended(self) -> Option<Outcome> {
        match self {
            Self::Ended(outcome) => Some(outcome),
            Self::Expired | Self::Absent => None,
        }
    }
}

async fn look<Db: Database>(sf: &Steadfast<Db>, claimant: &Claimant) -> Result<Look> {
    let look_up = sf.ask("look the key up").look_up(&claimant.key).await?;
    read_look_up(sf, claimant, look_up)
}

pub(super) fn read_look_up<Db: Database>(sf: &Steadfast<Db>, claimant: &Claimant, look_up: LookUp) -> Result<Look> {
    let now = sf.clock().at(look_up.now);
    match look_up.record {
        Some(record) if record.is_live(now) => Ok(Look::Ended(read(sf, claimant, record)?)),
        Some(_) => Ok(Look::Expired),
        None => Ok(Look::Absent),
    }
}

/// Looks for the end of a command outside any transaction.
pub(super) async fn find<Db: Database>(sf: &Steadfast<Db>, claimant: &Claimant) -> Result<Option<Outcome>> {
    Ok(look(sf, claimant).await?.ended())
}

/// What a live record says to this claimant: its outcome, or that it means another wish.
pub(crate) fn read<Db: Database>(sf: &Steadfast<Db>, claimant: &Claimant, record: Record) -> Result<Outcome> {
    match claimant.input.compare(&record.fingerprint) {
        Comparison::Same => record.stored.read(&sf.place(&claimant.key, &record.fingerprint)),
        Comparison::Different => Err(Error::new(
            Code::Mismatch,
            format!(
                "the key was used before for a different request to {}; send the first request again, or choose a new key",
                claimant.key.operation
            ),
        )),
        Comparison::Unknown => Err(Error::new(
            Code::RecordTooNew,
            "the stored request was fingerprinted in a way this process cannot repeat; send the same request again",
        )),
    }
}

/// Waits until the first one has ended, in this process by its signal, elsewhere by asking again; holds no connection.
async fn wait<Db: Database>(sf: &Steadfast<Db>, by: Option<Work>, started: Instant, error: Error) -> Result<()> {
    let Ok(_waiting) = sf.in_flight().waiters.try_acquire() else {
        return Err(error);
    };
    let left = WAIT_MAX.saturating_sub(started.elapsed());
    if left.is_zero() {
        return Err(error);
    }
    match by {
        Some(work) => tokio::time::timeout(left, work.wait()).await.map_err(|_| error),
        None => {
            tokio::time::sleep(jitter(Duration::from_millis(100)).min(left)).await;
            Ok(())
        }
    }
}

/// Codes that mean: nothing happened, and the same thing may well succeed right now.
pub(crate) fn is_repeatable(code: Code) -> bool {
    matches!(code, Code::Conflict | Code::ConnectionLost)
}

/// The trouble of the database behind a failure, if that is what the handler failed with: it has a code of its own, and
/// may be worth running the handler again.
///
/// A handler that called it something else than transient has the last word: what may have happened is not run again.
pub(crate) fn trouble_of<Db: Database>(failure: &Failure) -> Option<Error> {
    if failure.kind() != FailureKind::Transient {
        return None;
    }
    let mut cause: &(dyn std::error::Error + 'static) = failure.source()?;
    loop {
        let code = match (cause.downcast_ref::<sqlx::Error>(), cause.downcast_ref::<Error>()) {
            (Some(error), _) => Some(Db::Store::classify(error)),
            (_, Some(error)) => Some(error.code()),
            _ => None,
        };
        if let Some(code) = code {
            let error = Error::new(code, format!("a statement of the handler failed: {}", code.title()));
            return error.is_transient().then(|| error.with_source(cause.to_string()));
        }
        cause = cause.source()?;
    }
}

fn not_sealed() -> Error {
    Error::new(
        Code::TimeLimit,
        format!(
            "what ends the transaction could not be written within {SETTLE_LIMIT:?}, perhaps because another transaction that publishes \
             with the same ordering key is still open; it is rolled back"
        ),
    )
}

fn lease_lost() -> Error {
    Error::new(
        Code::LeaseLost,
        "the lease was lost before the work was done, and somebody else has taken it over; everything was rolled back",
    )
}

pub(crate) fn in_flight() -> Error {
    Error::new(
        Code::InFlight,
        "a request with this key is still running; wait as long as Retry-After says and send the same request again",
    )
}

fn in_flight_by(work: Work) -> Blocked {
    Blocked {
        error: in_flight(),
        by: Some(work),
    }
}

#[cfg_attr(not(feature = "testing"), allow(clippy::needless_pass_by_value))]
fn panicked(panic: Box<dyn Any + Send>) -> Error {
    #[cfg(feature = "testing")]
    let panic = crate::testing::crash_on(panic);
    telemetry::panicked(panic.as_ref());
    Error::new(
        Code::HandlerPanicked,
        "the handler panicked; everything was rolled back and the key is free",
    )
}

fn timed_out(time_limit: Duration) -> Error {
    Error::new(
        Code::TimeLimit,
        format!("the handler did not end within {time_limit:?}; it was rolled back and the key is free"),
    )
}

fn escaped() -> Error {
    Error::new(
        Code::TransactionEscaped,
        "the handler returned without giving its transaction back; do not move CmdTx into a spawned task or a response \
         body. Nothing was committed",
    )
}
