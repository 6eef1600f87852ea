//! Expressions that nobody should write: refused or answered, at once, and never by a panic.

use std::time::{Duration, Instant, SystemTime};

use steadfast::{Code, Cron, Missed, Timing};

use super::{Random, at, cron, end};

/// No answer takes a thousandth of this; a machine that is busy may.
const LIMIT: Duration = Duration::from_secs(2);

#[track_caller]
fn quickly<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    assert!(start.elapsed() < LIMIT, "{what} took {:?}", start.elapsed());
    done
}

#[test]
fn a_date_that_never_comes_is_refused() {
    for expression in [
        "0 0 30 2 *",
        "0 0 31 2,4,6,9,11 *",
        "0 0 30,31 2 *",
        "0 0 31 FEB ?",
        "0 0 30W 2 *",
        "0 0 30 2 +MON",
        "0 0 1-7 * +MON#3",
        "* * * 30-31 2 *",
    ] {
        let error = quickly(expression, || Cron::parse(expression, "UTC").unwrap_err());
        assert_eq!(error.code(), Code::ConfigurationInvalid);
        let told = error.to_string();
        assert!(
            told.contains(expression) && told.contains("never comes; write "),
            "{told}"
        );
    }
    // With a weekday it is that weekday or the 30th, and the weekdays come.
    assert!(Cron::parse("0 0 30 2 MON", "UTC").is_ok());
}

#[test]
fn the_rarest_days_are_found() {
    for (expression, after, expected) in [
        ("0 0 29 2 *", "2096-03-01", "2104-02-29T00:00:00+00:00"),
        ("0 0 * 2 MON#5", "2072-03-01", "2112-02-29T00:00:00+00:00"),
        ("0 0 29 2 +MON", "2072-02-29", "2112-02-29T00:00:00+00:00"),
        ("0 0 29 2 +SAT", "2172-02-29", "2212-02-29T00:00:00+00:00"),
    ] {
        let cron = cron(expression, "UTC");
        let after = cron.moment(after).unwrap();
        let next = quickly(expression, || cron.next_after(after)).unwrap();
        assert_eq!(cron.local(next), expected, "{expression}");
    }
}

#[test]
fn bombs_are_refused_or_answered_at_once() {
    let long = "0,".repeat(50_000);
    for expression in [
        long.as_str(),
        &"*".repeat(100_000),
        &" ".repeat(100_000),
        &"0 ".repeat(100_000),
        "*/99999999999999999999 * * * *",
        "99999999999999999999 * * * *",
        "0-4294967295 * * * *",
        "0-59/18446744073709551615 * * * *",
        "* * * * * * * * * *",
        "0 0 0 0 0",
        "\0 * * * *",
        "\u{202e}0 0 * * *",
        "@@daily",
        "@",
        "L L L L L",
        "- - - - -",
        "/ / / / /",
        "# # # # #",
        "+ + + + +",
        ",,,,, * * * *",
    ] {
        let name = &expression[..expression.len().min(40)];
        let error = quickly(name, || Cron::parse(expression, "UTC")).unwrap_err();
        assert_eq!(error.code(), Code::ConfigurationInvalid, "{name}");
        let told = error.to_string();
        assert!(told.contains("; write ") && told.len() < 1_000, "{told}");
    }
    // The most work that is allowed.
    let all = "*/1 0-59 0-23 1-31 1-12 0-7";
    for zone in ["Pacific/Apia", "Europe/Madrid", "Africa/Casablanca"] {
        let cron = cron(all, zone);
        let ticks = quickly(all, || cron.between(at(1_325_239_190), end(), 1_000));
        assert_eq!(ticks.len(), 1_000, "{zone}");
    }
    let timing = Timing::from(cron("* * * * * *", "Europe/Madrid"));
    for missed in [Missed::Skip, Missed::Last, Missed::All] {
        let due = quickly("ten years of seconds", || {
            timing.due(
                at(1_400_000_000),
                at(1_715_000_000),
                missed,
                Duration::from_secs(5),
                100,
            )
        });
        let made = match missed {
            Missed::Skip | Missed::Last => 5,
            Missed::All => 100,
        };
        assert_eq!(due.ticks.len(), made, "{missed:?}");
    }
}

#[test]
fn no_text_and_no_time_makes_it_panic() {
    const LETTERS: &[&str] = &[
        "0", "1", "2", "5", "7", "9", "12", "29", "30", "31", "59", "60", "*", "*", "*/", "/", ",", "-", "?", "L", "W",
        "#", "+", "@", " ", " ", " ", "\t", "\n", "MON", "SUN", "FEB", "jan", "é", "\u{0}", "\u{a0}", "x", ".", "~",
        "%", "LW", "@daily", "１",
    ];
    let valid = [
        "0 9 * * MON-FRI",
        "*/15 2 L * 5#3",
        "30 2,14 15W * +7L",
        "0 0 29 2 *",
        "1-5/2 * * JAN-MAR *",
    ];
    let zones = [
        "UTC",
        "Europe/Madrid",
        "Pacific/Apia",
        "Africa/Monrovia",
        "Antarctica/Troll",
        "nowhere",
    ];
    let mut random = Random(5);
    let mut readable = 0;
    let start = Instant::now();
    for _ in 0..10_000 {
        let mut text = match random.below(2) {
            0 => (0..random.below(24)).map(|_| random.of(LETTERS)).collect::<String>(),
            _ => random.of(&valid).to_owned(),
        };
        for _ in 0..random.below(4) {
            let places: Vec<usize> = text.char_indices().map(|(place, _)| place).collect();
            let Some(place) = places.get(random.below(places.len().max(1) as u64) as usize) else {
                break;
            };
            match random.below(3) {
                0 => text.insert_str(*place, random.of(LETTERS)),
                1 => drop(text.remove(*place)),
                _ => {
                    text.remove(*place);
                    text.insert_str(*place, random.of(LETTERS));
                }
            }
        }
        match Cron::parse(&text, random.of(&zones)) {
            Err(error) => assert!(error.to_string().contains("; "), "{error}"),
            Ok(cron) => {
                readable += 1;
                let somewhen = at(random.below(8_000_000_000)) + Duration::from_nanos(random.next() % 1_000_000_000);
                let ages = Duration::from_secs(random.next() >> 2);
                let far = SystemTime::UNIX_EPOCH.checked_add(ages).unwrap_or(somewhen);
                let before = SystemTime::UNIX_EPOCH.checked_sub(ages).unwrap_or(somewhen);
                for after in [somewhen, far, before, end()] {
                    assert!(cron.next_after(after).is_none_or(|next| next > after), "{text:?}");
                    let _ = cron.local(after);
                }
            }
        }
    }
    assert!(readable > 1_000, "{readable}");
    let each = start.elapsed() / 10_000;
    assert!(each < Duration::from_millis(10), "{each:?}");
}
