//! Engines with one thing left out. Each must fall, or the properties prove nothing.
//!
//! Every fall is told as a story. The checker has to find one by itself, the story has to end in one, and in the sound
//! engine the same story has to be harmless or impossible.

use stateright::{Checker, HasDiscoveries, Model, Path};

use crate::engine::{Engine, Handler, Luck};
use crate::properties::{
    EFFECTS, EPOCHS, FINISHES, NEIGHBOURS, NOTHING_VANISHES, ONE_LEASE, ORDER, REST, STALE, STARTS,
};
use crate::state::Action::{self, Bury, Claim as Take, Commit, Crash, Fail, Finish, Lapse, LoseClaim};
use crate::state::Action::{Pause, Renew, Requeue, Snooze, Wake};
use crate::state::Claim;
use crate::state::Item::{self, First, Free, Second};
use crate::state::Node::{self, A, B};
use crate::{assert_sound, every_state_of};

/// What a twin of the engine does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A handler's transaction commits, whether its finish found the row or not.
    NoFence,
    /// Who has the lease is told by the name of the node.
    FencedByName,
    /// Who has the lease is told by the epoch alone.
    NoToken,
    /// The epoch starts again when a lapsed row is taken and when a dead one is requeued, and the token is made from it.
    EpochRestarts,
    /// A row that is buried after its last lease keeps that lease's token.
    DeadKeepsToken,
    /// A row is finished first, and its effect outside is left for afterwards.
    MarkedFirst,
    /// New rows are those with a number above the last one seen.
    Cursor,
    /// The number of a row is taken without a lock on its ordering key.
    NoKeyLock,
    /// A row is claimed without a look at the rows before it.
    NoChainCheck,
    /// An attempt is counted when it ends.
    CountedAtTheEnd,
    /// Rows that may have killed their process are worked on side by side.
    NoSuspects,
}

impl Flaw {
    fn twin(self) -> Engine {
        Engine {
            flaw: Some(self),
            ..Engine::new(Handler::Transactional)
        }
    }
}

/// Asserts that a property falls in a twin, that it falls in this way too, and that the sound engine bears the same.
fn assert_falls(twin: Engine, property: &'static str, story: &[Action]) {
    let sound = Engine {
        flaw: None,
        ..twin.clone()
    };
    let checker = twin.checker().finish_when(HasDiscoveries::AllOf([property].into()));
    checker.spawn_bfs().join().assert_discovery(property, story.to_vec());
    let begin = sound.init_states().remove(0);
    if let Some(path) = Path::from_actions(&sound, begin, story) {
        assert!(
            (sound.property(property).condition)(&sound, path.last_state()),
            "{path:?}"
        );
    }
}

/// The claim of a row that was made as the first, the second…, and the node that made it.
fn claim(serial: u8, node: Node, item: Item) -> Claim {
    Claim { node, item, serial }
}

#[test]
fn without_a_fence_the_effect_of_a_zombie_is_the_second_one() {
    let story = [
        Commit(Free),
        Take(A, Free),
        Pause(A),
        Lapse(Free),
        Take(B, Free),
        Finish(claim(2, B, Free)),
        Wake(A),
        Finish(claim(1, A, Free)),
    ];
    assert_falls(Flaw::NoFence.twin(), EFFECTS, &story);
}

#[test]
fn the_name_of_a_node_lets_its_own_zombie_through() {
    let story = |last| {
        [
            Commit(Free),
            Take(A, Free),
            Pause(A),
            Lapse(Free),
            Wake(A),
            Take(A, Free),
            last,
        ]
    };
    let zombie = claim(1, A, Free);
    assert_falls(Flaw::FencedByName.twin(), FINISHES, &story(Finish(zombie)));
    assert_falls(Flaw::FencedByName.twin(), STALE, &story(Fail(zombie)));
    assert_falls(Flaw::FencedByName.twin(), STALE, &story(Snooze(zombie)));
}

#[test]
fn without_a_token_a_claim_that_the_store_forgot_finishes_the_one_after_it() {
    let story = |last| [Commit(Free), LoseClaim(A, Free), Take(B, Free), last];
    assert_falls(Flaw::NoToken.twin(), FINISHES, &story(Finish(claim(1, A, Free))));
    assert_falls(Flaw::NoToken.twin(), STALE, &story(Fail(claim(1, A, Free))));
}

/// What the token is for: nothing else makes two claims of one row look alike.
#[test]
fn without_a_token_all_is_well_as_long_as_the_store_forgets_nothing() {
    let engine = Engine {
        has_durable_claims: true,
        luck: Luck { blows: 2, ..Luck::BAD },
        ..Flaw::NoToken.twin()
    };
    assert_sound(&every_state_of(engine));
}

