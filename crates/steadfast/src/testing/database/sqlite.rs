//! SQLite: a private file in a directory that goes with it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Sqlite, SqlitePool};
use tempfile::TempDir;

use super::{KeyRow, Kit};
use crate::clock::machine;

impl Kit for Sqlite {
    type Home = Arc<TempDir>;

    async fn create() -> Arc<TempDir> {
        let directory = tempfile::Builder::new().prefix("steadfast_test_").tempdir();
        Arc::new(directory.unwrap_or_else(|error| panic!("no directory for the test's database can be made: {error}")))
    }

    async fn renew(home: Arc<TempDir>) -> Arc<TempDir> {
        drop(home);
        Self::create().await
    }

    async fn remove(home: Arc<TempDir>) {
        drop(home);
    }

    fn name(_: &Arc<TempDir>) -> Option<String> {
        None
    }

    fn pool(home: &Arc<TempDir>) -> SqlitePool {
        let options = SqliteConnectOptions::new()
            .filename(file(home))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal);
        SqlitePoolOptions::new().connect_lazy_with(options)
    }

    /// Only the last connection to a file can take it out of WAL mode, so who can is alone. The next one puts it back.
    async fn is_deserted(home: &Arc<TempDir>) -> bool {
        let options = SqliteConnectOptions::new().filename(file(home));
        let Ok(mut conn) = options.busy_timeout(Duration::ZERO).connect().await else {
            return false;
        };
        let mode = sqlx::query_scalar::<_, String>("PRAGMA journal_mode = DELETE").fetch_one(&mut conn);
        let is_alone = mode.await.is_ok_and(|mode| mode == "delete");
        conn.close().await.is_ok() && is_alone
    }

    async fn run(pool: &SqlitePool, sql: &str) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.map(drop)
    }

    async fn count(pool: &SqlitePool, sql: &str) -> sqlx::Result<i64> {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await
    }

    async fn keys(pool: &SqlitePool) -> sqlx::Result<Vec<KeyRow>> {
        let statement = "
            SELECT operation, value, tenant, owner, state, $1 AS now, expires_at
            FROM steadfast_keys
            ORDER BY created_at, operation, value";
        let rows = sqlx::query_as(statement).bind(machine().0).fetch_all(pool).await?;
        Ok(rows.into_iter().map(KeyRow::new).collect())
    }
}

fn file(home: &TempDir) -> PathBuf {
    home.path().join("test.db")
}
