//! What is wrong with schedules, and what to do about it.

use std::time::Duration;

use super::{Readable, SCHEDULES_MAX};
use crate::clock::Offset;
use crate::doctor::Check;
use crate::error::Result;
use crate::outbox::about;
use crate::store::Database;
use crate::store::schedules::{ScheduleRow, Schedules as _};

const NAME: &str = "schedules";

/// A tick that has been due for so long, and that nobody has dealt with, is late.
const LATE: Duration = Duration::from_secs(5 * 60);

/// How many schedules a line names.
const NAMES_MAX: usize = 5;

/// Judges how schedules are doing.
pub(crate) async fn check<Db: Database>(store: &Db::Store, offset: Offset) -> Result<Check> {
    Ok(judge(&store.list_schedules(None, SCHEDULES_MAX, offset).await?))
}

fn judge(rows: &[ScheduleRow]) -> Check {
    let (mut unreadable, mut late) = (Vec::new(), Vec::new());
    for row in rows {
        match Readable::of(row) {
            Err(why) => unreadable.push(format!("{} ({})", row.name, why.what())),
            Ok(readable) => {
                late.extend(lateness(row, &readable).map(|late| format!("{} (for {})", row.name, about(late))))
            }
        }
    }
    if !unreadable.is_empty() {
        return Check::warn(
            NAME,
            format!(
                "schedules make no jobs, because this version cannot read them: {}",
                name(unreadable)
            ),
            "roll out the version that wrote them; one that somebody wrote by hand is removed by `steadfast schedules remove NAME \
             --reason WHY`, and made anew",
        );
    }
    match late.is_empty() {
        true => Check::ok(NAME, "no tick has been due for more than 5 minutes"),
        false => Check::warn(
            NAME,
            format!("ticks have been due for more than 5 minutes: {}", name(late)),
            "start a process that dispatches; if one runs, its log says why it makes no jobs",
        ),
    }
}

/// How long the first tick has been due that nobody has dealt with.
fn lateness(row: &ScheduleRow, readable: &Readable) -> Option<Duration> {
    let next = readable.next(row.handled).filter(|_| row.paused_at.is_none())?;
    let late = Duration::from_micros(u64::try_from(row.now.saturating_sub(next.0)).ok()?);
    Some(late).filter(|late| *late > LATE)
}

/// The first of them.
fn name(mut all: Vec<String>) -> String {
    let more = all.len().saturating_sub(NAMES_MAX);
    all.truncate(NAMES_MAX);
    if more > 0 {
        all.push(format!("{more} more"));
    }
    all.join(", ")
}
