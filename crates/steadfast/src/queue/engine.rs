//! The loop: finish what has ended, renew what is held, claim what there is room for, and wait for something to happen.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use super::finish::{Aside, Finished};
use super::lane::Lane;
use super::line::{Line, statement_limit};
use super::point::WorkPoint;
use super::renew::letting_go;
use super::share::Demand;
use super::{Claimed, Ended, KnownKind, LEASE, Place, Row, Work, WorkOptions};
use crate::clock::random;
use crate::error::{Code, Error, Result};
use crate::failure::Failure;
use crate::lease::Lease;
use crate::retry::{Backoff, Jitter, RetryPolicy};
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};
use crate::telemetry;

/// From how many rows on that have ended they are said over a second connection, while the next are claimed: fewer are said sooner
/// than it is opened.
const MANY: usize = 100;

/// How many batches may have ended while another one is being said, before it is waited for.
const UNSAID_BATCHES: usize = 2;

/// How long others are waited for when more could be claimed, so that rows are finished and claimed many at a time.
const LINGER: Duration = Duration::from_millis(2);

/// How often it is said which kinds this node knows.
const SEEN_EVERY: Duration = Duration::from_secs(60);

/// How long handlers may go on when the process is about to stop, before their rows are given back.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// How long until something is said once more of a row that somebody else was just writing.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(500);

/// How the engine comes back after the database was out of reach.
pub(crate) const TROUBLE: RetryPolicy = RetryPolicy::checked(
    u32::MAX - 1,
    Backoff::Exponential(Duration::from_millis(100)),
    Duration::from_secs(5),
    Jitter::Equal,
    None,
);

/// How the engine goes about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// How often it looks by itself when nothing happens.
    pub(crate) poll: Duration,
    /// How many rows of a kind are claimed at once at the most.
    pub(crate) batch: u32,
    /// How long a lease lasts, unless the work says otherwise.
    pub(crate) lease: Duration,
    /// Whether it only looks when the time has come, whatever it hears.
    pub(crate) is_fixed: bool,
    /// How long handlers may go on when the process is about to stop.
    pub(crate) stop_patience: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(2),
            batch: 500,
            lease: LEASE,
            is_fixed: false,
            stop_patience: STOP_PATIENCE,
        }
    }
}

/// A row that is worked on.
pub(super) struct Held {
    pub(super) claimed: Arc<Claimed>,
    pub(super) lane: Arc<Lane>,
    pub(super) options: WorkOptions,
    pub(super) lease: Duration,
    pub(super) claimed_at: Instant,
    pub(super) renew_at: Instant,
    /// When it is no longer ours, as far as we know.
    pub(super) lost_at: Instant,
    /// Whether the database has said that it is not.
    pub(super) is_taken: bool,
    pub(super) lost: CancellationToken,
}

impl Held {
    fn new<Db: Database>(claimed: Arc<Claimed>, kind: &Kind<Db>, lease: Duration, asked_at: Instant) -> Self {
        let mut held = Self {
            claimed,
            lane: kind.lane.clone(),
            options: *kind.work.options(),
            lease,
            claimed_at: Instant::now(),
            renew_at: asked_at,
            lost_at: asked_at,
            is_taken: false,
            lost: CancellationToken::new(),
        };
        held.renewed(asked_at, lease);
        held
    }

    /// The lease counts from before the statement was sent: the database's begins later.
    pub(super) fn renewed(&mut self, asked_at: Instant, lease: Duration) {
        self.renew_at = asked_at + lease / 3;
        self.lost_at = asked_at + lease;
    }
}

/// What is done with rows of one kind. The kinds of one work have one lane, and so have those of one queue.
pub(super) struct Kind<Db: Database> {
    pub(super) work: Arc<dyn Work<Db>>,
    pub(super) lane: Arc<Lane>,
    pub(super) weight: u32,
    pub(super) is_rare: bool,
    pub(super) demand: Demand,
}

/// What is done with rows of each kind.
pub(super) type Kinds<Db> = HashMap<Arc<str>, Kind<Db>>;

/// The work for each kind.
pub(super) type Works<Db> = Arc<HashMap<Arc<str>, Arc<dyn Work<Db>>>>;

