//! The loop of a source: receive, handle or keep, and only then tell the source.
//!
//! Nothing is acknowledged that is not durable. If the database is away, what was received waits here, and nothing else is received;
//! if the source is away, what it did not hear of comes again, and its records say that it was handled.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::ahead::{Ahead, Receipts, Received};
use super::batch::{Batch, Todo};
use super::envelope::unreadable;
use super::intake::{AnyFeed, Sourced};
use super::keep::{Keep, Keeping};
use crate::broker::Incoming;
use crate::broker::source::UNPARSABLE;
use crate::clock::random;
use crate::command::attempt::rolled_back;
use crate::command::{CommandOptions, execute};
use crate::error::{Code, Error};
use crate::failure::Failure;
use crate::queue::{TROUBLE, WorkId, WorkPoint};
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};
use crate::telemetry::{self, Retry};

/// How many messages the first transaction has. From there on they are twice as many while it is quick, and half as many when it
/// is slow: handlers that take long hold locks for long, and are all repeated when one of them fails.
const FIRST_BATCH: usize = 8;
const QUICK: Duration = Duration::from_millis(250);
const SLOW: Duration = Duration::from_secs(1);

/// How often messages are handled anew because the database did not answer, before each is on its own: it may be one of them that
/// cuts the connection.
const TROUBLES_MAX: u32 = 3;

/// How often the database refuses messages, while it answers others, before it is one of them that is refused.
const REFUSALS_MAX: u32 = 2;

/// As if the database had been in trouble for so many times: then it is asked every few seconds.
const TROUBLES_LONG: u32 = 10;

/// How long a source may take to end.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How long a source is left alone that had nothing to say.
const EMPTY_PAUSE: Duration = Duration::from_millis(10);

/// How long a source is left alone whose next message cannot be received: it says so each time, until somebody takes that one away.
const STUCK_PAUSE: Duration = Duration::from_secs(10);

/// How long after a panic of a lane itself it begins anew.
const RESTART_AFTER: Duration = Duration::from_secs(1);

