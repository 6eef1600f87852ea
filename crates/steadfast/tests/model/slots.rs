//! The limit of a queue, as a model of its own, and every state that it can get into.
//!
//! Two nodes claim from a queue of which one row may run at a time. A claim is a transaction of three steps: the row of the queue is
//! locked, what runs is counted, and a row is leased, with its slot, until COMMIT. Leases expire, nodes sleep and wake up and renew
//! what nobody has taken over, rows end, nodes crash in the middle of a claim.
//!
//! Each twin lacks one thing, and falls.

use stateright::{Checker, Model, Property};

/// How much may go wrong: leases that expire, and crashes.
const BLOWS: u8 = 3;

type Row = usize;
type Node = usize;

const LIMIT: usize = 1;

const HOLDS: &str = "no more leases that have not expired than the limit";
const REST: &str = "every row has ended when everything is at rest";
const ALL_END: &str = "every row ends";

/// What a twin does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// It counts what it saw when it asked for the lock, as a single statement would.
    CountsBeforeTheLock,
    /// It locks nothing.
    LocksNothing,
    /// To it, the slot of a lease that has expired is free, though whoever has it may renew it.
    FreesWhatHasExpired,
    /// Its slots name rows and not leases, and nobody gives them back.
    SlotsWithoutLease,
    /// It wants a new slot for a row whose lease has expired.
    WantsASecondSlot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Pending,
    Leased {
        epoch: u8,
        has_expired: bool,
        /// Whether its node is dead: nobody renews or ends it.
        is_orphan: bool,
    },
    Ended,
}

/// How far a claim has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Claim {
    Idle,
    /// It waits for the lock, and has seen this many slots that are taken, if it looks too early.
    Asking(usize),
    Locked(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    rows: [State; 2],
    /// The epoch of the lease that a slot was taken for.
    slots: [Option<u8>; 2],
    epochs: [u8; 2],
    claims: [Claim; 2],
    locked_by: Option<Node>,
    blows_left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Ask(Node),
    Lock(Node),
    /// Leases the first row that it may, and commits.
    Take(Node),
    /// The node dies, and its transaction with it.
    Crash(Node),
    Expire(Row),
    /// Its node dies, and the lease expires.
    Orphan(Row),
    /// Whoever has it is awake again, and nobody has taken it over.
    Renew(Row),
    End(Row),
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    flaw: Option<Flaw>,
}

