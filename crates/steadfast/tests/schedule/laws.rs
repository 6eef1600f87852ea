//! What must hold for every expression and every zone, by chance with fixed seeds.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use croner::parser::{CronParser, Seconds};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp, Zoned};
use steadfast::Cron;

use super::{Random, at, cron};

/// An expression of five or six fields, and whether it is a rhythm by the words of the guide.
fn expression(random: &mut Random) -> (String, bool) {
    fn list(random: &mut Random, low: u64, high: u64) -> String {
        let count = 1 + random.below(3);
        let numbers = (0..count).map(|_| (low + random.below(high - low + 1)).to_string());
        numbers.collect::<Vec<_>>().join(",")
    }
    fn range(random: &mut Random, low: u64, high: u64) -> String {
        let from = low + random.below(high - low + 1);
        let to = from + random.below(high - from + 1);
        match random.below(2) {
            0 => format!("{from}-{to}"),
            _ => format!("{from}-{to}/{}", 1 + random.below(7)),
        }
    }
    fn field(random: &mut Random, low: u64, high: u64) -> String {
        match random.below(4) {
            0 => "*".to_owned(),
            1 => list(random, low, high),
            2 => range(random, low, high),
            _ => format!("*/{}", 2 + random.below((high - low) / 2)),
        }
    }
    let minute = field(random, 0, 59);
    // Near to where clocks are set, so that something happens.
    let hour = match random.below(3) {
        0 => field(random, 0, 23),
        1 => list(random, 0, 3),
        _ => range(random, 0, 4),
    };
    let days = ["1-31/2", "L", "15W", "LW", "1W,31"];
    let day = match random.below(3) {
        0 => random.of(&days).to_owned(),
        _ => "*".to_owned(),
    };
    let weekdays = ["MON-FRI", "SUN", "7L", "SAT#2", "+SUN", "FRI-SUN"];
    let weekday = match random.below(3) {
        0 => random.of(&weekdays).to_owned(),
        _ => "*".to_owned(),
    };
    let month = if random.below(4) == 0 {
        field(random, 1, 12)
    } else {
        "*".to_owned()
    };
    let is_rhythm = minute.contains('*') || ["*", "0-23", "0-23/1"].contains(&hour.as_str());
    (format!("{minute} {hour} {day} {month} {weekday}"), is_rhythm)
}

fn parsed_by_croner(expression: &str) -> croner::Cron {
    // croner never finds the last Sunday if it is called 7.
    let expression = expression.replace("7L", "0L");
    CronParser::builder()
        .seconds(Seconds::Optional)
        .build()
        .parse(&expression)
        .unwrap()
}

fn system(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(at.as_microsecond().unsigned_abs())
}

/// The ticks between two moments by what the words say, moment by moment: a rhythm ticks whenever the clock shows a time that
/// fits, a time of day when the clock first shows it or jumps over it.
fn by_definition(
    expression: &str,
    is_rhythm: bool,
    zone: &TimeZone,
    from: Timestamp,
    to: Timestamp,
) -> BTreeSet<Timestamp> {
    // There was a zone whose offset had half a minute.
    const STEP: SignedDuration = SignedDuration::from_secs(30);
    let pattern = parsed_by_croner(expression);
    let mut ticks = BTreeSet::new();
    // Long enough before for everything that was set back to be forgotten.
    let mut now = from - SignedDuration::from_hours(36);
    let mut shown = zone.to_datetime(now);
    while now <= to {
        let local = zone.to_datetime(now);
        let mut new = if is_rhythm { local } else { shown + STEP };
        while new <= local {
            if pattern.is_time_matching(&new).unwrap() {
                ticks.insert(now);
            }
            new += STEP;
        }
        shown = shown.max(local);
        now += STEP;
    }
    ticks.split_off(&(from + STEP))
}

#[test]
fn ticks_around_a_change_of_the_clock_are_those_of_the_definition() {
    let zones = TimeZoneDatabase::bundled();
    let names: Vec<String> = zones.available().map(|name| name.to_string()).collect();
    let mut random = Random(2);
    let mut looked_at = 0;
    while looked_at < 300 {
        let name = names[random.below(names.len() as u64) as usize].as_str();
        let zone = zones.get(name).unwrap();
        let somewhen = Timestamp::from_second(random.below(2_300_000_000) as i64).unwrap();
        let Some(set) = zone.following(somewhen).next().map(|set| set.timestamp()) else {
            continue;
        };
        let (expression, is_rhythm) = expression(&mut random);
        let Ok(cron) = Cron::parse(&expression, name) else {
            continue;
        };
        let (from, to) = (
            set - SignedDuration::from_hours(26),
            set + SignedDuration::from_hours(26),
        );
        let expected: Vec<_> = by_definition(&expression, is_rhythm, &zone, from, to)
            .into_iter()
            .map(system)
            .collect();
        let ticks = cron.between(system(from), system(to), usize::MAX);
        assert_eq!(ticks, expected, "{expression} in {name} around {set}");
        looked_at += 1;
    }
}

