//! The measuring, the same for every bench.
//!
//! A bench is a list of [`Series`]. The cases of a series are compared with each other, so they take turns: in each
//! round every one of them runs for a short slice, the order moves on by one each round, and a ratio is only ever taken
//! within a round. What disturbs the machine for longer than a slice then disturbs both sides of a ratio. What came
//! out is turned into figures by [`report`](crate::report).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, LocalBoxFuture};
use tokio::task::JoinSet;

use crate::child::Child;
use crate::error::{Context, Error, Result};
use crate::meter::{Meter, Used};
use crate::options::Database;
use crate::progress::Progress;
use crate::statistics::percentile;

/// How many call at the same time, each with the next call as soon as it has its answer. As many as the pools have
/// connections.
pub(crate) const CALLERS: usize = 32;

/// Room for the latencies of one caller in one slice; it grows if that is not enough.
const LATENCIES_EXPECTED: usize = 4_096;

/// Cases that take turns.
pub(crate) struct Series {
    /// `None` for what needs none.
    pub(crate) database: Option<Database>,
    pub(crate) cases: Vec<Case>,
    /// It takes no more rounds than these, whatever the others take.
    rounds_max: usize,
    prepare: Prepare,
}

type Prepare = Box<dyn FnOnce(Arc<Progress>) -> LocalBoxFuture<'static, Result<Stage>>>;

/// One case: its name, and what it is held against.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) aims: Vec<Aim>,
}

/// What a case is held against. Each becomes a figure of its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Aim {
    /// Its rate, as a multiple of that of another case in the same series.
    Ratio { baseline: String, goal: Option<f64> },
    /// Its slowest call, as a multiple of its median one.
    Slowest { at_most: f64 },
    /// Bytes of write-ahead log for each call.
    WalBytes { at_most: f64 },
    /// Its median call, in milliseconds.
    Median { at_most: f64 },
    /// Its median call, as a multiple of that of another case in the same series.
    MedianOf { baseline: String, at_most: Option<f64> },
    /// Statements that the database gets for each call, as a multiple of those of another case in the same series.
    Statements { baseline: String, at_most: f64 },
    /// The memory it takes, as a multiple of that of another case in the same series.
    Memory { baseline: String, at_most: f64 },
}

/// Everything that is set up for a series: what each case does, the counters, and how it is taken down.
#[derive(Default)]
pub(crate) struct Stage {
    works: HashMap<String, Work>,
    meter: Meter,
    end: Option<BoxFuture<'static, Result<()>>>,
}

/// What a case does in a slice.
#[derive(Clone)]
enum Work {
    /// One thing again and again, by many callers at once.
    Calls(Call),
    /// It gets ready, which nobody measures, and then does as it likes.
    Own(GetReady),
}

/// What is done once, for the caller of this number.
type Call = Arc<dyn Fn(usize) -> BoxFuture<'static, Result<()>> + Send + Sync>;

type GetReady = Arc<dyn Fn(Duration) -> BoxFuture<'static, Result<Ready>> + Send + Sync>;

/// What is measured of a case that gets ready first.
pub(crate) type Ready = BoxFuture<'static, Result<Called>>;

/// What was done in one slice.
#[derive(Default)]
pub(crate) struct Called {
    /// In microseconds, in any order; none if they mean nothing.
    pub(crate) latencies: Vec<u32>,
    /// How much was done: what was used up is shared out among these.
    pub(crate) count: usize,
    /// How much of it was done before the slice was over; this makes the rate.
    pub(crate) in_time: usize,
    pub(crate) took: Duration,
    /// What the case has counted itself, of all calls together.
    pub(crate) used: Used,
    /// A process whose connections must not end before the counters are read: the time of a server process is lost with it.
    pub(crate) process: Option<Child>,
}

/// How often and how long.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
}

/// A case with its slices, one for each round.
pub(crate) struct Measurement {
    pub(crate) case: Case,
    pub(crate) slices: Vec<Slice>,
}

/// What came out of one slice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slice {
    pub(crate) per_second: f64,
    pub(crate) p50_us: u32,
    pub(crate) p99_us: u32,
    pub(crate) max_us: u32,
    /// Per call.
    pub(crate) used: Used,
}

