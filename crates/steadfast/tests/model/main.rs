//! The engine of leased rows as a model, and every state that it can get into, by stateright.
//!
//! Two nodes work on three rows: the first and the second of one ordering key, and a free one with a higher number. The
//! store does what the statements of the engine do: claim, renew, finish, fail, snooze, bury, requeue. The world does
//! what it likes: transactions commit late, handlers fail, nodes crash, or sleep and wake up with leases that others have
//! by then, and the power goes off with a claim that was not yet on the disk. How much goes wrong is bounded
//! ([`engine::Luck`]), when and in which order is not. There is no way around in circles, so every path comes to rest,
//! and what holds wherever one does is what happens in the end.
//!
//! | File | What it holds |
//! |---|---|
//! | [`state`] | what the store and the nodes remember, and what can happen to them |
//! | [`engine`] | the world the engine lives in, and what can happen when |
//! | [`steps`] | what comes of it |
//! | [`properties`] | what has to hold in every state |
//! | [`twins`] | engines with one thing left out, and the property that falls |
//!
//! [`inbox`] is a model of its own: an outbox, a bus that loses and doubles, and the inbox behind it. So is [`slots`]: the limit of a queue.
//!
//! Not modelled:
//! - What goes on inside a statement. Each is atomic here; what two of them do to each other in the database, and whether
//!   the SQL says what is said here, is for the tests that run on both databases.
//! - The clock. A lease may end at any moment at which nobody can renew it, and a retry may be due at any: all delays are
//!   tried, none is measured. Wake-up and parking change only delays.
//! - Locks. Who passes by a row that somebody else is just writing says later what he wanted to say, and every later moment is
//!   among those tried. A handler that finishes its row is one step with its commit. On SQLite no lease ends while its node has the
//!   lock of the file; here it may, whenever its node sleeps.
//! - Why a row is given back. A snooze, a sink that is away and a process that stops are one step, [`state::Action::Snooze`]; whether the due
//!   time moves is a delay like any other.
//! - Batches. Whoever claims two rows in one statement could as well have claimed them one after the other with nothing in
//!   between, and that order is among those tried.
//! - Kinds and their pauses, definitive failures, expiry, `on_dead = skip`, and transactions that roll back, whose rows
//!   nobody ever sees.
//!
//! Run it with `cargo test -p steadfast --test model -- --nocapture`, which also says how many states there are.

mod state;
mod engine;
mod steps;
mod properties;
mod twins;
mod inbox;
mod slots;

use engine::{Engine, Handler, Luck, SUSPECT_ATTEMPTS};
use properties::NEIGHBOURS;
use state::{Item, State};
use stateright::{Checker, Expectation, Model};

/// Goes through every state of an engine. Two that differ in the names of the nodes alone are one.
fn every_state_of(engine: Engine) -> impl Checker<Engine> {
    let name = format!("{engine:?}");
    let checker = engine.checker().symmetry_fn(State::representative).spawn_dfs().join();
    println!("{} states: {name}", checker.unique_state_count());
    checker
}

/// Holds an engine against what must always be, and not against what only bad luck brings about.
fn assert_sound(checker: &impl Checker<Engine>) {
    for property in checker.model().properties() {
        if property.expectation == Expectation::Always {
            checker.assert_no_discovery(property.name);
        }
    }
}

#[test]
fn transactional_reactions_survive_every_order_of_misfortune() {
    every_state_of(Engine::new(Handler::Transactional)).assert_properties();
}

/// With one blow less: effects outside make ten states of one, and a third blow would take minutes.
#[test]
fn outside_reactions_survive_every_order_of_misfortune() {
    let engine = Engine {
        luck: Luck { blows: 2, ..Luck::BAD },
        ..Engine::new(Handler::Outside)
    };
    every_state_of(engine).assert_properties();
}

#[test]
fn without_misfortune_everything_happens_exactly_once() {
    for handler in [Handler::Transactional, Handler::Outside] {
        let engine = Engine {
            luck: Luck::GOOD,
            ..Engine::new(handler)
        };
        assert_sound(&every_state_of(engine));
    }
}

#[test]
fn a_row_that_kills_its_process_ends_dead_and_others_are_delivered() {
    for killer in Item::ALL {
        assert_sound(&every_state_of(Engine::with_killer(killer)));
    }
}

/// Who is worked on beside a killer shares its crashes, and each costs an attempt, since claims are what is counted. That
/// a node works on one suspect at a time helps those who have an attempt left when they become one.
#[test]
fn who_has_no_attempt_left_as_a_suspect_can_die_beside_a_killer() {
    let engine = Engine {
        attempts_max: SUSPECT_ATTEMPTS,
        ..Engine::with_killer(Item::Free)
    };
    every_state_of(engine).assert_any_discovery(NEIGHBOURS);
}