/// Rows that a hand has let go of, and how they ended.
pub(super) type EndedRows = Vec<(Arc<Claimed>, Ended)>;

/// Moves rows, for all the work that this process knows.
pub(crate) struct Engine<Db: Database> {
    pub(super) sf: Steadfast<Db>,
    pub(super) kinds: Kinds<Db>,
    pub(super) lanes: Vec<Arc<Lane>>,
    pub(super) works: Works<Db>,
    pub(super) pace: Pace,
    pub(super) holder: Arc<str>,
    pub(super) line: Line<Db>,
    /// For what has ended, while much does; `None`: it is in use.
    pub(super) second_line: Option<Line<Db>>,
    /// Who uses it.
    pub(super) aside: Option<JoinHandle<Aside<Db>>>,
    /// Until when it is done without.
    pub(super) one_line_until: Option<Instant>,
    pub(super) held: HashMap<Lease, Held>,
    /// Work that has ended, and is not said yet.
    pub(super) finished: Vec<Finished>,
    /// What could not be said, because somebody else was just writing the rows; and when it is said once more.
    pub(super) busy: Vec<Finished>,
    pub(super) busy_until: Option<Instant>,
    /// Chains whose next row may be claimed.
    pub(super) freed: Vec<Arc<str>>,
    /// Queues that were at their limits when they were last looked at: others may wait for what ends here.
    pub(super) held_up: HashSet<Arc<str>>,
    /// How long after the last claim the next row is due.
    pub(super) next_in: Option<Duration>,
    /// When the earliest of the rows is due again that were put back since.
    pub(super) back_at: Option<Instant>,
    ended: mpsc::UnboundedReceiver<EndedRows>,
    pub(super) ends: mpsc::UnboundedSender<EndedRows>,
}

impl<Db: Database> Engine<Db> {
    pub(crate) fn new(sf: Steadfast<Db>, works: &[Arc<dyn Work<Db>>], pace: Pace) -> Self {
        let (kinds, lanes) = stand_in_line(works);
        // Bounded by the rows that are held.
        let (ends, ended) = mpsc::unbounded_channel();
        Self {
            works: Arc::new(
                kinds
                    .iter()
                    .map(|(name, kind)| (name.clone(), kind.work.clone()))
                    .collect(),
            ),
            kinds,
            lanes,
            holder: holder(&sf),
            line: Line::hearing(&sf),
            second_line: Some(Line::deaf(&sf)),
            aside: None,
            one_line_until: None,
            sf,
            pace,
            held: HashMap::new(),
            finished: Vec::new(),
            busy: Vec::new(),
            busy_until: None,
            freed: Vec::new(),
            held_up: HashSet::new(),
            next_in: None,
            back_at: None,
            ended,
            ends,
        }
    }

    /// Works until the process is told to stop, then lets what is under way end, and gives the rest back.
    pub(crate) async fn run(mut self) {
        let stopping = self.sf.stopping();
        let mut troubles = 0;
        let (mut may_claim, mut is_full) = (true, false);
        let mut look_at = Instant::now();
        let mut seen_at: Option<Instant> = None;
        while !stopping.is_cancelled() {
            let step = async {
                self.note_all();
                self.take_up_busy();
                if !self.pace.is_fixed {
                    self.give_back(Lane::is_impatient);
                }
                // Whatever becomes of the rest, leases are renewed.
                self.renew().await?;
                if seen_at.is_none_or(|seen_at| seen_at.elapsed() >= SEEN_EVERY) {
                    self.see_kinds().await?;
                    seen_at = Some(Instant::now());
                }
                self.finish_some().await?;
                let mut has_more = false;
                if may_claim {
                    let found = self.claim().await?;
                    (is_full, has_more) = (found.is_full, found.has_more && !self.pace.is_fixed);
                    let wait = self.next_in.unwrap_or(self.pace.poll).min(self.pace.poll);
                    look_at = found.asked_at + if self.pace.is_fixed { self.pace.poll } else { wait };
                    if let Some(rested_at) = found.rested_at.filter(|_| !self.pace.is_fixed) {
                        look_at = look_at.min(rested_at);
                    }
                    self.start(found.rows, found.asked_at);
                    self.park(&found.crowded, &found.full_keys).await?;
                }
                if let Some(back_at) = self.back_at.take().filter(|_| !self.pace.is_fixed) {
                    look_at = look_at.min(back_at);
                }
                troubles = 0;
                self.sf.dispatching().works();
                match has_more {
                    true => Ok(true),
                    false => self.wait(look_at, is_full, &stopping).await,
                }
            };
            may_claim = match step.await {
                Ok(may_claim) => may_claim,
                Err(error) => {
                    self.sf.dispatching().fails(&error);
                    troubles += 1;
                    let pause = tokio::time::sleep(TROUBLE.delay(troubles, random));
                    letting_go(&self.sf, &self.held, async {
                        tokio::select! {
                            () = stopping.cancelled() => {}
                            () = pause => {}
                        }
                    })
                    .await;
                    true
                }
            };
        }
        self.stop().await;
    }

