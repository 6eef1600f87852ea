//! The loop of a source: receive, handle or keep, and only then tell the source.
//!
//! Nothing is acknowledged that is not durable. If the database is away, what was received waits here, and nothing else is received;
//! if the source is away, what it did not hear of comes again, and its records say that it was handled.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::batch::{Batch, Todo};
use super::envelope::unreadable;
use super::intake::{AnyFeed, Sourced};
use super::keep::{Keep, Keeping};
use crate::broker::Incoming;
use crate::clock::random;
use crate::command::{CommandOptions, execute};
use crate::error::{Code, Error};
use crate::failure::Failure;
use crate::outbox::reaction::rolled_back;
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

/// How long a source may take to hear that messages were handled, and to end.
const ACK_LIMIT: Duration = Duration::from_secs(10);
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How long a source is left alone that had nothing to say.
const EMPTY_PAUSE: Duration = Duration::from_millis(10);

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
                Ok(mut feed) => {
                    let ended = self.work_off(&mut *feed).await;
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
            let away_for = self.source.away.has_missed(&self.source.source.address(), &why);
            if !pause(&self.sf, away_for).await {
                return;
            }
        }
    }

    /// Receives and handles, until the source fails.
    async fn work_off(&mut self, feed: &mut dyn AnyFeed) -> Result<Failure, Stopped> {
        let stopping = self.sf.stopping();
        loop {
            let received = tokio::select! {
                biased;
                () = stopping.cancelled() => return Err(Stopped),
                received = feed.receive(self.size) => received,
            };
            let messages = match received {
                Ok(messages) => messages,
                Err(failure) => return Ok(failure),
            };
            self.source.away.is_back(&self.source.source.address());
            if messages.is_empty() {
                tokio::time::sleep(EMPTY_PAUSE).await;
                continue;
            }
            let receipts: Vec<_> = messages.iter().map(Incoming::receipt).collect();
            self.source.took(receipts.len());
            let acked = match self.settle(messages).await {
                Ok(items) => {
                    for item in &items {
                        self.passes(WorkPoint::AfterCommitBeforeAck, *item);
                    }
                    let acked = tokio::time::timeout(ACK_LIMIT, feed.ack(&receipts)).await;
                    Ok(acked.unwrap_or_else(|_| Err(Failure::unknown("unanswered", "it does not answer"))))
                }
                Err(stopped) => Err(stopped),
            };
            self.source.let_go(receipts.len());
            if let Err(failure) = acked? {
                return Ok(failure);
            }
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

    /// Sees to it that the database knows of each message: that it was handled, or that it is kept. Says which ones they were.
    async fn settle(&mut self, messages: Vec<Incoming>) -> Result<Vec<uuid::Uuid>, Stopped> {
        let (mut now, mut kept, mut ignored, mut items) = (Vec::new(), Vec::new(), 0, Vec::new());
        for message in messages {
            match read(&self.sf, &self.source, &message) {
                Reading::Todo(todos) => {
                    items.extend(todos.first().map(|todo| todo.cx.message().id));
                    let (for_now, for_later): (Vec<_>, Vec<_>) = todos.into_iter().partition(Todo::is_for_now);
                    now.extend(for_now);
                    kept.extend(for_later.iter().map(Keep::of));
                }
                Reading::Ignored => ignored += 1,
                Reading::Unreadable(failure) => {
                    let keep = Keep::unreadable(&self.source, message, &failure);
                    items.push(*keep.item());
                    kept.push(keep);
                }
            }
        }
        telemetry::messages_were(&self.source.name, "ignored", ignored);
        for item in &items {
            self.passes(WorkPoint::AfterReceive, *item);
        }
        kept.extend(self.handle(now).await?);
        self.keep(kept).await?;
        Ok(items)
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
            Ended::Failed(failure) if todos.len() == 1 => kept.push(Keep::failed(&todos[0], failure)),
            Ended::Failed(_) => {
                self.size = (self.size / 2).max(1);
                for place in 0..todos.len() {
                    match self.attempt(&todos, place..place + 1).await? {
                        Ended::Done(new) => self.tell_done(new, 1),
                        Ended::Failed(failure) => kept.push(Keep::failed(&todos[place], failure)),
                    }
                }
            }
        }
        Ok(kept)
    }

    fn tell_done(&self, new: u64, of: usize) {
        telemetry::messages_were(&self.source.name, "handled", new);
        telemetry::messages_were(&self.source.name, "duplicate", (of as u64).saturating_sub(new));
    }

    /// Handles these messages in one transaction. That the database is away is waited out.
    async fn attempt(&self, todos: &Arc<Vec<Todo<Db>>>, range: std::ops::Range<usize>) -> Result<Ended, Stopped> {
        let mut troubles = 0;
        loop {
            let batch = Batch {
                sf: self.sf.clone(),
                todos: todos.clone(),
                range: range.clone(),
            };
            let options = batch.options();
            let error = match execute::transact(&self.sf, &options, None, batch).await {
                Ok(Ok(new)) => return Ok(Ended::Done(new)),
                Ok(Err(failure)) => match execute::trouble_of::<Db>(&failure) {
                    Some(error) if is_trouble(&error) && troubles < TROUBLES_MAX => error,
                    _ => return Ok(Ended::Failed(failure)),
                },
                Err(error) if is_trouble(&error) && troubles < TROUBLES_MAX => error,
                Err(error) => return Ok(Ended::Failed(rolled_back(error))),
            };
            troubles += 1;
            self.wait_for_database(&error, troubles).await?;
        }
    }

    /// Keeps messages, whatever it takes.
    async fn keep(&self, kept: Vec<Keep>) -> Result<(), Stopped> {
        if kept.is_empty() {
            return Ok(());
        }
        self.bury(&kept).await?;
        let kept = Arc::new(kept);
        let mut troubles = 0;
        let new = loop {
            let options = CommandOptions::default();
            let error = match execute::transact(&self.sf, &options, None, Keeping(kept.clone())).await {
                Ok(Ok(new)) => break new,
                Ok(Err(failure)) => Error::failed(failure, false).unwrapped(),
                Err(error) => error,
            };
            troubles += 1;
            self.wait_for_database(&error, troubles).await?;
        };
        self.sf.rows_were_committed();
        self.tell_kept(&kept, new);
        Ok(())
    }

    /// Messages that are given up go to the dead letters of the broker too, if it has any, before anybody forgets them.
    async fn bury(&self, kept: &[Keep]) -> Result<(), Stopped> {
        if !self.source.source.has_dead_letters() {
            return Ok(());
        }
        for keep in kept.iter().filter(|keep| keep.after.is_none()) {
            while let Err(failure) = self.source.source.bury(&keep.incoming, keep.code()).await {
                let away_for = self
                    .source
                    .away
                    .has_missed(&self.source.source.address(), failure.message());
                if !pause(&self.sf, away_for).await {
                    return Err(Stopped);
                }
            }
        }
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

    /// Waits until the database answers.
    async fn wait_for_database(&self, error: &Error, mut troubles: u32) -> Result<(), Stopped> {
        telemetry::inbox_failed(&self.source.name, error);
        loop {
            if !pause(&self.sf, TROUBLE.delay(troubles, random)).await {
                return Err(Stopped);
            }
            if self.sf.store().ping().await.is_ok() {
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
