//! The world the engine lives in, and what can happen when.

use stateright::{Model, Property};

use crate::properties;
use crate::state::{Action, Breaches, Item, Node, RowState, State, Work};
use crate::twins::Flaw;

/// How many rows a node works on at a time.
const LEASES_PER_NODE: usize = 2;

/// A row whose lease lapses after so many attempts is suspected of killing its processes. The engine has the same number.
pub(crate) const SUSPECT_ATTEMPTS: u8 = 2;

/// How a handler and the end of its row belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handler {
    /// The effect and the finish are one commit.
    Transactional,
    /// The effect comes first, and the finish after it, if nothing comes in between.
    Outside,
}

/// How much may still go wrong. It is what keeps the number of states finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Luck {
    /// Pauses, crashes, power cuts, failures and snoozes, in any mixture and order.
    pub(crate) blows: u8,
    /// Dead rows that an operator gives another life.
    pub(crate) requeues: u8,
}

impl Luck {
    pub(crate) const GOOD: Self = Self { blows: 0, requeues: 0 };
    /// Two blows kill a row, and a third one hits it again after it was requeued.
    pub(crate) const BAD: Self = Self { blows: 3, requeues: 1 };
}

/// The engine, and the world it has to live in.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) handler: Handler,
    /// The row whose handler takes its process down each time.
    pub(crate) killer: Option<Item>,
    /// How often a row is tried before it is given up on.
    pub(crate) attempts_max: u8,
    /// Whether a claim is on the disk before it is answered, as with `synchronous_commit=on`.
    pub(crate) has_durable_claims: bool,
    pub(crate) luck: Luck,
    /// What this engine does wrong.
    pub(crate) flaw: Option<Flaw>,
}

impl Engine {
    pub(crate) fn new(handler: Handler) -> Self {
        Self {
            handler,
            killer: None,
            attempts_max: 2,
            has_durable_claims: false,
            luck: Luck::BAD,
            flaw: None,
        }
    }

    /// Nothing goes wrong, but for one row. Attempts go on for one more than it takes to be suspect.
    pub(crate) fn with_killer(killer: Item) -> Self {
        Self {
            killer: Some(killer),
            attempts_max: SUSPECT_ATTEMPTS + 1,
            luck: Luck::GOOD,
            ..Self::new(Handler::Transactional)
        }
    }

    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn is_claimable(&self, state: &State, item: Item) -> bool {
        let row = state.row(item);
        let is_takeable = row.is(RowState::Pending) || row.is(RowState::Lapsed) && row.attempts() < self.attempts_max;
        let is_head = item.before().is_none_or(|before| state.row(before).queued.is_none());
        let is_passed = row.is_late && row.claims == 0;
        is_takeable && (is_head || self.has(Flaw::NoChainCheck)) && !(is_passed && self.has(Flaw::Cursor))
    }

    /// A node works on one suspect at a time: of two that crash together, one may only have stood beside the other.
    fn has_room(&self, state: &State, node: Node, item: Item) -> bool {
        let process = state.process(node);
        let has_suspect = process.works.iter().any(|work| work.is_suspect);
        let is_welcome = !(has_suspect && state.row(item).is_suspect()) || self.has(Flaw::NoSuspects);
        !process.is_paused && process.works.len() < LEASES_PER_NODE && is_welcome
    }

    /// What can happen to a row without a node.
    fn offer_row(&self, state: &State, item: Item, actions: &mut Vec<Action>) {
        let row = state.row(item);
        // The lock of the ordering key lasts until the commit, so numbers of one chain commit in their order.
        let is_next = item.before().is_none_or(|before| state.row(before).is_committed);
        if !row.is_committed && (is_next || self.has(Flaw::NoKeyLock)) {
            actions.push(Action::Commit(item));
        }
        if row.is(RowState::Leased) && !is_renewed(state, item) {
            actions.push(Action::Lapse(item));
        }
        if row.is(RowState::Lapsed) && row.attempts() >= self.attempts_max {
            actions.push(Action::Bury(item));
        }
        if row.is(RowState::Dead) && state.left.requeues > 0 {
            actions.push(Action::Requeue(item));
        }
    }

    /// What can happen to a node as a whole, and what it can claim.
    fn offer_node(&self, state: &State, node: Node, actions: &mut Vec<Action>) {
        let process = state.process(node);
        let mut items = process.works.iter().map(|work| work.lease.claim.item);
        let is_doomed = items.any(|item| self.killer == Some(item));
        if !process.works.is_empty() && (state.left.blows > 0 || is_doomed) {
            actions.push(Action::Crash(node));
        }
        if process.is_paused {
            actions.push(Action::Wake(node));
        } else if !process.works.is_empty() && state.left.blows > 0 {
            actions.push(Action::Pause(node));
        }
        for item in Item::ALL {
            if self.is_claimable(state, item) && self.has_room(state, node, item) {
                actions.push(Action::Claim(node, item));
                if state.left.blows > 0 && !self.has_durable_claims {
                    actions.push(Action::LoseClaim(node, item));
                }
            }
        }
    }

    /// What a node can do about a row that it takes for its own.
    fn offer_work(&self, state: &State, work: &Work, actions: &mut Vec<Action>) {
        let claim = work.lease.claim;
        if self.killer == Some(claim.item) {
            return;
        }
        if self.handler == Handler::Outside && !work.has_acted && !self.has(Flaw::MarkedFirst) {
            actions.push(Action::Act(claim));
        } else {
            actions.push(Action::Finish(claim));
        }
        if state.left.blows > 0 {
            actions.extend([Action::Fail(claim), Action::Snooze(claim)]);
        }
        // Where the lease is in force, a renewal leaves everything as it is.
        if !(state.holds(claim) && state.row(claim.item).is(RowState::Leased)) {
            actions.push(Action::Renew(claim));
        }
    }
}

/// Whether a node that is awake knows of the lease, and keeps it in force.
fn is_renewed(state: &State, item: Item) -> bool {
    let awake = state.processes.iter().filter(|process| !process.is_paused);
    let mut claims = awake.flat_map(|process| &process.works).map(|work| work.lease.claim);
    claims.any(|claim| claim.item == item && state.holds(claim))
}

impl Model for Engine {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            processes: Default::default(),
            rows: Default::default(),
            effects: [0; 3],
            left: self.luck,
            breaches: Breaches::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for item in Item::ALL {
            self.offer_row(state, item, actions);
        }
        for node in Node::ALL {
            self.offer_node(state, node, actions);
            let process = state.process(node);
            for work in process.works.iter().filter(|_| !process.is_paused) {
                self.offer_work(state, work, actions);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        self.step(&mut next, action);
        properties::observe(last, action, &mut next);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