    /// Says what has ended: aside, if it is much and no other row waits for one of them. Who cannot say what has ended does not go
    /// on claiming.
    async fn finish_some(&mut self) -> Result<()> {
        let is_behind = self.finished.len() >= UNSAID_BATCHES * self.pace.batch as usize;
        if self
            .aside
            .as_ref()
            .is_some_and(|aside| is_behind || aside.is_finished())
        {
            let aside = letting_go(&self.sf, &self.held, said_aside(&mut self.aside)).await;
            self.note_aside(aside)?;
        }
        let has_line = self.one_line_until.is_none_or(|until| until <= Instant::now());
        if self.finished.iter().any(Finished::makes_way) {
            return self.finish().await;
        }
        if self.aside.is_none() && self.finished.len() >= MANY && has_line {
            self.finish_aside();
        }
        match self.aside.is_some() {
            // What is not with it goes with the next.
            true => Ok(()),
            false => self.finish().await,
        }
    }

    /// Waits for something to happen, and says whether to claim then.
    async fn wait(&mut self, look_at: Instant, is_full: bool, stopping: &CancellationToken) -> Result<bool> {
        let hears = !self.pace.is_fixed;
        let impatient_at = self.lanes.iter().filter_map(|lane| lane.impatient_at()).min();
        let until = [self.next_renewal(), self.busy_until, impatient_at.filter(|_| hears)]
            .into_iter()
            .flatten()
            .fold(look_at, Instant::min);
        if let Some(second_line) = &mut self.second_line
            && self.held.is_empty()
            && self.finished.is_empty()
        {
            second_line.close();
        }
        let sf = self.sf.clone();
        let may_claim = tokio::select! {
            () = stopping.cancelled() => false,
            () = tokio::time::sleep_until(until.into()) => Instant::now() >= look_at,
            () = sf.wake().here.notified(), if hears => true,
            holders = self.line.woken(), if hears => {
                if holders.iter().any(|holder| **holder == *self.holder) {
                    sf.wake().notes_cancel();
                }
                true
            }
            Some(ended) = self.ended.recv() => {
                self.note(ended);
                if is_full {
                    self.linger().await;
                }
                false
            }
            aside = said_aside(&mut self.aside) => {
                self.note_aside(aside)?;
                false
            }
        };
        self.note_all();
        let has_ended = !self.finished.is_empty();
        let makes_way = self.finished.iter().any(Finished::makes_way);
        Ok(may_claim || (has_ended && (is_full || makes_way) && hears))
    }

    /// Takes note of what ends soon, until nothing is left to wait for, or as much has ended as is claimed at once.
    async fn linger(&mut self) {
        let until = tokio::time::Instant::now() + LINGER;
        while !self.held.is_empty()
            && self.finished.len() < self.pace.batch as usize
            && let Ok(Some(ended)) = tokio::time::timeout_at(until, self.ended.recv()).await
        {
            self.note(ended);
        }
    }

