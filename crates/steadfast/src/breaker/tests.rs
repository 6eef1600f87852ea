//! The state machine against the published ones of others, and the handle around it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::error::Code;
use crate::failure::FailureClass;
use state::{Posture, Refusal, Trip};

const SECOND: u64 = 1_000_000;

fn settings(trip: Trip, open_for: u64, probes: u32) -> Settings {
    Settings {
        trip,
        open_for: Duration::from_secs(open_for),
        growth: 1.0,
        cap: Duration::from_secs(open_for),
        probes,
    }
}

/// A machine and a clock, driven by a line of letters.
///
/// `s` a call that succeeds, `f` one that fails, `e` enters and stays, `x` is refused, `S` and `F` end the oldest call that
/// stayed, `d` drops it, `+n` lets n seconds pass, `I` isolates, `R` resets, `D` disables; then the state it must be in:
/// `|c` closed, `|o` open, `|h` half-open, `|i` forced open, `|d` forced closed.
fn play(settings: Settings, script: &str) {
    let mut machine = Machine::new(settings);
    let (mut now, mut staying) = (Moment(0), VecDeque::new());
    let mut letters = script.chars().filter(|letter| *letter != ' ').peekable();
    let mut done = String::new();
    while let Some(letter) = letters.next() {
        done.push(letter);
        let end = |machine: &mut Machine, pass, answer| machine.record(pass, answer, || now);
        let mut enter = || machine.enter(now).unwrap_or_else(|_| panic!("refused at {done}"));
        let mut oldest = || staying.pop_front().expect("a call that stayed");
        match letter {
            's' => {
                let pass = enter();
                end(&mut machine, pass, Answer::Success);
            }
            'f' => {
                let pass = enter();
                end(&mut machine, pass, Answer::Failure);
            }
            'e' => staying.push_back(enter()),
            'x' => assert!(machine.enter(now).is_err(), "let in at {done}"),
            'S' => end(&mut machine, oldest(), Answer::Success),
            'F' => end(&mut machine, oldest(), Answer::Failure),
            'd' => machine.release(oldest()),
            '+' => {
                let digits = std::iter::from_fn(|| letters.next_if(char::is_ascii_digit));
                let seconds: u64 = digits.collect::<String>().parse().expect("a number");
                now = Moment(now.0 + seconds * SECOND);
            }
            'I' => machine.force_open(),
            'D' => machine.force_closed(),
            'R' => machine.reset(),
            '|' => {
                let expected = match letters.next().expect("a state") {
                    'c' => BreakerState::Closed,
                    'o' => BreakerState::Open,
                    'h' => BreakerState::HalfOpen,
                    'i' => BreakerState::ForcedOpen,
                    'd' => BreakerState::ForcedClosed,
                    other => panic!("no state: {other}"),
                };
                assert_eq!(machine.state(), expected, "after {done} of {script}");
            }
            other => panic!("no letter: {other}"),
        }
    }
}

