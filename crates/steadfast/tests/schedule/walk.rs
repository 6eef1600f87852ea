//! Four hundred days of a process that sleeps, dies and is started again, by a clock that is set.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use steadfast::{Due, Every, Missed, Timing};

use super::{Random, cron};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const GRACE: Duration = Duration::from_secs(60);
/// Few enough to be reached after a long silence.
const MAX: usize = 10;

/// Schedules, and when their walk begins: so that it meets clocks that are set.
fn timings() -> Vec<(Timing, SystemTime)> {
    let all = [
        ("30 2 * * *", "Europe/Madrid", "2026-01-01"),
        ("*/15 * * * *", "America/New_York", "2026-01-01"),
        ("0 0,12 * * *", "America/Sao_Paulo", "2018-01-01"),
        ("0 * * * *", "Australia/Lord_Howe", "2026-01-01"),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-01-01"),
        ("0 6 * * *", "Pacific/Apia", "2011-06-01"),
        ("*/7 9-17 * * MON-FRI", "UTC", "2026-01-01"),
    ];
    let crons = all.map(|(expression, zone, start)| {
        let cron = cron(expression, zone);
        let start = cron.moment(start).unwrap();
        (Timing::from(cron), start)
    });
    let every = (Timing::from(Every::new("35m").unwrap()), crons[0].1);
    crons.into_iter().chain([every]).collect()
}

/// What the words of the policies say, of a list of all ticks.
fn by_definition(all: &[SystemTime], handled: SystemTime, now: SystemTime, missed: Missed) -> (Vec<SystemTime>, u64) {
    let place = |moment| all.partition_point(|tick| *tick <= moment);
    let due = all[place(handled)..place(now).max(place(handled))].to_vec();
    let (late, on_time): (Vec<_>, Vec<_>) = due.iter().partition(|tick| **tick + GRACE <= now);
    let (mut ticks, skipped) = match missed {
        Missed::All => (due, 0),
        Missed::Skip => (on_time, late.len()),
        Missed::Last if on_time.is_empty() => {
            (late.last().copied().into_iter().collect(), late.len().saturating_sub(1))
        }
        Missed::Last => (on_time, late.len()),
    };
    ticks.truncate(MAX);
    (ticks, skipped as u64)
}

/// Walks, and holds each step against the definition. Gives back what was made, in its order, how many were skipped, and up to when.
fn walk(timing: &Timing, start: SystemTime, missed: Missed, seed: u64) -> (Vec<SystemTime>, u64, SystemTime) {
    let all = timing.between(start, start + Duration::from_secs(410 * DAY), usize::MAX);
    let mut random = Random(seed);
    let mut handled = start;
    let (mut made, mut skipped) = (Vec::new(), 0);
    let mut elapsed = DAY;
    // The clock is wrong by at most a day, and usually by something.
    let mut wrong: i64 = 0;
    while elapsed < 400 * DAY {
        let true_time = start + Duration::from_secs(elapsed);
        let now = shifted(true_time, wrong);
        let due: Due = timing.due(handled, now, missed, GRACE, MAX);
        let (ticks, gone) = by_definition(&all, handled, now, missed);
        assert_eq!(
            (&due.ticks, due.skipped),
            (&ticks, gone),
            "{timing} {missed:?} at {now:?} after {handled:?}"
        );
        assert!(due.handled >= handled, "what is dealt with stays so");
        let nothing_left = ticks.len() < MAX;
        assert!(
            !nothing_left || due.next.is_none_or(|next| next > now),
            "{timing} {missed:?}"
        );
        // It may die before the decision is written down. Then it has not been made.
        if random.below(10) > 0 {
            made.extend(due.ticks);
            skipped += due.skipped;
            handled = due.handled;
        }
        elapsed += match random.below(40) {
            0 => random.below(3 * DAY),
            1..10 => random.below(HOUR),
            _ => random.below(5 * MINUTE),
        };
        if random.below(20) == 0 {
            let step = random.below(2 * HOUR) as i64 - HOUR as i64;
            wrong = (wrong + step).clamp(-(DAY as i64), DAY as i64);
        }
    }
    // Caught up, by a clock that is right again.
    loop {
        let due = timing.due(handled, start + Duration::from_secs(402 * DAY), missed, GRACE, MAX);
        made.extend(&due.ticks);
        skipped += due.skipped;
        handled = due.handled;
        if due.ticks.is_empty() {
            return (made, skipped, handled);
        }
    }
}

