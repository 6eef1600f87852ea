//! What people ask of a database about deliveries, targets and bulk operations: the sentences of
//! [`outbox::look`](crate::outbox), [`outbox::dead_letter`](crate::outbox) and their neighbours.
//!
//! The same values are bound and the same columns come back on both databases: ids as text, moments as microseconds since
//! 1970.

use std::future::Future;

use sqlx::{ColumnIndex, Decode, Row, Type};
use uuid::Uuid;

use super::{Database, Store};
use crate::clock::{Offset, Timestamp};
use crate::error::{Code, Error, Result};
use crate::job::Priority;

/// What the kinds of rows end with that carry dead letters to a broker: a literal, so that it can be a part of statements.
macro_rules! letters_end {
    () => {
        ":dead_letters"
    };
}
pub(crate) use letters_end;

/// Which rows a statement is about: those that are still to do, all of them or in one state, or those that have ended so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    Queue,
    Pending,
    Leased,
    Dead,
    /// What an operator may end by hand: whatever nobody works on.
    NotLeased,
    History(&'static str),
}

/// Which deliveries are wanted, as a store is asked for them.
#[derive(Clone, Debug)]
pub(crate) struct DeliveryFilter {
    pub(crate) among: Among,
    /// Only deliveries after this one, by message and kind.
    pub(crate) after: (Uuid, String),
    pub(crate) target: Option<String>,
    pub(crate) event_type: Option<String>,
    pub(crate) ordering_key: Option<String>,
    /// Of the last failure.
    pub(crate) code: Option<String>,
    pub(crate) fingerprint: Option<String>,
    /// Published at this moment or later.
    pub(crate) since: Option<Timestamp>,
    /// Published, and failed for the last time, not later than this.
    pub(crate) until: Option<Timestamp>,
    /// Whose event has not expired by then.
    pub(crate) unexpired_at: Option<Timestamp>,
    /// Without messages from elsewhere that came at this moment or earlier.
    pub(crate) remembered_since: Option<Timestamp>,
    pub(crate) role: Role,
    /// Of what is pending: due at this moment or earlier.
    pub(crate) due_until: Option<Timestamp>,
    /// Of what is pending: due later than this.
    pub(crate) due_after: Option<Timestamp>,
    /// Of what is pending: whether it was tried before.
    pub(crate) is_tried: Option<bool>,
    /// Jobs of this batch.
    pub(crate) batch: Option<Uuid>,
    /// Of jobs: the queue that they stand in.
    pub(crate) queue: Option<String>,
    /// Of jobs.
    pub(crate) priority: Option<Priority>,
}

/// What rows stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Deliveries of events.
    Delivery,
    Job,
    /// Whichever.
    Any,
}

impl Role {
    pub(crate) const ALL: [Self; 3] = [Self::Delivery, Self::Job, Self::Any];

    /// As it is kept with a bulk operation.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Delivery => "delivery",
            Self::Job => "job",
            Self::Any => "any",
        }
    }

    /// Whether they are jobs; `None`: whatever they are.
    fn is_job(self) -> Option<bool> {
        match self {
            Self::Delivery => Some(false),
            Self::Job => Some(true),
            Self::Any => None,
        }
    }

    /// What is meant by rows that are only told by where they are: among the dead, all of them.
    pub(crate) fn among(among: Among) -> Self {
        match among {
            Among::Dead => Self::Any,
            _ => Self::Delivery,
        }
    }
}

impl DeliveryFilter {
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn is_job(&self) -> Option<bool> {
        self.role.is_job()
    }

    pub(crate) fn of(among: Among) -> Self {
        Self {
            among,
            after: (Uuid::nil(), String::new()),
            target: None,
            event_type: None,
            ordering_key: None,
            code: None,
            fingerprint: None,
            since: None,
            until: None,
            unexpired_at: None,
            remembered_since: None,
            role: Role::among(among),
            due_until: None,
            due_after: None,
            is_tried: None,
            batch: None,
            queue: None,
            priority: None,
        }
    }
}

/// Binds a filter to `$1` to `$9` and `$11` to `$19`, and how many rows are wanted to `$10`. Not every statement has `$14` to `$16`.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
macro_rules! bind_filter {
    ($query:expr, $filter:expr, $limit:expr) => {{
        let filter: &$crate::store::letters::DeliveryFilter = $filter;
        $query
            .bind(filter.after.0.to_string())
            .bind(filter.after.1.clone())
            .bind(filter.target.clone())
            .bind(filter.event_type.clone())
            .bind(filter.ordering_key.clone())
            .bind(filter.code.clone())
            .bind(filter.fingerprint.clone())
            .bind(filter.since.map(|since| since.0))
            .bind(filter.until.map(|until| until.0))
            .bind(i64::from($limit))
            .bind(filter.unexpired_at.map(|at| at.0))
            .bind(filter.remembered_since.map(|at| at.0))
            .bind(filter.is_job())
            .bind(filter.due_until.map(|at| at.0))
            .bind(filter.due_after.map(|at| at.0))
            .bind(filter.is_tried)
            .bind(filter.batch.map(|batch| batch.to_string()))
            .bind(filter.queue.clone())
            .bind(filter.priority.map($crate::job::Priority::as_str))
    }};
}
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) use bind_filter;

