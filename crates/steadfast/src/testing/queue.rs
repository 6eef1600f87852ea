//! A broker in memory, for tests of consumers: it forgets nothing that was not acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::broker::{Feed, Incoming, Source};
use crate::failure::{Failure, FailureClass};

/// A queue in memory that hands messages out until they are acknowledged, as a broker does. Clones are the same queue.
///
/// ```
/// use steadfast::Incoming;
/// use steadfast::testing::TestQueue;
///
/// let queue = TestQueue::default();
/// queue.send(Incoming::new(r#"{"sku":"tea"}"#).with_message_id("17").with_event_type("order.placed"));
/// assert_eq!((queue.waiting(), queue.acked()), (1, 0));
/// ```
#[derive(Clone, Debug, Default)]
pub struct TestQueue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Incoming>,
    /// Handed out, by receipt, with the number of the feed that has them.
    out: BTreeMap<u64, (u64, Incoming)>,
    acked: usize,
    buried: Vec<Incoming>,
    opened: u64,
    receipts: u64,
    is_away: bool,
    acks_to_lose: usize,
    has_dead_letters: bool,
    refuses_dead_letters: Option<fn() -> Failure>,
}

impl TestQueue {
    /// A queue that has dead letters too.
    pub fn with_dead_letters() -> Self {
        let queue = Self::default();
        queue.state().has_dead_letters = true;
        queue
    }

    /// Puts a message into the queue.
    pub fn send(&self, message: Incoming) {
        self.state().waiting.push_back(message);
        self.0.changed.notify_waiters();
    }

    /// How many messages wait to be handed out.
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// How many are handed out and not acknowledged.
    pub fn out(&self) -> usize {
        self.state().out.len()
    }

    /// How many were acknowledged.
    pub fn acked(&self) -> usize {
        self.state().acked
    }

    /// What was given up, as it came.
    pub fn dead_letters(&self) -> Vec<Incoming> {
        self.state().buried.clone()
    }

    /// How often somebody has called.
    pub fn opened(&self) -> u64 {
        self.state().opened
    }

    /// Cuts everybody off: what is not acknowledged goes to whoever comes next.
    pub fn cut(&self) {
        let mut state = self.state();
        let out: Vec<_> = std::mem::take(&mut state.out).into_values().collect();
        for (_, message) in out.into_iter().rev() {
            state.waiting.push_front(message.redelivered(true));
        }
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// Cannot be reached from now on, or can again.
    pub fn set_away(&self, is_away: bool) {
        self.state().is_away = is_away;
        self.cut();
    }

    /// Cuts off whoever says the next so many times that messages were handled, before it hears it.
    pub fn lose_acks(&self, count: usize) {
        self.state().acks_to_lose = count;
    }

    /// Takes no dead letters from now on, or does again.
    pub fn refuse_dead_letters(&self, refuses: bool) {
        self.state().refuses_dead_letters = refuses.then_some(away);
    }

    /// Says of every dead letter from now on that it will never take it.
    pub fn refuse_dead_letters_for_good(&self) {
        self.state().refuses_dead_letters = Some(never);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn away() -> Failure {
    Failure::transient("away", "the queue cannot be reached")
}

fn never() -> Failure {
    Failure::definitive(FailureClass::Validation, "too_large", "no letter that large is taken")
}

impl Source for TestQueue {
    type Feed = TestFeed;

    async fn open(&self, prefetch: usize) -> Result<TestFeed, Failure> {
        let mut state = self.state();
        state.opened += 1;
        if state.is_away {
            return Err(away());
        }
        Ok(TestFeed {
            queue: self.clone(),
            number: state.opened,
            prefetch,
        })
    }

    fn has_dead_letters(&self) -> bool {
        self.state().has_dead_letters
    }

    async fn bury(&self, message: &Incoming, _why: &str) -> Result<(), Failure> {
        let mut state = self.state();
        if let Some(refused) = state.refuses_dead_letters {
            return Err(refused());
        }
        state.buried.push(message.clone());
        Ok(())
    }

    fn address(&self) -> String {
        "a queue in memory".to_owned()
    }
}

/// One way to the messages of a [`TestQueue`].
#[derive(Debug)]
pub struct TestFeed {
    queue: TestQueue,
    number: u64,
    prefetch: usize,
}

impl TestFeed {
    /// What can be handed out now.
    fn take(&self, max: usize) -> Result<Vec<Incoming>, Failure> {
        let mut state = self.queue.state();
        if state.is_away {
            return Err(away());
        }
        let out = state.out.values().filter(|(feed, _)| *feed == self.number).count();
        let count = max.min(self.prefetch.saturating_sub(out)).min(state.waiting.len());
        let messages: Vec<_> = state.waiting.drain(..count).collect();
        let hand_out = |message: Incoming| {
            state.receipts += 1;
            let receipt = state.receipts;
            let message = message.with_receipt(receipt);
            state.out.insert(receipt, (self.number, message.clone()));
            message
        };
        Ok(messages.into_iter().map(hand_out).collect())
    }
}

impl Feed for TestFeed {
    async fn receive(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        loop {
            let queue = self.queue.clone();
            let changed = queue.0.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let messages = self.take(max)?;
            if !messages.is_empty() {
                return Ok(messages);
            }
            changed.await;
        }
    }

    async fn receive_ahead(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        self.take(max)
    }

    async fn ack(&mut self, receipts: &[u64]) -> Result<(), Failure> {
        let mut state = self.queue.state();
        if state.acks_to_lose > 0 {
            state.acks_to_lose -= 1;
            drop(state);
            self.queue.cut();
            return Err(away());
        }
        for receipt in receipts {
            let is_ours = state.out.remove(receipt).is_some();
            state.acked += usize::from(is_ours);
        }
        Ok(())
    }
}

impl Drop for TestFeed {
    /// What it has not acknowledged goes to others.
    fn drop(&mut self) {
        let mut state = self.queue.state();
        let ours: Vec<_> = state
            .out
            .iter()
            .filter(|(_, (feed, _))| *feed == self.number)
            .map(|(receipt, _)| *receipt)
            .collect();
        for receipt in ours.into_iter().rev() {
            if let Some((_, message)) = state.out.remove(&receipt) {
                state.waiting.push_front(message.redelivered(true));
            }
        }
        drop(state);
        self.queue.0.changed.notify_waiters();
    }
}
