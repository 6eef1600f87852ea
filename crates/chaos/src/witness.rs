//! What really happened: a run in which nothing went wrong proves nothing.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use steadfast::testing::WorkPoint;
use steadfast::testing::proxy::{Answer as Told, Fault, Fired};

use crate::accidents::DOOMS;
use crate::broker::{Arrived, Broker};
use crate::error::{Context, Result};
use crate::history::{Answer, Attempt, Ended, History, Purpose};
use crate::options::{Amounts, Database, Kind};
use crate::scene::Scene;
use crate::sent;
use crate::shop::Shop;
use crate::snapshot::Snapshot;
use crate::trade::Trade;

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
pub(crate) fn count(
    scene: &Scene,
    history: &History,
    snapshot: &Snapshot,
    arrived: &[(Broker, Arrived)],
    trade: &Trade,
) -> Result<Vec<Witness>> {
    let log = Log::read(scene.processes())?;
    let mut seen = Seen {
        kind: scene.kind,
        database: scene.database,
        witnesses: Vec::new(),
    };
    seen.see("commands", scene.finished(), scene.amounts.commands);
    match scene.kind {
        Kind::Command => see_commands(&mut seen, scene, history, snapshot, &log),
        Kind::Outbox => see_outbox(&mut seen, scene, snapshot, arrived, &log),
        Kind::Inbox => see_inbox(&mut seen, scene, trade, &log)?,
    }
    Ok(seen.witnesses)
}

/// What a run that is about commands should have seen.
fn see_commands(seen: &mut Seen, scene: &Scene, history: &History, snapshot: &Snapshot, log: &Log) {
    see_answers(seen, history);
    seen.see("payments made again after their retention", made_again(snapshot), 1);
    seen.see("keys purged", log.purged(), 1);
    see_shops(seen, scene, log);
    seen.see("events that reserved stock", snapshot.reserved.len() as u64, 1);
    seen.see(
        "deliveries taken over from the dead",
        snapshot.taken_over,
        scene.amounts.kills.min(1),
    );
    if scene.database == Database::Postgres {
        see_wires(seen, scene, log);
    }
}

/// What a run that is about the outbox should have seen.
fn see_outbox(seen: &mut Seen, scene: &Scene, snapshot: &Snapshot, arrived: &[(Broker, Arrived)], log: &Log) {
    let Amounts {
        kills, broker_kills, ..
    } = scene.amounts;
    let published = &snapshot.published;
    seen.see("messages published", published.ids.len() as u64, 1);
    seen.see("kills of shops and workers", scene.kills(), kills);
    for point in WorkPoint::ALL.map(WorkPoint::as_str) {
        let words = format!("the lab kills this process point=\"{point}\"");
        seen.see(format!("kills {point}"), log.lines_with(&words), kills.min(1));
    }
    seen.see(
        "deliveries taken over from the dead",
        published.failed("lease_expired"),
        kills.min(1),
    );
    for ((broker, _), killed) in scene.brokers.iter().zip(&scene.tally.broker_kills) {
        let killed = killed.load(Ordering::Relaxed);
        seen.see(
            format!("kills of {broker:?}"),
            killed,
            broker_kills / Broker::ALL.len() as u64,
        );
    }
    let was_away = log.lines_with("a sink cannot be reached");
    seen.see("times that a sink found its broker away", was_away, broker_kills.min(1));
    let is_back = log.lines_with("a sink can be reached again");
    seen.see("times that a sink found it back", is_back, broker_kills.min(1));
    seen.see(
        "attempts unconfirmed",
        published.failed("unconfirmed"),
        broker_kills.min(1),
    );
    seen.see("messages sent twice, with a cause", sent::twice(arrived), kills.min(1));
}

/// What a run that is about the inbox should have seen.
fn see_inbox(seen: &mut Seen, scene: &Scene, trade: &Trade, log: &Log) -> Result<()> {
    let Amounts {
        kills, broker_kills, ..
    } = scene.amounts;
    seen.see("orders reserved", trade.reserved.len() as u64, 1);
    seen.see("orders shown as reserved", trade.shown.len() as u64, 1);
    seen.see("kills of shops and warehouses", scene.kills(), kills);
    for (whose, processes) in [("shops", &scene.shops), ("warehouses", &scene.warehouses)] {
        let log = Log::read(processes.iter())?;
        for point in WorkPoint::INBOX.map(WorkPoint::as_str) {
            let words = format!("the lab kills this process point=\"{point}\"");
            seen.see(format!("{whose} killed {point}"), log.lines_with(&words), kills.min(1));
        }
        let restarts = processes.iter().map(Shop::restarts).sum();
        seen.see(format!("restarts of {whose} in order"), restarts, 0);
    }
    for point in [WorkPoint::AfterHandler, WorkPoint::BeforeFinish].map(WorkPoint::as_str) {
        let words = format!("the lab kills this process point=\"{point}\"");
        seen.see(format!("kills {point}"), log.lines_with(&words), kills.min(1));
    }
    let killed = scene.broker_kills();
    seen.see("kills of the broker", killed, broker_kills);
    // NATS is back before most have noticed.
    let noticed = match scene.brokers.first() {
        Some((Broker::Nats, _)) => 0,
        _ => broker_kills.min(1),
    };
    let was_away = log.lines_with("nothing can be received from a source");
    seen.see("times that a source found its broker away", was_away, noticed);
    let is_back = log.lines_with("messages are received from a source again");
    seen.see("times that a source found it back", is_back, noticed);
    let again = log.lines_with("messages came again that were handled before");
    seen.see("times that messages came again and were dropped", again, kills.min(1));
    let kept = trade.kept.len() as u64;
    seen.see("messages handed out again and kept", kept, kills.min(1));
    let taken_over = trade.taken_over.len() as u64;
    seen.see("deliveries taken over from the dead", taken_over, kills.min(1));
    if scene.database == Database::Postgres {
        see_wires(seen, scene, log);
        let away = log.lines_with("messages from elsewhere cannot be handled for now");
        seen.see(
            "times that the database was away from messages",
            away,
            scene.amounts.crashes.min(1),
        );
    }
    Ok(())
}

