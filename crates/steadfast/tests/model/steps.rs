//! What comes of what happens: the statements of the engine, and the blows of the world.

use crate::engine::{Engine, Handler};
use crate::state::{Action, Claim, Item, Lease, Node, Process, Queued, RowState, State, Work};
use crate::twins::Flaw;

impl Engine {
    pub(crate) fn step(&self, state: &mut State, action: Action) {
        if action.is_blow() {
            // Nothing is left to count down where a killer strikes.
            state.left.blows = state.left.blows.saturating_sub(1);
        }
        match action {
            Action::Commit(item) => commit(state, item),
            Action::Claim(node, item) => {
                let lease = self.promise(state, node, item);
                self.claim(state, lease);
            }
            Action::LoseClaim(node, item) => {
                self.promise(state, node, item);
            }
            Action::Pause(node) => state.process_mut(node).is_paused = true,
            Action::Wake(node) => state.process_mut(node).is_paused = false,
            Action::Crash(node) => *state.process_mut(node) = Process::default(),
            Action::Lapse(item) => queued(state, item).state = RowState::Lapsed,
            Action::Bury(item) => self.bury(queued(state, item)),
            Action::Requeue(item) => {
                self.requeue(queued(state, item));
                state.left.requeues -= 1;
            }
            Action::Act(claim) => act(state, claim),
            Action::Finish(claim) => self.finish(state, claim),
            Action::Fail(claim) => self.fail(state, claim),
            Action::Snooze(claim) => self.snooze(state, claim),
            Action::Renew(claim) => self.renew(state, claim),
        }
    }

    /// Answers a claim: from here on the node takes the row for its own. The token is random, so no two claims share one.
    fn promise(&self, state: &mut State, node: Node, item: Item) -> Lease {
        let row = state.row_mut(item);
        row.claims += 1;
        let serial = row.claims;
        let is_suspect = row.is_suspect();
        let queued = queued(state, item);
        let restarts = self.has(Flaw::EpochRestarts) && queued.state == RowState::Lapsed;
        let epoch = if restarts { 1 } else { queued.epoch + 1 };
        let token = if self.has(Flaw::EpochRestarts) { epoch } else { serial };
        let claim = Claim { item, serial, node };
        let lease = Lease { claim, epoch, token };
        let works = &mut state.process_mut(node).works;
        works.push(Work {
            lease,
            is_suspect,
            has_acted: false,
        });
        works.sort();
        lease
    }

    fn claim(&self, state: &mut State, lease: Lease) {
        let queued = queued(state, lease.claim.item);
        queued.state = RowState::Leased;
        queued.epoch = lease.epoch;
        queued.lease = Some(lease);
        // Counted now, since whoever dies of the row will not come back to count.
        if !self.has(Flaw::CountedAtTheEnd) {
            queued.attempts += 1;
        }
    }

    fn bury(&self, queued: &mut Queued) {
        queued.state = RowState::Dead;
        if !self.has(Flaw::DeadKeepsToken) {
            queued.lease = None;
        }
    }

    fn requeue(&self, queued: &mut Queued) {
        queued.state = RowState::Pending;
        queued.attempts = 0;
        if self.has(Flaw::EpochRestarts) {
            queued.epoch = 0;
        }
    }

    /// The row, if the store takes the lease for the one it has given. Every statement of a worker goes through here.
    fn fenced<'s>(&self, state: &'s mut State, lease: Lease) -> Option<&'s mut Queued> {
        let queued = state.row_mut(lease.claim.item).queued.as_mut()?;
        let given = queued.lease?;
        let is_same = match self.flaw {
            Some(Flaw::NoFence) => true,
            Some(Flaw::FencedByName) => given.claim.node == lease.claim.node,
            Some(Flaw::NoToken) => given.epoch == lease.epoch,
            _ => (given.epoch, given.token) == (lease.epoch, lease.token),
        };
        is_same.then_some(queued)
    }

    fn finish(&self, state: &mut State, claim: Claim) {
        let lease = forget(state, claim);
        let is_held = self.fenced(state, lease).is_some();
        if is_held {
            let row = state.row_mut(claim.item);
            row.queued = None;
            row.is_delivered = true;
        }
        // Whose finish found no row rolls back, and the effect with it.
        if self.handler == Handler::Transactional && (is_held || self.has(Flaw::NoFence)) {
            take_effect(state, claim.item);
        }
    }

    fn fail(&self, state: &mut State, claim: Claim) {
        let lease = forget(state, claim);
        let is_counted = !self.has(Flaw::CountedAtTheEnd);
        if let Some(queued) = self.fenced(state, lease) {
            queued.attempts += u8::from(!is_counted);
            queued.lease = None;
            let is_spent = queued.attempts >= self.attempts_max;
            queued.state = if is_spent { RowState::Dead } else { RowState::Pending };
        }
    }

    /// Gives the row back, and the attempt with it.
    fn snooze(&self, state: &mut State, claim: Claim) {
        let lease = forget(state, claim);
        let is_counted = !self.has(Flaw::CountedAtTheEnd);
        if let Some(queued) = self.fenced(state, lease) {
            queued.attempts = queued.attempts.saturating_sub(u8::from(is_counted));
            queued.lease = None;
            queued.state = RowState::Pending;
        }
    }

    /// A lease that has lapsed is in force again, unless somebody has taken the row; then its holder is told, and stops.
    fn renew(&self, state: &mut State, claim: Claim) {
        let lease = state.work(claim).expect("who renews remembers what").lease;
        match self.fenced(state, lease) {
            Some(queued) => queued.state = RowState::Leased,
            None => {
                forget(state, claim);
            }
        }
    }
}

fn commit(state: &mut State, item: Item) {
    let is_late = Item::ALL
        .iter()
        .any(|other| *other > item && state.row(*other).claims > 0);
    let row = state.row_mut(item);
    row.is_committed = true;
    row.is_late = is_late;
    row.queued = Some(Queued {
        state: RowState::Pending,
        epoch: 0,
        attempts: 0,
        lease: None,
    });
}

fn act(state: &mut State, claim: Claim) {
    take_effect(state, claim.item);
    let mut works = state.process_mut(claim.node).works.iter_mut();
    let work = works.find(|work| work.lease.claim == claim);
    work.expect("who acts remembers why").has_acted = true;
}

/// One effect more; of more than one there is no need to know how many.
fn take_effect(state: &mut State, item: Item) {
    let effects = &mut state.effects[item as usize];
    *effects = (*effects + 1).min(2);
}

fn queued(state: &mut State, item: Item) -> &mut Queued {
    let row = state.row_mut(item);
    row.queued.as_mut().expect("only what is in the queue is touched there")
}

/// What is asked for with a lease ends the work on it, whatever the store answers.
fn forget(state: &mut State, claim: Claim) -> Lease {
    let works = &mut state.process_mut(claim.node).works;
    let place = works.iter().position(|work| work.lease.claim == claim);
    works.remove(place.expect("who gives up remembers what")).lease
}
