//! What the queue looks like from outside: gauges that one process shows for all, and a line in the log when rows wait that
//! nobody knows how to work on.
//!
//! One process looks, by a lease, so that many of them do not all count the same rows. When another one has taken over, this
//! one shows zeros: the sum over all processes is the truth.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::stats::KindStats;
use crate::clock::jitter;
use crate::error::Result;
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};
use crate::telemetry;

/// How often the queue and the inbox are looked at, roughly. It costs four statements.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The lease of whoever looks, and how long it lasts: longer than until he looks again.
const LEASE: &str = "gauges";
const LEASE_TTL: Duration = Duration::from_secs(90);

/// How often a kind that nobody knows is worth a line.
const WARN_EVERY: Duration = Duration::from_secs(10 * 60);

/// What this process shows, and has said.
#[derive(Default)]
pub(crate) struct Gauges(Mutex<State>);

#[derive(Default)]
struct State {
    /// The kinds whose gauges are not zero.
    shown: HashSet<String>,
    /// Until when this process is the one that looks.
    until: Option<Instant>,
    /// When it was last said that nobody knows a kind.
    warned: HashMap<String, Instant>,
}

impl<Db: Database> Steadfast<Db> {
    /// Counts the rows of the queue for the gauges `steadfast_queue_rows` and `steadfast_queue_oldest_seconds`, and warns of
    /// rows that are due and that no process knows how to work on. False: another process does it, and this one shows zeros.
    ///
    /// [`keep_house`](Self::keep_house) does it about every minute.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn refresh_gauges(&self) -> Result<bool> {
        let looked = self.look_for_gauges().await;
        let mut state = self.gauges().lock();
        match &looked {
            Ok(Some(kinds)) => {
                state.until = Some(Instant::now() + LEASE_TTL);
                state.show(kinds);
                state.warn(kinds, Instant::now());
            }
            Ok(None) => state.clear(),
            // Somebody else may look by now.
            Err(_) if state.until.is_some_and(|until| until < Instant::now()) => state.clear(),
            Err(_) => {}
        }
        looked.map(|kinds| kinds.is_some())
    }

    async fn look_for_gauges(&self) -> Result<Option<Vec<KindStats>>> {
        let offset = self.clock().ahead();
        let lease = self
            .ask("take the lease of the gauges")
            .take_lease(LEASE, self.id(), LEASE_TTL, offset);
        if lease.await?.is_none() {
            return Ok(None);
        }
        let kinds = self.ask("count the rows of the queue").kind_counts(offset).await?;
        telemetry::inbox_has(self.inbox_stats().await?.records.number);
        Ok(Some(kinds.into_iter().map(KindStats::from).collect()))
    }

    pub(crate) async fn keep_gauges_fresh(&self) {
        loop {
            if let Err(error) = self.refresh_gauges().await {
                telemetry::not_counted(&error);
            }
            tokio::select! {
                () = self.stopped() => break,
                () = tokio::time::sleep(jitter(LOOK_EVERY)) => {}
            }
        }
        self.gauges().lock().clear();
    }
}

impl Gauges {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn show(&mut self, kinds: &[KindStats]) {
        let before = std::mem::take(&mut self.shown);
        for kind in kinds {
            telemetry::queue_is(kind);
            self.shown.insert(kind.kind.clone());
        }
        before
            .difference(&self.shown)
            .for_each(|kind| telemetry::queue_is_not(kind));
    }

    fn clear(&mut self) {
        self.until = None;
        telemetry::inbox_has(0);
        self.shown.drain().for_each(|kind| telemetry::queue_is_not(&kind));
    }

    /// Says, of each kind from time to time, that its rows are due and nobody knows it. A paused one is nobody's fault.
    fn warn(&mut self, kinds: &[KindStats], now: Instant) {
        let is_lost = |kind: &&KindStats| kind.due.number > 0 && !kind.is_known() && kind.paused.is_none();
        for kind in kinds.iter().filter(is_lost) {
            let last = self.warned.get(&kind.kind);
            if last.is_none_or(|last| now.duration_since(*last) >= WARN_EVERY) {
                telemetry::kind_unknown(kind);
                self.warned.insert(kind.kind.clone(), now);
            }
        }
        self.warned.retain(|_, last| now.duration_since(*last) < WARN_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::super::count::Count;
    use super::*;

    #[test]
    fn a_kind_that_nobody_knows_is_worth_a_line_in_ten_minutes() {
        let lost = KindStats {
            kind: "lost".to_owned(),
            due: Count {
                number: 3,
                is_capped: false,
            },
            ..KindStats::default()
        };
        let known = KindStats {
            kind: "known".to_owned(),
            seen: Some(Duration::from_secs(60)),
            ..lost.clone()
        };
        let (mut state, start) = (State::default(), Instant::now());
        let mut said_at = |minutes: u64| {
            let now = start + Duration::from_secs(60 * minutes);
            state.warn(&[lost.clone(), known.clone()], now);
            !state.warned.contains_key("known") && state.warned.get("lost") == Some(&now)
        };
        assert_eq!(
            [0, 1, 9, 10, 12, 21].map(&mut said_at),
            [true, false, false, true, false, true]
        );
    }
}
