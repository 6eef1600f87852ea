//! The engine of leased rows: whatever is to be done later, by whoever is there, at least once and never by two who both
//! count.
//!
//! A row is claimed, worked on and finished. To claim it is to get a [`Lease`] on it for a while; a lease is renewed for as
//! long as the work lasts, and found by everybody once it has expired. What is said about a row counts only while the lease
//! is held, which every statement compares: who was paused, cut off or believed dead changes nothing.
//!
//! What a row means is somebody else's: [`Work`] runs it. Deliveries of messages are the first kind of work
//! ([`outbox`](crate::outbox)). [`engine`] is the loop; it asks [`claim`] for rows over its [`line`], [`share`]s its hands among them, lets them through [`lane`]s, [`renew`]s what it holds, and [`finish`]es
//! what has ended; [`wake`] tells it when there may be something to do.

mod cancel;
mod claim;
mod engine;
mod finish;
mod health;
mod lane;
mod line;
mod point;
mod renew;
mod share;
pub(crate) mod wake;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) use cancel::Cancel;
pub(crate) use engine::{Engine, Pace, TROUBLE};
pub(crate) use finish::{BACK_MAX, failure_row};
pub(crate) use health::Health;
pub use point::{WorkId, WorkPoint};
pub(crate) use share::Turns;

use crate::failure::Failure;
use crate::lease::Lease;
use crate::outbox::Message;
use crate::retry::RetryPolicy;
use crate::steadfast::Steadfast;
use crate::store::Database;

/// How long a lease lasts without being renewed, unless the work says otherwise. It is renewed three times in this time, so
/// that one renewal may fail.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A kind that a node knows, and the queue that its rows stand in.
#[derive(Clone, Debug)]
pub(crate) struct KnownKind {
    pub(crate) name: Arc<str>,
    pub(crate) queue: Option<Arc<str>>,
}

/// The kinds of some work.
pub(crate) fn known_kinds<Db: Database>(work: &dyn Work<Db>) -> impl Iterator<Item = KnownKind> {
    work.kinds().iter().map(|name| KnownKind {
        name: name.clone(),
        queue: work.place(name).queue.map(|queue| queue.name),
    })
}

/// What the chain of a row begins with that is none: rows of a key, of which a queue may have a number at once, in any order.
pub(crate) const KEY: char = '/';

/// Whether a chain is a key with a limit.
pub(crate) fn is_key(chain: &str) -> bool {
    chain.starts_with(KEY)
}

/// What stands before the name of a job where kinds of rows are told apart. Names have no colon.
pub(crate) const JOBS: &str = "job:";

/// What a row of this kind is called in the history when it is done.
pub(crate) fn done_word(kind: &str) -> &'static str {
    if kind.starts_with(JOBS) {
        "completed"
    } else {
        "delivered"
    }
}

/// What is done with rows of some kinds.
pub(crate) trait Work<Db: Database>: Send + Sync + 'static {
    /// The kinds of rows that this is for.
    fn kinds(&self) -> &[Arc<str>];

    /// How it is to be done.
    fn options(&self) -> &WorkOptions;

    /// Where rows of this kind stand in line.
    fn place(&self, _kind: &str) -> Place {
        Place::default()
    }

    /// How long it rests: whoever it depends on is away, and rows are better left where they are until then.
    fn rests_for(&self) -> Option<Duration> {
        None
    }

    /// How many rows of each kind it can take now, if that is fewer than there are hands for: it is only found out whether it can go on.
    fn takes_at_most(&self) -> Option<u32> {
        None
    }

    /// Does it with rows of one kind, as many at once as it [wants](WorkOptions::batch), and says of each how it ended, in their
    /// order. Once all of their leases are lost, it is dropped: whatever it still did would count for nothing.
    fn run(self: Arc<Self>, sf: Steadfast<Db>, rows: Arc<[Row]>) -> Pin<Box<dyn Future<Output = Vec<Ended>> + Send>>;
}