impl Series {
    pub(crate) fn new<F>(
        database: impl Into<Option<Database>>,
        cases: impl Into<Vec<Case>>,
        prepare: impl FnOnce(Arc<Progress>) -> F + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Stage>> + 'static,
    {
        Self {
            database: database.into(),
            cases: cases.into(),
            rounds_max: usize::MAX,
            prepare: Box::new(move |progress| prepare(progress).boxed_local()),
        }
    }

    /// For what takes long, and is hardly another figure each time.
    pub(crate) fn rounds_at_most(mut self, rounds: usize) -> Self {
        self.rounds_max = rounds;
        self
    }

    /// So many rounds, unless these are too many for it.
    pub(crate) fn pace(&self, pace: &Pace) -> Pace {
        Pace {
            rounds: pace.rounds.min(self.rounds_max),
            ..*pace
        }
    }

    /// Keeps the cases that somebody asked for, by a part of their name, and what those are compared with.
    pub(crate) fn select(&mut self, wanted: &[String]) {
        if wanted.is_empty() {
            return;
        }
        let is_wanted = |name: &str| wanted.iter().any(|part| name.contains(part.as_str()));
        let named = self.cases.iter().map(|case| case.name.clone());
        let mut kept: Vec<String> = named.filter(|name| is_wanted(name)).collect();
        // Grows while it is walked: a baseline may have a baseline.
        let mut next = 0;
        while let Some(name) = kept.get(next).cloned() {
            let case = self.cases.iter().find(|case| case.name == name);
            let baselines = case.into_iter().flat_map(Case::baselines);
            let missing: Vec<_> = baselines.filter(|name| !kept.contains(name)).cloned().collect();
            kept.extend(missing);
            next += 1;
        }
        self.cases.retain(|case| kept.contains(&case.name));
    }

    /// How many slices it takes: each case warms up once.
    pub(crate) fn slices(&self, pace: &Pace) -> usize {
        self.cases.len() * (self.pace(pace).rounds + 1)
    }

    /// Sets up, measures and takes down again, also when the measuring failed.
    pub(crate) async fn measure(self, pace: &Pace, progress: &Arc<Progress>) -> Result<Vec<Measurement>> {
        let pace = self.pace(pace);
        let mut stage = (self.prepare)(progress.clone()).await?;
        let measured = take_turns(self.database, self.cases, &stage, &pace, progress).await;
        if let Some(end) = stage.end.take() {
            end.await?;
        }
        measured
    }
}

impl Case {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            aims: Vec::new(),
        }
    }

    /// Compared with another case.
    pub(crate) fn against(self, baseline: impl Into<String>, goal: impl Into<Option<f64>>) -> Self {
        self.aiming(Aim::Ratio {
            baseline: baseline.into(),
            goal: goal.into(),
        })
    }

    pub(crate) fn aiming(mut self, aim: Aim) -> Self {
        self.aims.push(aim);
        self
    }

    fn baselines(&self) -> impl Iterator<Item = &String> {
        self.aims.iter().filter_map(|aim| match aim {
            Aim::Ratio { baseline, .. }
            | Aim::MedianOf { baseline, .. }
            | Aim::Statements { baseline, .. }
            | Aim::Memory { baseline, .. } => Some(baseline),
            Aim::Slowest { .. } | Aim::WalBytes { .. } | Aim::Median { .. } => None,
        })
    }
}

impl Stage {
    /// What the case of this name does once with what all callers share.
    pub(crate) fn does<S, F>(
        mut self,
        case: impl Into<String>,
        shared: &Arc<S>,
        once: impl Fn(Arc<S>, usize) -> F + Send + Sync + 'static,
    ) -> Self
    where
        S: Send + Sync + 'static,
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let shared = shared.clone();
        let call: Call = Arc::new(move |caller| once(shared.clone(), caller).boxed());
        self.works.insert(case.into(), Work::Calls(call));
        self
    }

    /// How the case of this name gets ready for a slice of this length, and what it does then.
    pub(crate) fn gets_ready<S, F>(
        mut self,
        case: impl Into<String>,
        shared: &Arc<S>,
        get_ready: impl Fn(Arc<S>, Duration) -> F + Send + Sync + 'static,
    ) -> Self
    where
        S: Send + Sync + 'static,
        F: Future<Output = Result<Ready>> + Send + 'static,
    {
        let shared = shared.clone();
        let get_ready: GetReady = Arc::new(move |length| get_ready(shared.clone(), length).boxed());
        self.works.insert(case.into(), Work::Own(get_ready));
        self
    }

    pub(crate) fn counted_by(mut self, meter: Meter) -> Self {
        self.meter = meter;
        self
    }

    /// How it is taken down.
    pub(crate) fn ends_with(mut self, end: impl Future<Output = Result<()>> + Send + 'static) -> Self {
        self.end = Some(end.boxed());
        self
    }

    fn work(&self, case: &Case) -> Result<Work> {
        let work = self.works.get(&case.name).cloned();
        work.ok_or_else(|| Error::from(format!("nobody has said what the case {} does", case.name)))
    }
}

/// Where it is measured, before the name of what is.
pub(crate) fn place(database: Option<Database>) -> String {
    database.map_or_else(String::new, |database| format!("{}: ", database.name()))
}

async fn take_turns(
    database: Option<Database>,
    cases: Vec<Case>,
    stage: &Stage,
    pace: &Pace,
    progress: &Progress,
) -> Result<Vec<Measurement>> {
    let works = cases.iter().map(|case| stage.work(case)).collect::<Result<Vec<_>>>()?;
    let fresh = |case| Measurement {
        case,
        slices: Vec::with_capacity(pace.rounds),
    };
    let mut measurements: Vec<_> = cases.into_iter().map(fresh).collect();
    // Round 0 is the warm-up: it opens connections and prepares statements, and is not kept.
    for round in 0..=pace.rounds {
        for turn in 0..works.len() {
            let current = (round + turn) % works.len();
            let name = &measurements[current].case.name;
            progress.begin(&format!("{}{name}", place(database)));
            let slice = run_slice(&works[current], pace.slice, &stage.meter).await;
            let slice = slice.context(format!("{}{name}", place(database)))?;
            if round > 0 {
                measurements[current].slices.push(slice);
            }
        }
    }
    Ok(measurements)
}

