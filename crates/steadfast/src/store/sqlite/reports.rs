//! What jobs tell on SQLite: in a turn, in which one is alone.

use serde_json::json;
use sqlx::{Sqlite, SqliteConnection};
use uuid::Uuid;

use super::super::reports::{self, LineColumns, LineRow, ReportColumns, ReportRow, ReportWrite, Reports};
use super::{Names, SqliteStore, Store};
use crate::clock::{Offset, micros};
use crate::error::Result;
use crate::job::LOG_LINES_MAX;

impl Reports<Sqlite> for SqliteStore {
    async fn write_report(&self, write: &ReportWrite, offset: Offset) -> Result<bool> {
        let mut turn = self.writer.take_turn(false).await?;
        let is_held = self::write(&mut turn, &self.names, write, offset).await?;
        self.end_turn(turn).await?;
        Ok(is_held)
    }

    async fn write_report_in(&self, conn: &mut SqliteConnection, write: &ReportWrite, offset: Offset) -> Result<bool> {
        self::write(conn, &self.names, write, offset).await
    }

    async fn read_report(&self, item: Uuid) -> Result<Option<(ReportRow, Vec<LineRow>)>> {
        let report = self
            .names
            .sql("SELECT at, done, total, doing, lines, output FROM steadfast_reports WHERE item = $1");
        let report: Option<ReportColumns> = sqlx::query_as(report)
            .bind(item.to_string())
            .fetch_optional(&self.readers)
            .await
            .map_err(Self::fail("reading what a job told"))?;
        let Some(report) = report else {
            return Ok(None);
        };
        let lines = self
            .names
            .sql("SELECT at, attempt, text FROM steadfast_lines WHERE item = $1 ORDER BY number");
        let lines: Vec<LineColumns> = sqlx::query_as(lines)
            .bind(item.to_string())
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("reading the lines of a job"))?;
        Ok(Some(reports::read(report, lines)))
    }
}

async fn write(conn: &mut SqliteConnection, names: &Names, write: &ReportWrite, offset: Offset) -> Result<bool> {
    let fail = |error| SqliteStore::error(error, "writing what a job told");
    let report = names.sql(
        "
        INSERT INTO steadfast_reports AS r (at, epoch, done, total, lines, item, doing, output)
        SELECT $1, q.epoch, $6, $7, $9, q.item, $8, $10
        FROM steadfast_queue AS q
        WHERE q.item = $2 AND q.kind = $3 AND q.epoch = $4 AND q.token = $5 AND q.state = 'leased'
        ON CONFLICT (item) DO UPDATE
        SET at     = excluded.at,
            epoch  = excluded.epoch,
            -- An attempt begins with nothing but the lines of those before it.
            done   = CASE WHEN excluded.done IS NULL AND r.epoch = excluded.epoch THEN r.done ELSE excluded.done END,
            total  = CASE WHEN excluded.done IS NULL AND r.epoch = excluded.epoch THEN r.total ELSE excluded.total END,
            doing  = CASE WHEN excluded.done IS NULL AND r.epoch = excluded.epoch THEN r.doing ELSE excluded.doing END,
            output = CASE WHEN excluded.output IS NULL AND r.epoch = excluded.epoch THEN r.output ELSE excluded.output END,
            lines  = r.lines + excluded.lines
        RETURNING lines",
    );
    let progress = write.progress.as_ref();
    let (now, item) = (offset.now().0, write.lease.item.to_string());
    let lines: Option<i64> = sqlx::query_scalar(report)
        .bind(now)
        .bind(&item)
        .bind(&*write.lease.kind)
        .bind(write.lease.epoch)
        .bind(write.lease.token)
        .bind(progress.map(|progress| progress.done))
        .bind(progress.and_then(|progress| progress.total))
        .bind(progress.and_then(|progress| progress.text.as_deref()))
        .bind(write.line_count())
        .bind(write.output.as_deref())
        .fetch_optional(&mut *conn)
        .await
        .map_err(fail)?;
    let Some(lines) = lines else {
        return Ok(false);
    };
    if write.line_count() == 0 {
        return Ok(true);
    }
    let said = names.sql(
        "
        INSERT INTO steadfast_lines (at, number, attempt, item, text)
        SELECT $2 - (l.value ->> 0), $3 + l.key + 1, $4, $5, l.value ->> 1 FROM json_each($1) AS l;

        DELETE FROM steadfast_lines WHERE item = $5 AND number <= $6",
    );
    let told: Vec<_> = write.lines.iter().map(|(age, line)| (micros(*age), line)).collect();
    sqlx::query(said)
        .bind(json!(told).to_string())
        .bind(now)
        .bind(lines - i64::try_from(told.len()).unwrap_or(i64::MAX))
        .bind(write.attempt)
        .bind(&item)
        .bind(lines - i64::try_from(LOG_LINES_MAX).unwrap_or(i64::MAX))
        .execute(conn)
        .await
        .map_err(fail)?;
    Ok(true)
}
