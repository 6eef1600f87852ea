//! What becomes of ticks when the clock on the wall is set, place by place.

use std::time::Duration;

use super::{cron, local};

#[track_caller]
fn assert_ticks(expression: &str, zone: &str, after: &str, expected: &[&str]) {
    let ticks = local(expression, zone, after, expected.len());
    assert_eq!(ticks, expected, "{expression} in {zone} after {after}");
}

/// The clock goes from 02:00 to 03:00.
#[test]
fn a_time_of_day_that_is_skipped_comes_at_the_first_moment_after_the_gap() {
    assert_ticks(
        "30 2 * * *",
        "Europe/Madrid",
        "2026-03-27 12:00",
        &[
            "2026-03-28T02:30:00+01:00",
            "2026-03-29T03:00:00+02:00",
            "2026-03-30T02:30:00+02:00",
        ],
    );
    assert_ticks(
        "30 2 * * *",
        "America/New_York",
        "2026-03-06 12:00",
        &[
            "2026-03-07T02:30:00-05:00",
            "2026-03-08T03:00:00-04:00",
            "2026-03-09T02:30:00-04:00",
        ],
    );
    // A list names times of day as one number does, and so does a step of hours.
    assert_ticks(
        "30 2,14 * * *",
        "Europe/Madrid",
        "2026-03-28 20:00",
        &[
            "2026-03-29T03:00:00+02:00",
            "2026-03-29T14:30:00+02:00",
            "2026-03-30T02:30:00+02:00",
        ],
    );
    assert_ticks(
        "0 */2 * * *",
        "Europe/Madrid",
        "2026-03-28 23:00",
        &[
            "2026-03-29T00:00:00+01:00",
            "2026-03-29T03:00:00+02:00",
            "2026-03-29T04:00:00+02:00",
        ],
    );
}

#[test]
fn several_times_that_are_skipped_together_are_one_tick() {
    assert_ticks(
        "0,10,50 2,3 * * *",
        "Europe/Madrid",
        "2026-03-28 12:00",
        &[
            "2026-03-29T03:00:00+02:00",
            "2026-03-29T03:10:00+02:00",
            "2026-03-29T03:50:00+02:00",
            "2026-03-30T02:00:00+02:00",
        ],
    );
}

/// The clock goes from 03:00 back to 02:00.
#[test]
fn a_time_of_day_that_comes_twice_is_the_first_of_the_two() {
    for (expression, after) in [
        ("30 2 * * *", "2026-10-24 12:00"),
        ("30 2,14 * * *", "2026-10-24 20:00"),
    ] {
        let ticks = local(expression, "Europe/Madrid", after, 2);
        assert_eq!(ticks[0], "2026-10-25T02:30:00+02:00");
        assert!(
            !ticks[1].contains("T02:30:00+01:00") || ticks[1].starts_with("2026-10-26"),
            "{ticks:?}"
        );
    }
    assert_ticks(
        "30 1 * * *",
        "America/New_York",
        "2026-10-31 12:00",
        &["2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"],
    );
    assert_ticks(
        "0 */2 * * *",
        "Europe/Madrid",
        "2026-10-24 23:00",
        &[
            "2026-10-25T00:00:00+02:00",
            "2026-10-25T02:00:00+02:00",
            "2026-10-25T04:00:00+01:00",
        ],
    );
    // Asked in the second of the two hours, or at the very moment the clock is set, it has been there.
    for after in ["2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:15:00Z"] {
        assert_ticks("30 2 * * *", "Europe/Madrid", after, &["2026-10-26T02:30:00+01:00"]);
    }
    assert_ticks(
        "30 2 * * *",
        "Europe/Madrid",
        "2026-10-25T00:29:59Z",
        &["2026-10-25T02:30:00+02:00"],
    );
}