/// Polly, `test/Polly.Specs/CircuitBreaker/CircuitBreakerSpecs.cs` and
/// `src/Polly/CircuitBreaker/ConsecutiveCountCircuitController.cs` (version 7, whose breaker counts consecutive
/// failures), `test/Polly.Core.Tests/CircuitBreaker/Controller/CircuitStateControllerTests.cs` (version 8, whose
/// controller has the same states): the name of the spec, failures allowed, and what happens. A break lasts a minute.
const POLLY: [(&str, u32, &str); 17] = [
    (
        "Should_not_open_circuit_if_specified_number_of_specified_exception_are_not_raised_consecutively",
        2,
        "f|c s|c f|c",
    ),
    (
        "Should_open_circuit_with_the_last_raised_exception_after_specified_number_of_specified_exception_have_been_raised",
        2,
        "f|c f|o x|o",
    ),
    (
        "Should_halfopen_circuit_after_the_specified_duration_has_passed_with_the_last_raised_exception",
        2,
        "f f|o +60 e|h",
    ),
    (
        "Should_open_circuit_again_after_the_specified_duration_has_passed_if_the_next_call_raises_an_exception",
        2,
        "f f|o +60 f|o x",
    ),
    (
        "Should_reset_circuit_after_the_specified_duration_has_passed_if_the_next_call_does_not_raise_an_exception",
        2,
        "f f|o +60 s|c f|c f|o x",
    ),
    (
        "Should_only_allow_single_execution_on_first_entering_halfopen_state",
        1,
        "f|o +60 e|h x|h",
    ),
    (
        "Should_allow_single_execution_per_break_duration_in_halfopen_state",
        1,
        "f|o +60 e|h x|h +60 e|h x|h",
    ),
    ("OnActionPreExecute_HalfOpen", 1, "f|o +60 e|h x|h S|c"),
    (
        "Flow_Closed_HalfOpen_Open_HalfOpen_Closed",
        1,
        "f|o +60 e|h F|o +1 x|o +120 e|h S|c",
    ),
    (
        "Should_open_circuit_and_block_calls_if_manual_override_open",
        2,
        "I|i x|i",
    ),
    (
        "Should_hold_circuit_open_despite_elapsed_time_if_manual_override_open",
        2,
        "I|i +60 x|i",
    ),
    (
        "Should_close_circuit_again_on_reset_after_manual_override",
        2,
        "I|i x R|c s|c",
    ),
    (
        "Should_be_able_to_reset_automatically_opened_circuit_without_specified_duration_passing",
        2,
        "f f|o x R|c s|c",
    ),
    ("OnActionSuccess_EnsureCorrectBehavior(Isolated)", 1, "e I|i S|i"),
    ("OnActionFailureAsync_EnsureCorrectBehavior(Isolated)", 1, "e I|i F|i"),
    (
        "OnActionFailureAsync_EnsureCorrectBehavior(Open)",
        1,
        "e e F|o F|o +60 e|h",
    ),
    (
        "a success of a call that was placed before the circuit broke does not close it",
        1,
        "e e F|o S|o x",
    ),
];

#[test]
fn it_does_what_pollys_consecutive_breaker_does() {
    for (spec, failures, script) in POLLY {
        println!("{spec}");
        play(settings(Trip::Consecutive { failures }, 60, 1), script);
    }
}

/// resilience4j,
/// `resilience4j-circuitbreaker/src/test/java/io/github/resilience4j/circuitbreaker/internal/CircuitBreakerStateMachineTest.java`:
/// a threshold of 50 %, a window and a minimum of 5 calls, 4 calls in half-open state, 5 seconds in open state.
const RESILIENCE4J: [(&str, &str); 11] = [
    ("shouldOpenAfterFailureRateThresholdExceeded", "f|c f|c f|c s|c s|o x|o"),
    ("shouldTransitionToHalfOpenAfterWaitDuration", "fffff|o x +3 x|o +3 e|h"),
    ("shouldOnlyPermitFourCallsInHalfOpenState", "fffff|o +5 eeee x x|h"),
    (
        "shouldIncreaseCounterOnReleasePermission",
        "fffff|o +5 eeee x x d e x|h",
    ),
    (
        "shouldTransitionBackToOpenStateWhenFailureRateIsAboveThreshold",
        "fffff|o +5 f|h f|h s|h f|o",
    ),
    (
        "shouldTransitionBackToClosedStateWhenFailureIsBelowThreshold",
        "fffff|o +5 f|h s|h s|h s|c s|c",
    ),
    (
        "shouldReleasePermissionWhenExceptionIgnored",
        "fffff|o +5 s|h s|h s|h ed|h f|c",
    ),
    (
        "shouldIgnoreExceptionsAndThenTransitionToClosed",
        "fffff|o +5 ed|h ed|h ed|h ed|h s|h s|h s|h s|c",
    ),
    ("shouldDisableCircuitBreaker", "D|d s f f f f f f|d"),
    ("shouldForceOpenCircuitBreaker", "I|i x +6 x|i"),
    ("shouldResetToClosedState", "fffff|o R|c ffff|c f|o"),
];

