//! What the clients did and heard, and what happened around them: only ever added to.
//!
//! It is kept in memory for the checker, and written to a file as it grows, for whoever has to understand a failure.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::{Context, Result};

/// Microseconds since the run began.
pub(crate) type Micros = u64;

/// The shop's users and their tenants; a user is also a token.
pub(crate) const USERS: [(&str, &str); 3] = [("user-a", "tenant-1"), ("user-b", "tenant-1"), ("user-c", "tenant-2")];

/// What a client can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Operation {
    Order,
    Payment,
}

impl Operation {
    /// As it is stored with the keys.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Order => "orders.place",
            Self::Payment => "payments.make",
        }
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Order => "/orders",
            Self::Payment => "/payments",
        }
    }

    /// How long the shops keep an answer. That of a payment is forgotten while its clients still ask: the storm of the
    /// purge.
    pub(crate) fn retention(self) -> Duration {
        match self {
            Self::Order => Duration::from_secs(24 * 60 * 60),
            Self::Payment => Duration::from_secs(1),
        }
    }
}

/// One wish of one user: a key.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Command {
    pub(crate) number: usize,
    pub(crate) user: &'static str,
    pub(crate) operation: Operation,
    /// Other users, and the other operation, may use the same value.
    pub(crate) key: String,
    /// Its own, or that of another user's command with the same key: then both have sent the same bytes.
    pub(crate) mark: Mark,
}

impl Command {
    /// Whether its key was fresh, or somebody else's.
    pub(crate) fn has_own_key(&self) -> bool {
        self.key == fresh_key(self.number)
    }
}

fn fresh_key(number: usize) -> String {
    format!("key-{number}")
}

/// A word that a command leaves in what it makes, so that everything made says what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mark {
    Of(usize),
    /// Of a retry with the same key and another body, which must never make anything.
    OfMutated(usize),
}

impl Mark {
    pub(crate) fn write(self) -> String {
        match self {
            Self::Of(number) => format!("command-{number}"),
            Self::OfMutated(number) => format!("mutated-{number}"),
        }
    }

    pub(crate) fn read(text: &str) -> Option<Self> {
        let (kind, number) = text.split_once('-')?;
        let number = number.parse().ok()?;
        match kind {
            "command" => Some(Self::Of(number)),
            "mutated" => Some(Self::OfMutated(number)),
            _ => None,
        }
    }
}

/// Why a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    /// To have the command done.
    Ask,
    /// At the same time as another one.
    Double,
    /// Although the answer is known.
    Repeat,
    /// With another body.
    Mutate,
}

/// One request and what came of it. Those of one purpose, until there is a final answer, are an episode.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Attempt {
    pub(crate) command: usize,
    pub(crate) episode: u64,
    pub(crate) purpose: Purpose,
    pub(crate) shop: usize,
    /// What the lab was asked to let happen.
    pub(crate) fault: Option<&'static str>,
    pub(crate) from: Micros,
    pub(crate) to: Micros,
    pub(crate) ended: Ended,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ended {
    Answered(Answer),
    /// Nobody knows, except the database.
    Lost(String),
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) is_replayed: bool,
    /// Of the status, the headers that are stored, and the body.
    pub(crate) hash: u64,
    /// The code of a problem.
    pub(crate) code: Option<String>,
    pub(crate) made: Option<Made>,
}

/// What an answer says was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Made {
    pub(crate) id: String,
    pub(crate) user: String,
    pub(crate) mark: String,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        self.status < 400
    }
}

impl Attempt {
    pub(crate) fn answer(&self) -> Option<&Answer> {
        match &self.ended {
            Ended::Answered(answer) => Some(answer),
            Ended::Lost(_) => None,
        }
    }

    /// Whether the client may stop asking. Not after what says "later", nor after a failure that the lab was asked for.
    pub(crate) fn is_final(&self) -> bool {
        self.answer().is_some_and(|answer| match answer.status {
            409 | 429 | 500.. => false,
            400.. => self.fault.is_none(),
            _ => true,
        })
    }
}

/// Something that was done to the shops, their database or their connections.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Accident {
    pub(crate) at: Micros,
    pub(crate) what: String,
}

#[derive(Default)]
pub(crate) struct History {
    /// Each at the place of its number.
    pub(crate) commands: Vec<Command>,
    /// In the order they ended.
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) accidents: Vec<Accident>,
    /// From here on everything works.
    pub(crate) calm: Option<Micros>,
}

/// A history in the making, shared by everybody.
pub(crate) struct Recorder {
    began: Instant,
    state: Mutex<State>,
}

struct State {
    history: History,
    episodes: u64,
    file: BufWriter<File>,
}

/// A line of the file.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Line<'a> {
    Command(&'a Command),
    Attempt(&'a Attempt),
    Accident(&'a Accident),
}

impl Recorder {
    pub(crate) fn new(path: &Path) -> Result<Self> {
        let file = File::create(path).context(format!("making {}", path.display()))?;
        Ok(Self {
            began: Instant::now(),
            state: Mutex::new(State {
                history: History::default(),
                episodes: 0,
                file: BufWriter::new(file),
            }),
        })
    }

    pub(crate) fn now(&self) -> Micros {
        self.began.elapsed().as_micros() as Micros
    }

    /// A new command, with a fresh key or that of another command.
    pub(crate) fn command(&self, user: &'static str, operation: Operation, twin: Option<&Command>) -> Command {
        let mut state = self.lock();
        let number = state.history.commands.len();
        let same = twin.filter(|twin| twin.operation == operation);
        let command = Command {
            number,
            user,
            operation,
            key: twin.map_or_else(|| fresh_key(number), |twin| twin.key.clone()),
            mark: same.map_or(Mark::Of(number), |twin| twin.mark),
        };
        state.write(&Line::Command(&command));
        state.history.commands.push(command.clone());
        command
    }

    pub(crate) fn episode(&self) -> u64 {
        let mut state = self.lock();
        state.episodes += 1;
        state.episodes
    }

    pub(crate) fn attempt(&self, attempt: Attempt) {
        let mut state = self.lock();
        state.write(&Line::Attempt(&attempt));
        state.history.attempts.push(attempt);
    }

    pub(crate) fn accident(&self, what: impl Into<String>) {
        let accident = Accident {
            at: self.now(),
            what: what.into(),
        };
        let mut state = self.lock();
        state.write(&Line::Accident(&accident));
        state.history.accidents.push(accident);
    }

    /// The accidents are over.
    pub(crate) fn calm(&self) {
        self.accident("calm");
        self.lock().history.calm = Some(self.now());
    }

    /// Ends the file and hands the history over.
    pub(crate) fn finish(&self) -> Result<History> {
        let mut state = self.lock();
        state.file.flush().context("writing the history")?;
        Ok(std::mem::take(&mut state.history))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here is ever half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What cannot be written now cannot be written at the end either, and is told there.
    fn write(&mut self, line: &Line<'_>) {
        let _ = serde_json::to_writer(&mut self.file, line)
            .map_err(Into::into)
            .and_then(|()| self.file.write_all(b"\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        for mark in [Mark::Of(0), Mark::OfMutated(17)] {
            assert_eq!(Mark::read(&mark.write()), Some(mark));
        }
        assert_eq!(Mark::read("tea"), None);
    }
}