    /// Holds a row that was claimed, and says which lane it belongs to.
    pub(super) fn hold(&mut self, claimed: Claimed, asked_at: Instant) -> (Row, Arc<Lane>) {
        let Some(kind) = self.kinds.get(&claimed.lease.kind) else {
            unreachable!("only rows of known kinds are claimed");
        };
        kind.lane.holds_one();
        let (claimed, lane) = (Arc::new(claimed), kind.lane.clone());
        let lease = self.lease_of(kind.work.options());
        let held = Held::new(claimed.clone(), kind, lease, asked_at);
        let row = Row {
            claimed,
            asked_at,
            lost: held.lost.clone(),
        };
        self.held.insert(row.claimed.lease.clone(), held);
        (row, lane)
    }

    /// Takes note of all work that has ended.
    fn note_all(&mut self) {
        while let Ok(ended) = self.ended.try_recv() {
            self.note(ended);
        }
    }

    /// Takes note of work that has ended.
    fn note(&mut self, ended: EndedRows) {
        for (claimed, ended) in ended {
            if let Some(held) = self.let_out(&claimed.lease) {
                self.finished.push(Finished::new(held, ended));
            }
        }
    }

    /// Holds a row no longer.
    pub(super) fn let_out(&mut self, lease: &Lease) -> Option<Held> {
        let held = self.held.remove(lease)?;
        held.lane.let_one_out();
        Some(held)
    }

    /// Lets what is under way end, and gives the rest back.
    async fn stop(&mut self) {
        let until = Instant::now() + self.pace.stop_patience;
        self.give_back(|_| true);
        loop {
            self.note_all();
            self.take_up_busy();
            let said = async {
                self.renew().await?;
                self.finish().await
            };
            let said = said.await;
            let next = match said {
                Ok(()) => [self.next_renewal(), self.busy_until].into_iter().flatten().min(),
                // Whatever has to be renewed waits for as long as everything else does.
                Err(error) => {
                    self.sf.dispatching().fails(&error);
                    Some(Instant::now() + TROUBLE.delay(1, random))
                }
            };
            let has_said_all = self.finished.is_empty() && self.busy.is_empty() && self.aside.is_none();
            if (self.held.is_empty() && has_said_all) || Instant::now() >= until {
                break;
            }
            let next = next.map_or(until, |next| next.min(until));
            tokio::select! {
                Some(ended) = self.ended.recv() => self.note(ended),
                aside = said_aside(&mut self.aside) => {
                    if let Err(error) = self.note_aside(aside) {
                        self.sf.dispatching().fails(&error);
                    }
                }
                () = tokio::time::sleep_until(next.into()) => {}
            }
        }
        // What has ended meanwhile is done, and not given back.
        self.note_all();
        self.finished.append(&mut self.busy);
        for (_, held) in self.held.drain() {
            held.lost.cancel();
            self.finished.push(Finished::new(held, Ended::GivenBack));
        }
        if let Err(error) = self.finish().await {
            self.sf.dispatching().fails(&error);
        }
    }

    /// Works, one row after another, until nothing is due: for tests, which want the same order every time.
    pub(crate) async fn drain(mut self) -> Result<u64> {
        self.see_kinds().await?;
        let mut count = 0;
        loop {
            let asked_at = Instant::now();
            let found = self.claim().await?;
            if found.rows.is_empty() && !found.has_more {
                return Ok(count);
            }
            self.park(&found.crowded, &found.full_keys).await?;
            for row in found.rows {
                let work = self.kinds.get(&row.lease.kind).map(|kind| kind.work.clone());
                let (row, _) = self.hold(row, asked_at);
                let Some(work) = work else {
                    unreachable!("only rows of known kinds are claimed");
                };
                let ended = run(work, self.sf.clone(), vec![row]).await;
                self.note(ended);
                count += 1;
            }
            self.finish().await?;
            if let Some(busy_until) = self.busy_until {
                tokio::time::sleep_until(busy_until.into()).await;
                self.take_up_busy();
                self.finish().await?;
            }
            if !self.busy.is_empty() {
                return Err(Error::new(
                    Code::Locked,
                    "somebody else is writing rows that were worked on",
                ));
            }
        }
    }

    async fn see_kinds(&mut self) -> Result<()> {
        let mut kinds: Vec<_> = self
            .works
            .iter()
            .map(|(name, work)| KnownKind {
                name: name.clone(),
                queue: work.place(name).queue.map(|queue| queue.name),
            })
            .collect();
        // Two who write the same rows do so in the same order.
        kinds.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let offset = self.sf.clock().ahead();
        self.ask("say which kinds are known", async |store, link| {
            store.see_kinds(link, &kinds, offset).await
        })
        .await
    }

