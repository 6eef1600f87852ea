//! What a database should be like, and whether this one is: settings, rights and surroundings that endanger what we
//! promise, each with what to do about it.
//!
//! Looking changes nothing, and needs no more than the right to connect; what a role may not see is told as such.

use crate::error::Error;
use crate::outbox;
use crate::steadfast::Builder;
use crate::store::{Database, Store};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, with a limit that somebody should know of.
    Warn,
    /// A promise does not hold, or nothing works.
    Fail,
}

impl Verdict {
    /// The verdict as it is spelled everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// What was looked at, the same every time.
    pub name: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do, unless it is as it should be.
    pub fix: Option<String>,
}

impl Check {
    /// It is as it should be.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            found: found.into(),
            fix: None,
        }
    }

    /// It works, with a limit.
    pub fn warn(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Warn,
            fix: Some(fix.into()),
            ..Self::ok(name, found)
        }
    }

    /// It does not hold.
    pub fn fail(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Fail,
            ..Self::warn(name, found, fix)
        }
    }

    /// It could not be looked at, or said no.
    pub fn failed(name: &'static str, error: &Error) -> Self {
        let cause = error.cause().map_or_else(String::new, |cause| format!(": {cause}"));
        let found = format!("{}: {}{cause}", error.code(), error.what());
        Self::fail(name, found, error.remedy())
    }
}

impl<Db: Database> Builder<Db> {
    /// Looks at the database, its settings, the rights of its role and how the outbox and schedules are doing. It changes nothing.
    ///
    /// ```
    /// use steadfast::{Steadfast, Verdict};
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// let builder = Steadfast::<Sqlite>::connect("sqlite::memory:").await?;
    /// let checks = builder.examine().await;
    /// let tables = checks.iter().find(|check| check.name == "tables").expect("they are looked at");
    /// assert_eq!(tables.verdict, Verdict::Fail, "there are none yet");
    /// assert!(tables.fix.as_ref().is_some_and(|fix| fix.contains("steadfast migrate up")));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn examine(&self) -> Vec<Check> {
        let store = match self.store() {
            Ok(store) => store,
            Err(error) => return vec![Check::failed("configuration", &error)],
        };
        if let Err(error) = store.ping().await {
            return vec![Check::failed("reachable", &error)];
        }
        let tables = match store.check_tables().await {
            Ok(()) => Check::ok(
                "tables",
                format!("those of {} are of this version", store.names().name()),
            ),
            Err(error) => Check::failed("tables", &error),
        };
        let has_tables = tables.verdict == Verdict::Ok;
        let mut checks = vec![Check::ok("reachable", format!("{} answers", Db::NAME)), tables];
        match store.examine().await {
            Ok(more) => checks.extend(more),
            Err(error) => checks.push(Check::failed("settings", &error)),
        }
        if has_tables {
            match self.stats(&store).await {
                Ok(stats) => checks.extend(outbox::checks(&stats)),
                Err(error) => checks.push(Check::failed("outbox", &error)),
            }
            #[cfg(feature = "schedule")]
            {
                let schedules = self.check_schedules(&store).await;
                checks.push(schedules.unwrap_or_else(|error| Check::failed("schedules", &error)));
            }
        }
        checks
    }
}
