//! The handle a service holds: one per database, cheap to clone.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sqlx::Pool;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::audit::AuditList;
use crate::breaker::Breakers;
use crate::caller::Caller;
use crate::clock::{Clock, ReadDuration};
use crate::command::execute;
use crate::command::{
    AsyncOnce, Command, CommandOptions, Encryption, Fingerprint, InFlight, Key, KeyList, KeyLookUp, Place, Point,
    Quota, Unkeyed,
};
use crate::error::{Code, Error, Result};
use crate::failure::Failure;
use crate::inbox::Sources;
use crate::job::{Queues, Workers};
use crate::outbox::{self, Dispatcher, Gauges, OutboxStats, Reactions, stats};
use crate::queue::wake::Wake;
use crate::queue::{Health, WorkId, WorkPoint};
use crate::store::{self, Begin, Begun, CommitError, Database, Guard, MigrationStatus, Names, Store};
use crate::to_the_end::ToTheEnd;
use crate::tx::Tx;

/// How long beginning may take beyond what the pool may: a few quick statements.
const BEGIN_GRACE: Duration = Duration::from_secs(5);

/// Who publishes, unless somebody says otherwise.
const SOURCE: &str = "/steadfast";

/// How often what has expired is purged.
const PURGE_EVERY: Duration = Duration::from_secs(60 * 60);

/// How long messages are kept that nobody waits for any more, for people who ask what became of them.
const MESSAGE_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long the inbox remembers a message: longer than brokers try again, and than a weekend.
const INBOX_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The shortest that makes sense: the purge comes by more seldom.
const MESSAGE_RETENTION_MIN: Duration = Duration::from_secs(60);

/// The longest that both databases can subtract from their time.
const MESSAGE_RETENTION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Exactly-once effects on one database, the one of its pool.
///
/// ```
/// use steadfast::{Owner, Steadfast};
/// use steadfast::sqlx::{self, Sqlite};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> steadfast::Result<()> {
/// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
/// # sf.transact(async |tx| {
/// #     sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT)").execute(tx.db()).await?;
/// #     Ok(())
/// # }).await?;
/// let owner = Owner::new("tenant-1", "user-a");
/// let place = async |sku: &str| {
///     sf.command("orders.place", "key-1")
///         .owner(&owner)
///         .input(&sku)
///         .run(async |tx| {
///             let (id,): (i64,) = sqlx::query_as("INSERT INTO orders (sku) VALUES ($1) RETURNING id")
///                 .bind(sku)
///                 .fetch_one(tx.db())
///                 .await?;
///             Ok(id)
///         })
///         .await
/// };
/// let first = place("tea").await?;
/// let retry = place("tea").await?;
/// assert_eq!(first.value, retry.value);
/// assert!(!first.replayed && retry.replayed);
/// assert!(place("jam").await.is_err(), "the same key for another wish is refused");
/// # Ok(())
/// # }
/// ```
pub struct Steadfast<Db: Database>(Arc<Inner<Db>>);

struct Inner<Db: Database> {
    store: Db::Store,
    clock: Clock,
    in_flight: InFlight,
    breakers: Breakers,
    reactions: Reactions<Db>,
    workers: Workers<Db>,
    queues: Queues,
    sources: Sources,
    #[cfg(feature = "schedule")]
    ticker: crate::ticker::Ticker,
    dispatcher: Dispatcher,
    dispatching: Health,
    /// Connections of the pool that handlers of leased rows may have at once; `None`: they take turns, and need none.
    places: Option<Arc<Semaphore>>,
    wake: Wake,
    tasks: TaskTracker,
    stopping: CancellationToken,
    id: String,
    source: Arc<str>,
    quota: Option<Quota>,
    encryption: Option<Encryption>,
    purge_every: Duration,
    message_retention: Duration,
    inbox_retention: Duration,
    gauges: Gauges,
    #[cfg(feature = "service")]
    operations: crate::operations::Operations,
    #[cfg(feature = "axum")]
    problem_base: String,
    #[cfg(feature = "testing")]
    observer: Option<Arc<dyn crate::testing::Observer>>,
}

impl<Db: Database> Clone for Steadfast<Db> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Db: Database> fmt::Debug for Steadfast<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Steadfast").field(&Db::NAME).finish()
    }
}

