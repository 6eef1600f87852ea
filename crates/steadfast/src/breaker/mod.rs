//! Circuit breakers: when a dependency is down, callers are told at once to come back later, instead of hammering it.
//!
//! ```
//! use steadfast::breaker::{Breaker, BreakerState};
//! use steadfast::Failure;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> steadfast::Result<()> {
//! let payments = Breaker::named("payments").consecutive_failures(3).open_for("30s").build()?;
//!
//! for _ in 0..3 {
//!     let lost = payments.call(async || Err::<(), _>(Failure::transient("lost", "no reply"))).await;
//!     assert!(lost.is_err());
//! }
//! assert_eq!(payments.state(), BreakerState::Open);
//!
//! let postponed = payments.permit().expect_err("it is open");
//! assert!(postponed.retry_in().expect("it closes by itself").as_secs() <= 30);
//! # Ok(())
//! # }
//! ```
//!
//! A breaker is per process, shared by its clones; [`Steadfast::breaker`](crate::Steadfast::breaker) finds it by name, and
//! [`shared`](BreakerOptions::shared) shares it with all processes on a database. It stands *inside* a retry: every attempt
//! counts. An open breaker is no failure of the call: the call was not made, and no attempt is spent.
//!
//! `state.rs` decides, `gate.rs` lets many callers at it, `options.rs` says what cannot be, `shared.rs` talks to the
//! database, `operate.rs` to people, `layer.rs` to tower.

mod gate;
#[cfg(feature = "tower")]
mod layer;
mod operate;
mod options;
mod registry;
mod shared;
mod state;
mod sync;
#[cfg(test)]
mod tests;

use std::borrow::Borrow;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;

use gate::{Change, Gate};
#[cfg(feature = "tower")]
pub use layer::{BreakerLayer, BreakerService, Counts, LayerError, ServerErrors};
pub use operate::SharedBreaker;
pub use options::BreakerOptions;
pub(crate) use registry::Breakers;
pub(crate) use shared::{BreakerRow, BreakerWrite};
pub use state::BreakerState;
use state::{Answer, Machine, Moment, Pass, Settings};

use crate::clock::{Clock, micros};
use crate::failure::{Failure, FailureKind};
use crate::telemetry;
use shared::Share;

/// How many events a slow subscriber may lag behind before it misses some. Breakers change state seldom.
const EVENTS_KEPT: usize = 64;

/// What a failure says about the dependency. A definitive one is an answer. One that was put off or cancelled says nothing: it may
/// never have come to a call, as behind another breaker that is open.
fn answer(failure: &Failure) -> Option<Answer> {
    match failure.kind() {
        FailureKind::Transient | FailureKind::Unknown => Some(Answer::Failure),
        FailureKind::Definitive(_) => Some(Answer::Success),
        FailureKind::Snooze | FailureKind::Cancelled => None,
    }
}

/// Watches over calls to one dependency. Cheap to clone; clones share their state.
#[derive(Clone)]
pub struct Breaker(Arc<Inner>);

struct Inner {
    name: Arc<str>,
    settings: Settings,
    gate: Gate,
    clock: Clock,
    began: Instant,
    events: broadcast::Sender<BreakerEvent>,
    /// Made at the first change of state, when a recorder is surely there, so that an open breaker need not allocate.
    rejected: OnceLock<metrics::Counter>,
    share: Option<Share>,
}

/// A breaker has changed its state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerEvent {
    /// Whose.
    pub breaker: Arc<str>,
    /// What it was.
    pub from: BreakerState,
    /// What it is.
    pub to: BreakerState,
}

/// Who changed it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Calls in this process.
    Calls,
    /// A person, in this process.
    Person,
    /// Another process.
    Elsewhere,
}

impl Breaker {
    /// Describes a breaker: opens after 5 failures in a row, for 30 seconds, then for twice as long each time up to five
    /// minutes; half-open it lets one call through.
    ///
    /// ```
    /// # use steadfast::breaker::Breaker;
    /// let mail = Breaker::named("mail").failure_rate(0.5).window(200).minimum_calls(20).open_for("5s").cap("2m").build()?;
    ///
    /// let refused = Breaker::named("mail").failure_rate(1.5).build().unwrap_err();
    /// assert_eq!(refused.code().as_str(), "SF303");
    /// # Ok::<(), steadfast::Error>(())
    /// ```
    pub fn named(name: &str) -> BreakerOptions {
        BreakerOptions::new(name)
    }

