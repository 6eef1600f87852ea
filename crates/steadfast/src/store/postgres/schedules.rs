//! Schedules and their ticks on PostgreSQL.

use sqlx::{PgConnection, Postgres};
use uuid::Uuid;

use super::super::schedules::{Advance, NewSchedule, ScheduleRow, Schedules, read_row};
use super::PostgresStore;
use crate::clock::{Offset, Timestamp};
use crate::error::Result;

/// The columns of a schedule, with these for what only some want: `$1` is how far the clock is ahead.
macro_rules! columns {
    ($payload:literal, $is_busy:literal) => {
        concat!(
            "
            SELECT s.name, s.source, s.timing, s.time_zone, s.missed, s.overlap, s.job, s.version::bigint AS version, s.kind,
                   s.redacted,
                   (extract(epoch FROM s.handled) * 1000000)::bigint AS handled,
                   (extract(epoch FROM s.created_at) * 1000000)::bigint AS created_at,
                   (extract(epoch FROM s.changed_at) * 1000000)::bigint AS changed_at,
                   (extract(epoch FROM s.last_tick) * 1000000)::bigint AS last_tick,
                   s.last_job::text AS last_job,
                   (extract(epoch FROM s.paused_at) * 1000000)::bigint AS paused_at, s.paused_by, s.paused_reason,
                   (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $1 AS now, ",
            $payload,
            " AS payload, ",
            $is_busy,
            "::bigint AS is_busy
            FROM steadfast.schedules AS s "
        )
    };
}

impl Schedules<Postgres> for PostgresStore {
    async fn list_schedules(&self, names: Option<&[&str]>, limit: u32, offset: Offset) -> Result<Vec<ScheduleRow>> {
        let statement = concat!(
            columns!("NULL::bytea", "0"),
            "WHERE $2::text[] IS NULL OR s.name = ANY ($2) ORDER BY s.name LIMIT $3"
        );
        let rows = sqlx::query(self.names.sql(statement))
            .bind(offset.0)
            .bind(names)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("listing schedules"))?;
        rows.iter().map(read_row).collect()
    }

    async fn read_schedule(&self, name: &str, offset: Offset) -> Result<Option<ScheduleRow>> {
        let row = sqlx::query(self.names.sql(concat!(columns!("s.payload", "0"), "WHERE s.name = $2")))
            .bind(offset.0)
            .bind(name)
            .fetch_optional(&self.pool)
            .await
            .map_err(Self::fail("reading a schedule"))?;
        row.as_ref().map(read_row).transpose()
    }

    async fn lock_schedule(&self, conn: &mut PgConnection, name: &str, offset: Offset) -> Result<Option<ScheduleRow>> {
        // Who has to wait for the lock reads the row as it is after that, and the queue too: another statement sees it anew.
        let locked = sqlx::query(
            self.names
                .sql("SELECT FROM steadfast.schedules WHERE name = $1 FOR NO KEY UPDATE"),
        )
        .bind(name)
        .fetch_optional(&mut *conn)
        .await
        .map_err(Self::fail("locking a schedule"))?;
        if locked.is_none() {
            return Ok(None);
        }
        let statement = concat!(
            columns!(
                "s.payload",
                "(EXISTS (SELECT FROM steadfast.queue AS q WHERE q.item = s.last_job AND q.state <> 'dead'))::integer"
            ),
            "WHERE s.name = $2"
        );
        let row = sqlx::query(self.names.sql(statement))
            .bind(offset.0)
            .bind(name)
            .fetch_optional(conn)
            .await
            .map_err(Self::fail("reading a schedule"))?;
        row.as_ref().map(read_row).transpose()
    }

    async fn count_schedules(&self, conn: &mut PgConnection, limit: u32) -> Result<i64> {
        let statement = self
            .names
            .sql("SELECT count(*) FROM (SELECT 1 FROM steadfast.schedules LIMIT $1) AS counted");
        sqlx::query_scalar(statement)
            .bind(i64::from(limit))
            .fetch_one(conn)
            .await
            .map_err(Self::fail("counting schedules"))
    }

    async fn write_schedule(&self, conn: &mut PgConnection, schedule: &NewSchedule, offset: Offset) -> Result<()> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast.schedules AS s
                   (handled, created_at, changed_at, version, name, source, timing, time_zone, missed, overlap, job, kind,
                    redacted, payload)
            SELECT now.at, now.at, now.at, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12
            FROM (SELECT clock_timestamp() + $1 * interval '1 microsecond' AS at) AS now
            ON CONFLICT ON CONSTRAINT schedules_one DO UPDATE
            SET handled    = CASE WHEN (s.timing, s.time_zone) IS DISTINCT FROM (excluded.timing, excluded.time_zone)
                                  THEN greatest(s.handled, excluded.handled) ELSE s.handled END,
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
                  IS DISTINCT FROM
                  (excluded.version, excluded.source, excluded.timing, excluded.time_zone, excluded.missed, excluded.overlap,
                   excluded.job, excluded.kind, excluded.redacted, excluded.payload)",
        );
        sqlx::query(statement)
            .bind(offset.0)
            .bind(i32::try_from(schedule.version).unwrap_or(i32::MAX))
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
        conn: &mut PgConnection,
        schedule: &str,
        ticks: &[(Timestamp, Uuid)],
    ) -> Result<Vec<Timestamp>> {
        let statement = self.names.sql(
            "
            INSERT INTO steadfast.ticks (tick, job, schedule)
            SELECT timestamptz 'epoch' + t.tick * interval '1 microsecond', t.job, $1
            FROM unnest($2::bigint[], $3::uuid[]) AS t (tick, job)
            ORDER BY t.tick
            ON CONFLICT ON CONSTRAINT ticks_one_job DO NOTHING
            RETURNING (extract(epoch FROM tick) * 1000000)::bigint",
        );
        let new: Vec<i64> = sqlx::query_scalar(statement)
            .bind(schedule)
            .bind(ticks.iter().map(|(tick, _)| tick.0).collect::<Vec<_>>())
            .bind(ticks.iter().map(|(_, job)| *job).collect::<Vec<_>>())
            .fetch_all(conn)
            .await
            .map_err(Self::fail("writing ticks"))?;
        Ok(new.into_iter().map(Timestamp).collect())
    }

    async fn advance_schedule(&self, conn: &mut PgConnection, name: &str, advance: Advance) -> Result<()> {
        let statement = self.names.sql(
            "
            UPDATE steadfast.schedules
            SET handled   = greatest(handled, timestamptz 'epoch' + $2 * interval '1 microsecond'),
                last_tick = coalesce(timestamptz 'epoch' + $3 * interval '1 microsecond', last_tick),
                last_job  = coalesce($4, last_job)
            WHERE name = $1",
        );
        sqlx::query(statement)
            .bind(name)
            .bind(advance.handled.0)
            .bind(advance.last.map(|(tick, _)| tick.0))
            .bind(advance.last.map(|(_, job)| job))
            .execute(conn)
            .await
            .map(drop)
            .map_err(Self::fail("writing how far a schedule has come"))
    }

    async fn pause_schedule(
        &self,
        conn: &mut PgConnection,
        name: &str,
        pause: Option<(&str, &str)>,
        offset: Offset,
    ) -> Result<bool> {
        let statement = self.names.sql(
            "
            UPDATE steadfast.schedules
            SET paused_at     = CASE WHEN $3::text IS NOT NULL THEN clock_timestamp() + $1 * interval '1 microsecond' END,
                paused_by     = $3,
                paused_reason = $4
            WHERE name = $2",
        );
        sqlx::query(statement)
            .bind(offset.0)
            .bind(name)
            .bind(pause.map(|(operator, _)| operator))
            .bind(pause.map(|(_, reason)| reason))
            .execute(conn)
            .await
            .map(|changed| changed.rows_affected() > 0)
            .map_err(Self::fail("pausing a schedule"))
    }

    async fn remove_schedule(&self, conn: &mut PgConnection, name: &str) -> Result<bool> {
        sqlx::query(self.names.sql("DELETE FROM steadfast.schedules WHERE name = $1"))
            .bind(name)
            .execute(conn)
            .await
            .map(|removed| removed.rows_affected() > 0)
            .map_err(Self::fail("removing a schedule"))
    }

    async fn latest_ticks(&self, schedule: &str, limit: u32) -> Result<Vec<(i64, String)>> {
        let statement = self.names.sql(
            "
            SELECT (extract(epoch FROM tick) * 1000000)::bigint, job::text
            FROM steadfast.ticks
            WHERE schedule = $1
            ORDER BY tick DESC
            LIMIT $2",
        );
        sqlx::query_as(statement)
            .bind(schedule)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("reading ticks"))
    }

    async fn read_ticks(&self, schedule: &str, ticks: &[Timestamp]) -> Result<Vec<(i64, String)>> {
        let statement = self.names.sql(
            "
            SELECT (extract(epoch FROM t.tick) * 1000000)::bigint, t.job::text
            FROM unnest($2::bigint[]) AS wanted (tick)
            JOIN steadfast.ticks AS t
              ON t.schedule = $1 AND t.tick = timestamptz 'epoch' + wanted.tick * interval '1 microsecond'",
        );
        sqlx::query_as(statement)
            .bind(schedule)
            .bind(ticks.iter().map(|tick| tick.0).collect::<Vec<_>>())
            .fetch_all(&self.pool)
            .await
            .map_err(Self::fail("reading ticks"))
    }
}
