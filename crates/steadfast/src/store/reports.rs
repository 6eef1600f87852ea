//! What jobs tell while they run, as it is written and read: the sentences of [`job::report`](crate::job).
//!
//! The same columns come back on both databases: moments as microseconds since 1970.

use std::future::Future;
use std::time::Duration;

use uuid::Uuid;

use super::Database;
use crate::clock::Offset;
use crate::error::Result;
use crate::lease::Lease;

/// What an attempt has told since it was last written.
#[derive(Debug)]
pub(crate) struct ReportWrite {
    pub(crate) lease: Lease,
    pub(crate) attempt: i32,
    /// How far it is, if that was told.
    pub(crate) progress: Option<ToldProgress>,
    /// Lines, and how long ago each was told.
    pub(crate) lines: Vec<(Duration, String)>,
    /// How many lines came before these that nobody keeps.
    pub(crate) pushed_out: i64,
    /// JSON.
    pub(crate) output: Option<String>,
}

impl ReportWrite {
    /// How many lines were told.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn line_count(&self) -> i64 {
        i64::try_from(self.lines.len())
            .unwrap_or(i64::MAX)
            .saturating_add(self.pushed_out)
    }
}

/// How far a job is.
#[derive(Debug)]
pub(crate) struct ToldProgress {
    pub(crate) done: i64,
    pub(crate) total: Option<i64>,
    pub(crate) text: Option<String>,
}

/// What a job has told, as it stands in its table.
#[derive(Debug)]
pub(crate) struct ReportRow {
    pub(crate) at: i64,
    pub(crate) done: Option<i64>,
    pub(crate) total: Option<i64>,
    pub(crate) doing: Option<String>,
    /// How many lines it has told.
    pub(crate) lines: i64,
    pub(crate) output: Option<String>,
}

/// A line, as it stands in its table.
#[derive(Debug)]
pub(crate) struct LineRow {
    pub(crate) at: i64,
    pub(crate) attempt: i32,
    pub(crate) text: String,
}

/// The columns of a report, in their order: at, done, total, doing, lines, output.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) type ReportColumns = (i64, Option<i64>, Option<i64>, Option<String>, i64, Option<String>);

/// The columns of a line, in their order: at, attempt, text.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) type LineColumns = (i64, i32, String);

/// What was read of a report and its lines.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) fn read(report: ReportColumns, lines: Vec<LineColumns>) -> (ReportRow, Vec<LineRow>) {
    let (at, done, total, doing, told, output) = report;
    let report = ReportRow {
        at,
        done,
        total,
        doing,
        lines: told,
        output,
    };
    let lines = lines
        .into_iter()
        .map(|(at, attempt, text)| LineRow { at, attempt, text });
    (report, lines.collect())
}

/// What jobs tell.
pub(crate) trait Reports<Db: Database> {
    /// Writes what an attempt has told, in a transaction of its own. False: the lease is lost, and nothing is changed.
    fn write_report(&self, write: &ReportWrite, offset: Offset) -> impl Future<Output = Result<bool>> + Send;
    /// The same in the transaction of its handler.
    fn write_report_in(
        &self,
        conn: &mut Db::Connection,
        write: &ReportWrite,
        offset: Offset,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// What a job has told, and its lines in order.
    fn read_report(&self, item: Uuid) -> impl Future<Output = Result<Option<(ReportRow, Vec<LineRow>)>>> + Send;
}
