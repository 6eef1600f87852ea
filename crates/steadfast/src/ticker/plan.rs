//! What a schedule is to be: declared by a program, or made at run time.

use std::panic::Location;

use serde_json::json;

use super::{Overlap, SCHEDULES_MAX};
use crate::clock::ReadDuration;
use crate::error::{Code, Error, Result};
use crate::job::{Job, Priority, worker};
use crate::outbox::{NewMessage, name};
use crate::registry;
use crate::schedule::{Cron, Every, Missed, Timing};
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::schedules::{NewSchedule, Schedules as _};

/// When a schedule is due, and its policies.
struct Plan {
    timing: Option<Result<Timing>>,
    missed: Missed,
    overlap: Overlap,
}

impl Plan {
    fn new() -> Self {
        Self {
            timing: None,
            missed: Missed::Last,
            overlap: Overlap::Allow,
        }
    }

    /// The row of a schedule of this name that makes this job.
    fn row<J: Job>(self, name: &str, source: &'static str, job: &J) -> Result<NewSchedule> {
        let refuse = |message: String| Error::new(Code::ConfigurationInvalid, message);
        name::check(name).map_err(|rule| refuse(format!("a schedule cannot be called {rule}")))?;
        let timing = self.timing.unwrap_or_else(|| {
            Err(refuse(format!(
                "the schedule {name} does not say when it is due; write `.cron(\"0 9 * * *\", \"Europe/Madrid\")` or `.every(\"15m\")`"
            )))
        })?;
        let (timing, time_zone) = timing.stored();
        Ok(NewSchedule {
            name: name.to_owned(),
            source,
            timing,
            time_zone,
            missed: self.missed.as_str(),
            overlap: self.overlap.as_str(),
            job: J::NAME,
            version: J::VERSION,
            kind: worker::kind(J::NAME, J::VERSION, None, Priority::Normal).to_string(),
            redacted: (!J::REDACTED.is_empty()).then(|| json!(J::REDACTED).to_string()),
            payload: NewMessage::write("job", J::NAME, job)?,
        })
    }
}

/// The options of a schedule, for both ways to have one.
macro_rules! plan_options {
    () => {
        /// Due by a cron expression in a time zone: [`Cron::parse`].
        pub fn cron(mut self, expression: &str, time_zone: &str) -> Self {
            self.plan.timing = Some(Cron::parse(expression, time_zone).map(Timing::from));
            self
        }

        /// Due at a fixed interval: [`Every::new`].
        pub fn every(mut self, interval: impl ReadDuration) -> Self {
            self.plan.timing = Some(Every::new(interval).map(Timing::from));
            self
        }

        /// What becomes of ticks that nobody was there for; [`Missed::Last`] by default. A tick is missed when it is two minutes old.
        pub fn missed(mut self, missed: Missed) -> Self {
            self.plan.missed = missed;
            self
        }

        /// What becomes of a tick while the job of the one before it is still to do; [`Overlap::Allow`] by default.
        pub fn overlap(mut self, overlap: Overlap) -> Self {
            self.plan.overlap = overlap;
            self
        }
    };
}

/// A schedule that a program declares: [`Steadfast::schedule`].
#[must_use = "a schedule is declared when it is given its job"]
pub struct Schedule<'s, Db: Database> {
    sf: &'s Steadfast<Db>,
    name: String,
    plan: Plan,
    location: &'static Location<'static>,
}

impl<Db: Database> Steadfast<Db> {
    /// A schedule of this program, by a stable name under which it is stored: it makes a job of each tick.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use steadfast::sqlx::Sqlite;
    /// # use steadfast::{Failure, Job, JobCx, Missed, Overlap, Steadfast};
    /// # #[derive(Serialize, Deserialize)]
    /// struct DailyDigest { of: String }
    ///
    /// impl Job for DailyDigest { // or derive it
    ///     const NAME: &'static str = "shop.digest";
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// sf.schedule("shop.digest")
    ///     .cron("0 9 * * MON-FRI", "Europe/Madrid")
    ///     .missed(Missed::Last)
    ///     .overlap(Overlap::Skip)
    ///     .job(&DailyDigest { of: "orders".into() });
    /// sf.declare().await?; // `serve` and `dispatch` do
    ///
    /// let digest = sf.schedules().look("shop.digest").await?.expect("it is declared");
    /// assert_eq!(digest.schedule.timing.unwrap().to_string(), "0 9 * * MON-FRI");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// It is written when the process declares itself. What it is then follows the program: another timing takes effect from that
    /// moment on, and whether it is paused, and how far it has come, stay as they are. It also stays when the program does not declare it
    /// any more, until somebody [removes](crate::Schedules::remove) it.
    #[track_caller]
    pub fn schedule(&self, name: &str) -> Schedule<'_, Db> {
        Schedule {
            sf: self,
            name: name.to_owned(),
            plan: Plan::new(),
            location: Location::caller(),
        }
    }

    /// Writes the schedules of this program.
    pub(crate) async fn declare_schedules(&self) -> Result<()> {
        let mut rows: Vec<_> = {
            let declared = self.ticker().declared.all();
            declared.iter().map(|declared| declared.row.clone()).collect()
        };
        if rows.is_empty() {
            return Ok(());
        }
        // Two processes that start at once lock them in one order.
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        let rows = &rows;
        let written = self.transact(async |tx| {
            for row in rows {
                let (store, conn, offset) = tx.parts("declare a schedule");
                store.write_schedule(conn, row, offset).await?;
            }
            Ok(())
        });
        written.await.map_err(Error::unwrapped)?;
        self.ticker().told.notify_one();
        Ok(())
    }
}

