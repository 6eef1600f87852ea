//! Violations for a person: what was broken, and all that is known of the command it was broken to.

use std::collections::BTreeMap;

use super::{Violation, identity};
use crate::history::{Attempt, History, Mark, Micros};
use crate::snapshot::{Effect, Snapshot};

/// How many violations are told with their whole history.
const TOLD_MAX: usize = 5;

/// The violations, for a person: how many of each rule, and the first with their whole history.
pub(crate) fn describe(violations: &[Violation], history: &History, snapshot: &Snapshot) -> String {
    let mut counts = BTreeMap::new();
    for violation in violations {
        *counts.entry(violation.rule).or_insert(0) += 1;
    }
    let counts: Vec<_> = counts
        .iter()
        .map(|(rule, count)| format!("{rule} {count} times"))
        .collect();
    let mut text = format!("{} violations: {}\n", violations.len(), counts.join(", "));
    for violation in violations.iter().take(TOLD_MAX) {
        text += &format!("\n{}: {}\n", violation.rule, violation.sentence);
        if let Some(number) = violation.command {
            text += &tell(number, history, snapshot);
        }
    }
    text
}

/// Everything that is known of a command.
fn tell(number: usize, history: &History, snapshot: &Snapshot) -> String {
    let Some(command) = history.commands.get(number) else {
        return String::new();
    };
    let attempts: Vec<_> = history
        .attempts
        .iter()
        .filter(|attempt| attempt.command == number)
        .collect();
    let (from, to) = attempts.iter().fold((Micros::MAX, 0), |(from, to), attempt| {
        (from.min(attempt.from), to.max(attempt.to))
    });
    let around = history
        .accidents
        .iter()
        .filter(|accident| (from..=to).contains(&accident.at));
    // Attempts and accidents in the order of their beginnings.
    let mut lines: Vec<_> = attempts
        .iter()
        .map(|attempt| (attempt.from, tell_attempt(attempt)))
        .chain(around.map(|accident| (accident.at, format!("       {}", accident.what))))
        .collect();
    lines.sort();
    let mut text = format!("  {command:?}\n");
    for (at, line) in lines {
        text += &format!("  {:10.3} ms {line}\n", at as f64 / 1e3);
    }
    let is_ours = |effect: &&Effect| {
        let mark = Mark::read(&effect.mark);
        mark == Some(command.mark) || mark == Some(Mark::OfMutated(number))
    };
    for effect in snapshot.effects.iter().filter(is_ours) {
        text += &format!("  in the database: {effect:?}\n");
    }
    let wanted = identity(command);
    for key in &snapshot.keys {
        if (&*key.tenant, &*key.owner, &*key.operation, &*key.value) == wanted {
            text += &format!("  in the database: {key:?}\n");
        }
    }
    text
}

fn tell_attempt(attempt: &Attempt) -> String {
    let Attempt {
        purpose,
        shop,
        episode,
        fault,
        ended,
        ..
    } = attempt;
    let fault = fault.map(|fault| format!(" with {fault}")).unwrap_or_default();
    let took = (attempt.to - attempt.from) as f64 / 1e3;
    format!("shop {shop} {purpose:?}{fault} (episode {episode}), after {took:.3} ms: {ended:?}")
}