/// A delivery as it stands in the queue or in the history, with its message's envelope and its last failure.
#[derive(Clone, Debug)]
pub(crate) struct DeliveryRow {
    pub(crate) item: Uuid,
    pub(crate) kind: String,
    pub(crate) state: String,
    pub(crate) attempts: i64,
    pub(crate) chain: Option<String>,
    pub(crate) number: Option<i64>,
    pub(crate) due_at: Option<i64>,
    /// The end of its lease, if somebody has one.
    pub(crate) leased_until: Option<i64>,
    pub(crate) holder: Option<String>,
    pub(crate) finished_at: Option<i64>,
    pub(crate) detail: Option<String>,
    /// When somebody said that it is wanted no more, while somebody else worked on it.
    pub(crate) cancel_at: Option<i64>,
    pub(crate) cancel_by: Option<String>,
    pub(crate) cancel_reason: Option<String>,
    pub(crate) event_type: Option<String>,
    pub(crate) ordering_key: Option<String>,
    pub(crate) created_at: Option<i64>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) failed_at: Option<i64>,
    pub(crate) code: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) fingerprint: Option<String>,
    /// Of jobs: the queue of their type, as far as a node has known it.
    pub(crate) queue: Option<String>,
    pub(crate) unique_key: Option<String>,
}

impl DeliveryRow {
    /// The name of its target: the kind without the version.
    pub(crate) fn target(&self) -> &str {
        self.kind.split('@').next().unwrap_or(&self.kind)
    }
}

/// Dead letters with one fingerprint.
#[derive(Clone, Debug)]
pub(crate) struct GroupRow {
    pub(crate) fingerprint: String,
    pub(crate) code: String,
    pub(crate) count: i64,
    pub(crate) example: Uuid,
    pub(crate) message: Option<String>,
    /// Names, with a comma between them.
    pub(crate) targets: String,
    pub(crate) first_at: i64,
    pub(crate) last_at: i64,
}

/// A message as it stands in its table.
#[derive(Clone, Debug)]
pub(crate) struct MessageRow {
    pub(crate) id: Uuid,
    pub(crate) event_type: String,
    pub(crate) version: i64,
    pub(crate) content_type: String,
    pub(crate) created_at: i64,
    pub(crate) expires_at: Option<i64>,
    pub(crate) ordering_key: Option<String>,
    pub(crate) correlation_id: Option<String>,
    pub(crate) causation_id: Option<String>,
    pub(crate) traceparent: Option<String>,
    pub(crate) headers: Option<String>,
    pub(crate) redacted: Option<String>,
    pub(crate) payload: Vec<u8>,
}

impl MessageRow {
    /// The members of the payload that are not shown.
    pub(crate) fn redacted(&self) -> Vec<String> {
        let redacted = self.redacted.as_deref();
        redacted
            .and_then(|names| serde_json::from_str(names).ok())
            .unwrap_or_default()
    }
}

/// An attempt that failed, as it stands in its table.
#[derive(Clone, Debug)]
pub(crate) struct AttemptRow {
    pub(crate) item: Uuid,
    pub(crate) kind: String,
    pub(crate) at: i64,
    pub(crate) attempt: i64,
    pub(crate) failure: String,
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) fingerprint: String,
}

/// A message that takes the place of another one for one delivery.
pub(crate) struct Replacement<'r> {
    pub(crate) old: Uuid,
    pub(crate) new: Uuid,
    pub(crate) kind: &'r str,
    pub(crate) payload: &'r str,
    /// Further attributes, as JSON.
    pub(crate) headers: String,
}

/// A kind of deliveries, or a target without any.
#[derive(Clone, Debug)]
pub(crate) struct KindRow {
    /// The name of a target, with its version if it has one.
    pub(crate) kind: String,
    pub(crate) seen_at: Option<i64>,
    pub(crate) paused_at: Option<i64>,
    pub(crate) paused_by: Option<String>,
    pub(crate) paused_reason: Option<String>,
    /// Counted up to a limit.
    pub(crate) waiting: i64,
    pub(crate) dead: i64,
}

