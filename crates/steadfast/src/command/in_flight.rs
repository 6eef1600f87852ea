//! The keys this process is working on right now, known without asking the database.
//!
//! It makes waiting cheap and answers a duplicate without a connection. It is not what keeps a command from
//! running twice: that is the unique constraint, which also sees the other processes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::key::{Key, KeyHash};

/// How many requests of one process may wait for others to end. Each costs a task and its request's memory; beyond
/// this a storm of duplicates is told to come back later instead of being collected here.
const WAITERS_MAX: usize = 64;

/// How many keys are remembered that ended in this process; half a mebibyte of memory.
const RECENT_MAX: usize = 65_536;

#[derive(Clone)]
pub(crate) struct InFlight {
    keys: Arc<Mutex<HashMap<KeyHash, Work>>>,
    pub(crate) waiters: Arc<Semaphore>,
    recent: Arc<Recent>,
}

/// Keys that ended here lately: a retry usually comes back to the process that knows the answer, and then one look is
/// cheaper than beginning a transaction. A hint and no more; a later key takes the place of an earlier one.
struct Recent(Box<[AtomicU64]>);

impl Recent {
    fn place(&self, hash: &KeyHash) -> (&AtomicU64, u64) {
        let number = hash.first_chunk().copied().map_or(0, u64::from_be_bytes);
        (&self.0[number as usize % self.0.len()], number)
    }
}

/// Somebody's work on a key, as others see it.
#[derive(Clone, Default)]
pub(crate) struct Work {
    is_executing: Arc<AtomicBool>,
    ended: CancellationToken,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        Self {
            keys: Arc::default(),
            waiters: Arc::new(Semaphore::new(WAITERS_MAX)),
            recent: Arc::new(Recent((0..RECENT_MAX).map(|_| AtomicU64::new(0)).collect())),
        }
    }

    /// Whether this process lately saw the key end, so that looking for its answer is worth a statement.
    pub(crate) fn has_ended_here(&self, key: &Key) -> bool {
        let (place, number) = self.recent.place(&key.hash);
        place.load(Ordering::Relaxed) == number
    }

    /// Takes the key for as long as the guard lives, or says who has it.
    pub(crate) fn enter(&self, key: &Key) -> Result<Entered, Work> {
        match self.lock().entry(key.hash) {
            Entry::Occupied(entry) => Err(entry.get().clone()),
            Entry::Vacant(entry) => {
                let work = entry.insert(Work::default()).clone();
                Ok(Entered {
                    in_flight: self.clone(),
                    hash: key.hash,
                    work,
                })
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KeyHash, Work>> {
        // The map is never left half-changed, so a panic elsewhere does not spoil it.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    /// Whether its handler runs. Before that it may turn out to be a replay, which is no reason to refuse another.
    pub(crate) fn is_executing(&self) -> bool {
        self.is_executing.load(Ordering::Acquire)
    }

    /// Waits until it has ended, one way or another.
    pub(crate) async fn wait(self) {
        self.ended.cancelled().await;
    }
}

/// The right to work on a key in this process; gone when dropped, also by a panic.
pub(crate) struct Entered {
    in_flight: InFlight,
    hash: KeyHash,
    work: Work,
}

impl Entered {
    /// The key is claimed: from here on a duplicate is refused without asking the database.
    pub(crate) fn begin_execution(&self) {
        self.work.is_executing.store(true, Ordering::Release);
    }

    /// The key's answer is stored: the next one who brings it should look first.
    pub(crate) fn has_ended(&self) {
        let (place, number) = self.in_flight.recent.place(&self.hash);
        place.store(number, Ordering::Relaxed);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.in_flight.lock().remove(&self.hash);
        self.work.ended.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::key::{Owner, Scope};

    fn key(value: &str) -> Key {
        Key::new(Scope::User, Some(&Owner::new("t", "u")), "op", value).expect("a good key")
    }

    #[tokio::test]
    async fn a_key_is_taken_once_and_its_end_is_told_even_to_late_listeners() {
        let in_flight = InFlight::new();
        let Ok(entered) = in_flight.enter(&key("a")) else {
            panic!("the first enters")
        };
        assert!(in_flight.enter(&key("b")).is_ok(), "another key is free");
        let (Err(early), Err(late)) = (in_flight.enter(&key("a")), in_flight.enter(&key("a"))) else {
            panic!("a duplicate does not enter")
        };
        let waiting = tokio::spawn(early.wait());
        drop(entered);
        waiting.await.expect("told");
        late.wait().await;
        assert!(in_flight.enter(&key("a")).is_ok());
    }
}
