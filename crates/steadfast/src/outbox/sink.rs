//! Sinks as targets: messages that fit a pattern are sent to the other side, many at a time.
//!
//! The engine hands over one message after another, each in its own task, and wants to know what became of it. Those that come
//! while a batch is on its way go with the next one ([`Batcher`]): a single message never waits for company, and under load
//! batches are as large as they may be.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, Location};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::cx::EventCx;
use super::name;
use super::reaction::{Call, Duplicates, OnDead, Reacting, Wants};
use crate::broker::{Confirmation, Sink};
use crate::clock::{Clock, ReadDuration};
use crate::command::CommandOptions;
use crate::error::{Code, Error};
use crate::failure::{Failure, FailureKind};
use crate::queue::WorkOptions;
use crate::retry::{Backoff, Jitter, RetryPolicy};
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::telemetry;

/// How many batches are on their way at once: while one waits for its confirmations, the next is sent.
const BATCHES_AT_ONCE: u32 = 2;

/// How many bytes a batch has at the most, unless a single message has more: a line of a few megabits carries them within the time
/// that a broker gets to confirm.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How a message is sent again that failed, unless the sink says otherwise: twenty times in about two hours. Those on the other side
/// mend their things by hand.
const RETRY: RetryPolicy = RetryPolicy::checked(
    20,
    Backoff::Exponential(Duration::from_secs(1)),
    Duration::from_secs(600),
    Jitter::Full,
    None,
);

type Verdict = Result<Confirmation, Failure>;

/// A sink that is being declared: [`Steadfast::sink`].
#[must_use = "nothing is sent before `deliver_to`"]
pub struct SinkTarget<'s, Db: Database> {
    sf: &'s Steadfast<Db>,
    name: String,
    patterns: Vec<String>,
    retry: RetryPolicy,
    lease: Option<Duration>,
    on_dead: OnDead,
    time_limit: Duration,
    location: &'static Location<'static>,
}

impl<Db: Database> Steadfast<Db> {
    /// Declares where events go beyond this process, under a name that is stored with every delivery: choose it once.
    ///
    /// ```
    /// use steadfast::sqlx::Sqlite;
    /// use steadfast::{Confirmation, Event, EventCx, Failure, Sink, Steadfast};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct OrderPlaced { sku: String }
    ///
    /// impl Event for OrderPlaced {
    ///     const TYPE: &'static str = "order.placed";
    /// }
    ///
    /// struct Log;
    ///
    /// impl Sink for Log {
    ///     async fn send(&self, batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
    ///         batch.iter().map(|event| Ok(Confirmation::new(format!("line of {}", event.id())))).collect()
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// sf.sink("log").events("order.*").deliver_to(Log);
    /// sf.declare().await?; // `serve` and `dispatch` do
    /// let id = sf.transact(async |tx| Ok(tx.publish(&OrderPlaced { sku: "tea".into() })?)).await?;
    /// sf.drain().await?; // `serve` and `dispatch` do it all the time
    ///
    /// let message = sf.message(id).look().await?.expect("it was published");
    /// assert_eq!(message.deliveries[0].detail, Some(format!("line of {id}")));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn sink(&self, name: &str) -> SinkTarget<'_, Db> {
        self.sink_at(name, Location::caller())
    }

    /// The same, declared at this place of the user's.
    pub(crate) fn sink_at(&self, name: &str, location: &'static Location<'static>) -> SinkTarget<'_, Db> {
        SinkTarget {
            sf: self,
            name: name.to_owned(),
            patterns: Vec::new(),
            retry: RETRY,
            lease: None,
            on_dead: OnDead::Wait,
            time_limit: CommandOptions::default().time_limit,
            location,
        }
    }
}

