//! What has passed, and what has happened to it.

use std::sync::Arc;

use super::fault::{Answer, Armed, Fault, Fired};
use super::sql::{Kind, Statement};

/// How many statements are kept to be shown: more than any test reads, and no burden for a run of days.
const STATEMENTS_MAX: usize = 10_000;

/// How many faults are kept: more than a chaos run of a day fires.
const FIRED_MAX: usize = 100_000;

/// How much has passed through a proxy since it was started, or since its counts were reset.
///
/// What goes to the server is counted when it has been handed to the server, and before the answer to it is handed
/// to the client. So a client that has its answer finds itself counted in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// How often clients have spoken after having been answered: once per question, however many messages it has.
    ///
    /// A round trip begins with the first message that a client sends after something of the server's last answer
    /// has been handed to it. Messages that arrive together are one, even if the server answers the first of them
    /// earlier. Start-up with its authentication is none, nor is a client's good-bye, and what the server says
    /// unasked (notices, notifications, changed parameters) begins none.
    pub round_trips: u64,
    /// Statements sent: each one of a simple query, and each execution of a prepared one.
    pub statements: u64,
    /// Statements that begin a transaction.
    pub begins: u64,
    /// Statements `COMMIT` or `END`.
    pub commits: u64,
    /// Statements that roll a whole transaction back.
    pub rollbacks: u64,
    /// Prepared statements parsed. With sqlx each costs a round trip of its own.
    pub parses: u64,
    /// Questions that ask only whether the server is there: a Sync without anything to synchronise.
    ///
    /// Each is also a round trip, unless it came together with something else. A pool of sqlx sends one when a
    /// connection is taken and one when it is given back.
    pub pings: u64,
    /// Connections whose start-up has gone to the server.
    pub connections: u64,
    /// Requests to cancel a statement.
    pub cancels: u64,
    /// Bytes handed to the server.
    pub bytes_up: u64,
    /// Bytes of the server handed to clients.
    pub bytes_down: u64,
    /// Faults that have happened.
    pub fired: u64,
    /// Those of them whose answer is final. A [`Fault::CutBeforeCommit`] is settled when it happens.
    pub settled: u64,
}

impl Counts {
    pub(super) fn add_statement(&mut self, kind: Kind) {
        self.statements += 1;
        match kind {
            Kind::Begin => self.begins += 1,
            Kind::Commit => self.commits += 1,
            Kind::Rollback => self.rollbacks += 1,
            Kind::Other => {}
        }
    }

    fn add(&mut self, more: &Self) {
        self.round_trips += more.round_trips;
        self.statements += more.statements;
        self.begins += more.begins;
        self.commits += more.commits;
        self.rollbacks += more.rollbacks;
        self.parses += more.parses;
        self.pings += more.pings;
        self.connections += more.connections;
        self.cancels += more.cancels;
        self.bytes_up += more.bytes_up;
        self.bytes_down += more.bytes_down;
        self.fired += more.fired;
        self.settled += more.settled;
    }
}

/// Something that was sent, to be recorded once it has been handed on.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) counts: Counts,
    pub(super) statements: Vec<Arc<Statement>>,
}

impl Sent {
    pub(super) fn append(&mut self, more: Self) {
        self.counts.add(&more.counts);
        self.statements.extend(more.statements);
    }

    pub(super) fn add_statement(&mut self, statement: Arc<Statement>) {
        self.counts.add_statement(statement.kind);
        self.statements.push(statement);
    }
}

/// Where a fault stands in the record, as long as the record is not reset.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    resets: u64,
    at: usize,
}

/// All that a proxy knows, and what it is to do.
#[derive(Default)]
pub(super) struct Record {
    pub(super) counts: Counts,
    pub(super) statements: Vec<Arc<Statement>>,
    pub(super) fired: Vec<Fired>,
    pub(super) armed: Armed,
    resets: u64,
}

impl Record {
    pub(super) fn add(&mut self, sent: Sent) {
        self.counts.add(&sent.counts);
        let room = STATEMENTS_MAX.saturating_sub(self.statements.len());
        self.statements.extend(sent.statements.into_iter().take(room));
    }

    pub(super) fn fire(&mut self, fault: Fault, connection: u64, backend: Option<i32>) -> Entry {
        let answer = match fault {
            Fault::CutBeforeCommit => Answer::NotAsked,
            Fault::CutAfterCommit | Fault::SwallowCommitReply => Answer::Awaited,
        };
        self.counts.fired += 1;
        self.counts.settled += u64::from(answer.is_settled());
        let (resets, at) = (self.resets, self.fired.len());
        if at < FIRED_MAX {
            self.fired.push(Fired {
                fault,
                connection,
                backend,
                answer,
            });
        }
        Entry { resets, at }
    }

    pub(super) fn settle(&mut self, entry: Entry, answer: Answer) {
        if entry.resets == self.resets {
            self.counts.settled += 1;
            if let Some(fired) = self.fired.get_mut(entry.at) {
                fired.answer = answer;
            }
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Self {
            armed: std::mem::take(&mut self.armed),
            resets: self.resets + 1,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_comes_after_a_reset_changes_nothing() {
        let mut record = Record::default();
        let before = record.fire(Fault::CutAfterCommit, 1, None);
        record.reset();
        let after = record.fire(Fault::CutAfterCommit, 2, Some(7));
        record.settle(before, Answer::Committed);
        assert_eq!((record.counts.fired, record.counts.settled), (1, 0));
        assert_eq!(record.fired[0].answer, Answer::Awaited);
        record.settle(after, Answer::RolledBack);
        assert_eq!(record.counts.settled, 1);
        assert_eq!(record.fired[0].answer, Answer::RolledBack);
    }

    #[test]
    fn the_record_is_bounded_and_goes_on_counting() {
        let mut record = Record::default();
        for _ in 0..STATEMENTS_MAX + 5 {
            let mut sent = Sent::default();
            sent.add_statement(Arc::new(Statement::new("COMMIT".to_owned())));
            record.add(sent);
        }
        assert_eq!(record.statements.len(), STATEMENTS_MAX);
        assert_eq!(record.counts.commits, STATEMENTS_MAX as u64 + 5);
    }
}
