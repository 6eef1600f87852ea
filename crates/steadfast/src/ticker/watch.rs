//! Watching all schedules, in every process that dispatches.
//!
//! All of them are read about every minute, and at once when one is changed in this process; in between, nothing is asked for until the next
//! tick is due, and then only those that are. When that is, is known by the time that the database told, and by how much time has passed here
//! since; whether it has come is decided by the database's time alone.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use super::{Readable, SCHEDULES_MAX};
use crate::clock::{Offset, Timestamp, random};
use crate::error::{Error, Result};
use crate::queue::TROUBLE;
use crate::retry::{Backoff, Jitter, RetryPolicy};
use crate::steadfast::Steadfast;
use crate::store::Database;
use crate::store::schedules::{ScheduleRow, Schedules as _};
use crate::telemetry;

/// How often all schedules are read: what is changed by another process is seen within this time.
const LOOK_EVERY: Duration = Duration::from_secs(45);

/// How often it is noticed that a test has moved the clock. Nobody is asked for it.
const CLOCK_LOOK_EVERY: Duration = Duration::from_millis(500);

/// However soon a tick comes, there is a pause before it.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Several processes wake up for one tick. So long after each other, the first one has made its job, and the others see that.
const HERD_MILLIS: u64 = 50;

/// How long after a panic of the watch itself it begins anew.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// When a schedule is tried again whose jobs could not be made. The others do not wait for it.
const FAILED: RetryPolicy = RetryPolicy::checked(
    u32::MAX - 1,
    Backoff::Exponential(Duration::from_secs(1)),
    Duration::from_secs(60),
    Jitter::Equal,
    None,
);

impl<Db: Database> Steadfast<Db> {
    /// Makes the jobs of all ticks that are due by now, and says how many: one pass of what [`dispatch`](Self::dispatch) does all the time,
    /// for tests. Like [`drain`](Self::drain), which then runs them, it declares the schedules of this program first.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use serde::{Deserialize, Serialize};
    /// # use steadfast::sqlx::Sqlite;
    /// # use steadfast::{Job, Steadfast};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct CountStock {}
    /// # impl Job for CountStock { const NAME: &'static str = "stock.count"; }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// sf.schedule("stock.count").every("6h").job(&CountStock {});
    /// assert_eq!(sf.tick().await?, 0);
    ///
    /// sf.clock().set_offset(Duration::from_secs(6 * 60 * 60));
    /// assert_eq!(sf.tick().await?, 1);
    /// assert_eq!(sf.tick().await?, 0, "one job for one tick");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the database does not answer, or the jobs of a schedule could not be made; those of the others were.
    pub async fn tick(&self) -> Result<u64> {
        self.declare_schedules().await?;
        let mut watch = Watch::default();
        let mut jobs = 0;
        loop {
            let round = watch.round(self, Look::All).await?;
            jobs += round.jobs;
            match round.failed {
                Some(error) => return Err(error),
                None if round.is_over => return Ok(jobs),
                None => {}
            }
        }
    }

    /// Watches until the process is told to stop.
    pub(crate) async fn watch_schedules(&self) {
        while let Err(panic) = AssertUnwindSafe(self.keep_watching()).catch_unwind().await {
            #[cfg(feature = "testing")]
            let panic = crate::testing::crash_on(panic);
            telemetry::panicked(panic.as_ref());
            tokio::select! {
                () = self.stopped() => return,
                () = tokio::time::sleep(RESTART_AFTER) => {}
            }
        }
    }

    async fn keep_watching(&self) {
        let mut watch = Watch::default();
        let mut troubles = 0;
        while !self.is_stopping() {
            let look = watch.wants(self.clock().ahead());
            let pause = match watch.round(self, look).await {
                Ok(_) => {
                    troubles = 0;
                    watch.pause()
                }
                Err(error) => {
                    if troubles == 0 {
                        telemetry::schedules_not_seen(&error);
                    }
                    troubles += 1;
                    TROUBLE.delay(troubles, random)
                }
            };
            if self.rest(pause).await == Rested::Told {
                watch.is_outdated();
            }
        }
    }

    /// Waits, unless there is reason to look at once.
    async fn rest(&self, pause: Duration) -> Rested {
        let (until, ahead) = (Instant::now() + pause, self.clock().ahead().0);
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            tokio::select! {
                () = self.stopped() => return Rested::Enough,
                () = self.ticker().told.notified() => return Rested::Told,
                () = tokio::time::sleep(left.min(CLOCK_LOOK_EVERY)) => {}
            }
            if self.clock().ahead().0 != ahead {
                return Rested::Told;
            }
        }
        Rested::Enough
    }
}

/// Why a pause is over.
#[derive(PartialEq, Eq)]
enum Rested {
    /// It has lasted, or the process stops.
    Enough,
    /// Something has changed.
    Told,
}

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// All schedules.
    All,
    /// Those that seem to be due.
    Due,
}