#[test]
fn it_does_what_resilience4js_count_based_breaker_does() {
    let trip = Trip::Rate {
        rate: 0.5,
        window: 5,
        minimum: 5,
    };
    for (test, script) in RESILIENCE4J {
        println!("{test}");
        play(settings(trip, 5, 4), script);
    }
}

#[test]
fn a_rate_is_that_of_the_last_calls_and_needs_a_minimum_of_them() {
    let trip = Trip::Rate {
        rate: 0.5,
        window: 4,
        minimum: 2,
    };
    play(settings(trip, 5, 1), "f|c s|o");
    play(settings(trip, 5, 1), "ssss f|c s s s s f|c s|c f|o");
    play(settings(trip, 5, 1), "ssssssss f|c f|o");
}

/// resilience4j, `shouldTransitionToHalfOpenAfterWaitInterval`: an exponential interval in open state; and the end of it.
#[test]
fn it_stays_open_longer_each_time_up_to_the_cap_and_starts_over_once_it_has_closed() {
    let growing = Settings {
        growth: 2.0,
        cap: Duration::from_secs(30),
        ..settings(Trip::Consecutive { failures: 1 }, 5, 1)
    };
    play(growing, "f +4x +1f +9x +1f +19x +1f +29x +1f +29x +1 s|c f +4x +1 s|c");
}

#[test]
fn all_probes_must_succeed_where_consecutive_failures_count_and_the_first_failure_opens() {
    let three = settings(Trip::Consecutive { failures: 1 }, 5, 3);
    play(three, "f +5 eee x S|h S|h S|c");
    play(three, "f +5 eee x S|h F|o x F|o +5 s|h s|h s|c");
}

#[test]
fn a_result_from_before_the_last_change_counts_for_nothing() {
    let one = settings(Trip::Consecutive { failures: 1 }, 5, 1);
    // A success of old does not close, a failure of old does not open, and a drop of old frees no place.
    play(one, "eee F|o +5 e|h x S|h d|h x S|c");
    play(one, "ee F|o +5 s|c F|c");
}

#[test]
fn what_others_are_told_and_tell_keeps_what_is_known_here() {
    let mut machine = Machine::new(settings(Trip::Consecutive { failures: 2 }, 60, 1));
    let fail = |machine: &mut Machine, at| {
        let pass = machine.enter(Moment(at)).expect("let in");
        machine.record(pass, Answer::Failure, || Moment(at));
    };
    let closed = machine.posture(Moment(0));
    fail(&mut machine, 0);
    machine.adopt(closed, Moment(0));
    fail(&mut machine, 0);
    assert_eq!(
        machine.state(),
        BreakerState::Open,
        "the first failure is still counted"
    );

    let _probe = machine.enter(Moment(60 * SECOND)).expect("a probe");
    let told = machine.posture(Moment(60 * SECOND));
    assert_eq!(
        (told.state, told.remaining),
        (BreakerState::Open, Duration::ZERO),
        "others may probe, too"
    );
}

#[test]
fn refusals_say_when_to_come_back() {
    let mut machine = Machine::new(settings(Trip::Consecutive { failures: 1 }, 60, 1));
    let pass = machine.enter(Moment(0)).expect("closed");
    machine.record(pass, Answer::Failure, || Moment(0));
    let asked = |machine: &mut Machine, at| machine.enter(Moment(at)).map_err(|Refusal { retry_in }| retry_in);
    assert_eq!(asked(&mut machine, 45 * SECOND), Err(Some(Duration::from_secs(15))));
    assert!(asked(&mut machine, 60 * SECOND).is_ok());
    let soon = Err(Some(Duration::from_secs(1)));
    assert_eq!(
        asked(&mut machine, 61 * SECOND),
        soon,
        "the probe may answer at any moment"
    );
    machine.force_open();
    assert_eq!(asked(&mut machine, 62 * SECOND), Err(None), "time does not help");
}

