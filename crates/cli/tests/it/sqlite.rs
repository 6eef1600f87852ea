//! Every test on SQLite, each with a file of its own, and what only a file can do.

use tempfile::TempDir;

use crate::process::Call;

#[path = "suite/deliveries.rs"]
mod deliveries;
#[path = "suite/inbox.rs"]
mod inbox;
#[path = "suite/jobs.rs"]
mod jobs;
#[path = "suite/schedules.rs"]
mod schedules;
#[path = "suite/keys.rs"]
mod keys;
#[path = "suite/house.rs"]
mod house;
#[path = "suite/outbox.rs"]
mod outbox;
#[path = "suite/queues.rs"]
mod queues;
#[path = "suite/tables.rs"]
mod tables;

/// The database this copy of the suite is compiled for.
type Db = sqlx::Sqlite;

/// A database without tables.
struct Database {
    directory: TempDir,
}

impl Database {
    /// A moment that nobody lives to see.
    const FAR: &str = "9000000000000000";

    async fn fresh() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::File::create(directory.path().join("shop.db")).unwrap();
        Self { directory }
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.directory.path().join("shop.db").display())
    }

    /// Runs statements, past the command line.
    async fn run(&self, sql: &str) {
        let pool = sqlx::SqlitePool::connect(&self.url()).await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
        pool.close().await;
    }

    /// Our table of this name.
    fn table(short: &str) -> String {
        format!("steadfast_{short}")
    }
}

#[tokio::test]
async fn a_mistyped_file_is_not_made() {
    let database = Database::fresh().await;
    let missing = format!("{}x", database.url());
    for line in ["keys list", "doctor", "purge", "migrate status"] {
        let said = Call::new(line).env("DATABASE_URL", &missing).run().await;
        assert_eq!(
            said.exit,
            if line == "doctor" { 5 } else { 1 },
            "{line}: {}{}",
            said.out,
            said.err
        );
        let told = format!("{}{}", said.out, said.err);
        assert!(told.contains("does not exist") && told.contains("migrate up"), "{told}");
    }
    assert!(!database.directory.path().join("shop.dbx").exists());
}

#[tokio::test]
async fn doctor_finds_a_journal_that_is_not_wal_and_deferred_keys_and_changes_neither() {
    let database = Database::fresh().await;
    // A process that has ended holds the file no longer, which the change of its journal needs.
    let migrated = Call::new("migrate up").env("DATABASE_URL", &database.url());
    migrated.run().await.ok();
    database
        .run("PRAGMA journal_mode = DELETE; CREATE TABLE p (id INTEGER PRIMARY KEY); CREATE TABLE c (p REFERENCES p (id) DEFERRABLE INITIALLY DEFERRED)")
        .await;
    for _ in 0..2 {
        let told = Call::new("doctor")
            .env("DATABASE_URL", &database.url())
            .run()
            .await
            .ok();
        assert!(
            told.contains("warn  journal_mode   journal_mode is delete\n      fix: "),
            "{told}"
        );
        assert!(told.contains("warn  deferred_keys  "), "{told}");
    }
}

#[tokio::test]
async fn what_is_in_the_way_of_a_file_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    std::fs::write(directory.path().join("letter.txt"), "Dear Sir or Madam, ".repeat(100)).unwrap();
    for (line, url, exit, cause, help) in [
        (
            "keys list",
            format!("sqlite://{place}/letter.txt"),
            1,
            "  caused by: file is not a database\n",
            "restore a backup",
        ),
        (
            "migrate up",
            format!("sqlite://{place}"),
            1,
            "is a directory\n",
            "name a file",
        ),
        (
            "migrate up",
            format!("sqlite://{place}/no/shop.db"),
            1,
            "its directory does not exist\n",
            "make the directory",
        ),
        (
            "migrate up",
            format!("sqlite://{place}/letter.txt/shop.db"),
            1,
            "cannot be looked at\n",
            "your rights",
        ),
        (
            "doctor",
            "sqlite::memory:".to_owned(),
            2,
            "the database URL names no file",
            "only by the process that made it",
        ),
        (
            "keys list",
            "sqlite://".to_owned(),
            2,
            "the database URL names no file",
            "write sqlite://FILE",
        ),
    ] {
        let said = Call::new(line).env("DATABASE_URL", &url).run().await;
        said.refused(exit, cause, help);
    }
    let letter = format!("sqlite://{place}/letter.txt");
    let told = Call::new("doctor").env("DATABASE_URL", &letter).run().await.out;
    assert!(
        told.starts_with("fail  reachable  SF120: ")
            && told.contains("file is not a database\n      fix: name another file"),
        "{told}"
    );
}

