//! A scenario, run once for each place where its process could die.
//!
//! The first run only looks and makes the list of points. Each further run has a database of its own, dies at one of
//! them, and is opened again by a new process, in which the test looks at what is left.
//!
//! A process here is a runtime with everything that lives on it. It has one thread, so the statements of a scenario
//! come in the same order in each run, and so nothing of it runs between a crash and the end: its root is polled
//! before any other task, sees the crash, and returns; tasks, connections and pools are dropped where they stand, and
//! what sqlx would like to send when a connection is dropped is a task that is never run.

mod plan;
mod report;

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Runtime;

pub(super) use plan::Plan;
use plan::{Aim, Event, aims};
pub use report::{CrashFailure, CrashFailures, CrashPoint, CrashReport};

use super::database::TestDatabase;
use super::harness::Harness;
use super::site::Site;
use super::wait::{Watcher, eventually};
use super::{run, words_of};

/// How long a scenario may take. A healthy one takes milliseconds, and the toolkit's own limits are below.
const SCENARIO_MAX: Duration = Duration::from_secs(60);

impl<Db: TestDatabase> Harness<Db> {
    /// Runs `scenario` once for each place where its process could die, dies there, and then asks `then` in a new
    /// process whether all is well.
    ///
    /// The places are: before each statement of the toolkit's and each `tx.db()` of a handler's; after each COMMIT;
    /// and each COMMIT once with its reply lost, where nobody dies and the toolkit has to find out by itself. Each
    /// run has a fresh database with what was [prepared](Self::prepare). `scenario` is what a client does and what it
    /// is told: an `Err` is an answer too, but not in the first run, which goes without a crash. `then` gets what it
    /// was told, or `None` if it did not live to hear it, or heard an `Err`; there the client retries, and the test
    /// asserts.
    ///
    /// ```
    /// # use steadfast::sqlx::{self, Sqlite};
    /// # use steadfast::testing::{self, Harness};
    /// async fn place(t: &Harness<Sqlite>) -> steadfast::Result<i64> {
    ///     let command = t.sf().command("orders.place", "key-1").owner(t.owner());
    ///     let placed = command.run(async |tx| {
    ///         let insert = sqlx::query_scalar("INSERT INTO orders (sku) VALUES ('tea') RETURNING id");
    ///         Ok(insert.fetch_one(tx.db()).await?)
    ///     });
    ///     Ok(placed.await?.value)
    /// }
    ///
    /// # testing::run(async |t: Harness<Sqlite>| {
    /// t.prepare("CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT)").await;
    /// let report = t
    ///     .crash_everywhere(
    ///         async |t| place(t).await,
    ///         async |t, told| {
    ///             let retried = place(t).await.unwrap();
    ///             assert!(told.is_none_or(|told| told == retried), "one answer");
    ///             t.assert_count("orders", 1).await;
    ///         },
    ///     )
    ///     .await;
    /// println!("{report}");
    /// assert_eq!(report.names().last().unwrap(), "after COMMIT");
    /// # });
    /// ```
    ///
    /// What dies is a runtime with its tasks, connections and memory, in this process: not the machine, so nothing is
    /// told about power loss or torn pages. Keep no pool or `Steadfast` outside of the scenario: it would outlive the
    /// crash, which is noticed and is an error.
    ///
    /// # Panics
    /// If `then` did after any of the points, naming each; if the scenario fails without a crash; if a point of the
    /// first run is not reached again.
    pub async fn crash_everywhere<T, E, S, N>(&self, scenario: S, then: N) -> CrashReport
    where
        E: Debug,
        S: AsyncFn(&Harness<Db>) -> Result<T, E> + Sync,
        N: AsyncFn(&Harness<Db>, Option<T>) + Sync,
    {
        self.given(async |_| {}).crash_everywhere(scenario, then).await
    }

    /// As [`crash_everywhere`](Self::crash_everywhere), with what went wrong as a value.
    ///
    /// # Errors
    /// Where `crash_everywhere` panics.
    pub async fn try_crash_everywhere<T, E, S, N>(&self, scenario: S, then: N) -> Result<CrashReport, CrashFailures>
    where
        E: Debug,
        S: AsyncFn(&Harness<Db>) -> Result<T, E> + Sync,
        N: AsyncFn(&Harness<Db>, Option<T>) + Sync,
    {
        self.given(async |_| {}).try_crash_everywhere(scenario, then).await
    }

