//! The rows of one work or of one queue in this process: those that are worked on, and those that wait for a free hand.
//!
//! A hand takes as many rows at once as the work wants: one, or a batch. What comes while all hands are full waits for the next
//! that is free. So a row alone never waits for company, and under load batches are as large as they may be.
//!
//! Where work is quick, the way to the database and back takes longer than the work. So as many rows are claimed ahead as will
//! be begun within [`AHEAD`], by what the work took lately. What takes longer than that is claimed when there is a hand for it:
//! somebody else may have one.
//!
//! Work that rests is left alone. When its time is over, one hand tries, and the others wait for what it finds.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::engine::{EndedRows, Engine, Works, run};
use super::finish::Finished;
use super::{Claimed, Ended, Queue, Row, SUSPECT_ATTEMPTS, WorkOptions};
use crate::steadfast::Steadfast;
use crate::store::Database;

/// How soon what is claimed should be begun: a few times what it takes to finish rows and to claim the next.
const AHEAD: Duration = Duration::from_millis(20);

/// How long a row may wait for a hand before others may have it: the work has become slow, or hangs.
const PATIENCE: Duration = Duration::from_millis(500);

/// How many bytes a hand takes at once at the most, unless a single row has more: a line of a few megabits carries them within the
/// time that a broker gets to confirm.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// A row that waits for a hand.
struct Waiting {
    row: Row,
    since: Instant,
}

impl Waiting {
    fn bytes(&self) -> usize {
        self.row.claimed.message.payload.len()
    }
}

/// The rows of one work or of one queue in this process, of all its kinds.
pub(super) struct Lane {
    concurrency: u32,
    batch: u32,
    /// Whether whoever dies may cost each of its rows an attempt.
    has_attempts: bool,
    /// The queue, if it is one: then the rows of several works are in it.
    pub(super) queue: Option<Arc<str>>,
    pub(super) kinds: Vec<Arc<str>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// Hands that are at work, and the rows that they have.
    hands: u32,
    in_hand: usize,
    /// Rows that are held: those, and what has ended and is not noted yet.
    held: u32,
    /// What one hand took lately for what it had; `None`: nobody knows.
    took: Option<Duration>,
    /// How many bytes a row had lately.
    row_bytes: usize,
    /// Whether the work has rested, and nobody has found out yet whether it can go on.
    has_rested: bool,
}

impl State {
    /// How many of the rows that wait a hand takes, from this place on: as many as it wants, of one kind, and not too many bytes.
    fn handful(&self, from: usize, batch: u32) -> usize {
        let mut bytes = 0;
        let rest = || self.waiting.iter().skip(from);
        let kind = rest().next().map(|first| &first.row.claimed.lease.kind);
        let fits = |waiting: &&Waiting| {
            bytes += waiting.bytes();
            bytes <= BYTES_MAX && Some(&waiting.row.claimed.lease.kind) == kind
        };
        let fitting = rest().take(batch as usize).take_while(fits).count();
        fitting.max(1).min(self.waiting.len() - from)
    }
}

impl Lane {
    pub(super) fn new(options: &WorkOptions, queue: Option<&Queue>) -> Self {
        Self {
            concurrency: queue.map_or(options.concurrency, |queue| queue.concurrency),
            batch: options.batch,
            has_attempts: has_attempts(options),
            queue: queue.map(|queue| queue.name.clone()),
            kinds: Vec::new(),
            state: Mutex::default(),
        }
    }

    /// Rows of this kind go through it.
    pub(super) fn add(&mut self, kind: Arc<str>, options: &WorkOptions) {
        self.kinds.push(kind);
        self.batch = self.batch.min(options.batch);
        self.has_attempts &= has_attempts(options);
    }

    /// How many rows may be claimed beside those that are held.
    pub(super) fn room(&self, held_max: u32) -> u32 {
        let state = self.lock();
        self.held_max(&state, held_max).saturating_sub(state.held)
    }

    fn held_max(&self, state: &State, held_max: u32) -> u32 {
        let Self { concurrency, batch, .. } = *self;
        // What a full hand has, by what rows were like lately.
        let fitting = u32::try_from(BYTES_MAX / state.row_bytes.max(1)).unwrap_or(u32::MAX);
        let handful = batch.min(fitting).max(1);
        if state.has_rested {
            return handful;
        }
        let free = concurrency.saturating_sub(state.hands);
        let in_hand = u32::try_from(state.in_hand).unwrap_or(u32::MAX);
        let at_once = in_hand.saturating_add(free.saturating_mul(handful));
        let Some(took) = state.took.filter(|_| self.has_attempts) else {
            return at_once;
        };
        let all = u128::from(concurrency) * u128::from(handful);
        let soon = AHEAD.as_nanos().saturating_mul(all) / took.as_nanos().max(1);
        u32::try_from(soon).unwrap_or(u32::MAX).min(held_max).max(at_once)
    }

