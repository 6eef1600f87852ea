//! A database for a test: made, looked at, and removed.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::fmt;
use std::future::Future;

use sqlx::Pool;

use crate::clock::{Clock, Timestamp};
use crate::store::Database;

/// A database that tests can run on: [`sqlx::Sqlite`] or [`sqlx::Postgres`].
#[allow(private_bounds)]
pub trait TestDatabase: Database + Kit {}

#[allow(private_bounds)]
impl<Db: Database + Kit> TestDatabase for Db {}

/// What the kit asks of a database.
pub(crate) trait Kit: Database {
    /// Where one database is. The last copy takes a private file along.
    type Home: Clone + Send + Sync + 'static;

    /// Makes an empty database.
    fn create() -> impl Future<Output = Self::Home> + Send;
    /// Makes it empty again, or makes another: whatever is quicker.
    fn renew(home: Self::Home) -> impl Future<Output = Self::Home>;
    /// Removes it, whoever is still connected.
    fn remove(home: Self::Home) -> impl Future<Output = ()> + Send;
    /// What a person finds it by after the test, if it is still there then.
    fn name(home: &Self::Home) -> Option<String>;
    /// A pool of its own, as a process would have.
    fn pool(home: &Self::Home) -> Pool<Self>;
    /// Whether nobody has it open, so that nothing can happen in it any more.
    fn is_deserted(home: &Self::Home) -> impl Future<Output = bool> + Send;

    /// Runs statements.
    fn run(pool: &Pool<Self>, sql: &str) -> impl Future<Output = sqlx::Result<()>> + Send;
    /// The number that a query returns.
    fn count(pool: &Pool<Self>, sql: &str) -> impl Future<Output = sqlx::Result<i64>> + Send;
    /// Every key.
    fn keys(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<Vec<KeyRow>>> + Send;
}

/// A key as a test sees it.
pub(crate) struct KeyRow {
    pub(crate) operation: String,
    pub(crate) value: String,
    tenant: String,
    owner: String,
    pub(crate) state: String,
    now: Timestamp,
    expires_at: Timestamp,
}

/// The columns of a [`KeyRow`], in its order.
type Columns = (String, String, String, String, String, i64, i64);

impl KeyRow {
    fn new((operation, value, tenant, owner, state, now, expires_at): Columns) -> Self {
        Self {
            operation,
            value,
            tenant,
            owner,
            state,
            now: Timestamp(now),
            expires_at: Timestamp(expires_at),
        }
    }

    /// An expired key counts as absent.
    pub(crate) fn is_live(&self, clock: &Clock) -> bool {
        clock.at(self.now) < self.expires_at
    }
}

impl fmt::Display for KeyRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            value,
            tenant,
            owner,
            state,
            ..
        } = self;
        write!(f, "{operation} {value:?} of {tenant}/{owner}: {state}")
    }
}
