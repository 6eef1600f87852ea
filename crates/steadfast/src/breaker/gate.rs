//! Many callers at one state machine: the closed pass is two loads of one word, everything else takes the lock.
//!
//! The word says what a caller may know without the lock: a closed breaker lets everybody in, an open one nobody before its
//! time, and one that has counted nothing has nothing to change on a success. It is written under the lock only, so it
//! never says more than the machine. A caller who reads it a moment too early has come a moment earlier.

use std::sync::PoisonError;

use super::state::{Answer, BreakerState, Machine, Moment, Pass, Refusal, Settings};
use super::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

pub(crate) struct Gate {
    word: AtomicU64,
    machine: Mutex<Machine>,
}

/// A change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) from: BreakerState,
    pub(crate) to: BreakerState,
}

/// The word, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// Closed, and a success would change nothing.
    Quiet {
        generation: u64,
    },
    /// Closed, with something counted.
    Counting {
        generation: u64,
    },
    Open {
        until: Moment,
    },
    /// The machine has to be asked.
    HalfOpen,
}

impl Sign {
    fn of(machine: &Machine) -> Self {
        let generation = machine.generation();
        match (machine.state(), machine.open_until()) {
            (_, Some(until)) => Self::Open { until },
            (BreakerState::HalfOpen, None) => Self::HalfOpen,
            _ if machine.is_quiet() => Self::Quiet { generation },
            _ => Self::Counting { generation },
        }
    }

    #[inline]
    fn read(word: u64) -> Self {
        let number = word >> 2;
        match word & 3 {
            0 => Self::Quiet { generation: number },
            1 => Self::Counting { generation: number },
            2 => Self::Open { until: Moment(number) },
            _ => Self::HalfOpen,
        }
    }

    #[inline]
    fn word(self) -> u64 {
        match self {
            Self::Quiet { generation } => generation << 2,
            Self::Counting { generation } => generation << 2 | 1,
            Self::Open { until } => until.0 << 2 | 2,
            Self::HalfOpen => 3,
        }
    }
}

impl Gate {
    pub(crate) fn new(settings: Settings) -> Self {
        let machine = Machine::new(settings);
        Self {
            word: AtomicU64::new(Sign::of(&machine).word()),
            machine: Mutex::new(machine),
        }
    }

    /// Lets a call in if the word alone can say so. With [`needs_no_count`](Self::needs_no_count) this is the whole way
    /// of a call through a closed breaker, small enough to become a part of its caller.
    #[inline]
    pub(crate) fn pass(&self) -> Option<Pass> {
        match self.sign() {
            Sign::Quiet { generation } | Sign::Counting { generation } => Some(Pass { generation }),
            Sign::Open { .. } | Sign::HalfOpen => None,
        }
    }

    /// Whether a success of this call would change nothing.
    #[inline]
    pub(crate) fn needs_no_count(&self, pass: Pass) -> bool {
        let Pass { generation } = pass;
        self.word.load(Ordering::Acquire) == Sign::Quiet { generation }.word()
    }

    /// Lets a call in, or not. `changed` is called under the lock, so that changes are told in their order.
    pub(crate) fn enter(&self, now: impl FnOnce() -> Moment, changed: impl FnOnce(Change)) -> Result<Pass, Refusal> {
        let now = match self.sign() {
            Sign::Quiet { generation } | Sign::Counting { generation } => return Ok(Pass { generation }),
            Sign::Open { until: Moment::NEVER } => return Err(Refusal { retry_in: None }),
            Sign::Open { until } => {
                let now = now();
                if now < until {
                    let retry_in = Some(now.until(until));
                    return Err(Refusal { retry_in });
                }
                now
            }
            Sign::HalfOpen => now(),
        };
        self.act(|machine| machine.enter(now), changed)
    }

    /// Counts what became of a call.
    pub(crate) fn record(
        &self,
        pass: Pass,
        answer: Answer,
        now: impl FnOnce() -> Moment,
        changed: impl FnOnce(Change),
    ) {
        if answer == Answer::Success && self.needs_no_count(pass) {
            return;
        }
        self.act(|machine| machine.record(pass, answer, now), changed);
    }

    /// A call ended without an answer, which matters for probes only.
    pub(crate) fn release(&self, pass: Pass) {
        if self.sign() == Sign::HalfOpen {
            self.act(|machine| machine.release(pass), |_| ());
        }
    }

    /// Does something to the machine, alone.
    pub(crate) fn act<R>(&self, act: impl FnOnce(&mut Machine) -> R, changed: impl FnOnce(Change)) -> R {
        let mut machine = self.lock();
        let from = machine.state();
        let done = act(&mut machine);
        self.word.store(Sign::of(&machine).word(), Ordering::Release);
        let to = machine.state();
        if from != to {
            changed(Change { from, to });
        }
        done
    }

    /// Looks at the machine.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Machine) -> R) -> R {
        look(&self.lock())
    }

    #[inline]
    fn sign(&self) -> Sign {
        Sign::read(self.word.load(Ordering::Acquire))
    }

    /// Nothing panics between two consistent states, so a poisoned lock hides nothing.
    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