    /// How many rows of these kinds wait for a hand.
    pub(super) fn waiting_of(&self, kinds: &[Arc<str>]) -> u32 {
        let state = self.lock();
        let waiting = state.waiting.iter();
        let waiting = waiting.filter(|waiting| kinds.contains(&waiting.row.claimed.lease.kind));
        u32::try_from(waiting.count()).unwrap_or(u32::MAX)
    }

    /// How many rows are held.
    pub(super) fn held(&self) -> u32 {
        self.lock().held
    }

    /// One row more is held.
    pub(super) fn holds_one(&self) {
        self.lock().held += 1;
    }

    /// One row less is held.
    pub(super) fn let_one_out(&self) {
        let mut state = self.lock();
        state.held = state.held.saturating_sub(1);
    }

    /// The work rests: from now on one hand tries, until it is known how it goes. The hands of a queue have other work meanwhile.
    pub(super) fn rests(&self) {
        self.lock().has_rested = self.queue.is_none();
    }

    fn take_in(&self, row: Row) {
        let since = Instant::now();
        self.lock().waiting.push_back(Waiting { row, since });
    }

    /// How many hands have to begin for what waits.
    fn missing_hands(&self) -> u32 {
        let mut state = self.lock();
        let free = self.concurrency.saturating_sub(state.hands);
        let (mut missing, mut taken) = (0, 0);
        while missing < free && taken < state.waiting.len() {
            taken += state.handful(taken, self.batch);
            missing += 1;
        }
        state.hands += missing;
        missing
    }

    /// The next rows for a hand that is free; none: it is not needed any more.
    fn next(&self) -> Vec<Row> {
        let mut state = self.lock();
        let count = match state.waiting.len() {
            0 => 0,
            _ => state.handful(0, self.batch),
        };
        state.hands -= u32::from(count == 0);
        state.in_hand += count;
        let bytes: usize = state.waiting.iter().take(count).map(Waiting::bytes).sum();
        if let Some(each) = bytes.checked_div(count) {
            state.row_bytes = match state.row_bytes {
                0 => each,
                before => (before * 7 + each) / 8,
            };
        }
        state.waiting.drain(..count).map(|waiting| waiting.row).collect()
    }

    /// Remembers what a hand took for so many rows; `None`: the work rests, and that says nothing.
    fn has_done(&self, rows: usize, took: Option<Duration>) {
        let mut state = self.lock();
        state.in_hand -= rows;
        if let Some(took) = took {
            state.took = Some(state.took.map_or(took, |before| (before * 7 + took) / 8));
            state.has_rested = false;
        }
    }

    /// A hand is gone that had so many rows.
    fn has_lost_a_hand(&self, rows: usize) {
        let mut state = self.lock();
        state.in_hand -= rows;
        state.hands -= 1;
    }

    /// When rows that still wait have waited for too long.
    pub(super) fn impatient_at(&self) -> Option<Instant> {
        self.lock().waiting.front().map(|waiting| waiting.since + PATIENCE)
    }

    pub(super) fn is_impatient(&self) -> bool {
        self.impatient_at().is_some_and(|at| at <= Instant::now())
    }

