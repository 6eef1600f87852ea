//! Schedules and their ticks on SQLite.

use sqlx::{Sqlite, SqliteConnection};
use uuid::Uuid;

use super::super::schedules::{Advance, NewSchedule, ScheduleRow, Schedules, read_row};
use super::SqliteStore;
use crate::clock::{Offset, Timestamp};
use crate::error::Result;

/// The columns of a schedule, with these for what only some want: `$1` is the time.
macro_rules! columns {
    ($payload:literal, $is_busy:literal) => {
        concat!(
            "
            SELECT s.name, s.source, s.timing, s.time_zone, s.missed, s.overlap, s.job, s.version, s.kind, s.redacted,
                   s.handled, s.created_at, s.changed_at, s.last_tick, s.last_job, s.paused_at, s.paused_by, s.paused_reason,
                   $1 AS now, ",
            $payload,
            " AS payload, ",
            $is_busy,
            " AS is_busy
            FROM steadfast_schedules AS s "
        )
    };
}

impl Schedules<Sqlite> for SqliteStore {
    async fn list_schedules(&self, names: Option<&[&str]>, limit: u32, offset: Offset) -> Result<Vec<ScheduleRow>> {
        let statement = concat!(
            columns!("NULL", "0"),
            "WHERE $2 IS NULL OR s.name IN (SELECT value FROM json_each($2)) ORDER BY s.name LIMIT $3"
        );
        let rows = sqlx::query(self.names.sql(statement))
            .bind(offset.now().0)
            .bind(names.map(|names| serde_json::json!(names).to_string()))
            .bind(i64::from(limit))
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("listing schedules"))?;
        rows.iter().map(read_row).collect()
    }

    async fn read_schedule(&self, name: &str, offset: Offset) -> Result<Option<ScheduleRow>> {
        let row = sqlx::query(self.names.sql(concat!(columns!("s.payload", "0"), "WHERE s.name = $2")))
            .bind(offset.now().0)
            .bind(name)
            .fetch_optional(&self.readers)
            .await
            .map_err(Self::fail("reading a schedule"))?;
        row.as_ref().map(read_row).transpose()
    }

    async fn lock_schedule(
        &self,
        conn: &mut SqliteConnection,
        name: &str,
        offset: Offset,
    ) -> Result<Option<ScheduleRow>> {
        // Whoever has the turn is alone.
        let statement = concat!(
            columns!(
                "s.payload",
                "EXISTS (SELECT 1 FROM steadfast_queue AS q WHERE q.item = s.last_job AND q.state <> 'dead')"
            ),
            "WHERE s.name = $2"
        );
        let row = sqlx::query(self.names.sql(statement))
            .bind(offset.now().0)
            .bind(name)
            .fetch_optional(conn)
            .await
            .map_err(Self::fail("reading a schedule"))?;
        row.as_ref().map(read_row).transpose()
    }

    async fn count_schedules(&self, conn: &mut SqliteConnection, limit: u32) -> Result<i64> {
        let statement = self
            .names
            .sql("SELECT count(*) FROM (SELECT 1 FROM steadfast_schedules LIMIT $1) AS counted");
        sqlx::query_scalar(statement)
            .bind(i64::from(limit))
            .fetch_one(conn)
            .await
            .map_err(Self::fail("counting schedules"))
    }

    async fn write_schedule(&self, conn: &mut SqliteConnection, schedule: &NewSchedule, offset: Offset) -> Result<()> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast_schedules AS s
                   (handled, created_at, changed_at, version, name, source, timing, time_zone, missed, overlap, job, kind,
                    redacted, payload)
            VALUES ($1, $1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
            ON CONFLICT (name) DO UPDATE
            SET handled    = CASE WHEN (s.timing, s.time_zone) IS NOT (excluded.timing, excluded.time_zone)
                                  THEN max(s.handled, excluded.handled) ELSE s.handled END,
                changed_at = excluded.changed_at,
                version    = excluded.version,
                source     = excluded.source,
                timing     = excluded.timing,
                time_zone  = excluded.time_zone,
                missed     = excluded.missed,
                overlap    = excluded.overlap,
                job        = excluded.job,
                kind       = excluded.kind,
                redacted   = excluded.redacted,
                payload    = excluded.payload
            WHERE (s.version, s.source, s.timing, s.time_zone, s.missed, s.overlap, s.job, s.kind, s.redacted, s.payload)
                  IS NOT
                  (excluded.version, excluded.source, excluded.timing, excluded.time_zone, excluded.missed, excluded.overlap,
                   excluded.job, excluded.kind, excluded.redacted, excluded.payload)",
        );
        sqlx::query(statement)
            .bind(offset.now().0)
            .bind(schedule.version)
            .bind(&schedule.name)
            .bind(schedule.source)
            .bind(&schedule.timing)
            .bind(&schedule.time_zone)
            .bind(schedule.missed)
            .bind(schedule.overlap)
            .bind(schedule.job)
            .bind(&schedule.kind)
            .bind(&schedule.redacted)
            .bind(schedule.payload.as_bytes())
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("writing a schedule"))
    }

    async fn write_ticks(
        &self,
        conn: &mut SqliteConnection,
        schedule: &str,
        ticks: &[(Timestamp, Uuid)],
    ) -> Result<Vec<Timestamp>> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast_ticks (tick, job, schedule)
            SELECT t.value ->> 0, t.value ->> 1, $1
            FROM json_each($2) AS t
            WHERE true
            ON CONFLICT DO NOTHING
            RETURNING tick",
        );
        let pairs = ticks
            .iter()
            .map(|(tick, job)| serde_json::json!([tick.0, job.to_string()]));
        let new: Vec<i64> = sqlx::query_scalar(statement)
            .bind(schedule)
            .bind(serde_json::Value::from_iter(pairs).to_string())
            .fetch_all(conn)
            .await
            .map_err(Self::fail("writing ticks"))?;
        Ok(new.into_iter().map(Timestamp).collect())
    }

    async fn advance_schedule(&self, conn: &mut SqliteConnection, name: &str, advance: Advance) -> Result<()> {
        let statement = self.names.sql(
            "
            UPDATE steadfast_schedules
            SET handled   = max(handled, $2),
                last_tick = coalesce($3, last_tick),
                last_job  = coalesce($4, last_job)
            WHERE name = $1",
        );
        sqlx::query(statement)
            .bind(name)
            .bind(advance.handled.0)
            .bind(advance.last.map(|(tick, _)| tick.0))
            .bind(advance.last.map(|(_, job)| job.to_string()))
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("writing how far a schedule has come"))
    }

    async fn pause_schedule(
        &self,
        conn: &mut SqliteConnection,
        name: &str,
        pause: Option<(&str, &str)>,
        offset: Offset,
    ) -> Result<bool> {
        let statement = self.names.sql(
            "
            UPDATE steadfast_schedules
            SET paused_at     = CASE WHEN $3 IS NOT NULL THEN $1 END,
                paused_by     = $3,
                paused_reason = $4
            WHERE name = $2",
        );
        sqlx::query(statement)
            .bind(offset.now().0)
            .bind(name)
            .bind(pause.map(|(operator, _)| operator))
            .bind(pause.map(|(_, reason)| reason))
            .execute(conn)
            .await
            .map(|changed| changed.rows_affected() > 0)
            .map_err(Self::fail("pausing a schedule"))
    }

    async fn remove_schedule(&self, conn: &mut SqliteConnection, name: &str) -> Result<bool> {
        sqlx::query(self.names.sql("DELETE FROM steadfast_schedules WHERE name = $1"))
            .bind(name)
            .execute(conn)
            .await
            .map(|removed| removed.rows_affected() > 0)
            .map_err(Self::fail("removing a schedule"))
    }

    async fn latest_ticks(&self, schedule: &str, limit: u32) -> Result<Vec<(i64, String)>> {
        let statement = self.names.sql(
            "
            SELECT tick, job
            FROM steadfast_ticks
            WHERE schedule = $1
            ORDER BY tick DESC
            LIMIT $2",
        );
        sqlx::query_as(statement)
            .bind(schedule)
            .bind(i64::from(limit))
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("reading ticks"))
    }

    async fn read_ticks(&self, schedule: &str, ticks: &[Timestamp]) -> Result<Vec<(i64, String)>> {
        let statement = self.names.sql(
            "
            SELECT t.tick, t.job
            FROM json_each($2) AS wanted
            JOIN steadfast_ticks AS t ON t.schedule = $1 AND t.tick = wanted.value",
        );
        let ticks = serde_json::Value::from_iter(ticks.iter().map(|tick| tick.0));
        sqlx::query_as(statement)
            .bind(schedule)
            .bind(ticks.to_string())
            .fetch_all(&self.readers)
            .await
            .map_err(Self::fail("reading ticks"))
    }
}
