//! Waiting for facts: something to come true, a command to reach a point, and a command that is held there.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::crash::Plan;
use super::{CommitReply, Observer, Point};
use crate::command::Key;

/// How long a test waits for a fact: far beyond what a busy machine needs, short of what a person would wait.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a fact that is not true yet is left alone.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How long a command is held before it is taken for forgotten. Longer than [`PATIENCE`], so that a test that waits in
/// vain says so first.
const HOLD_MAX: Duration = Duration::from_secs(30);

/// Waits for a fact, by asking for it again and again.
///
/// ```
/// # use steadfast::testing::eventually;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mail = tokio::spawn(async { "sent" });
/// eventually("the mail is sent", async || mail.is_finished()).await;
/// # }
/// ```
///
/// # Panics
/// If it has not come true after ten seconds, naming it.
pub async fn eventually(what: &str, mut fact: impl AsyncFnMut() -> bool) {
    let waiting = tokio::time::timeout(PATIENCE, async {
        while !fact().await {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    });
    assert!(waiting.await.is_ok(), "never came true within {PATIENCE:?}: {what}");
}

/// Holds one command at a point: [`Harness::hold`](super::Harness::hold). Dropping it lets the command go.
#[must_use = "the command is let go when this is dropped"]
pub struct Hold(Arc<Held>);

struct Held {
    point: Point,
    reached: CancellationToken,
    is_released: Mutex<bool>,
    changed: Condvar,
}

impl Hold {
    /// Waits until a command is held.
    ///
    /// # Panics
    /// If none has come after ten seconds.
    pub async fn reached(&self) {
        let waiting = tokio::time::timeout(PATIENCE, self.0.reached.cancelled()).await;
        let point = self.0.point.as_str();
        assert!(waiting.is_ok(), "no command has reached {point} within {PATIENCE:?}");
    }

    /// Lets the command go on.
    pub fn release(self) {}
}

impl Drop for Hold {
    fn drop(&mut self) {
        *self.0.is_released.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}

impl Held {
    /// Stays until released. An observer cannot await, so this stops the thread; block_in_place gives its tasks to
    /// another.
    fn stay(&self) {
        self.reached.cancel();
        let wait = || {
            let is_released = self.is_released.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = self
                .changed
                .wait_timeout_while(is_released, HOLD_MAX, |is_released| !*is_released);
            waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
        };
        let is_forgotten = match Handle::try_current().map(|handle| handle.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
            _ => wait(),
        };
        let point = self.point.as_str();
        assert!(
            !is_forgotten,
            "a command was held at {point} for {HOLD_MAX:?} and nobody released it; run it by tokio::spawn, so that the \
             test itself can go on"
        );
    }
}

/// The observer behind a harness.
#[derive(Default)]
pub(super) struct Watcher {
    holds: Mutex<Vec<Arc<Held>>>,
    counts: watch::Sender<HashMap<Point, u64>>,
    plan: Option<Arc<Plan>>,
}

impl Watcher {
    /// One that crashes as the plan says.
    pub(super) fn crashing(plan: Arc<Plan>) -> Self {
        Self {
            plan: Some(plan),
            ..Self::default()
        }
    }

    pub(super) fn hold(&self, point: Point) -> Hold {
        assert!(
            self.plan.is_none(),
            "a scenario of crash_everywhere has one thread, and a command held on it would hold the scenario"
        );
        let held = Arc::new(Held {
            point,
            reached: CancellationToken::new(),
            is_released: Mutex::new(false),
            changed: Condvar::new(),
        });
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        holds.push(held.clone());
        Hold(held)
    }

    pub(super) async fn reached(&self, point: Point) {
        let mut counts = self.counts.subscribe();
        let reached = counts.wait_for(|counts| counts.contains_key(&point));
        let waiting = tokio::time::timeout(PATIENCE, reached).await;
        let point = point.as_str();
        assert!(waiting.is_ok(), "no command has reached {point} within {PATIENCE:?}");
    }

    /// The hold that waits for this point, if there is one: it is used up by that.
    fn take_hold(&self, point: Point) -> Option<Arc<Held>> {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        let found = holds.iter().position(|held| held.point == point)?;
        Some(holds.remove(found))
    }
}

/// A watcher that a harness shares with its `Steadfast`.
pub(super) struct Watching(pub(super) Arc<Watcher>);

impl Observer for Watching {
    fn reached(&self, point: Point, _: &Key) {
        self.0
            .counts
            .send_modify(|counts| *counts.entry(point).or_default() += 1);
        if let Some(held) = self.0.take_hold(point) {
            held.stay();
        }
    }

    fn asked(&self, statement: &'static str) {
        if let Some(plan) = &self.0.plan {
            plan.asked(statement);
        }
    }

    fn commit_applied(&self) -> CommitReply {
        let plan = self.0.plan.as_ref();
        plan.map_or(CommitReply::Arrives, |plan| plan.commit_applied())
    }
}
