//! The promises, each as a question to one case. A sentence is what is wrong.

use std::collections::HashMap;
use std::time::Duration;

use super::Case;
use crate::history::{Answer, Attempt, Made, Micros, Purpose};

/// Name and question.
pub(super) type Rule = (&'static str, fn(&Case<'_>) -> Option<String>);

pub(super) const RULES: &[Rule] = &[
    ("IDEM-1", one_effect_within_retention),
    ("IDEM-2", one_answer_for_one_effect),
    ("IDEM-3", acknowledged_is_there),
    ("IDEM-4", effect_where_its_key_is),
    ("IDEM-5", mutated_is_refused),
    ("IDEM-6", answers_are_ones_own),
    ("IDEM-9", settled_in_time),
    ("answers", no_answer_is_a_surprise),
];

/// How long a client may have to ask on when everything works again.
const SETTLED_WITHIN: Duration = Duration::from_secs(5);

/// An effect is dated by the beginning of its transaction, which is a little before its claim asked what has expired.
const DATING: Duration = Duration::from_millis(300);

impl<'a> Case<'a> {
    /// Attempts with an answer of success, in the order they ended.
    fn successes(&self) -> impl Iterator<Item = (&'a Attempt, &'a Answer)> {
        let answered = self
            .attempts
            .iter()
            .filter_map(|attempt| Some((*attempt, attempt.answer()?)));
        answered.filter(|(_, answer)| answer.is_success())
    }

    /// Whether the retention is over before the run is.
    fn is_forgotten(&self) -> bool {
        self.command.operation.retention() < Duration::from_secs(60 * 60)
    }

    fn has_effect(&self, id: &str) -> bool {
        self.effects.iter().any(|effect| effect.id == id)
    }
}

/// Two effects of one key are at least a retention apart, by the clock of the database.
fn one_effect_within_retention(case: &Case<'_>) -> Option<String> {
    let least = case.command.operation.retention().saturating_sub(DATING).as_millis() as i64;
    let pairs = case.effects.windows(2);
    let mut too_near = pairs.filter(|pair| pair[1].at_ms - pair[0].at_ms < least);
    too_near.next().map(|pair| {
        let apart = pair[1].at_ms - pair[0].at_ms;
        format!("made {} and {}, {apart} ms apart", pair[0].id, pair[1].id)
    })
}

/// All answers that tell of one effect are the same bytes; one at most says that it is the first, and none of those
/// that were asked for after another was heard.
fn one_answer_for_one_effect(case: &Case<'_>) -> Option<String> {
    let mut groups: HashMap<&str, Vec<(&Attempt, &Answer)>> = HashMap::new();
    for (attempt, answer) in case.successes() {
        // Within its retention a command has one answer, whatever that tells.
        let id = answer
            .made
            .as_ref()
            .filter(|_| case.is_forgotten())
            .map_or("", |made| &made.id);
        groups.entry(id).or_default().push((attempt, answer));
    }
    groups.values().find_map(|group| {
        if group.iter().any(|(_, answer)| answer.hash != group[0].1.hash) {
            return Some("answered in different ways".to_owned());
        }
        let fresh = || group.iter().filter(|(_, answer)| !answer.is_replayed);
        if fresh().count() > 1 {
            return Some("executed more than once, by its own answers".to_owned());
        }
        let heard = group.iter().map(|(attempt, _)| attempt.to).min()?;
        fresh()
            .any(|(attempt, _)| attempt.from > heard)
            .then(|| "answered a repetition without Idempotent-Replayed".to_owned())
    })
}

fn acknowledged_is_there(case: &Case<'_>) -> Option<String> {
    case.successes().find_map(|(_, answer)| match &answer.made {
        Some(made) if case.has_effect(&made.id) => None,
        Some(made) => Some(format!("answered with {}, which is not in the database", made.id)),
        None => Some("answered with a success that names nothing".to_owned()),
    })
}

/// Each key tells of an effect that is there; each effect has its key, as long as that is kept.
fn effect_where_its_key_is(case: &Case<'_>) -> Option<String> {
    if let Some(key) = case.key
        && !key.id.as_ref().is_some_and(|id| case.has_effect(id))
    {
        return Some(format!("the key tells of {:?}, which is not in the database", key.id));
    }
    let is_kept = |id: &str| case.key.is_some_and(|key| key.is_live && key.id.as_deref() == Some(id));
    let mut without = case
        .effects
        .iter()
        .filter(|effect| !case.is_forgotten() && !is_kept(&effect.id));
    without
        .next()
        .map(|effect| format!("made {}, and no key tells of it", effect.id))
}

fn mutated_is_refused(case: &Case<'_>) -> Option<String> {
    let mut mutated = case
        .successes()
        .filter(|(attempt, _)| attempt.purpose == Purpose::Mutate);
    mutated
        .next()
        .map(|_| "answered another body with a success".to_owned())
}

/// What an answer tells of belongs to the one who asked, and to what he asked for.
fn answers_are_ones_own(case: &Case<'_>) -> Option<String> {
    let (user, mark) = (case.command.user, case.command.mark.write());
    let is_foreign = |made: &&Made| made.user != user || made.mark != mark;
    let mut answers = case.successes().filter_map(|(_, answer)| answer.made.as_ref());
    let foreign = answers.find(is_foreign)?;
    Some(format!("answered with what was made for somebody else: {foreign:?}"))
}

/// Every episode comes to a final answer, and soon once everything works.
fn settled_in_time(case: &Case<'_>) -> Option<String> {
    let mut episodes: HashMap<u64, (Micros, Option<Micros>)> = HashMap::new();
    for attempt in &case.attempts {
        let (from, settled) = episodes.entry(attempt.episode).or_insert((attempt.from, None));
        *from = attempt.from.min(*from);
        if attempt.is_final() {
            *settled = Some(attempt.to);
        }
    }
    let bound = SETTLED_WITHIN.as_micros() as Micros;
    episodes.iter().find_map(|(episode, (from, settled))| match settled {
        Some(settled) if *settled <= case.calm.max(*from).saturating_add(bound) => None,
        Some(settled) => {
            let late = (settled - case.calm.max(*from)) as f64 / 1e6;
            Some(format!(
                "episode {episode} had its answer {late:.1} s after everything worked"
            ))
        }
        None => Some(format!("episode {episode} has no final answer")),
    })
}

/// Only what may be: done, in flight, not now; a refusal of another body; and what the lab was asked for.
fn no_answer_is_a_surprise(case: &Case<'_>) -> Option<String> {
    let is_expected = |attempt: &Attempt, answer: &Answer| match answer.status {
        201 | 409 | 503 => true,
        422 if attempt.purpose == Purpose::Mutate => answer.code.as_deref() == Some("SF104"),
        422 => attempt.fault == Some("fail=definitive"),
        500 => attempt.fault == Some("panic"),
        _ => false,
    };
    case.attempts.iter().find_map(|attempt| {
        let answer = attempt.answer()?;
        (!is_expected(attempt, answer)).then(|| format!("answered {} ({:?})", answer.status, answer.code))
    })
}