fn shifted(time: SystemTime, seconds: i64) -> SystemTime {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { time - distance } else { time + distance }
}

#[test]
fn with_all_no_tick_is_lost_and_none_comes_twice_in_400_days() {
    for (number, (timing, start)) in timings().iter().enumerate() {
        let (made, skipped, handled) = walk(timing, *start, Missed::All, number as u64);
        let expected = timing.between(*start, handled, usize::MAX);
        assert!(expected.len() > 280, "{timing}: {}", expected.len());
        assert_eq!((made, skipped), (expected, 0), "{timing}");
    }
}

#[test]
fn with_skip_and_last_each_tick_is_made_once_or_skipped_once_in_400_days() {
    for (number, (timing, start)) in timings().iter().enumerate() {
        for missed in [Missed::Skip, Missed::Last] {
            let (made, skipped, handled) = walk(timing, *start, missed, 100 + number as u64);
            let all = timing.between(*start, handled, usize::MAX);
            assert_eq!(made.len() as u64 + skipped, all.len() as u64, "{timing} {missed:?}");
            let once: BTreeSet<_> = made.iter().collect();
            assert_eq!(once.len(), made.len(), "{timing} {missed:?}");
            assert!(
                made.is_sorted() && once.is_subset(&all.iter().collect()),
                "{timing} {missed:?}"
            );
            assert!(
                skipped > 0 && !made.is_empty(),
                "{timing} {missed:?} was tried: {skipped} of {}",
                all.len()
            );
        }
    }
}

#[test]
fn a_clock_that_is_set_back_makes_nothing_due_again() {
    let timing = Timing::from(Every::new("1h").unwrap());
    let at = |hours: u64| super::at(hours * HOUR);
    for missed in [Missed::Skip, Missed::Last, Missed::All] {
        let due = timing.due(at(100), at(101), missed, GRACE, MAX);
        assert_eq!(
            (due.ticks, due.handled, due.next),
            (vec![at(101)], at(101), Some(at(102)))
        );
        let back = timing.due(at(101), at(90), missed, GRACE, MAX);
        assert_eq!(
            (back.ticks, back.skipped, back.handled, back.next),
            (vec![], 0, at(101), Some(at(102)))
        );
    }
}

#[test]
fn grace_decides_what_is_missed_to_the_microsecond() {
    let timing = Timing::from(Every::new("1h").unwrap());
    let tick = super::at(HOUR);
    let on_time = tick + GRACE - Duration::from_micros(1);
    let due = |now, missed| timing.due(super::at(0), now, missed, GRACE, MAX);
    assert_eq!(
        (due(on_time, Missed::Skip).ticks, due(on_time, Missed::Skip).skipped),
        (vec![tick], 0)
    );
    assert_eq!(
        (
            due(tick + GRACE, Missed::Skip).ticks,
            due(tick + GRACE, Missed::Skip).skipped
        ),
        (vec![], 1)
    );
    assert_eq!(due(tick + GRACE, Missed::Last).ticks, vec![tick]);
}

#[test]
fn what_is_too_much_at_once_is_left_for_the_next_time() {
    let timing = Timing::from(Every::new("1h").unwrap());
    let at = |hours: u64| super::at(hours * HOUR);
    let due = timing.due(at(0), at(25), Missed::All, GRACE, 10);
    assert_eq!((due.ticks.len(), due.handled, due.next), (10, at(10), Some(at(11))));
    let due = timing.due(due.handled, at(25), Missed::All, GRACE, 0);
    assert_eq!(due.ticks, [at(11)], "one is always made");
}