    /// Says what has happened before the scenario of a [`crash_everywhere`](Given::crash_everywhere) begins. It runs
    /// once in each database, in a process of its own, and never goes wrong.
    ///
    /// ```
    /// # use steadfast::sqlx::Sqlite;
    /// # use steadfast::testing::{self, Harness};
    /// # async fn place(t: &Harness<Sqlite>) -> steadfast::Result<i64> {
    /// #     Ok(t.sf().command("orders.place", "key-1").owner(t.owner()).run(async |_| Ok(1)).await?.value)
    /// # }
    /// # testing::run(async |t: Harness<Sqlite>| {
    /// t.given(async |t| drop(place(t).await.unwrap()))
    ///     .crash_everywhere(async |t| place(t).await, async |t, _| t.assert_keys(1).await)
    ///     .await;
    /// # });
    /// ```
    pub fn given<G: AsyncFn(&Harness<Db>) + Sync>(&self, given: G) -> Given<'_, Db, G> {
        Given { outer: self, given }
    }
}

/// A past that scenarios begin with: [`Harness::given`].
#[must_use = "nothing happens until a scenario is run"]
pub struct Given<'t, Db: TestDatabase, G> {
    outer: &'t Harness<Db>,
    given: G,
}

impl<Db: TestDatabase, G: AsyncFn(&Harness<Db>) + Sync> Given<'_, Db, G> {
    /// As [`Harness::crash_everywhere`], after what was given.
    ///
    /// # Panics
    /// As [`Harness::crash_everywhere`].
    pub async fn crash_everywhere<T, E, S, N>(self, scenario: S, then: N) -> CrashReport
    where
        E: Debug,
        S: AsyncFn(&Harness<Db>) -> Result<T, E> + Sync,
        N: AsyncFn(&Harness<Db>, Option<T>) + Sync,
    {
        let report = self.try_crash_everywhere(scenario, then).await;
        report
            .inspect(|report| print!("{report}"))
            .unwrap_or_else(|failures| panic!("{failures}"))
    }

    /// As [`Harness::try_crash_everywhere`], after what was given.
    ///
    /// # Errors
    /// Where `crash_everywhere` panics.
    pub async fn try_crash_everywhere<T, E, S, N>(self, scenario: S, then: N) -> Result<CrashReport, CrashFailures>
    where
        E: Debug,
        S: AsyncFn(&Harness<Db>) -> Result<T, E> + Sync,
        N: AsyncFn(&Harness<Db>, Option<T>) + Sync,
    {
        let explorer = Explorer {
            outer: &self.outer.site,
            given: &self.given,
            scenario: &scenario,
            then: &then,
        };
        // A thread of its own, which is not inside a runtime and may make others. The test waits for it, standing
        // still.
        thread::scope(|scope| {
            let name = thread::current().name().unwrap_or("crash_everywhere").to_owned();
            let exploring = thread::Builder::new()
                .name(name)
                .spawn_scoped(scope, || explorer.explore());
            let exploring = exploring.unwrap_or_else(|error| panic!("no thread for the scenario can be made: {error}"));
            exploring.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }
}

/// Runs a scenario again and again.
struct Explorer<'t, Db: TestDatabase, G, S, N> {
    outer: &'t Site<Db>,
    given: &'t G,
    scenario: &'t S,
    then: &'t N,
}

/// How a scenario's process ended.
enum Life<T> {
    /// It died.
    Crashed,
    /// It came to its end, and was told this.
    Told(Option<T>),
    /// It went wrong by itself.
    Failed(String),
}

