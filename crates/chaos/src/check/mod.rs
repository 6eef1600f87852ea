//! The checker: judges a history by what is in the database. It knows the promises, and nothing of how they are kept.
//!
//! Every command becomes a [`Case`]: its attempts, what it made, and its key. The [`RULES`] look at one case each; what
//! belongs to no case is a violation by itself. Identifiers are those of `docs/guarantees.md`.

mod rules;

use std::collections::{BTreeMap, HashMap};

use crate::history::{Attempt, Command, History, Mark, Micros, USERS};
use crate::snapshot::{Effect, Key, Snapshot};
use rules::RULES;

/// A promise that was broken.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) rule: &'static str,
    pub(crate) sentence: String,
    /// Whose history to look at.
    pub(crate) command: Option<usize>,
}

/// Everything about one command.
struct Case<'a> {
    command: &'a Command,
    /// In the order they ended.
    attempts: Vec<&'a Attempt>,
    /// The oldest first.
    effects: Vec<&'a Effect>,
    key: Option<&'a Key>,
    calm: Micros,
}

/// Judges every command, and what nobody asked for.
pub(crate) fn judge(history: &History, snapshot: &Snapshot) -> Vec<Violation> {
    let (cases, mut violations) = sort(history, snapshot);
    for case in &cases {
        let broken = RULES.iter().filter_map(|(rule, find)| Some((rule, find(case)?)));
        violations.extend(broken.map(|(rule, sentence)| Violation {
            rule,
            sentence,
            command: Some(case.command.number),
        }));
    }
    violations
}

/// Gives every row to its command.
fn sort<'a>(history: &'a History, snapshot: &'a Snapshot) -> (Vec<Case<'a>>, Vec<Violation>) {
    let calm = history.calm.unwrap_or(Micros::MAX);
    let new_case = |command| Case {
        command,
        attempts: Vec::new(),
        effects: Vec::new(),
        key: None,
        calm,
    };
    let makers: HashMap<_, _> = history
        .commands
        .iter()
        .map(|command| (maker(command), command.number))
        .collect();
    let mut cases: Vec<_> = history.commands.iter().map(new_case).collect();
    let mut violations = Vec::new();
    for attempt in &history.attempts {
        if let Some(case) = cases.get_mut(attempt.command) {
            case.attempts.push(attempt);
        }
    }
    for effect in &snapshot.effects {
        match Mark::read(&effect.mark) {
            Some(Mark::OfMutated(number)) => violations.push(Violation {
                rule: "IDEM-5",
                sentence: format!("a retry with another body has made {}", effect.id),
                command: Some(number),
            }),
            mark => match makers.get(&(&*effect.tenant, &*effect.owner, &*effect.operation, mark)) {
                Some(number) => cases[*number].effects.push(effect),
                None => violations.push(Violation {
                    rule: "IDEM-1",
                    sentence: format!("nobody asked for {effect:?}"),
                    command: None,
                }),
            },
        }
    }
    for case in &mut cases {
        case.effects.sort_by_key(|effect| effect.at_ms);
    }
    let numbers: HashMap<_, _> = history
        .commands
        .iter()
        .map(|command| (identity(command), command.number))
        .collect();
    for key in &snapshot.keys {
        let identity = (&*key.tenant, &*key.owner, &*key.operation, &*key.value);
        match numbers.get(&identity) {
            Some(number) => cases[*number].key = Some(key),
            None => violations.push(Violation {
                rule: "IDEM-4",
                sentence: format!("nobody has used the key of {key:?}"),
                command: None,
            }),
        }
    }
    (cases, violations)
}

/// What makes two requests the same.
fn identity(command: &Command) -> (&str, &str, &str, &str) {
    let tenant = tenant_of(command.user);
    (tenant, command.user, command.operation.name(), &command.key)
}

/// What tells whose an effect is.
fn maker(command: &Command) -> (&str, &str, &str, Option<Mark>) {
    let tenant = tenant_of(command.user);
    (tenant, command.user, command.operation.name(), Some(command.mark))
}

fn tenant_of(user: &str) -> &'static str {
    USERS
        .iter()
        .find(|(name, _)| *name == user)
        .map_or("", |(_, tenant)| tenant)
}

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

#[cfg(test)]
mod tests;
