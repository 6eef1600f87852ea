//! A fresh database for each test, and the rows the tests count.
//!
//! On PostgreSQL the toolkit runs as a role that may do nothing but read and write its rows; only the harness is
//! an administrator.

use std::future::Future;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Pool, Postgres, Sqlite};
use steadfast::{Clock, Database, Owner, Steadfast};

/// A database of this test alone.
pub(crate) struct Harness<Db: Database> {
    /// The toolkit, with the least rights that suffice.
    pub(crate) sf: Steadfast<Db>,
    /// The harness's own way in, with all rights.
    pub(crate) admin: Pool<Db>,
    pub(crate) owner: Owner,
    _directory: Option<tempfile::TempDir>,
}

/// How large and patient the toolkit's pool is.
#[derive(Clone, Copy)]
pub(crate) struct PoolSize {
    pub(crate) connections: u32,
    pub(crate) patience: Duration,
}

impl Default for PoolSize {
    fn default() -> Self {
        Self {
            connections: 10,
            patience: Duration::from_secs(10),
        }
    }
}

pub(crate) trait TestDatabase: Database {
    /// Whether statements differ in the way SQLite's do.
    const IS_SQLITE: bool;

    /// The name of a table of ours, by its short name.
    fn table(short: &str) -> String;
    /// An empty database with our tables and the tests' `effects`.
    fn create(size: PoolSize) -> impl Future<Output = Harness<Self>> + Send;
    /// A connection pool of the toolkit's role, as another process would have.
    fn another_pool(harness: &Harness<Self>, size: PoolSize) -> Pool<Self>;
    /// The number of rows a query counts.
    fn count(pool: &Pool<Self>, sql: &str) -> impl Future<Output = i64> + Send;
    /// The text that a query finds.
    fn text(pool: &Pool<Self>, sql: &str) -> impl Future<Output = String> + Send;
    /// Runs statements with all rights.
    fn run(pool: &Pool<Self>, sql: &str) -> impl Future<Output = ()> + Send;
    /// Whether these letters are anywhere in what is stored: in the files, or in any column of our tables.
    fn holds(harness: &Harness<Self>, letters: &str) -> impl Future<Output = bool> + Send;
}

pub(crate) async fn fresh<Db: TestDatabase>() -> Harness<Db> {
    Db::create(PoolSize::default()).await
}

impl<Db: TestDatabase> Harness<Db> {
    /// Another process on the same database: nothing in memory is shared.
    pub(crate) async fn another(&self) -> Steadfast<Db> {
        Steadfast::new(Db::another_pool(self, PoolSize::default()))
            .await
            .unwrap()
    }

    /// The same, with a clock to move.
    pub(crate) async fn another_with_clock(&self) -> (Steadfast<Db>, Clock) {
        let clock = Clock::default();
        let pool = Db::another_pool(self, PoolSize::default());
        let sf = Steadfast::builder(pool).clock(clock.clone()).build().await.unwrap();
        (sf, clock)
    }

    /// How many effects handlers have left behind.
    pub(crate) async fn effects(&self) -> i64 {
        Db::count(&self.admin, "SELECT count(*) FROM effects").await
    }

    /// How many keys have ended.
    pub(crate) async fn keys(&self) -> i64 {
        Db::count(&self.admin, &format!("SELECT count(*) FROM {}", Db::table("keys"))).await
    }

    /// Fails unless each effect has its key and each key its effect.
    pub(crate) async fn assert_effects_match_keys(&self) {
        let keys = Db::table("keys");
        let orphans =
            format!("SELECT count(*) FROM effects e WHERE NOT EXISTS (SELECT 1 FROM {keys} k WHERE k.value = e.tag)");
        let promises =
            format!("SELECT count(*) FROM {keys} k WHERE NOT EXISTS (SELECT 1 FROM effects e WHERE e.tag = k.value)");
        assert_eq!(Db::count(&self.admin, &orphans).await, 0, "an effect without its key");
        assert_eq!(Db::count(&self.admin, &promises).await, 0, "a key without its effect");
        let doubled = "SELECT count(*) FROM (SELECT tag FROM effects GROUP BY tag HAVING count(*) > 1) AS twice";
        assert_eq!(
            Db::count(&self.admin, doubled).await,
            0,
            "an effect that happened twice"
        );
    }

    /// Adds tables with a deferred foreign key, which an existing `Steadfast` does not know of.
    pub(crate) async fn defer_a_foreign_key(&self) {
        self.run(DEFERRED).await;
        if !Db::IS_SQLITE {
            self.run("GRANT SELECT, INSERT, DELETE ON parents, children TO steadfast_app")
                .await;
        }
    }

    /// Runs statements with all rights.
    pub(crate) async fn run(&self, sql: &str) {
        Db::run(&self.admin, sql).await;
    }
}

/// One effect of a handler, tagged with the key it belongs to. `nonce` tells executions apart.
const EFFECTS: &str = "CREATE TABLE effects (tag TEXT NOT NULL, nonce TEXT NOT NULL DEFAULT '')";

/// Rows whose foreign key is only looked at when they are committed.
const DEFERRED: &str = "CREATE TABLE parents (id INTEGER PRIMARY KEY);
                        CREATE TABLE children (parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)";

