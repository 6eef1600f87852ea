//! What a breaker decides, and nothing else: no clock, no lock, no task. Time is passed in.
//!
//! The words of this file are those of the guide. Next on the way: `gate.rs`, which lets many callers at it at once.

use std::time::Duration;

/// How soon it is worth asking again while a probe is out: its answer decides, and may come at any moment.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Microseconds since the breaker was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    /// Later than anything; two bits are left for the gate.
    pub(crate) const NEVER: Self = Self(u64::MAX >> 2);

    pub(crate) fn after(self, duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(micros).min(Self::NEVER.0))
    }

    /// How long it is from here to a later moment.
    pub(crate) fn until(self, later: Self) -> Duration {
        Duration::from_micros(later.0.saturating_sub(self.0))
    }
}

/// What a breaker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Calls pass and are counted.
    Closed,
    /// Calls are postponed until the open duration is over and the first caller comes after it.
    Open,
    /// A few calls pass as probes; their answers decide.
    HalfOpen,
    /// Calls are postponed until a person says otherwise.
    ForcedOpen,
    /// Calls pass and nothing is counted until a person says otherwise.
    ForcedClosed,
}

impl BreakerState {
    /// The state as it is written in logs, metrics and the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
            Self::ForcedOpen => "forced_open",
            Self::ForcedClosed => "forced_closed",
        }
    }

    /// Reads what [`as_str`](Self::as_str) wrote.
    pub(crate) fn read(word: &str) -> Option<Self> {
        let all = [
            Self::Closed,
            Self::Open,
            Self::HalfOpen,
            Self::ForcedOpen,
            Self::ForcedClosed,
        ];
        all.into_iter().find(|state| state.as_str() == word)
    }
}

/// When a closed breaker opens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trip {
    /// After so many failures without a success between them.
    Consecutive { failures: u32 },
    /// When this part of the last `window` calls failed, as soon as there were `minimum` of them.
    Rate { rate: f64, window: u32, minimum: u32 },
}

/// How a breaker behaves. `options.rs` has checked it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) trip: Trip,
    pub(crate) open_for: Duration,
    pub(crate) growth: f64,
    pub(crate) cap: Duration,
    pub(crate) probes: u32,
}

impl Settings {
    /// How long it stays open when it opens for the `openings`th time in a row.
    fn open_duration(&self, openings: u32) -> Duration {
        let exponent = i32::try_from(openings.saturating_sub(1)).unwrap_or(i32::MAX);
        let grown = self.open_for.as_secs_f64() * self.growth.powi(exponent);
        if grown < self.cap.as_secs_f64() {
            Duration::from_secs_f64(grown)
        } else {
            self.cap
        }
    }
}

/// A call that was let in. A result counts only in the generation it was let in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    pub(crate) generation: u64,
}

/// A call that was not let in, and when to come back, if time alone will change that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) retry_in: Option<Duration>,
}

/// What became of a call, for the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Success,
    Failure,
}

/// What other processes need to know of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posture {
    pub(crate) state: BreakerState,
    /// How long it stays open from now on.
    pub(crate) remaining: Duration,
    /// How often it has opened in a row.
    pub(crate) openings: u32,
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Machine {
    settings: Settings,
    state: State,
    generation: u64,
    tally: Tally,
    openings: u32,
}

#[derive(Debug)]
enum State {
    Closed,
    Open { until: Moment },
    HalfOpen(Probing),
    ForcedOpen,
    ForcedClosed,
}

/// What is known of the probes of one half-open time.
#[derive(Debug)]
struct Probing {
    out: u32,
    succeeded: u32,
    failed: u32,
    last_let_in: Moment,
}

