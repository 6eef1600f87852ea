//! What a job tells while it runs: how far it is, lines for those who look, and what came of it.
//!
//! Telling costs the handler nothing: it changes what is kept here, and a task writes that from time to time, all of it in one
//! statement. Who tells nothing has neither the task nor the statement. What is written counts only while the lease is held: a process
//! that was believed dead changes nothing.
//!
//! A handler with a transaction has its output, and what was not written yet, committed with its end. On SQLite nothing else can be
//! written meanwhile, so all of it is.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::error::{Code, Error, Result};
use crate::queue::Claimed;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::reports::{ReportWrite, Reports, ToldProgress};
use crate::telemetry;
use crate::tx::Tx;

/// How many lines of a job are kept: the newest. Older ones are counted.
pub const LOG_LINES_MAX: usize = 1_000;

/// How long a line may be, and what is said about progress. What is longer is cut.
pub const LOG_LINE_LENGTH_MAX: usize = 1_024;

/// How large the output may be as JSON. It is for people and programs that look, and not the place for a file.
pub const OUTPUT_LENGTH_MAX: usize = 64 * 1_024;

/// How often it is written at the most, but for the end.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// How long writing may take.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// How often the end is tried to be written, and how long is waited in between. If the database is away for longer, the job ends without.
const LAST_TRIES: u32 = 3;
const LAST_PAUSE: Duration = Duration::from_millis(200);

/// What one attempt tells.
pub(crate) struct Report<Db: Database> {
    sf: Steadfast<Db>,
    claimed: Arc<Claimed>,
    /// Whether it can be written while the handler runs.
    is_live: bool,
    told: Mutex<Told>,
    /// Held by who writes: one after another, so that lines keep their order.
    writing: tokio::sync::Mutex<()>,
    /// Cancelled when the handler has ended.
    closed: CancellationToken,
}

/// What was told and is not written.
#[derive(Default)]
struct Told {
    progress: Option<Progressed>,
    lines: VecDeque<(Instant, String)>,
    /// How many lines were pushed out by newer ones.
    pushed_out: u64,
    output: Option<String>,
    /// Whether a task will write it.
    has_teller: bool,
    /// Whether nobody but the end of the attempt writes it, or nobody at all.
    is_closed: bool,
}

#[derive(Clone)]
struct Progressed {
    done: i64,
    total: Option<i64>,
    text: Option<String>,
}

impl Told {
    fn is_empty(&self) -> bool {
        self.progress.is_none() && self.lines.is_empty() && self.pushed_out == 0
    }

    fn add_line(&mut self, at: Instant, line: String) {
        self.lines.push_back((at, line));
        while self.lines.len() > LOG_LINES_MAX {
            self.lines.pop_front();
            self.pushed_out += 1;
        }
    }

    /// Takes everything but the output.
    fn take(&mut self) -> Self {
        Self {
            progress: self.progress.take(),
            lines: std::mem::take(&mut self.lines),
            pushed_out: std::mem::take(&mut self.pushed_out),
            ..Self::default()
        }
    }

    /// Puts back what could not be written, before what came since.
    fn put_back(&mut self, taken: Self) {
        let newer = std::mem::replace(&mut self.lines, taken.lines);
        self.pushed_out += taken.pushed_out;
        newer.into_iter().for_each(|(at, line)| self.add_line(at, line));
        self.progress = self.progress.take().or(taken.progress);
    }
}

impl<Db: Database> Report<Db> {
    pub(super) fn new(sf: Steadfast<Db>, claimed: Arc<Claimed>, is_live: bool) -> Arc<Self> {
        Arc::new(Self {
            sf,
            claimed,
            is_live,
            told: Mutex::default(),
            writing: tokio::sync::Mutex::default(),
            closed: CancellationToken::new(),
        })
    }

    /// Cancelled when the handler is gone, however that came.
    pub(super) fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    pub(super) fn progress(self: &Arc<Self>, done: u64, total: Option<u64>, text: Option<String>) {
        let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
        let progressed = Progressed {
            done: number(done),
            total: total.map(number),
            text: text.map(shorten),
        };
        self.tell(|told| told.progress = Some(progressed));
    }

    pub(super) fn log(self: &Arc<Self>, line: String) {
        self.tell(|told| told.add_line(Instant::now(), shorten(line)));
    }

    pub(super) fn output(&self, value: &impl Serialize) -> Result<()> {
        let refuse = |what: String| Error::new(Code::EventInvalid, what);
        let output = serde_json::to_string(value)
            .map_err(|error| refuse("the output of a job cannot be written as JSON".to_owned()).with_source(error))?;
        if output.len() > OUTPUT_LENGTH_MAX {
            return Err(refuse(format!(
                "the output of a job has {} bytes as JSON, and at most {OUTPUT_LENGTH_MAX} are kept; put a reference to the thing \
                 into it instead of the thing",
                output.len()
            )));
        }
        self.lock().output = Some(output);
        Ok(())
    }

    /// Takes note, and has it written.
    fn tell(self: &Arc<Self>, note: impl FnOnce(&mut Told)) {
        let mut told = self.lock();
        note(&mut told);
        if self.is_live && !told.is_closed && !told.has_teller {
            told.has_teller = true;
            let report = self.clone();
            self.sf.tasks().spawn(async move { report.go_on_writing().await });
        }
    }

