//! What the store and the nodes remember, and what can happen to them.

use crate::engine::{Luck, SUSPECT_ATTEMPTS};

/// A row of the queue, in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Item {
    /// The head of the chain.
    First,
    /// Its tail.
    Second,
    /// Of no chain.
    Free,
}

impl Item {
    pub(crate) const ALL: [Self; 3] = [Self::First, Self::Second, Self::Free];

    /// The row of the same chain with the number before.
    pub(crate) fn before(self) -> Option<Self> {
        (self == Self::Second).then_some(Self::First)
    }

    pub(crate) fn shares_chain_with(self, other: Self) -> bool {
        (self == Self::Free) == (other == Self::Free)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Node {
    A,
    B,
}

impl Node {
    pub(crate) const ALL: [Self; 2] = [Self::A, Self::B];

    fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// One claim of one row by one node, as somebody sees it who sees everything: no two have the same serial. The store
/// knows nothing of it, and has to tell claims apart by what is in the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Claim {
    pub(crate) item: Item,
    pub(crate) serial: u8,
    pub(crate) node: Node,
}

/// The right to work on a row. Of the claim, the store keeps the name of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lease {
    pub(crate) claim: Claim,
    pub(crate) epoch: u8,
    pub(crate) token: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RowState {
    Pending,
    Leased,
    /// Leased in the table, but the lease is over: the next scan takes it.
    Lapsed,
    Dead,
}

/// A row of the table `queue`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Queued {
    pub(crate) state: RowState,
    pub(crate) epoch: u8,
    pub(crate) attempts: u8,
    pub(crate) lease: Option<Lease>,
}

/// What became of a message: its row in `queue` and in `history`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Row {
    pub(crate) is_committed: bool,
    /// A row with a higher number was claimed before this one committed: a cursor would have passed it.
    pub(crate) is_late: bool,
    pub(crate) queued: Option<Queued>,
    pub(crate) is_delivered: bool,
    /// How many claims there ever were, with those that the store has forgotten.
    pub(crate) claims: u8,
}

impl Row {
    pub(crate) fn is(&self, state: RowState) -> bool {
        self.queued.as_ref().is_some_and(|queued| queued.state == state)
    }

    pub(crate) fn attempts(&self) -> u8 {
        self.queued.as_ref().map_or(0, |queued| queued.attempts)
    }

    /// Whether it may be what kills its processes.
    pub(crate) fn is_suspect(&self) -> bool {
        self.is(RowState::Lapsed) && self.attempts() >= SUSPECT_ATTEMPTS
    }
}

/// What a node remembers of a row that it works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Work {
    pub(crate) lease: Lease,
    pub(crate) is_suspect: bool,
    /// The effect outside has happened, and is not yet recorded.
    pub(crate) has_acted: bool,
}

/// What is in the memory of a process, and gone when it crashes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Process {
    /// It neither works nor renews, but it forgets nothing.
    pub(crate) is_paused: bool,
    /// Sorted, so that the same memories are the same state.
    pub(crate) works: Vec<Work>,
}

/// What was seen to happen that never may, and that no later state would show.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Breaches {
    pub(crate) epoch_fell: bool,
    pub(crate) stale_lease_changed: bool,
    pub(crate) stale_lease_finished: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct State {
    pub(crate) processes: [Process; 2],
    pub(crate) rows: [Row; 3],
    /// How often the effect of each row has happened: never, once, or more than once.
    pub(crate) effects: [u8; 3],
    /// What may still go wrong.
    pub(crate) left: Luck,
    pub(crate) breaches: Breaches,
}

impl State {
    /// The same for this state and for the one in which the nodes have exchanged their names.
    ///
    /// Of the two it is the smaller one. As the fields are ordered, it is what the processes remember that decides, and
    /// only where they remember nothing the names that are left in the rows.
    pub(crate) fn representative(&self) -> Self {
        let [a, b] = &self.processes;
        if a < b {
            return self.clone();
        }
        let mut mirrored = self.clone();
        mirrored.processes.reverse();
        let works = mirrored.processes.iter_mut().flat_map(|process| &mut process.works);
        let remembered = works.map(|work| &mut work.lease);
        let rows = mirrored.rows.iter_mut();
        let given = rows.filter_map(|row| row.queued.as_mut()?.lease.as_mut());
        for lease in remembered.chain(given) {
            lease.claim.node = lease.claim.node.other();
        }
        mirrored.min(self.clone())
    }

    pub(crate) fn row(&self, item: Item) -> &Row {
        &self.rows[item as usize]
    }

    pub(crate) fn row_mut(&mut self, item: Item) -> &mut Row {
        &mut self.rows[item as usize]
    }

    pub(crate) fn effects(&self, item: Item) -> u8 {
        self.effects[item as usize]
    }

    pub(crate) fn process(&self, node: Node) -> &Process {
        &self.processes[node as usize]
    }

    pub(crate) fn process_mut(&mut self, node: Node) -> &mut Process {
        &mut self.processes[node as usize]
    }

    pub(crate) fn work(&self, claim: Claim) -> Option<&Work> {
        let works = &self.process(claim.node).works;
        works.iter().find(|work| work.lease.claim == claim)
    }

    /// Every lease that a node remembers, rightly or not.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = &Lease> {
        let works = self.processes.iter().flat_map(|process| &process.works);
        works.map(|work| &work.lease)
    }

    /// Whether a row is leased to this claim and no other, whatever the store takes for it. A lease that has lapsed is
    /// still held until somebody else takes the row.
    pub(crate) fn holds(&self, claim: Claim) -> bool {
        let queued = self.row(claim.item).queued.as_ref();
        queued.is_some_and(|queued| {
            matches!(queued.state, RowState::Leased | RowState::Lapsed)
                && queued.lease.is_some_and(|lease| lease.claim == claim)
        })
    }
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The transaction that published the row commits.
    Commit(Item),
    Claim(Node, Item),
    /// The claim is answered and then lost with the power, before it was on the disk.
    LoseClaim(Node, Item),
    Pause(Node),
    Wake(Node),
    Crash(Node),
    /// A lease that nobody renews is over.
    Lapse(Item),
    /// The scan finds a lapsed row that has no attempt left.
    Bury(Item),
    /// An operator gives a dead row another life.
    Requeue(Item),
    /// The effect outside.
    Act(Claim),
    /// The row is delivered; a transactional effect happens in the same commit.
    Finish(Claim),
    Fail(Claim),
    Snooze(Claim),
    Renew(Claim),
}

impl Action {
    /// Whether this is something that may happen a few times only.
    pub(crate) fn is_blow(self) -> bool {
        matches!(
            self,
            Self::LoseClaim(..) | Self::Pause(_) | Self::Crash(_) | Self::Fail(_) | Self::Snooze(_)
        )
    }

    /// The claim in whose name something is asked of the store.
    pub(crate) fn claim(self) -> Option<Claim> {
        match self {
            Self::Finish(claim) | Self::Fail(claim) | Self::Snooze(claim) | Self::Renew(claim) => Some(claim),
            _ => None,
        }
    }
}