    fn new(name: Arc<str>, settings: Settings, clock: Clock, share: Option<Share>) -> Self {
        telemetry::breaker_is(&name, BreakerState::Closed);
        Self(Arc::new(Inner {
            name,
            settings,
            gate: Gate::new(settings),
            clock,
            began: Instant::now(),
            events: broadcast::Sender::new(EVENTS_KEPT),
            rejected: OnceLock::new(),
            share,
        }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What it is doing. An open breaker whose time is over stays open until a call comes.
    pub fn state(&self) -> BreakerState {
        self.0.gate.look(Machine::state)
    }

    /// Makes a call if the breaker lets it, and counts what comes back: a transient or unknown failure against the dependency,
    /// a definitive one for it, since it has answered. A call that is put off, cancelled, dropped or panics counts as nothing.
    ///
    /// ```
    /// # use steadfast::breaker::{Breaker, CallError};
    /// # use steadfast::Failure;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), steadfast::Error> {
    /// # let breaker = Breaker::named("quotes").build()?;
    /// match breaker.call(async || Ok(42)).await {
    ///     Ok(quote) => println!("{quote}"),
    ///     Err(CallError::Open(open)) => println!("not now; again in {:?}", open.retry_in()),
    ///     Err(CallError::Failed(failure)) => println!("{failure}"),
    /// }
    ///
    /// async fn handler(breaker: &Breaker) -> Result<u32, Failure> {
    ///     Ok(breaker.call(async || Ok(42)).await?) // an open breaker is a snooze here: no attempt is spent
    /// }
    /// # handler(&breaker).await.expect("42");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CallError::Open`] if the call was not made, [`CallError::Failed`] with what it returned.
    pub async fn call<T>(&self, work: impl AsyncFnOnce() -> Result<T, Failure>) -> Result<T, CallError> {
        let permit = self.permit().map_err(CallError::Open)?;
        match work().await {
            Ok(value) => {
                permit.success();
                Ok(value)
            }
            Err(failure) => {
                permit.failure(&failure);
                Err(CallError::Failed(failure))
            }
        }
    }

    /// Asks for one call. Say how it ended by [`Permit::success`] or [`Permit::failure`].
    ///
    /// It never waits and does not allocate, whether the answer is yes or no.
    ///
    /// # Errors
    /// [`Open`] if the call should not be made now.
    #[inline]
    pub fn permit(&self) -> Result<Permit<'_>, Open> {
        let pass = match self.0.gate.pass() {
            None => Some(self.enter()?),
            pass => pass,
        };
        Ok(Permit(Held { breaker: self, pass }))
    }

    /// How long it lets nobody through, if nobody tells it to: for those who would rather not ask in vain.
    pub(crate) fn rests_for(&self) -> Option<Duration> {
        if self.0.gate.pass().is_some() {
            return None;
        }
        let refusal = self.0.gate.look(|machine| machine.refuses(self.now()))?;
        Some(refusal.retry_in.unwrap_or(Duration::MAX))
    }

    /// How many it lets through now, if it counts them.
    pub(crate) fn probes_left(&self) -> Option<u32> {
        if self.0.gate.pass().is_some() {
            return None;
        }
        self.0.gate.look(|machine| machine.probes_left(self.now()))
    }

    /// Lets nobody through until [`reset`](Self::reset) or [`force_closed`](Self::force_closed), in all processes if it is
    /// shared.
    pub fn force_open(&self) {
        self.order(Machine::force_open);
    }

    /// Lets everybody through and counts nothing until [`reset`](Self::reset) or [`force_open`](Self::force_open), in all
    /// processes if it is shared.
    pub fn force_closed(&self) {
        self.order(Machine::force_closed);
    }

    /// Closes it, whatever it is now, and forgets what was counted.
    pub fn reset(&self) {
        self.order(Machine::reset);
    }

    /// Every change of state from now on. Who lags more than 64 behind misses the oldest.
    ///
    /// ```
    /// # use steadfast::breaker::{Breaker, BreakerState};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// let breaker = Breaker::named("payments").build()?;
    /// let mut events = breaker.subscribe();
    /// breaker.force_open();
    /// let event = events.recv().await.expect("the breaker is there");
    /// assert_eq!((event.from, event.to), (BreakerState::Closed, BreakerState::ForcedOpen));
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe(&self) -> broadcast::Receiver<BreakerEvent> {
        self.0.events.subscribe()
    }

    fn settings(&self) -> &Settings {
        &self.0.settings
    }

    fn share(&self) -> Option<&Share> {
        self.0.share.as_ref()
    }

    fn enter(&self) -> Result<Pass, Open> {
        let entered = self.watched(Origin::Calls, |gate, changed| gate.enter(|| self.now(), changed));
        entered.map_err(|refusal| {
            self.rejected().increment(1);
            Open {
                breaker: self.0.name.clone(),
                retry_in: refusal.retry_in,
            }
        })
    }

    /// A person's word. It is passed on even if nothing changed here: it may elsewhere.
    fn order(&self, order: impl FnOnce(&mut Machine)) {
        let act = |machine: &mut Machine| {
            order(machine);
            if let Some(share) = &self.0.share {
                share.ordered();
            }
        };
        self.watched(Origin::Person, |gate, changed| gate.act(act, changed));
    }

    fn record(&self, pass: Pass, answer: Answer) {
        self.watched(Origin::Calls, |gate, changed| {
            gate.record(pass, answer, || self.now(), changed);
        });
    }

    fn now(&self) -> Moment {
        let moved = u64::try_from(micros(self.0.clock.offset())).unwrap_or_default();
        Moment(moved).after(self.0.began.elapsed())
    }

    /// Does something that may change the state, and tells of it: to machines under the lock, so that they hear of changes
    /// in their order; to people after it, since whoever writes the log may be a caller of ours.
    fn watched<R>(&self, origin: Origin, act: impl FnOnce(&Gate, &mut dyn FnMut(Change)) -> R) -> R {
        let mut told = None;
        let done = act(&self.0.gate, &mut |change| {
            self.announce(change, origin);
            told = Some(change);
        });
        if let Some(Change { from, to }) = told {
            telemetry::breaker_turned(&self.0.name, from, to, origin == Origin::Elsewhere);
        }
        done
    }

    fn announce(&self, change: Change, origin: Origin) {
        let Change { from, to } = change;
        self.rejected();
        telemetry::breaker_changed(&self.0.name, to);
        // Nobody has to listen.
        let _ = self.0.events.send(BreakerEvent {
            breaker: self.0.name.clone(),
            from,
            to,
        });
        if let (Origin::Calls, Some(share)) = (origin, &self.0.share)
            && to != BreakerState::HalfOpen
        {
            share.judged();
        }
    }

    fn rejected(&self) -> &metrics::Counter {
        self.0
            .rejected
            .get_or_init(|| telemetry::breaker_rejections(&self.0.name))
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker")
            .field("name", &self.0.name)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// One call that may be made. Dropped without a word it counts as nothing, and a probe's place is free again.
#[must_use = "say how the call ended: `success()` or `failure(..)`"]
pub struct Permit<'b>(Held<&'b Breaker>);

impl Permit<'_> {
    /// The dependency did what was asked.
    #[inline]
    pub fn success(mut self) {
        if self
            .0
            .pass
            .is_some_and(|pass| self.0.breaker.0.gate.needs_no_count(pass))
        {
            self.0.pass = None;
        } else {
            self.0.end(Answer::Success);
        }
    }

    /// The call failed. A definitive failure counts as an answer: the dependency is there. A snooze or a cancellation counts as
    /// nothing.
    pub fn failure(self, failure: &Failure) {
        if let Some(answer) = answer(failure) {
            self.0.end(answer);
        }
    }
}

impl fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit").field(&self.0.breaker.name()).finish()
    }
}

