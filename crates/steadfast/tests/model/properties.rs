//! What has to hold in every state, and what has to be seen in some for that to mean anything.

use stateright::Model;

use crate::engine::{Engine, Handler};
use crate::state::{Action, Item, RowState, State, Work};

type Property = stateright::Property<Engine>;

pub(crate) const EFFECTS: &str = "no transactional effect happens twice, and none outside unless something went wrong";
pub(crate) const STALE: &str = "a stale lease changes nothing";
pub(crate) const EPOCHS: &str = "no epoch ever falls";
pub(crate) const FINISHES: &str = "nobody finishes a row that he does not hold";
pub(crate) const ORDER: &str = "first deliveries follow the numbers of their chain";
pub(crate) const ONE_LEASE: &str = "a chain has one lease in force at most";
pub(crate) const NOTHING_VANISHES: &str = "what was committed is in the queue or in the history";
pub(crate) const REST: &str = "at rest, all is delivered, dead or behind a dead head";
pub(crate) const STARTS: &str = "no row is started more often than its attempts allow";
pub(crate) const NEIGHBOURS: &str = "a killer ends dead, and those of other chains are delivered";

pub(crate) fn all() -> Vec<Property> {
    vec![
        Property::always(EFFECTS, effects_are_counted),
        Property::always(STALE, |_, state| !state.breaches.stale_lease_changed),
        Property::always(EPOCHS, |_, state| !state.breaches.epoch_fell),
        Property::always(FINISHES, |_, state| !state.breaches.stale_lease_finished),
        Property::always(ORDER, is_in_order),
        Property::always(ONE_LEASE, has_one_lease_per_chain),
        Property::always(NOTHING_VANISHES, is_complete),
        Property::always(REST, |engine, state| !is_at_rest(engine, state) || is_settled(state)),
        Property::always(STARTS, has_bounded_starts),
        Property::always(NEIGHBOURS, |engine, state| {
            !is_at_rest(engine, state) || is_survived(engine, state)
        }),
        Property::sometimes("a zombie is about to finish", has_zombie),
        Property::sometimes(
            "a row is reclaimed while its first holder still works on it",
            is_reclaimed,
        ),
        Property::sometimes("a node meets its own zombie", has_own_zombie),
        Property::sometimes("two claims have the same epoch", has_forgotten_claim),
        Property::sometimes("a row that committed late is delivered", |_, state| {
            state.rows.iter().any(|row| row.is_late && row.is_delivered)
        }),
        Property::sometimes("a row dies", |_, state| {
            state.rows.iter().any(|row| row.is(RowState::Dead))
        }),
        Property::sometimes("a tail waits behind a dead head", |engine, state| {
            is_at_rest(engine, state) && state.row(Item::Second).is(RowState::Pending)
        }),
        Property::sometimes("a row is requeued, and all are delivered after all", |_, state| {
            state.left.requeues == 0 && state.rows.iter().all(|row| row.is_delivered)
        }),
    ]
}

/// Sees a step from outside, and notes what no state would show afterwards.
pub(crate) fn observe(last: &State, action: Action, next: &mut State) {
    let fell = last.rows.iter().zip(&next.rows).any(|(before, after)| {
        let (Some(before), Some(after)) = (&before.queued, &after.queued) else {
            return false;
        };
        after.epoch < before.epoch
    });
    let is_stale = action.claim().is_some_and(|claim| !last.holds(claim));
    let changed = is_stale && (last.rows != next.rows || last.effects != next.effects);
    next.breaches.epoch_fell |= fell;
    next.breaches.stale_lease_changed |= changed;
    next.breaches.stale_lease_finished |= changed && matches!(action, Action::Finish(_));
}

fn effects_are_counted(engine: &Engine, state: &State) -> bool {
    Item::ALL.iter().all(|item| match engine.handler {
        Handler::Transactional => state.effects(*item) <= 1,
        Handler::Outside => state.effects(*item) <= 1 || state.left.blows < engine.luck.blows,
    })
}

fn is_in_order(_: &Engine, state: &State) -> bool {
    state.effects(Item::Second) == 0 || state.effects(Item::First) > 0
}

fn has_one_lease_per_chain(_: &Engine, state: &State) -> bool {
    !(state.row(Item::First).is(RowState::Leased) && state.row(Item::Second).is(RowState::Leased))
}

/// A row is in one place and in no other, and what is called delivered has had its effect.
fn is_complete(_: &Engine, state: &State) -> bool {
    Item::ALL.iter().all(|item| {
        let row = state.row(*item);
        let places = u8::from(row.queued.is_some()) + u8::from(row.is_delivered);
        places == u8::from(row.is_committed) && (!row.is_delivered || state.effects(*item) > 0)
    })
}

/// Nothing can happen any more. There is no way around in circles, so each path ends here.
fn is_at_rest(engine: &Engine, state: &State) -> bool {
    // Who remembers a row can always do something about it: there is no need to look further.
    if state.remembered().next().is_some() {
        return false;
    }
    let mut actions = Vec::new();
    engine.actions(state, &mut actions);
    actions.is_empty()
}

fn is_settled(state: &State) -> bool {
    Item::ALL.iter().all(|item| {
        let row = state.row(*item);
        let waits = item.before().is_some_and(|head| state.row(head).is(RowState::Dead));
        row.is_delivered || row.is(RowState::Dead) || waits && row.is(RowState::Pending)
    })
}

fn has_bounded_starts(engine: &Engine, state: &State) -> bool {
    // An operator gives all attempts anew, a snooze gives one back, and a lost claim is never counted.
    let starts_max = engine.attempts_max * (1 + engine.luck.requeues) + engine.luck.blows;
    state.rows.iter().all(|row| row.claims <= starts_max)
}

fn is_survived(engine: &Engine, state: &State) -> bool {
    engine.killer.is_none_or(|killer| {
        let mut others = Item::ALL.iter().filter(|item| !item.shares_chain_with(killer));
        state.row(killer).is(RowState::Dead) && others.all(|item| state.row(*item).is_delivered)
    })
}

fn has_zombie(engine: &Engine, state: &State) -> bool {
    let awake = state.processes.iter().filter(|process| !process.is_paused);
    let mut works = awake.flat_map(|process| &process.works);
    works.any(|work| work.has_acted == (engine.handler == Handler::Outside) && !state.holds(work.lease.claim))
}

fn is_reclaimed(_: &Engine, state: &State) -> bool {
    let mut leases = state.remembered();
    leases.any(|lease| !state.holds(lease.claim) && state.row(lease.claim.item).is(RowState::Leased))
}

fn has_own_zombie(_: &Engine, state: &State) -> bool {
    state.processes.iter().any(|process| {
        let item = |work: &Work| work.lease.claim.item;
        process.works.windows(2).any(|pair| item(&pair[0]) == item(&pair[1]))
    })
}

fn has_forgotten_claim(_: &Engine, state: &State) -> bool {
    state.remembered().any(|one| {
        let mut others = state.remembered().filter(|other| other.claim != one.claim);
        others.any(|other| (other.claim.item, other.epoch) == (one.claim.item, one.epoch))
    })
}
