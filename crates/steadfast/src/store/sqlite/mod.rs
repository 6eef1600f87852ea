//! SQLite: one writer connection of our own in the user's file, and the user's pool to read with.
//!
//! Every write transaction begins IMMEDIATE: a deferred one that reads first and then writes fails at once when
//! another process has committed in between, whatever the busy timeout says. Waiting happens in one place,
//! for a turn on the writer, so a process never meets its own lock.

mod audit;
mod batches;
mod breakers;
mod doctor;
mod gate;
mod inbox;
mod jobs;
mod keys;
mod letters;
mod limits;
mod migrations;
mod operations;
mod outbox;
mod purge;
mod queue;
mod reports;
mod schedules;
mod stats;
mod streams;
mod targets;
mod writer;

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Sqlite, SqliteConnection, SqlitePool};
use uuid::Uuid;

use super::jobs::QueueRow;
use super::{
    Aged, Aging, AppliedMigration, Begin, Begun, CommitError, Doomed, Guard, LookUp, Migration, Names, Seal,
    Settlement, Store, classify_common,
};
use crate::audit::{AuditEntry, AuditFilter, AuditRow};
use crate::breaker::{BreakerRow, BreakerWrite};
use crate::clock::{self, Offset, Timestamp};
use crate::command::{Key, KeyColumns, KeyFilter, Quota};
use crate::doctor::Check;
use crate::error::{Code, Error, Result};
use crate::lease::Lease;
use crate::outbox::stats::{CountedKind, FinishedRow, PublishedRow, SizeRow};
use crate::outbox::{NewMessage, TargetRow};
use crate::queue::{Back, Claim, Claims, Done, KnownKind, PutBack, Renewed, Untouched, done_word};

use writer::{Patience, Turn, Writer};

/// How long a command waits for the writer, and the writer for another process. Longer than a healthy
/// transaction, shorter than the patience of a client.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Readers of a pool that we opened. They do not block anybody; more than this only costs memory.
const READERS_MAX: u32 = 8;

pub struct SqliteStore {
    readers: SqlitePool,
    writer: Arc<Writer>,
    names: Arc<Names>,
    _guard: Arc<Guard>,
}

impl SqliteStore {
    /// Makes a statement of our own durable. All of them can be repeated, so what became of a COMMIT is not asked.
    async fn end_turn(&self, mut turn: Turn) -> Result<()> {
        self.seal(&mut turn, &Seal::NOTHING).await?;
        turn.commit().await.map_err(|error| match error {
            CommitError::Refused(error) | CommitError::Unknown(error) => error,
        })
    }

    fn fail(what: &str) -> impl FnOnce(sqlx::Error) -> Error + '_ {
        move |error| Self::error(error, what)
    }
}

impl Store<Sqlite> for SqliteStore {
    const BOOTSTRAP: &'static str = migrations::BOOTSTRAP;
    const RECORD_MIGRATION: &'static str = migrations::RECORD;
    const MIGRATIONS: &'static [Migration] = migrations::ALL;

    async fn connect(url: &str) -> Result<(SqlitePool, Guard)> {
        let mut options: SqliteConnectOptions = url.parse().map_err(Self::fail("reading the database URL"))?;
        let mut guard = Guard::default();
        if is_in_memory(&options) {
            // One connection cannot carry the writer and the readers, so "in memory" is a private file.
            let directory = tempfile::tempdir().map_err(|error| {
                Error::new(
                    Code::ConfigurationInvalid,
                    "no directory for a temporary database can be made",
                )
                .with_source(error)
            })?;
            options = SqliteConnectOptions::new().filename(directory.path().join("memory.db"));
            guard.directory = Some(directory);
        }
        let pool = SqlitePoolOptions::new()
            .max_connections(READERS_MAX)
            .acquire_timeout(BUSY_TIMEOUT)
            .connect_lazy_with(settings(options).create_if_missing(true));
        let patience = Patience::new(BUSY_TIMEOUT);
        while let Err(error) = pool.acquire().await {
            patience.bear(Self::error(error, "opening the database file")).await?;
        }
        Ok((pool, guard))
    }

