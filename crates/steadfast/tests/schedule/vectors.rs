//! What three other implementations say, and where we mean to differ. How the files came about is in
//! `tests/vectors/cron/README.md`.

use std::collections::BTreeMap;

use steadfast::{Cron, rfc3339};

use super::end;

const OTHERS: [(&str, &str); 3] = [
    ("croner", include_str!("../vectors/cron/croner.tsv")),
    ("croniter", include_str!("../vectors/cron/croniter.tsv")),
    ("cron-parser", include_str!("../vectors/cron/cron-parser.tsv")),
];
const DIFFERENCES: &str = include_str!("../vectors/cron/differences.tsv");
const REASONS: &str = include_str!("../vectors/cron/README.md");

/// The next five ticks, or `-` if there are none or the expression is refused.
fn ours(expression: &str, zone: &str, after: &str) -> String {
    let Ok(cron) = Cron::parse(expression, zone) else {
        return "-".to_owned();
    };
    let ticks = cron.between(cron.moment(after).unwrap(), end(), 5);
    let written: Vec<_> = ticks
        .into_iter()
        .map(|tick| rfc3339(tick).replace(".000Z", "Z"))
        .collect();
    written.join(",")
}

#[test]
fn others_say_the_same_but_where_we_mean_to_differ() {
    let mut meant: BTreeMap<(&str, &str, &str, &str), (&str, &str)> = DIFFERENCES
        .lines()
        .map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
            [other, expression, zone, after, ours, reason] => ((other, expression, zone, after), (ours, reason)),
            _ => panic!("{line}"),
        })
        .collect();
    for (_, reason) in meant.values() {
        assert!(
            REASONS.contains(&format!("| {reason} |")),
            "the reason {reason} is not in the table"
        );
    }
    let mut compared = 0;
    for (other, vectors) in OTHERS {
        for line in vectors.lines() {
            let [expression, zone, after, theirs] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let found = ours(expression, zone, after);
            match meant.remove(&(other, expression, zone, after)) {
                Some((expected, reason)) => {
                    assert_eq!(
                        found, expected,
                        "{other} {expression} in {zone} after {after}, for the reason {reason}"
                    );
                    assert_ne!(
                        found, theirs,
                        "{other} {expression} in {zone} after {after} is no difference"
                    );
                }
                None => assert_eq!(found, theirs, "{other} {expression} in {zone} after {after}"),
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 3 * include_str!("../vectors/cron/cases.tsv").lines().count());
    assert!(meant.is_empty(), "nobody was asked: {meant:?}");
}