impl<Db: Database> Steadfast<Db> {
    /// Uses your pool. The tables must be there: see [`Builder::migrate`].
    ///
    /// # Errors
    /// SF301 if the tables are missing or of another version; a transient code if the database does not answer.
    pub async fn new(pool: Pool<Db>) -> Result<Self> {
        Self::builder(pool).build().await
    }

    /// Uses your pool, with settings.
    pub fn builder(pool: Pool<Db>) -> Builder<Db> {
        Builder {
            pool,
            guard: Arc::default(),
            names: Arc::default(),
            clock: Clock::default(),
            source: SOURCE.into(),
            quota: None,
            encryption: None,
            purge_every: PURGE_EVERY,
            message_retention: MESSAGE_RETENTION,
            inbox_retention: INBOX_RETENTION,
            dispatcher: Dispatcher::default(),
            #[cfg(feature = "axum")]
            problem_base: crate::transport::problem::PROBLEM_BASE.to_owned(),
            #[cfg(feature = "testing")]
            observer: None,
        }
    }

    /// Opens a pool with the settings this database needs. `sqlite::memory:` is a private file, deleted at the end.
    ///
    /// # Errors
    /// If the URL cannot be read or the database not be reached.
    pub async fn connect(url: &str) -> Result<Builder<Db>> {
        let (pool, guard) = Db::Store::connect(url).await?;
        let mut builder = Self::builder(pool);
        builder.guard = Arc::new(guard);
        Ok(builder)
    }

    /// Connects, runs the migrations and builds: for tests, examples and programs that own their database.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), [`Builder::migrate`] and [`Builder::build`].
    pub async fn open(url: &str) -> Result<Self> {
        let builder = Self::connect(url).await?;
        builder.migrate().await?;
        builder.build().await
    }

    /// Everything [`Builder::migrate`] would run on an empty database, as one script for your own migration tool. It
    /// uses the default schema or prefix.
    pub fn migration_script() -> String {
        store::script::<Db>(&Names::default(), i64::MAX)
    }

    /// The same for another schema or prefix, up to the migration of this number or to the newest.
    ///
    /// ```
    /// # use steadfast::Steadfast;
    /// # use steadfast::sqlx::Sqlite;
    /// let script = Steadfast::<Sqlite>::migration_script_for("billing", Some(1))?;
    /// assert!(script.contains("CREATE TABLE billing_keys"));
    /// # Ok::<(), steadfast::Error>(())
    /// ```
    ///
    /// # Errors
    /// SF303 if the name is not a lower-case identifier, or there is no migration of this number.
    pub fn migration_script_for(schema: &str, to: Option<i64>) -> Result<String> {
        if let Some(version) = to {
            store::check_known(version, Db::Store::MIGRATIONS)?;
        }
        Ok(store::script::<Db>(&Names::new(schema)?, to.unwrap_or(i64::MAX)))
    }

    /// Your pool.
    pub fn pool(&self) -> &Pool<Db> {
        self.0.store.pool()
    }