/// What one round came to.
struct Round {
    jobs: u64,
    /// Whether nothing more is due.
    is_over: bool,
    /// Why the jobs of a schedule could not be made.
    failed: Option<Error>,
}

/// What a process knows of all schedules.
#[derive(Default)]
struct Watch {
    schedules: BTreeMap<String, Watched>,
    /// When all of them were read, and how far the clock was ahead then.
    looked: Option<(Instant, i64)>,
    /// What the time of the database was at a moment of ours.
    time: Option<(Instant, Timestamp)>,
}

/// A schedule as it was read.
struct Watched {
    row: ScheduleRow,
    /// `Err`: this version cannot read it.
    plan: Result<Readable>,
    /// The tick that comes next, if it is to be made here.
    next: Option<Timestamp>,
    /// How often making its jobs has failed in a row, and when it is tried again.
    troubles: u32,
    not_before: Option<Instant>,
}

impl Watch {
    /// Everything is to be read anew.
    fn is_outdated(&mut self) {
        self.looked = None;
    }

    fn wants(&self, offset: Offset) -> Look {
        match self.looked {
            Some((at, ahead)) if at.elapsed() < LOOK_EVERY && ahead == offset.0 => Look::Due,
            _ => Look::All,
        }
    }

    /// Reads what is to be read, and makes a batch of jobs for each schedule that is due.
    async fn round<Db: Database>(&mut self, sf: &Steadfast<Db>, look: Look) -> Result<Round> {
        let mut round = Round {
            jobs: 0,
            is_over: true,
            failed: None,
        };
        self.read(sf, look).await?;
        for watched in self.schedules.values_mut() {
            let Some(plan) = watched.due_by_its_row() else {
                continue;
            };
            if sf.is_stopping() {
                break;
            }
            round.is_over = false;
            match sf.make_ticks(&watched.row, plan).await {
                Ok(Some(made)) => {
                    round.jobs += made.jobs;
                    watched.row.handled = made.handled.0;
                    watched.next = made.next;
                    watched.troubles = 0;
                }
                // It is read again with the next round.
                Ok(None) => {}
                Err(error) => {
                    if watched.troubles == 0 {
                        telemetry::schedule_failed(&watched.row.name, &error);
                    }
                    watched.troubles = watched.troubles.saturating_add(1);
                    watched.not_before = Some(Instant::now() + FAILED.delay(watched.troubles, random));
                    round.failed.get_or_insert(error);
                }
            }
        }
        Ok(round)
    }

    async fn read<Db: Database>(&mut self, sf: &Steadfast<Db>, look: Look) -> Result<()> {
        let offset = sf.clock().ahead();
        let due: Vec<String> = match look {
            Look::All => Vec::new(),
            Look::Due => self.seem_due().map(str::to_owned).collect(),
        };
        if look == Look::Due && due.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = due.iter().map(String::as_str).collect();
        let wanted = (look == Look::Due).then_some(&names[..]);
        let asked_at = Instant::now();
        let store = sf.ask("look at schedules");
        let rows = store.list_schedules(wanted, SCHEDULES_MAX, offset).await?;
        self.time = rows.last().map(|row| (asked_at, Timestamp(row.now))).or(self.time);
        let mut before = match look {
            Look::All => {
                self.looked = Some((asked_at, offset.0));
                std::mem::take(&mut self.schedules)
            }
            Look::Due => names
                .iter()
                .filter_map(|name| self.schedules.remove_entry(*name))
                .collect(),
        };
        for row in rows {
            let watched = Watched::new(row, &mut before);
            self.schedules.insert(watched.row.name.clone(), watched);
        }
        Ok(())
    }

    /// What the time of the database should be by now.
    fn now(&self) -> Option<Timestamp> {
        let (at, time) = self.time?;
        Some(time.after(at.elapsed()))
    }

    /// The schedules whose next tick should have come.
    fn seem_due(&self) -> impl Iterator<Item = &str> {
        let now = self.now();
        let due = self.schedules.values().filter(move |watched| {
            let has_come = watched.next.is_some_and(|next| now.is_some_and(|now| next <= now));
            has_come && watched.may_be_tried()
        });
        due.map(|watched| &*watched.row.name)
    }

    /// How long nothing is to be done.
    fn pause(&self) -> Duration {
        let until_look = match self.looked {
            Some((at, _)) => LOOK_EVERY.saturating_sub(at.elapsed()),
            None => Duration::ZERO,
        };
        let now = self.now().unwrap_or(Timestamp(0));
        let until_due = self.schedules.values().filter_map(|watched| {
            let ahead = Duration::from_micros(u64::try_from(watched.next?.0.saturating_sub(now.0)).unwrap_or(0));
            let patience = watched
                .not_before
                .map(|at| at.saturating_duration_since(Instant::now()));
            let apart = Duration::from_millis(random() % HERD_MILLIS);
            Some(ahead.max(patience.unwrap_or_default()) + apart)
        });
        until_due.min().unwrap_or(until_look).min(until_look).max(PAUSE_MIN)
    }
}

