//! PostgreSQL 13 and later: our schema beside the user's tables, on the user's own pool.
//!
//! READ COMMITTED is the contract. Guarantees rest on the primary key of `keys` and on row locks; the advisory
//! lock only makes meeting a duplicate cheap.

mod audit;
mod batches;
mod breakers;
mod doctor;
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

#[cfg(feature = "testing")]
pub(crate) use queue::{PLANNER, STATEMENTS};

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool, Postgres};
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::jobs::QueueRow;
use super::{
    Aged, Aging, AppliedMigration, Begin, Begun, CommitError, Doomed, Guard, LookUp, Migration, Names, Seal,
    Settlement, Store, begin_transaction, classify_common, commit_transaction, rollback_transaction,
};
use crate::audit::{AuditEntry, AuditFilter, AuditRow};
use crate::breaker::{BreakerRow, BreakerWrite};
use crate::clock::{Offset, Timestamp};
use crate::command::{Key, KeyColumns, KeyFilter, Quota};
use crate::doctor::Check;
use crate::error::{Code, Error, Result};
use crate::lease::Lease;
use crate::outbox::stats::{CountedKind, FinishedRow, PublishedRow, SizeRow};
use crate::outbox::{NewMessage, TargetRow};
use crate::queue::{Back, Claim, Claims, Done, KnownKind, PutBack, Renewed, Untouched};

use keys::PreparedClaim;

/// How long a request waits for a connection of a pool that we opened. Short, so that a caller learns that the
/// database is away while it still listens.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server that did not let the pool in may take to say why.
const ASK_LIMIT: Duration = Duration::from_secs(1);

/// How long a server may take to answer COMMIT before its connection is given up and another one is asked.
const COMMIT_LIMIT: Duration = Duration::from_secs(10);

/// How long a transaction that was dropped may take to roll back before its connection is closed under it.
const ABANDON_LIMIT: Duration = Duration::from_secs(1);

/// How often beginning is tried, beyond once for each connection of the pool: the statement may have to be prepared, an
/// expired record make room.
const BEGIN_ATTEMPTS: u32 = 4;

/// Makes the server look once a second, also in the middle of a statement, whether its client is still there.
const WATCH_CLIENT_MILLIS: u32 = 1000;

pub struct PostgresStore {
    pool: PgPool,
    names: Arc<Names>,
    claim: PreparedClaim,
    /// Whether the server can notice in the middle of a statement that its client is gone (PostgreSQL 14, on most systems).
    watches_clients: OnceCell<bool>,
}

impl PostgresStore {
    /// Tries the setting until a server has taken or refused it: version 13 does not know it, some systems cannot do it.
    async fn watch_millis(&self, conn: &mut PgConnection) -> u32 {
        let ask = async || match sqlx::query("SELECT set_config('client_connection_check_interval', $1, true)")
            .bind(WATCH_CLIENT_MILLIS.to_string())
            .execute(conn)
            .await
        {
            Ok(_) => Ok(true),
            Err(sqlx::Error::Database(error)) if matches!(error.code().as_deref(), Some("42704" | "22023")) => {
                Ok(false)
            }
            Err(error) => Err(error),
        };
        match self.watches_clients.get_or_try_init(ask).await {
            Ok(true) => WATCH_CLIENT_MILLIS,
            _ => 0,
        }
    }

    async fn acquire(&self) -> Result<PoolConnection<Postgres>> {
        self.pool
            .acquire()
            .await
            .map_err(|error| Self::acquire_error(&self.pool, error))
    }

    /// An error of taking a connection: sqlx goes on trying to connect until the time is over, and then says only that.
    fn acquire_error(pool: &PgPool, error: sqlx::Error) -> Error {
        match Self::error(error, "taking a connection from the pool") {
            error
                if error.code() == Code::ConnectionLost
                    || (error.code() == Code::PoolExhausted && pool.size() == 0) =>
            {
                Error::new(Code::Unreachable, "PostgreSQL does not accept connections").with_source(error)
            }
            error => error,
        }
    }

    fn fail(what: &str) -> impl FnOnce(sqlx::Error) -> Error + '_ {
        move |error| Self::error(error, what)
    }
}