/// A pass that is given back when it is dropped.
struct Held<B: Borrow<Breaker>> {
    breaker: B,
    /// Until it is used up.
    pass: Option<Pass>,
}

impl<B: Borrow<Breaker>> Held<B> {
    fn end(mut self, answer: Answer) {
        if let Some(pass) = self.pass.take() {
            self.breaker.borrow().record(pass, answer);
        }
    }
}

impl<B: Borrow<Breaker>> Drop for Held<B> {
    #[inline]
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.breaker.borrow().0.gate.release(pass);
        }
    }
}

/// The breaker is open: the call was not made, and is postponed rather than failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    breaker: Arc<str>,
    retry_in: Option<Duration>,
}

impl Open {
    /// Which breaker.
    pub fn breaker(&self) -> &str {
        &self.breaker
    }

    /// When it is worth asking again; `None` if it was forced open and only a person can change that.
    pub fn retry_in(&self) -> Option<Duration> {
        self.retry_in
    }
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the breaker {} is open; ", self.breaker)?;
        match self.retry_in {
            Some(retry_in) => write!(f, "come back in {retry_in:.1?}"),
            None => write!(f, "it was forced, and stays so until it is reset"),
        }
    }
}

impl std::error::Error for Open {}

/// How a call through a breaker did not succeed.
#[derive(Debug)]
pub enum CallError {
    /// It was not made.
    Open(Open),
    /// It was made, and failed.
    Failed(Failure),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(open) => open.fmt(f),
            Self::Failed(failure) => failure.fmt(f),
        }
    }
}

/// An open breaker is a snooze with the code `breaker_open`; what the call returned stays what it is.
impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Open(open) => Self::from(open),
            CallError::Failed(failure) => failure,
        }
    }
}
