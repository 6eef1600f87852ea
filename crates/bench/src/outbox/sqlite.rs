//! SQLite: a file on a real disk, `synchronous=FULL`.

use std::path::PathBuf;

use serde_json::json;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Sqlite, SqliteConnection, SqlitePool};
use steadfast::{Failure, Steadfast, Tx};
use tempfile::TempDir;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::place::{Ground, Place, TARGET};
use crate::command::order::{INSERT, ORDER, Order};
use crate::error::{Context, Result};
use crate::meter::Meter;
use crate::options::Database;

/// The business table, and the outbox that people write by hand: messages, and a row for each target that has to hear of one.
const TABLES: &str = "
    CREATE TABLE orders (
        id       INTEGER PRIMARY KEY,
        sku      TEXT    NOT NULL,
        quantity INTEGER NOT NULL,
        note     TEXT    NOT NULL
    );
    CREATE TABLE outbox_messages (
        id         TEXT    PRIMARY KEY,
        type       TEXT    NOT NULL,
        payload    BLOB    NOT NULL,
        created_at INTEGER NOT NULL DEFAULT (unixepoch())
    );
    CREATE TABLE outbox_deliveries (
        message    TEXT    NOT NULL,
        target     TEXT    NOT NULL,
        attempts   INTEGER NOT NULL DEFAULT 0,
        visible_at INTEGER NOT NULL DEFAULT (unixepoch()),
        PRIMARY KEY (message, target)
    );
    CREATE INDEX outbox_deliveries_next ON outbox_deliveries (target, visible_at)";

const CLAIM: &str = "
    UPDATE outbox_deliveries AS d
    SET attempts = attempts + 1, visible_at = unixepoch() + 30
    FROM (SELECT message
          FROM outbox_deliveries
          WHERE target = $1 AND visible_at <= unixepoch()
          ORDER BY visible_at
          LIMIT 500) AS due
    WHERE d.message = due.message AND d.target = $1
    RETURNING message, (SELECT m.payload FROM outbox_messages AS m WHERE m.id = message)";

const DELETE: &str = "DELETE FROM outbox_deliveries WHERE (message, target) IN (SELECT value, $2 FROM json_each($1))";

/// Rows of one INSERT.
const ROWS_AT_ONCE: usize = 50_000;

/// Where files are made.
#[derive(Clone)]
pub(crate) struct Directory(pub(crate) PathBuf);

/// A file, which is removed with its directory.
pub(crate) struct InFile {
    _directory: TempDir,
    options: SqliteConnectOptions,
    pool: SqlitePool,
    /// For who works by hand beside ours: they take turns, or they would wait for each other in the dark.
    writer: Mutex<SqliteConnection>,
}

impl Ground for Directory {
    type Place = InFile;

    const DATABASE: Database = Database::Sqlite;
    const HAS_ANNOUNCEMENTS: bool = false;

    async fn create(&self) -> Result<InFile> {
        let doing = format!("making a directory in {}", self.0.display());
        let directory = TempDir::new_in(&self.0).context(doing)?;
        let options = SqliteConnectOptions::new()
            .filename(directory.path().join("outbox.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true);
        let place = InFile {
            _directory: directory,
            pool: SqlitePoolOptions::new().connect_lazy_with(options.clone()),
            writer: Mutex::new(options.connect().await.context("making a file")?),
            options,
        };
        place.run(TABLES.to_owned()).await?;
        let builder = Steadfast::builder(place.pool.clone());
        builder.migrate().await.context("making the tables of Steadfast")?;
        Ok(place)
    }

    fn meter(&self) -> Meter {
        Meter::default()
    }
}

impl Place for InFile {
    type Db = Sqlite;
    type Hand = SqliteConnection;

    fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    /// All share one writer.
    fn wide_pool(&self) -> SqlitePool {
        self.pool.clone()
    }

    async fn run(&self, statements: String) -> Result<()> {
        let ran = sqlx::raw_sql(AssertSqlSafe(statements.as_str())).execute(&self.pool);
        ran.await.map(drop).context(&statements)
    }

    async fn tidy(&self) -> Result<()> {
        self.run("PRAGMA wal_checkpoint(TRUNCATE)".to_owned()).await
    }

    async fn place_order(tx: &mut Tx<Sqlite>, order: &Order) -> Result<i64, Failure> {
        let inserting = sqlx::query_scalar(INSERT)
            .bind(&order.sku)
            .bind(order.quantity)
            .bind(&order.note);
        Ok(inserting.fetch_one(tx.db()).await?)
    }

    async fn place_order_bare(&self) -> Result<()> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
        let inserting = sqlx::query_scalar(INSERT)
            .bind(&ORDER.sku)
            .bind(ORDER.quantity)
            .bind(&ORDER.note);
        let _: i64 = inserting.fetch_one(&mut *tx).await?;
        Ok(tx.commit().await?)
    }

    async fn count_orders(&self) -> Result<i64> {
        let counting = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&self.pool);
        counting.await.context("counting the orders")
    }

