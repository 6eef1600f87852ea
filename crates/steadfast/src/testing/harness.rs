//! A fresh database with our tables, and what a test wants to do with it.

use std::borrow::Cow;
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Pool;

use super::Point;
use super::database::{KeyRow, TestDatabase};
use super::site::Site;
use super::wait::{Hold, Watcher};
use crate::clock::{Clock, parse_duration};
use crate::command::Owner;
use crate::steadfast::Steadfast;

/// A service's view of a database of this test alone: what [`#[steadfast::test]`](macro@crate::test) hands to a test.
///
/// ```
/// # use steadfast::sqlx::{self, Sqlite};
/// # use steadfast::testing::{self, Harness};
/// # testing::run(async |t: Harness<Sqlite>| -> steadfast::Result<()> {
/// t.run("CREATE TABLE orders (sku TEXT)").await;
/// let place = async |sf: &steadfast::Steadfast<Sqlite>| {
///     sf.command("orders.place", "key-1")
///         .owner(t.owner())
///         .run(async |tx| {
///             sqlx::query("INSERT INTO orders (sku) VALUES ('tea')").execute(tx.db()).await?;
///             Ok(())
///         })
///         .await
/// };
///
/// assert!(!place(t.sf()).await?.replayed);
/// assert!(place(&t.another().await).await?.replayed, "another process replays it");
/// t.assert_count("orders", 1).await;
/// t.assert_completed("orders.place", "key-1").await;
///
/// t.advance("25h");
/// t.assert_no_key("orders.place", "key-1").await;
/// assert!(!place(t.sf()).await?.replayed, "beyond its retention the key is free");
/// # Ok(())
/// # }).unwrap();
/// ```
pub struct Harness<Db: TestDatabase> {
    sf: Steadfast<Db>,
    owner: Owner,
    watcher: Arc<Watcher>,
    pub(super) site: Site<Db>,
}

impl<Db: TestDatabase> Harness<Db> {
    pub(super) async fn open(site: Site<Db>, watcher: Watcher) -> Self {
        let watcher = Arc::new(watcher);
        Self {
            sf: site.process(Some(watcher.clone())).await,
            owner: Owner::new("tenant-1", "user-a"),
            watcher,
            site,
        }
    }

    /// The toolkit, as the service under test has it.
    pub fn sf(&self) -> &Steadfast<Db> {
        &self.sf
    }

    /// The pool of [`sf`](Self::sf), for statements of the test's own.
    pub fn pool(&self) -> &Pool<Db> {
        self.sf.pool()
    }

    /// Somebody to ask for things: `user-a` of `tenant-1`.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The clock of every process of this test.
    pub fn clock(&self) -> &Clock {
        self.site.clock()
    }

    /// Moves the time of every process of this test ahead: `t.advance("10m")`, or by a [`Duration`].
    ///
    /// # Panics
    /// If the text is not a duration.
    pub fn advance(&self, by: impl IntoDuration) {
        let clock = self.clock();
        clock.set_offset(clock.offset().saturating_add(by.into_duration()));
    }

    /// Another process on the same database: it shares the moved clock, and nothing else that is in memory.
    pub async fn another(&self) -> Steadfast<Db> {
        self.site.process(None).await
    }

    /// Ends this process in order, and starts it again on the same database. Take `mut t` for it.
    pub async fn reopen(&mut self) {
        self.sf.stop();
        self.sf.drained().await;
        self.pool().close().await;
        self.sf = self.site.process(Some(self.watcher.clone())).await;
    }

    /// Runs statements, as they are.
    ///
    /// # Panics
    /// If one fails.
    pub async fn run(&self, sql: &str) {
        let done = Db::run(self.pool(), sql).await;
        done.unwrap_or_else(|error| panic!("{error}\nin: {sql}"));
    }

    /// Runs statements now, and again in each database that [`crash_everywhere`](Self::crash_everywhere) makes: your
    /// tables.
    ///
    /// # Panics
    /// If one fails.
    pub async fn prepare(&self, sql: &str) {
        self.run(sql).await;
        self.site.remember(sql);
    }

    /// What a query counts: a whole `SELECT count(*) ..`, or the name of a table.
    ///
    /// # Panics
    /// If the query fails, or does not return one whole number.
    pub async fn count(&self, query: &str) -> i64 {
        let is_name = !query.contains(char::is_whitespace);
        let sql = if is_name {
            Cow::Owned(format!("SELECT count(*) FROM {query}"))
        } else {
            Cow::Borrowed(query)
        };
        let counted = Db::count(self.pool(), &sql).await;
        counted.unwrap_or_else(|error| panic!("{error}\nin: {sql}"))
    }