async fn run_slice(work: &Work, length: Duration, meter: &Meter) -> Result<Slice> {
    let ready = match work {
        Work::Calls(call) => call_all(call.clone(), length).boxed(),
        Work::Own(get_ready) => get_ready(length).await?,
    };
    let before = meter.read().await?;
    let Called {
        mut latencies,
        count,
        in_time,
        took,
        used: counted,
        process,
    } = ready.await?;
    let used = meter.read().await?.since(&before).and(counted).per(count);
    drop(process);
    latencies.sort_unstable();
    Ok(Slice {
        per_second: in_time as f64 / took.as_secs_f64(),
        p50_us: percentile(&latencies, 0.5),
        p99_us: percentile(&latencies, 0.99),
        max_us: percentile(&latencies, 1.0),
        used,
    })
}

/// All callers, until the slice is over.
async fn call_all(call: Call, length: Duration) -> Result<Called> {
    let end = Instant::now() + length;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        callers.spawn(call_on(call.clone(), caller, end));
    }
    let mut all = Called {
        took: length,
        ..Called::default()
    };
    while let Some(called) = callers.join_next().await {
        let (latencies, in_time) = called.context("a caller broke down")??;
        all.count += latencies.len();
        all.latencies.extend(latencies);
        all.in_time += in_time;
    }
    Ok(all)
}

/// Calls until the slice is over, and at least once: then a slice that is too short still says how long a call takes. It
/// says how long each call took, and how many of them were answered in time: the last call of each caller is a latency
/// only, since the others have stopped by then.
async fn call_on(call: Call, caller: usize, end: Instant) -> Result<(Vec<u32>, usize)> {
    let mut latencies = Vec::with_capacity(LATENCIES_EXPECTED);
    let mut in_time = 0;
    let mut start = Instant::now();
    loop {
        call(caller).await?;
        let answered = Instant::now();
        latencies.push(micros(answered - start));
        if answered > end {
            return Ok((latencies, in_time));
        }
        in_time += 1;
        start = answered;
    }
}

/// A latency as it is kept.
pub(crate) fn micros(latency: Duration) -> u32 {
    u32::try_from(latency.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn names(series: &Series) -> Vec<&str> {
        series.cases.iter().map(|case| case.name.as_str()).collect()
    }

    fn series() -> Series {
        let cases = [
            Case::new("bare"),
            Case::new("hand-written"),
            Case::new("command").against("bare", 0.7),
            Case::new("replay").against("command", 2.0),
        ];
        Series::new(Database::Sqlite, cases, |_| async { Ok(Stage::default()) })
    }

    #[test]
    fn a_selected_case_brings_its_baselines() {
        let mut selected = series();
        selected.select(&["repl".to_owned()]);
        assert_eq!(names(&selected), ["bare", "command", "replay"]);
        let mut nothing = series();
        nothing.select(&["unheard of".to_owned()]);
        assert!(nothing.cases.is_empty());
        let mut everything = series();
        everything.select(&[]);
        assert_eq!(everything.cases.len(), 4);
    }

    #[tokio::test]
    async fn cases_take_turns_and_the_order_moves_on() {
        let seen: Arc<Mutex<Vec<&str>>> = Arc::default();
        let ended = Arc::new(Mutex::new(false));
        let (noted, ending) = (seen.clone(), ended.clone());
        let cases = [Case::new("a"), Case::new("b")];
        let series = Series::new(Database::Sqlite, cases, |_| async move {
            let note = |name| {
                move |noted: Arc<Mutex<Vec<_>>>, _| async move {
                    noted.lock().expect("no panic before").push(name);
                    // Longer than a slice: each caller calls once.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    Ok(())
                }
            };
            let end = async move {
                *ending.lock().expect("no panic before") = true;
                Ok(())
            };
            Ok(Stage::default()
                .does("a", &noted, note("a"))
                .does("b", &noted, note("b"))
                .ends_with(end))
        });
        let pace = Pace {
            rounds: 2,
            slice: Duration::from_millis(1),
        };
        assert_eq!(series.slices(&pace), 6);
        let measured = series.measure(&pace, &Arc::new(Progress::new(6))).await;
        let mut order = seen.lock().expect("no panic before").clone();
        order.dedup();
        // ab, then ba, then ab again, where neighbours of the same name are one.
        assert_eq!(order.concat(), "abab");
        assert!(measured.is_ok_and(|measured| measured.iter().all(|case| case.slices.len() == 2)));
        assert!(*ended.lock().expect("no panic before"));
    }
}
