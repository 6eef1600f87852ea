//! The loop: finish what has ended, renew what is held, claim what there is room for, and wait for something to happen.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::claim::Found;
use super::finish::Finished;
use super::lane::Lane;
use super::line::{Line, Meanwhile};
use super::point::{WorkId, WorkPoint};
use super::renew::let_go_in_time;
use super::{Claimed, Ended, LEASE, Work, WorkOptions};
use crate::clock::random;
use crate::error::Result;
use crate::failure::Failure;
use crate::lease::Lease;
use crate::retry::{Backoff, Jitter, RetryPolicy};
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};
use crate::telemetry;

/// From how many rows on that have ended the next are claimed at the same time, over a second connection: fewer are said sooner
/// than it is opened.
const MANY: usize = 100;

/// How long the second connection is done without after something went wrong on it: there may be no room for it at the server.
const WITHOUT_SECOND_LINE: Duration = Duration::from_secs(60);

/// How long others are waited for when more could be claimed, so that rows are finished and claimed many at a time.
const LINGER: Duration = Duration::from_millis(2);

/// How often it is said which kinds this node knows.
const SEEN_EVERY: Duration = Duration::from_secs(60);

/// How long handlers may go on when the process is about to stop, before their rows are given back.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

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
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(2),
            batch: 500,
            lease: LEASE,
            is_fixed: false,
        }
    }
}

/// A row that is worked on.
pub(super) struct Held {
    pub(super) claimed: Arc<Claimed>,
    pub(super) options: WorkOptions,
    pub(super) lease: Duration,
    pub(super) claimed_at: Instant,
    pub(super) renew_at: Instant,
    /// When it is no longer ours, as far as we know.
    pub(super) lost_at: Instant,
    pub(super) lost: CancellationToken,
}

