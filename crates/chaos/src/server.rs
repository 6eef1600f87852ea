//! The PostgreSQL server, which is crashed, and comes back because whoever started it starts it again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tokio::time::sleep;

use crate::error::{Context, Result};
use crate::shop::signal;

/// How long the server may take to come back: a second, unless the machine is very busy.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

pub(crate) struct Server {
    pub(crate) url: String,
    /// Its first line is the number of the server's process.
    pid_file: PathBuf,
}

impl Server {
    pub(crate) async fn find(url: &str) -> Result<Self> {
        let mut conn = PgConnection::connect(url).await.context("connecting to PostgreSQL")?;
        let directory: String = sqlx::query_scalar("SHOW data_directory")
            .fetch_one(&mut conn)
            .await
            .context("asking where the data of PostgreSQL is")?;
        Ok(Self {
            url: url.to_owned(),
            pid_file: PathBuf::from(directory).join("postmaster.pid"),
        })
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> Result<String> {
        let options: sqlx::postgres::PgConnectOptions = self.url.parse().context("reading the URL of the server")?;
        Ok(format!("{}:{}", options.get_host(), options.get_port()))
    }

    /// Ends the server without a checkpoint, with all that is under way, and waits until another one serves.
    pub(crate) async fn crash(&self) -> Result<()> {
        let pid = self.pid().ok_or("PostgreSQL is not running")?;
        // An immediate shutdown: every backend quits where it is, and the next start recovers from the log.
        signal("QUIT", Some(pid)).await?;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if self.pid().is_some_and(|next| next != pid) && PgConnection::connect(&self.url).await.is_ok() {
                return Ok(());
            }
            sleep(LOOK_AGAIN).await;
        }
        Err(format!("PostgreSQL did not come back within {PATIENCE:?} after a crash").into())
    }

    fn pid(&self) -> Option<u32> {
        let text = std::fs::read_to_string(&self.pid_file).ok()?;
        text.lines().next()?.trim().parse().ok()
    }
}
