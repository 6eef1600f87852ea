//! What really happened: a run in which nothing went wrong proves nothing.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use serde::Serialize;
use steadfast::testing::proxy::{Answer, Fault};

use crate::accidents::DOOMS;
use crate::error::{Context, Result};
use crate::history::{Attempt, Ended, History, Purpose};
use crate::options::Database;
use crate::scene::Scene;
use crate::shop::Shop;
use crate::snapshot::Snapshot;

/// Something that must have happened, and how often it did. Its JSON is the public form of a result: fields are added,
/// never renamed.
#[derive(Debug, Serialize)]
pub(crate) struct Witness {
    chaos: &'static str,
    database: &'static str,
    witness: String,
    count: u64,
    least: u64,
    holds: bool,
}

impl Witness {
    pub(crate) fn name(&self) -> &str {
        &self.witness
    }

    pub(crate) fn holds(&self) -> bool {
        self.holds
    }
}

/// Counts everything that a run should have seen.
pub(crate) fn count(scene: &Scene, history: &History, snapshot: &Snapshot) -> Result<Vec<Witness>> {
    let log = read_logs(scene)?;
    let amounts = scene.amounts;
    let mut witnesses = Vec::new();
    let mut see = |name: &str, count: u64, least: u64| {
        witnesses.push(Witness {
            chaos: "command",
            database: scene.database.name(),
            witness: name.to_owned(),
            count,
            least,
            holds: count >= least,
        });
    };
    see("commands", scene.finished(), amounts.commands);
    let attempts = |is_it: &dyn Fn(&Attempt) -> bool| history.attempts.iter().filter(|a| is_it(a)).count() as u64;
    see("requests", attempts(&|_| true), 1);
    let answers = |status: u16, code: &str| {
        attempts(&|attempt| {
            attempt
                .answer()
                .is_some_and(|answer| answer.status == status && answer.code.as_deref() == Some(code))
        })
    };
    let is_replay = |attempt: &Attempt| attempt.answer().is_some_and(|answer| answer.is_replayed);
    see("replays", attempts(&is_replay), 1);
    see("doubles", attempts(&|attempt| attempt.purpose == Purpose::Double), 1);
    see("keys shared by users or operations", shared_keys(history), 1);
    see("409 in flight", answers(409, "SF103"), 1);
    see("422 another body", answers(422, "SF104"), 1);
    see(
        "503 not now",
        attempts(&|attempt| attempt.answer().is_some_and(|answer| answer.status == 503)),
        1,
    );
    see(
        "answers lost",
        attempts(&|attempt| matches!(attempt.ended, Ended::Lost(_))),
        1,
    );
    let (found, executed) = after_lost_answers(history);
    see("answers lost, then replayed", found, 1);
    see("answers lost, then executed", executed, 1);
    see("handlers that panicked", answers(500, "SF029"), 1);
    see("handlers that failed transiently", answers(503, "lab_transient"), 1);
    see("handlers that failed definitively", answers(422, "lab_definitive"), 1);
    see("payments made again after their retention", made_again(snapshot), 1);
    see("keys purged", log.purged, 1);

    see("kills", scene.kills(), amounts.kills);
    for doom in DOOMS {
        let point = doom.trim_start_matches("kill=");
        let kills = log.lines_with(&format!("the lab kills this process point=\"{point}\""));
        see(&format!("kills {point}"), kills, 1);
    }
    see("restarts in order", scene.shops.iter().map(Shop::restarts).sum(), 1);
    if scene.database == Database::Sqlite {
        return Ok(witnesses);
    }
    see(
        "crashes of PostgreSQL",
        scene.tally.crashes.load(Ordering::Relaxed),
        amounts.crashes,
    );
    let fired = scene.fired();
    let cuts = |fault: Fault| fired.iter().filter(|fired| fired.fault == fault).count() as u64;
    see("COMMITs with an accident", fired.len() as u64, amounts.cuts);
    see("cut before COMMIT", cuts(Fault::CutBeforeCommit), 1);
    see("cut after COMMIT", cuts(Fault::CutAfterCommit), 1);
    see("reply to COMMIT swallowed", cuts(Fault::SwallowCommitReply), 1);
    let committed = fired.iter().filter(|fired| fired.answer == Answer::Committed).count();
    see("committed without a reply", committed as u64, 1);
    see(
        "commits resolved as committed",
        log.lines_with("resolved=\"committed\""),
        1,
    );
    see("commits resolved as aborted", log.lines_with("resolved=\"aborted\""), 1);
    see("handlers run again", log.lines_with("command runs again"), 1);
    see(
        "cuts of all connections",
        scene.tally.connection_cuts.load(Ordering::Relaxed),
        1,
    );
    see("black holes", scene.tally.black_holes.load(Ordering::Relaxed), 1);
    Ok(witnesses)
}

fn shared_keys(history: &History) -> u64 {
    history.commands.iter().filter(|command| !command.has_own_key()).count() as u64
}

/// Episodes in which an answer was lost before any was heard: how many then found it, and how many had it done.
fn after_lost_answers(history: &History) -> (u64, u64) {
    let (mut lost, mut found, mut executed) = (HashSet::new(), 0, 0);
    let asking = history
        .attempts
        .iter()
        .filter(|attempt| attempt.purpose == Purpose::Ask);
    for attempt in asking {
        match &attempt.ended {
            Ended::Lost(_) => drop(lost.insert(attempt.episode)),
            Ended::Answered(answer) if answer.is_success() && lost.remove(&attempt.episode) => {
                *(if answer.is_replayed { &mut found } else { &mut executed }) += 1;
            }
            Ended::Answered(_) => {}
        }
    }
    (found, executed)
}

fn made_again(snapshot: &Snapshot) -> u64 {
    let mut counts: HashMap<_, u64> = HashMap::new();
    for effect in &snapshot.effects {
        *counts.entry((&effect.mark, &effect.owner)).or_default() += 1;
    }
    counts.values().map(|count| count - 1).sum()
}

/// What the shops have logged. Their metrics die with them, their logs do not.
struct Log {
    text: String,
    purged: u64,
}

impl Log {
    fn lines_with(&self, words: &str) -> u64 {
        self.text.lines().filter(|line| line.contains(words)).count() as u64
    }
}

fn read_logs(scene: &Scene) -> Result<Log> {
    let mut text = String::new();
    for shop in &scene.shops {
        let bytes = std::fs::read(&shop.log).context(shop.log.display())?;
        text.push_str(&String::from_utf8_lossy(&bytes));
    }
    let keys = |line: &str| {
        line.split_once("expired keys were purged keys=")?
            .1
            .trim()
            .parse::<u64>()
            .ok()
    };
    let purged = text.lines().filter_map(keys).sum();
    Ok(Log { text, purged })
}

/// The witnesses for people.
pub(crate) fn table(witnesses: &[Witness]) -> String {
    let width = witnesses.iter().map(|witness| witness.witness.len()).max().unwrap_or(0);
    let line = |witness: &Witness| {
        let Witness {
            witness,
            count,
            least,
            holds,
            ..
        } = witness;
        let verdict = if *holds { "✓" } else { "✗" };
        format!("{witness:width$}  {count:>8}  ≥ {least:<7}  {verdict}\n")
    };
    witnesses.iter().map(line).collect()
}

/// One line, without its end.
pub(crate) fn to_json(witness: &Witness) -> serde_json::Result<String> {
    serde_json::to_string(witness)
}