impl Machine {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            tally: Tally::new(&settings.trip),
            settings,
            state: State::Closed,
            generation: 0,
            openings: 0,
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        match self.state {
            State::Closed => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen(_) => BreakerState::HalfOpen,
            State::ForcedOpen => BreakerState::ForcedOpen,
            State::ForcedClosed => BreakerState::ForcedClosed,
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Until when it is open, if it is: for ever if a person said so.
    pub(crate) fn open_until(&self) -> Option<Moment> {
        match self.state {
            State::Open { until } => Some(until),
            State::ForcedOpen => Some(Moment::NEVER),
            State::Closed | State::HalfOpen(_) | State::ForcedClosed => None,
        }
    }

    /// Whether a success would change nothing.
    pub(crate) fn is_quiet(&self) -> bool {
        match self.state {
            State::Closed => self.tally.is_quiet(),
            State::ForcedClosed => true,
            State::Open { .. } | State::HalfOpen(_) | State::ForcedOpen => false,
        }
    }

    /// Whether a call would not be let in.
    pub(crate) fn refuses(&self, now: Moment) -> Option<Refusal> {
        let retry_in = match &self.state {
            State::Closed | State::ForcedClosed => return None,
            State::ForcedOpen => None,
            State::Open { until } if now < *until => Some(now.until(*until)),
            State::Open { .. } => return None,
            State::HalfOpen(probing) => {
                // A probe that hangs must not keep the breaker half-open for ever: another one may follow it after the open
                // duration, as in Polly 7.
                let next = probing.last_let_in.after(self.settings.open_duration(self.openings));
                if probing.taken() < self.settings.probes || now >= next {
                    return None;
                }
                Some(now.until(next).min(ASK_AGAIN))
            }
        };
        Some(Refusal { retry_in })
    }

    /// How many calls would be let in now, if they are counted: it is not known whether the other side is well.
    pub(crate) fn probes_left(&self, now: Moment) -> Option<u32> {
        match &self.state {
            State::Closed | State::ForcedClosed => None,
            _ if self.refuses(now).is_some() => Some(0),
            State::HalfOpen(probing) => Some(self.settings.probes.saturating_sub(probing.taken()).max(1)),
            State::Open { .. } | State::ForcedOpen => Some(self.settings.probes),
        }
    }

    /// Lets a call in, or not. The first one after the open duration makes it half-open.
    pub(crate) fn enter(&mut self, now: Moment) -> Result<Pass, Refusal> {
        if let Some(refusal) = self.refuses(now) {
            return Err(refusal);
        }
        match &mut self.state {
            State::Closed | State::ForcedClosed | State::ForcedOpen => {}
            State::Open { .. } => self.turn(State::HalfOpen(Probing {
                out: 1,
                succeeded: 0,
                failed: 0,
                last_let_in: now,
            })),
            State::HalfOpen(probing) => {
                probing.out = probing.out.saturating_add(1);
                probing.last_let_in = now;
            }
        }
        Ok(Pass {
            generation: self.generation,
        })
    }

    /// Counts what became of a call. Time is asked for only if it opens.
    pub(crate) fn record(&mut self, pass: Pass, answer: Answer, now: impl FnOnce() -> Moment) {
        if pass.generation != self.generation {
            return;
        }
        let trips = match &mut self.state {
            State::Closed => {
                self.tally.count(answer);
                self.tally.trips().then_some(true)
            }
            State::HalfOpen(probing) => {
                probing.count(answer);
                probing.verdict(&self.settings)
            }
            State::Open { .. } | State::ForcedOpen | State::ForcedClosed => None,
        };
        match trips {
            Some(true) => self.open(now()),
            Some(false) => self.close(),
            None => {}
        }
    }

    /// A call ended without an answer: a probe's place is free again.
    pub(crate) fn release(&mut self, pass: Pass) {
        if let State::HalfOpen(probing) = &mut self.state
            && pass.generation == self.generation
        {
            probing.out = probing.out.saturating_sub(1);
        }
    }

    pub(crate) fn force_open(&mut self) {
        self.turn(State::ForcedOpen);
    }

    pub(crate) fn force_closed(&mut self) {
        self.turn(State::ForcedClosed);
    }

    /// Closes, whatever it was, and forgets what was counted.
    pub(crate) fn reset(&mut self) {
        self.close();
    }

    /// What others should know.
    pub(crate) fn posture(&self, now: Moment) -> Posture {
        let (state, remaining) = match self.state {
            State::Open { until } => (BreakerState::Open, now.until(until)),
            // Each process has probes of its own: to the others it is open, and its time is over.
            State::HalfOpen(_) => (BreakerState::Open, Duration::ZERO),
            State::Closed | State::ForcedOpen | State::ForcedClosed => (self.state(), Duration::ZERO),
        };
        Posture {
            state,
            remaining,
            openings: self.openings,
        }
    }

    /// Takes over what another process has found.
    pub(crate) fn adopt(&mut self, posture: Posture, now: Moment) {
        match posture.state {
            // What was counted here since stays counted.
            BreakerState::Closed if matches!(self.state, State::Closed) => {}
            BreakerState::Closed => self.close(),
            BreakerState::Open | BreakerState::HalfOpen => {
                self.openings = posture.openings;
                let until = now.after(posture.remaining);
                self.turn(State::Open { until });
            }
            BreakerState::ForcedOpen => self.force_open(),
            BreakerState::ForcedClosed => self.force_closed(),
        }
    }

    fn open(&mut self, now: Moment) {
        self.openings = self.openings.saturating_add(1);
        let until = now.after(self.settings.open_duration(self.openings));
        self.turn(State::Open { until });
    }

    fn close(&mut self) {
        self.openings = 0;
        self.turn(State::Closed);
    }

    fn turn(&mut self, state: State) {
        self.state = state;
        self.generation += 1;
        self.tally.clear();
    }
}

impl Probing {
    /// The places that are used up.
    fn taken(&self) -> u32 {
        self.out + self.succeeded + self.failed
    }