/// A line of the table of targets: name, pattern, since.
pub(crate) type TargetLine = (String, String, i64);

/// A bulk operation as it stands in its table.
#[derive(Clone, Debug)]
pub(crate) struct OperationRow {
    pub(crate) id: Uuid,
    pub(crate) verb: String,
    pub(crate) filter: String,
    pub(crate) operator: String,
    pub(crate) reason: String,
    pub(crate) state: String,
    pub(crate) expected: i64,
    pub(crate) done: i64,
    pub(crate) batches: i64,
    pub(crate) cursor: (Uuid, String),
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
}

/// A delivery, by message and kind.
pub(crate) type DeliveryKey = (Uuid, String);

/// Deliveries, to look at and to change.
pub(crate) trait Letters<Db: Database> {
    /// Reads deliveries in the order of message and kind.
    fn list_deliveries(
        &self,
        filter: &DeliveryFilter,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<DeliveryRow>>> + Send;
    /// Counts deliveries, up to a limit.
    fn count_deliveries(&self, filter: &DeliveryFilter, limit: u32) -> impl Future<Output = Result<i64>> + Send;
    /// Groups dead deliveries by the fingerprint of their last failure, the largest group first; `limit` is how many are
    /// looked at.
    fn group_dead(&self, filter: &DeliveryFilter, limit: u32) -> impl Future<Output = Result<Vec<GroupRow>>> + Send;
    /// Every delivery of a message, wherever it stands.
    fn deliveries_of(&self, item: Uuid) -> impl Future<Output = Result<Vec<DeliveryRow>>> + Send;
    /// Reads messages.
    fn read_messages(&self, ids: &[Uuid]) -> impl Future<Output = Result<Vec<MessageRow>>> + Send;
    /// Reads the attempts at these messages that failed, in order, up to a limit.
    fn read_attempts(&self, ids: &[Uuid], limit: u32) -> impl Future<Output = Result<Vec<AttemptRow>>> + Send;
    /// The ids between these two, in order, up to a limit.
    fn message_ids(&self, first: Uuid, last: Uuid, limit: u32) -> impl Future<Output = Result<Vec<Uuid>>> + Send;
    /// The message of the first row of a chain before this number.
    fn head_of(&self, chain: &str, number: i64) -> impl Future<Output = Result<Option<Uuid>>> + Send;

    /// Locks a message's row for a target, whatever its version. `None`: it is not in the queue.
    fn lock_delivery(
        &self,
        conn: &mut Db::Connection,
        item: Uuid,
        target: &str,
    ) -> impl Future<Output = Result<Option<DeliveryRow>>> + Send;
    /// Locks the next rows that fit.
    fn lock_deliveries(
        &self,
        conn: &mut Db::Connection,
        filter: &DeliveryFilter,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<DeliveryRow>>> + Send;
    /// Gives rows another life: due now, with all their attempts. They keep epoch, chain and place.
    fn requeue(
        &self,
        conn: &mut Db::Connection,
        rows: &[DeliveryKey],
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Says of a row that somebody works on that it is wanted no more, by whom and why.
    fn request_cancel(
        &self,
        conn: &mut Db::Connection,
        row: &DeliveryKey,
        operator: &str,
        reason: &str,
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Moves rows to the history, in this state and with this detail.
    fn end_deliveries(
        &self,
        conn: &mut Db::Connection,
        rows: &[DeliveryKey],
        state: &'static str,
        detail: &str,
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Has the first row of each chain looked at by the next claim, if it is due.
    fn free_chains(&self, conn: &mut Db::Connection, chains: &[String]) -> impl Future<Output = Result<()>> + Send;
    /// Writes a copy of a message with another payload, and hands one delivery over to it, in the same place of its chain.
    fn replace_message(
        &self,
        conn: &mut Db::Connection,
        replacement: &Replacement<'_>,
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;
}

/// Targets and their kinds.
pub(crate) trait Targets<Db: Database> {
    /// The table of targets.
    fn list_targets(&self) -> impl Future<Output = Result<Vec<TargetLine>>> + Send;
    /// Every kind that a node knows, that a target has or that a row waits for, with counts up to a limit.
    fn list_kinds(&self, limit: u32) -> impl Future<Output = Result<Vec<KindRow>>> + Send;
    /// Pauses the kinds of a target, or lets them go on if nobody is named, and says how many there were.
    fn pause_kinds(
        &self,
        conn: &mut Db::Connection,
        target: &str,
        pause: Option<(&str, &str)>,
        offset: Offset,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// Removes a target with its kinds, and says whether it was there.
    fn remove_target(&self, conn: &mut Db::Connection, target: &str) -> impl Future<Output = Result<bool>> + Send;
}

/// Bulk operations.
pub(crate) trait Operations<Db: Database> {
    /// Writes one that is about to begin.
    fn insert_operation(
        &self,
        conn: &mut Db::Connection,
        row: &OperationRow,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Reads one and locks it: who has it is alone with it until his transaction ends.
    fn lock_operation(
        &self,
        conn: &mut Db::Connection,
        id: Uuid,
    ) -> impl Future<Output = Result<Option<OperationRow>>> + Send;
    /// Writes how far it has come, and says when.
    fn save_operation(
        &self,
        conn: &mut Db::Connection,
        row: &OperationRow,
        offset: Offset,
    ) -> impl Future<Output = Result<i64>> + Send;
    /// Reads the newest ones, or those whose id lies between these two.
    fn list_operations(
        &self,
        first: Uuid,
        last: Uuid,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<OperationRow>>> + Send;
    /// Forgets a lease that nobody will want again.
    fn drop_lease(&self, conn: &mut Db::Connection, name: &str) -> impl Future<Output = Result<()>> + Send;
}

/// What a row of either database must be able to tell.
pub(super) trait Tells<'r>: Row + Sized
where
    &'static str: ColumnIndex<Self>,
{
    fn tell<T>(&'r self, column: &'static str) -> Result<T>
    where
        T: Decode<'r, Self::Database> + Type<Self::Database>,
        Self::Database: Database,
    {
        self.try_get(column)
            .map_err(|error| <Self::Database as Database>::Store::error(error, "reading what stands in the tables"))
    }
}

impl<R: Row> Tells<'_> for R where &'static str: ColumnIndex<R> {}

/// Readers of rows, one for each kind of row, written once for both databases.
macro_rules! readers {
    ($($(#[$doc:meta])* fn $name:ident -> $row:ident { $($field:ident: $how:ident,)* })*) => {
        $($(#[$doc])*
        pub(super) fn $name<'r, R>(row: &'r R) -> Result<$row>
        where
            R: Row,
            R::Database: Database,
            &'static str: ColumnIndex<R>,
            String: Decode<'r, R::Database> + Type<R::Database>,
            i64: Decode<'r, R::Database> + Type<R::Database>,
            Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
        {
            Ok($row { $($field: readers!(@ $how row $field),)* })
        })*
    };
    (@ plain $row:ident $field:ident) => { $row.tell(stringify!($field))? };
    (@ id $row:ident $field:ident) => { parse(&$row.tell::<String>(stringify!($field))?)? };
    (@ cursor $row:ident $field:ident) => { (parse(&$row.tell::<String>("cursor_item")?)?, $row.tell("cursor_kind")?) };
}

pub(super) use readers;

readers! {
    fn read_delivery -> DeliveryRow {
        item: id,
        kind: plain,
        state: plain,
        attempts: plain,
        chain: plain,
        number: plain,
        due_at: plain,
        leased_until: plain,
        holder: plain,
        finished_at: plain,
        detail: plain,
        cancel_at: plain,
        cancel_by: plain,
        cancel_reason: plain,
        event_type: plain,
        ordering_key: plain,
        created_at: plain,
        expires_at: plain,
        failed_at: plain,
        code: plain,
        message: plain,
        fingerprint: plain,
        queue: plain,
        unique_key: plain,
    }
    fn read_group -> GroupRow {
        fingerprint: plain,
        code: plain,
        count: plain,
        example: id,
        message: plain,
        targets: plain,
        first_at: plain,
        last_at: plain,
    }
    fn read_message -> MessageRow {
        id: id,
        event_type: plain,
        version: plain,
        content_type: plain,
        created_at: plain,
        expires_at: plain,
        ordering_key: plain,
        correlation_id: plain,
        causation_id: plain,
        traceparent: plain,
        headers: plain,
        redacted: plain,
        payload: plain,
    }
    fn read_attempt -> AttemptRow {
        item: id,
        kind: plain,
        at: plain,
        attempt: plain,
        failure: plain,
        code: plain,
        message: plain,
        fingerprint: plain,
    }
    fn read_kind -> KindRow {
        kind: plain,
        seen_at: plain,
        paused_at: plain,
        paused_by: plain,
        paused_reason: plain,
        waiting: plain,
        dead: plain,
    }
    fn read_operation -> OperationRow {
        id: id,
        verb: plain,
        filter: plain,
        operator: plain,
        reason: plain,
        state: plain,
        expected: plain,
        done: plain,
        batches: plain,
        cursor: cursor,
        created_at: plain,
        updated_at: plain,
    }
}

pub(super) fn parse(id: &str) -> Result<Uuid> {
    id.parse()
        .map_err(|error| Error::new(Code::Database, format!("{id:?} is not the id of a row")).with_source(error))
}