impl<Db: Database> Schedule<'_, Db> {
    plan_options!();

    /// Makes this job of each tick. What it is about is fixed; [`JobCx::tick`](crate::JobCx::tick) tells the handler which tick it was.
    ///
    /// # Panics
    /// With SF303 if the name, the expression, the time zone or the interval cannot be used, or nothing says when it is due. With SF032
    /// if the job cannot be stored. With SF305 if another schedule of this program has the name.
    pub fn job<J: Job>(self, job: &J) {
        let Self {
            sf,
            name,
            plan,
            location,
        } = self;
        match plan.row(&name, "declared", job) {
            Ok(row) => sf.ticker().declared.add(Declared { row, location }),
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// A schedule of this program.
pub(super) struct Declared {
    row: NewSchedule,
    location: &'static Location<'static>,
}

impl registry::Declared for Declared {
    const PLURAL: &'static str = "schedules";

    fn name(&self) -> &str {
        &self.row.name
    }

    fn location(&self) -> &'static Location<'static> {
        self.location
    }
}

/// A schedule that is being made at run time: [`Schedules::make`](crate::Schedules::make).
#[must_use = "a schedule is made when it is given its job"]
pub struct MakeSchedule<'s, Db: Database> {
    sf: &'s Steadfast<Db>,
    name: String,
    plan: Plan,
}

impl<'s, Db: Database> MakeSchedule<'s, Db> {
    pub(super) fn new(sf: &'s Steadfast<Db>, name: &str) -> Self {
        Self {
            sf,
            name: name.to_owned(),
            plan: Plan::new(),
        }
    }

    plan_options!();

    /// Makes the schedule, which then makes this job of each tick from now on. If there is one of this name that was made at run time, it
    /// becomes this one; how far it has come and whether it is paused stay as they are.
    ///
    /// # Errors
    /// SF303 if the name, the expression, the time zone or the interval cannot be used, or nothing says when it is due. SF032 if the job
    /// cannot be stored. SF117 if a program declares a schedule of this name. SF102 if there are 10,000 schedules already.
    pub async fn job<J: Job>(self, job: &J) -> Result<()> {
        let Self { sf, name, plan } = self;
        let row = &plan.row(&name, "made", job)?;
        let written = sf.transact(async |tx| {
            let (store, conn, offset) = tx.parts("lock a schedule");
            match store.lock_schedule(conn, &row.name, offset).await? {
                Some(other) if other.source != row.source => return Err(is_declared(&row.name).into()),
                Some(_) => {}
                None => {
                    let (store, conn, _) = tx.parts("count schedules");
                    check_room(store.count_schedules(conn, SCHEDULES_MAX).await?)?;
                }
            }
            let (store, conn, offset) = tx.parts("write a schedule");
            Ok(store.write_schedule(conn, row, offset).await?)
        });
        written.await.map_err(Error::unwrapped)?;
        sf.ticker().told.notify_one();
        Ok(())
    }
}

fn check_room(count: i64) -> Result<()> {
    if count < i64::from(SCHEDULES_MAX) {
        return Ok(());
    }
    let message = format!(
        "there are {SCHEDULES_MAX} schedules already, and no more are looked after; remove some, or make one that stands for many"
    );
    Err(Error::new(Code::InputInvalid, message))
}

fn is_declared(name: &str) -> Error {
    let message = format!(
        "a program declares the schedule {name}, and would write it anew when it starts; give this one another name, or remove that one \
         first"
    );
    Error::new(Code::Conflict, message)
}