/// Witnesses as they are found.
struct Seen {
    kind: Kind,
    database: Database,
    witnesses: Vec<Witness>,
}

impl Seen {
    fn see(&mut self, name: impl Into<String>, count: u64, least: u64) {
        self.witnesses.push(Witness {
            chaos: self.kind.name(),
            database: self.database.name(),
            witness: name.into(),
            count,
            least,
            holds: count >= least,
        });
    }
}

/// What the clients did and heard.
fn see_answers(seen: &mut Seen, history: &History) {
    let attempts = |is_it: &dyn Fn(&Attempt) -> bool| history.attempts.iter().filter(|a| is_it(a)).count() as u64;
    let answers = |is_it: &dyn Fn(&Answer) -> bool| attempts(&|attempt| attempt.answer().is_some_and(is_it));
    let problems = |status: u16, code: &str| {
        let code = Some(code);
        answers(&|answer| answer.status == status && answer.code.as_deref() == code)
    };
    let (found, executed) = after_lost_answers(history);
    for (name, count) in [
        ("requests", attempts(&|_| true)),
        (
            "requests sent twice at once",
            attempts(&|attempt| attempt.purpose == Purpose::Double),
        ),
        ("keys shared by users or operations", shared_keys(history)),
        ("replays", answers(&|answer| answer.is_replayed)),
        ("409 in flight", problems(409, "SF103")),
        ("422 another body", problems(422, "SF104")),
        ("503 not now", answers(&|answer| answer.status == 503)),
        ("answers lost", attempts(&|attempt| attempt.answer().is_none())),
        ("answers lost, then replayed", found),
        ("answers lost, then executed", executed),
        ("handlers that panicked", problems(500, "SF029")),
        ("handlers that failed transiently", problems(503, "lab_transient")),
        ("handlers that failed definitively", problems(422, "lab_definitive")),
    ] {
        seen.see(name, count, 1);
    }
}

/// What happened to the processes.
fn see_shops(seen: &mut Seen, scene: &Scene, log: &Log) {
    let kills = scene.amounts.kills;
    seen.see("kills", scene.kills(), kills);
    for doom in DOOMS {
        let point = doom.trim_start_matches("kill=");
        let words = format!("the lab kills this process point=\"{point}\"");
        seen.see(format!("kills {point}"), log.lines_with(&words), kills.min(1));
    }
    let restarts = scene.shops.iter().map(Shop::restarts).sum();
    seen.see("restarts in order", restarts, kills.min(1));
}

/// What happened to the server and to the connections to it, and what Steadfast made of it.
fn see_wires(seen: &mut Seen, scene: &Scene, log: &Log) {
    let Amounts {
        kills, crashes, cuts, ..
    } = scene.amounts;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let fired = scene.fired();
    let happened = |is_it: &dyn Fn(&Fired) -> bool| fired.iter().filter(|fired| is_it(fired)).count() as u64;
    seen.see("crashes of PostgreSQL", count(&scene.tally.crashes), crashes);
    seen.see(
        "cuts of all connections",
        count(&scene.tally.connection_cuts),
        kills.min(1),
    );
    seen.see("black holes", count(&scene.tally.black_holes), kills.min(1));
    seen.see("COMMITs with an accident", fired.len() as u64, cuts);
    for (name, count) in [
        (
            "cut before COMMIT",
            happened(&|fired| fired.fault == Fault::CutBeforeCommit),
        ),
        (
            "cut after COMMIT",
            happened(&|fired| fired.fault == Fault::CutAfterCommit),
        ),
        (
            "reply to COMMIT swallowed",
            happened(&|fired| fired.fault == Fault::SwallowCommitReply),
        ),
        (
            "committed without a reply",
            happened(&|fired| fired.answer == Told::Committed),
        ),
        (
            "commits resolved as committed",
            log.lines_with("resolved=\"committed\""),
        ),
        ("commits resolved as aborted", log.lines_with("resolved=\"aborted\"")),
        ("handlers run again", log.lines_with("failed, is tried again")),
    ] {
        seen.see(name, count, cuts.min(1));
    }
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
struct Log(String);

impl Log {
    fn read<'s>(shops: impl Iterator<Item = &'s Shop>) -> Result<Self> {
        let mut text = String::new();
        for shop in shops {
            let bytes = std::fs::read(&shop.log).context(shop.log.display())?;
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
        Ok(Self(text))
    }

    fn lines_with(&self, words: &str) -> u64 {
        self.0.lines().filter(|line| line.contains(words)).count() as u64
    }

    fn purged(&self) -> u64 {
        let keys = |line: &str| {
            let (_, keys) = line.split_once("what has expired was purged keys=")?;
            keys.split(' ').next()?.trim().parse::<u64>().ok()
        };
        self.0.lines().filter_map(keys).sum()
    }
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