#[test]
fn a_daily_time_has_one_tick_on_every_date_of_a_year() {
    for zone in [
        "Europe/Madrid",
        "America/New_York",
        "Australia/Lord_Howe",
        "America/Sao_Paulo",
        "America/Havana",
        "America/St_Johns",
        "UTC",
    ] {
        for expression in [
            "30 2 * * *",
            "0 0 * * *",
            "15 2 * * *",
            "45 23 * * *",
            "30 1 * * *",
            "0 1 * * *",
            "1 0 * * *",
        ] {
            let dates: Vec<_> = local(expression, zone, "2017-12-31 23:50", 365)
                .into_iter()
                .map(|tick| tick[..10].to_owned())
                .collect();
            let mut once = dates.clone();
            once.dedup();
            assert_eq!(dates, once, "{expression} in {zone}");
            assert_eq!(
                (dates[0].as_str(), dates[364].as_str()),
                ("2018-01-01", "2018-12-31"),
                "{expression} in {zone}"
            );
        }
    }
}

#[test]
fn a_quarter_of_an_hour_stays_one_wherever_the_clock_is_set() {
    for (zone, after) in [
        ("Europe/Madrid", "2026-03-28 20:00"),
        ("Europe/Madrid", "2026-10-24 20:00"),
        ("America/New_York", "2026-03-07 20:00"),
        ("America/New_York", "2026-10-31 20:00"),
        ("Australia/Lord_Howe", "2026-10-03 20:00"),
        ("Australia/Lord_Howe", "2026-04-04 20:00"),
        ("America/Sao_Paulo", "2018-11-03 20:00"),
        ("America/Sao_Paulo", "2018-02-17 20:00"),
        ("Pacific/Apia", "2011-12-29 20:00"),
        ("UTC", "2026-03-28 20:00"),
    ] {
        let cron = cron("*/15 * * * *", zone);
        let mut tick = cron.moment(after).unwrap();
        for _ in 0..96 {
            let next = cron.next_after(tick).unwrap();
            assert_eq!(next.duration_since(tick).unwrap(), Duration::from_secs(900), "{zone}");
            tick = next;
        }
    }
}

#[test]
fn a_rhythm_goes_with_the_clock_on_the_wall() {
    // Every real hour.
    assert_ticks(
        "30 * * * *",
        "Europe/Madrid",
        "2026-10-25T00:00:00Z",
        &[
            "2026-10-25T02:30:00+02:00",
            "2026-10-25T02:30:00+01:00",
            "2026-10-25T03:30:00+01:00",
        ],
    );
    // While it is two o'clock: not at all, and twice.
    assert_ticks(
        "*/30 2 * * *",
        "Europe/Madrid",
        "2026-03-28 12:00",
        &["2026-03-30T02:00:00+02:00"],
    );
    assert_ticks(
        "*/30 2 * * *",
        "Europe/Madrid",
        "2026-10-24 12:00",
        &[
            "2026-10-25T02:00:00+02:00",
            "2026-10-25T02:30:00+02:00",
            "2026-10-25T02:00:00+01:00",
            "2026-10-25T02:30:00+01:00",
            "2026-10-26T02:00:00+01:00",
        ],
    );
    // A `*` that leaves one minute is no rhythm.
    assert_ticks(
        "*/60 2 * * *",
        "Europe/Madrid",
        "2026-03-28 12:00",
        &["2026-03-29T03:00:00+02:00"],
    );
}

/// The clock goes from 02:00 to 02:30, and back from 02:00 to 01:30.
#[test]
fn half_an_hour_of_summer_time_is_half_an_hour() {
    let zone = "Australia/Lord_Howe";
    assert_ticks(
        "15 2 * * *",
        zone,
        "2026-10-03 12:00",
        &["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"],
    );
    // That one is there.
    assert_ticks("30 2 * * *", zone, "2026-10-03 12:00", &["2026-10-04T02:30:00+11:00"]);
    assert_ticks(
        "45 1 * * *",
        zone,
        "2026-04-04 12:00",
        &["2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"],
    );
    assert_ticks(
        "*/15 * * * *",
        zone,
        "2026-04-05 01:29",
        &[
            "2026-04-05T01:30:00+11:00",
            "2026-04-05T01:45:00+11:00",
            "2026-04-05T01:30:00+10:30",
            "2026-04-05T01:45:00+10:30",
            "2026-04-05T02:00:00+10:30",
        ],
    );
}