impl Watched {
    fn new(row: ScheduleRow, before: &mut BTreeMap<String, Self>) -> Self {
        let before = before.remove(&row.name);
        let is_unchanged = before.as_ref().is_some_and(|before| {
            let words = |row: &ScheduleRow| {
                let policies = (row.missed.clone(), row.overlap.clone());
                (row.timing.clone(), row.time_zone.clone(), policies)
            };
            words(&before.row) == words(&row)
        });
        let (troubles, not_before) = before
            .as_ref()
            .map_or((0, None), |before| (before.troubles, before.not_before));
        let plan = match before {
            Some(before) if is_unchanged => before.plan,
            _ => Readable::of(&row).inspect_err(|why| telemetry::schedule_unreadable(&row.name, &why.to_string())),
        };
        let next = match &plan {
            Ok(plan) if row.paused_at.is_none() => plan.next(row.handled),
            _ => None,
        };
        Self {
            row,
            plan,
            next,
            troubles,
            not_before,
        }
    }

    fn may_be_tried(&self) -> bool {
        self.not_before.is_none_or(|at| at <= Instant::now())
    }

    /// What it does, if a tick of it was due when it was read.
    fn due_by_its_row(&self) -> Option<&Readable> {
        let is_due = self.next.is_some_and(|next| next.0 <= self.row.now);
        self.plan.as_ref().ok().filter(|_| is_due && self.may_be_tried())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Due every so often, and dealt with up to here.
    fn row(timing: &str, handled: i64, now: i64) -> ScheduleRow {
        ScheduleRow {
            name: "test.a".to_owned(),
            source: "made".to_owned(),
            timing: timing.to_owned(),
            time_zone: None,
            missed: "last".to_owned(),
            overlap: "allow".to_owned(),
            job: "test.digest".to_owned(),
            version: 1,
            kind: "job:test.digest".to_owned(),
            redacted: None,
            handled,
            created_at: 0,
            changed_at: 0,
            last_tick: None,
            last_job: None,
            paused_at: None,
            paused_by: None,
            paused_reason: None,
            now,
            payload: None,
            is_busy: 0,
        }
    }

    /// A process that has just read this.
    fn watch(row: ScheduleRow) -> Watch {
        let now = row.now;
        let watched = Watched::new(row, &mut BTreeMap::new());
        Watch {
            schedules: BTreeMap::from([(watched.row.name.clone(), watched)]),
            looked: Some((Instant::now(), 0)),
            time: Some((Instant::now(), Timestamp(now))),
        }
    }

    #[test]
    fn with_nothing_due_it_asks_at_most_twice_a_minute() {
        let statements = Duration::from_secs(60).div_duration_f64(LOOK_EVERY);
        assert!(statements <= 2.0, "{statements}");
        let idle = watch(row("every 1d", 0, 1_000_000));
        assert_eq!((idle.wants(Offset(0)), idle.seem_due().count()), (Look::Due, 0));
        assert!(
            idle.pause() > LOOK_EVERY - Duration::from_secs(1),
            "it sleeps until it looks again"
        );
        let mut paused = row("every 1s", 0, 60_000_000);
        paused.paused_at = Some(0);
        for never in [paused, row("on full moon", 0, 60_000_000)] {
            let never = watch(never);
            assert_eq!(never.seem_due().count(), 0);
            assert!(never.pause() > LOOK_EVERY - Duration::from_secs(1));
        }
    }

    #[test]
    fn it_sleeps_until_the_next_tick_and_looks_when_the_clock_is_moved() {
        let soon = watch(row("every 10s", 50_000_000, 55_000_000));
        let pause = soon.pause();
        assert!(
            (Duration::from_secs(4)..=Duration::from_millis(5_050)).contains(&pause),
            "{pause:?}"
        );
        assert_eq!(soon.wants(Offset(3_600_000_000)), Look::All);
        let mut due = watch(row("every 10s", 50_000_000, 61_000_000));
        assert_eq!(due.seem_due().collect::<Vec<_>>(), ["test.a"]);
        assert!(due.pause() <= Duration::from_millis(HERD_MILLIS));
        // What fails is left alone for a while, and the rest is not held up by it.
        let failing = due.schedules.values_mut().next().expect("it is there");
        failing.not_before = Some(Instant::now() + Duration::from_secs(20));
        assert_eq!(due.seem_due().count(), 0);
        assert!(due.pause() > Duration::from_secs(19));
    }
}
