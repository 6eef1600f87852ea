//! Every order in which callers can meet at the gate of a breaker, by loom.
//!
//! The gate and the state machine are compiled from their own files, with loom's lock and atomics in place of std's.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "the gate is compiled whole, and asked for a part"
)]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
}
#[path = "../../src/breaker/gate.rs"]
mod gate;
#[path = "../../src/breaker/state.rs"]
mod state;

use std::time::Duration;

use gate::Gate;
use loom::sync::Arc;
use loom::thread;
use state::{Answer, BreakerState, Moment, Pass, Settings, Trip};

/// Long after an open breaker may be probed, long before a probe is given up on.
const LATER: Moment = Moment(2_000_000);

/// How often a thread may be interrupted where it need not be. Two find nearly all there is to find; without a bound it
/// takes hours.
const PREEMPTIONS: usize = 2;

fn in_every_order(scene: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(scene);
}

/// An open gate, whose time is over.
fn open_gate(probes: u32) -> Arc<Gate> {
    let gate = Gate::new(Settings {
        trip: Trip::Consecutive { failures: 1 },
        open_for: Duration::from_secs(1),
        growth: 1.0,
        cap: Duration::from_secs(1),
        probes,
    });
    let pass = gate.enter(|| Moment(0), |_| ()).unwrap();
    gate.record(pass, Answer::Failure, || Moment(0), |_| ());
    assert_eq!(gate.look(|machine| machine.state()), BreakerState::Open);
    Arc::new(gate)
}

fn enter(gate: &Gate) -> Option<Pass> {
    gate.enter(|| LATER, |_| ()).ok()
}

/// Lets callers do something at once, in every order, and hands back what each got.
fn at_once<T: 'static>(gate: &Arc<Gate>, callers: usize, call: fn(&Gate) -> T) -> Vec<T> {
    let threads: Vec<_> = (1..callers)
        .map(|_| {
            let gate = gate.clone();
            thread::spawn(move || call(&gate))
        })
        .collect();
    let mut got = vec![call(gate)];
    got.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
    got
}

#[test]
fn a_flood_on_half_open_lets_exactly_one_probe_through() {
    in_every_order(|| {
        let gate = open_gate(1);
        let passes = at_once(&gate, 3, enter);
        assert_eq!(passes.iter().flatten().count(), 1);
    });
}

#[test]
fn a_flood_on_half_open_lets_exactly_the_allowed_probes_through() {
    in_every_order(|| {
        let gate = open_gate(2);
        let passes = at_once(&gate, 3, enter);
        assert_eq!(passes.iter().flatten().count(), 2);
    });
}

#[test]
fn a_probe_that_is_dropped_makes_room_for_one_other_and_no_more() {
    in_every_order(|| {
        let gate = open_gate(1);
        let ends = at_once(&gate, 3, |gate| {
            let pass = enter(gate);
            if let Some(pass) = pass {
                gate.release(pass);
            }
            pass.is_some()
        });
        assert!(ends.contains(&true), "somebody was let in");
        assert!(enter(&gate).is_some(), "everybody gave the place back");
        assert!(enter(&gate).is_none(), "and there is only one");
    });
}

#[test]
fn what_a_probe_found_is_what_everybody_sees() {
    in_every_order(|| {
        let gate = open_gate(1);
        let probes = at_once(&gate, 3, |gate| {
            let pass = enter(gate)?;
            gate.record(pass, Answer::Success, || LATER, |_| ());
            Some(pass.generation)
        });
        assert_eq!(gate.look(|machine| machine.state()), BreakerState::Closed);
        let first = probes.iter().flatten().min().unwrap();
        let as_probes = probes.iter().flatten().filter(|generation| *generation == first);
        assert_eq!(
            as_probes.count(),
            1,
            "the others were refused, or came after it had closed"
        );
    });
}

#[test]
fn no_failure_is_lost_among_successes_that_take_no_lock() {
    in_every_order(|| {
        let gate = Arc::new(Gate::new(Settings {
            trip: Trip::Consecutive { failures: 1 },
            open_for: Duration::from_secs(1),
            growth: 1.0,
            cap: Duration::from_secs(1),
            probes: 1,
        }));
        let failing = gate.clone();
        let failing = thread::spawn(move || {
            let pass = enter(&failing).unwrap();
            failing.record(pass, Answer::Failure, || LATER, |_| ());
        });
        if let Some(pass) = enter(&gate) {
            gate.record(pass, Answer::Success, || LATER, |_| ());
        }
        failing.join().unwrap();
        assert_eq!(gate.look(|machine| machine.state()), BreakerState::Open);
        assert!(enter(&gate).is_none());
    });
}