/// Why there is no connection. The pool tries until its time is over and then says only that, so it is tried once more
/// without it.
async fn why_not(error: sqlx::Error, pool: &PgPool) -> sqlx::Error {
    if !matches!(error, sqlx::Error::PoolTimedOut) {
        return error;
    }
    let options = pool.connect_options();
    match tokio::time::timeout(ASK_LIMIT, PgConnection::connect_with(&options)).await {
        Ok(Err(cause)) => cause,
        _ => error,
    }
}

/// Ends a transaction that was refused by an error of ours while it began, which sqlx does not know of. A connection that
/// cannot do that is closed.
async fn end_refused(conn: &mut PoolConnection<Postgres>) -> Result<()> {
    let ended = sqlx::raw_sql("ROLLBACK").execute(&mut **conn).await;
    ended.map(drop).map_err(|error| {
        conn.close_on_drop();
        PostgresStore::error(error, "ending a transaction")
    })
}

impl Store<Postgres> for PostgresStore {
    const BOOTSTRAP: &'static str = migrations::BOOTSTRAP;
    const RECORD_MIGRATION: &'static str = migrations::RECORD;
    const MIGRATIONS: &'static [Migration] = migrations::ALL;

    async fn connect(url: &str) -> Result<(PgPool, Guard)> {
        let options: PgConnectOptions = url.parse().map_err(Self::fail("reading the database URL"))?;
        let pool = PgPoolOptions::new()
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .connect_lazy_with(options);
        if let Err(error) = pool.acquire().await {
            let error = Self::acquire_error(&pool, why_not(error, &pool).await);
            return Err(error);
        }
        Ok((pool, Guard::default()))
    }

    fn new(pool: PgPool, names: Arc<Names>, _: Arc<Guard>) -> Result<Self> {
        Ok(Self {
            pool,
            claim: PreparedClaim::new(&names),
            names,
            watches_clients: OnceCell::new(),
        })
    }

    fn pool(&self) -> &PgPool {
        &self.pool
    }

    async fn ping(&self) -> Result<()> {
        // Not prepared: behind a pooler in transaction mode that may fail, which is another matter.
        sqlx::raw_sql("SELECT 1")
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(Self::fail("asking PostgreSQL whether it is there"))
    }

    async fn now(&self) -> Result<Timestamp> {
        keys::now(&self.pool).await
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        doctor::examine(self).await
    }

    // A look costs a round trip; the claim looks in the one that begins.
    const READS_ARE_CHEAP: bool = false;
    const BEGIN_IS_CANCEL_SAFE: bool = false;
    type Held = PoolConnection<Postgres>;

    async fn begin(&self, begin: Begin) -> Result<Begun<PoolConnection<Postgres>>> {
        let mut attempts_left = self.pool.options().get_max_connections() + BEGIN_ATTEMPTS;
        let mut conn = self.acquire().await?;
        let watch_millis = self.watch_millis(&mut conn).await;
        loop {
            let statement = self.claim.begin(&self.names, &begin, watch_millis);
            let Err(error) = begin_transaction::<Postgres>(&mut conn, statement).await else {
                return Ok(Begun::Ours(conn));
            };
            attempts_left -= 1;
            let state = error.as_database_error().and_then(|error| error.code());
            match (state.as_deref(), &begin.key) {
                _ if attempts_left == 0 => {
                    conn.close_on_drop();
                    return Err(Self::error(error, "beginning a transaction"));
                }
                (Some(keys::NOT_PREPARED), _) => {
                    end_refused(&mut conn).await?;
                    self.claim.prepare(&mut conn).await?;
                }
                (Some(keys::IN_FLIGHT), _) => {
                    end_refused(&mut conn).await?;
                    return Ok(Begun::InFlight);
                }
                (Some(keys::EXPIRED), Some(key)) => {
                    end_refused(&mut conn).await?;
                    keys::make_room(&mut conn, &self.names, key, begin.offset).await?;
                }
                (Some(keys::ENDED), Some(key)) => {
                    end_refused(&mut conn).await?;
                    let look_up = keys::look_up(&mut *conn, &self.names, key).await?;
                    let now = begin.offset.of(look_up.now);
                    // Unless it has expired in between.
                    if let Some(record) = look_up.record.filter(|record| record.is_live(now)) {
                        return Ok(Begun::Ended(record));
                    }
                }
                _ => {
                    // Either its socket is stale (the server was restarted: all of the pool may be), or somebody
                    // left a transaction open on it. Nobody should get it again.
                    conn.close_on_drop();
                    conn = self.acquire().await?;
                }
            }
        }
    }

