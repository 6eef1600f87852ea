//! What schedules ask of a database: their rows, and the ticks that jobs were made of.
//!
//! The same values are bound and the same columns come back on both databases: ids as text, moments as microseconds since 1970.

use std::future::Future;

use sqlx::{ColumnIndex, Decode, Row, Type};
use uuid::Uuid;

use super::Database;
use super::letters::{Tells, readers};
use crate::clock::{Offset, Timestamp};
use crate::error::Result;

/// A schedule as it stands in its table.
#[derive(Clone, Debug)]
pub(crate) struct ScheduleRow {
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) timing: String,
    pub(crate) time_zone: Option<String>,
    pub(crate) missed: String,
    pub(crate) overlap: String,
    /// The stored name of its job.
    pub(crate) job: String,
    pub(crate) version: i64,
    pub(crate) kind: String,
    pub(crate) redacted: Option<String>,
    pub(crate) handled: i64,
    pub(crate) created_at: i64,
    pub(crate) changed_at: i64,
    pub(crate) last_tick: Option<i64>,
    pub(crate) last_job: Option<String>,
    pub(crate) paused_at: Option<i64>,
    pub(crate) paused_by: Option<String>,
    pub(crate) paused_reason: Option<String>,
    /// The time when it was read.
    pub(crate) now: i64,
    /// The payload of its job, unless many were read.
    pub(crate) payload: Option<Vec<u8>>,
    /// 1 if the job of its last tick is still to do, and was asked for.
    pub(crate) is_busy: i64,
}

/// A schedule that is to be written.
#[derive(Clone, Debug)]
pub(crate) struct NewSchedule {
    pub(crate) name: String,
    pub(crate) source: &'static str,
    pub(crate) timing: String,
    pub(crate) time_zone: Option<String>,
    pub(crate) missed: &'static str,
    pub(crate) overlap: &'static str,
    pub(crate) job: &'static str,
    pub(crate) version: u32,
    pub(crate) kind: String,
    pub(crate) redacted: Option<String>,
    /// JSON.
    pub(crate) payload: String,
}

/// How far a schedule has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advance {
    pub(crate) handled: Timestamp,
    /// The last tick that a job was made of just now, and the job.
    pub(crate) last: Option<(Timestamp, Uuid)>,
}

/// Schedules and their ticks.
pub(crate) trait Schedules<Db: Database> {
    /// Reads schedules by name, without what their jobs are about: those of these names, or all.
    fn list_schedules(
        &self,
        names: Option<&[&str]>,
        limit: u32,
        offset: Offset,
    ) -> impl Future<Output = Result<Vec<ScheduleRow>>> + Send;
    /// Reads one.
    fn read_schedule(&self, name: &str, offset: Offset) -> impl Future<Output = Result<Option<ScheduleRow>>> + Send;
    /// Reads one in a transaction, which has it alone until it ends.
    fn lock_schedule(
        &self,
        conn: &mut Db::Connection,
        name: &str,
        offset: Offset,
    ) -> impl Future<Output = Result<Option<ScheduleRow>>> + Send;
    /// Counts them, up to a limit.
    fn count_schedules(&self, conn: &mut Db::Connection, limit: u32) -> impl Future<Output = Result<i64>> + Send;
    /// Writes one, or what has changed of it. Another timing takes effect from now on.
    fn write_schedule(
        &self,
        conn: &mut Db::Connection,
        schedule: &NewSchedule,
        offset: Offset,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Writes ticks with their jobs, and says of which nobody has made one before.
    fn write_ticks(
        &self,
        conn: &mut Db::Connection,
        schedule: &str,
        ticks: &[(Timestamp, Uuid)],
    ) -> impl Future<Output = Result<Vec<Timestamp>>> + Send;
    /// Writes how far a schedule has come. It never goes back.
    fn advance_schedule(
        &self,
        conn: &mut Db::Connection,
        name: &str,
        advance: Advance,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Pauses one, by whom and why, or resumes it. False: there is none.
    fn pause_schedule(
        &self,
        conn: &mut Db::Connection,
        name: &str,
        pause: Option<(&str, &str)>,
        offset: Offset,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Removes one. What is known of its ticks stays. False: there is none.
    fn remove_schedule(&self, conn: &mut Db::Connection, name: &str) -> impl Future<Output = Result<bool>> + Send;
    /// The last ticks that jobs were made of, with those, the latest first.
    fn latest_ticks(&self, schedule: &str, limit: u32) -> impl Future<Output = Result<Vec<(i64, String)>>> + Send;
    /// Those of these ticks that jobs were made of, with those.
    fn read_ticks(
        &self,
        schedule: &str,
        ticks: &[Timestamp],
    ) -> impl Future<Output = Result<Vec<(i64, String)>>> + Send;
}

readers! {
    fn read_row -> ScheduleRow {
        name: plain,
        source: plain,
        timing: plain,
        time_zone: plain,
        missed: plain,
        overlap: plain,
        job: plain,
        version: plain,
        kind: plain,
        redacted: plain,
        handled: plain,
        created_at: plain,
        changed_at: plain,
        last_tick: plain,
        last_job: plain,
        paused_at: plain,
        paused_by: plain,
        paused_reason: plain,
        now: plain,
        payload: plain,
        is_busy: plain,
    }
}