    /// The clock by which expiry is judged.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// An idempotent command: `operation` is its stable name, `key` the caller's value for this wish.
    pub fn command<'c>(&'c self, operation: &'c str, key: &'c str) -> Command<'c, Db> {
        Command::new(self, operation, key)
    }

    /// One key, to look its answer up or to evict it.
    ///
    /// ```
    /// # use steadfast::{Owner, Steadfast};
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let owner = Owner::new("tenant-1", "user-a");
    /// sf.command("orders.place", "key-1").owner(&owner).run(async |_| Ok(42)).await?;
    ///
    /// let answer = sf.key("orders.place", "key-1").owner(&owner).outcome().await?.expect("it has ended");
    /// assert_eq!(answer.body, "42");
    /// sf.key("orders.place", "key-1").owner(&owner).evict("ops@example.com", "the order was entered by hand").await?;
    /// assert!(sf.key("orders.place", "key-1").owner(&owner).outcome().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn key<'c>(&'c self, operation: &'c str, key: &'c str) -> KeyLookUp<'c, Db> {
        KeyLookUp::new(self, operation, key)
    }

    /// The keys that have ended, to list them or to find one by the beginning of its id.
    ///
    /// ```
    /// # use steadfast::{Owner, Steadfast};
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let owner = Owner::new("tenant-1", "user-a");
    /// sf.command("orders.place", "key-1").owner(&owner).run(async |_| Ok(42)).await?;
    ///
    /// let page = sf.keys().operation("orders.place").limit(20).page().await?;
    /// let key = &page.keys[0];
    /// assert_eq!((&*key.value, key.status), ("key-1", 200));
    /// assert!(page.next.is_none(), "there are no more");
    ///
    /// let found = sf.keys().id_prefix(&key.id.to_string()[..8])?.page().await?;
    /// let answer = found.keys[0].look_up(&sf).outcome().await?.expect("it has ended");
    /// assert_eq!(answer.body, "42");
    /// # Ok(())
    /// # }
    /// ```
    pub fn keys(&self) -> KeyList<'_, Db> {
        KeyList::new(self)
    }

    /// What stands in the audit, newest first.
    ///
    /// ```
    /// # use steadfast::{AuditEntry, Steadfast};
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let entry = AuditEntry::new("ops@example.com", "order.cancel", "order 7").because("asked by phone");
    /// sf.transact(async |tx| Ok(tx.audit(&entry).await?)).await?;
    ///
    /// let page = sf.audit_entries().actor("ops@example.com").page().await?;
    /// assert_eq!(page.entries[0].reason, "asked by phone");
    /// # Ok(())
    /// # }
    /// ```
    pub fn audit_entries(&self) -> AuditList<'_, Db> {
        AuditList::new(self)
    }

    /// Works in the caller's own transaction, which the caller commits: see [`Caller`].
    pub fn on<'c>(&'c self, conn: &'c mut Db::Connection) -> Caller<'c, Db> {
        Caller::new(self, conn)
    }

    /// Runs a handler in a transaction without a key: committed on `Ok`, rolled back on `Err` and after 30 seconds.
    ///
    /// # Errors
    /// [`Code::HandlerFailed`] with the handler's failure. [`Code::CommitUnknown`] if the connection was lost inside
    /// COMMIT: without a key nobody can tell whether it happened. After any other error nothing was changed.
    pub fn transact<T, F>(&self, handler: F) -> impl Future<Output = Result<T>> + Send
    where
        T: Send,
        for<'t> F: AsyncFnOnce(&'t mut Tx<Db>) -> Result<T, Failure>
            + AsyncOnce<&'t mut Tx<Db>, Result<T, Failure>, Fut: Send>
            + Send,
    {
        async move {
            let ended = execute::transact(self, &CommandOptions::default(), None, Unkeyed(Some(handler))).await?;
            ended.map_err(|failure| Error::failed(failure, false))
        }
    }

    pub(crate) fn store(&self) -> &Db::Store {
        &self.0.store
    }

    /// The store, about to send a statement of this name: tests may crash before it.
    #[cfg_attr(not(feature = "testing"), allow(unused_variables))]
    pub(crate) fn ask(&self, statement: &'static str) -> &Db::Store {
        #[cfg(feature = "testing")]
        if let Some(observer) = &self.0.observer {
            observer.asked(statement);
        }
        &self.0.store
    }

    #[cfg(feature = "service")]
    pub(crate) fn operations(&self) -> &crate::operations::Operations {
        &self.0.operations
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.0.in_flight
    }

    pub(crate) fn reactions(&self) -> &Reactions<Db> {
        &self.0.reactions
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.0.queues
    }

    pub(crate) fn workers(&self) -> &Workers<Db> {
        &self.0.workers
    }

    pub(crate) fn sources(&self) -> &Sources {
        &self.0.sources
    }

    #[cfg(feature = "schedule")]
    pub(crate) fn ticker(&self) -> &crate::ticker::Ticker {
        &self.0.ticker
    }

    pub(crate) fn dispatcher(&self) -> &Dispatcher {
        &self.0.dispatcher
    }

    /// How the engine of this process is doing.
    /// Waits until a handler of a leased row may take a connection of the pool. Half of it is left to everybody else.
    pub(crate) async fn place_in_pool(&self) -> Option<OwnedSemaphorePermit> {
        self.0.places.clone()?.acquire_owned().await.ok()
    }

    pub(crate) fn dispatching(&self) -> &Health {
        &self.0.dispatching
    }

    pub(crate) fn wake(&self) -> &Wake {
        &self.0.wake
    }

    pub(crate) fn registry(&self) -> &Breakers {
        &self.0.breakers
    }

    /// For a task that must not keep the handle alive.
    pub(crate) fn downgrade(&self) -> WeakSteadfast<Db> {
        WeakSteadfast(Arc::downgrade(&self.0))
    }

    /// Begins a transaction, and claims a key in it if there is one.
    pub(crate) async fn begin(&self, begin: Begin) -> Result<Begun<Tx<Db>>> {
        let key = begin.key.clone();
        Ok(match self.ask("begin and claim").begin(begin).await? {
            Begun::Ours(held) => Begun::Ours(Tx::new(self.clone(), key, held)),
            Begun::Ended(record) => Begun::Ended(record),
            Begun::InFlight => Begun::InFlight,
        })
    }

    /// Runs something that begins a transaction to its end, but does not wait for ever: a server that takes connections
    /// and says nothing holds a task, not the caller.
    pub(crate) async fn begin_to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let patience = self.pool().options().get_acquire_timeout() * 2 + BEGIN_GRACE;
        tokio::time::timeout(patience, self.to_the_end(work))
            .await
            .unwrap_or_else(|_| {
                Err(Error::new(
                    Code::Unreachable,
                    format!("the database did not begin a transaction within {patience:?}"),
                ))
            })
    }

    /// Runs something to its end, whoever stops waiting for it. Shutdown waits for it too.
    pub(crate) fn to_the_end<F: Future<Output: Send> + Send + 'static>(&self, work: F) -> ToTheEnd<F> {
        ToTheEnd::new(work, &self.0.tasks)
    }

    #[cfg(feature = "axum")]
    pub(crate) fn problem_base(&self) -> &str {
        &self.0.problem_base
    }

    /// Who publishes the events of this process.
    pub(crate) fn own_source(&self) -> &Arc<str> {
        &self.0.source
    }

    /// The name this instance holds leases by.
    pub(crate) fn id(&self) -> &str {
        &self.0.id
    }

    pub(crate) fn quota(&self) -> Option<Quota> {
        self.0.quota
    }

    /// Where the answer of this key is kept.
    pub(crate) fn place<'p>(&'p self, key: &'p Key, fingerprint: &'p Fingerprint) -> Place<'p> {
        Place {
            key,
            fingerprint,
            encryption: self.0.encryption.as_ref(),
        }
    }

    pub(crate) fn purge_every(&self) -> Duration {
        self.0.purge_every
    }

    pub(crate) fn message_retention(&self) -> Duration {
        self.0.message_retention
    }

    pub(crate) fn inbox_retention(&self) -> Duration {
        self.0.inbox_retention
    }

    pub(crate) fn gauges(&self) -> &Gauges {
        &self.0.gauges
    }

    pub(crate) fn stopping(&self) -> CancellationToken {
        self.0.stopping.clone()
    }

    pub(crate) async fn stopped(&self) {
        self.0.stopping.cancelled().await;
    }

    /// Whether the process has been told to stop.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.is_cancelled()
    }

    /// Says that the process is about to stop: from now on it is not ready for new work.
    pub fn stop(&self) {
        self.0.stopping.cancel();
    }

    /// Waits until no command is under way.
    pub async fn drained(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// A COMMIT was applied. Fails if a test wants its reply to be lost.
    #[cfg_attr(not(feature = "testing"), allow(clippy::unused_self, clippy::unnecessary_wraps))]
    pub(crate) fn commit_applied(&self) -> Result<(), CommitError> {
        #[cfg(feature = "testing")]
        if let Some(observer) = &self.0.observer
            && observer.commit_applied() == crate::testing::CommitReply::IsLost
        {
            let error = Error::new(Code::ConnectionLost, "a test lost the reply to COMMIT");
            return Err(CommitError::Unknown(error));
        }
        Ok(())
    }

    #[cfg_attr(not(feature = "testing"), allow(unused_variables, clippy::unused_self))]
    pub(crate) fn observe(&self, point: Point, key: &Key) {
        #[cfg(feature = "testing")]
        if let Some(observer) = &self.0.observer {
            observer.reached(point, key);
        }
    }
}

