//! Receiving while others are handled: what a transaction waits for, the next messages need not wait for.
//!
//! A task of its own tells the source of those that were handled, takes what is there already and reads it, and gives the feed back. It
//! decides nothing: no message is acknowledged that the lane has not handed over as handled.

use std::sync::Arc;
use std::time::Duration;

use super::batch::Todo;
use super::consume::{Reading, read};
use super::intake::{AnyFeed, Sourced};
use super::keep::Keep;
use crate::broker::Incoming;
use crate::failure::Failure;
use crate::steadfast::Steadfast;
use crate::store::Database;

/// How long a source may take to hear that messages were handled.
const ACK_LIMIT: Duration = Duration::from_secs(10);

/// Messages that are here and not acknowledged, as their feed knows them.
pub(super) struct Receipts {
    source: Arc<Sourced>,
    all: Vec<u64>,
}

impl Receipts {
    fn of(source: &Arc<Sourced>, messages: &[Incoming]) -> Self {
        source.took(messages.len());
        Self {
            source: source.clone(),
            all: messages.iter().map(Incoming::receipt).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Tells the source that they were handled.
    pub(super) async fn ack(self, feed: &mut dyn AnyFeed) -> Result<(), Failure> {
        let acked = tokio::time::timeout(ACK_LIMIT, feed.ack(&self.all)).await;
        acked.unwrap_or_else(|_| Err(Failure::unknown("unanswered", "it does not answer")))
    }
}

impl Drop for Receipts {
    fn drop(&mut self) {
        self.source.let_go(self.all.len());
    }
}

/// Messages that came together, and what each of them comes to.
pub(super) struct Received<Db: Database> {
    pub(super) receipts: Receipts,
    /// To be handled at once, in one transaction.
    pub(super) now: Vec<Todo<Db>>,
    /// To be kept.
    pub(super) kept: Vec<Keep>,
    pub(super) ignored: u64,
    /// Which ones they are.
    pub(super) items: Vec<uuid::Uuid>,
}

impl<Db: Database> Received<Db> {
    pub(super) fn read(sf: &Steadfast<Db>, source: &Arc<Sourced>, messages: Vec<Incoming>) -> Self {
        let mut received = Self {
            receipts: Receipts::of(source, &messages),
            now: Vec::with_capacity(messages.len()),
            kept: Vec::new(),
            ignored: 0,
            items: Vec::with_capacity(messages.len()),
        };
        for message in messages {
            match read(sf, source, &message) {
                Reading::Todo(todos) => {
                    received.items.extend(todos.first().map(|todo| todo.cx.message().id));
                    for todo in todos {
                        match todo.is_for_now() {
                            true => received.now.push(todo),
                            false => received.kept.push(Keep::of(&todo)),
                        }
                    }
                }
                Reading::Ignored => received.ignored += 1,
                Reading::Unreadable(failure) => {
                    let keep = Keep::unreadable(source, message, &failure);
                    received.items.push(*keep.item());
                    received.kept.push(keep);
                }
            }
        }
        received
    }
}

/// What is done while messages are handled.
pub(super) struct Ahead<Db: Database> {
    pub(super) sf: Steadfast<Db>,
    pub(super) source: Arc<Sourced>,
    pub(super) feed: Box<dyn AnyFeed>,
    /// Those before, which were handled.
    pub(super) handled: Option<Receipts>,
    /// How many may come.
    pub(super) max: usize,
}

impl<Db: Database> Ahead<Db> {
    /// Gives the feed back, and what came.
    pub(super) async fn run(mut self) -> (Box<dyn AnyFeed>, Result<Option<Received<Db>>, Failure>) {
        let came = self.receive().await;
        (self.feed, came)
    }

    async fn receive(&mut self) -> Result<Option<Received<Db>>, Failure> {
        if let Some(handled) = self.handled.take() {
            handled.ack(&mut *self.feed).await?;
        }
        if self.max == 0 {
            return Ok(None);
        }
        let messages = self.feed.receive_ahead(self.max).await?;
        Ok((!messages.is_empty()).then(|| Received::read(&self.sf, &self.source, messages)))
    }
}
