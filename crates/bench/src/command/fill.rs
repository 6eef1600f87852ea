//! A key table with millions of rows: does a command still cost the same?

use std::sync::Arc;

use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgConnection, Postgres};
use steadfast::Steadfast;

use super::keys::new_key;
use super::postgres::{open, run_command};
use crate::error::{Context, Result};
use crate::measure::{Case, Stage};
use crate::progress::Progress;
use crate::server::{Scratch, Server};

/// Rows of one INSERT: a second or two each, so that the bar moves.
const ROWS_AT_ONCE: u64 = 100_000;

/// One row in this many is written after the checkpoint. That is several for each page of the index, so nearly all of
/// them have had their full page image when the measuring begins, as they have most of the time between two
/// checkpoints.
const LATE_PART: u64 = 20;

const EMPTY: &str = "empty table";

/// An empty and a filled table, side by side on the same server.
pub(super) fn cases(keys: u64) -> [Case; 2] {
    [Case::new(EMPTY), Case::new(name(keys)).against(EMPTY, 0.85)]
}

fn name(keys: u64) -> String {
    match keys {
        1_000_000.. if keys.is_multiple_of(1_000_000) => format!("{} million keys", keys / 1_000_000),
        _ => format!("{keys} keys"),
    }
}

pub(super) async fn prepare(server: Server, keys: u64, progress: Arc<Progress>) -> Result<Stage> {
    let (empty, filled) = (server.create_database().await?, server.create_database().await?);
    let stage = Stage::default().does(EMPTY, &open_on(&empty).await?, command).does(
        name(keys),
        &open_on(&filled).await?,
        command,
    );
    let mut conn = filled.connection().await?;
    let fill = Fill::of(&mut conn, keys, progress).await?;
    let early = keys - keys / LATE_PART;
    fill.run(&mut conn, 0..early).await?;
    sqlx::raw_sql("VACUUM (ANALYZE) steadfast.keys")
        .execute(&mut conn)
        .await
        .context("analysing the keys")?;
    server.checkpoint().await?;
    fill.run(&mut conn, early..keys).await?;
    Ok(stage.counted_by(server.meter()).ends_with(async move {
        empty.remove().await?;
        filled.remove().await
    }))
}

async fn open_on(scratch: &Scratch) -> Result<Arc<Steadfast<Postgres>>> {
    let sf = open(scratch, scratch.pool(PgPoolOptions::new())).await?;
    // The row that a table is filled with copies of.
    run_command(&sf, &new_key()).await?;
    Ok(Arc::new(sf))
}

async fn command(sf: Arc<Steadfast<Postgres>>, _: usize) -> Result<()> {
    run_command(&sf, &new_key()).await.map(drop)
}

/// Fills the real table with copies of a real row that differ in their key.
struct Fill {
    statement: String,
    keys: u64,
    progress: Arc<Progress>,
}

impl Fill {
    /// The columns are asked for, so that a migration may add one.
    async fn of(conn: &mut PgConnection, keys: u64, progress: Arc<Progress>) -> Result<Self> {
        let columns: Vec<(String, String)> = sqlx::query_as(
            "
            SELECT quote_ident(column_name),
                   CASE column_name
                       WHEN 'hash'       THEN 'sha256(uuid_send(gen_random_uuid()))'
                       WHEN 'value'      THEN 'gen_random_uuid()::text'
                       WHEN 'expires_at' THEN 'k.expires_at + interval ''10 years'''
                       ELSE 'k.' || quote_ident(column_name)
                   END
            FROM information_schema.columns
            WHERE table_schema = 'steadfast' AND table_name = 'keys' AND is_generated = 'NEVER'",
        )
        .fetch_all(&mut *conn)
        .await
        .context("reading the columns of the keys")?;
        // Nobody loses anything if this session's last rows are lost.
        sqlx::raw_sql("SET synchronous_commit = off").execute(conn).await?;
        let (names, values): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        let (names, values) = (names.join(", "), values.join(", "));
        let statement = format!(
            "INSERT INTO steadfast.keys ({names})
             SELECT {values} FROM (SELECT * FROM steadfast.keys LIMIT 1) AS k, generate_series(1, $1)"
        );
        Ok(Self {
            statement,
            keys,
            progress,
        })
    }

    async fn run(&self, conn: &mut PgConnection, rows: std::ops::Range<u64>) -> Result<()> {
        let mut done = rows.start;
        while done < rows.end {
            let what = format!("filling the table: {done} of {} keys", self.keys);
            self.progress.prepare(done as f64 / self.keys as f64, &what);
            let count = ROWS_AT_ONCE.min(rows.end - done);
            // Made of quoted names and our own words.
            sqlx::query(AssertSqlSafe(self.statement.as_str()))
                .bind(i64::try_from(count).unwrap_or(i64::MAX))
                .execute(&mut *conn)
                .await
                .context("filling the table of keys")?;
            done += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_case_says_how_many_keys_there_are() {
        assert_eq!(name(10_000_000), "10 million keys");
        assert_eq!(name(1_000_000), "1 million keys");
        assert_eq!(name(1_500_000), "1500000 keys");
        assert_eq!(name(20), "20 keys");
    }
}