impl<Db: Database> Steadfast<Db> {
    /// A row of the queue is at this point.
    #[cfg_attr(not(feature = "testing"), allow(unused_variables, clippy::unused_self))]
    pub(crate) fn passes(&self, point: WorkPoint, id: &WorkId<'_>) {
        #[cfg(feature = "testing")]
        if let Some(observer) = &self.0.observer {
            observer.worked(point, id);
        }
    }
}

/// A handle that keeps nothing alive.
pub(crate) struct WeakSteadfast<Db: Database>(Weak<Inner<Db>>);

impl<Db: Database> WeakSteadfast<Db> {
    /// The handle, if anybody else still has it.
    pub(crate) fn upgrade(&self) -> Option<Steadfast<Db>> {
        self.0.upgrade().map(Steadfast)
    }
}

fn check_retention(what: &str, retention: impl ReadDuration) -> Result<Duration> {
    let retention = retention.read_duration()?;
    if (MESSAGE_RETENTION_MIN..=MESSAGE_RETENTION_MAX).contains(&retention) {
        return Ok(retention);
    }
    Err(Error::new(
        Code::ConfigurationInvalid,
        format!("{what} cannot be kept for {retention:?}; write a duration from 1m to 36500d"),
    ))
}

/// A name that no other instance has.
fn half_of<Db: Database>(pool: &Pool<Db>) -> usize {
    (pool.options().get_max_connections() as usize / 2).max(1)
}