    /// Asks the database, within a limit.
    pub(super) async fn ask<T>(
        &mut self,
        statement: &'static str,
        ask: impl AsyncFnOnce(&Db::Store, &mut <Db::Store as Store<Db>>::Link) -> Result<T>,
    ) -> Result<T> {
        let limit = statement_limit(&self.held, self.pace.lease);
        letting_go(&self.sf, &self.held, self.line.ask(statement, limit, ask)).await
    }
}

impl<Db: Database> Drop for Engine<Db> {
    /// Nobody renews from now on: whoever works on these rows may as well stop.
    fn drop(&mut self) {
        self.held.values().for_each(|held| held.lost.cancel());
    }
}

/// The kinds of some works, and the lanes that their rows go through.
fn stand_in_line<Db: Database>(works: &[Arc<dyn Work<Db>>]) -> (Kinds<Db>, Vec<Arc<Lane>>) {
    let mut lanes: Vec<Lane> = Vec::new();
    let mut places = Vec::new();
    for work in works {
        let mut own = None;
        for name in work.kinds() {
            let place = work.place(name);
            let known = match &place.queue {
                Some(queue) => lanes.iter().position(|lane| lane.queue.as_ref() == Some(&queue.name)),
                None => own,
            };
            let lane = known.unwrap_or(lanes.len());
            if lane == lanes.len() {
                lanes.push(Lane::new(work.options(), place.queue.as_ref()));
            }
            lanes[lane].add(name.clone(), work.options());
            if place.queue.is_none() {
                own = Some(lane);
            }
            places.push((name.clone(), work.clone(), lane, place));
        }
    }
    let lanes: Vec<_> = lanes.into_iter().map(Arc::new).collect();
    let kind = |(name, work, lane, place): (_, _, usize, Place)| {
        let kind = Kind {
            work,
            lane: lanes[lane].clone(),
            weight: place.weight,
            is_rare: place.is_rare,
            demand: Demand::default(),
        };
        (name, kind)
    };
    (places.into_iter().map(kind).collect(), lanes)
}

/// Waits until what is said aside was said.
async fn said_aside<Db: Database>(aside: &mut Option<JoinHandle<Aside<Db>>>) -> Result<Aside<Db>, JoinError> {
    match aside {
        Some(saying) => saying.await,
        None => std::future::pending().await,
    }
}

/// Works on rows of one kind to their end, or until the leases of all of them are lost. A panic is a failure like any other, of each
/// of them. What nobody wants any more is not begun.
pub(super) async fn run<Db: Database>(work: Arc<dyn Work<Db>>, sf: Steadfast<Db>, mut rows: Vec<Row>) -> EndedRows {
    let lost = rows.extract_if(.., |row| row.lost.is_cancelled());
    let mut ended: EndedRows = lost.map(|row| (row.claimed, Ended::Lost)).collect();
    let cancelled = rows.extract_if(.., |row| row.claimed.cancel.is_requested());
    ended.extend(cancelled.map(|row| (row.claimed, Ended::GivenBack)));
    if rows.is_empty() {
        return ended;
    }
    telemetry::deliveries_start(&rows);
    let span = telemetry::work_span(&rows);
    let rows: Arc<[Row]> = rows.into();
    let passes = |point| rows.iter().for_each(|row| sf.passes(point, &row.id()));
    let working = async {
        passes(WorkPoint::AfterClaim);
        let ends = work.run(sf.clone(), rows.clone()).await;
        passes(WorkPoint::BeforeFinish);
        ends
    };
    // Inside, because whatever is dropped there may panic too.
    let working = AssertUnwindSafe(async {
        tokio::select! {
            biased;
            ends = tracing::Instrument::instrument(working, span) => ends,
            () = all_are_lost(&rows) => Vec::new(),
        }
    });
    let ends = working.catch_unwind().await.unwrap_or_else(|panic| {
        #[cfg(feature = "testing")]
        let panic = crate::testing::crash_on(panic);
        telemetry::panicked(panic.as_ref());
        rows.iter().map(|_| Ended::Failed(Failure::panicked())).collect()
    });
    let ends = ends.into_iter().chain(std::iter::repeat_with(|| Ended::Lost));
    ended.extend(rows.iter().zip(ends).map(|(row, ended)| match ended {
        // It went with a commit, which has compared the lease.
        Ended::Settled => (row.claimed.clone(), ended),
        _ if row.lost.is_cancelled() => (row.claimed.clone(), Ended::Lost),
        ended => (row.claimed.clone(), ended),
    }));
    ended
}

