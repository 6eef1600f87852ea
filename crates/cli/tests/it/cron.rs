//! Schedules tried out: no database, and no time zones of the machine.

use crate::process::Call;

fn next(arguments: &[&str]) -> Call {
    Call::of(["cron", "next"].into_iter().chain(arguments.iter().copied()))
}

#[tokio::test]
async fn ticks_are_shown_in_their_zone_with_the_offset_and_in_utc() {
    let nightly = [
        "30 2 * * *",
        "--tz",
        "Europe/Madrid",
        "--after",
        "2026-10-24",
        "-n",
        "3",
    ];
    assert_eq!(
        next(&nightly).run().await.ok(),
        "day  local                offset  utc\n\
         Sat  2026-10-24 02:30:00  +02:00  2026-10-24T00:30:00.000Z\n\
         Sun  2026-10-25 02:30:00  +02:00  2026-10-25T00:30:00.000Z\n\
         Mon  2026-10-26 02:30:00  +01:00  2026-10-26T01:30:00.000Z\n"
    );
    let half_hourly = [
        "*/30 * * * *",
        "--tz",
        "Australia/Lord_Howe",
        "--after",
        "2026-04-05 01:15",
        "-n",
        "3",
    ];
    assert_eq!(
        next(&half_hourly).run().await.ok(),
        "day  local                offset  utc\n\
         Sun  2026-04-05 01:30:00  +11:00  2026-04-04T14:30:00.000Z\n\
         Sun  2026-04-05 01:30:00  +10:30  2026-04-04T15:00:00.000Z\n\
         Sun  2026-04-05 02:00:00  +10:30  2026-04-04T15:30:00.000Z\n"
    );
    let json = [
        "@monthly",
        "--tz",
        "america/new_york",
        "--after",
        "2026-02-15T00:00:00Z",
        "-n",
        "2",
        "--json",
    ];
    assert_eq!(
        next(&json).run().await.ok(),
        "{\"at\":\"2026-03-01T05:00:00.000Z\",\"local\":\"2026-03-01T00:00:00-05:00\",\"weekday\":\"Sun\"}\n\
         {\"at\":\"2026-04-01T04:00:00.000Z\",\"local\":\"2026-04-01T00:00:00-04:00\",\"weekday\":\"Wed\"}\n"
    );
}

#[tokio::test]
async fn without_more_it_is_five_ticks_from_now_on_in_utc() {
    let told = next(&["* * * * *"]).run().await.ok();
    let lines: Vec<&str> = told.lines().skip(1).collect();
    assert_eq!(lines.len(), 5, "{told}");
    assert!(lines.iter().all(|line| line.contains("+00:00")), "{told}");
    let now = steadfast::rfc3339(std::time::SystemTime::now());
    let last = lines[4].rsplit(' ').next().unwrap();
    assert!(last > now.as_str(), "{last} {now}");
}

#[tokio::test]
async fn what_the_clocks_always_skip_is_said_to_be_nothing() {
    let said = next(&["*/30 2 * 3 SUNL", "--tz", "Europe/Madrid"]).run().await;
    assert_eq!(
        (said.exit, said.out.as_str(), said.err.as_str()),
        (0, "", "there are none\n")
    );
}

#[tokio::test]
async fn what_is_wrong_is_said_with_what_to_write() {
    for (arguments, cause, help) in [
        (
            &["61 * * * *"][..],
            "error[SF303]: in the cron expression \"61 * * * *\", \"61\" is no minute",
            "write 0 to 59",
        ),
        (&["* * * *"], "there are 4 fields", "write five: minute, hour"),
        (&["0 9 * * MOO"], "\"MOO\" is no day of week", "did you mean `MON`?"),
        (&["@dayly"], "\"@dayly\" is not known", "did you mean `@daily`?"),
        (
            &["0 0 30 2 *"],
            "about a day that never comes",
            "write a day that one of its months has",
        ),
        (
            &["@daily", "--tz", "Europe/Madird"],
            "\"Europe/Madird\" is no time zone",
            "did you mean `Europe/Madrid`?",
        ),
        (
            &["@daily", "--after", "soon"],
            "\"soon\" is no moment since 1970",
            "write one such as 2026-03-29",
        ),
    ] {
        next(arguments).run().await.refused(2, cause, help);
    }
    for arguments in [
        &["@daily", "-n", "0"][..],
        &["@daily", "-n", "1001"],
        &["0", "9", "*"],
        &[],
    ] {
        assert_eq!(next(arguments).run().await.exit, 2, "{arguments:?}");
    }
    let said = next(&["\u{1b}[2J * * * *"]).run().await;
    assert!(said.exit == 2 && !said.err.contains('\u{1b}'), "{:?}", said.err);
}

/// The words of a line as a shell has them.
fn words(line: &str) -> Vec<&str> {
    let quoted = line.split('"').enumerate();
    let words = quoted.flat_map(|(number, part)| match number % 2 {
        0 => part.split_whitespace().collect(),
        _ => vec![part],
    });
    words.collect()
}

#[tokio::test]
async fn the_guide_shows_what_is_said() {
    let pages = [
        include_str!("../../../../docs/guide/schedules.md"),
        include_str!("../../../../docs/guide/command-line.md"),
    ];
    let mut shown = 0;
    for page in pages {
        let blocks = page
            .split("```console\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next());
        for call in blocks.flat_map(|block| block.split("$ steadfast ")) {
            let Some((line, expected)) = call.split_once('\n').filter(|(line, _)| line.starts_with("cron next")) else {
                continue;
            };
            let said = Call::of(words(line)).run().await;
            assert_eq!(said.out + &said.err, expected, "{line}");
            shown += 1;
        }
    }
    assert_eq!(shown, 4);
}