fn random_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    let (one, other) = (RandomState::new().hash_one(0), RandomState::new().hash_one(1));
    format!("{one:016x}{other:016x}")
}

/// Settings of a [`Steadfast`].
#[must_use = "nothing happens until `build`"]
pub struct Builder<Db: Database> {
    pool: Pool<Db>,
    guard: Arc<Guard>,
    names: Arc<Names>,
    clock: Clock,
    source: Arc<str>,
    quota: Option<Quota>,
    encryption: Option<Encryption>,
    purge_every: Duration,
    message_retention: Duration,
    inbox_retention: Duration,
    dispatcher: Dispatcher,
    #[cfg(feature = "axum")]
    problem_base: String,
    #[cfg(feature = "testing")]
    observer: Option<Arc<dyn crate::testing::Observer>>,
}

impl<Db: Database> Builder<Db> {
    /// Keeps the tables in another schema (PostgreSQL) or under another prefix (SQLite) than `steadfast`.
    ///
    /// # Errors
    /// SF303 if the name is not a lower-case identifier.
    pub fn schema(mut self, name: &str) -> Result<Self> {
        self.names = Arc::new(Names::new(name)?);
        Ok(self)
    }

    /// Shares a clock, for tests and labs that move the time.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Who publishes the events of this process, as the `source` of CloudEvents: a URI or a path; `/steadfast` by default.
    ///
    /// # Errors
    /// SF303 if it is empty, longer than 255 characters, or has spaces in it.
    pub fn source(mut self, source: &str) -> Result<Self> {
        outbox::origin::check_source(source)?;
        self.source = source.into();
        Ok(self)
    }

    /// Limits how much each owner may keep; without it, there is no limit. All processes should have the same.
    pub fn quota(mut self, quota: Quota) -> Self {
        self.quota = Some(quota);
        self
    }

    /// Encrypts the answers that are stored from now on, headers and body; without it they are stored in plain. All
    /// processes should have the same keys.
    #[cfg(feature = "encryption")]
    pub fn encryption(mut self, encryption: Encryption) -> Self {
        self.encryption = Some(encryption);
        self
    }

    /// How often [`Steadfast::keep_house`] purges, roughly; every hour by default.
    pub fn purge_every(mut self, period: Duration) -> Self {
        self.purge_every = period;
        self
    }

    /// How long a message is kept after it was published, for people who ask what became of it; `7d` by default. While it is
    /// still to be delivered, or dead, it is kept anyway. All processes should have the same: whoever purges goes by his own.
    ///
    /// ```
    /// # use steadfast::Steadfast;
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// let builder = Steadfast::<Sqlite>::connect("sqlite::memory:").await?;
    /// let builder = builder.message_retention("30d")?;
    /// assert!(builder.message_retention("1s").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// SF303 if it is no duration, shorter than a minute or longer than a hundred years.
    pub fn message_retention(mut self, retention: impl ReadDuration) -> Result<Self> {
        self.message_retention = check_retention("messages", retention)?;
        Ok(self)
    }

    /// How long the inbox remembers a message from elsewhere; `7d` by default. What comes again later than that is taken for new, so
    /// it should be longer than the broker keeps a message, and longer than anybody waits before he sends dead letters of a broker
    /// once more. All processes should have the same.
    ///
    /// # Errors
    /// SF303 if it is no duration, shorter than a minute or longer than a hundred years.
    pub fn inbox_retention(mut self, retention: impl ReadDuration) -> Result<Self> {
        self.inbox_retention = check_retention("records of the inbox", retention)?;
        Ok(self)
    }