    async fn began(&self, conn: &mut PoolConnection<Postgres>) -> Result<Timestamp> {
        keys::began(conn).await
    }

    async fn settle(&self, conn: &mut PoolConnection<Postgres>, settlement: &Settlement<'_>) -> Result<bool> {
        match settlement.messages.is_empty() {
            true => keys::settle(conn, &self.names, settlement).await,
            false => outbox::settle(conn, &self.names, settlement).await,
        }
    }

    async fn seal(&self, conn: &mut PoolConnection<Postgres>, seal: &Seal<'_>) -> Result<bool> {
        // COMMIT of an aborted transaction "succeeds" with the tag ROLLBACK; any statement before it fails.
        match (seal.lease, seal.messages.is_empty()) {
            (None, true) => keys::check_same(conn).await.map(|()| true),
            (None, false) => outbox::publish(conn, &self.names, seal.messages, seal.offset)
                .await
                .map(|()| true),
            (Some(lease), true) => queue::settle(conn, &self.names, lease, seal.offset).await,
            (Some(lease), false) => outbox::settle_row(conn, &self.names, lease, seal.messages, seal.offset).await,
        }
    }

    async fn commit(&self, conn: &mut PoolConnection<Postgres>) -> Result<(), CommitError> {
        let Ok(committed) = tokio::time::timeout(COMMIT_LIMIT, commit_transaction::<Postgres>(conn)).await else {
            let message = format!("the server did not answer COMMIT within {COMMIT_LIMIT:?}");
            return Err(CommitError::Unknown(Error::new(Code::ConnectionLost, message)));
        };
        let Err(error) = committed else {
            return Ok(());
        };
        let code = match Self::classify(&error) {
            Code::ConnectionLost => {
                return Err(CommitError::Unknown(Self::error(error, "committing")));
            }
            Code::Database => Code::CommitRefused,
            code => code,
        };
        // The server says no before it has let go of the key, and answers the next one when it has: who tries again at once should
        // find the key free.
        let _ = tokio::time::timeout(COMMIT_LIMIT, conn.ping()).await;
        Err(CommitError::Refused(Error::new(code, code.title()).with_source(error)))
    }

    async fn rollback(&self, conn: &mut PoolConnection<Postgres>) -> Result<()> {
        rollback_transaction::<Postgres>(conn)
            .await
            .map_err(Self::fail("rolling back"))
    }

    async fn saw_the_truth(&self, _: &mut PoolConnection<Postgres>) -> Result<()> {
        // READ COMMITTED: there is nothing else to see.
        Ok(())
    }

    async fn missed_duplicate(&self, conn: &mut PoolConnection<Postgres>, key: &Key) -> Result<Option<LookUp>> {
        keys::look_up(&mut **conn, &self.names, key).await.map(Some)
    }

