//! What came of it: the points, and those where something was wrong.

use std::fmt;

/// Where a scenario goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Before(&'static str),
    ReplyLost,
    AfterCommit,
}

/// A place where a scenario was made to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    pub(super) number: usize,
    pub(super) of: usize,
    pub(super) place: Place,
}

impl CrashPoint {
    /// Its number in the scenario, from 1.
    pub fn number(&self) -> usize {
        self.number
    }
}

/// Its name, as ``before `settle the key` ``.
impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Before(statement) => write!(f, "before `{statement}`"),
            Place::ReplyLost => write!(f, "COMMIT applied, its reply lost"),
            Place::AfterCommit => write!(f, "after COMMIT"),
        }
    }
}

/// Every point of a scenario: [`Harness::crash_everywhere`](super::super::Harness::crash_everywhere). It prints as a
/// list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrashReport {
    pub(super) points: Vec<CrashPoint>,
}

impl CrashReport {
    /// How many points there are. Assert it, and a point that is lost or new is noticed.
    pub fn points(&self) -> usize {
        self.points.len()
    }

    /// The names of the points, in order.
    pub fn names(&self) -> Vec<String> {
        self.points.iter().map(ToString::to_string).collect()
    }
}

impl fmt::Display for CrashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} points:", self.points())?;
        for point in &self.points {
            writeln!(f, "{:4}  {point}", point.number)?;
        }
        Ok(())
    }
}

/// A point after which something was wrong.
#[derive(Clone, Debug)]
pub struct CrashFailure {
    pub(super) point: Option<CrashPoint>,
    pub(super) message: String,
}

impl CrashFailure {
    /// Where; `None` if it went wrong without a crash.
    pub fn point(&self) -> Option<CrashPoint> {
        self.point
    }

    /// What was wrong: the words of the panic.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for CrashFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = &self.message;
        let Some(point) = self.point else {
            return write!(f, "without a crash: {message}");
        };
        let CrashPoint { number, of, place } = point;
        match place {
            Place::ReplyLost => write!(f, "the reply to an applied COMMIT lost")?,
            Place::Before(_) | Place::AfterCommit => write!(f, "crashed {point}")?,
        }
        write!(f, " (point {number} of {of}): {message}")
    }
}

/// The points after which something was wrong:
/// [`Harness::try_crash_everywhere`](super::super::Harness::try_crash_everywhere).
#[derive(Clone, Debug)]
pub struct CrashFailures {
    pub(super) report: CrashReport,
    pub(super) failures: Vec<CrashFailure>,
}

impl CrashFailures {
    /// All points, also those after which all was well. Empty if it went wrong without a crash.
    pub fn report(&self) -> &CrashReport {
        &self.report
    }

    /// The points after which something was wrong.
    pub fn failures(&self) -> &[CrashFailure] {
        &self.failures
    }
}

impl fmt::Display for CrashFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "{failure}")?;
        }
        write!(f, "{}", self.report)
    }
}

impl std::error::Error for CrashFailures {}
