//! What consumers of messages from elsewhere ask of a database: records of what they have handled, and what they keep to be
//! worked on later.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::Database;
use crate::clock::{Offset, Timestamp};
use crate::error::Result;
use crate::queue::FailureRow;

/// What makes two messages the same to a consumer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RecordKey {
    pub(crate) consumer: Arc<str>,
    pub(crate) source: Arc<str>,
    pub(crate) message_id: Arc<str>,
}

/// A message that is kept, with the row of the queue by which it is worked on.
#[derive(Debug)]
pub(crate) struct KeptRow<'k> {
    /// `None`: whoever works on it does not mind duplicates.
    pub(crate) record: Option<&'k RecordKey>,
    pub(crate) item: Uuid,
    pub(crate) kind: String,
    pub(crate) event_type: &'k str,
    pub(crate) version: u32,
    pub(crate) source: &'k str,
    pub(crate) content_type: &'k str,
    pub(crate) correlation_id: Option<&'k str>,
    pub(crate) causation_id: Option<&'k str>,
    pub(crate) traceparent: Option<&'k str>,
    pub(crate) ordering_key: Option<&'k str>,
    /// What else is known of it, as JSON.
    pub(crate) headers: String,
    pub(crate) payload: &'k [u8],
    /// When it is worked on; `None`: it is dead.
    pub(crate) after: Option<Duration>,
    /// The kind of the row that carries it to the dead letters of its broker, should it die.
    pub(crate) letters: Option<&'k str>,
    /// The first attempt, if there was one.
    pub(crate) failure: Option<FailureRow>,
}

/// A record, as it stands in its table.
#[derive(Clone, Debug)]
pub(crate) struct RecordRow {
    pub(crate) consumer: String,
    pub(crate) source: String,
    pub(crate) message_id: String,
    pub(crate) received_at: i64,
    pub(crate) item: Option<Uuid>,
}

/// Which records are wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordFilter {
    /// Only records after this one, by consumer, source and message id.
    pub(crate) after: Option<(String, String, String)>,
    pub(crate) consumer: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) message_id: Option<String>,
    pub(crate) since: Option<Timestamp>,
    pub(crate) until: Option<Timestamp>,
}

/// How many records a consumer has of a source, counted up to a limit, and when the oldest and the newest of these were received.
#[derive(Clone, Debug)]
pub(crate) struct CountedRecords {
    pub(crate) consumer: String,
    pub(crate) source: String,
    pub(crate) count: i64,
    pub(crate) oldest: i64,
    pub(crate) newest: i64,
}

pub(crate) trait Inbox<Db: Database> {
    /// Writes records in the transaction that is open, and says which of them were not there. The keys are sorted, and each is
    /// there once: two who want the same ones do not wait for each other.
    fn claim_messages(
        &self,
        conn: &mut Db::Connection,
        keys: &[&RecordKey],
        offset: Offset,
    ) -> impl Future<Output = Result<Vec<RecordKey>>> + Send;
    /// Writes messages with their records and their rows of the queue in the transaction that is open, sorted by their records,
    /// and says how many of them were not there.
    fn keep_messages(
        &self,
        conn: &mut Db::Connection,
        kept: &[KeptRow<'_>],
        offset: Offset,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// What these consumers handle comes from elsewhere: they are no targets any more, if they were.
    fn forget_targets(&self, consumers: &[Arc<str>]) -> impl Future<Output = Result<()>> + Send;
    /// Reads records, by consumer, source and message id.
    fn list_records(&self, filter: &RecordFilter, limit: u32) -> impl Future<Output = Result<Vec<RecordRow>>> + Send;
    /// Counts records by consumer and source, looking at so many at the most.
    fn count_records(&self, limit: u32) -> impl Future<Output = Result<Vec<CountedRecords>>> + Send;
}