/// Where the rows of a kind stand in line.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The queue whose hands and limits they share with the rows of other works; `None`: they have the hands of their work.
    pub(crate) queue: Option<Queue>,
    /// How often they have their turn, against those of the other kinds that share their hands.
    pub(crate) weight: u32,
    /// Whether there are hardly ever any.
    pub(crate) is_rare: bool,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            queue: None,
            weight: 1,
            is_rare: false,
        }
    }
}

/// A queue, as far as the engine knows it. Its limits stand in the database, and are the same for all processes.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) name: Arc<str>,
    /// How many hands it has in this process.
    pub(crate) concurrency: u32,
}

/// How work is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkOptions {
    pub(crate) retry: RetryPolicy,
    /// How long its lease lasts; `None`: as long as the engine's.
    pub(crate) lease: Option<Duration>,
    /// How many hands work at once in this process, on rows of all its kinds together.
    pub(crate) concurrency: u32,
    /// How many rows a hand takes at once at the most.
    pub(crate) batch: u32,
    /// Whether a row that has died makes room for those behind it.
    pub(crate) dead_make_room: bool,
}

/// Rows of one kind that the engine has room for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) kind: Arc<str>,
    /// The queue that they stand in.
    pub(crate) queue: Option<Arc<str>>,
    /// How many.
    pub(crate) room: u32,
    /// Which of them come first, if their queue may begin fewer.
    pub(crate) turns: Turns,
    /// How often a row may be claimed at the most.
    pub(crate) attempts_max: u32,
    pub(crate) lease: Duration,
    /// Whether a row that has died makes room for those behind it.
    pub(crate) dead_make_room: bool,
}

/// What a claim asks for.
#[derive(Debug)]
pub(crate) struct Claim<'c> {
    pub(crate) wanted: &'c [Wanted],
    /// Chains of which a row has ended: their next one may be worked on at once.
    pub(crate) freed: &'c [Arc<str>],
    /// Whether a row may be among them whose lease has expired more than once: it may be what kills processes, and is
    /// worked on while no other such row is.
    pub(crate) takes_suspect: bool,
    /// The token of every lease that is given.
    pub(crate) token: i64,
    /// Who claims, for people.
    pub(crate) holder: &'c str,
}

/// What a claim came to.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub(crate) rows: Vec<Claimed>,
    /// Before the leases began, if the claim had to wait for something else than the database; `None`: before it was asked for.
    pub(crate) from: Option<Instant>,
    /// Rows that were out of attempts when their lease expired, and are dead now.
    pub(crate) buried: Vec<Buried>,
    /// The kinds of which as many were due as were asked for: there may be more.
    pub(crate) full: Vec<Arc<str>>,
    /// How many of the rows that were looked at had others ahead of them.
    pub(crate) waiting: usize,
    /// How long until the next row is due, if any is known.
    pub(crate) next_in: Option<Duration>,
    /// The queues that are at their limits: no more of their rows may begin for now.
    pub(crate) held_up: Vec<Arc<str>>,
    /// The keys that are, of those whose rows were looked at.
    pub(crate) full_keys: Vec<Arc<str>>,
}

impl Claims {
    /// What another claim of the same rows came to, beside this one.
    pub(crate) fn add(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.buried.extend(other.buried);
        self.full.extend(other.full);
        self.waiting += other.waiting;
        self.next_in = [self.next_in, other.next_in].into_iter().flatten().min();
        self.held_up.extend(other.held_up);
        self.full_keys.extend(other.full_keys);
    }
}

/// How many rows are looked at when those are put off that have others ahead of them.
pub(crate) const PARKED_AT_ONCE: i64 = 5_000;

/// How often a lease may expire before its row is worked on while no other such row is; less often if it has fewer attempts,
/// so that the last one is always of this kind.
pub(crate) const SUSPECT_ATTEMPTS: i32 = 2;

/// A row that has just died.
#[derive(Debug)]
pub(crate) struct Buried {
    pub(crate) lease: Lease,
    pub(crate) chain: Option<Arc<str>>,
}