/// Waits until none of these rows is ours any more.
async fn all_are_lost(rows: &[Row]) {
    for row in rows {
        row.lost.cancelled().await;
    }
}

/// Who holds the leases of this engine, for people.
fn holder<Db: Database>(sf: &Steadfast<Db>) -> Arc<str> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let id = sf.id().get(..8).unwrap_or_default();
    format!(
        "{}/{}/{id}",
        if host.is_empty() { "host" } else { host },
        std::process::id()
    )
    .into()
}

#[cfg(all(test, feature = "sqlite", feature = "testing"))]
mod tests {
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde::{Deserialize, Serialize};
    use sqlx::Sqlite;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::testing::Observer;
    use crate::{Event, EventCx};

    #[derive(Serialize, Deserialize)]
    struct Happened;

    impl Event for Happened {
        const TYPE: &'static str = "test.happened";
    }

    /// Work that begins, and ends when it may. From then on it rests, if it does.
    struct Waits {
        rests_from_now_on: AtomicBool,
        kinds: [Arc<str>; 1],
        options: WorkOptions,
        begun: Arc<Semaphore>,
        may_end: Arc<Semaphore>,
        ended: Arc<Semaphore>,
    }

    impl Work<Sqlite> for Waits {
        fn kinds(&self) -> &[Arc<str>] {
            &self.kinds
        }

        fn options(&self) -> &WorkOptions {
            &self.options
        }

        fn rests_for(&self) -> Option<Duration> {
            let rests = self.rests_from_now_on.load(Ordering::Relaxed);
            rests.then_some(Duration::from_secs(60))
        }

        fn run(
            self: Arc<Self>,
            _: Steadfast<Sqlite>,
            rows: Arc<[Row]>,
        ) -> Pin<Box<dyn Future<Output = Vec<Ended>> + Send>> {
            Box::pin(async move {
                self.begun.add_permits(1);
                drop(self.may_end.acquire().await);
                self.ended.add_permits(1);
                rows.iter().map(|_| Ended::Done(None)).collect()
            })
        }
    }