    fn abandon(&self, mut conn: PoolConnection<Postgres>) -> impl Future<Output = ()> + Send + 'static {
        conn.close_on_drop();
        async move {
            // What still runs is not waited for: the server notices that its client is gone, see `CLAIM`.
            let _ = tokio::time::timeout(ABANDON_LIMIT, sqlx::raw_sql("ROLLBACK").execute(&mut *conn)).await;
        }
    }

    async fn is_running(&self, key: &Key) -> Result<bool> {
        keys::is_running(&self.pool, &self.names, key).await
    }

    async fn look_up(&self, key: &Key) -> Result<LookUp> {
        keys::look_up(&self.pool, &self.names, key).await
    }

    async fn list_keys(&self, filter: &KeyFilter) -> Result<Vec<KeyColumns>> {
        keys::list(&self.pool, &self.names, filter).await
    }

    async fn remove_key(&self, conn: &mut PoolConnection<Postgres>, key: &Key) -> Result<bool> {
        keys::remove(conn, &self.names, key).await
    }

    async fn charge(&self, conn: &mut PgConnection, settlement: &Settlement<'_>, quota: Quota) -> Result<bool> {
        purge::charge(conn, &self.names, settlement, quota).await
    }

    const PURGE_STEP: i64 = purge::STEP;

    async fn key_places(&self) -> Result<Range<i64>> {
        purge::places(&self.pool, &self.names).await
    }

    async fn delete_keys(&self, places: Range<i64>, doomed: &Doomed<'_>) -> Result<u64> {
        purge::delete(&self.pool, &self.names, places, doomed).await
    }

    async fn count_expired(&self, places: Range<i64>, offset: Offset) -> Result<u64> {
        purge::count_expired(&self.pool, &self.names, places, offset).await
    }

    async fn aged_stretches(&self, table: Aging) -> Result<Vec<Range<i64>>> {
        purge::aged_stretches(&self.pool, &self.names, table).await
    }

    async fn delete_aged(&self, table: Aging, places: Range<i64>, aged: Aged) -> Result<u64> {
        purge::delete_aged(&self.pool, &self.names, table, places, aged).await
    }

    async fn count_aged(&self, table: Aging, places: Range<i64>, aged: Aged) -> Result<u64> {
        purge::count_aged(&self.pool, &self.names, table, places, aged).await
    }

    async fn take_lease(&self, name: &str, holder: &str, ttl: Duration, offset: Offset) -> Result<Option<i64>> {
        purge::take_lease(&self.pool, &self.names, name, holder, ttl, offset).await
    }

    async fn release_lease(&self, name: &str, holder: &str) -> Result<()> {
        purge::release_lease(&self.pool, &self.names, name, holder).await
    }

    async fn read_breakers(&self, names: Option<&[&str]>, offset: Offset) -> Result<Vec<BreakerRow>> {
        breakers::read(self, names, offset).await
    }

    async fn write_breaker(&self, write: &BreakerWrite<'_>, offset: Offset) -> Result<Option<i64>> {
        breakers::write(self, write, offset).await
    }

    async fn write_breaker_in(
        &self,
        conn: &mut PgConnection,
        write: &BreakerWrite<'_>,
        offset: Offset,
    ) -> Result<Option<i64>> {
        breakers::insert(conn, &self.names, write, offset)
            .await
            .map_err(Self::fail("writing a breaker"))
    }

    const NEEDS_ANNOUNCEMENTS: bool = true;
    type Link = queue::Link;

    async fn open_link(&self) -> Result<queue::Link> {
        queue::open(self, Some(&queue::channel(&self.names))).await
    }

    async fn open_deaf_link(&self) -> Result<queue::Link> {
        queue::open(self, None).await
    }

    async fn woken(&self, link: &mut queue::Link) -> Result<Vec<String>> {
        queue::woken(link).await
    }

    async fn announce(&self) -> Result<()> {
        queue::announce(&self.pool, &self.names, "").await
    }

    async fn announce_cancel(&self, holder: &str) -> Result<()> {
        queue::announce(&self.pool, &self.names, holder).await
    }

    async fn claim(&self, link: &mut queue::Link, claim: &Claim<'_>, offset: Offset) -> Result<Claims> {
        queue::claim(link, &self.names, claim, offset).await
    }

    async fn renew(&self, link: &mut queue::Link, leases: &[(&Lease, Duration)], offset: Offset) -> Result<Renewed> {
        let from = Instant::now();
        let (untouched, cancelled) = queue::renew(link, &self.names, leases, offset).await?;
        Ok(Renewed {
            from,
            untouched,
            cancelled,
        })
    }

    async fn finish(&self, link: &mut queue::Link, done: &[Done<'_>], offset: Offset) -> Result<Untouched> {
        queue::finish(link, &self.names, done, offset).await
    }

    async fn park(
        &self,
        link: &mut queue::Link,
        kind: &str,
        full_keys: &[Arc<str>],
        lease: Duration,
        offset: Offset,
    ) -> Result<()> {
        queue::park(link, &self.names, kind, full_keys, lease, offset).await
    }

    async fn put_back(&self, link: &mut queue::Link, back: &[Back<'_>], offset: Offset) -> Result<PutBack> {
        queue::put_back(link, &self.names, back, offset).await
    }

    async fn see_kinds(&self, link: &mut queue::Link, kinds: &[KnownKind], offset: Offset) -> Result<()> {
        queue::see_kinds(link, &self.names, kinds, offset).await
    }

    async fn declare(
        &self,
        targets: &[TargetRow],
        kinds: &[KnownKind],
        queues: &[QueueRow],
        offset: Offset,
    ) -> Result<()> {
        outbox::declare(self, targets, offset).await?;
        if !queues.is_empty() {
            jobs::declare(self, &self.names, queues, offset).await?;
        }
        queue::see(&self.pool, &self.names, kinds, offset).await
    }

    async fn publish_as_guest(&self, conn: &mut PgConnection, messages: &[NewMessage], offset: Offset) -> Result<()> {
        outbox::publish_as_guest(conn, &self.names, messages, offset).await
    }

    async fn kind_counts(&self, offset: Offset) -> Result<Vec<CountedKind>> {
        stats::kinds(&self.pool, &self.names, offset).await
    }

    async fn finished_since(&self, since: Timestamp, first: Uuid) -> Result<Vec<FinishedRow>> {
        stats::finished_since(&self.pool, &self.names, since, first).await
    }

    async fn published_since(&self, first: Uuid) -> Result<PublishedRow> {
        stats::published_since(&self.pool, &self.names, first).await
    }

    async fn outbox_size(&self, offset: Offset) -> Result<SizeRow> {
        stats::size(&self.pool, &self.names, offset).await
    }

    async fn check_guest(&self, _: &mut PgConnection) -> Result<()> {
        // An aborted transaction refuses every statement, and the settle asks whether it is still the same one.
        Ok(())
    }

    async fn claim_as_guest(&self, conn: &mut PgConnection, key: &Key, offset: Offset) -> Result<Begun<()>> {
        keys::claim_as_guest(conn, &self.names, key, offset).await
    }

    async fn settle_as_guest(&self, conn: &mut PgConnection, settlement: &Settlement<'_>) -> Result<bool> {
        keys::settle(conn, &self.names, settlement).await
    }

    async fn append_audit(&self, conn: &mut PgConnection, entry: &AuditEntry, offset: Offset) -> Result<()> {
        audit::append(conn, &self.names, entry, offset).await
    }

    async fn list_audit(&self, filter: &AuditFilter) -> Result<Vec<AuditRow>> {
        audit::list(&self.pool, &self.names, filter).await
    }

    async fn applied_migrations(&self) -> Result<Vec<AppliedMigration>> {
        migrations::applied(&self.pool, &self.names).await
    }

    async fn schema_version(&self) -> Result<Option<i64>> {
        migrations::version(&self.pool, &self.names).await
    }

    fn names(&self) -> &Names {
        &self.names
    }

    async fn survey(&self) -> Result<()> {
        // Every command has a transaction of its own here, so what it defers to its COMMIT is its own business.
        Ok(())
    }

    async fn migrate(&self) -> Result<usize> {
        migrations::run(self).await
    }

    fn classify(error: &sqlx::Error) -> Code {
        let Some(state) = error.as_database_error().and_then(|error| error.code()) else {
            return classify_common(error);
        };
        match &*state {
            "40001" | "40P01" => Code::Conflict,
            "55P03" => Code::Locked,
            "25006" => Code::ReadOnly,
            "42501" => Code::NotPermitted,
            "53100" => Code::Full,
            "53300" => Code::PoolExhausted,
            "25P02" => Code::TransactionBroken,
            // Ended by a time limit of the server: idle in transaction, or its statement_timeout.
            "25P03" | "57014" => Code::TimeLimit,
            "42P01" | "3F000" => Code::TablesMissing,
            // Connection exceptions, and a server that is starting or stopping.
            state if state.starts_with("08") || state.starts_with("57P") => Code::ConnectionLost,
            _ => Code::Database,
        }
    }

    fn remedy(error: &sqlx::Error) -> Option<&'static str> {
        if let sqlx::Error::Configuration(_) = error {
            return Some(
                "write postgres://USER@HOST/NAME, with :PASSWORD behind the user and :PORT behind the host if needed",
            );
        }
        let state = error.as_database_error().and_then(|error| error.code())?;
        Some(match &*state {
            // A statement that one connection has prepared was met by another.
            "42P05" | "26000" => doctor::POOLER_REMEDY,
            "3D000" => "create the database, or name another one in the database URL",
            "28000" | "28P01" => {
                "look at the user and the password in the database URL, and at pg_hba.conf of the server"
            }
            _ => return None,
        })
    }
}
