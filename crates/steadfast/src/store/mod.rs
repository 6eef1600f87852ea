//! The sentences the modules above need from a database, grouped by noun.
//!
//! Two stores speak them: [`sqlite`] and [`postgres`], with the same file names, so that two windows side by
//! side can be compared. Nothing here knows handlers, transports or policies, and nothing here opens a
//! connection of its own while a transaction is open.

pub(crate) mod batches;
pub(crate) mod inbox;
pub(crate) mod jobs;
pub(crate) mod letters;
mod migrate;
mod names;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod reports;
pub(crate) mod schedules;
#[cfg(feature = "sqlite")]
mod sqlite;
pub(crate) mod streams;

use std::future::Future;
use std::ops::{DerefMut, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{Connection, Pool};
use sqlx_core::transaction::TransactionManager;
use uuid::Uuid;

pub use migrate::MigrationStatus;
pub(crate) use migrate::{AppliedMigration, Migration, check_known, script, status};
pub(crate) use names::Names;

use crate::audit::{AuditEntry, AuditFilter, AuditRow};
use crate::breaker::{BreakerRow, BreakerWrite};
use crate::clock::{Offset, Timestamp};
use crate::command::{Fingerprint, Key, KeyColumns, KeyFilter, Owner, Quota, Record, Stored};
use crate::doctor::Check;
use crate::error::{Code, Error, Result};
use crate::lease::Lease;
use crate::outbox::stats::{CountedKind, FinishedRow, PublishedRow, SizeRow};
use crate::outbox::{NewMessage, TargetRow};
use crate::queue::{Back, Claim, Claims, Done, KnownKind, PutBack, Renewed, Untouched};

/// A database Steadfast works on: [`sqlx::Sqlite`] or [`sqlx::Postgres`], chosen by the pool you have.
///
/// Sealed: both are held to the same conformance suite, which is what makes them one behaviour.
pub trait Database: sqlx::Database + private::Sealed {
    #[doc(hidden)]
    #[allow(private_bounds)]
    type Store: Store<Self>;
}

pub(crate) use jobs::QueueRow;

mod private {
    pub trait Sealed {}
    #[cfg(feature = "sqlite")]
    impl Sealed for sqlx::Sqlite {}
    #[cfg(feature = "postgres")]
    impl Sealed for sqlx::Postgres {}
}

#[cfg(feature = "sqlite")]
impl Database for sqlx::Sqlite {
    type Store = sqlite::SqliteStore;
}

#[cfg(feature = "postgres")]
impl Database for sqlx::Postgres {
    type Store = postgres::PostgresStore;
}

/// What the engine asks of a database.
///
/// Every method that takes a connection runs inside the transaction that is open on it.
///
/// What people ask about deliveries, targets and bulk operations is in [`letters`], what push asks in [`streams`], what consumers of
/// messages from elsewhere ask in [`inbox`], what schedules ask in [`schedules`], what running jobs tell in [`reports`], and how batches
/// stand in [`batches`].
#[doc(hidden)]
pub(crate) trait Store<Db: Database>:
    letters::Letters<Db>
    + letters::Targets<Db>
    + letters::Operations<Db>
    + streams::Streams<Db>
    + inbox::Inbox<Db>
    + jobs::Jobs<Db>
    + schedules::Schedules<Db>
    + reports::Reports<Db>
    + batches::Batches<Db>
    + Sized
    + Send
    + Sync
    + 'static
{
    /// What must be there before the first migration: a place for our tables, and the table that counts migrations.
    const BOOTSTRAP: &'static str;
    /// Says that migration `$1`, called `$2`, has run.
    const RECORD_MIGRATION: &'static str;
    /// The migrations of this database, in order.
    const MIGRATIONS: &'static [Migration];

    // Opening.

    /// Opens a pool for a URL, with the settings this database needs.
    fn connect(url: &str) -> impl Future<Output = Result<(Pool<Db>, Guard)>> + Send;
    /// Wraps the user's pool.
    fn new(pool: Pool<Db>, names: Arc<Names>, guard: Arc<Guard>) -> Result<Self>;
    /// The user's pool.
    fn pool(&self) -> &Pool<Db>;
    /// Answers when the database does.
    fn ping(&self) -> impl Future<Output = Result<()>> + Send;
    /// The database's time.
    fn now(&self) -> impl Future<Output = Result<Timestamp>> + Send;
    /// Looks for settings, rights and surroundings that endanger what we promise. It changes nothing.
    fn examine(&self) -> impl Future<Output = Result<Vec<Check>>> + Send;

    // Transactions.

    /// Whether looking at a key costs a first execution next to nothing, so that every command does it before it begins.
    const READS_ARE_CHEAP: bool;
    /// Whether a `begin` may be dropped halfway. On PostgreSQL sqlx 0.9 may then give a connection with an open
    /// transaction back to the pool, so it goes on to its end there.
    const BEGIN_IS_CANCEL_SAFE: bool;
    /// The connection of a transaction, for as long as it is open.
    type Held: DerefMut<Target = Db::Connection> + Send + 'static;

    /// Begins a write transaction, and claims a key in it if there is one.
    fn begin(&self, begin: Begin) -> impl Future<Output = Result<Begun<Self::Held>>> + Send;
    /// When the transaction began.
    fn began(&self, held: &mut Self::Held) -> impl Future<Output = Result<Timestamp>> + Send;
    /// Stores the end of a command in its transaction, which is then ready to commit. False: a live record of the same
    /// key is there already.
    fn settle(&self, held: &mut Self::Held, settlement: &Settlement<'_>) -> impl Future<Output = Result<bool>> + Send;
    /// Makes a transaction without a key ready to commit: fails if it no longer can, which COMMIT does not always say.
    /// False: the lease of its row is lost.
    fn seal(&self, held: &mut Self::Held, seal: &Seal<'_>) -> impl Future<Output = Result<bool>> + Send;
    /// Commits. The only place that does.
    fn commit(&self, held: &mut Self::Held) -> impl Future<Output = Result<(), CommitError>> + Send;
    /// Rolls back.
    fn rollback(&self, held: &mut Self::Held) -> impl Future<Output = Result<()>> + Send;
    /// Waits, after a roll-back, until what the transaction saw of others is durable. Fails if it never will be.
    fn saw_the_truth(&self, held: &mut Self::Held) -> impl Future<Output = Result<()>> + Send;
    /// Looks, after a roll-back, for a duplicate that ended between the claim's look and its lock. `None`: the claim misses
    /// nobody.
    fn missed_duplicate(&self, held: &mut Self::Held, key: &Key)
    -> impl Future<Output = Result<Option<LookUp>>> + Send;
    /// Rolls back a transaction that was dropped in the middle, and stops what it is doing.
    fn abandon(&self, held: Self::Held) -> impl Future<Output = ()> + Send + 'static;
    /// Whether a transaction that has claimed this key may still commit.
    fn is_running(&self, key: &Key) -> impl Future<Output = Result<bool>> + Send;

    // Keys.

    /// Reads a key's record outside any transaction.
    fn look_up(&self, key: &Key) -> impl Future<Output = Result<LookUp>> + Send;

    /// Reads keys without their answers, in the order of their hashes.
    fn list_keys(&self, filter: &KeyFilter) -> impl Future<Output = Result<Vec<KeyColumns>>> + Send;

    /// Removes a key's record in a transaction of ours. False: there is none.
    fn remove_key(&self, held: &mut Self::Held, key: &Key) -> impl Future<Output = Result<bool>> + Send;
    /// Counts a key that is about to be settled. False: its owner has no room left.
    fn charge(
        &self,
        conn: &mut Db::Connection,
        settlement: &Settlement<'_>,
        quota: Quota,
    ) -> impl Future<Output = Result<bool>> + Send;

    // Purge.

    /// How far one [`delete_keys`](Store::delete_keys) should go, so that it holds nobody up.
    const PURGE_STEP: i64;
    /// The places that keys are at, for walking through them.
    fn key_places(&self) -> impl Future<Output = Result<Range<i64>>> + Send;
    /// Deletes the doomed keys at these places, in a transaction of its own.
    fn delete_keys(&self, places: Range<i64>, doomed: &Doomed<'_>) -> impl Future<Output = Result<u64>> + Send;

    /// Counts the keys at these places that have expired.
    fn count_expired(&self, places: Range<i64>, offset: Offset) -> impl Future<Output = Result<u64>> + Send;

    /// The places that the rows of an aging table are at, in stretches that one statement may look at.
    fn aged_stretches(&self, table: Aging) -> impl Future<Output = Result<Vec<Range<i64>>>> + Send;
    /// Deletes what nobody waits for at these places, in a transaction of its own: messages with their failures, or
    /// deliveries in the history.
    fn delete_aged(&self, table: Aging, places: Range<i64>, aged: Aged) -> impl Future<Output = Result<u64>> + Send;
    /// Counts what nobody waits for at these places.
    fn count_aged(&self, table: Aging, places: Range<i64>, aged: Aged) -> impl Future<Output = Result<u64>> + Send;

    // Leases.

    /// Takes a lease, or renews one's own, and says its token. `None`: somebody else holds it.
    fn take_lease(
        &self,
        name: &str,
        holder: &str,
        ttl: Duration,
        offset: Offset,
    ) -> impl Future<Output = Result<Option<i64>>> + Send;
    /// Gives a lease back before its time.
    fn release_lease(&self, name: &str, holder: &str) -> impl Future<Output = Result<()>> + Send;

    // Breakers.

    /// Reads the breakers of these names that any process has written, by name; without names, all of them.
    fn read_breakers(
        &self,
        names: Option<&[&str]>,
        offset: Offset,
    ) -> impl Future<Output = Result<Vec<BreakerRow>>> + Send;
    /// Writes a breaker and says its new epoch. `None`: the row has another one than was expected.
    fn write_breaker(
        &self,
        write: &BreakerWrite<'_>,
        offset: Offset,
    ) -> impl Future<Output = Result<Option<i64>>> + Send;
    /// The same in a transaction.
    fn write_breaker_in(
        &self,
        conn: &mut Db::Connection,
        write: &BreakerWrite<'_>,
        offset: Offset,
    ) -> impl Future<Output = Result<Option<i64>>> + Send;

    // The queue.

    /// Whether other processes have to be told of a commit.
    const NEEDS_ANNOUNCEMENTS: bool;
    /// The engine's own way to the database, which handlers cannot block, and its ear for other processes.
    type Link: Send;
    /// Opens it.
    fn open_link(&self) -> impl Future<Output = Result<Self::Link>> + Send;
    /// Opens one that hears nothing.
    fn open_deaf_link(&self) -> impl Future<Output = Result<Self::Link>> + Send;
    /// Waits until another process announces something, and says whose rows were cancelled. It may be dropped at any time.
    fn woken(&self, link: &mut Self::Link) -> impl Future<Output = Result<Vec<String>>> + Send;
    /// Tells other processes that there may be something to do.
    fn announce(&self) -> impl Future<Output = Result<()>> + Send;
    /// Tells whoever holds leases under this name that one of its rows was cancelled.
    fn announce_cancel(&self, holder: &str) -> impl Future<Output = Result<()>> + Send;
    /// Claims rows that are due or whose lease has expired.
    fn claim(
        &self,
        link: &mut Self::Link,
        claim: &Claim<'_>,
        offset: Offset,
    ) -> impl Future<Output = Result<Claims>> + Send;
    /// Renews leases, and says which rows it has left as they are, and which were cancelled.
    fn renew(
        &self,
        link: &mut Self::Link,
        leases: &[(&Lease, Duration)],
        offset: Offset,
    ) -> impl Future<Output = Result<Renewed>> + Send;
    /// Since when nobody but this process can have written to the database, while that is so. `None`: others may write.
    fn alone_since(&self) -> Option<Instant> {
        None
    }
    /// Moves rows to the history, and says which of them it has left as they are.
    fn finish(
        &self,
        link: &mut Self::Link,
        done: &[Done<'_>],
        offset: Offset,
    ) -> impl Future<Output = Result<Untouched>> + Send;
    /// Puts off rows of a kind that are due and have others ahead of them, among the first of those that are due.
    fn park(
        &self,
        link: &mut Self::Link,
        kind: &str,
        full_keys: &[Arc<str>],
        lease: Duration,
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Puts rows back or buries them, ends those that were cancelled, and says which of them it has left as they are.
    fn put_back(
        &self,
        link: &mut Self::Link,
        back: &[Back<'_>],
        offset: Offset,
    ) -> impl Future<Output = Result<PutBack>> + Send;
    /// Says that a node knows these kinds, now.
    fn see_kinds(
        &self,
        link: &mut Self::Link,
        kinds: &[KnownKind],
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;

    // The outbox.

    /// Writes where messages go, which queues there are, and that these kinds are known.
    fn declare(
        &self,
        targets: &[TargetRow],
        kinds: &[KnownKind],
        queues: &[QueueRow],
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Writes messages in the caller's transaction.
    fn publish_as_guest(
        &self,
        conn: &mut Db::Connection,
        messages: &[NewMessage],
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;

    // How the outbox is doing.

    /// Counts the rows of the queue, kind by kind, up to a limit.
    fn kind_counts(&self, offset: Offset) -> impl Future<Output = Result<Vec<CountedKind>>> + Send;
    /// Counts the rows that have left the queue since then, kind by kind, up to a limit; `first` is the smallest id of a
    /// message that was published since then.
    fn finished_since(&self, since: Timestamp, first: Uuid) -> impl Future<Output = Result<Vec<FinishedRow>>> + Send;
    /// Counts the messages with this id or a later one, and their rows that are still to do, up to a limit.
    fn published_since(&self, first: Uuid) -> impl Future<Output = Result<PublishedRow>> + Send;
    /// How large the tables are.
    fn outbox_size(&self, offset: Offset) -> impl Future<Output = Result<SizeRow>> + Send;

    // The caller's own transaction.

    /// Fails if the connection is in no transaction after all: SQLite may have ended it by itself.
    fn check_guest(&self, conn: &mut Db::Connection) -> impl Future<Output = Result<()>> + Send;
    /// Claims a key in the caller's transaction.
    fn claim_as_guest(
        &self,
        conn: &mut Db::Connection,
        key: &Key,
        offset: Offset,
    ) -> impl Future<Output = Result<Begun<()>>> + Send;
    /// Stores the end of a command in the caller's transaction. False: a live record of the same key is there already.
    fn settle_as_guest(
        &self,
        conn: &mut Db::Connection,
        settlement: &Settlement<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;

    // Audit.

    /// Appends an entry.
    fn append_audit(
        &self,
        conn: &mut Db::Connection,
        entry: &AuditEntry,
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Reads entries, newest first.
    fn list_audit(&self, filter: &AuditFilter) -> impl Future<Output = Result<Vec<AuditRow>>> + Send;

    // Migrations.

    /// The migrations that ran, in order; none if the tables are not there.
    fn applied_migrations(&self) -> impl Future<Output = Result<Vec<AppliedMigration>>> + Send;
    /// The number of the last migration that ran; `None` if the tables are not there.
    fn schema_version(&self) -> impl Future<Output = Result<Option<i64>>> + Send;
    /// The name our tables go by.
    fn names(&self) -> &Names;
    /// Fails with SF301 unless the tables are those this version was built for.
    fn check_tables(&self) -> impl Future<Output = Result<()>> + Send {
        async { migrate::check_version(self.schema_version().await?, Self::MIGRATIONS, self.names().name()) }
    }
    /// Looks at what the user's own tables demand of us.
    fn survey(&self) -> impl Future<Output = Result<()>> + Send;
    /// The same for a process that runs already: newer tables are fine then, since migrations only ever add.
    fn check_tables_suffice(&self) -> impl Future<Output = Result<()>> + Send {
        async {
            let known = migrate::latest_version(Self::MIGRATIONS);
            let found = self.schema_version().await?.map(|found| found.min(known));
            migrate::check_version(found, Self::MIGRATIONS, self.names().name())
        }
    }
    /// Runs the migrations that are missing, alone among all processes.
    fn migrate(&self) -> impl Future<Output = Result<usize>> + Send;

    // Errors.

    /// What kind of trouble an error of the driver is.
    fn classify(error: &sqlx::Error) -> Code;
    /// What an operator can do about it, where the code alone does not say it.
    fn remedy(error: &sqlx::Error) -> Option<&'static str>;
    /// The same, as an error of ours that keeps it as its source.
    fn error(error: sqlx::Error, what: &str) -> Error {
        let code = Self::classify(&error);
        let message = format!("{what}: {}", code.title());
        Error::new(code, message)
            .with_remedy(Self::remedy(&error))
            .with_source(error)
    }
}

/// What a store must keep alive: the directory of a private database, removed with the last handle.
#[derive(Default)]
pub(crate) struct Guard {
    #[cfg(feature = "sqlite")]
    #[allow(dead_code, reason = "held for its Drop")]
    directory: Option<tempfile::TempDir>,
}

/// How a transaction is to begin.
pub(crate) struct Begin {
    /// What it claims.
    pub(crate) key: Option<Key>,
    /// When it was seen that the key has no record, not even an expired one.
    pub(crate) absent_at: Option<Instant>,
    pub(crate) offset: Offset,
    /// How long the transaction may sit idle before the database ends it.
    pub(crate) idle_limit: Duration,
    /// Whether it must not share its COMMIT with others.
    pub(crate) is_alone: bool,
}

/// What beginning and claiming came to.
#[derive(Debug)]
pub(crate) enum Begun<H> {
    /// The transaction is open, and the key (if there is one) is its to do.
    Ours(H),
    /// The command has ended before, and its record is alive. No transaction is open.
    Ended(Record),
    /// Another transaction is working on the key right now. No transaction is open.
    InFlight,
}

/// A key's record and the time it was read at.
#[derive(Debug)]
pub(crate) struct LookUp {
    pub(crate) now: Timestamp,
    pub(crate) record: Option<Record>,
}

/// Which keys are deleted.
#[derive(Clone, Copy)]
pub(crate) enum Doomed<'a> {
    Expired(Offset),
    OwnedBy(&'a Owner),
}

/// A table whose rows go when they are old enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aging {
    /// Messages, and their failed attempts with them: by when they were published.
    Messages,
    /// Deliveries that have ended: by when they did.
    History,
    /// What was pushed into streams: by when it was.
    Entries,
    /// Streams: by when something was last pushed into them.
    Streams,
    /// Records of messages that consumers have handled: by when they were received.
    Inbox,
    /// Ticks that jobs were made of: by when they were due.
    Ticks,
}

/// How old that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aged {
    pub(crate) retention: Duration,
    pub(crate) offset: Offset,
}

/// What is written when a command ends.
pub(crate) struct Settlement<'a> {
    pub(crate) key: &'a Key,
    pub(crate) fingerprint: &'a Fingerprint,
    pub(crate) stored: &'a Stored,
    pub(crate) offset: Offset,
    pub(crate) retention: Duration,
    /// What was published.
    pub(crate) messages: &'a [NewMessage],
}

/// What is written when a transaction without a key ends.
pub(crate) struct Seal<'a> {
    /// The row that was worked on, which leaves the queue.
    pub(crate) lease: Option<&'a Lease>,
    /// What was published.
    pub(crate) messages: &'a [NewMessage],
    pub(crate) offset: Offset,
}

impl Seal<'_> {
    /// Nothing is written.
    #[cfg(feature = "sqlite")]
    pub(crate) const NOTHING: Self = Seal {
        lease: None,
        messages: &[],
        offset: Offset(0),
    };
}

/// How a COMMIT can fail.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// The database said no: nothing was committed.
    Refused(Error),
    /// Nobody said anything: it may have been committed.
    Unknown(Error),
}

/// Errors that mean the same whatever the database is.
fn classify_common(error: &sqlx::Error) -> Code {
    match error {
        sqlx::Error::PoolTimedOut => Code::PoolExhausted,
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => Code::ConnectionLost,
        sqlx::Error::Configuration(_) => Code::ConfigurationInvalid,
        _ => Code::Database,
    }
}

/// Whether a query that wants a row found none.
pub(crate) fn is_missing_row(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::RowNotFound)
}

/// Whether the rows violate a constraint of the user's tables.
pub(crate) fn is_constraint(error: &sqlx::Error) -> bool {
    use sqlx::error::ErrorKind;
    error.as_database_error().is_some_and(|error| match error.kind() {
        ErrorKind::UniqueViolation
        | ErrorKind::ForeignKeyViolation
        | ErrorKind::NotNullViolation
        | ErrorKind::CheckViolation
        | ErrorKind::ExclusionViolation => true,
        // What sqlx does not name yet is no constraint we know of.
        _ => false,
    })
}

// sqlx keeps its transaction depth in these three. A raw `BEGIN` would leave the depth at 0, and a nested
// `begin` of the handler would then begin, and commit, what is ours.

fn begin_transaction<Db: sqlx::Database>(
    conn: &mut Db::Connection,
    statement: sqlx::SqlStr,
) -> impl Future<Output = sqlx::Result<()>> + Send + '_ {
    Db::TransactionManager::begin(conn, Some(statement))
}

fn commit_transaction<Db: sqlx::Database>(
    conn: &mut Db::Connection,
) -> impl Future<Output = sqlx::Result<()>> + Send + '_ {
    Db::TransactionManager::commit(conn)
}

fn rollback_transaction<Db: sqlx::Database>(
    conn: &mut Db::Connection,
) -> impl Future<Output = sqlx::Result<()>> + Send + '_ {
    Db::TransactionManager::rollback(conn)
}

pub(crate) fn begin_savepoint<Db: sqlx::Database>(
    conn: &mut Db::Connection,
) -> impl Future<Output = sqlx::Result<()>> + Send + '_ {
    Db::TransactionManager::begin(conn, None)
}

pub(crate) fn release_savepoint<Db: sqlx::Database>(
    conn: &mut Db::Connection,
) -> impl Future<Output = sqlx::Result<()>> + Send + '_ {
    Db::TransactionManager::commit(conn)
}

pub(crate) fn rollback_savepoint<Db: sqlx::Database>(
    conn: &mut Db::Connection,
) -> impl Future<Output = sqlx::Result<()>> + Send + '_ {
    Db::TransactionManager::rollback(conn)
}

/// 0: no transaction; 1: a transaction; more: savepoints inside it.
pub(crate) fn transaction_depth<Db: sqlx::Database>(conn: &Db::Connection) -> usize {
    Db::TransactionManager::get_transaction_depth(conn)
}

/// The same, for those who would act on more than `expected`. sqlx counts on SQLite when its thread gets there, and is behind
/// when a nested transaction was dropped a moment ago: a ping waits for that.
pub(crate) async fn depth_beyond<Db: sqlx::Database>(conn: &mut Db::Connection, expected: usize) -> usize {
    if transaction_depth::<Db>(conn) > expected {
        // A connection that does not answer is noticed by the next statement.
        let _ = conn.ping().await;
    }
    transaction_depth::<Db>(conn)
}
