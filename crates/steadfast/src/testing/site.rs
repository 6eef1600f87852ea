//! What outlives the processes of a test: the database, and the time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::database::TestDatabase;
use super::wait::{Watcher, Watching};
use crate::clock::Clock;
use crate::steadfast::Steadfast;

/// One database, and what is known of it.
pub(super) struct Site<Db: TestDatabase> {
    pub(super) home: Db::Home,
    shared: Arc<Shared<Db>>,
}

struct Shared<Db: TestDatabase> {
    clock: Clock,
    /// What makes the user's tables.
    prepared: Mutex<Vec<String>>,
    /// Databases of other runs in which something went wrong: they go when the test has passed.
    left: Mutex<Vec<Left<Db>>>,
    /// A database of another run in which all was well, for the next one.
    spare: Mutex<Option<Db::Home>>,
}

struct Left<Db: TestDatabase> {
    home: Db::Home,
    why: String,
}

impl<Db: TestDatabase> Clone for Site<Db> {
    fn clone(&self) -> Self {
        Self {
            home: self.home.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl<Db: TestDatabase> Site<Db> {
    /// A fresh database with our tables.
    pub(super) async fn create() -> Self {
        Self::prepare(Db::create().await, Vec::new()).await
    }

    /// A fresh database with our tables, and what was prepared in this one, at the same time of the clock.
    pub(super) async fn another(&self) -> Self {
        let prepared = lock(&self.shared.prepared).clone();
        let spare = lock(&self.shared.spare).take();
        let home = match spare {
            Some(home) => Db::renew(home).await,
            None => Db::create().await,
        };
        let site = Self::prepare(home, prepared).await;
        site.clock().set_offset(self.clock().offset());
        site
    }

    async fn prepare(home: Db::Home, prepared: Vec<String>) -> Self {
        let pool = Db::pool(&home);
        let migrated = Steadfast::builder(pool.clone()).migrate().await;
        migrated.unwrap_or_else(|error| panic!("the tables cannot be made: {error:?}"));
        for sql in &prepared {
            let done = Db::run(&pool, sql).await;
            done.unwrap_or_else(|error| panic!("{error}\nin: {sql}"));
        }
        pool.close().await;
        let shared = Shared {
            clock: Clock::default(),
            prepared: Mutex::new(prepared),
            left: Mutex::default(),
            spare: Mutex::default(),
        };
        Self {
            home,
            shared: Arc::new(shared),
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// A process on this database.
    pub(super) async fn process(&self, watcher: Option<Arc<Watcher>>) -> Steadfast<Db> {
        let builder = Steadfast::builder(Db::pool(&self.home)).clock(self.clock().clone());
        let builder = match watcher {
            Some(watcher) => builder.observer(Watching(watcher)),
            None => builder,
        };
        let built = builder.build().await;
        built.unwrap_or_else(|error| panic!("the database of the test cannot be opened: {error:?}"))
    }

    /// Has these statements run in every other database too.
    pub(super) fn remember(&self, sql: &str) {
        lock(&self.shared.prepared).push(sql.to_owned());
    }

    /// Takes the database of a run back in which all was well.
    pub(super) fn reuse(&self, home: Db::Home) {
        *lock(&self.shared.spare) = Some(home);
    }

    /// Leaves the database of a run for people to look at, should the test fail.
    pub(super) fn leave(&self, home: Db::Home, why: String) {
        lock(&self.shared.left).push(Left { home, why });
    }

    /// The test has passed: nothing stays.
    pub(super) async fn remove(self) {
        let left = std::mem::take(&mut *lock(&self.shared.left));
        let spare = lock(&self.shared.spare).take();
        for home in left.into_iter().map(|left| left.home).chain(spare).chain([self.home]) {
            Db::remove(home).await;
        }
    }

    /// The test has failed: says where to look.
    pub(super) async fn keep(self) {
        let spare = lock(&self.shared.spare).take();
        if let Some(home) = spare {
            Db::remove(home).await;
        }
        let left = lock(&self.shared.left);
        let kept = left.iter().map(|left| (&left.home, left.why.as_str()));
        for (home, why) in kept.chain([(&self.home, "the test failed")]) {
            if let Some(name) = Db::name(home) {
                eprintln!("{why}; the database is kept: {name}");
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
