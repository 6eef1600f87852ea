//! SQLite: a file on a real disk, `synchronous=FULL`, 32 callers who share one writer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Sqlite, SqliteConnection};
use steadfast::Steadfast;
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::keys::{OldKeys, expect_replay, new_key};
use super::order::{INSERT, OPERATION, ORDER, OWNER, Placed};
use crate::error::{Context, Result};
use crate::measure::{Aim, Case, Series, Stage};
use crate::options::Database;

const BARE: &str = "bare";
const ONE_BY_ONE: &str = "one commit a command";
const GROUPED: &str = "group commit";
const REPLAY: &str = "replay";

const TABLE: &str = "
    CREATE TABLE orders (
        id       INTEGER PRIMARY KEY,
        sku      TEXT    NOT NULL,
        quantity INTEGER NOT NULL,
        note     TEXT    NOT NULL
    )";

/// Nobody writes to it. A deferred foreign key is only checked by COMMIT, which could then fail for a whole group, so a
/// database that has one commits its commands one by one: the baseline of group commit.
const DEFERRED: &str = "
    CREATE TABLE never_used (
        order_id INTEGER REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED
    )";

pub(super) fn series(directory: PathBuf) -> Series {
    let cases = [
        Case::new(BARE),
        Case::new(ONE_BY_ONE).against(BARE, None),
        Case::new(GROUPED)
            .against(ONE_BY_ONE, 4.0)
            .aiming(Aim::Slowest { at_most: 10.0 }),
        Case::new(REPLAY).against(GROUPED, None),
    ];
    Series::new(Database::Sqlite, cases, |_| prepare(directory))
}

async fn prepare(directory: PathBuf) -> Result<Stage> {
    let files = TempDir::new_in(&directory).context(format!("making a directory in {}", directory.display()))?;
    let writer = make_file(&file(&files, "bare"), &[TABLE]).await?;
    let one_by_one = open(&file(&files, "one-by-one"), &[TABLE, DEFERRED]).await?;
    let grouped = open(&file(&files, "grouped"), &[TABLE]).await?;
    let old_keys = OldKeys::commit(async |key| run_command(&grouped, key).await).await?;
    Ok(Stage::default()
        .does(BARE, &Arc::new(Mutex::new(writer)), bare)
        .does(ONE_BY_ONE, &one_by_one, command)
        .does(GROUPED, &grouped, command)
        .does(REPLAY, &Arc::new((grouped.clone(), old_keys)), replay)
        .ends_with(async move { files.close().context("removing the files of SQLite") }))
}

fn file(files: &TempDir, name: &str) -> PathBuf {
    files.path().join(format!("{name}.db"))
}

/// Makes the file with its tables, and keeps the connection: the settings are those of Steadfast.
async fn make_file(path: &Path, tables: &[&'static str]) -> Result<SqliteConnection> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true);
    let doing = format!("making {}", path.display());
    let mut conn = options.connect().await.context(&doing)?;
    for table in tables {
        sqlx::raw_sql(*table).execute(&mut conn).await.context(&doing)?;
    }
    Ok(conn)
}

/// The tables are there before Steadfast looks at the file.
async fn open(path: &Path, tables: &[&'static str]) -> Result<Arc<Steadfast<Sqlite>>> {
    drop(make_file(path, tables).await?);
    let url = format!("sqlite://{}", path.display());
    let sf = Steadfast::open(&url).await.context(format!("opening {url}"))?;
    Ok(Arc::new(sf))
}

async fn bare(writer: Arc<Mutex<SqliteConnection>>, _: usize) -> Result<()> {
    let mut writer = writer.lock().await;
    let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
    place(&mut tx).await?;
    Ok(tx.commit().await?)
}

async fn command(sf: Arc<Steadfast<Sqlite>>, _: usize) -> Result<()> {
    run_command(&sf, &new_key()).await.map(drop)
}

async fn replay(shared: Arc<(Arc<Steadfast<Sqlite>>, OldKeys)>, _: usize) -> Result<()> {
    let (sf, old_keys) = &*shared;
    expect_replay(run_command(sf, old_keys.next()).await?)
}

/// Runs a command and says whether it was replayed.
async fn run_command(sf: &Steadfast<Sqlite>, key: &str) -> Result<bool> {
    let reply = sf
        .command(OPERATION, key)
        .owner(&OWNER)
        .input(&*ORDER)
        .run(async |tx| Ok(place(tx.db()).await?))
        .await
        .context("running a command")?;
    Ok(reply.replayed)
}

async fn place(conn: &mut SqliteConnection) -> sqlx::Result<Placed> {
    let id = sqlx::query_scalar(INSERT)
        .bind(&ORDER.sku)
        .bind(ORDER.quantity)
        .bind(&ORDER.note)
        .fetch_one(conn)
        .await?;
    Ok(ORDER.placed(id))
}