    /// Writes what there is, until nothing new was told for a while or the handler has ended.
    async fn go_on_writing(&self) {
        loop {
            if let Err(error) = self.write().await {
                telemetry::job_not_told(&self.claimed.lease.item, &error);
            }
            let is_last = tokio::select! {
                () = tokio::time::sleep(WRITE_EVERY) => false,
                () = self.closed.cancelled() => true,
            };
            let mut told = self.lock();
            if is_last || told.is_closed || told.is_empty() {
                told.has_teller = false;
                return;
            }
        }
    }

    /// Writes what is left when the attempt has ended; the output only if it was done.
    pub(super) async fn end(&self, is_done: bool) {
        let output = {
            let mut told = self.lock();
            told.is_closed = true;
            told.output.take().filter(|_| is_done)
        };
        self.closed.cancel();
        for tries in 1.. {
            match self.write_rest(output.as_deref()).await {
                Ok(()) => return,
                Err(error) if tries == LAST_TRIES => {
                    telemetry::job_not_told(&self.claimed.lease.item, &error);
                    return telemetry::job_lines_lost(&self.claimed.lease.item);
                }
                Err(_) => tokio::time::sleep(LAST_PAUSE).await,
            }
        }
    }

    /// Writes what is left, and the output, in the transaction of the handler, which has succeeded. If that does not commit, it is left
    /// still.
    pub(super) async fn end_in(&self, tx: &mut Tx<Db>) -> Result<()> {
        self.lock().is_closed = true;
        // Whoever is writing would wait for us, and we for him.
        let _alone = self.writing.lock().await;
        let write = {
            let told = self.lock();
            if told.is_empty() && told.output.is_none() {
                return Ok(());
            }
            self.compose(&told, told.output.as_deref())
        };
        let (store, conn, offset) = tx.parts("write what a job told");
        // If the lease is lost, the end of the transaction says so.
        store.write_report_in(conn, &write, offset).await.map(drop)
    }

    /// What was told was committed with the end.
    pub(super) fn has_ended(&self) {
        let mut told = self.lock();
        told.is_closed = true;
        told.take();
        told.output = None;
        drop(told);
        self.closed.cancel();
    }

    /// Writes what was told, unless the end of the attempt does.
    async fn write(&self) -> Result<()> {
        let _alone = self.writing.lock().await;
        if self.lock().is_closed {
            return Ok(());
        }
        self.write_alone(None).await
    }

    async fn write_rest(&self, output: Option<&str>) -> Result<()> {
        let _alone = self.writing.lock().await;
        self.write_alone(output).await
    }

    async fn write_alone(&self, output: Option<&str>) -> Result<()> {
        let taken = self.lock().take();
        if taken.is_empty() && output.is_none() {
            return Ok(());
        }
        let write = self.compose(&taken, output);
        let offset = self.sf.clock().ahead();
        let writing = self.sf.ask("write what a job told").write_report(&write, offset);
        let written = tokio::time::timeout(WRITE_LIMIT, writing).await.unwrap_or_else(|_| {
            let message = format!("the database did not take what a job told within {WRITE_LIMIT:?}");
            Err(Error::new(Code::Unreachable, message))
        });
        match written {
            Ok(true) => Ok(()),
            // Somebody else has the job, and tells what he knows.
            Ok(false) => {
                self.lock().is_closed = true;
                Ok(())
            }
            Err(error) => {
                self.lock().put_back(taken);
                Err(error)
            }
        }
    }

    fn compose(&self, told: &Told, output: Option<&str>) -> ReportWrite {
        let progress = told.progress.clone();
        ReportWrite {
            lease: self.claimed.lease.clone(),
            attempt: i32::try_from(self.claimed.attempt).unwrap_or(i32::MAX),
            progress: progress.map(|Progressed { done, total, text }| ToldProgress { done, total, text }),
            lines: told
                .lines
                .iter()
                .map(|(at, line)| (at.elapsed(), line.clone()))
                .collect(),
            pushed_out: i64::try_from(told.pushed_out).unwrap_or(i64::MAX),
            output: output.map(str::to_owned),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shorten(mut text: String) -> String {
    // PostgreSQL has no NUL in a text.
    text.retain(|c| c != '\0');
    if text.len() > LOG_LINE_LENGTH_MAX {
        let end = (0..=LOG_LINE_LENGTH_MAX).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(told: &Told) -> Vec<&str> {
        told.lines.iter().map(|(_, line)| &**line).collect()
    }

    #[test]
    fn the_newest_lines_are_kept_and_the_others_counted() {
        let mut told = Told::default();
        for line in 0..LOG_LINES_MAX + 5 {
            told.add_line(Instant::now(), line.to_string());
        }
        assert_eq!((told.lines.len(), told.pushed_out), (LOG_LINES_MAX, 5));
        assert_eq!(lines(&told)[0], "5");
    }

    #[test]
    fn what_could_not_be_written_comes_before_what_came_since() {
        let mut told = Told::default();
        told.add_line(Instant::now(), "a".to_owned());
        let taken = told.take();
        assert!(told.is_empty());
        told.add_line(Instant::now(), "b".to_owned());
        told.put_back(taken);
        assert_eq!(lines(&told), ["a", "b"]);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let short = shorten("é".repeat(10_000));
        assert!(short.len() <= LOG_LINE_LENGTH_MAX + '…'.len_utf8() && short.ends_with("é…"));
        assert_eq!(shorten("a\0b".to_owned()), "ab");
    }
}