impl<Db: Database> SinkTarget<'_, Db> {
    /// Which events it gets: a type, or the beginning of types and a star, as in `"order.*"`. It may be said more than once;
    /// without it, the sink gets all of them.
    pub fn events(mut self, pattern: &str) -> Self {
        self.patterns.push(pattern.to_owned());
        self
    }

    /// When a message is sent again that failed, and how often, before it is dead: by default twenty times in about two hours.
    /// Times when the other side was away are not counted.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// How long a delivery belongs to a process that says nothing any more; 30 seconds by default.
    ///
    /// # Panics
    /// If the text is no duration.
    pub fn lease(mut self, lease: impl ReadDuration) -> Self {
        self.lease = Some(super::reaction::read(lease));
        self
    }

    /// What becomes of the events behind one that is dead.
    pub fn on_dead(mut self, on_dead: OnDead) -> Self {
        self.on_dead = on_dead;
        self
    }

    /// How long a batch may take to be confirmed; 30 seconds by default. What was not confirmed until then is sent again.
    ///
    /// # Panics
    /// If the text is no duration.
    pub fn time_limit(mut self, time_limit: impl ReadDuration) -> Self {
        self.time_limit = super::reaction::read(time_limit);
        self
    }

    /// Sends them there.
    ///
    /// # Panics
    /// With SF305 if another target has the name. With SF303 if the name or a pattern is not usable.
    pub fn deliver_to(self, sink: impl Sink) {
        let patterns = match self.patterns.is_empty() {
            true => vec!["*".to_owned()],
            false => self.patterns,
        };
        for pattern in &patterns {
            if let Err(rule) = check_pattern(pattern) {
                let message = format!("a sink cannot get events of the type {rule}");
                panic!("{:?}", Error::new(Code::ConfigurationInvalid, message));
            }
        }
        if let Err(rule) = name::check(&self.name) {
            let message = format!("a sink cannot be called {rule}");
            panic!("{:?}", Error::new(Code::ConfigurationInvalid, message));
        }
        let batch_max = sink.batch_max().max(1);
        let name: Arc<str> = self.name.into();
        self.sf.reactions().add(Reacting {
            kinds: vec![name.clone()],
            name,
            wants: Wants::Patterns(patterns),
            is_in_process: false,
            options: WorkOptions {
                retry: self.retry.with_key(),
                lease: self.lease,
                // As many as are on their way at once.
                concurrency: u32::try_from(batch_max)
                    .unwrap_or(u32::MAX)
                    .saturating_mul(BATCHES_AT_ONCE),
                dead_make_room: self.on_dead == OnDead::Skip,
            },
            time_limit: self.time_limit,
            duplicates: Duplicates::Drop,
            call: Call::Sink(Batcher::new(sink, batch_max, self.time_limit, self.sf.clock().clone())),
            location: self.location,
        });
    }
}

/// Whether an event of this type is meant by a pattern that was [checked](check_pattern).
pub(crate) fn fits(pattern: &str, event_type: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => event_type.starts_with(beginning),
        None => pattern == event_type,
    }
}

/// A type, the beginning of one before a dot and a star, or a star alone.
pub(crate) fn check_pattern(pattern: &str) -> Result<(), String> {
    match pattern.strip_suffix('*') {
        Some("") => Ok(()),
        Some(beginning) => match beginning.strip_suffix('.') {
            Some(parts) => name::check(parts),
            None => Err(format!(
                "{pattern:?}; a star stands for whole parts: write \"{beginning}.*\""
            )),
        },
        None => name::check(pattern),
    }
}

/// Sends messages in batches.
pub(super) struct Batcher {
    sink: Box<dyn AnySink>,
    batch_max: usize,
    time_limit: Duration,
    clock: Clock,
    began: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(EventCx, oneshot::Sender<Verdict>)>,
    /// How many batches are on their way.
    sending: u32,
    /// Until when the other side is left alone, which has put off a whole batch.
    away_until: Duration,
}