/// The same numbers for the same seed: xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What a breaker may never do, whatever happens to it.
#[test]
fn whatever_happens_it_lets_no_more_through_than_it_may() {
    let mut random = Random(0x5eed_0015);
    for round in 0..2_000 {
        let window = 1 + random.below(70) as u32;
        let trip = match round % 2 {
            0 => Trip::Consecutive {
                failures: 1 + random.below(5) as u32,
            },
            _ => Trip::Rate {
                rate: (1 + random.below(100)) as f64 / 100.0,
                window,
                minimum: 1 + random.below(u64::from(window)) as u32,
            },
        };
        let settings = Settings {
            growth: 1.0 + random.below(40) as f64 / 10.0,
            cap: Duration::from_secs(100),
            ..settings(trip, 10, 1 + random.below(4) as u32)
        };
        let mut machine = Machine::new(settings);
        let (mut now, mut passes, mut open_for) = (Moment(0), Vec::new(), Duration::ZERO);
        let mut history: VecDeque<bool> = VecDeque::new();
        for _ in 0..300 {
            let before = (machine.state(), machine.generation(), machine.open_until());
            match random.below(6) {
                0 | 1 => match machine.enter(now) {
                    Ok(pass) => {
                        assert!(before.2.is_none_or(|until| now >= until), "let in while open");
                        passes.push(pass);
                    }
                    Err(refusal) => {
                        let retry_in = refusal.retry_in.expect("nobody forced it");
                        assert!(!retry_in.is_zero() && retry_in <= settings.cap, "{retry_in:?}");
                    }
                },
                choice @ (2 | 3) if !passes.is_empty() => {
                    let pass = passes.swap_remove(random.below(passes.len() as u64) as usize);
                    let answer = [Answer::Success, Answer::Failure][(choice - 2) as usize];
                    machine.record(pass, answer, || now);
                    if pass.generation != before.1 {
                        assert_eq!((machine.state(), machine.generation()), (before.0, before.1));
                    } else if before.0 == BreakerState::Closed {
                        history.push_back(answer == Answer::Failure);
                        if matches!(trip, Trip::Rate { .. }) && history.len() > window as usize {
                            history.pop_front();
                        }
                        assert_eq!(
                            machine.state() == BreakerState::Open,
                            should_open(trip, &history),
                            "{trip:?} {history:?}"
                        );
                    }
                }
                4 if !passes.is_empty() => machine.release(passes.swap_remove(0)),
                _ => now = Moment(now.0 + random.below(4 * SECOND)),
            }
            if machine.generation() != before.1 {
                history.clear();
            }
            match (before.0, machine.state()) {
                (BreakerState::Closed | BreakerState::HalfOpen, BreakerState::Open) => {
                    let next = now.until(machine.open_until().expect("it is open"));
                    assert!((settings.open_for..=settings.cap).contains(&next), "{next:?}");
                    assert!(next >= open_for, "it grows while it does not close");
                    open_for = next;
                }
                (_, BreakerState::Closed) if machine.generation() != before.1 => open_for = Duration::ZERO,
                _ => {}
            }
            let is_half_open = machine.state() == BreakerState::HalfOpen;
            let out = passes
                .iter()
                .filter(|pass| pass.generation == machine.generation())
                .count();
            assert!(
                !is_half_open || out as u64 <= u64::from(settings.probes) + now.0 / (10 * SECOND),
                "{out} probes are out"
            );
        }
    }
}

