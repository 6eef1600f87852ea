//! PostgreSQL: a database of its own on the server that `TEST_DATABASE_URL` names.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool, Postgres};

use super::super::wait::eventually;
use super::{KeyRow, Kit};

/// The server to make databases on.
const VARIABLE: &str = "TEST_DATABASE_URL";

/// Leaves a database as it was made: many times as quick as making one.
const EMPTY: &str = "
    DO $$
    DECLARE name text;
    BEGIN
        FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
            EXECUTE format('DROP SCHEMA %I CASCADE', name);
        END LOOP;
        CREATE SCHEMA public;
        GRANT USAGE ON SCHEMA public TO PUBLIC;
    END $$";

impl Kit for Postgres {
    /// How to connect; the name of the database is part of it.
    type Home = PgConnectOptions;

    async fn create() -> PgConnectOptions {
        let home = server().database(&fresh_name());
        // Not template1, which cannot be copied while somebody is connected to it.
        on_server(&format!("CREATE DATABASE {} TEMPLATE template0", database(&home))).await;
        home
    }

    async fn renew(home: PgConnectOptions) -> PgConnectOptions {
        let mut conn = connect().await;
        let ended = sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1")
            .bind(database(&home))
            .execute(&mut conn)
            .await;
        ended.unwrap_or_else(|error| panic!("the sessions of the last run cannot be ended: {error}"));
        let _ = conn.close().await;
        eventually("the last run has left", async || Self::is_deserted(&home).await).await;
        let pool = Self::pool(&home);
        let emptied = sqlx::raw_sql(EMPTY).execute(&pool).await;
        emptied.unwrap_or_else(|error| panic!("the database of the last run cannot be emptied: {error}"));
        pool.close().await;
        home
    }

    async fn remove(home: PgConnectOptions) {
        on_server(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", database(&home))).await;
    }

    fn name(home: &PgConnectOptions) -> Option<String> {
        Some(database(home).to_owned())
    }

    fn pool(home: &PgConnectOptions) -> PgPool {
        PgPoolOptions::new().connect_lazy_with(home.clone())
    }

    /// A session whose client is gone may still hold its locks for a moment.
    async fn is_deserted(home: &PgConnectOptions) -> bool {
        let mut conn = connect().await;
        let sessions: sqlx::Result<i64> =
            sqlx::query_scalar("SELECT count(*) FROM pg_stat_activity WHERE datname = $1")
                .bind(database(home))
                .fetch_one(&mut conn)
                .await;
        conn.close().await.is_ok() && sessions.is_ok_and(|sessions| sessions == 0)
    }

    async fn run(pool: &PgPool, sql: &str) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.map(drop)
    }

    async fn count(pool: &PgPool, sql: &str) -> sqlx::Result<i64> {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await
    }

    async fn keys(pool: &PgPool) -> sqlx::Result<Vec<KeyRow>> {
        let statement = "
            SELECT operation, value, tenant, owner, state,
                   (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now,
                   (extract(epoch FROM expires_at) * 1000000)::bigint        AS expires_at
            FROM steadfast.keys
            ORDER BY created_at, operation, value";
        let rows = sqlx::query_as(statement).fetch_all(pool).await?;
        Ok(rows.into_iter().map(KeyRow::new).collect())
    }
}

fn server() -> PgConnectOptions {
    let url = std::env::var(VARIABLE).ok().filter(|url| !url.is_empty());
    let url = url.unwrap_or_else(|| {
        panic!(
            "{VARIABLE} is not set. Tests on PostgreSQL make a database of their own on the server it names, and drop it \
             when they have passed; its role must be allowed to create databases. For example:\n\n    \
             {VARIABLE}=postgres://postgres@127.0.0.1:5432/postgres cargo test\n\nWithout a server, run the others: \
             cargo test -- --skip ::postgres"
        )
    });
    // The error of a URL that cannot be read may quote it, password and all.
    url.parse().unwrap_or_else(|_| {
        panic!("{VARIABLE} is not the URL of a PostgreSQL: postgres://user:password@host:port/database")
    })
}

async fn connect() -> PgConnection {
    let connected = server().connect().await;
    connected.unwrap_or_else(|error| panic!("the PostgreSQL of {VARIABLE} cannot be reached: {error}"))
}

async fn on_server(statement: &str) {
    let mut conn = connect().await;
    let done = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut conn).await;
    done.unwrap_or_else(|error| panic!("{statement}: {error}"));
    // It has done its work; how it ends does not matter.
    let _ = conn.close().await;
}

/// A name that sorts by time and that no other test has, of this machine or another.
fn fresh_name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!(
        "steadfast_test_{:x}_{:016x}",
        now.as_micros(),
        RandomState::new().hash_one(now)
    )
}

fn database(home: &PgConnectOptions) -> &str {
    home.get_database().unwrap_or_default()
}
