//! Every test on SQLite, each with a file of its own, and what only a file can do.

use tempfile::TempDir;

use crate::process::Call;

#[path = "suite/keys.rs"]
mod keys;
#[path = "suite/house.rs"]
mod house;
#[path = "suite/outbox.rs"]
mod outbox;
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
