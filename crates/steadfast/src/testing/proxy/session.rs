//! What the two ends of one connection have said to each other, as far as it matters to us.

use std::collections::HashMap;
use std::sync::Arc;

use super::counts::{Entry, Sent};
use super::fault::Answer;
use super::frame::{Message, take_text};
use super::sql::{Statement, split};

/// How many names of one kind are known of a connection. sqlx keeps a hundred; a leak shall not become ours.
const NAMES_MAX: usize = 10_000;

/// A client's good-bye, which is not answered.
const TERMINATE: u8 = b'X';

#[derive(Default)]
pub(super) struct Session {
    statements: HashMap<String, Arc<Statement>>,
    portals: HashMap<String, Arc<Statement>>,
    /// Something that a Sync would end was sent.
    is_amid_group: bool,
    is_started: bool,
    /// How many times the server has still to say that it is ready.
    owed: u64,
    /// The client was handed something of an answer since it last spoke.
    pub(super) has_heard: bool,
    /// Nothing of the server's reaches the client any more.
    pub(super) is_swallowing: bool,
    /// The server's process.
    pub(super) backend: Option<i32>,
    awaited: Option<Awaited>,
}

/// A COMMIT whose answer is for us alone.
struct Awaited {
    entry: Entry,
    /// How many times the server has to say that it is ready until it has answered. It answers before the last.
    owed: u64,
    answer: Option<Answer>,
}

impl Session {
    pub(super) fn start(&mut self) {
        self.owed = 1;
    }

    /// Takes note of what a client says.
    pub(super) fn request(&mut self, message: &Message) -> Sent {
        let mut sent = Sent::default();
        let mut body = message.body();
        if message.tag != TERMINATE && std::mem::take(&mut self.has_heard) {
            sent.counts.round_trips += 1;
        }
        match message.tag {
            b'Q' => {
                self.owed += 1;
                let sql = take_text(&mut body);
                let statements = match message.is_whole {
                    true => split(&sql).into_iter().map(Statement::new).collect(),
                    false => vec![Statement::beginning(sql)],
                };
                for statement in statements {
                    sent.add_statement(Arc::new(statement));
                }
                return sent;
            }
            b'P' => {
                let (name, sql) = (take_text(&mut body), take_text(&mut body));
                let statement = match message.is_whole {
                    true => Statement::new(split(&sql).join("; ")),
                    false => Statement::beginning(sql),
                };
                sent.counts.parses += 1;
                remember(&mut self.statements, name, Arc::new(statement));
            }
            b'B' => {
                let (portal, name) = (take_text(&mut body), take_text(&mut body));
                let statement = self.statements.get(&name).cloned().unwrap_or_else(unknown);
                remember(&mut self.portals, portal, statement);
            }
            b'E' => {
                let statement = self.portals.get(&take_text(&mut body)).cloned();
                sent.add_statement(statement.unwrap_or_else(unknown));
            }
            b'C' => match body.split_off_first() {
                Some(b'S') => drop(self.statements.remove(&take_text(&mut body))),
                _ => drop(self.portals.remove(&take_text(&mut body))),
            },
            b'D' | b'H' => {}
            b'S' => {
                self.owed += 1;
                sent.counts.pings += u64::from(!self.is_amid_group);
                self.is_amid_group = false;
                return sent;
            }
            b'F' => {
                self.owed += 1;
                return sent;
            }
            // Passwords, the contents of a COPY, and whatever may be invented.
            _ => return sent,
        }
        self.is_amid_group = true;
        sent
    }

    /// A Sync of our own was sent.
    pub(super) fn owe_one_more(&mut self) {
        self.owed += 1;
    }

    /// From here on the client hears nothing, and the answer to the COMMIT that was sent last is for us.
    pub(super) fn await_answer(&mut self, entry: Entry) {
        self.is_swallowing = true;
        self.awaited = Some(Awaited {
            entry,
            owed: self.owed,
            answer: None,
        });
    }

    /// Takes note of what the server says. Says what it has answered to the awaited COMMIT, once it has.
    pub(super) fn reply(&mut self, message: &Message) -> Reply {
        let mut body = message.body();
        match message.tag {
            b'K' => self.backend = body.first_chunk().copied().map(i32::from_be_bytes),
            b'C' => self.note(Answer::of(&take_text(&mut body))),
            b'E' => self.note(Some(Answer::Refused)),
            b'Z' => {
                self.is_started = true;
                self.owed = self.owed.saturating_sub(1);
                if let Some(awaited) = &mut self.awaited {
                    awaited.owed = awaited.owed.saturating_sub(1);
                }
            }
            _ => {}
        }
        let settled = self.awaited.take_if(|awaited| awaited.owed == 0);
        Reply {
            // Notifications, notices and changed parameters come unasked.
            is_answer: self.is_started && !matches!(message.tag, b'A' | b'N' | b'S'),
            settled: settled.map(|awaited| (awaited.entry, awaited.answer.unwrap_or(Answer::Lost))),
        }
    }

    pub(super) fn is_awaiting(&self) -> bool {
        self.awaited.is_some()
    }

    /// The server will say nothing more. An error that it sent without being ready again was its last word, and does
    /// not tell on which side of the commit it fell.
    pub(super) fn give_up(&mut self) -> Option<(Entry, Answer)> {
        let awaited = self.awaited.take()?;
        let answer = awaited.answer.filter(|answer| *answer != Answer::Refused);
        Some((awaited.entry, answer.unwrap_or(Answer::Lost)))
    }

    fn note(&mut self, answer: Option<Answer>) {
        if let (Some(awaited), Some(answer)) = (&mut self.awaited, answer)
            && awaited.owed == 1
            && awaited.answer != Some(Answer::Committed)
        {
            awaited.answer = Some(answer);
        }
    }
}

/// What a message of the server means to us.
pub(super) struct Reply {
    pub(super) is_answer: bool,
    pub(super) settled: Option<(Entry, Answer)>,
}

fn remember(names: &mut HashMap<String, Arc<Statement>>, name: String, statement: Arc<Statement>) {
    if names.len() < NAMES_MAX || names.contains_key(&name) {
        names.insert(name, statement);
    }
}

fn unknown() -> Arc<Statement> {
    Arc::new(Statement::new("(unknown statement)".to_owned()))
}