fn should_open(trip: Trip, history: &VecDeque<bool>) -> bool {
    match trip {
        Trip::Consecutive { failures } => {
            history.iter().rev().take_while(|failed| **failed).count() >= failures as usize
        }
        Trip::Rate { rate, minimum, .. } => {
            let failed = history.iter().filter(|failed| **failed).count();
            history.len() >= minimum as usize && failed as f64 / history.len() as f64 >= rate
        }
    }
}

#[test]
fn nothing_overflows_however_long_it_goes_on() {
    let settings = Settings {
        growth: 100.0,
        cap: Duration::from_secs(30 * 24 * 60 * 60),
        ..settings(Trip::Consecutive { failures: 1 }, 1, 1)
    };
    let mut machine = Machine::new(settings);
    let posture = Posture {
        state: BreakerState::Open,
        remaining: Duration::MAX,
        openings: u32::MAX,
    };
    machine.adopt(posture, Moment(0));
    assert_eq!(machine.open_until(), Some(Moment::NEVER));
    machine.adopt(
        Posture {
            remaining: Duration::ZERO,
            ..posture
        },
        Moment(0),
    );
    let pass = machine.enter(Moment(0)).expect("its time is over");
    machine.record(pass, Answer::Failure, || Moment::NEVER);
    assert_eq!(machine.posture(Moment(0)).openings, u32::MAX);
}

#[test]
fn settings_that_mean_nothing_are_refused_with_the_value_the_rule_and_the_fix() {
    let breaker = || Breaker::named("mail");
    for (options, says) in [
        (Breaker::named(""), "write 1 to 255 bytes"),
        (Breaker::named("a\nb"), "write 1 to 255 bytes"),
        (
            breaker().consecutive_failures(0),
            "consecutive_failures of 0; write 1 to 1000000",
        ),
        (
            breaker().consecutive_failures(u32::MAX),
            "consecutive_failures of 4294967295; write 1 to",
        ),
        (breaker().failure_rate(0.0), "failure_rate of 0; write a number above 0"),
        (breaker().failure_rate(-0.1), "failure_rate of -0.1; write"),
        (breaker().failure_rate(1.01), "failure_rate of 1.01; write"),
        (breaker().failure_rate(f64::NAN), "failure_rate of NaN; write"),
        (breaker().failure_rate(0.5).window(0), "window of 0; write 1 to 100000"),
        (
            breaker().failure_rate(0.5).window(u32::MAX),
            "window of 4294967295; write",
        ),
        (
            breaker().failure_rate(0.5).minimum_calls(0),
            "minimum_calls of 0; write 1 to 100",
        ),
        (
            breaker().failure_rate(0.5).minimum_calls(101),
            "minimum_calls of 101; write 1 to 100",
        ),
        (breaker().failure_rate(0.5).consecutive_failures(3), "choose one"),
        (breaker().window(10), "without a failure_rate"),
        (breaker().open_for("0s"), "open_for of 0ns; write 1ms to 30d"),
        (breaker().open_for(Duration::MAX), "write 1ms to 30d"),
        (
            breaker().open_for("soon"),
            "open_for that cannot be read: \"soon\" is not a duration; write a whole number",
        ),
        (
            breaker().open_for("10s").cap("9s"),
            "cap of 9s, below its open_for of 10s; raise the cap",
        ),
        (breaker().cap("1000d"), "has cap of 86400000s; write 1ms to 30d"),
        (breaker().growth(0.9), "growth of 0.9; write 1 to 100"),
        (breaker().growth(f64::NAN), "growth of NaN; write 1 to 100"),
        (breaker().growth(f64::INFINITY), "growth of inf; write 1 to 100"),
        (breaker().probes(0), "probes of 0; write 1 to 1000"),
        (breaker().shared(), "make it by sf.breaker(..)"),
    ] {
        let error = options.build().expect_err(says);
        assert_eq!(error.code(), Code::ConfigurationInvalid);
        assert!(error.to_string().contains(says), "{error} should say: {says}");
    }
}