    type Happens = Box<dyn FnMut(&'static str) + Send>;

    /// What happens when the engine asks for something.
    #[derive(Clone, Default)]
    struct Asked(Arc<Mutex<Option<Happens>>>);

    impl Observer for Asked {
        fn asked(&self, statement: &'static str) {
            if let Some(happens) = &mut *self.0.lock().expect("not poisoned") {
                happens(statement);
            }
        }
    }

    impl Asked {
        fn then(&self, happens: impl FnMut(&'static str) + Send + 'static) {
            *self.0.lock().expect("not poisoned") = Some(Box::new(happens));
        }
    }

    /// An engine that works on one row, and is about to be told to stop.
    async fn at_work(pace: Pace) -> (Steadfast<Sqlite>, Asked, Arc<Waits>, JoinHandle<()>) {
        let asked = Asked::default();
        let builder = Steadfast::<Sqlite>::connect("sqlite::memory:")
            .await
            .expect("a database");
        builder.migrate().await.expect("tables");
        let sf = builder.observer(asked.clone()).build().await.expect("a handle");
        let hear = async |_: &EventCx, _: Happened| Ok(());
        sf.reaction::<Happened>("test.waits").run_outside(hear);
        sf.declare().await.expect("declared");
        let publishing = sf.transact(async |tx| Ok(tx.publish(&Happened)?));
        publishing.await.expect("published");
        let work = waits("test.waits");
        let engine = Engine::new(sf.clone(), &[work.clone() as Arc<dyn Work<Sqlite>>], pace);
        let running = tokio::spawn(engine.run());
        work.begun.acquire().await.expect("open").forget();
        (sf, asked, work, running)
    }

    fn waits(kind: &str) -> Arc<Waits> {
        Arc::new(Waits {
            rests_from_now_on: AtomicBool::new(false),
            kinds: [kind.into()],
            options: WorkOptions {
                retry: RetryPolicy::default(),
                lease: None,
                concurrency: 1,
                batch: 1,
                dead_make_room: false,
            },
            begun: Arc::new(Semaphore::new(0)),
            may_end: Arc::new(Semaphore::new(0)),
            ended: Arc::new(Semaphore::new(0)),
        })
    }

    async fn count(sf: &Steadfast<Sqlite>, rows: &'static str) -> i64 {
        sqlx::query_scalar(rows).fetch_one(sf.pool()).await.expect("counted")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_ends_in_the_last_moment_of_a_process_is_done() {
        let patience = Duration::from_millis(1_500);
        let (sf, asked, work, running) = at_work(Pace {
            lease: Duration::from_secs(3),
            stop_patience: patience,
            ..Pace::default()
        })
        .await;
        let stopped_at = Instant::now();
        sf.stop();
        asked.then(move |statement| {
            if statement == "renew leases" {
                // It ends while the engine waits for the database, and then there is no more time.
                work.may_end.add_permits(1);
                tokio::task::block_in_place(|| {
                    while work.ended.available_permits() == 0 || stopped_at.elapsed() < patience {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                });
            }
        });
        running.await.expect("no panic");
        let delivered = "SELECT count(*) FROM steadfast_history WHERE state = 'delivered'";
        assert_eq!(count(&sf, delivered).await, 1);
        assert_eq!(count(&sf, "SELECT count(*) FROM steadfast_queue").await, 0);
    }

    #[tokio::test]
    async fn who_rests_with_much_to_do_is_not_asked_for_all_the_time_while_others_are() {
        let (sf, asked, first, running) = at_work(Pace::default()).await;
        sf.stop();
        first.may_end.add_permits(1);
        running.await.expect("no panic");
        let sf = {
            let builder = Steadfast::builder(sf.pool().clone()).observer(asked.clone());
            builder.build().await.expect("a handle")
        };
        let hear = async |_: &EventCx, _: Happened| Ok(());
        sf.reaction::<Happened>("test.waits").run_outside(hear);
        let publishing = sf.transact(async |tx| {
            for _ in 0..5 {
                tx.publish(&Happened)?;
            }
            Ok(())
        });
        publishing.await.expect("published");
        let (work, idle) = (waits("test.waits"), waits("test.idle"));
        let works = [work.clone(), idle].map(|work| work as Arc<dyn Work<Sqlite>>);
        let running = tokio::spawn(Engine::new(sf.clone(), &works, Pace::default()).run());
        work.begun.acquire().await.expect("open").forget();
        work.rests_from_now_on.store(true, Ordering::Relaxed);
        let asks = Arc::new(Mutex::new(0));
        let counts = asks.clone();
        asked.then(move |_| *counts.lock().expect("not poisoned") += 1);
        work.may_end.add_permits(10);
        // Long enough for thousands of questions.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let asks = *asks.lock().expect("not poisoned");
        assert!(asks < 20, "it asked {asks} times");
        sf.stop();
        running.await.expect("no panic");
    }

    #[tokio::test]
    async fn a_process_that_stops_without_its_database_does_not_ask_all_the_time() {
        let (sf, asked, _, running) = at_work(Pace {
            lease: Duration::from_millis(300),
            stop_patience: Duration::from_secs(1),
            ..Pace::default()
        })
        .await;
        let rename = "ALTER TABLE steadfast_queue RENAME TO away";
        sqlx::query(rename).execute(sf.pool()).await.expect("renamed");
        let asks = Arc::new(Mutex::new(0));
        let counts = asks.clone();
        asked.then(move |_| *counts.lock().expect("not poisoned") += 1);
        sf.stop();
        running.await.expect("no panic");
        let asks = *asks.lock().expect("not poisoned");
        assert!(asks < 50, "it asked {asks} times in a second");
    }
}
