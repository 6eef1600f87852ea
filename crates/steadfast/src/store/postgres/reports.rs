//! What jobs tell on PostgreSQL: one statement, which changes nothing unless the lease is held.

use sqlx::{PgConnection, PgExecutor, Postgres};
use uuid::Uuid;

use super::super::reports::{self, LineColumns, LineRow, ReportColumns, ReportRow, ReportWrite, Reports};
use super::{Names, PostgresStore, Store};
use crate::clock::{Offset, micros};
use crate::error::Result;
use crate::job::LOG_LINES_MAX;

impl Reports<Postgres> for PostgresStore {
    async fn write_report(&self, write: &ReportWrite, offset: Offset) -> Result<bool> {
        self::write(&self.pool, &self.names, write, offset).await
    }

    async fn write_report_in(&self, conn: &mut PgConnection, write: &ReportWrite, offset: Offset) -> Result<bool> {
        self::write(conn, &self.names, write, offset).await
    }

    async fn read_report(&self, item: Uuid) -> Result<Option<(ReportRow, Vec<LineRow>)>> {
        let report = self.names.sql(
            "
            SELECT (extract(epoch FROM at) * 1000000)::bigint AS at, done, total, doing, lines, output
            FROM steadfast.reports
            WHERE item = $1",
        );
        let report: Option<ReportColumns> = sqlx::query_as(report)
            .bind(item)
            .fetch_optional(&self.pool)
            .await
            .map_err(Self::fail("reading what a job told"))?;
        let Some(report) = report else {
            return Ok(None);
        };
        let lines = self.names.sql(
            "
            SELECT (extract(epoch FROM at) * 1000000)::bigint AS at, attempt, text
            FROM steadfast.lines
            WHERE item = $1
            ORDER BY number",
        );
        let lines: Vec<LineColumns> = sqlx::query_as(lines)
            .bind(item)
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("reading the lines of a job"))?;
        Ok(Some(reports::read(report, lines)))
    }
}

/// The row of the queue is locked until this has committed: who claims it meanwhile waits, and comes after it.
async fn write<'e>(executor: impl PgExecutor<'e>, names: &Names, write: &ReportWrite, offset: Offset) -> Result<bool> {
    let statement = names.sql(
        "
        WITH held AS MATERIALIZED (
            SELECT item, epoch, clock_timestamp() + $1 * interval '1 microsecond' AS now
            FROM steadfast.queue
            WHERE item = $2 AND kind = $3 AND epoch = $4 AND token = $5 AND state = 'leased'
            FOR SHARE
        ), report AS (
            INSERT INTO steadfast.reports AS r (at, epoch, done, total, lines, item, doing, output)
            SELECT h.now, h.epoch, $6, $7, $9, h.item, $8, $10
            FROM held AS h
            ON CONFLICT ON CONSTRAINT reports_one DO UPDATE
            SET at     = excluded.at,
                epoch  = excluded.epoch,
                -- An attempt begins with nothing but the lines of those before it.
                done   = CASE WHEN excluded.done IS NULL AND r.epoch = excluded.epoch THEN r.done ELSE excluded.done END,
                total  = CASE WHEN excluded.done IS NULL AND r.epoch = excluded.epoch THEN r.total ELSE excluded.total END,
                doing  = CASE WHEN excluded.done IS NULL AND r.epoch = excluded.epoch THEN r.doing ELSE excluded.doing END,
                output = CASE WHEN excluded.output IS NULL AND r.epoch = excluded.epoch THEN r.output ELSE excluded.output END,
                lines  = r.lines + excluded.lines
            RETURNING r.item, r.lines, r.at
        ), said AS (
            INSERT INTO steadfast.lines (at, number, attempt, item, text)
            SELECT r.at - l.age * interval '1 microsecond', r.lines - cardinality($12::text[]) + l.place, $13, r.item, l.text
            FROM report AS r, unnest($11::bigint[], $12::text[]) WITH ORDINALITY AS l (age, text, place)
        ), forgotten AS (
            DELETE FROM steadfast.lines WHERE item = $2 AND number <= (SELECT lines - $14 FROM report)
        )
        SELECT count(*) FROM report",
    );
    let progress = write.progress.as_ref();
    let written: i64 = sqlx::query_scalar(statement)
        .bind(offset.0)
        .bind(write.lease.item)
        .bind(&*write.lease.kind)
        .bind(write.lease.epoch)
        .bind(write.lease.token)
        .bind(progress.map(|progress| progress.done))
        .bind(progress.and_then(|progress| progress.total))
        .bind(progress.and_then(|progress| progress.text.as_deref()))
        .bind(write.line_count())
        .bind(write.output.as_deref())
        .bind(write.lines.iter().map(|(age, _)| micros(*age)).collect::<Vec<_>>())
        .bind(write.lines.iter().map(|(_, line)| &**line).collect::<Vec<_>>())
        .bind(write.attempt)
        .bind(i64::try_from(LOG_LINES_MAX).unwrap_or(i64::MAX))
        .fetch_one(executor)
        .await
        .map_err(|error| PostgresStore::error(error, "writing what a job told"))?;
    Ok(written == 1)
}