impl TestDatabase for Sqlite {
    const IS_SQLITE: bool = true;

    fn table(short: &str) -> String {
        format!("steadfast_{short}")
    }

    async fn create(size: PoolSize) -> Harness<Self> {
        let directory = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(directory.path().join("test.db"))
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
        let admin = SqlitePoolOptions::new().connect_with(options.clone()).await.unwrap();
        sqlx::raw_sql(EFFECTS).execute(&admin).await.unwrap();
        let pool = sqlite_pool(options, size);
        let builder = Steadfast::builder(pool);
        builder.migrate().await.unwrap();
        let sf = builder.build().await.unwrap();
        Harness {
            sf,
            admin,
            owner: Owner::new("tenant-1", "user-a"),
            _directory: Some(directory),
        }
    }

    fn another_pool(harness: &Harness<Self>, size: PoolSize) -> Pool<Self> {
        sqlite_pool((*harness.admin.connect_options()).clone(), size)
    }

    async fn count(pool: &Pool<Self>, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await.unwrap()
    }

    async fn text(pool: &Pool<Self>, sql: &str) -> String {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await.unwrap()
    }

    async fn run(pool: &Pool<Self>, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.unwrap();
    }

    async fn holds(harness: &Harness<Self>, letters: &str) -> bool {
        let file = harness.admin.connect_options().get_filename().to_owned();
        let files = std::fs::read_dir(file.parent().unwrap()).unwrap();
        let mut contents = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
        contents.any(|bytes| bytes.windows(letters.len()).any(|window| window == letters.as_bytes()))
    }
}

fn sqlite_pool(options: SqliteConnectOptions, size: PoolSize) -> Pool<Sqlite> {
    SqlitePoolOptions::new()
        .max_connections(size.connections)
        .acquire_timeout(size.patience)
        .connect_lazy_with(options)
}

impl TestDatabase for Postgres {
    const IS_SQLITE: bool = false;

    fn table(short: &str) -> String {
        format!("steadfast.{short}")
    }

    async fn create(size: PoolSize) -> Harness<Self> {
        let url = std::env::var("TEST_DATABASE_URL")
            .expect("TEST_DATABASE_URL is not set: run `cargo xtask test`, which starts a PostgreSQL");
        let server: PgConnectOptions = url.parse().unwrap();
        let name = format!("steadfast_test_{}", uuid::Uuid::now_v7().simple());
        let mut conn = PgConnection::connect_with(&server).await.unwrap();
        conn.execute(AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0")))
            .await
            .unwrap();
        conn.execute(
            "DO $$ BEGIN
                 CREATE ROLE steadfast_app LOGIN PASSWORD 'steadfast_app';
             EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
             END $$",
        )
        .await
        .unwrap();
        conn.close().await.unwrap();

        let admin = PgPoolOptions::new()
            .max_connections(3)
            .connect_lazy_with(server.database(&name));
        sqlx::raw_sql(EFFECTS).execute(&admin).await.unwrap();
        Steadfast::builder(admin.clone()).migrate().await.unwrap();
        let grants = include_str!("../../../../docs/guide/grants.sql").replace("my_service", "steadfast_app");
        sqlx::raw_sql(AssertSqlSafe(grants)).execute(&admin).await.unwrap();
        sqlx::raw_sql("GRANT SELECT, INSERT, UPDATE, DELETE ON effects TO steadfast_app")
            .execute(&admin)
            .await
            .unwrap();
        let sf = Steadfast::new(app_pool(&admin, size)).await.unwrap();
        Harness {
            sf,
            admin,
            owner: Owner::new("tenant-1", "user-a"),
            _directory: None,
        }
    }

    fn another_pool(harness: &Harness<Self>, size: PoolSize) -> Pool<Self> {
        app_pool(&harness.admin, size)
    }

    async fn count(pool: &Pool<Self>, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await.unwrap()
    }

    async fn text(pool: &Pool<Self>, sql: &str) -> String {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await.unwrap()
    }

    async fn run(pool: &Pool<Self>, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.unwrap();
    }

    async fn holds(harness: &Harness<Self>, letters: &str) -> bool {
        let tables = "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'steadfast'";
        let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&harness.admin).await.unwrap();
        let mut found = 0;
        for table in tables {
            // A row as text shows its bytes in hexadecimal digits.
            let rows = format!(
                "SELECT count(*) FROM steadfast.{table} AS t
                 WHERE t::text LIKE '%{letters}%' OR t::text LIKE '%' || encode('{letters}', 'hex') || '%'"
            );
            found += Self::count(&harness.admin, &rows).await;
        }
        found > 0
    }
}

fn app_pool(admin: &Pool<Postgres>, size: PoolSize) -> Pool<Postgres> {
    let options = (*admin.connect_options())
        .clone()
        .username("steadfast_app")
        .password("steadfast_app");
    PgPoolOptions::new()
        .max_connections(size.connections)
        .acquire_timeout(size.patience)
        .connect_lazy_with(options)
}

/// Waits for a fact. Fails, saying which, if it does not come true.
pub(crate) async fn eventually<F>(what: &str, mut fact: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    // A minute: whoever shares the machine may have it for a while.
    for _ in 0..3_000 {
        if fact().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never came true: {what}");
}