#[test]
fn an_epoch_that_restarts_makes_a_stale_finish_match() {
    let story = [
        Commit(Free),
        Take(A, Free),
        Pause(A),
        Lapse(Free),
        Take(B, Free),
        Wake(A),
        Finish(claim(1, A, Free)),
    ];
    assert_falls(Flaw::EpochRestarts.twin(), FINISHES, &story);
}

#[test]
fn an_epoch_that_restarts_falls() {
    let reclaimed = [
        Commit(Free),
        Take(A, Free),
        Snooze(claim(1, A, Free)),
        Take(A, Free),
        Crash(A),
        Lapse(Free),
        Take(B, Free),
    ];
    let requeued = [
        Commit(Free),
        Take(A, Free),
        Fail(claim(1, A, Free)),
        Take(A, Free),
        Fail(claim(2, A, Free)),
        Requeue(Free),
    ];
    assert_falls(Flaw::EpochRestarts.twin(), EPOCHS, &reclaimed);
    assert_falls(Flaw::EpochRestarts.twin(), EPOCHS, &requeued);
}

#[test]
fn a_dead_row_that_keeps_its_token_is_finished_or_woken_by_its_zombie() {
    let story = |last| {
        [
            Commit(Free),
            Take(A, Free),
            Fail(claim(1, A, Free)),
            Take(A, Free),
            Pause(A),
            Lapse(Free),
            Bury(Free),
            Wake(A),
            last,
        ]
    };
    let zombie = claim(2, A, Free);
    assert_falls(Flaw::DeadKeepsToken.twin(), FINISHES, &story(Finish(zombie)));
    assert_falls(Flaw::DeadKeepsToken.twin(), STALE, &story(Renew(zombie)));
}

/// Whoever dies in between never comes to the effect.
#[test]
fn a_row_that_is_finished_first_is_called_delivered_without_its_effect() {
    let twin = Engine {
        handler: Handler::Outside,
        ..Flaw::MarkedFirst.twin()
    };
    let story = [Commit(Free), Take(A, Free), Finish(claim(1, A, Free))];
    assert_falls(twin, NOTHING_VANISHES, &story);
}

#[test]
fn a_cursor_never_comes_back_for_a_row_that_commits_late() {
    let story = [
        Commit(Free),
        Take(A, Free),
        Commit(First),
        Commit(Second),
        Finish(claim(1, A, Free)),
    ];
    assert_falls(Flaw::Cursor.twin(), REST, &story);
}

#[test]
fn without_the_lock_of_the_key_a_tail_commits_and_is_delivered_before_its_head() {
    let story = [Commit(Second), Take(A, Second), Finish(claim(1, A, Second))];
    assert_falls(Flaw::NoKeyLock.twin(), ORDER, &story);
}

#[test]
fn without_the_check_of_the_chain_a_tail_overtakes_its_head() {
    let commits = [Commit(First), Commit(Second)];
    let side_by_side = [Take(A, First), Take(B, Second)];
    let overtaking = [Take(A, Second), Finish(claim(1, A, Second))];
    let story = |rest: [Action; 2]| [commits, rest].concat();
    assert_falls(Flaw::NoChainCheck.twin(), ONE_LEASE, &story(side_by_side));
    assert_falls(Flaw::NoChainCheck.twin(), ORDER, &story(overtaking));
}

/// This twin never comes to rest: its killer starts for ever.
#[test]
fn a_killer_whose_attempts_are_counted_at_the_end_never_dies() {
    let twin = Engine {
        flaw: Some(Flaw::CountedAtTheEnd),
        ..Engine::with_killer(Free)
    };
    let start = [Take(A, Free), Crash(A), Lapse(Free)];
    let story = [&[Commit(Free)], &start[..], &start, &start, &[Take(A, Free)]].concat();
    assert_falls(twin, STARTS, &story);
}

#[test]
fn where_suspects_are_worked_on_side_by_side_a_killer_takes_others_along() {
    let twin = Engine {
        flaw: Some(Flaw::NoSuspects),
        ..Engine::with_killer(Free)
    };
    let start = [Take(A, First), Take(A, Free), Crash(A), Lapse(First), Lapse(Free)];
    let commits = [Commit(First), Commit(Second), Commit(Free)];
    let burials = [Bury(First), Bury(Free)];
    let story = [&commits, &start[..], &start, &start, &burials].concat();
    assert_falls(twin, NEIGHBOURS, &story);
}