/// The clock goes from 00:00 to 01:00, and back from 00:00 to 23:00 of the day before.
#[test]
fn a_day_that_begins_at_one_has_its_midnight_then() {
    let zone = "America/Sao_Paulo";
    assert_ticks(
        "0 0 * * *",
        zone,
        "2018-11-02 12:00",
        &[
            "2018-11-03T00:00:00-03:00",
            "2018-11-04T01:00:00-02:00",
            "2018-11-05T00:00:00-02:00",
        ],
    );
    assert_ticks(
        "30 23 * * *",
        zone,
        "2018-02-16 23:45",
        &["2018-02-17T23:30:00-02:00", "2018-02-18T23:30:00-03:00"],
    );
    assert_ticks(
        "0 0 * * *",
        zone,
        "2018-02-17 12:00",
        &["2018-02-18T00:00:00-03:00", "2018-02-19T00:00:00-03:00"],
    );
    // It is the Sunday that is meant, though it begins late.
    assert_ticks("0 0 * * SUN", zone, "2018-11-02 12:00", &["2018-11-04T01:00:00-02:00"]);
    assert_ticks("0 0 4 11 *", zone, "2018-11-02 12:00", &["2018-11-04T01:00:00-02:00"]);
}

/// Samoa went from 29 December 2011, 24:00, to 31 December, 00:00.
#[test]
fn the_ticks_of_a_day_that_was_left_out_are_one_tick_after_it() {
    let zone = "Pacific/Apia";
    assert_ticks(
        "30 2 * * *",
        zone,
        "2011-12-28 12:00",
        &[
            "2011-12-29T02:30:00-10:00",
            "2011-12-31T00:00:00+14:00",
            "2011-12-31T02:30:00+14:00",
        ],
    );
    assert_ticks(
        "0 9,17 30 12 *",
        zone,
        "2011-12-28 12:00",
        &["2011-12-31T00:00:00+14:00", "2012-12-30T09:00:00+14:00"],
    );
    assert_ticks(
        "0 0 * * *",
        zone,
        "2011-12-29 12:00",
        &["2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"],
    );
    assert_ticks("0 * 30 12 *", zone, "2011-12-28 12:00", &["2012-12-30T00:00:00+14:00"]);
}

/// Newfoundland went back at 00:01, to 23:01 of the day before: the new day had begun, and began again.
#[test]
fn midnight_that_comes_twice_is_one_tick() {
    let zone = "America/St_Johns";
    assert_ticks(
        "0 0 * * *",
        zone,
        "2010-11-06 12:00",
        &["2010-11-07T00:00:00-02:30", "2010-11-08T00:00:00-03:30"],
    );
    assert_ticks(
        "0 * * * *",
        zone,
        "2010-11-06 22:30",
        &[
            "2010-11-06T23:00:00-02:30",
            "2010-11-07T00:00:00-02:30",
            "2010-11-07T00:00:00-03:30",
            "2010-11-07T01:00:00-03:30",
        ],
    );
}

#[test]
fn what_the_clocks_always_skip_never_comes() {
    let cron = cron("*/30 2 * 3 SUNL", "Europe/Madrid");
    assert_eq!(cron.next_after(cron.moment("2026-01-01").unwrap()), None);
    assert_ticks(
        "30 2 * 3 SUNL",
        "Europe/Madrid",
        "2026-01-01",
        &["2026-03-29T03:00:00+02:00", "2027-03-28T03:00:00+02:00"],
    );
}