impl Batcher {
    fn new(sink: impl Sink, batch_max: usize, time_limit: Duration, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            sink: Box::new(sink),
            batch_max,
            time_limit,
            clock,
            began: Instant::now(),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time since it was declared; tests may move it.
    fn now(&self) -> Duration {
        self.began.elapsed().saturating_add(self.clock.offset())
    }

    /// How long the other side is still left alone. With a backlog some message is always due: without this, somebody would knock
    /// all the time.
    fn rest(&self) -> Option<Duration> {
        let rest = self.state().away_until.saturating_sub(self.now());
        Some(rest).filter(|rest| !rest.is_zero())
    }

    /// Sends a message, with others that are there at the same time.
    pub(super) async fn send(self: &Arc<Self>, tasks: &TaskTracker, event: EventCx) -> Verdict {
        if let Some(rest) = self.rest() {
            return Err(Failure::snooze(rest));
        }
        let (tell, told) = oneshot::channel();
        if self.take_in(event, tell) {
            // A task of its own: whoever waits for one message may go away, and takes no other along.
            tasks.spawn(self.clone().send_all());
        }
        told.await.unwrap_or_else(|_| Err(unanswered()))
    }

    /// Takes a message in, and says whether somebody has to begin.
    fn take_in(&self, event: EventCx, tell: oneshot::Sender<Verdict>) -> bool {
        let mut state = self.state();
        state.waiting.push_back((event, tell));
        let begins = state.sending < BATCHES_AT_ONCE;
        state.sending += u32::from(begins);
        begins
    }

    /// The next batch; empty: there is nothing to do any more.
    fn next(&self) -> (Vec<EventCx>, Vec<oneshot::Sender<Verdict>>) {
        let mut state = self.state();
        let mut bytes = 0;
        let fits = |(event, _): &&(EventCx, _)| {
            bytes += event.payload().len();
            bytes <= BATCH_BYTES_MAX
        };
        let fitting = state.waiting.iter().take(self.batch_max).take_while(fits).count();
        let count = fitting.max(1).min(state.waiting.len());
        state.sending -= u32::from(count == 0);
        state.waiting.drain(..count).unzip()
    }

    /// Leaves the other side alone for so long, and puts off who waits for it.
    fn leave_alone(&self, pause: Option<Duration>) {
        let now = self.now();
        let mut state = self.state();
        state.away_until = pause.map_or(Duration::ZERO, |pause| now.saturating_add(pause));
        if let Some(pause) = pause {
            for (_, tell) in state.waiting.drain(..) {
                let _ = tell.send(Err(Failure::snooze(pause)));
            }
        }
    }

    /// Sends one batch after another, until nothing waits.
    async fn send_all(self: Arc<Self>) {
        loop {
            let (batch, waiting) = self.next();
            if batch.is_empty() {
                return;
            }
            let sending = AssertUnwindSafe(self.sink.send(&batch)).catch_unwind();
            let verdicts = match tokio::time::timeout(self.time_limit, sending).await {
                Ok(Ok(verdicts)) => verdicts,
                Ok(Err(panic)) => {
                    #[cfg(feature = "testing")]
                    let panic = crate::testing::crash_on(panic);
                    telemetry::panicked(panic.as_ref());
                    batch.iter().map(|_| Err(Failure::panicked())).collect()
                }
                Err(_) => batch.iter().map(|_| Err(unconfirmed(self.time_limit))).collect(),
            };
            self.leave_alone(put_off(&verdicts));
            let silence = std::iter::repeat_with(|| Err(unanswered()));
            for (tell, verdict) in waiting.into_iter().zip(verdicts.into_iter().chain(silence)) {
                // Whoever is not there any more has lost the lease.
                let _ = tell.send(verdict);
            }
        }
    }
}

/// How long a batch was put off, if all of it was: the other side is away.
fn put_off(verdicts: &[Verdict]) -> Option<Duration> {
    let pause = |verdict: &Verdict| match verdict {
        Err(failure) if failure.kind() == FailureKind::Snooze => failure.retry_after(),
        _ => None,
    };
    let pauses: Option<Vec<_>> = verdicts.iter().map(pause).collect();
    pauses?.into_iter().min()
}

fn unconfirmed(time_limit: Duration) -> Failure {
    Failure::unknown("unconfirmed", format!("it was not confirmed within {time_limit:?}"))
}

fn unanswered() -> Failure {
    Failure::unknown("unanswered", "the sink did not say what became of it")
}

/// A sink whose type is forgotten.
trait AnySink: Send + Sync {
    fn send<'s>(&'s self, batch: &'s [EventCx]) -> Pin<Box<dyn Future<Output = Vec<Verdict>> + Send + 's>>;
}

impl<S: Sink> AnySink for S {
    fn send<'s>(&'s self, batch: &'s [EventCx]) -> Pin<Box<dyn Future<Output = Vec<Verdict>> + Send + 's>> {
        Box::pin(Sink::send(self, batch))
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use uuid::Uuid;

    use super::super::message::Message;
    use super::super::origin::Origin;
    use super::*;
    use crate::clock::Timestamp;

    /// Takes whatever comes.
    struct Anything;

    impl Sink for Anything {
        async fn send(&self, batch: &[EventCx]) -> Vec<Verdict> {
            batch.iter().map(|_| Ok(Confirmation::silent())).collect()
        }
    }

    fn event(length: usize) -> EventCx {
        let message = Message {
            id: Uuid::nil(),
            event_type: "test.large".into(),
            version: 1,
            created_at: Timestamp(0),
            has_expired: false,
            ordering_key: None,
            origin: Origin::of("/test".into()),
            payload: vec![b'x'; length].into(),
            elsewhere: None,
        };
        EventCx::new(message, "test.side".into(), 1, CancellationToken::new())
    }

    #[test]
    fn a_batch_has_so_many_messages_and_so_many_bytes_at_the_most() {
        let batcher = Batcher::new(Anything, 5, Duration::from_secs(1), Clock::default());
        let mib = 1024 * 1024;
        let lengths = [1, 1, 1, 1, 1, 1, mib, mib, mib, mib, mib, 5 * mib, 1];
        for length in lengths {
            batcher.take_in(event(length), oneshot::channel().0);
        }
        let mut sizes = Vec::new();
        while let (batch, _) = batcher.next()
            && !batch.is_empty()
        {
            sizes.push(batch.len());
        }
        // Five by their number. With the byte that is left, four mebibytes would be too many. What is too large goes alone.
        assert_eq!(sizes, [5, 4, 2, 1, 1]);
    }

    #[tokio::test]
    async fn another_side_that_is_away_is_left_alone_for_as_long_as_it_said() {
        use std::sync::atomic::{AtomicUsize, Ordering};

        struct Away(Arc<AtomicUsize>);

        impl Sink for Away {
            async fn send(&self, batch: &[EventCx]) -> Vec<Verdict> {
                self.0.fetch_add(1, Ordering::SeqCst);
                let snooze = || Err(Failure::snooze(Duration::from_secs(20)));
                batch.iter().map(|_| snooze()).collect()
            }
        }

        let (calls, clock, tasks) = (Arc::default(), Clock::default(), TaskTracker::new());
        let batcher = Batcher::new(Away(Arc::clone(&calls)), 5, Duration::from_secs(1), clock.clone());
        for _ in 0..3 {
            let failure = batcher.send(&tasks, event(1)).await.expect_err("it is away");
            assert!(failure.retry_after() > Some(Duration::from_secs(10)));
        }
        assert_eq!(calls.load(Ordering::SeqCst), 1, "it was asked once");
        clock.set_offset(Duration::from_secs(21));
        let _ = batcher.send(&tasks, event(1)).await;
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_pattern_is_a_type_or_the_parts_before_a_star() {
        for pattern in ["*", "order.placed", "order.*", "shop.order.*"] {
            assert_eq!(check_pattern(pattern), Ok(()), "{pattern}");
        }
        for (pattern, says) in [
            ("order*", "write \"order.*\""),
            ("Order.*", "has 'O' in it"),
            ("*.placed", "has '*' in it"),
            ("", "is no name"),
            (".*", "is no name"),
        ] {
            let said = check_pattern(pattern).expect_err(pattern);
            assert!(said.contains(says), "{pattern}: {said}");
        }
    }
}