impl Queue {
    fn has(self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Whether a slot counts.
    fn is_taken(self, world: &World, row: Row) -> bool {
        match (world.slots[row], world.rows[row]) {
            (None, _) => false,
            (Some(_), _) if self.has(Flaw::SlotsWithoutLease) => true,
            (Some(slot), State::Leased { epoch, has_expired, .. }) => {
                slot == epoch && !(has_expired && self.has(Flaw::FreesWhatHasExpired))
            }
            (Some(_), _) => false,
        }
    }

    fn count(self, world: &World) -> usize {
        (0..2).filter(|row| self.is_taken(world, *row)).count()
    }

    /// The row that a claim leases when so many slots are taken: one whose lease has expired has its slot.
    fn choose(self, world: &World, taken: usize) -> Option<Row> {
        let has_expired = |row: &Row| matches!(world.rows[*row], State::Leased { has_expired: true, .. });
        let needs_none = |row: &Row| has_expired(row) && !self.has(Flaw::WantsASecondSlot);
        let late = (0..2).find(needs_none);
        let first = (0..2).find(|row| world.rows[*row] == State::Pending || has_expired(row));
        late.or(first.filter(|_| taken < LIMIT))
    }
}

impl Model for Queue {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            rows: [State::Pending; 2],
            slots: [None; 2],
            epochs: [0; 2],
            claims: [Claim::Idle; 2],
            locked_by: None,
            blows_left: BLOWS,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for node in 0..2 {
            match world.claims[node] {
                Claim::Idle if self.choose(world, self.count(world)).is_some() => actions.push(Action::Ask(node)),
                Claim::Idle => {}
                Claim::Asking(_) if world.locked_by.is_none() || self.has(Flaw::LocksNothing) => {
                    actions.push(Action::Lock(node));
                }
                Claim::Asking(_) => {}
                Claim::Locked(_) => actions.push(Action::Take(node)),
            }
            if world.blows_left > 0 && world.claims[node] != Claim::Idle {
                actions.push(Action::Crash(node));
            }
        }
        for row in 0..2 {
            let State::Leased {
                has_expired, is_orphan, ..
            } = world.rows[row]
            else {
                continue;
            };
            if !is_orphan {
                actions.push(Action::End(row));
            }
            if has_expired && !is_orphan {
                actions.push(Action::Renew(row));
            }
            if !has_expired && world.blows_left > 0 {
                actions.extend([Action::Expire(row), Action::Orphan(row)]);
            }
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Ask(node) => next.claims[node] = Claim::Asking(self.count(world)),
            Action::Lock(node) => {
                let Claim::Asking(seen) = world.claims[node] else {
                    return None;
                };
                let is_early = self.has(Flaw::CountsBeforeTheLock);
                next.claims[node] = Claim::Locked(if is_early { seen } else { self.count(world) });
                next.locked_by = Some(node);
            }
            Action::Take(node) => {
                let Claim::Locked(taken) = world.claims[node] else {
                    return None;
                };
                if let Some(row) = self.choose(world, taken) {
                    next.epochs[row] += 1;
                    let epoch = next.epochs[row];
                    next.rows[row] = State::Leased {
                        epoch,
                        has_expired: false,
                        is_orphan: false,
                    };
                    next.slots[row] = Some(epoch);
                }
                next.claims[node] = Claim::Idle;
                next.locked_by = next.locked_by.filter(|holder| *holder != node);
            }
            Action::Crash(node) => {
                next.blows_left -= 1;
                next.claims[node] = Claim::Idle;
                next.locked_by = next.locked_by.filter(|holder| *holder != node);
            }
            Action::Expire(row) | Action::Orphan(row) | Action::Renew(row) => {
                let State::Leased { epoch, has_expired, .. } = world.rows[row] else {
                    return None;
                };
                next.blows_left -= u8::from(!has_expired);
                next.rows[row] = State::Leased {
                    epoch,
                    has_expired: !has_expired,
                    is_orphan: matches!(action, Action::Orphan(_)),
                };
            }
            Action::End(row) => next.rows[row] = State::Ended,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(HOLDS, |_, world: &World| {
                let running = |state: &&State| matches!(state, State::Leased { has_expired: false, .. });
                world.rows.iter().filter(running).count() <= LIMIT
            }),
            Property::always(REST, |queue: &Queue, world: &World| {
                let mut actions = Vec::new();
                queue.actions(world, &mut actions);
                !actions.is_empty() || world.rows == [State::Ended; 2]
            }),
            Property::sometimes(ALL_END, |_, world: &World| world.rows == [State::Ended; 2]),
        ]
    }
}

fn falls(flaw: Flaw) -> &'static str {
    let checker = Queue { flaw: Some(flaw) }.checker().spawn_bfs().join();
    [HOLDS, REST]
        .into_iter()
        .find(|property| checker.discovery(property).is_some())
        .unwrap_or("nothing")
}

#[test]
fn the_limit_of_a_queue_holds_whoever_claims_dies_or_wakes_up() {
    let checker = Queue { flaw: None }.checker().spawn_bfs().join();
    println!("{} states of a queue with a limit", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn a_queue_that_lacks_one_thing_breaks_its_limit_or_stands_still() {
    assert_eq!(falls(Flaw::CountsBeforeTheLock), HOLDS);
    assert_eq!(falls(Flaw::LocksNothing), HOLDS);
    assert_eq!(falls(Flaw::FreesWhatHasExpired), HOLDS);
    assert_eq!(falls(Flaw::SlotsWithoutLease), REST);
    assert_eq!(falls(Flaw::WantsASecondSlot), REST);
}