    fn count(&mut self, answer: Answer) {
        self.out = self.out.saturating_sub(1);
        match answer {
            Answer::Success => self.succeeded += 1,
            Answer::Failure => self.failed += 1,
        }
    }

    /// Whether it opens again (true) or closes (false); `None` while answers are missing.
    fn verdict(&self, settings: &Settings) -> Option<bool> {
        let answered = self.succeeded + self.failed;
        match settings.trip {
            Trip::Consecutive { .. } if self.failed > 0 => Some(true),
            _ if answered < settings.probes => None,
            Trip::Consecutive { .. } => Some(false),
            Trip::Rate { rate, .. } => Some(reaches(rate, self.failed, answered)),
        }
    }
}

fn reaches(rate: f64, failures: u32, calls: u32) -> bool {
    // A quotient is rounded as the literal of a rate is: 7 of 100 reach 0.07.
    f64::from(failures) / f64::from(calls) >= rate
}

/// What a closed breaker has counted.
#[derive(Debug)]
enum Tally {
    Consecutive { failures: u32, limit: u32 },
    Rate { last: Last, rate: f64, minimum: u32 },
}

impl Tally {
    fn new(trip: &Trip) -> Self {
        match *trip {
            Trip::Consecutive { failures: limit } => Self::Consecutive { failures: 0, limit },
            Trip::Rate { rate, window, minimum } => Self::Rate {
                last: Last::new(window),
                rate,
                minimum,
            },
        }
    }

    fn clear(&mut self) {
        match self {
            Self::Consecutive { failures, .. } => *failures = 0,
            Self::Rate { last, .. } => last.clear(),
        }
    }

    fn count(&mut self, answer: Answer) {
        match (self, answer) {
            (Self::Consecutive { failures, .. }, Answer::Success) => *failures = 0,
            (Self::Consecutive { failures, .. }, Answer::Failure) => *failures += 1,
            (Self::Rate { last, .. }, answer) => last.push(answer == Answer::Failure),
        }
    }

    fn trips(&self) -> bool {
        match self {
            Self::Consecutive { failures, limit } => failures >= limit,
            Self::Rate { last, rate, minimum } => last.filled >= *minimum && reaches(*rate, last.failures, last.filled),
        }
    }

    /// Whether another success would change nothing. A window full of successes is the same whichever is the oldest.
    fn is_quiet(&self) -> bool {
        match self {
            Self::Consecutive { failures, .. } => *failures == 0,
            Self::Rate { last, .. } => last.failures == 0 && last.filled == last.size,
        }
    }
}

/// The last calls, a bit for each, set for a failure.
#[derive(Debug)]
struct Last {
    bits: Box<[u64]>,
    size: u32,
    next: u32,
    filled: u32,
    failures: u32,
}

impl Last {
    fn new(size: u32) -> Self {
        Self {
            bits: vec![0; size.div_ceil(u64::BITS) as usize].into(),
            size,
            next: 0,
            filled: 0,
            failures: 0,
        }
    }

    fn clear(&mut self) {
        self.bits.fill(0);
        (self.next, self.filled, self.failures) = (0, 0, 0);
    }

    fn push(&mut self, is_failure: bool) {
        let (word, bit) = ((self.next / u64::BITS) as usize, 1 << (self.next % u64::BITS));
        let was_failure = self.bits[word] & bit != 0;
        match is_failure {
            true => self.bits[word] |= bit,
            false => self.bits[word] &= !bit,
        }
        self.failures = self.failures - u32::from(was_failure) + u32::from(is_failure);
        self.filled = self.size.min(self.filled + 1);
        self.next = (self.next + 1) % self.size;
    }
}