impl<Db: Database> Steadfast<Db> {
    /// Receives from all sources until the process is told to stop.
    pub(crate) async fn consume(&self) {
        let mut lanes = Vec::new();
        for source in self.sources().all() {
            for _ in 0..source.concurrency {
                lanes.push(self.tasks().spawn(run(self.clone(), source.clone())));
            }
        }
        for ended in join_all(lanes).await {
            if let Err(error) = ended
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// A lane, which begins anew should it panic.
async fn run<Db: Database>(sf: Steadfast<Db>, source: Arc<Sourced>) {
    loop {
        let lane = Lane {
            sf: sf.clone(),
            source: source.clone(),
            size: FIRST_BATCH.min(source.batch),
        };
        let Err(panic) = AssertUnwindSafe(lane.run()).catch_unwind().await else {
            return;
        };
        #[cfg(feature = "testing")]
        let panic = crate::testing::crash_on(panic);
        telemetry::panicked(panic.as_ref());
        if !pause(&sf, RESTART_AFTER).await {
            return;
        }
    }
}

/// What a message comes to when it is read.
pub(super) enum Reading<Db: Database> {
    Todo(Vec<Todo<Db>>),
    /// It is none of those that are wanted.
    Ignored,
    Unreadable(Failure),
}

pub(super) fn read<Db: Database>(sf: &Steadfast<Db>, source: &Sourced, message: &Incoming) -> Reading<Db> {
    // The user may have a say in it, and what panics would come again for ever.
    let envelope = match catch_unwind(AssertUnwindSafe(|| source.read(message))) {
        Ok(Ok(envelope)) => envelope,
        Ok(Err(failure)) => return Reading::Unreadable(failure),
        Err(panic) => {
            #[cfg(feature = "testing")]
            let panic = crate::testing::crash_on(panic);
            telemetry::panicked(panic.as_ref());
            return Reading::Unreadable(unreadable("panicked", "reading it panicked"));
        }
    };
    if !source.wants(envelope.event_type()) {
        return Reading::Ignored;
    }
    let reactions = sf.reactions().to(envelope.event_type());
    if reactions.is_empty() {
        let words = format!(
            "nobody here reacts to events of the type {:?}; requeue it when somebody does, or do not ask for it (events)",
            envelope.event_type()
        );
        return Reading::Unreadable(unreadable("no_reaction", words));
    }
    if let Some(lag) = envelope.time().and_then(|time| time.elapsed().ok()) {
        telemetry::message_came(&source.name, lag);
    }
    Reading::Todo(Todo::of(source, &envelope, message, reactions))
}

/// Somebody has told the process to stop, and what was received is left to others.
struct Stopped;

/// How messages ended that were handled together.
enum Ended {
    /// So many of them were new.
    Done(u64),
    Failed(Failure),
    /// It did not come to a handler: somebody else may have the record of one of them, and not say so for long.
    Unbegun,
}

struct Lane<Db: Database> {
    sf: Steadfast<Db>,
    source: Arc<Sourced>,
    /// How many messages are received at once.
    size: usize,
}

impl<Db: Database> Lane<Db> {
    async fn run(mut self) {
        let stopping = self.sf.stopping();
        loop {
            let opened = tokio::select! {
                () = stopping.cancelled() => return,
                opened = self.source.source.open(self.source.prefetch) => opened,
            };
            let ended = match opened {
                Ok(feed) => {
                    self.source.is_in_trouble(None);
                    let (feed, ended) = self.work_off(feed).await;
                    // What it does not hear in time it finds out by itself.
                    let _ = tokio::time::timeout(CLOSE_LIMIT, feed.close()).await;
                    ended
                }
                Err(failure) => Ok(failure),
            };
            let Ok(failure) = ended else {
                return;
            };
            let why = match failure.source() {
                Some(source) => format!("{failure} ({source})"),
                None => failure.to_string(),
            };
            self.source.is_in_trouble(Some(failure.code()));
            let address = self.source.source.address();
            let away_for = match failure.code() {
                UNPARSABLE => {
                    telemetry::source_is_stuck(&address, &why);
                    STUCK_PAUSE
                }
                _ => self.source.away.has_missed(&address, &why),
            };
            if !pause(&self.sf, away_for).await {
                return;
            }
        }
    }

    /// Receives and handles, until the source fails. While messages are handled, the source hears of those before them, and what it
    /// has already is received.
    async fn work_off(&mut self, mut feed: Box<dyn AnyFeed>) -> (Box<dyn AnyFeed>, Result<Failure, Stopped>) {
        let (mut handled, mut next) = (None::<Receipts>, None);
        loop {
            let received = match next.take() {
                Some(received) if !self.sf.is_stopping() => received,
                _ => match self.receive(&mut *feed, handled.take()).await {
                    Ok(received) => received,
                    Err(ended) => return (feed, ended),
                },
            };
            let ahead = Ahead {
                sf: self.sf.clone(),
                source: self.source.clone(),
                feed,
                handled: handled.take(),
                max: self
                    .size
                    .min(self.source.prefetch.saturating_sub(received.receipts.len())),
            };
            let going_ahead = self.sf.tasks().spawn(ahead.run());
            let settled = self.settle(received).await;
            let (back, came) = match going_ahead.await {
                Ok(back) => back,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => unreachable!("nobody aborts it"),
                },
            };
            feed = back;
            match (settled, came) {
                (Err(stopped), _) => return (feed, Err(stopped)),
                (Ok(receipts), Ok(came)) => (handled, next) = (Some(receipts), came),
                (Ok(receipts), Err(failure)) => {
                    // It may hear of these, whatever else has failed.
                    let _ = receipts.ack(&mut *feed).await;
                    return (feed, Ok(failure));
                }
            }
        }
    }

    /// Tells the source of those that were handled, and waits for messages.
    async fn receive(
        &self,
        feed: &mut dyn AnyFeed,
        handled: Option<Receipts>,
    ) -> Result<Received<Db>, Result<Failure, Stopped>> {
        if let Some(handled) = handled {
            handled.ack(feed).await.map_err(Ok)?;
        }
        let stopping = self.sf.stopping();
        loop {
            let received = tokio::select! {
                biased;
                () = stopping.cancelled() => return Err(Err(Stopped)),
                received = feed.receive(self.size.min(self.source.prefetch)) => received,
            };
            let messages = received.map_err(Ok)?;
            self.source.away.is_back(&self.source.source.address());
            if !messages.is_empty() {
                return Ok(Received::read(&self.sf, &self.source, messages));
            }
            tokio::time::sleep(EMPTY_PAUSE).await;
        }
    }

    fn passes(&self, point: WorkPoint, item: uuid::Uuid) {
        let id = WorkId {
            item,
            kind: &self.source.name,
            attempt: 1,
        };
        self.sf.passes(point, &id);
    }

    /// Sees to it that the database knows of each message: that it was handled, or that it is kept. The source may forget them then.
    async fn settle(&mut self, received: Received<Db>) -> Result<Receipts, Stopped> {
        let Received {
            receipts,
            now,
            mut kept,
            ignored,
            items,
        } = received;
        telemetry::messages_were(&self.source.name, "ignored", ignored);
        for item in &items {
            self.passes(WorkPoint::AfterReceive, *item);
        }
        kept.extend(self.handle(now).await?);
        self.keep(kept).await?;
        for item in &items {
            self.passes(WorkPoint::AfterCommitBeforeAck, *item);
        }
        Ok(receipts)
    }

    /// Handles messages, together if that is possible, and says which have failed.
    async fn handle(&mut self, todos: Vec<Todo<Db>>) -> Result<Vec<Keep>, Stopped> {
        let mut kept = Vec::new();
        if todos.is_empty() {
            return Ok(kept);
        }
        let todos = Arc::new(todos);
        let began = Instant::now();
        match self.attempt(&todos, 0..todos.len()).await? {
            Ended::Done(new) => {
                self.tell_done(new, todos.len());
                let took = began.elapsed();
                if took >= SLOW {
                    self.size = (self.size / 2).max(1);
                } else if took < QUICK && todos.len() >= self.size {
                    self.size = (self.size * 2).min(self.source.batch);
                }
            }
            ended if todos.len() == 1 => kept.extend(self.judge(&todos[0], ended)),
            _ => {
                self.size = (self.size / 2).max(1);
                for place in 0..todos.len() {
                    let ended = self.attempt(&todos, place..place + 1).await?;
                    kept.extend(self.judge(&todos[place], ended));
                }
            }
        }
        Ok(kept)
    }

    /// What becomes of a message that was handled alone, unless it is done.
    fn judge(&self, todo: &Todo<Db>, ended: Ended) -> Option<Keep> {
        match ended {
            Ended::Done(new) => {
                self.tell_done(new, 1);
                None
            }
            Ended::Failed(failure) => Some(Keep::failed(todo, failure)),
            Ended::Unbegun => Some(Keep::of(todo)),
        }
    }

    fn tell_done(&self, new: u64, of: usize) {
        telemetry::messages_were(&self.source.name, "handled", new);
        telemetry::messages_were(&self.source.name, "duplicate", (of as u64).saturating_sub(new));
    }

    /// Handles these messages in one transaction. That the database is away is waited out.
    async fn attempt(&self, todos: &Arc<Vec<Todo<Db>>>, range: Range<usize>) -> Result<Ended, Stopped> {
        let mut troubles = 0;
        loop {
            let has_begun = Arc::new(AtomicBool::new(false));
            let batch = Batch {
                sf: self.sf.clone(),
                todos: todos.clone(),
                range: range.clone(),
                has_begun: has_begun.clone(),
            };
            let failed = |failure| match has_begun.load(Ordering::Relaxed) {
                true => Ended::Failed(failure),
                false => Ended::Unbegun,
            };
            let options = batch.options();
            let error = match execute::transact(&self.sf, &options, None, batch).await {
                Ok(Ok(new)) => return Ok(Ended::Done(new)),
                Ok(Err(failure)) => match execute::trouble_of::<Db>(&failure) {
                    Some(error) if is_trouble(&error) && troubles < TROUBLES_MAX => error,
                    _ => return Ok(failed(failure)),
                },
                Err(error) if is_trouble(&error) && troubles < TROUBLES_MAX => error,
                Err(error) => return Ok(failed(rolled_back(error))),
            };
            troubles += 1;
            self.wait_for_database(&error, troubles).await?;
        }
    }

    /// Keeps messages, whatever it takes: together if that is possible. One that somebody else holds is waited for, and those behind it
    /// are not kept waiting. What the database refuses on its own is set apart.
    async fn keep(&self, kept: Vec<Keep>) -> Result<(), Stopped> {
        if kept.is_empty() {
            return Ok(());
        }
        let kept = Arc::new(kept);
        if kept.len() > 1 && self.store(&kept, 0..kept.len()).await?.is_ok() {
            return Ok(());
        }
        let (mut left, mut rounds): (Vec<_>, _) = ((0..kept.len()).collect(), 0);
        loop {
            let (mut held, mut why) = (Vec::new(), None);
            for place in left {
                match self.store(&kept, place..place + 1).await? {
                    Ok(()) => {}
                    Err(error) if is_held(&error) => {
                        held.push(place);
                        why = Some(error);
                    }
                    Err(error) => self.set_apart(&kept, place, error).await?,
                }
            }
            let Some(error) = why else {
                return Ok(());
            };
            rounds += 1;
            self.wait_for_database(&error, rounds).await?;
            left = held;
        }
    }

    /// Keeps a message that the database refuses as it is. Should it refuse this too, the message stays with the broker: nothing is
    /// acknowledged that is nowhere else. It may be nothing of its own then, but a right that is missing, or a table: so the message as
    /// it is comes first each time.
    async fn set_apart(&self, kept: &Arc<Vec<Keep>>, place: usize, error: Error) -> Result<(), Stopped> {
        let mut why = error;
        loop {
            if !is_held(&why) {
                let apart = Arc::new(vec![kept[place].apart(&self.source, &why)]);
                let Err(error) = self.write(&apart, 0..1).await else {
                    telemetry::message_set_apart(&self.source.name, apart[0].item(), &why);
                    return Ok(());
                };
                why = error;
            }
            self.wait_for_database(&why, TROUBLES_LONG).await?;
            match self.store(kept, place..place + 1).await? {
                Ok(()) => return Ok(()),
                Err(error) => why = error,
            }
        }
    }

    /// Writes messages into the database, or says why it refuses them, or that somebody else holds one of them. That the database is
    /// away is waited out.
    async fn store(&self, kept: &Arc<Vec<Keep>>, range: Range<usize>) -> Result<Result<(), Error>, Stopped> {
        let (mut troubles, mut refusals) = (0, 0);
        loop {
            let Err(error) = self.write(kept, range.clone()).await else {
                return Ok(Ok(()));
            };
            refusals += u32::from(!is_trouble(&error));
            if is_held(&error) || refusals >= REFUSALS_MAX {
                return Ok(Err(error));
            }
            troubles += 1;
            self.wait_for_database(&error, troubles).await?;
        }
    }

    /// The same, once.
    async fn write(&self, kept: &Arc<Vec<Keep>>, range: Range<usize>) -> Result<(), Error> {
        let options = CommandOptions::default();
        let keeping = Keeping::new(kept.clone(), range.clone());
        let written = execute::transact(&self.sf, &options, None, keeping).await?;
        let new = written.map_err(|failure| Error::failed(failure, false).unwrapped())?;
        self.sf.rows_were_committed();
        self.tell_kept(&kept[range], new);
        Ok(())
    }

    fn tell_kept(&self, kept: &[Keep], new: u64) {
        let dead = kept.iter().filter(|keep| keep.after.is_none()).count() as u64;
        let known = (kept.len() as u64).saturating_sub(new);
        telemetry::messages_were(&self.source.name, "dead", dead);
        telemetry::messages_were(&self.source.name, "duplicate", known);
        telemetry::messages_were(&self.source.name, "kept", new.saturating_sub(dead));
        for keep in kept {
            match (keep.after, &keep.failure) {
                (None, _) if keep.kind() == &*self.source.name => {
                    telemetry::message_unreadable(&self.source.name, keep.item(), keep.code());
                }
                (None, _) => {
                    telemetry::row_died(keep.kind(), keep.item(), keep.code());
                    telemetry::deliveries_ended(keep.kind(), "dead", 1);
                }
                (Some(after), Some(_)) => {
                    telemetry::retrying(&Retry {
                        operation: keep.kind(),
                        attempt: 1,
                        after,
                        correlation_id: keep.correlation_id(),
                        code: keep.code(),
                    });
                    telemetry::deliveries_ended(keep.kind(), "retried", 1);
                }
                (Some(_), None) => {}
            }
        }
    }

    /// Waits until the database answers. Whoever stops does not wait for that.
    async fn wait_for_database(&self, error: &Error, mut troubles: u32) -> Result<(), Stopped> {
        telemetry::inbox_failed(&self.source.name, error);
        loop {
            if !pause(&self.sf, TROUBLE.delay(troubles, random)).await {
                return Err(Stopped);
            }
            // In a task of its own, so that no query is cut off in the middle.
            let sf = self.sf.clone();
            let asking = tokio::spawn(async move { sf.store().ping().await });
            let answer = tokio::select! {
                () = self.sf.stopped() => return Err(Stopped),
                answer = asking => answer,
            };
            if matches!(answer, Ok(Ok(()))) {
                return Ok(());
            }
            troubles += 1;
        }
    }
}

/// Waits for so long. False: the process is told to stop.
async fn pause<Db: Database>(sf: &Steadfast<Db>, duration: Duration) -> bool {
    tokio::select! {
        () = sf.stopped() => false,
        () = tokio::time::sleep(duration) => true,
    }
}

/// Whether a statement has waited in vain, for as long as it may: for the record of a message that somebody else works on. Whether it
/// was handled is known when that one has ended, and not before.
fn is_held(error: &Error) -> bool {
    error.code() == Code::TimeLimit
}

/// Whether it is the database that is in trouble, and not the handler. Nothing is known of a commit whose reply was lost: the next
/// attempt finds the record, or it does not.
fn is_trouble(error: &Error) -> bool {
    matches!(
        error.code(),
        Code::Unreachable
            | Code::ConnectionLost
            | Code::PoolExhausted
            | Code::Locked
            | Code::ReadOnly
            | Code::Full
            | Code::Conflict
            | Code::CommitUnknown
            | Code::ShuttingDown
    )
}