impl<Db, T, E, G, S, N> Explorer<'_, Db, G, S, N>
where
    Db: TestDatabase,
    E: Debug,
    G: AsyncFn(&Harness<Db>) + Sync,
    S: AsyncFn(&Harness<Db>) -> Result<T, E> + Sync,
    N: AsyncFn(&Harness<Db>, Option<T>) + Sync,
{
    fn explore(&self) -> Result<CrashReport, CrashFailures> {
        let mut report = CrashReport::default();
        let events = self.run(None).map_err(|message| CrashFailures {
            report: report.clone(),
            failures: vec![CrashFailure { point: None, message }],
        })?;
        let aims = aims(&events);
        let mut failures = Vec::new();
        for (number, aim) in (1..).zip(&aims) {
            let point = CrashPoint {
                number,
                of: aims.len(),
                place: aim.place,
            };
            report.points.push(point);
            if let Err(message) = self.run(Some((*aim, point))) {
                let point = Some(point);
                failures.push(CrashFailure { point, message });
            }
        }
        match failures.is_empty() {
            true => Ok(report),
            false => Err(CrashFailures { report, failures }),
        }
    }

    /// One life and what comes after it: the events that were seen, or what was wrong.
    fn run(&self, aim: Option<(Aim, CrashPoint)>) -> Result<Vec<Event>, String> {
        let plan = Arc::new(Plan::new(aim.map(|(aim, _)| aim)));
        let (site, life) = self.live(&plan);
        let judged = match life {
            Life::Failed(message) => Err(message),
            life => plan.verdict().map_err(not_reached).map(|()| match life {
                Life::Told(told) => told,
                Life::Crashed | Life::Failed(_) => None,
            }),
        };
        let runtime = run::runtime();
        let ended = runtime.block_on(async {
            let ended = match judged {
                Ok(told) => self.look(&site, told).await,
                Err(message) => Err(message),
            };
            match &ended {
                Ok(()) => self.outer.reuse(site.home),
                Err(message) => {
                    let point = aim.map(|(_, point)| point);
                    let message = message.clone();
                    self.outer.leave(site.home, CrashFailure { point, message }.to_string());
                }
            }
            ended
        });
        runtime.shutdown_background();
        ended.map(|()| plan.events())
    }

    /// The scenario, from its first breath to the crash.
    fn live(&self, plan: &Arc<Plan>) -> (Site<Db>, Life<T>) {
        let runtime = mortal_runtime();
        let lived = runtime.block_on(async {
            let site = self.outer.another().await;
            let before = Harness::open(site.clone(), Watcher::default()).await;
            (self.given)(&before).await;
            before.sf().drained().await;
            before.pool().close().await;
            drop(before);
            let t = Harness::open(site.clone(), Watcher::crashing(plan.clone())).await;
            let pool = t.pool().clone();
            // Closed before anybody waits for it: that is enough to keep the next statement out.
            plan.on_crash(move || drop(pool.close()));
            let scenario = AssertUnwindSafe((self.scenario)(&t)).catch_unwind();
            let ended = tokio::select! {
                biased;
                () = plan.crashed.cancelled() => None,
                ended = tokio::time::timeout(SCENARIO_MAX, scenario) => Some(ended),
            };
            let life = match ended {
                None => Life::Crashed,
                Some(_) if plan.crashed.is_cancelled() => Life::Crashed,
                Some(Err(_)) => Life::Failed(format!("the scenario did not end within {SCENARIO_MAX:?}")),
                Some(Ok(Err(panic))) => Life::Failed(format!("the scenario panicked: {}", words_of(&*panic))),
                Some(Ok(Ok(Ok(told)))) => Life::Told(Some(told)),
                Some(Ok(Ok(Err(_)))) if plan.is_aimed() => Life::Told(None),
                Some(Ok(Ok(Err(error)))) => Life::Failed(format!("the scenario failed: {error:?}")),
            };
            plan.end();
            (site, life)
        });
        // Drops every task on this thread, and waits for nothing.
        runtime.shutdown_background();
        lived
    }

    /// A new process, in which the test looks at what is left.
    async fn look(&self, site: &Site<Db>, told: Option<T>) -> Result<(), String> {
        let looking = async {
            let what = "everything that the scenario opened is closed; a pool or a Steadfast that was kept outside of it \
                        has outlived the crash";
            eventually(what, async || Db::is_deserted(&site.home).await).await;
            let t = Harness::open(site.clone(), Watcher::default()).await;
            (self.then)(&t, told).await;
        };
        let looked = AssertUnwindSafe(looking).catch_unwind().await;
        looked.map_err(|panic| words_of(&*panic).to_owned())
    }
}

fn not_reached(instead: Option<Event>) -> String {
    let instead = match instead {
        Some(Event::Asked(statement)) => format!("it came to `{statement}` instead"),
        Some(Event::CommitApplied) => "it came to the end of a COMMIT instead".to_owned(),
        None => "it ended before".to_owned(),
    };
    format!("this point of the first run was not reached again: {instead}; a scenario must do the same in every run")
}

/// A runtime whose root is asked before each task, so that it can end everything between two of them.
fn mortal_runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let built = builder.event_interval(1).enable_all().build();
    built.unwrap_or_else(|error| panic!("no runtime for the scenario can be made: {error}"))
}