    /// Fails unless the query, or the table, [counts](Self::count) so much.
    #[track_caller]
    pub fn assert_count<'t>(&'t self, query: &'t str, expected: i64) -> impl Future<Output = ()> + Send + 't {
        let asked_at = Location::caller();
        async move {
            let found = self.count(query).await;
            assert!(
                found == expected,
                "{query}: expected {expected}, found {found} (at {asked_at})"
            );
        }
    }

    /// Fails unless there are so many keys. Expired ones count as absent, here and below.
    #[track_caller]
    pub fn assert_keys(&self, expected: usize) -> impl Future<Output = ()> + Send + '_ {
        let asked_at = Location::caller();
        async move {
            let keys = self.keys().await;
            let found = keys.len();
            assert!(
                found == expected,
                "expected {expected} keys, found {found} (at {asked_at})\n{}",
                list(&keys)
            );
        }
    }

    /// Fails unless the command has ended well, whoever asked for it.
    #[track_caller]
    pub fn assert_completed<'t>(&'t self, operation: &'t str, key: &'t str) -> impl Future<Output = ()> + Send + 't {
        let asked_at = Location::caller();
        async move {
            let keys = self.keys().await;
            let found = keys.iter().find(|row| row.operation == operation && row.value == key);
            assert!(
                found.is_some_and(|row| row.state == "completed"),
                "{operation} {key:?} is not completed (at {asked_at})\n{}",
                list(&keys)
            );
        }
    }

    /// Fails if the command has ended in a way that is replayed, well or not.
    #[track_caller]
    pub fn assert_no_key<'t>(&'t self, operation: &'t str, key: &'t str) -> impl Future<Output = ()> + Send + 't {
        let asked_at = Location::caller();
        async move {
            let keys = self.keys().await;
            let found = keys.iter().any(|row| row.operation == operation && row.value == key);
            assert!(!found, "{operation} {key:?} has a key (at {asked_at})\n{}", list(&keys));
        }
    }

    /// Waits until a command of [`sf`](Self::sf) has reached the point, now or at any time since the test began.
    ///
    /// # Panics
    /// If none has after ten seconds.
    pub async fn reached(&self, point: Point) {
        self.watcher.reached(point).await;
    }

    /// Holds the next command of [`sf`](Self::sf) that reaches the point, until the [`Hold`] is released or dropped.
    ///
    /// A held command keeps its transaction, and on SQLite the file's write lock. Its thread stands still, and the
    /// runtime gets another one for its other tasks; so run the command by `tokio::spawn`, never on the test's own
    /// task.
    ///
    /// ```
    /// # use steadfast::{Code, sqlx::Sqlite};
    /// # use steadfast::testing::{self, Harness, Point};
    /// # testing::run(async |t: Harness<Sqlite>| {
    /// let place = async |sf: steadfast::Steadfast<Sqlite>, owner: steadfast::Owner| {
    ///     sf.command("orders.place", "key-1").owner(&owner).run(async |_| Ok("placed".to_owned())).await
    /// };
    /// let hold = t.hold(Point::BeforeCommit);
    /// let first = tokio::spawn(place(t.sf().clone(), t.owner().clone()));
    /// hold.reached().await;
    /// let duplicate = place(t.sf().clone(), t.owner().clone()).await;
    /// assert_eq!(duplicate.unwrap_err().code(), Code::InFlight);
    /// hold.release();
    /// assert_eq!(first.await.unwrap().unwrap().value, "placed");
    /// # });
    /// ```
    pub fn hold(&self, point: Point) -> Hold {
        self.watcher.hold(point)
    }

    async fn keys(&self) -> Vec<KeyRow> {
        let keys = Db::keys(self.pool()).await;
        let mut keys = keys.unwrap_or_else(|error| panic!("the keys cannot be read: {error}"));
        keys.retain(|row| row.is_live(self.clock()));
        keys
    }
}

fn list(keys: &[KeyRow]) -> String {
    match keys {
        [] => "there are no keys".to_owned(),
        keys => keys.iter().map(|row| format!("  {row}\n")).collect(),
    }
}

/// How a test writes a stretch of time: `"10m"`, as [`parse_duration`] reads it, or a [`Duration`].
pub trait IntoDuration {
    #[doc(hidden)]
    fn into_duration(self) -> Duration;
}

impl IntoDuration for Duration {
    fn into_duration(self) -> Duration {
        self
    }
}

impl IntoDuration for &str {
    fn into_duration(self) -> Duration {
        parse_duration(self).unwrap_or_else(|error| panic!("{error}"))
    }
}
