//! A server that is crashed, and comes back because whoever started it starts it again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::error::{Context, Result};
use crate::shop::signal;

/// How long a server may take to come back: seconds, unless the machine is very busy.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Where the number of its process is, in its home.
const PID_FILE: &str = "server.pid";

pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) url: String,
    /// What ends it at once.
    signal: &'static str,
    home: PathBuf,
}

impl Server {
    /// The server of these variables: `CHAOS_NATS_URL` and `CHAOS_NATS_HOME`.
    pub(crate) fn find(name: &'static str, signal: &'static str) -> Result<Self> {
        let read = |what: &str| {
            let variable = format!("CHAOS_{name}_{what}");
            std::env::var(&variable).context(format!("there is no {variable}: run it as cargo xtask chaos"))
        };
        Ok(Self {
            name,
            url: read("URL")?,
            signal,
            home: read("HOME")?.into(),
        })
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        let (_, after) = self.url.split_once("://").unwrap_or_default();
        let place = after.split('/').next().unwrap_or_default();
        place.rsplit('@').next().unwrap_or_default()
    }

    /// Creates another database on it, and says where it is.
    pub(crate) async fn create_database(&self, name: &'static str) -> Result<String> {
        let mut conn = PgConnection::connect(&self.url).await?;
        let create = sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}")));
        create
            .execute(&mut conn)
            .await
            .context(format!("creating the database {name}"))?;
        let (server, _) = self.url.rsplit_once('/').ok_or("the server has no database")?;
        Ok(format!("{server}/{name}"))
    }

    /// Ends the server with all that is under way, and waits until another one serves.
    pub(crate) async fn crash(&self) -> Result<()> {
        let name = self.name;
        let pid = self.pid().ok_or_else(|| format!("{name} is not running"))?;
        signal(self.signal, Some(pid)).await?;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if self.pid().is_some_and(|next| next != pid) && self.serves().await {
                return Ok(());
            }
            sleep(LOOK_AGAIN).await;
        }
        Err(format!("{name} did not come back within {PATIENCE:?} after a crash").into())
    }

    /// PostgreSQL takes connections before it has recovered.
    async fn serves(&self) -> bool {
        match self.url.starts_with("postgres://") {
            true => PgConnection::connect(&self.url).await.is_ok(),
            false => TcpStream::connect(self.address()).await.is_ok(),
        }
    }

    fn pid(&self) -> Option<u32> {
        std::fs::read_to_string(self.home.join(PID_FILE))
            .ok()?
            .trim()
            .parse()
            .ok()
    }
}
