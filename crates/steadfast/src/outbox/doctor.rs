//! What is wrong with the outbox, and what to do about it.

use std::time::Duration;

use super::forecast::about;
use super::stats::{KindStats, OutboxStats};
use crate::doctor::Check;

/// A row that has been due for so long, and that nobody works on, is late.
const LATE: Duration = Duration::from_secs(5 * 60);

/// How long after its retention a message is gone at the latest: the purge comes by every hour, unless it is away for a while.
const PURGE_GRACE: Duration = Duration::from_secs(24 * 60 * 60);

/// How many kinds a line names.
const NAMES_MAX: usize = 5;

/// Judges how the outbox is doing.
pub(crate) fn checks(stats: &OutboxStats) -> Vec<Check> {
    let checks = [kinds, targets, late, paused, dead_letters, retention];
    checks.iter().map(|check| check(stats)).collect()
}

/// The kinds of which this holds, each with a word.
fn named<'s>(
    stats: &'s OutboxStats,
    is_one: impl Fn(&KindStats) -> bool + 's,
    word: impl Fn(&KindStats) -> String + 's,
) -> Option<String> {
    let mut all: Vec<_> = stats.kinds.iter().filter(|kind| is_one(kind)).collect();
    let more = all.len().saturating_sub(NAMES_MAX);
    all.truncate(NAMES_MAX);
    let mut words: Vec<_> = all
        .iter()
        .map(|kind| format!("{} ({})", kind.kind, word(kind)))
        .collect();
    if more > 0 {
        words.push(format!("{more} more"));
    }
    (!words.is_empty()).then(|| words.join(", "))
}

fn seen(kind: &KindStats) -> String {
    match kind.seen {
        Some(seen) => format!("last seen {} ago", about(seen)),
        None => "never seen".to_owned(),
    }
}

fn has_rows(kind: &KindStats) -> bool {
    kind.pending.number + kind.leased.number > 0
}

/// Rows that nobody can work on.
fn kinds(stats: &OutboxStats) -> Check {
    let lost = named(
        stats,
        |kind| has_rows(kind) && !kind.is_known(),
        |kind| format!("{} pending, {}", kind.pending, seen(kind)),
    );
    match lost {
        None => Check::ok("kinds", "some process knows every kind of rows that there is"),
        Some(lost) => Check::warn(
            "kinds",
            format!("rows wait that no running process knows: {lost}"),
            "start a process that has these reactions or handlers, in the version behind the @ if there is one, or roll the new \
             binary out everywhere; if nobody will ever want them, `steadfast targets remove NAME --reason WHY`, and for jobs \
             `steadfast jobs cancel ID --reason WHY`",
        ),
    }
}

/// Targets that messages are kept for, and nobody works on.
fn targets(stats: &OutboxStats) -> Check {
    let idle = named(
        stats,
        |kind| kind.is_target && !kind.is_known() && !has_rows(kind),
        seen,
    );
    match idle {
        None => Check::ok("targets", "some process works on every target"),
        Some(idle) => Check::warn(
            "targets",
            format!("messages are kept for targets that nobody works on: {idle}"),
            "start a process that has these reactions, or `steadfast targets remove NAME --reason WHY`: until then every event they want is kept for them",
        ),
    }
}

/// Rows that are late although somebody knows them.
fn late(stats: &OutboxStats) -> Check {
    let late = named(
        stats,
        |kind| kind.is_known() && kind.paused.is_none() && kind.lag.is_some_and(|lag| lag > LATE),
        |kind| {
            format!(
                "{} pending, the oldest for {}",
                kind.pending,
                about(kind.lag.unwrap_or_default())
            )
        },
    );
    match late {
        None => Check::ok(
            "pending",
            "nothing that somebody works on has been due for more than 5 minutes",
        ),
        Some(late) => Check::warn(
            "pending",
            format!("rows have been due for more than 5 minutes: {late}"),
            "look at the handlers: how long they take, and what they wait for; then give the reaction more `concurrency`, or start \
             more processes. Behind a dead letter of their ordering key rows wait until it is requeued, skipped or discarded",
        ),
    }
}

