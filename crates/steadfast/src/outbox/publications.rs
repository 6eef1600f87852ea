//! What was published in a transaction and is not written yet.

use uuid::Uuid;

use super::message::{MessageId, NewMessage};
use crate::error::{Code, Error, Result};
use crate::steadfast::Steadfast;
use crate::store::Database;

/// How many events one transaction may publish: they are written by one statement and held in memory until then.
const EVENTS_MAX: usize = 1_000;

/// How many of them may have ordering keys of their own: each is a lock that the server has to remember until the commit.
const ORDERING_KEYS_MAX: usize = 500;

/// What was published in a transaction, in order. A savepoint that is rolled back takes what came after it along.
#[derive(Debug, Default)]
pub(crate) struct Publications {
    /// To be written.
    pub(crate) messages: Vec<NewMessage>,
    /// To be handed to this process after the commit.
    pub(crate) in_process: Vec<NewMessage>,
    ordering_keys: usize,
}

/// How much was published at some moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    messages: usize,
    in_process: usize,
    ordering_keys: usize,
}

impl Publications {
    pub(crate) fn add(&mut self, message: NewMessage, is_in_process: bool) -> Result<MessageId> {
        let id = MessageId::of(message.id);
        if self.messages.len() + self.in_process.len() >= EVENTS_MAX {
            return Err(too_many(format!(
                "a transaction publishes at most {EVENTS_MAX} events; publish in several, or one event that stands for many"
            )));
        }
        if message.ordering_key.is_some() {
            self.ordering_keys += 1;
        }
        if self.ordering_keys > ORDERING_KEYS_MAX {
            return Err(too_many(format!(
                "a transaction publishes at most {ORDERING_KEYS_MAX} events with ordering keys; publish in several"
            )));
        }
        match is_in_process {
            true => self.in_process.push(message),
            false => self.messages.push(message),
        }
        Ok(id)
    }

    /// The jobs that belong to a batch, and to which.
    pub(crate) fn members(&self) -> Vec<(Uuid, Uuid)> {
        let members = self.messages.iter();
        members
            .filter_map(|message| Some((message.id, message.batch?)))
            .collect()
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark {
            messages: self.messages.len(),
            in_process: self.in_process.len(),
            ordering_keys: self.ordering_keys,
        }
    }

    /// Forgets what was published since.
    pub(crate) fn go_back(&mut self, mark: Mark) {
        self.messages.truncate(mark.messages);
        self.in_process.truncate(mark.in_process);
        self.ordering_keys = mark.ordering_keys;
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn too_many(message: String) -> Error {
    Error::new(Code::EventInvalid, message)
}

/// What was published in a transaction of yours: [`Caller::publish`](crate::Caller::publish).
#[derive(Debug)]
pub struct Published<Db: Database> {
    id: Uuid,
    steadfast: Steadfast<Db>,
}

impl<Db: Database> Published<Db> {
    pub(crate) fn new(id: Uuid, steadfast: Steadfast<Db>) -> Self {
        Self { id, steadfast }
    }

    /// Identifies the message.
    pub fn id(&self) -> MessageId {
        MessageId::of(self.id)
    }

    /// Call it after your commit, and the event is delivered at once; without it, within two seconds.
    pub fn wake(&self) {
        self.steadfast.rows_were_committed();
    }
}
