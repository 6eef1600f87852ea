//! The PostgreSQL server that is measured, and databases of our own on it.

use std::path::Path;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use url::Url;
use uuid::Uuid;

use crate::disk;
use crate::error::{Context, Result};
use crate::measure::CALLERS;
use crate::meter::{Meter, Process};

/// Settings without which a commit is not durable, and cheaper than it should be.
const DURABLE: &str = "
    SELECT name || ' = ' || setting
    FROM pg_settings
    WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes') AND setting <> 'on'";

/// A server, with connections beside those that are measured.
#[derive(Clone)]
pub(crate) struct Server {
    url: Url,
    options: PgConnectOptions,
    pub(crate) control: PgPool,
}

/// A database of ours.
#[derive(Clone)]
pub(crate) struct Scratch {
    server: Server,
    name: String,
}

impl Server {
    /// Connects with the first statement.
    pub(crate) fn new(url: &str) -> Result<Self> {
        let url: Url = url.parse().context("reading the URL of the server")?;
        let options: PgConnectOptions = url.as_str().parse().context("reading the URL of the server")?;
        let control = PgPoolOptions::new().connect_lazy_with(options.clone());
        Ok(Self { url, options, control })
    }

    /// Says what makes commits on this server cheaper than in production.
    pub(crate) async fn warn_if_not_durable(&self) -> Result<()> {
        let mut reasons: Vec<String> = sqlx::query_scalar(DURABLE)
            .fetch_all(&self.control)
            .await
            .context("reading the settings of PostgreSQL")?;
        // Only a superuser may know, and only on this machine can we look.
        let place: Result<String, _> = sqlx::query_scalar("SHOW data_directory").fetch_one(&self.control).await;
        let in_memory = place.ok().and_then(|place| disk::memory_under(Path::new(&place)));
        reasons.extend(in_memory.map(|kind| format!("its data is on {kind}, in memory")));
        if !reasons.is_empty() {
            let reasons = reasons.join(", ");
            eprintln!("PostgreSQL is not durable ({reasons}): a commit costs too little, and the ratios mean little");
        }
        Ok(())
    }

    pub(crate) async fn create_database(&self) -> Result<Scratch> {
        let name = format!("steadfast_bench_{}", Uuid::new_v4().simple());
        self.run(format!("CREATE DATABASE {name}")).await?;
        Ok(Scratch {
            server: self.clone(),
            name,
        })
    }

    /// What was written so far is in its place: full page images come from now on, for pages that are changed first.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        self.run("CHECKPOINT".to_owned()).await
    }

    pub(crate) fn meter(&self) -> Meter {
        Meter {
            server: Some(self.control.clone()),
            process: Process::Ours,
        }
    }

    /// Names in these statements are ours.
    async fn run(&self, statement: String) -> Result<()> {
        let ran = sqlx::raw_sql(AssertSqlSafe(statement.as_str())).execute(&self.control);
        ran.await.map(drop).context(&statement)
    }
}

impl Scratch {
    /// A pool with a connection for each caller; the rest is as given.
    pub(crate) fn pool(&self, options: PgPoolOptions) -> PgPool {
        let connections = u32::try_from(CALLERS).unwrap_or(u32::MAX);
        options.max_connections(connections).connect_lazy_with(self.options())
    }

    /// The same for those who leave half of their pool to others, as handlers with a transaction do.
    pub(crate) fn wide_pool(&self) -> PgPool {
        let connections = u32::try_from(2 * CALLERS).unwrap_or(u32::MAX);
        PgPoolOptions::new()
            .max_connections(connections)
            .connect_lazy_with(self.options())
    }

    pub(crate) async fn connection(&self) -> Result<PgConnection> {
        let connected = PgConnection::connect_with(&self.options()).await;
        connected.context(format!("connecting to {}", self.name))
    }

    /// How others find it: in the words that we were given, which any driver knows.
    pub(crate) fn url(&self) -> String {
        let mut url = self.server.url.clone();
        url.set_path(&self.name);
        url.into()
    }

    /// Runs a statement of ours in it, on a connection of its own.
    pub(crate) async fn run(&self, statement: &'static str) -> Result<()> {
        let mut conn = self.connection().await?;
        sqlx::raw_sql(statement).execute(&mut conn).await.context(statement)?;
        Ok(conn.close().await?)
    }

    /// Removes it, with whatever is still connected.
    pub(crate) async fn remove(self) -> Result<()> {
        let statement = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        self.server.run(statement).await
    }

    fn options(&self) -> PgConnectOptions {
        self.server.options.clone().database(&self.name)
    }
}
