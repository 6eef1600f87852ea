//! The rows of one kind in this process: those that are worked on, and those that wait for a free hand.
//!
//! Where work is quick, the way to the database and back takes longer than the work. So as many rows are claimed ahead as will
//! be begun within [`AHEAD`], by what the work took lately. What takes longer than that is claimed when there is a hand for it:
//! somebody else may have one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::engine::{Engine, run};
use super::finish::Finished;
use super::{Claimed, Ended, SUSPECT_ATTEMPTS, Work, WorkOptions};
use crate::lease::Lease;
use crate::steadfast::Steadfast;
use crate::store::Database;

/// How soon what is claimed should be begun: a few times what it takes to finish rows and to claim the next.
const AHEAD: Duration = Duration::from_millis(20);

/// How long a row may wait for a hand before others may have it: the work has become slow, or hangs.
const PATIENCE: Duration = Duration::from_millis(500);

/// A row that waits for a hand.
struct Waiting {
    claimed: Arc<Claimed>,
    lost: CancellationToken,
    asked_at: Instant,
    since: Instant,
}

/// The rows of one kind in this process.
#[derive(Default)]
pub(super) struct Lane(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    hands: u32,
    /// What one row took lately; `None`: nobody knows.
    took: Option<Duration>,
}

impl Lane {
    /// How many rows may be held.
    pub(super) fn room(&self, options: &WorkOptions, held_max: u32) -> u32 {
        let concurrency = options.concurrency;
        // Whoever dies costs every row that he holds an attempt: one with few of them is not put at risk by waiting.
        let has_attempts = options.retry.attempts() > SUSPECT_ATTEMPTS.unsigned_abs();
        let Some(took) = self.lock().took.filter(|_| has_attempts) else {
            return concurrency;
        };
        let each = AHEAD.as_nanos() / took.as_nanos().max(1);
        let ahead = u32::try_from(each.saturating_mul(concurrency.into())).unwrap_or(u32::MAX);
        ahead.min(held_max).max(concurrency)
    }

    /// Takes a row in, and says whether there is a hand for it that is not at work yet: then somebody has to begin.
    fn take_in(&self, row: Waiting, options: &WorkOptions) -> bool {
        let mut state = self.lock();
        state.waiting.push_back(row);
        let is_free = state.hands < options.concurrency;
        state.hands += u32::from(is_free);
        is_free
    }

    /// The next row, for a hand that is free; `None`: it is not needed any more.
    fn next(&self) -> Option<Waiting> {
        let mut state = self.lock();
        let next = state.waiting.pop_front();
        state.hands -= u32::from(next.is_none());
        next
    }

    /// Remembers what a row took.
    fn has_taken(&self, took: Duration) {
        let mut state = self.lock();
        state.took = Some(state.took.map_or(took, |before| (before * 7 + took) / 8));
    }

    /// When rows that still wait have waited for too long.
    pub(super) fn impatient_at(&self) -> Option<Instant> {
        self.lock().waiting.front().map(|row| row.since + PATIENCE)
    }

    pub(super) fn is_impatient(&self) -> bool {
        self.impatient_at().is_some_and(|at| at <= Instant::now())
    }

    /// Everything that waits; and from now on nothing is claimed ahead until it is known again what a row takes.
    fn give_up(&self) -> Vec<Waiting> {
        let mut state = self.lock();
        state.took = None;
        state.waiting.drain(..).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Db: Database> Engine<Db> {
    /// Begins to work on a row, or lets it wait for who is at work.
    pub(super) fn start(&mut self, row: Claimed, asked_at: Instant) {
        let (Some(work), Some(lane)) = (
            self.works.get(&row.lease.kind).cloned(),
            self.lanes.get(&row.lease.kind).cloned(),
        ) else {
            unreachable!("only rows of known kinds are claimed");
        };
        let claimed = Arc::new(row);
        let waiting = Waiting {
            lost: self.hold(&claimed, &*work, asked_at),
            claimed,
            asked_at,
            since: Instant::now(),
        };
        if lane.take_in(waiting, work.options()) {
            let working = work_through(lane, work, self.sf.clone(), self.ends.clone());
            self.sf.tasks().spawn(working);
        }
    }

    /// Gives back what waits in some lanes, as if it had not been claimed. It is said with what has ended.
    pub(super) fn give_back(&mut self, is_meant: impl Fn(&Lane) -> bool) {
        let lanes = self.lanes.values().filter(|lane| is_meant(lane));
        let waiting: Vec<_> = lanes.flat_map(|lane| lane.give_up()).collect();
        for row in waiting {
            if let Some(held) = self.let_out(&row.claimed.lease) {
                self.finished.push(Finished::new(held, Ended::GivenBack));
            }
        }
    }
}

/// Works on one row after another, until none waits.
async fn work_through<Db: Database>(
    lane: Arc<Lane>,
    work: Arc<dyn Work<Db>>,
    sf: Steadfast<Db>,
    ends: mpsc::UnboundedSender<(Lease, Ended)>,
) {
    while let Some(row) = lane.next() {
        let (lease, began) = (row.claimed.lease.clone(), Instant::now());
        let ended = run(work.clone(), sf.clone(), row.claimed, row.lost, row.asked_at).await;
        lane.has_taken(began.elapsed());
        // Whoever claimed it has gone: so has the process, or nearly.
        let _ = ends.send((lease, ended));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::RetryPolicy;

    fn options(retries: u32) -> WorkOptions {
        WorkOptions {
            retry: RetryPolicy::builder().retries(retries).build().expect("a valid policy"),
            lease: None,
            concurrency: 64,
            dead_make_room: false,
        }
    }

    fn room_after(took: Duration, retries: u32) -> u32 {
        let lane = Lane::default();
        lane.has_taken(took);
        lane.room(&options(retries), 500)
    }

    #[test]
    fn so_much_is_claimed_ahead_as_will_be_begun_soon() {
        assert_eq!(
            Lane::default().room(&options(9), 500),
            64,
            "nobody knows how long it takes"
        );
        assert_eq!(
            room_after(Duration::from_micros(5), 9),
            500,
            "never more than may be held"
        );
        assert_eq!(room_after(Duration::from_millis(10), 9), 128);
        assert_eq!(
            room_after(Duration::from_secs(1), 9),
            64,
            "slow work is claimed when it can begin"
        );
        assert_eq!(
            room_after(Duration::from_micros(5), 1),
            64,
            "a row with few attempts does not wait"
        );
    }

    #[test]
    fn what_is_given_up_has_to_be_found_out_anew() {
        let lane = Lane::default();
        lane.has_taken(Duration::from_micros(5));
        assert!(lane.give_up().is_empty());
        assert_eq!(lane.room(&options(9), 500), 64);
    }
}