#[test]
fn where_no_clock_is_set_ticks_are_those_of_croner() {
    let mut random = Random(3);
    let utc = TimeZone::UTC;
    for _ in 0..2_000 {
        let (mut expression, _) = expression(&mut random);
        if random.below(3) == 0 {
            expression = format!("*/{} {expression}", 1 + random.below(30));
        }
        let Ok(ours) = Cron::parse(&expression, "UTC") else {
            continue;
        };
        let croners = parsed_by_croner(&expression);
        let after = Timestamp::from_second(random.below(4_000_000_000) as i64).unwrap();
        let expected: Zoned = croners
            .find_next_occurrence(&after.to_zoned(utc.clone()), false)
            .unwrap();
        let next = ours.next_after(system(after));
        assert_eq!(next, Some(system(expected.timestamp())), "{expression} after {after}");
    }
}

#[test]
fn every_tick_is_found_from_anywhere_before_it() {
    let mut random = Random(4);
    let zones = [
        "Europe/Madrid",
        "Australia/Lord_Howe",
        "America/Sao_Paulo",
        "America/St_Johns",
        "UTC",
    ];
    for _ in 0..500 {
        let (expression, _) = expression(&mut random);
        let zone = random.of(&zones);
        let Ok(cron) = Cron::parse(&expression, zone) else {
            continue;
        };
        let after = at(random.below(4_000_000_000)) + Duration::from_micros(random.below(1_000_000));
        let Some(next) = cron.next_after(after) else {
            panic!("{expression} in {zone} never comes");
        };
        assert!(next > after);
        let since = next.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(since.subsec_nanos(), 0, "a tick is a whole second");
        // From whatever moment in between, and from the last one of all.
        let wait = next.duration_since(after).unwrap();
        let between = after + Duration::from_micros(random.below(wait.as_micros() as u64));
        for from in [between, next - Duration::from_micros(1)] {
            assert_eq!(
                cron.next_after(from),
                Some(next),
                "{expression} in {zone} from {from:?}"
            );
        }
        let chain = cron.between(after, super::end(), 3);
        assert_eq!(chain[0], next);
        assert_eq!(cron.next_after(chain[0]), Some(chain[1]));
        assert_eq!(cron.between(after, chain[2], 10).len(), 3, "the end belongs to it");
    }
}

#[test]
fn an_expression_is_given_back_as_it_was_written() {
    let cron = cron("  0   9 * * Mon-Fri ", "europe/madrid");
    assert_eq!(
        (cron.to_string().as_str(), cron.time_zone()),
        ("0 9 * * Mon-Fri", "Europe/Madrid")
    );
}

#[test]
fn a_moment_is_read_in_the_zone_unless_it_says_its_own() {
    let cron = cron("@daily", "Europe/Madrid");
    for (text, expected) in [
        ("2026-03-28", "2026-03-28T00:00:00+01:00"),
        ("2026-03-28 12:30", "2026-03-28T12:30:00+01:00"),
        ("2026-03-28T12:30:15", "2026-03-28T12:30:15+01:00"),
        ("2026-03-28T12:30:15Z", "2026-03-28T13:30:15+01:00"),
        ("2026-03-28 12:30:15-05:00", "2026-03-28T18:30:15+01:00"),
        ("2026-03-29 02:30", "2026-03-29T03:30:00+02:00"),
        ("2026-10-25 02:30", "2026-10-25T02:30:00+02:00"),
    ] {
        assert_eq!(cron.local(cron.moment(text).unwrap()), expected, "{text}");
    }
    for text in [
        "",
        "tomorrow",
        "12:30",
        "1969-12-31",
        "2026-02-30",
        "99999-01-01",
        &"9".repeat(100_000),
    ] {
        let error = cron.moment(text).unwrap_err().to_string();
        assert!(
            error.contains("is no moment since 1970; write ") && error.len() < 300,
            "{error}"
        );
    }
}