    /// How this process carries messages to their targets.
    pub fn dispatcher(mut self, dispatcher: Dispatcher) -> Self {
        self.dispatcher = dispatcher;
        self
    }

    /// Where problem types are described, for the `type` of problems: `/problems` by default, which
    /// [`Steadfast::routes`] serves.
    #[cfg(feature = "axum")]
    pub fn problem_base(mut self, base: impl Into<String>) -> Self {
        self.problem_base = base.into();
        self
    }

    /// Watches commands pass their crash points.
    #[cfg(feature = "testing")]
    pub fn observer(mut self, observer: impl crate::testing::Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Creates or upgrades the tables, in one transaction, alone among all processes that try, and says how many
    /// migrations it ran.
    ///
    /// # Errors
    /// If the role may not create them, or the database does not answer. Nothing was changed then.
    pub async fn migrate(&self) -> Result<usize> {
        let store = self.store()?;
        // In a task of its own, as everything that begins a transaction.
        let applied = tokio::spawn(async move { store.migrate().await }.in_current_span())
            .await
            .map_err(|error| Error::new(Code::Database, "the migrations did not end").with_source(error))??;
        tracing::debug!(applied, "the tables are up to date");
        Ok(applied)
    }

    /// Which migrations this program knows, and which of them have run. It needs only the right to read.
    ///
    /// ```
    /// # use steadfast::Steadfast;
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// let builder = Steadfast::<Sqlite>::connect("sqlite::memory:").await?;
    /// assert!(builder.migrations().await?.iter().all(|migration| migration.applied_at.is_none()));
    /// builder.migrate().await?;
    /// assert!(builder.migrations().await?.iter().all(|migration| migration.applied_at.is_some()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the database does not answer, or the role may not read the table of migrations.
    pub async fn migrations(&self) -> Result<Vec<MigrationStatus>> {
        let applied = self.store()?.applied_migrations().await?;
        Ok(store::status(Db::Store::MIGRATIONS, &applied))
    }

    /// Checks the tables and hands the finished thing over.
    ///
    /// # Errors
    /// SF301 if the tables are missing or of another version; a transient code if the database does not answer.
    pub async fn build(&self) -> Result<Steadfast<Db>> {
        let store = self.store()?;
        store.check_tables().await?;
        store.survey().await?;
        Ok(Steadfast(Arc::new(Inner {
            store,
            clock: self.clock.clone(),
            in_flight: InFlight::new(),
            breakers: Breakers::default(),
            reactions: Reactions::default(),
            workers: Workers::default(),
            queues: Queues::default(),
            sources: Sources::default(),
            #[cfg(feature = "schedule")]
            ticker: Default::default(),
            dispatcher: self.dispatcher,
            dispatching: Health::default(),
            places: Db::Store::NEEDS_ANNOUNCEMENTS.then(|| Arc::new(Semaphore::new(half_of(&self.pool)))),
            wake: Wake::default(),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            id: random_id(),
            source: self.source.clone(),
            quota: self.quota,
            encryption: self.encryption.clone(),
            purge_every: self.purge_every,
            message_retention: self.message_retention,
            inbox_retention: self.inbox_retention,
            gauges: Gauges::default(),
            #[cfg(feature = "service")]
            operations: Default::default(),
            #[cfg(feature = "axum")]
            problem_base: self.problem_base.clone(),
            #[cfg(feature = "testing")]
            observer: self.observer.clone(),
        })))
    }

    /// How the outbox is doing, before anything is built.
    pub(crate) async fn stats(&self, store: &Db::Store) -> Result<OutboxStats> {
        stats::read::<Db>(store, self.clock.ahead(), self.message_retention).await
    }

    /// How schedules are doing.
    #[cfg(feature = "schedule")]
    pub(crate) async fn check_schedules(&self, store: &Db::Store) -> Result<crate::doctor::Check> {
        crate::ticker::check::<Db>(store, self.clock.ahead()).await
    }

    pub(crate) fn store(&self) -> Result<Db::Store> {
        Db::Store::new(self.pool.clone(), self.names.clone(), self.guard.clone())
    }
}