fn lost() -> Failure {
    Failure::transient("lost", "no reply")
}

/// A breaker that opens at the first failure, and a clock to move.
fn fragile() -> (Breaker, Clock) {
    let clock = Clock::default();
    let options = Breaker::named("payments").consecutive_failures(1).open_for("1h");
    (options.clock(clock.clone()).build().expect("good settings"), clock)
}

const HOUR: Duration = Duration::from_secs(60 * 60);

#[tokio::test]
async fn an_open_breaker_makes_no_call_and_says_when_to_come_back() {
    let (breaker, clock) = fragile();
    let calls = AtomicU32::new(0);
    let call = async |answer: Result<(), Failure>| {
        let work = async || {
            calls.fetch_add(1, Ordering::Relaxed);
            answer
        };
        breaker.call(work).await
    };
    assert!(matches!(call(Err(lost())).await, Err(CallError::Failed(_))));
    for _ in 0..10 {
        let Err(CallError::Open(open)) = call(Ok(())).await else {
            panic!("it should be open");
        };
        assert_eq!(open.breaker(), "payments");
        assert!(open.retry_in().expect("time helps") <= HOUR);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    clock.set_offset(HOUR);
    call(Ok(())).await.expect("the probe passes");
    assert_eq!(
        (breaker.state(), calls.load(Ordering::Relaxed)),
        (BreakerState::Closed, 2)
    );
}

#[tokio::test]
async fn an_open_breaker_is_a_snooze_to_a_handler() {
    let (breaker, _) = fragile();
    breaker.force_open();
    let calling = async || -> Result<(), Failure> { Ok(breaker.call(async || Ok(())).await?) };
    let asking = || -> Result<(), Failure> {
        breaker.permit()?.success();
        Ok(())
    };
    for ended in [calling().await, asking()] {
        let failure = ended.expect_err("it is open");
        assert_eq!((failure.kind(), failure.code()), (FailureKind::Snooze, "breaker_open"));
        assert!(failure.message().contains("payments"), "{failure}");
    }
}

#[tokio::test]
async fn a_definitive_failure_is_an_answer() {
    let (breaker, clock) = fragile();
    let refused = || Failure::definitive(FailureClass::Validation, "bad_card", "the card is not valid");
    let called = breaker.call(async || Err::<(), _>(refused())).await;
    assert!(matches!(called, Err(CallError::Failed(_))));
    assert_eq!(breaker.state(), BreakerState::Closed);

    breaker.permit().expect("closed").failure(&lost());
    clock.set_offset(HOUR);
    breaker.permit().expect("a probe").failure(&refused());
    assert_eq!(
        breaker.state(),
        BreakerState::Closed,
        "a probe that was answered closes it"
    );
}

#[test]
fn a_failure_that_says_nothing_of_the_dependency_counts_as_nothing_and_frees_its_place() {
    let (breaker, clock) = fragile();
    breaker.permit().expect("closed").failure(&lost());
    clock.set_offset(HOUR);
    for silent in [Failure::snooze(HOUR), Failure::cancelled()] {
        breaker.permit().expect("the place is free").failure(&silent);
        assert_eq!(breaker.state(), BreakerState::HalfOpen, "{silent}");
    }
    breaker
        .permit()
        .expect("the place is free")
        .failure(&Failure::unknown("lost", "no reply"));
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[tokio::test]
async fn a_call_that_is_cancelled_or_panics_counts_as_nothing_and_frees_its_place() {
    let (breaker, clock) = fragile();
    breaker.permit().expect("closed").failure(&lost());
    clock.set_offset(HOUR);

    let (probe, started) = (breaker.clone(), Arc::new(tokio::sync::Notify::new()));
    let told = started.clone();
    let probe = tokio::spawn(async move {
        let hang = async || {
            told.notify_one();
            std::future::pending::<Result<(), Failure>>().await
        };
        probe.call(hang).await
    });
    started.notified().await;
    assert!(breaker.permit().is_err(), "the only place is taken");
    probe.abort();
    assert!(probe.await.expect_err("it was aborted").is_cancelled());
    assert_eq!(breaker.state(), BreakerState::HalfOpen);

    let panicking = breaker.clone();
    let panicked = tokio::spawn(async move { panicking.call(async || -> Result<(), Failure> { panic!("oh") }).await });
    assert!(panicked.await.expect_err("it panicked").is_panic());
    breaker.permit().expect("the place is free again").success();
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_success_counts_wherever_it_changes_something() {
    let options = || Breaker::named("payments");
    let in_a_row = options().consecutive_failures(2).build().expect("good settings");
    for _ in 0..3 {
        in_a_row.permit().expect("closed").failure(&lost());
        in_a_row.permit().expect("closed").success();
    }
    assert_eq!(in_a_row.state(), BreakerState::Closed, "no two failures in a row");

    let rate = options().failure_rate(0.5).window(4).minimum_calls(4);
    let rate = rate.build().expect("good settings");
    for _ in 0..2 {
        rate.permit().expect("closed").success();
    }
    for _ in 0..2 {
        rate.permit().expect("closed").failure(&lost());
    }
    assert_eq!(rate.state(), BreakerState::Open, "two of four");
}

#[tokio::test]
async fn every_attempt_counts() {
    let breaker = Breaker::named("payments")
        .consecutive_failures(3)
        .build()
        .expect("good settings");
    let mut attempts = 0;
    let retried = async {
        loop {
            attempts += 1;
            if let Err(CallError::Open(open)) = breaker.call(async || Err::<(), _>(lost())).await {
                return open;
            }
        }
    };
    retried.await;
    assert_eq!(attempts, 4, "three were made, and the fourth was not");
}

#[tokio::test]
async fn clones_share_their_state_and_hear_of_every_change_in_order() {
    let (breaker, clock) = fragile();
    let mut events = breaker.clone().subscribe();
    breaker.permit().expect("closed").failure(&lost());
    clock.set_offset(HOUR);
    let probe = breaker.permit().expect("a probe");
    probe.success();
    breaker.force_closed();
    breaker.permit().expect("forced").failure(&lost());
    breaker.force_open();
    breaker.reset();
    let mut seen = Vec::new();
    while let Ok(event) = events.try_recv() {
        assert_eq!(&*event.breaker, "payments");
        seen.push((event.from.as_str(), event.to.as_str()));
    }
    assert_eq!(
        seen,
        [
            ("closed", "open"),
            ("open", "half_open"),
            ("half_open", "closed"),
            ("closed", "forced_closed"),
            ("forced_closed", "forced_open"),
            ("forced_open", "closed"),
        ]
    );
}

#[cfg(feature = "prometheus")]
#[test]
fn metrics_tell_the_state_the_changes_and_what_was_postponed() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        let (breaker, _) = fragile();
        breaker.permit().expect("closed").failure(&lost());
        for _ in 0..3 {
            breaker.permit().expect_err("open");
        }
    });
    let shown = recorder.handle().render();
    for line in [
        r#"steadfast_breaker_state{name="payments"} 2"#,
        r#"steadfast_breaker_transitions_total{name="payments",to="open"} 1"#,
        r#"steadfast_breaker_rejected_total{name="payments"} 3"#,
    ] {
        assert!(shown.contains(line), "{line} is missing in\n{shown}");
    }
}

#[test]
fn every_state_is_read_as_it_is_written() {
    for state in [
        BreakerState::Closed,
        BreakerState::Open,
        BreakerState::HalfOpen,
        BreakerState::ForcedOpen,
        BreakerState::ForcedClosed,
    ] {
        assert_eq!(BreakerState::read(state.as_str()), Some(state));
    }
    assert_eq!(BreakerState::read("ajar"), None);
}
