//! Messages that are handled in one transaction: the records of all, the handlers of those that are new, COMMIT.
//!
//! There is no savepoint between them. If one of them fails, nothing of the batch is there, and each is tried alone.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::envelope::{Envelope, item_of};
use super::intake::Sourced;
use crate::broker::Incoming;
use crate::clock::Timestamp;
use crate::command::execute::{Handled, Handler, Verdict};
use crate::command::{CommandOptions, Outcome};
use crate::failure::Failure;
use crate::outbox::{Elsewhere, EventCx, Message, Reacting};
use crate::queue::{WorkId, WorkPoint};
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::inbox::{Inbox, RecordKey};
use crate::telemetry;
use crate::tx::Tx;

/// A message, for one of its consumers.
pub(super) struct Todo<Db: Database> {
    pub(super) reacting: Arc<Reacting<Db>>,
    pub(super) cx: EventCx,
    pub(super) key: RecordKey,
    /// The kind of the row that carries it to the dead letters of its broker, should it die.
    pub(super) letters: Option<Arc<str>>,
}

impl<Db: Database> Todo<Db> {
    /// What a message is to the reactions that are there for it.
    pub(super) fn of(
        source: &Sourced,
        envelope: &Envelope,
        incoming: &Incoming,
        to: Vec<Arc<Reacting<Db>>>,
    ) -> Vec<Self> {
        let origin = envelope.origin(&source.name);
        // What it says belongs to it: a producer that gives one id to two things has said two things.
        let (source_id, event_type) = (origin.source.as_bytes(), envelope.event_type().as_bytes());
        let version = envelope.version().to_be_bytes();
        let item = item_of(&[
            source_id,
            envelope.id().as_bytes(),
            event_type,
            &version,
            envelope.payload(),
        ]);
        let time = envelope.time().unwrap_or_else(std::time::SystemTime::now);
        let message_id: Arc<str> = envelope.id().into();
        let message = Arc::new(Message {
            id: item,
            event_type: envelope.event_type().into(),
            version: envelope.version(),
            created_at: Timestamp::of(time),
            has_expired: false,
            ordering_key: envelope.ordering_key().map(Arc::from),
            payload: envelope.payload().clone(),
            elsewhere: Some(Arc::new(Elsewhere {
                via: source.name.clone(),
                id: message_id.clone(),
                incoming: incoming.clone(),
            })),
            origin,
        });
        let todo = |reacting: Arc<Reacting<Db>>| Self {
            key: RecordKey {
                consumer: reacting.name().clone(),
                source: message.origin.source.clone(),
                message_id: message_id.clone(),
            },
            letters: source.letters.clone(),
            cx: EventCx::new(message.clone(), reacting.name().clone(), 1, CancellationToken::new()),
            reacting,
        };
        to.into_iter().map(todo).collect()
    }

    /// Whether it can be handled at once, with others. What was handed out before may be what kills processes: its attempts are to
    /// be counted before they begin.
    pub(super) fn is_for_now(&self) -> bool {
        let message = self.cx.message();
        let is_redelivered = self.cx.incoming().is_some_and(Incoming::is_redelivered);
        !is_redelivered && self.reacting.can_handle(message.version)
    }

    pub(super) fn work_id(&self) -> WorkId<'_> {
        WorkId {
            item: self.cx.message().id,
            kind: self.reacting.name(),
            attempt: 1,
        }
    }
}

/// Several of them, as the corridor calls them. It ends with how many were new.
pub(super) struct Batch<Db: Database> {
    pub(super) sf: Steadfast<Db>,
    pub(super) todos: Arc<Vec<Todo<Db>>>,
    /// Which of them.
    pub(super) range: std::ops::Range<usize>,
    /// Whether a handler was called: without one, nobody has attempted anything.
    pub(super) has_begun: Arc<AtomicBool>,
}

impl<Db: Database> Batch<Db> {
    fn todos(&self) -> &[Todo<Db>] {
        &self.todos[self.range.clone()]
    }

    pub(super) fn options(&self) -> CommandOptions {
        let limits = self.todos().iter().map(|todo| todo.reacting.time_limit());
        let options = CommandOptions::default();
        CommandOptions {
            time_limit: limits.max().unwrap_or(options.time_limit),
            ..options
        }
    }

    async fn work(&self, tx: &mut Tx<Db>) -> Result<u64, Failure> {
        let mut keys: Vec<_> = self
            .todos()
            .iter()
            .filter(|todo| todo.reacting.drops_duplicates())
            .map(|todo| &todo.key)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let mut new: HashSet<RecordKey> = match keys.is_empty() {
            true => HashSet::new(),
            false => tx.claim_messages(&keys).await?.into_iter().collect(),
        };
        let mut count = 0;
        for todo in self.todos() {
            // Within one batch the first of two is the new one.
            if todo.reacting.drops_duplicates() && !new.remove(&todo.key) {
                continue;
            }
            self.has_begun.store(true, Ordering::Relaxed);
            self.sf.passes(WorkPoint::BeforeHandler, &todo.work_id());
            let handling = todo.reacting.handle(tx, &todo.cx);
            handling.instrument(telemetry::message_span(&todo.cx)).await?;
            self.sf.passes(WorkPoint::AfterHandler, &todo.work_id());
            count += 1;
        }
        Ok(count)
    }
}

impl<Db: Database> Handler<Db> for Batch<Db> {
    type Answer = Result<u64, Failure>;

    fn can_run(&self) -> bool {
        true
    }

    async fn run(&mut self, mut tx: Tx<Db>, _: &CommandOptions) -> Handled<Db, Self::Answer> {
        let ended = self.work(&mut tx).await;
        let verdict = match &ended {
            // There is nothing to commit. On SQLite the end of it waits until what was seen of others is durable.
            Ok(0) | Err(_) => Verdict::Discard,
            Ok(_) => Verdict::Commit(Outcome::empty()),
        };
        Handled {
            tx: Some(tx),
            ended: Ok((verdict, ended)),
        }
    }
}

impl<Db: Database> Tx<Db> {
    async fn claim_messages(&mut self, keys: &[&RecordKey]) -> crate::Result<Vec<RecordKey>> {
        let (store, conn, offset) = self.parts("claim messages");
        store.claim_messages(conn, keys, offset).await
    }
}