    async fn fill_by_hand(&self, deliveries: usize) -> Result<()> {
        let ids = new_ids(deliveries);
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query(
            "INSERT INTO outbox_messages (id, type, payload) SELECT value, 'order.placed', $2 FROM json_each($1)",
        )
        .bind(&ids)
        .bind(serde_json::to_vec(&*ORDER)?)
        .execute(&mut *tx)
        .await?;
        sqlx::query("INSERT INTO outbox_deliveries (message, target) SELECT value, $2 FROM json_each($1)")
            .bind(&ids)
            .bind(TARGET)
            .execute(&mut *tx)
            .await?;
        tx.commit().await.context("filling by hand")
    }

    async fn open_hand(&self) -> Result<SqliteConnection> {
        self.options.connect().await.context("opening the file")
    }

    async fn drain_by_hand(&self, hand: &mut SqliteConnection, handle: impl Fn(Order) + Send + Sync) -> Result<usize> {
        let mut count = 0;
        loop {
            let claimed: Vec<(String, Vec<u8>)> = sqlx::query_as(CLAIM).bind(TARGET).fetch_all(&mut *hand).await?;
            if claimed.is_empty() {
                return Ok(count);
            }
            for (_, payload) in &claimed {
                handle(serde_json::from_slice(payload)?);
            }
            let ids: Vec<_> = claimed.iter().map(|(id, _)| id).collect();
            let ids = json!(ids).to_string();
            sqlx::query(DELETE).bind(ids).bind(TARGET).execute(&mut *hand).await?;
            count += claimed.len();
        }
    }

    async fn fill_history(&self, deliveries: u32) -> Result<()> {
        let mut left = deliveries as usize;
        while left > 0 {
            let count = left.min(ROWS_AT_ONCE);
            let filling = sqlx::query(
                "
                INSERT INTO steadfast_history (finished_at, attempts, item, state, kind)
                SELECT (unixepoch() - 3600) * 1000000, 1, value, 'delivered', $2 FROM json_each($1)",
            );
            let filled = filling.bind(new_ids(count)).bind(TARGET).execute(&self.pool).await;
            filled.context("filling the history")?;
            left -= count;
        }
        Ok(())
    }

    async fn put_half_off(&self) -> Result<()> {
        self.run(
            "UPDATE steadfast_queue SET visible_at = visible_at + 3600000000, due_at = due_at + 3600000000
             WHERE unicode(substr(item, -1)) % 2 = 0"
                .to_owned(),
        )
        .await
    }

    async fn remove(&self) -> Result<()> {
        self.pool.close().await;
        Ok(())
    }
}

/// Ids that grow with time, as those of messages do, as JSON.
fn new_ids(count: usize) -> String {
    let ids: Vec<_> = std::iter::repeat_with(|| Uuid::now_v7().to_string())
        .take(count)
        .collect();
    json!(ids).to_string()
}