    fn new(pool: SqlitePool, names: Arc<Names>, guard: Arc<Guard>) -> Result<Self> {
        let options = pool.connect_options();
        if is_in_memory(&options) {
            return Err(Error::new(
                Code::ConfigurationInvalid,
                "a pool on sqlite::memory: cannot be shared with a writer; open it by Steadfast::connect(\"sqlite::memory:\"), \
                 which keeps a private file and deletes it at the end",
            ));
        }
        // A user who is less patient with the pool is less patient with the writer too.
        let patience = pool.options().get_acquire_timeout().min(BUSY_TIMEOUT);
        let options = settings((*options).clone()).busy_timeout(patience);
        Ok(Self {
            readers: pool,
            writer: Arc::new(Writer::new(options, patience)),
            names,
            _guard: guard,
        })
    }

    fn pool(&self) -> &SqlitePool {
        &self.readers
    }

    async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1 FROM sqlite_schema")
            .execute(&self.readers)
            .await
            .map(drop)
            .map_err(Self::fail("asking SQLite whether it is there"))
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(clock::machine())
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        doctor::examine(&self.readers).await
    }

    const READS_ARE_CHEAP: bool = true;
    // sqlx's worker rolls back a BEGIN whose caller is gone, and a turn that is dropped is handed on.
    const BEGIN_IS_CANCEL_SAFE: bool = true;
    type Held = Turn;

    async fn begin(&self, begin: Begin) -> Result<Begun<Turn>> {
        let mut turn = self.writer.take_turn(begin.is_alone).await?;
        let Some(key) = &begin.key else {
            return Ok(Begun::Ours(turn));
        };
        if begin.absent_at.is_some_and(|moment| turn.is_alone_since(moment)) {
            return Ok(Begun::Ours(turn));
        }
        match keys::claim(&mut turn, &self.names, key, begin.offset).await? {
            // Whoever holds the write lock of the file is alone, so there is nobody in flight.
            None => Ok(Begun::Ours(turn)),
            Some(record) => {
                turn.undo().await?;
                // A guest of an earlier turn may have written it, and that one has not committed yet.
                turn.saw_the_truth().await?;
                Ok(Begun::Ended(record))
            }
        }
    }

    async fn began(&self, turn: &mut Turn) -> Result<Timestamp> {
        Ok(turn.began)
    }

    async fn settle(&self, turn: &mut Turn, settlement: &Settlement<'_>) -> Result<bool> {
        turn.check()?;
        keys::settle(turn, &self.names, settlement).await
    }

    async fn seal(&self, turn: &mut Turn, seal: &Seal<'_>) -> Result<bool> {
        turn.check()?;
        if let Some(lease) = seal.lease {
            let done = Done {
                lease,
                state: done_word(&lease.kind),
                detail: None,
                was_busy: false,
                yields: true,
            };
            let untouched = queue::finish(turn, &self.names, &[done], seal.offset).await?;
            if !untouched.lost.is_empty() {
                return Ok(false);
            }
        }
        if !seal.messages.is_empty() {
            outbox::publish(turn, &self.names, seal.messages, seal.offset).await?;
        }
        turn.seal().await?;
        Ok(true)
    }

    async fn commit(&self, turn: &mut Turn) -> Result<(), CommitError> {
        turn.commit().await
    }

    async fn rollback(&self, turn: &mut Turn) -> Result<()> {
        turn.undo().await
    }

    async fn saw_the_truth(&self, turn: &mut Turn) -> Result<()> {
        turn.saw_the_truth().await
    }

    async fn missed_duplicate(&self, _: &mut Turn, _: &Key) -> Result<Option<LookUp>> {
        // Whoever claims has the lock of the file, and looks after that.
        Ok(None)
    }

    fn abandon(&self, turn: Turn) -> impl Future<Output = ()> + Send + 'static {
        turn.abandon()
    }

    async fn is_running(&self, _: &Key) -> Result<bool> {
        // The connection that ran it is closed, and nobody else could have taken it over.
        Ok(false)
    }

    async fn look_up(&self, key: &Key) -> Result<LookUp> {
        // A reader never waits for the writer: a completed key is replayed while others write.
        let mut conn = self
            .readers
            .acquire()
            .await
            .map_err(Self::fail("waiting for a reader"))?;
        Ok(LookUp {
            now: clock::machine(),
            record: keys::look_up(&mut conn, &self.names, key).await?,
        })
    }

    async fn list_keys(&self, filter: &KeyFilter) -> Result<Vec<KeyColumns>> {
        keys::list(&self.readers, &self.names, filter).await
    }

    async fn remove_key(&self, turn: &mut Turn, key: &Key) -> Result<bool> {
        keys::remove(turn, &self.names, key).await
    }

    async fn charge(&self, conn: &mut SqliteConnection, settlement: &Settlement<'_>, quota: Quota) -> Result<bool> {
        purge::charge(conn, &self.names, settlement, quota).await
    }

    const PURGE_STEP: i64 = purge::STEP;

    async fn key_places(&self) -> Result<Range<i64>> {
        purge::places(&self.readers, &self.names).await
    }

    async fn delete_keys(&self, places: Range<i64>, doomed: &Doomed<'_>) -> Result<u64> {
        let mut turn = self.writer.take_turn(false).await?;
        let deleted = purge::delete(&mut turn, &self.names, places, doomed).await?;
        self.end_turn(turn).await?;
        Ok(deleted)
    }

    async fn count_expired(&self, places: Range<i64>, offset: Offset) -> Result<u64> {
        purge::count_expired(&self.readers, &self.names, places, offset).await
    }

    async fn aged_stretches(&self, table: Aging) -> Result<Vec<Range<i64>>> {
        purge::aged_stretches(&self.readers, &self.names, table).await
    }

    async fn delete_aged(&self, table: Aging, places: Range<i64>, aged: Aged) -> Result<u64> {
        // A stretch that has nothing to go costs the writer nothing.
        if self.count_aged(table, places.clone(), aged).await? == 0 {
            return Ok(0);
        }
        let mut turn = self.writer.take_turn(false).await?;
        let deleted = purge::delete_aged(&mut turn, &self.names, table, places, aged).await?;
        self.end_turn(turn).await?;
        Ok(deleted)
    }

    async fn count_aged(&self, table: Aging, places: Range<i64>, aged: Aged) -> Result<u64> {
        purge::count_aged(&self.readers, &self.names, table, places, aged).await
    }

    async fn take_lease(&self, name: &str, holder: &str, ttl: Duration, offset: Offset) -> Result<Option<i64>> {
        let mut turn = self.writer.take_turn(false).await?;
        let token = purge::take_lease(&mut turn, &self.names, name, holder, ttl, offset).await?;
        self.end_turn(turn).await?;
        Ok(token)
    }

    async fn release_lease(&self, name: &str, holder: &str) -> Result<()> {
        let mut turn = self.writer.take_turn(false).await?;
        purge::release_lease(&mut turn, &self.names, name, holder).await?;
        self.end_turn(turn).await
    }

    async fn read_breakers(&self, names: Option<&[&str]>, offset: Offset) -> Result<Vec<BreakerRow>> {
        breakers::read(&self.readers, &self.names, names, offset).await
    }

    async fn write_breaker(&self, write: &BreakerWrite<'_>, offset: Offset) -> Result<Option<i64>> {
        let mut turn = self.writer.take_turn(false).await?;
        let epoch = breakers::write(&mut turn, &self.names, write, offset).await?;
        self.end_turn(turn).await?;
        Ok(epoch)
    }

    async fn write_breaker_in(
        &self,
        conn: &mut SqliteConnection,
        write: &BreakerWrite<'_>,
        offset: Offset,
    ) -> Result<Option<i64>> {
        breakers::write(conn, &self.names, write, offset).await
    }

    // They see that the file has changed.
    const NEEDS_ANNOUNCEMENTS: bool = false;
    type Link = queue::Link;

    async fn open_link(&self) -> Result<queue::Link> {
        Ok(queue::Link::new(self.readers.connect_options().get_filename()))
    }

    /// It has an ear all the same, which costs nothing while nobody listens.
    async fn open_deaf_link(&self) -> Result<queue::Link> {
        self.open_link().await
    }

    async fn woken(&self, link: &mut queue::Link) -> Result<Vec<String>> {
        link.woken().await;
        Ok(Vec::new())
    }

    async fn announce(&self) -> Result<()> {
        Ok(())
    }

    /// Every commit is heard, and nobody can tell what it was about: other processes find out when they renew.
    async fn announce_cancel(&self, _: &str) -> Result<()> {
        Ok(())
    }

    async fn claim(&self, link: &mut queue::Link, claim: &Claim<'_>, offset: Offset) -> Result<Claims> {
        link.has_seen();
        let queue::Glance { is_due, next_in } = queue::glance(&self.readers, &self.names, claim, offset).await?;
        if !is_due {
            return Ok(Claims {
                next_in,
                ..Claims::default()
            });
        }
        let mut turn = self.writer.take_turn(false).await?;
        // Whoever has the turn is alone, and sees what was written until now. What others write from its end on is to be heard, and
        // our own commit cannot be told from it.
        link.has_seen();
        let from = Some(Instant::now());
        let claims = queue::claim(&mut turn, &self.names, claim, offset).await?;
        if !claims.rows.is_empty() {
            // A claim whose answer is late is worth nothing, and costs its rows an attempt.
            turn.end_group();
        }
        self.end_turn(turn).await?;
        Ok(Claims {
            from,
            next_in: [next_in, claims.next_in].into_iter().flatten().min(),
            ..claims
        })
    }

    async fn renew(&self, _: &mut queue::Link, leases: &[(&Lease, Duration)], offset: Offset) -> Result<Renewed> {
        let mut turn = self.writer.take_first_turn().await?;
        let from = Instant::now();
        let (untouched, cancelled) = queue::renew(&mut turn, &self.names, leases, offset).await?;
        self.end_turn(turn).await?;
        Ok(Renewed {
            from,
            untouched,
            cancelled,
        })
    }

    fn alone_since(&self) -> Option<Instant> {
        self.writer.alone_since()
    }

    async fn finish(&self, _: &mut queue::Link, done: &[Done<'_>], offset: Offset) -> Result<Untouched> {
        let mut turn = self.writer.take_turn(false).await?;
        let untouched = queue::finish(&mut turn, &self.names, done, offset).await?;
        self.end_turn(turn).await?;
        Ok(untouched)
    }

    async fn park(
        &self,
        _: &mut queue::Link,
        kind: &str,
        full_keys: &[Arc<str>],
        lease: Duration,
        offset: Offset,
    ) -> Result<()> {
        let mut turn = self.writer.take_turn(false).await?;
        queue::park(&mut turn, &self.names, kind, full_keys, lease, offset).await?;
        self.end_turn(turn).await
    }

    async fn put_back(&self, _: &mut queue::Link, back: &[Back<'_>], offset: Offset) -> Result<PutBack> {
        let mut turn = self.writer.take_turn(false).await?;
        let put_back = queue::put_back(&mut turn, &self.names, back, offset).await?;
        self.end_turn(turn).await?;
        Ok(put_back)
    }

    async fn see_kinds(&self, _: &mut queue::Link, kinds: &[KnownKind], offset: Offset) -> Result<()> {
        let mut turn = self.writer.take_turn(false).await?;
        queue::see_kinds(&mut turn, &self.names, kinds, offset).await?;
        self.end_turn(turn).await
    }

    async fn declare(
        &self,
        targets: &[TargetRow],
        kinds: &[KnownKind],
        queues: &[QueueRow],
        offset: Offset,
    ) -> Result<()> {
        let mut turn = self.writer.take_turn(false).await?;
        outbox::declare(&mut turn, &self.names, targets, offset).await?;
        jobs::declare(&mut turn, &self.names, queues, offset).await?;
        queue::see_kinds(&mut turn, &self.names, kinds, offset).await?;
        self.end_turn(turn).await
    }

    async fn publish_as_guest(
        &self,
        conn: &mut SqliteConnection,
        messages: &[NewMessage],
        offset: Offset,
    ) -> Result<()> {
        outbox::publish(conn, &self.names, messages, offset).await
    }

    async fn kind_counts(&self, offset: Offset) -> Result<Vec<CountedKind>> {
        stats::kinds(&self.readers, &self.names, offset).await
    }

    async fn finished_since(&self, since: Timestamp, first: Uuid) -> Result<Vec<FinishedRow>> {
        stats::finished_since(&self.readers, &self.names, since, first).await
    }

    async fn published_since(&self, first: Uuid) -> Result<PublishedRow> {
        stats::published_since(&self.readers, &self.names, first).await
    }

    async fn outbox_size(&self, offset: Offset) -> Result<SizeRow> {
        stats::size(&self.readers, &self.names, offset).await
    }

    async fn check_guest(&self, conn: &mut SqliteConnection) -> Result<()> {
        // BEGIN fails inside a transaction, and so tells that there is one.
        match sqlx::raw_sql("BEGIN").execute(&mut *conn).await {
            Err(error) if error.to_string().contains("within a transaction") => Ok(()),
            Err(error) => Err(Self::error(error, "looking at the transaction")),
            Ok(_) => {
                sqlx::raw_sql("ROLLBACK")
                    .execute(conn)
                    .await
                    .map_err(Self::fail("looking at the transaction"))?;
                Err(Error::new(
                    Code::TransactionBroken,
                    "SQLite has rolled your transaction back (the disk was full, or a statement said OR ROLLBACK), and you went \
                     on; nothing of ours was written. Return the error of a failed statement",
                ))
            }
        }
    }

    async fn claim_as_guest(&self, conn: &mut SqliteConnection, key: &Key, offset: Offset) -> Result<Begun<()>> {
        let record = keys::claim(conn, &self.names, key, offset).await?;
        Ok(record.map_or(Begun::Ours(()), Begun::Ended))
    }

    async fn settle_as_guest(&self, conn: &mut SqliteConnection, settlement: &Settlement<'_>) -> Result<bool> {
        keys::settle_as_guest(conn, &self.names, settlement).await
    }

    async fn append_audit(&self, conn: &mut SqliteConnection, entry: &AuditEntry, offset: Offset) -> Result<()> {
        audit::append(conn, &self.names, entry, offset).await
    }

    async fn list_audit(&self, filter: &AuditFilter) -> Result<Vec<AuditRow>> {
        audit::list(&self.readers, &self.names, filter).await
    }

    async fn applied_migrations(&self) -> Result<Vec<AppliedMigration>> {
        migrations::applied(&self.readers, &self.names).await
    }

    async fn schema_version(&self) -> Result<Option<i64>> {
        migrations::version(&self.readers, &self.names).await
    }

    fn names(&self) -> &Names {
        &self.names
    }

    async fn survey(&self) -> Result<()> {
        // SQLite checks deferred foreign keys at COMMIT, when nobody can tell any more whose they are.
        if doctor::has_deferred_keys(&self.readers).await? {
            self.writer.commit_alone();
            tracing::info!("the database has deferred foreign keys, so every command commits by itself");
        }
        Ok(())
    }

    async fn migrate(&self) -> Result<usize> {
        migrations::run(self).await
    }

    fn classify(error: &sqlx::Error) -> Code {
        let Some(code) = error.as_database_error().and_then(|error| error.code()) else {
            return classify_common(error);
        };
        // The low byte of an extended result code is the primary one.
        match code.parse::<u32>().map(|code| code & 0xff) {
            Ok(5 | 6) => Code::Locked,
            Ok(8) => Code::ReadOnly,
            Ok(3) => Code::NotPermitted,
            Ok(13) => Code::Full,
            Ok(10 | 14) => Code::Unreachable,
            Ok(1) if error.to_string().contains("no such table") => Code::TablesMissing,
            _ => Code::Database,
        }
    }

    fn remedy(error: &sqlx::Error) -> Option<&'static str> {
        if let sqlx::Error::Configuration(_) = error {
            return Some("write sqlite://FILE");
        }
        let code = error.as_database_error().and_then(|error| error.code())?;
        Some(match code.parse::<u32>().map(|code| code & 0xff) {
            Ok(8) => {
                "use a user who may write the file and its directory, where SQLite keeps its log; who may only read can look \
                 while a service has the file open"
            }
            Ok(10 | 14) => "look whether the file can be opened: its path, and your rights on it and on its directory",
            Ok(11 | 26) => "name another file, or restore a backup: this one is not a SQLite database, or is damaged",
            _ => return None,
        })
    }
}

fn settings(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
}

fn is_in_memory(options: &SqliteConnectOptions) -> bool {
    let name = options.get_filename().to_string_lossy();
    // `?mode=memory` leaves the name alone, and only the debug form of the options tells.
    name.is_empty() || name.contains(":memory:") || format!("{options:?}").contains("in_memory: true")
}
