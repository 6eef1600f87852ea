//! Schedules that make jobs: one job for one tick, whoever sees it and however often.
//!
//! What a schedule is stands in a row: [`plan`] writes it, for those that a program declares and those that are made at run time. Every
//! process that dispatches keeps [`watch`] over all of them, and nobody leads: who sees that a tick is due [makes](make) its job, in a
//! transaction that also writes the tick, and the constraint on (schedule, tick) judges between those who see it at once. Which ticks
//! are due is for [`schedule`](crate::schedule) to say. People who look after schedules [`look`] at them, pause and trigger them
//! ([`operate`]), have jobs made of ticks that had none ([`backfill`]), and are told what is wrong ([`doctor`]).

mod plan;
mod make;
mod watch;
mod look;
mod operate;
mod backfill;
mod doctor;

use tokio::sync::Notify;

pub use backfill::{BACKFILL_MAX, Backfill, BackfillTick};
pub(crate) use doctor::check;
pub use look::{ListedSchedule, LookedSchedule, MadeTick, ScheduleSource};
pub(crate) use make::read_cause;
pub use operate::Schedules;
pub use plan::{MakeSchedule, Schedule};

use crate::clock::Timestamp;
use crate::error::{Code, Error, Result};
use crate::registry::Registry;
use crate::schedule::{Missed, Timing};
use crate::store::schedules::ScheduleRow;
use crate::words::{did_you_mean, list};

/// How many schedules there may be: all of them are looked at, and read, about every minute.
const SCHEDULES_MAX: u32 = 10_000;

/// What a process knows of schedules besides their rows.
#[derive(Default)]
pub(crate) struct Ticker {
    declared: Registry<plan::Declared>,
    /// A schedule was written here. It keeps one signal that came while nobody waited.
    told: Notify,
}

/// What becomes of a tick while the job of the tick before it is still to do, or running.
///
/// A job that waits for its next attempt is still to do; one that is dead is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// It has its job, whatever became of others.
    Allow,
    /// It has none, and is gone.
    Skip,
}

impl Overlap {
    /// The word for it, in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Skip => "skip",
        }
    }

    fn read(word: &str) -> Result<Self> {
        match word {
            "allow" => Ok(Self::Allow),
            "skip" => Ok(Self::Skip),
            word => Err(unknown_word("overlap", word, &["allow", "skip"])),
        }
    }
}

/// When a schedule is due and what it does about what was missed, as far as this version understands it.
#[derive(Clone, Debug)]
struct Readable {
    timing: Timing,
    missed: Missed,
    overlap: Overlap,
}

impl Readable {
    fn of(row: &ScheduleRow) -> Result<Self> {
        Ok(Self {
            timing: Timing::read_stored(&row.timing, row.time_zone.as_deref())?,
            missed: read_missed(&row.missed)?,
            overlap: Overlap::read(&row.overlap)?,
        })
    }

    /// The tick that comes next, if everything up to here is dealt with.
    fn next(&self, handled: i64) -> Option<Timestamp> {
        self.timing.tick_after(Timestamp(handled))
    }
}

fn read_missed(word: &str) -> Result<Missed> {
    let known = Missed::ALL.into_iter().find(|missed| missed.as_str() == word);
    known.ok_or_else(|| unknown_word("missed", word, &Missed::ALL.map(Missed::as_str)))
}

fn unknown_word(column: &str, word: &str, known: &[&str]) -> Error {
    let word: String = word.chars().take(60).collect();
    let message = format!(
        "`{column}` is {word:?}, which this version does not know; it knows {}",
        list(known)
    );
    Error::new(Code::RecordTooNew, message)
}

/// There is no schedule of this name; perhaps there is one nearby.
fn unknown_schedule(name: &str, known: &[&str]) -> Error {
    let name: String = name.chars().take(120).collect();
    let near = did_you_mean(&name, known);
    let help = match &*near {
        "" => "; `steadfast schedules list` shows them",
        near => near,
    };
    Error::new(Code::InputInvalid, format!("there is no schedule {name:?}{help}"))
}
