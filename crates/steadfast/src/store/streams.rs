//! What push asks of a database: streams that live clients follow, and the entries in them.

use std::future::Future;
use std::sync::Arc;

use uuid::Uuid;

use super::Database;
use crate::clock::{Offset, Timestamp};
use crate::error::Result;

/// What is appended to a stream.
#[derive(Clone, Debug)]
pub(crate) struct NewEntry {
    pub(crate) stream: String,
    /// The message it comes from.
    pub(crate) item: Uuid,
    pub(crate) event_type: Arc<str>,
    /// When that was published.
    pub(crate) created_at: Timestamp,
    /// JSON.
    pub(crate) data: String,
}

/// An entry of a stream.
#[derive(Clone, Debug)]
pub(crate) struct EntryRow {
    pub(crate) stream: String,
    pub(crate) number: i64,
    pub(crate) item: Uuid,
    pub(crate) event_type: String,
    pub(crate) created_at: Timestamp,
    pub(crate) data: String,
}

/// A place in a stream: whoever is there has seen the entry of this number and all before it.
#[derive(Clone, Debug)]
pub(crate) struct Place<'p> {
    pub(crate) stream: &'p str,
    pub(crate) number: i64,
}

/// What lies behind a place in a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// The number of the stream's newest entry. `None`: it has no row, since nothing was pushed into it for as long as
    /// entries are kept.
    pub(crate) last: Option<i64>,
    /// Whether there are more entries behind the place than was asked.
    pub(crate) is_far: bool,
    pub(crate) now: Timestamp,
}

pub(crate) trait Streams<Db: Database> {
    /// Appends entries in the transaction that is open, those that are not in their streams yet, and tells other processes
    /// with its commit, if they are to be told by the database.
    fn append(
        &self,
        conn: &mut Db::Connection,
        entries: &[NewEntry],
        notice: Option<&str>,
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Says what lies behind each of these places, and of which of them there are more than `many` entries.
    fn look_ahead(
        &self,
        places: &[Place<'_>],
        many: i64,
        offset: Offset,
    ) -> impl Future<Output = Result<Vec<Ahead>>> + Send;
    /// Reads the entries behind these places, at most so many of each stream, in their order.
    fn entries_after(&self, places: &[Place<'_>], limit: i64) -> impl Future<Output = Result<Vec<EntryRow>>> + Send;

    /// What hears the notices of other processes.
    type Ear: Send;
    /// Opens it.
    fn open_ear(&self) -> impl Future<Output = Result<Self::Ear>> + Send;
    /// Waits for a notice, and says what it reads; `None` if it has no words. It may be dropped at any time.
    fn hear(&self, ear: &mut Self::Ear) -> impl Future<Output = Result<Option<String>>> + Send;

    /// What the streams of this instance are called where others may be heard too, at a broker: the same for all its processes,
    /// however they reach the database, and for nobody else's.
    fn channel(&self) -> impl Future<Output = Result<String>> + Send;
}
