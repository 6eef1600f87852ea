//! Sinks as targets: messages that fit a pattern are sent to the other side, many at a time.
//!
//! The engine hands over a batch: whatever there was when a hand was free. It wants to know of each message what became of it.

use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::cx::EventCx;
use super::name;
use super::reaction::{Call, Duplicates, OnDead, Reacting, Wants};
use crate::broker::{Confirmation, Sink};
use crate::clock::{Clock, ReadDuration};
use crate::command::{CommandOptions, attempt};
use crate::error::{Code, Error};
use crate::failure::{Failure, FailureKind};
use crate::queue::WorkOptions;
use crate::retry::{Backoff, Jitter, RetryPolicy};
use crate::steadfast::Steadfast;
use crate::store::Database;

/// How many batches are on their way at once: while one waits for its confirmations, the next is sent.
const BATCHES_AT_ONCE: u32 = 2;

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
        self.lease = Some(attempt::read(lease));
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
        self.time_limit = attempt::read(time_limit);
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
        let batch = u32::try_from(sink.batch_max().max(1)).unwrap_or(u32::MAX);
        let name: Arc<str> = self.name.into();
        self.sf.reactions().add(Reacting {
            kinds: vec![name.clone()],
            name,
            wants: Wants::Patterns(patterns),
            is_in_process: false,
            options: WorkOptions {
                retry: self.retry.with_key(),
                lease: self.lease,
                concurrency: BATCHES_AT_ONCE,
                batch,
                dead_make_room: self.on_dead == OnDead::Skip,
            },
            time_limit: self.time_limit,
            duplicates: Duplicates::Drop,
            call: Call::Sink(Sending::new(sink, self.sf.clock().clone())),
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

/// A sink that has been declared.
pub(super) struct Sending {
    sink: Box<dyn AnySink>,
    clock: Clock,
    began: Instant,
    /// Until when the other side is left alone, which has put off a whole batch: microseconds since it was declared.
    away_until: AtomicU64,
}

impl Sending {
    fn new(sink: impl Sink, clock: Clock) -> Self {
        Self {
            sink: Box::new(sink),
            clock,
            began: Instant::now(),
            away_until: AtomicU64::new(0),
        }
    }

    /// The time since it was declared; tests may move it.
    fn now(&self) -> Duration {
        self.began.elapsed().saturating_add(self.clock.offset())
    }

    /// How long the other side is still left alone. With a backlog some message is always due: without this, somebody would knock
    /// all the time.
    pub(super) fn rests_for(&self) -> Option<Duration> {
        let until = Duration::from_micros(self.away_until.load(Ordering::Relaxed));
        Some(until.saturating_sub(self.now())).filter(|rest| !rest.is_zero())
    }

    /// Leaves the other side alone for so long.
    fn leave_alone(&self, pause: Option<Duration>) {
        let until = pause.map_or(Duration::ZERO, |pause| self.now().saturating_add(pause));
        let micros = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
        self.away_until.store(micros, Ordering::Relaxed);
    }

    /// Sends messages, and has a verdict on each.
    pub(super) async fn send(&self, batch: &[EventCx], time_limit: Duration) -> Vec<Verdict> {
        if batch.is_empty() {
            return Vec::new();
        }
        if let Some(rest) = self.rests_for() {
            return batch.iter().map(|_| Err(Failure::snooze(rest))).collect();
        }
        let sending = tokio::time::timeout(time_limit, self.sink.send(batch)).await;
        let mut verdicts = sending.unwrap_or_else(|_| batch.iter().map(|_| Err(unconfirmed(time_limit))).collect());
        self.leave_alone(put_off(&verdicts));
        verdicts.resize_with(batch.len(), || Err(unanswered()));
        verdicts
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

    fn event() -> EventCx {
        let message = Message {
            id: Uuid::nil(),
            event_type: "test.tagged".into(),
            version: 1,
            created_at: Timestamp(0),
            has_expired: false,
            ordering_key: None,
            origin: Origin::of("/test".into()),
            payload: "{}".into(),
            elsewhere: None,
        };
        EventCx::new(message, "test.side".into(), 1, CancellationToken::new())
    }

    #[tokio::test]
    async fn another_side_that_is_away_is_left_alone_for_as_long_as_it_said() {
        struct Away(Arc<AtomicU64>);

        impl Sink for Away {
            async fn send(&self, batch: &[EventCx]) -> Vec<Verdict> {
                self.0.fetch_add(1, Ordering::SeqCst);
                let snooze = || Err(Failure::snooze(Duration::from_secs(20)));
                batch.iter().map(|_| snooze()).collect()
            }
        }

        let (calls, clock) = (Arc::default(), Clock::default());
        let sending = Sending::new(Away(Arc::clone(&calls)), clock.clone());
        let send = async || sending.send(&[event(), event()], Duration::from_secs(1)).await;
        for _ in 0..3 {
            for verdict in send().await {
                let failure = verdict.expect_err("it is away");
                assert!(failure.retry_after() > Some(Duration::from_secs(10)));
            }
        }
        assert_eq!(calls.load(Ordering::SeqCst), 1, "it was asked once");
        clock.set_offset(Duration::from_secs(21));
        send().await;
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
