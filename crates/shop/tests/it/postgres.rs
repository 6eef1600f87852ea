//! Every test on PostgreSQL, each with a database of its own on the server of `TEST_DATABASE_URL`.

use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use uuid::Uuid;

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
mod across;

/// The database of these tests, for those who look at it with the toolkit.
type Db = sqlx::Postgres;

/// The table of the stored answers.
const KEYS: &str = "steadfast.keys";

/// What stands before the names of the toolkit's tables.
const PREFIX: &str = "steadfast.";

/// Whether commands of other processes wait in line, and may be told to come back.
const HAS_ONE_WRITER: bool = false;

/// A database that nobody has used.
struct Database {
    server: PgConnectOptions,
    name: String,
}

impl Database {
    async fn fresh() -> Self {
        let url = std::env::var("TEST_DATABASE_URL")
            .unwrap_or_else(|_| panic!("TEST_DATABASE_URL is not set: run `cargo xtask test`"));
        let database = Self {
            server: PgConnectOptions::from_str(&url).unwrap(),
            name: format!("steadfast_test_{}", Uuid::now_v7().simple()),
        };
        let create = format!("CREATE DATABASE {} TEMPLATE template0", database.name);
        execute(&database.server, &create).await;
        database
    }

    fn url(&self) -> String {
        self.options().to_url_lossy().to_string()
    }

    fn options(&self) -> PgConnectOptions {
        self.server.clone().database(&self.name)
    }

    /// Asks for one number, past the shop.
    async fn ask(&self, sql: &str) -> i64 {
        let mut conn = PgConnection::connect_with(&self.options()).await.unwrap();
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
        let mut conn = PgConnection::connect_with(&self.options()).await.unwrap();
        sqlx::query(AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let server = self.server.clone();
        let statements = [
            format!("DROP DATABASE {} WITH (FORCE)", self.name),
            format!("DROP ROLE IF EXISTS {}", self.clerk()),
        ];
        // A runtime of its own, since the test's may be the one that is being left.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            for statement in statements {
                runtime.block_on(execute(&server, &statement));
            }
        });
        if dropping.join().is_err() {
            eprintln!("the database {} stays behind", self.name);
        }
    }
}

async fn execute(options: &PgConnectOptions, sql: &str) {
    let mut conn = PgConnection::connect_with(options).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
}

const PASSWORD: &str = "open-sesame";

impl Database {
    /// A role that may read and write rows and nothing else. Roles belong to the server, so it is named after its database.
    fn clerk(&self) -> String {
        format!("{}_clerk", self.name)
    }

    /// Hires the clerk for a shop that is prepared already, and hands out his URL.
    async fn hire_clerk(&self) -> String {
        let clerk = self.clerk();
        let statements = format!(
            "CREATE ROLE {clerk} LOGIN PASSWORD '{PASSWORD}';
             REVOKE CREATE ON SCHEMA public FROM PUBLIC;
             GRANT USAGE ON SCHEMA steadfast TO {clerk};
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA steadfast TO {clerk};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public, steadfast TO {clerk}"
        );
        execute(&self.options(), &statements).await;
        let options = self.options().username(&clerk).password(PASSWORD);
        options.to_url_lossy().to_string()
    }
}

#[tokio::test]
async fn a_role_that_may_not_create_tables_can_run_a_prepared_shop() {
    let database = Database::fresh().await;
    drop(Shop::lab(&database.url()).await);
    let shop = Shop::lab(&database.hire_clerk().await).await;
    let created = shop.order("key-1").send().await;
    assert_eq!(created.status, 201, "{}", created.text());
    let advanced = shop
        .request("POST", "/lab/clock")
        .json(r#"{"advance":"1h"}"#)
        .send()
        .await;
    assert_eq!(advanced.status, 200, "{}", advanced.text());
}

#[tokio::test]
async fn the_password_of_the_database_is_never_printed() {
    let database = Database::fresh().await;
    drop(Shop::start(&database.url(), &[]).await);
    let shop = Shop::start(&database.hire_clerk().await, &[]).await;
    assert!(shop.said().contains("psql"), "{}", shop.said());
    assert!(!shop.said().contains(PASSWORD), "{}", shop.said());
}