    /// Everything that waits; and from now on nothing is claimed ahead until it is known again what a row takes.
    fn give_up(&self) -> Vec<Row> {
        let mut state = self.lock();
        state.took = None;
        state.waiting.drain(..).map(|waiting| waiting.row).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever dies costs every row that he holds an attempt: one with few of them is not put at risk by waiting.
fn has_attempts(options: &WorkOptions) -> bool {
    options.retry.attempts() > SUSPECT_ATTEMPTS.unsigned_abs()
}

impl<Db: Database> Engine<Db> {
    /// Begins to work on rows, or lets them wait for who is at work.
    pub(super) fn start(&mut self, rows: Vec<Claimed>, asked_at: Instant) {
        for row in rows {
            let (row, lane) = self.hold(row, asked_at);
            lane.take_in(row);
        }
        for lane in &self.lanes {
            for _ in 0..lane.missing_hands() {
                let hand = Hand::new(lane.clone(), self.ends.clone());
                let working = work_through(hand, self.works.clone(), self.sf.clone());
                self.sf.tasks().spawn(working);
            }
        }
    }

    /// Gives back what waits in some lanes, as if it had not been claimed. It is said with what has ended.
    pub(super) fn give_back(&mut self, is_meant: impl Fn(&Lane) -> bool) {
        let lanes = self.lanes.iter().filter(|lane| is_meant(lane));
        let waiting: Vec<_> = lanes.flat_map(|lane| lane.give_up()).collect();
        for row in waiting {
            if let Some(held) = self.let_out(&row.claimed.lease) {
                self.finished.push(Finished::new(held, Ended::GivenBack));
            }
        }
    }
}

/// A hand of a lane. Whatever becomes of it, the lane and the engine hear of it.
struct Hand {
    lane: Arc<Lane>,
    ends: mpsc::UnboundedSender<EndedRows>,
    /// What it has.
    rows: Vec<Arc<Claimed>>,
    is_needed: bool,
}

impl Hand {
    /// One that the lane has counted.
    fn new(lane: Arc<Lane>, ends: mpsc::UnboundedSender<EndedRows>) -> Self {
        Self {
            lane,
            ends,
            rows: Vec::new(),
            is_needed: true,
        }
    }

    /// The next rows; none: it is not needed any more.
    fn take(&mut self) -> Vec<Row> {
        let rows = self.lane.next();
        self.is_needed = !rows.is_empty();
        self.rows.extend(rows.iter().map(|row| row.claimed.clone()));
        rows
    }

    /// Says how what it has ended.
    fn let_go(&mut self, ended: EndedRows, took: Option<Duration>) {
        self.lane.has_done(self.rows.len(), took);
        self.rows.clear();
        // Whoever claimed them has gone: so has the process, or nearly.
        let _ = self.ends.send(ended);
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        if self.is_needed {
            self.lane.has_lost_a_hand(self.rows.len());
            let lost = self.rows.drain(..).map(|claimed| (claimed, Ended::Lost));
            let _ = self.ends.send(lost.collect());
        }
    }
}

/// Works on what waits, as much at once as the work wants, until nothing does.
async fn work_through<Db: Database>(mut hand: Hand, works: Works<Db>, sf: Steadfast<Db>) {
    loop {
        let rows = hand.take();
        let Some(work) = rows.first().and_then(|row| works.get(&row.claimed.lease.kind)) else {
            return;
        };
        let began = Instant::now();
        let ended = run(work.clone(), sf.clone(), rows).await;
        let took = work.rests_for().is_none().then(|| began.elapsed());
        hand.let_go(ended, took);
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use uuid::Uuid;

    use super::*;
    use crate::clock::Timestamp;
    use crate::lease::Lease;
    use crate::outbox::{Message, Origin};
    use crate::retry::RetryPolicy;

    fn lane(concurrency: u32, batch: u32, retries: u32) -> Lane {
        let options = WorkOptions {
            retry: RetryPolicy::builder().retries(retries).build().expect("a valid policy"),
            lease: None,
            concurrency,
            batch,
            dead_make_room: false,
        };
        Lane::new(&options, None)
    }

    fn row(length: usize) -> Row {
        row_of("test.side", length)
    }

    fn row_of(kind: &str, length: usize) -> Row {
        let lease = Lease {
            item: Uuid::nil(),
            kind: kind.into(),
            epoch: 1,
            token: 1,
        };
        let message = Message {
            id: lease.item,
            event_type: "test.large".into(),
            version: 1,
            created_at: Timestamp(0),
            has_expired: false,
            ordering_key: None,
            origin: Origin::of("/test".into()),
            payload: vec![b'x'; length].into(),
            elsewhere: None,
        };
        let claimed = Claimed {
            lease,
            attempt: 1,
            elapsed: Duration::ZERO,
            due_for: Duration::ZERO,
            chain: None,
            is_suspect: false,
            cancel: super::super::Cancel::default(),
            message: message.into(),
        };
        Row {
            claimed: claimed.into(),
            asked_at: Instant::now(),
            lost: CancellationToken::new(),
        }
    }

    fn take_in(lane: &Lane, rows: usize) {
        (0..rows).for_each(|_| lane.take_in(row(1)));
    }

    fn room_after(took: Duration, retries: u32) -> u32 {
        let lane = lane(64, 1, retries);
        lane.has_done(0, Some(took));
        lane.room(500)
    }

    #[test]
    fn so_much_is_claimed_ahead_as_will_be_begun_soon() {
        assert_eq!(lane(64, 1, 9).room(500), 64, "nobody knows how long it takes");
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
        let lane = lane(64, 1, 9);
        lane.has_done(0, Some(Duration::from_micros(5)));
        assert!(lane.give_up().is_empty());
        assert_eq!(lane.room(500), 64);
    }

    #[test]
    fn a_hand_with_a_part_of_a_batch_is_full() {
        let lane = lane(2, 5, 9);
        assert_eq!(lane.room(500), 10);
        take_in(&lane, 1);
        assert_eq!(lane.missing_hands(), 1);
        assert_eq!(lane.next().len(), 1);
        assert_eq!(lane.room(500), 6, "what it has, and a batch for the other hand");
        take_in(&lane, 7);
        assert_eq!(lane.missing_hands(), 1, "there are no more than two");
        assert_eq!(lane.next().len(), 5);
        assert_eq!(lane.room(500), 6, "what both have");
        lane.has_done(1, Some(Duration::from_secs(1)));
        assert_eq!(lane.next().len(), 2, "what has come meanwhile goes together");
    }

    #[test]
    fn a_hand_takes_so_many_rows_and_so_many_bytes_at_the_most() {
        let lane = lane(1, 5, 9);
        let mib = 1024 * 1024;
        for length in [1, 1, 1, 1, 1, 1, mib, mib, mib, mib, mib, 5 * mib, 1] {
            lane.take_in(row(length));
        }
        assert_eq!(lane.missing_hands(), 1);
        let sizes = std::iter::repeat_with(|| lane.next().len()).take_while(|size| *size > 0);
        // Five by their number. With the byte that is left, four mebibytes would be too many. What is too large goes alone.
        assert_eq!(sizes.collect::<Vec<_>>(), [5, 4, 2, 1, 1]);
        take_in(&lane, 1);
        assert_eq!(lane.missing_hands(), 1, "the hand that found nothing has gone");
    }

    const MIB: usize = 1024 * 1024;

    #[test]
    fn as_many_hands_begin_as_it_takes_for_the_bytes() {
        let lane = lane(8, 500, 9);
        (0..12).for_each(|_| lane.take_in(row(MIB)));
        assert_eq!(lane.missing_hands(), 3, "four mebibytes for each");
        let sizes: Vec<_> = (0..3).map(|_| lane.next().len()).collect();
        assert_eq!(sizes, [4, 4, 4]);
    }

    #[test]
    fn so_many_large_rows_are_claimed_as_hands_can_take() {
        let lane = lane(2, 500, 9);
        assert_eq!(lane.room(1_500), 1_000, "nobody knows what they are like");
        lane.take_in(row(MIB));
        assert_eq!((lane.missing_hands(), lane.next().len()), (1, 1));
        assert_eq!(lane.room(1_500), 5, "what it has, and a handful");
        lane.has_done(1, Some(Duration::from_micros(5)));
        assert_eq!(lane.room(1_500), 1_500, "they go quickly");
        for _ in 0..99 {
            lane.take_in(row(1));
            lane.next();
        }
        lane.has_done(99, Some(Duration::from_secs(1)));
        assert!(lane.room(1_500) >= 500, "they have become small again");
    }

    #[test]
    fn a_hand_takes_rows_of_one_kind() {
        let lane = lane(1, 5, 9);
        for kind in ["a", "a", "a@2", "a@2", "a"] {
            lane.take_in(row_of(kind, 1));
        }
        assert_eq!(lane.missing_hands(), 1);
        let sizes: Vec<_> = (0..4).map(|_| lane.next().len()).collect();
        assert_eq!(sizes, [2, 2, 1, 0]);
    }

    #[test]
    fn after_a_rest_one_hand_tries_until_it_is_known_how_it_goes() {
        let lane = lane(2, 5, 9);
        lane.has_done(0, Some(Duration::from_micros(5)));
        assert_eq!(lane.room(500), 500);
        lane.rests();
        assert_eq!(lane.room(500), 5);
        lane.has_done(0, None);
        assert_eq!(lane.room(500), 5, "it rests again");
        lane.has_done(0, Some(Duration::from_micros(5)));
        assert_eq!(lane.room(500), 500, "it is back");
    }

    #[test]
    fn a_hand_that_is_gone_leaves_its_place_and_its_rows() {
        let lane = Arc::new(lane(1, 5, 9));
        take_in(&lane, 3);
        let (ends, mut ended) = mpsc::unbounded_channel();
        assert_eq!(lane.missing_hands(), 1);
        let mut hand = Hand::new(lane.clone(), ends);
        assert_eq!(hand.take().len(), 3);
        drop(hand);
        let lost = ended.try_recv().expect("it is told");
        assert!(lost.len() == 3 && lost.iter().all(|(_, ended)| matches!(ended, Ended::Lost)));
        take_in(&lane, 1);
        assert_eq!((lane.missing_hands(), lane.room(500)), (1, 0));
    }
}