#[tokio::test]
async fn a_file_that_the_settings_name_lies_beside_them_wherever_one_stands() {
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join("src");
    std::fs::create_dir(&below).unwrap();
    let settings = directory.path().join("steadfast.toml");
    std::fs::write(settings, "database-url = \"sqlite://shop.db\"").unwrap();
    Call::new("migrate up").directory(&below).run().await.ok();
    assert!(directory.path().join("shop.db").exists() && !below.join("shop.db").exists());
    Call::new("keys list").directory(directory.path()).run().await.ok();
    let elsewhere = Call::new("keys list")
        .directory(&below)
        .env("DATABASE_URL", "sqlite://shop.db");
    elsewhere.run().await.refused(
        1,
        "the database file shop.db does not exist",
        "from the current directory",
    );
}

/// How many dead letters there are, so many that a bulk operation takes a while.
const GRAVES: u32 = 60_000;

/// A file full of dead letters, written past the library.
async fn with_graves() -> Database {
    let database = Database::fresh().await;
    let migrated = Call::new("migrate up").env("DATABASE_URL", &database.url());
    migrated.run().await.ok();
    let series = format!("WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {GRAVES}) SELECT");
    database
        .run(&format!(
            "INSERT INTO steadfast_queue (visible_at, due_at, epoch, attempts, item, state, kind)
             {series} 9223372036854775807, 1, 1, 1, printf('01890000-0000-7000-8000-%012d', n), 'dead', 'stock.reserve' FROM n"
        ))
        .await;
    database
}

/// Discards all of them, and sends a signal after the first batch; what was said then, and how many were discarded.
async fn discard_until(database: &Database, signal: &str) -> (std::process::Output, i64) {
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_steadfast"))
        .args(["dead", "discard", "--all", "--reason", "old", "--yes"])
        .env("DATABASE_URL", database.url())
        .env("USER", "ops")
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    while discarded(database).await == 0 {
        tokio::task::yield_now().await;
    }
    let sent = std::process::Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success(), "it has ended by itself");
    let output = child.wait_with_output().unwrap();
    let count = discarded(database).await;
    assert!(count < i64::from(GRAVES), "it was stopped in the middle");
    assert_eq!(count % 500, 0, "whole batches only");
    (output, count)
}

async fn discarded(database: &Database) -> i64 {
    let pool = sqlx::SqlitePool::connect(&database.url()).await.unwrap();
    let counts = "SELECT count(*), count(DISTINCT item) FROM steadfast_history";
    let (count, items): (i64, i64) = sqlx::query_as(counts).fetch_one(&pool).await.unwrap();
    assert_eq!(count, items, "nothing twice");
    pool.close().await;
    count
}

#[tokio::test]
async fn a_bulk_operation_that_was_killed_is_resumed_and_does_nothing_twice() {
    let database = with_graves().await;
    let (_, count) = discard_until(&database, "-KILL").await;
    let call = |line: &str| Call::new(line).env("DATABASE_URL", &database.url());
    let listed = call("operations list --json").run().await.ok();
    let so_far = format!(r#""state":"running","done":{count},"expected":{GRAVES}"#);
    assert!(listed.contains(&so_far), "{listed}");
    let resume = format!("operations resume {} --json", &listed[7..43]);
    let said = call(&resume).run().await;
    said.refused(
        4,
        "another process works on operation",
        "if it has died, try again in 10 seconds",
    );
    let ended = loop {
        let said = call(&resume).run().await;
        if said.exit == 0 {
            break said.out;
        }
        assert_eq!(said.exit, 4, "{}", said.err);
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    };
    let whole = format!(
        r#""state":"done","done":{GRAVES},"expected":{GRAVES},"batches":{}"#,
        GRAVES / 500
    );
    assert!(ended.contains(&whole), "{ended}");
    assert_eq!(discarded(&database).await, i64::from(GRAVES));
}

#[tokio::test]
async fn an_interrupted_bulk_operation_says_how_to_go_on_and_how_to_end_it() {
    let database = with_graves().await;
    let (output, count) = discard_until(&database, "-INT").await;
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    let (_, id) = told.split_once("`steadfast operations resume ").unwrap();
    let id = &id[..36];
    assert!(
        told.contains(&format!("`steadfast operations cancel {id}` ends it")),
        "{told}"
    );
    let call = |line: &str| Call::new(line).env("DATABASE_URL", &database.url());
    let cancelled = call(&format!("operations cancel {id} --reason enough --json"))
        .run()
        .await
        .ok();
    assert!(
        cancelled.contains(&format!(r#""state":"cancelled","done":{count}"#)),
        "{cancelled}"
    );
    let resumed = call(&format!("operations resume {id} --json")).run().await;
    resumed.refused(2, "is cancelled", "begin another one");
    assert_eq!(discarded(&database).await, count);
}