fn paused(stats: &OutboxStats) -> Check {
    let paused = named(
        stats,
        |kind| kind.paused.is_some(),
        |kind| {
            let paused = kind.paused.as_ref();
            let (by, reason) = paused.map_or(("", ""), |paused| (&*paused.by, &*paused.reason));
            format!("{} pending, by {by}: {reason}", kind.pending)
        },
    );
    match paused {
        None => Check::ok("paused", "no target is paused"),
        Some(paused) => Check::warn(
            "paused",
            format!("targets or queues are paused: {paused}"),
            "`steadfast targets resume NAME --reason WHY` or `steadfast queues resume NAME --reason WHY` when the reason is gone; what \
             they want is kept until then",
        ),
    }
}

fn dead_letters(stats: &OutboxStats) -> Check {
    let dead = named(stats, |kind| kind.dead.number > 0, |kind| kind.dead.to_string());
    match dead {
        None => Check::ok("dead_letters", "there are none"),
        Some(dead) => Check::warn(
            "dead_letters",
            format!("deliveries were given up: {dead}"),
            "look at their errors with `steadfast dead groups`, mend the cause, and requeue them; or discard them with a reason. \
             They are never purged",
        ),
    }
}

fn retention(stats: &OutboxStats) -> Check {
    let retention = about(stats.retention);
    match stats.oldest_finished {
        Some(age) if age > stats.retention + PURGE_GRACE => Check::warn(
            "retention",
            format!(
                "messages are kept for {retention}, and the oldest that nobody waits for is {} old",
                about(age)
            ),
            "let some process purge: `sf.serve(..)` does it every hour, otherwise spawn `sf.keep_house()`; `steadfast purge` does \
             it now. If a service keeps messages for longer, say so with --message-retention",
        ),
        _ => Check::ok("retention", format!("nothing is kept much longer than {retention}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::count::Count;
    use super::super::stats::Flow;
    use super::super::targets::Paused;
    use super::*;
    use crate::doctor::Verdict;

    fn count(number: u64) -> Count {
        Count {
            number,
            is_capped: false,
        }
    }

    fn judged(kind: KindStats, oldest_finished: Option<u64>) -> Vec<(&'static str, String)> {
        let stats = OutboxStats {
            kinds: vec![kind],
            flow: Flow::default(),
            tables: Vec::new(),
            retention: Duration::from_secs(7 * 86_400),
            oldest_finished: oldest_finished.map(|days| Duration::from_secs(days * 86_400)),
        };
        let checks = checks(&stats);
        assert_eq!(checks.len(), 6);
        assert!(
            checks
                .iter()
                .all(|check| check.fix.is_some() == (check.verdict == Verdict::Warn))
        );
        let warned = checks.into_iter().filter(|check| check.verdict == Verdict::Warn);
        warned.map(|check| (check.name, check.found)).collect()
    }

    #[test]
    fn each_trouble_has_its_line_and_none_has_two() {
        let known = || KindStats {
            kind: "mail".to_owned(),
            seen: Some(Duration::from_secs(30)),
            is_target: true,
            ..KindStats::default()
        };
        let one = |kind, days, name: &str, says: &str| {
            let found = judged(kind, days);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].0 == name && found[0].1.contains(says), "{found:?}");
        };
        assert!(judged(known(), Some(8)).is_empty());
        one(
            known(),
            Some(9),
            "retention",
            "for 7 d, and the oldest that nobody waits for is 9 d old",
        );
        let dead = KindStats {
            dead: count(3),
            ..known()
        };
        one(dead, None, "dead_letters", "mail (3)");
        let pending = || KindStats {
            pending: count(9),
            due: count(9),
            lag: Some(Duration::from_secs(301)),
            ..known()
        };
        one(pending(), None, "pending", "mail (9 pending, the oldest for 5 min)");
        let paused = Some(Paused {
            at: std::time::SystemTime::UNIX_EPOCH,
            by: "ops".to_owned(),
            reason: "provider is down".to_owned(),
        });
        let paused = KindStats { paused, ..pending() };
        one(paused, None, "paused", "mail (9 pending, by ops: provider is down)");
        let gone = KindStats {
            seen: Some(Duration::from_secs(300)),
            ..pending()
        };
        one(gone, None, "kinds", "mail (9 pending, last seen 5 min ago)");
        let never = KindStats {
            seen: None,
            ..pending()
        };
        one(never, None, "kinds", "mail (9 pending, never seen)");
        let idle = KindStats {
            seen: Some(Duration::from_secs(86_400 * 3)),
            ..known()
        };
        one(idle, None, "targets", "mail (last seen 3 d ago)");
    }
}
