//! Making jobs of ticks: the rows of the jobs, those of their ticks, and how far the schedule has come are one commit.
//!
//! Which ticks are due was decided before, from the row as it was read. The transaction locks the row and goes on only if it is still the
//! same, so of two who decided at once one finds nothing left to do. Should a tick be there all the same, since somebody made up for it by
//! hand, its constraint says so and it has no second job.
//!
//! | A process dies | Then |
//! |---|---|
//! | before the COMMIT | nothing was made; whoever looks next comes to the same ticks |
//! | after the COMMIT, before it knows | the row has come past them, for itself and everybody else |

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Overlap, Readable};
use crate::clock::{Timestamp, rfc3339};
use crate::error::{Code, Error, Result};
use crate::outbox::{NewMessage, Origin};
use crate::schedule::Due;
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::schedules::{Advance, ScheduleRow, Schedules as _};
use crate::telemetry;

/// From when on a tick counts as missed: processes that are replaced are away for less, and a schedule that was changed elsewhere is seen
/// sooner.
pub(super) const GRACE: Duration = Duration::from_secs(2 * 60);

/// How many jobs one transaction makes: it holds up nobody for long, least of all on SQLite, where everybody waits for it.
const TICKS_MAX: usize = 100;

/// What the cause of a job begins with that a schedule has made.
pub(crate) const CAUSE: &str = "schedule:";

/// What became of the ticks that were due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) jobs: u64,
    /// How far the schedule has come.
    pub(super) handled: Timestamp,
    /// The tick that comes next.
    pub(super) next: Option<Timestamp>,
}

impl<Db: Database> Steadfast<Db> {
    /// Deals with what was due when the row was read. `None`: it has changed since, and is to be read again.
    pub(super) async fn make_ticks(&self, row: &ScheduleRow, plan: &Readable) -> Result<Option<Made>> {
        let (handled, now) = (Timestamp(row.handled), Timestamp(row.now));
        let due = plan
            .timing
            .due(handled.into(), now.into(), plan.missed, GRACE, TICKS_MAX);
        let due = &due;
        let jobs = self.transact(async |tx| {
            let (store, conn, offset) = tx.parts("lock a schedule");
            let locked = match store.lock_schedule(conn, &row.name, offset).await? {
                Some(locked) if is_same(&locked, row) => locked,
                _ => return Ok(None),
            };
            let mut advance = Advance {
                handled: Timestamp::of(due.handled),
                last: None,
            };
            let (mut made, mut there) = (0, 0);
            for ticks in at_once(&locked, due, plan.overlap) {
                let messages = messages(&locked, self.own_source(), ticks)?;
                let planned: Vec<_> = messages.iter().map(|(tick, message)| (*tick, message.id)).collect();
                let (store, conn, _) = tx.parts("write ticks");
                let new = store.write_ticks(conn, &row.name, &planned).await?;
                made += new.len();
                there += planned.len() - new.len();
                advance.last = planned
                    .into_iter()
                    .rfind(|(tick, _)| new.contains(tick))
                    .or(advance.last);
                for (tick, message) in messages {
                    if new.contains(&tick) {
                        tx.add_job(|_| Ok(message))?;
                    }
                }
                if plan.overlap == Overlap::Skip && made > 0 {
                    break;
                }
            }
            let (store, conn, _) = tx.parts("write how far the schedule has come");
            store.advance_schedule(conn, &row.name, advance).await?;
            Ok(Some((made, there)))
        });
        let Some((made, there)) = jobs.await.map_err(Error::unwrapped)? else {
            return Ok(None);
        };
        let jobs = made as u64;
        let overlapped = (due.ticks.len() - made - there) as u64;
        let results = [("made", jobs), ("missed", due.skipped), ("overlapped", overlapped)];
        telemetry::ticked(&row.name, results);
        Ok(Some(Made {
            jobs,
            handled: Timestamp::of(due.handled),
            next: due.next.map(Timestamp::of),
        }))
    }
}

/// Whether what was decided about the one is right for the other.
fn is_same(locked: &ScheduleRow, row: &ScheduleRow) -> bool {
    let decisive = |row: &ScheduleRow| {
        let policies = (row.missed.clone(), row.overlap.clone());
        (row.handled, row.timing.clone(), row.time_zone.clone(), policies)
    };
    locked.paused_at.is_none() && decisive(locked) == decisive(row)
}

/// The ticks that are due, as they are written: all at once, or, where one keeps the next from its job, one after the other, for it may be
/// that somebody has made up for the first by hand. None, if the job of the last one is in the way.
fn at_once<'d>(row: &ScheduleRow, due: &'d Due, overlap: Overlap) -> std::slice::Chunks<'d, SystemTime> {
    match overlap {
        Overlap::Allow => due.ticks.chunks(due.ticks.len().max(1)),
        Overlap::Skip if row.is_busy != 0 => [].chunks(1),
        Overlap::Skip => due.ticks.chunks(1),
    }
}

/// The jobs to be made of these ticks.
fn messages(row: &ScheduleRow, source: &Arc<str>, ticks: &[SystemTime]) -> Result<Vec<(Timestamp, NewMessage)>> {
    let ticks = ticks.iter().map(|tick| Timestamp::of(*tick));
    ticks
        .map(|tick| Ok((tick, message(row, source, Some(tick))?)))
        .collect()
}

/// The job of a schedule, for a tick or for nobody's.
pub(super) fn message(row: &ScheduleRow, source: &Arc<str>, tick: Option<Timestamp>) -> Result<NewMessage> {
    let mut origin = Origin::of(source.clone());
    let cause = match tick {
        Some(tick) => format!("{CAUSE}{}:{}", row.name, rfc3339(tick.into())),
        None => format!("{CAUSE}{}", row.name),
    };
    origin.causation_id = Some(cause.into());
    let payload = row.payload.clone().unwrap_or_default();
    let payload = String::from_utf8(payload).map_err(|error| {
        let message = format!("what the job of the schedule {} is about is no text", row.name);
        Error::new(Code::Database, message).with_source(error)
    })?;
    Ok(NewMessage::of_schedule(row, payload, &origin))
}

/// The schedule that has made a job, and the tick of which, read from what has brought it about.
pub(crate) fn read_cause(cause: &str) -> Option<(&str, Option<std::time::SystemTime>)> {
    let cause = cause.strip_prefix(CAUSE)?;
    Some(match cause.split_once(':') {
        Some((name, tick)) => (name, crate::clock::read_rfc3339(tick)),
        None => (cause, None),
    })
}
