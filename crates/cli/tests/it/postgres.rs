//! Every test on PostgreSQL, each with a database of its own on the server of `TEST_DATABASE_URL`, and what only a server
//! can do.

use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use steadfast::Steadfast;
use uuid::Uuid;

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
type Db = sqlx::Postgres;

/// A database without tables.
struct Database {
    server: PgConnectOptions,
    name: String,
}

impl Database {
    /// A moment that nobody lives to see.
    const FAR: &str = "'infinity'";

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

    /// Runs statements, past the command line.
    async fn run(&self, sql: &str) {
        execute(&self.options(), sql).await;
    }

    /// Our table of this name.
    fn table(short: &str) -> String {
        format!("steadfast.{short}")
    }

    /// A role that may only look, and its URL. Roles belong to the server, so it is named after its database.
    async fn looker(&self) -> String {
        let looker = format!("{}_looker", self.name);
        self.run(&format!(
            "CREATE ROLE {looker} LOGIN PASSWORD 'open-sesame';
             GRANT USAGE ON SCHEMA steadfast TO {looker};
             GRANT SELECT ON ALL TABLES IN SCHEMA steadfast TO {looker}"
        ))
        .await;
        let options = self.options().username(&looker).password("open-sesame");
        options.to_url_lossy().to_string()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        // A runtime of its own, since the test's may be the one that is being left.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(execute(&server, &format!("DROP DATABASE {name} WITH (FORCE)")));
            runtime.block_on(execute(&server, &format!("DROP ROLE IF EXISTS {name}_looker")));
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

#[tokio::test]
async fn a_role_that_may_only_read_can_look_and_is_told_what_it_may_not() {
    let database = Database::fresh().await;
    let sf = Steadfast::<Db>::open(&database.url()).await.unwrap();
    let id = keys::place(&sf, "key-1").await;
    let looker = database.looker().await;
    let call = |line: &str| Call::new(line).env("DATABASE_URL", &looker);
    for line in [
        "keys list",
        "audit",
        "health",
        "migrate status",
        "purge --dry-run",
        "inbox list",
        "inbox stats",
        &format!("keys show {id} --answer"),
    ] {
        call(line).run().await.ok();
    }
    let told = call("doctor").run().await.out;
    assert!(told.contains("warn  rights"), "{told}");
    assert!(
        told.contains("the role may not INSERT keys, UPDATE keys, DELETE keys"),
        "{told}"
    );

    for line in ["purge".to_owned(), format!("keys forget {id} --reason test --yes")] {
        let said = call(&line).run().await;
        said.refused(1, "error[SF123]: ", "`steadfast doctor` names the rights");
        assert!(
            said.err.contains("caused by: "),
            "the database's own word is there: {}",
            said.err
        );
        assert!(!said.err.contains("open-sesame"), "{}", said.err);
    }
}

#[tokio::test]
async fn an_unreachable_server_is_told_with_a_cause_and_a_fix() {
    let url = "postgres://ops:open-sesame@127.0.0.1:1/shop";
    let (list, health, doctor) = tokio::join!(
        Call::new("keys list").env("DATABASE_URL", url).run(),
        Call::new("health --json").env("DATABASE_URL", url).run(),
        Call::new("doctor").env("DATABASE_URL", url).run(),
    );
    list.refused(
        1,
        "error[SF110]: PostgreSQL does not accept connections",
        "the server runs",
    );
    health.refused(5, "error[SF110]: ", "`steadfast config`");
    assert_eq!(
        health.out,
        "{\"healthy\":false,\"code\":\"SF110\",\"what\":\"PostgreSQL does not accept connections\"}\n"
    );
    assert_eq!(doctor.exit, 5);
    assert!(
        doctor
            .out
            .starts_with("fail  reachable  SF110: PostgreSQL does not accept connections: Connection refused"),
        "{}",
        doctor.out
    );
    assert!(list.err.contains("  caused by: Connection refused"), "{}", list.err);
    for said in [list, health, doctor] {
        assert!(!said.out.contains("open-sesame") && !said.err.contains("open-sesame"));
    }
}

#[tokio::test]
async fn doctor_says_what_the_server_says_of_its_settings() {
    let database = Database::fresh().await;
    drop(Steadfast::<Db>::open(&database.url()).await.unwrap());
    database
        .run(&format!(
            "ALTER DATABASE {} SET default_transaction_isolation = 'serializable'",
            database.name
        ))
        .await;
    let mut conn = PgConnection::connect_with(&database.options()).await.unwrap();
    let fsync: String = sqlx::query_scalar("SHOW fsync").fetch_one(&mut conn).await.unwrap();
    let said = Call::new("doctor").env("DATABASE_URL", &database.url()).run().await;
    assert!(said.out.contains(&format!("fsync is {fsync}\n")), "{}", said.out);
    assert!(
        said.out
            .contains("warn  isolation           transactions are serializable by default"),
        "{}",
        said.out
    );
    assert!(said.out.contains("ok    pooler "), "{}", said.out);
    let has_failed = said.out.lines().any(|line| line.starts_with("fail"));
    assert_eq!(said.exit, if has_failed { 5 } else { 0 }, "{}", said.out);
}

#[tokio::test]
async fn a_database_or_a_role_that_is_not_there_is_told_with_what_to_look_at() {
    let server = Database::fresh().await;
    for (options, cause, help) in [
        (
            server.options().database("nowhere"),
            "  caused by: database \"nowhere\" does not exist\n",
            "create the database",
        ),
        (
            server.options().username("nobody_here"),
            "nobody_here",
            "look at the user",
        ),
    ] {
        let url = options.to_url_lossy().to_string();
        let call = |line: &str| Call::new(line).env("DATABASE_URL", &url);
        call("keys list").run().await.refused(1, cause, help);
        let doctor = call("doctor").run().await;
        assert_eq!(doctor.exit, 5);
        assert!(
            doctor.out.starts_with("fail  reachable  SF120: ") && doctor.out.contains(help),
            "{}",
            doctor.out
        );
    }
}

#[tokio::test]
async fn doctor_names_rights_that_are_not_on_a_table_and_a_role_that_may_not_write() {
    let database = Database::fresh().await;
    drop(Steadfast::<Db>::open(&database.url()).await.unwrap());
    let looker = database.looker().await;
    let role = format!("{}_looker", database.name);
    database
        .run(&format!(
            "GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA steadfast TO {role};
             ALTER ROLE {role} SET default_transaction_read_only = on;
             REVOKE USAGE ON SCHEMA steadfast FROM {role};
             REVOKE EXECUTE ON FUNCTION steadfast.refuse(text, text) FROM PUBLIC"
        ))
        .await;
    let told = Call::new("doctor").env("DATABASE_URL", &looker).run().await.out;
    assert!(
        told.contains("warn  rights              the role may not USAGE steadfast, EXECUTE refuse\n"),
        "{told}"
    );
    assert!(
        told.contains("warn  primary             transactions are read-only by default"),
        "{told}"
    );
    assert!(
        told.contains("role may not do this: permission denied for schema steadfast\n"),
        "the cause is told: {told}"
    );
}