impl Held {
    fn new(claimed: Arc<Claimed>, options: WorkOptions, lease: Duration, asked_at: Instant) -> Self {
        let mut held = Self {
            claimed,
            options,
            lease,
            claimed_at: Instant::now(),
            renew_at: asked_at,
            lost_at: asked_at,
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

/// Moves rows, for all the work that this process knows.
pub(crate) struct Engine<Db: Database> {
    pub(super) sf: Steadfast<Db>,
    pub(super) works: HashMap<Arc<str>, Arc<dyn Work<Db>>>,
    pub(super) pace: Pace,
    pub(super) holder: String,
    pub(super) line: Line<Db>,
    /// For what has ended, while much does.
    second_line: Line<Db>,
    /// Until when it is done without.
    one_line_until: Option<Instant>,
    pub(super) held: HashMap<Lease, Held>,
    pub(super) in_flight: HashMap<Arc<str>, u32>,
    pub(super) lanes: HashMap<Arc<str>, Arc<Lane>>,
    /// Work that has ended, and is not said yet.
    pub(super) finished: Vec<Finished>,
    /// Chains whose next row may be claimed.
    pub(super) freed: Vec<Arc<str>>,
    /// How long after the last claim the next row is due.
    pub(super) next_in: Option<Duration>,
    /// When the earliest of the rows is due again that were put back since.
    pub(super) back_at: Option<Instant>,
    ended: mpsc::UnboundedReceiver<(Lease, Ended)>,
    pub(super) ends: mpsc::UnboundedSender<(Lease, Ended)>,
}

impl<Db: Database> Engine<Db> {
    pub(crate) fn new(sf: Steadfast<Db>, works: &[Arc<dyn Work<Db>>], pace: Pace) -> Self {
        let kinds = |work: &Arc<dyn Work<Db>>| {
            let kinds = work.kinds().to_vec();
            kinds.into_iter().zip(std::iter::repeat(work.clone()))
        };
        let works: HashMap<_, _> = works.iter().flat_map(kinds).collect();
        // Bounded by the rows that are held.
        let (ends, ended) = mpsc::unbounded_channel();
        Self {
            lanes: works.keys().map(|kind| (kind.clone(), Arc::default())).collect(),
            works,
            holder: holder(&sf),
            line: Line::hearing(&sf),
            second_line: Line::deaf(&sf),
            one_line_until: None,
            sf,
            pace,
            held: HashMap::new(),
            in_flight: HashMap::new(),
            finished: Vec::new(),
            freed: Vec::new(),
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
                self.give_back(Lane::is_impatient);
                // Whatever becomes of the rest, leases are renewed.
                self.renew().await?;
                if seen_at.is_none_or(|seen_at| seen_at.elapsed() >= SEEN_EVERY) {
                    self.see_kinds().await?;
                    seen_at = Some(Instant::now());
                }
                let (said, found) = self.finish_and_claim(may_claim).await;
                let mut has_more = false;
                if let Some(found) = found? {
                    (is_full, has_more) = (found.is_full, found.has_more && !self.pace.is_fixed);
                    let wait = self.next_in.unwrap_or(self.pace.poll).min(self.pace.poll);
                    look_at = found.asked_at + if self.pace.is_fixed { self.pace.poll } else { wait };
                    for row in found.rows {
                        self.start(row, found.asked_at);
                    }
                }
                if let Some(back_at) = self.back_at.take().filter(|_| !self.pace.is_fixed) {
                    look_at = look_at.min(back_at);
                }
                said.map(|()| has_more)
            };
            may_claim = match step.await {
                Ok(has_more) => {
                    troubles = 0;
                    self.sf.dispatching().works();
                    has_more
                }
                Err(error) => {
                    self.sf.dispatching().fails(&error);
                    troubles += 1;
                    let pause = TROUBLE.delay(troubles, random);
                    tokio::select! {
                        () = stopping.cancelled() => {}
                        () = tokio::time::sleep(pause) => {}
                        never = let_go_in_time(&self.held) => match never {},
                    }
                    true
                }
            };
            if !may_claim {
                may_claim = self.wait(look_at, is_full, &stopping).await;
            }
        }
        self.stop().await;
    }

    /// Whether the next rows can be claimed while those that have ended are finished: many have, no other row waits for one of
    /// them, and the last time it went well.
    fn can_do_both(&self) -> bool {
        self.finished.len() >= MANY
            && !self.finished.iter().any(Finished::makes_way)
            && self.one_line_until.is_none_or(|until| until <= Instant::now())
    }

    /// Says what has ended, and claims what there is room for if that is wanted; at the same time if much has ended. Who cannot
    /// say what has ended does not go on claiming.
    async fn finish_and_claim(&mut self, may_claim: bool) -> (Result<()>, Result<Option<Found>>) {
        if !may_claim || !self.can_do_both() {
            let said = self.finish().await;
            if said.is_err() || !may_claim {
                return (said, Ok(None));
            }
            return (said, self.claim().await.map(Some));
        }
        let finished = self.sort_finished();
        let plan = self.plan_claim();
        let Self {
            sf,
            line,
            second_line,
            holder,
            held,
            ..
        } = self;
        let meanwhile = Meanwhile::new(held, self.pace.lease);
        let saying = finished.say(second_line, sf.clock().ahead(), meanwhile);
        let claiming = async {
            match &plan {
                Some(plan) => Some(plan.ask(line, sf, holder, meanwhile).await),
                None => None,
            }
        };
        let (said, claims) = tokio::join!(saying, claiming);
        let said = self.has_said(finished, said);
        if said.is_err() {
            self.one_line_until = Some(Instant::now() + WITHOUT_SECOND_LINE);
        }
        let found = match plan.zip(claims) {
            Some((plan, claims)) => self.take_claims(plan, claims).await,
            None => Ok(Found::no_room()),
        };
        (said, found.map(Some))
    }

    /// Waits for something to happen, and says whether to claim then.
    async fn wait(&mut self, look_at: Instant, is_full: bool, stopping: &CancellationToken) -> bool {
        let impatient_at = self.lanes.values().filter_map(|lane| lane.impatient_at()).min();
        let until = [self.next_renewal(), impatient_at]
            .into_iter()
            .flatten()
            .fold(look_at, Instant::min);
        if self.held.is_empty() && self.finished.is_empty() {
            self.second_line.close();
        }
        let sf = self.sf.clone();
        let hears = !self.pace.is_fixed;
        let may_claim = tokio::select! {
            () = stopping.cancelled() => false,
            () = tokio::time::sleep_until(until.into()) => Instant::now() >= look_at,
            () = sf.wake().here.notified(), if hears => true,
            () = self.line.woken(), if hears => true,
            Some(ended) = self.ended.recv() => {
                self.note(ended);
                if is_full {
                    self.linger().await;
                }
                false
            }
        };
        self.note_all();
        let has_ended = !self.finished.is_empty();
        let makes_way = self.finished.iter().any(Finished::makes_way);
        may_claim || (has_ended && (is_full || makes_way) && hears)
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

    pub(super) fn hold(&mut self, claimed: &Arc<Claimed>, work: &dyn Work<Db>, asked_at: Instant) -> CancellationToken {
        let options = *work.options();
        let held = Held::new(claimed.clone(), options, self.lease_of(&options), asked_at);
        let lost = held.lost.clone();
        *self.in_flight.entry(claimed.lease.kind.clone()).or_default() += 1;
        self.held.insert(claimed.lease.clone(), held);
        lost
    }

    /// Takes note of all work that has ended.
    fn note_all(&mut self) {
        while let Ok(ended) = self.ended.try_recv() {
            self.note(ended);
        }
    }

    /// Takes note of work that has ended.
    fn note(&mut self, (lease, ended): (Lease, Ended)) {
        if let Some(held) = self.let_out(&lease) {
            self.finished.push(Finished::new(held, ended));
        }
    }

    /// Holds a row no longer.
    pub(super) fn let_out(&mut self, lease: &Lease) -> Option<Held> {
        let held = self.held.remove(lease)?;
        if let Some(in_flight) = self.in_flight.get_mut(&lease.kind) {
            *in_flight = in_flight.saturating_sub(1);
        }
        Some(held)
    }

    /// Lets what is under way end, and gives the rest back.
    async fn stop(&mut self) {
        let until = Instant::now() + STOP_PATIENCE;
        self.give_back(|_| true);
        loop {
            self.note_all();
            let said = async {
                self.renew().await?;
                self.finish().await
            };
            let said = said.await;
            let mut next = self.next_renewal().map_or(until, |renewal| renewal.min(until));
            if let Err(error) = said {
                self.sf.dispatching().fails(&error);
                next = next.min(Instant::now() + TROUBLE.delay(1, random));
            }
            if (self.held.is_empty() && self.finished.is_empty()) || Instant::now() >= until {
                break;
            }
            tokio::select! {
                Some(ended) = self.ended.recv() => self.note(ended),
                () = tokio::time::sleep_until(next.into()) => {}
            }
        }
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
            if found.rows.is_empty() && !found.has_more && self.freed.is_empty() {
                return Ok(count);
            }
            for row in found.rows {
                let Some(work) = self.works.get(&row.lease.kind).cloned() else {
                    unreachable!("only rows of known kinds are claimed");
                };
                let claimed = Arc::new(row);
                let lost = self.hold(&claimed, &*work, asked_at);
                let lease = claimed.lease.clone();
                let ended = run(work, self.sf.clone(), claimed, lost, asked_at).await;
                self.note((lease, ended));
                count += 1;
            }
            self.finish().await?;
        }
    }

    async fn see_kinds(&mut self) -> Result<()> {
        let mut kinds: Vec<_> = self.works.keys().cloned().collect();
        kinds.sort_unstable();
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
        let meanwhile = Meanwhile::new(&self.held, self.pace.lease);
        self.line.ask(statement, meanwhile, ask).await
    }
}

/// Runs work to its end, or until its lease is lost. A panic is a failure like any other.
pub(super) async fn run<Db: Database>(
    work: Arc<dyn Work<Db>>,
    sf: Steadfast<Db>,
    claimed: Arc<Claimed>,
    lost: CancellationToken,
    asked_at: Instant,
) -> Ended {
    if lost.is_cancelled() {
        return Ended::Lost;
    }
    let id = WorkId {
        item: claimed.lease.item,
        kind: &claimed.lease.kind,
        attempt: claimed.attempt,
    };
    if claimed.attempt == 1 {
        telemetry::delivery_starts(&claimed.lease.kind, claimed.due_for + asked_at.elapsed());
    }
    let span = telemetry::work_span(&claimed);
    let working = async {
        sf.passes(WorkPoint::AfterClaim, &id);
        let ended = work.run(sf.clone(), claimed.clone(), lost.clone()).await;
        sf.passes(WorkPoint::BeforeFinish, &id);
        ended
    };
    let working = AssertUnwindSafe(tracing::Instrument::instrument(working, span)).catch_unwind();
    tokio::select! {
        () = lost.cancelled() => Ended::Lost,
        ended = working => ended.unwrap_or_else(|panic| {
            #[cfg(feature = "testing")]
            let panic = crate::testing::crash_on(panic);
            telemetry::panicked(panic.as_ref());
            Ended::Failed(Failure::panicked())
        }),
    }
}

/// Who holds the leases of this engine, for people.
fn holder<Db: Database>(sf: &Steadfast<Db>) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let id = sf.id().get(..8).unwrap_or_default();
    format!(
        "{}/{}/{id}",
        if host.is_empty() { "host" } else { host },
        std::process::id()
    )
}
