//! Every test on SQLite, each with a file of its own.

use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use tempfile::TempDir;

use crate::process::Shop;

#[path = "suite/clients.rs"]
mod clients;
#[path = "suite/duplicates.rs"]
mod duplicates;
#[path = "suite/crashes.rs"]
mod crashes;
#[path = "suite/failures.rs"]
mod failures;
#[path = "suite/inputs.rs"]
mod inputs;
#[path = "suite/processes.rs"]
mod processes;
#[path = "suite/reactions.rs"]
mod reactions;
#[path = "suite/dispatchers.rs"]
mod dispatchers;
#[path = "suite/jobs.rs"]
mod jobs;
#[path = "suite/warehouses.rs"]
mod warehouses;
#[path = "suite/foreign.rs"]
mod foreign;
#[path = "suite/webdriver.rs"]
mod webdriver;

/// The database of these tests, for those who look at it with the toolkit.
type Db = sqlx::Sqlite;

/// The table of the stored answers.
const KEYS: &str = "steadfast_keys";

/// What stands before the names of the toolkit's tables.
const PREFIX: &str = "steadfast_";

/// Whether commands of other processes wait in line, and may be told to come back.
const HAS_ONE_WRITER: bool = true;

/// A database that nobody has used.
struct Database {
    directory: TempDir,
}

impl Database {
    async fn fresh() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory }
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.directory.path().join("shop.db").display())
    }

    /// Asks for one number, past the shop.
    async fn ask(&self, sql: &str) -> i64 {
        let mut conn = SqliteConnection::connect(&self.url()).await.unwrap();
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(&mut conn)
            .await
            .unwrap()
    }

    async fn count(&self, table: &str) -> i64 {
        self.ask(&format!("SELECT count(*) FROM {table}")).await
    }

    /// Changes rows, past the shop.
    async fn change(&self, sql: &str) {
        let mut conn = SqliteConnection::connect(&self.url()).await.unwrap();
        sqlx::query(AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
    }
}

#[tokio::test]
async fn shops_that_share_a_file_need_no_broker_to_tell_each_other() {
    let database = Database::fresh().await;
    let nowhere = "redis://ann:hunter2@127.0.0.1:1";
    let said = Shop::refused(&["serve", "--push-across", nowhere, "--database-url", &database.url()]).await;
    assert!(said.contains("--push-across is for shops on PostgreSQL"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}