/// A row that is ours for now.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) lease: Lease,
    /// Which attempt this is, from 1.
    pub(crate) attempt: u32,
    /// How long ago the first one began.
    pub(crate) elapsed: Duration,
    /// How long ago it was due, when it was claimed.
    pub(crate) due_for: Duration,
    pub(crate) chain: Option<Arc<str>>,
    /// Whether its lease has expired so often that no other such row is worked on beside it.
    pub(crate) is_suspect: bool,
    /// Whether somebody wants it no more.
    pub(crate) cancel: Cancel,
    pub(crate) message: Arc<Message>,
}

/// A row that is worked on.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) claimed: Arc<Claimed>,
    /// When the database was asked for it.
    pub(crate) asked_at: Instant,
    /// Cancelled when somebody else may have it.
    pub(crate) lost: CancellationToken,
}

impl Row {
    pub(crate) fn id(&self) -> WorkId<'_> {
        WorkId {
            item: self.claimed.lease.item,
            kind: &self.claimed.lease.kind,
            attempt: self.claimed.attempt,
        }
    }
}

/// How work ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It is done, and the row can go.
    Done(Option<String>),
    /// It is done, and the row went with the commit of what was done.
    Settled,
    /// Nobody wants it any more, for this reason.
    Skipped(&'static str),
    /// It is not done.
    Failed(Failure),
    /// It was done in a transaction that could not take the row along, and is undone: the row is somebody else's, or cancelled.
    Unsettled,
    /// Somebody else has the row.
    Lost,
    /// It goes back as if it had not been claimed: nobody has begun it, or the process is about to stop.
    GivenBack,
}

/// A row that has come to its end.
#[derive(Debug)]
pub(crate) struct Done<'d> {
    pub(crate) lease: &'d Lease,
    /// `delivered` or `completed`, or `skipped`.
    pub(crate) state: &'static str,
    pub(crate) detail: Option<&'d str>,
    /// Whether somebody else was just writing it when this was said before.
    pub(crate) was_busy: bool,
    /// Whether it counts only if nobody has cancelled it.
    pub(crate) yields: bool,
}

/// What renewing leases came to.
#[derive(Debug)]
pub(crate) struct Renewed {
    /// Before the database was asked, and after whatever had to be waited for: they last from a little later.
    pub(crate) from: Instant,
    pub(crate) untouched: Untouched,
    /// Those that somebody wants no more.
    pub(crate) cancelled: Vec<(Uuid, String)>,
}

/// What putting rows back came to.
#[derive(Debug, Default)]
pub(crate) struct PutBack {
    pub(crate) untouched: Untouched,
    /// Those that nobody gets any more, because they were cancelled.
    pub(crate) cancelled: Vec<(Uuid, String)>,
}

/// Leased rows that a statement has left as they are.
#[derive(Debug, Default)]
pub(crate) struct Untouched {
    /// They are somebody else's by now, or gone.
    pub(crate) lost: Vec<(Uuid, String)>,
    /// Somebody is just writing them, and nobody waits for him: a handler that is about to commit, for example. They are as they
    /// were, as far as anybody can see.
    pub(crate) busy: Vec<(Uuid, String)>,
}

/// A row that goes back, to be claimed again or to be looked at by people; unless it was cancelled: then this is its end.
#[derive(Debug)]
pub(crate) struct Back<'b> {
    pub(crate) lease: &'b Lease,
    /// When it is due again; zero: at once, as it has been all the time; `None`: it is dead.
    pub(crate) after: Option<Duration>,
    /// Whether the attempt counts as none.
    pub(crate) gives_attempt_back: bool,
    /// The chain whose rows wait for it no longer.
    pub(crate) leaves_chain: Option<&'b str>,
    /// The key that has room for one more.
    pub(crate) key: Option<&'b str>,
    /// What is written into its history of errors.
    pub(crate) failure: Option<FailureRow>,
    /// Why it is cancelled by whoever worked on it. Somebody else may have cancelled it all the same.
    pub(crate) cancelled: Option<&'b str>,
}

/// An attempt that failed, as it is kept.
#[derive(Clone, Debug)]
pub(crate) struct FailureRow {
    pub(crate) attempt: i32,
    pub(crate) failure: String,
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) fingerprint: String,
}
