//! The checker: judges a history by what is in the database. It knows the promises, and nothing of how they are kept.
//!
//! Every command becomes a [`Case`]: its attempts, what it made, and its key. The [`RULES`] look at one case each; what
//! belongs to no case is a violation by itself. Identifiers are those of `docs/guarantees.md`.

mod rules;
mod report;

pub(crate) use report::describe;

use std::collections::HashMap;

use crate::history::{Attempt, Command, History, Mark, Micros, USERS};
use crate::snapshot::{Effect, Key, Snapshot};
use rules::RULES;

/// What makes orders.
pub(crate) const ORDERS: &str = "orders.place";

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

/// Every order has reserved its stock once, or its event is a dead letter, and nothing else has.
pub(crate) fn judge_deliveries(snapshot: &Snapshot) -> Vec<Violation> {
    let mut ends: HashMap<&str, (usize, usize)> = HashMap::new();
    let orders = snapshot.effects.iter().filter(|effect| effect.operation == ORDERS);
    ends.extend(orders.map(|order| (&*order.id, (0, 0))));
    let mut violations = Vec::new();
    let broken = |rule, sentence| Violation {
        rule,
        sentence,
        command: None,
    };
    for (order, is_dead) in
        (snapshot.reserved.iter().map(|order| (order, false))).chain(snapshot.dead.iter().map(|order| (order, true)))
    {
        match ends.get_mut(&**order) {
            Some((reserved, dead)) => *(if is_dead { dead } else { reserved }) += 1,
            None => violations.push(broken("OUT-3", format!("{order} was told of, and is not there"))),
        }
    }
    violations.extend(ends.iter().filter_map(|(order, end)| match end {
        (1, 0) | (0, 1) => None,
        (0, 0) => Some(broken("OUT-2", format!("nobody has heard of {order}"))),
        (reserved, dead) => Some(broken(
            "OUT-4",
            format!("{order} has reserved its stock {reserved} times, and was given up {dead} times"),
        )),
    }));
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
        let Some(number) = numbers.get(&identity) else {
            violations.push(Violation {
                rule: "IDEM-4",
                sentence: format!("nobody has used the key of {key:?}"),
                command: None,
            });
            continue;
        };
        if cases[*number].key.replace(key).is_some() {
            violations.push(Violation {
                rule: "IDEM-1",
                sentence: "its key is stored twice".to_owned(),
                command: Some(*number),
            });
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

#[cfg(test)]
mod tests;
