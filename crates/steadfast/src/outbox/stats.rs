//! How the outbox is doing: what waits, for how long, how fast it comes and goes, and how large it is.
//!
//! Looking costs little, however much there is. Counts stop at [`COUNT_MAX`] and then say "at least"; how fast rows come and
//! go is counted over the last hour, or over the last minutes if that would be too many.

use std::time::Duration;

use uuid::Uuid;

use super::count::Count;
use super::forecast::Forecast;
use super::targets::Paused;
use crate::clock::{Offset, Timestamp};
use crate::error::Result;
use crate::job::queue_of;
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};

/// How far is counted: a hundred thousand entries of an index are read in some ten milliseconds.
pub(crate) const COUNT_MAX: i64 = 100_000;

/// How many rows are read themselves, of those that are visible and of those that are not: only they say whether they are leased or
/// wait in order. They are claimed in about this order, so those that are leased are among the first.
pub(crate) const NEAR_MAX: i64 = 10_000;

/// Among how many the oldest is looked for. They are read in about this order anyway.
pub(crate) const OLDEST_MAX: i64 = 1_000;

/// From how many messages their size is taken.
pub(crate) const SAMPLE_MAX: i64 = 1_000;

/// How many kinds are shown. A service has some tens.
pub(crate) const KINDS_MAX: i64 = 1_000;

/// Over which times it is counted what comes and goes: the first in which there is not too much to count.
const WINDOWS: [Duration; 3] = [
    Duration::from_secs(60 * 60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(15),
];

/// A kind that no node has known for so long counts as unknown: a node says it every minute.
pub(crate) const UNKNOWN_AFTER: Duration = Duration::from_secs(5 * 60);

/// How the outbox is doing: [`Steadfast::outbox_stats`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OutboxStats {
    /// Each kind of rows: a target, or `target@2` for version 2 of an event's type.
    pub kinds: Vec<KindStats>,
    /// How fast rows come and go.
    pub flow: Flow,
    /// How large the tables are, as far as the database knows.
    pub tables: Vec<TableSize>,
    /// How long messages are kept.
    pub retention: Duration,
    /// How old the oldest message is that nobody waits for any more.
    pub oldest_finished: Option<Duration>,
}

/// How one kind of rows is doing.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct KindStats {
    /// The target, or `target@2` for version 2 of an event's type.
    pub kind: String,
    /// Rows that nobody works on: those that are due, that wait in order and that are due later.
    pub pending: Count,
    /// Rows that could be worked on now.
    pub due: Count,
    /// Rows that were put off, since an earlier one of their ordering key is still there.
    pub waiting: Count,
    /// Rows that somebody works on.
    pub leased: Count,
    /// Rows that were given up: dead letters.
    pub dead: Count,
    /// For how long the oldest row has been due that is neither finished nor dead.
    pub oldest: Option<Duration>,
    /// The same for those that nobody works on.
    pub lag: Option<Duration>,
    /// How many rows leave the queue in an hour.
    pub finished_per_hour: u64,
    /// How long ago a node said that it knows this kind.
    pub seen: Option<Duration>,
    /// Who has paused it or its queue and why, if somebody has.
    pub paused: Option<Paused>,
    /// Whether messages are still written for it.
    pub is_target: bool,
    /// The queue that these jobs stand in, if it is known.
    pub queue: Option<String>,
}

impl KindStats {
    /// Whether a node knows this kind, and so works on it.
    pub fn is_known(&self) -> bool {
        self.seen.is_some_and(|seen| seen < UNKNOWN_AFTER)
    }

    /// Whether there is anything to tell: it has rows, or somebody writes some or works on them.
    fn matters(&self) -> bool {
        self.is_target
            || self.is_known()
            || self.paused.is_some()
            || self.pending.number + self.leased.number + self.dead.number > 0
    }
}

/// How fast messages and rows come and go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flow {
    /// The last time over which it was counted.
    pub window: Duration,
    /// How many messages are published in an hour.
    pub messages_per_hour: u64,
    /// How many rows enter the queue in an hour: one for each target of a message, but for those that died at once.
    pub entered_per_hour: u64,
    /// How many rows leave it in an hour.
    pub finished_per_hour: u64,
    /// How many bytes the payload of a message has, on the average of the last ones.
    pub payload_bytes: u64,
}

/// How large a table is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableSize {
    /// Its short name; `(file)` for the whole file of SQLite.
    pub name: String,
    /// About how many rows it has, where the database knows.
    pub rows: Option<u64>,
    /// How many bytes it takes with its indexes, where the database knows.
    pub bytes: Option<u64>,
}

impl OutboxStats {
    /// All rows that are neither finished nor dead.
    pub fn backlog(&self) -> Count {
        let counts = self.kinds.iter().map(|kind| kind.pending.plus(kind.leased));
        counts.fold(Count::default(), Count::plus)
    }

    /// All dead letters.
    pub fn dead(&self) -> Count {
        self.kinds
            .iter()
            .map(|kind| kind.dead)
            .fold(Count::default(), Count::plus)
    }

    /// What comes of it if it goes on like this.
    pub fn forecast(&self) -> Forecast {
        Forecast::of(self)
    }
}

impl<Db: Database> Steadfast<Db> {
    /// How the outbox is doing: what waits and for how long, how fast it comes and goes, how large it is, and what comes of
    /// it. It is cheap, however much there is: counts stop at a hundred thousand and then say so.
    ///
    /// ```
    /// # use steadfast::Steadfast;
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let stats = sf.outbox_stats().await?;
    /// for kind in &stats.kinds {
    ///     println!("{}: {} pending, {} dead", kind.kind, kind.pending, kind.dead);
    /// }
    /// assert_eq!(stats.forecast().to_string(), "nothing waits, and nothing comes");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn outbox_stats(&self) -> Result<OutboxStats> {
        read::<Db>(self.store(), self.clock().ahead(), self.message_retention()).await
    }
}

/// Looks at everything.
pub(crate) async fn read<Db: Database>(store: &Db::Store, offset: Offset, retention: Duration) -> Result<OutboxStats> {
    let kinds = store.kind_counts(offset).await?;
    let mut kinds: Vec<_> = kinds
        .into_iter()
        .map(KindStats::from)
        .filter(KindStats::matters)
        .collect();
    let flow = flow::<Db>(store, offset, &mut kinds).await?;
    let SizeRow {
        tables,
        oldest_finished,
    } = store.outbox_size(offset).await?;
    Ok(OutboxStats {
        kinds,
        flow,
        tables,
        retention,
        oldest_finished: oldest_finished.map(duration),
    })
}

/// Counts what comes and goes, over the longest time in which that can be counted.
async fn flow<Db: Database>(store: &Db::Store, offset: Offset, kinds: &mut [KindStats]) -> Result<Flow> {
    let now = store.now().await?;
    let mut flow = Flow::default();
    for window in WINDOWS {
        let first = first_id_since(now.before(window));
        let finished = store.finished_since(offset.of(now).before(window), first).await?;
        let published = store.published_since(first).await?;
        let count: i64 = finished.iter().map(|finished| finished.count).sum();
        let fresh: i64 = finished.iter().map(|finished| finished.fresh).sum();
        let per_hour = |count: i64| count.unsigned_abs() * WINDOWS[0].as_secs() / window.as_secs();
        flow = Flow {
            window,
            messages_per_hour: per_hour(published.messages),
            entered_per_hour: per_hour(published.rows + fresh),
            finished_per_hour: per_hour(count),
            payload_bytes: published.payload_bytes.unwrap_or_default().unsigned_abs(),
        };
        for kind in &mut *kinds {
            let finished = finished.iter().find(|finished| finished.kind == kind.kind);
            kind.finished_per_hour = per_hour(finished.map_or(0, |finished| finished.count));
        }
        if [count, published.messages, published.rows]
            .iter()
            .all(|count| *count <= COUNT_MAX)
        {
            break;
        }
    }
    Ok(flow)
}

/// The smallest id that a message has which was published at that time or later. Ids carry the clock of who publishes, which
/// is good enough for a rate.
fn first_id_since(at: Timestamp) -> Uuid {
    let millis = u128::try_from(at.0 / 1_000).unwrap_or_default();
    Uuid::from_u128(millis << 80)
}

fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// One kind, as the database counts it. Times are microseconds ago.
#[derive(Debug)]
pub(crate) struct CountedKind {
    pub(crate) kind: String,
    /// Rows that could be claimed, and those that are leased; an expired lease is none.
    pub(crate) visible: i64,
    /// Of these, those that are leased.
    pub(crate) leased: i64,
    /// Rows that could be claimed later.
    pub(crate) later: i64,
    /// Of these, those that wait in order.
    pub(crate) waiting: i64,
    pub(crate) dead: i64,
    pub(crate) oldest: Option<i64>,
    pub(crate) lag: Option<i64>,
    pub(crate) seen: Option<i64>,
    pub(crate) paused_at: Option<i64>,
    pub(crate) paused_by: Option<String>,
    pub(crate) paused_reason: Option<String>,
    pub(crate) is_target: bool,
    /// That of the nodes that know it.
    pub(crate) queue: Option<String>,
}

impl From<CountedKind> for KindStats {
    fn from(row: CountedKind) -> Self {
        let (visible, later) = (Count::up_to(COUNT_MAX, row.visible), Count::up_to(COUNT_MAX, row.later));
        // Those beyond the first were not looked at.
        let part = |counted: i64, of: i64| Count {
            number: counted.unsigned_abs(),
            is_capped: of > NEAR_MAX,
        };
        let (leased, waiting) = (part(row.leased, row.visible), part(row.waiting, row.later));
        let due = Count {
            number: visible.number.saturating_sub(leased.number),
            is_capped: visible.is_capped,
        };
        Self {
            pending: due.plus(later),
            due,
            waiting,
            leased,
            dead: Count::up_to(COUNT_MAX, row.dead),
            oldest: row.oldest.map(duration),
            lag: row.lag.map(duration),
            finished_per_hour: 0,
            seen: row.seen.map(duration),
            paused: row.paused_at.map(|at| Paused {
                at: Timestamp(at).into(),
                by: row.paused_by.unwrap_or_default(),
                reason: row.paused_reason.unwrap_or_default(),
            }),
            is_target: row.is_target,
            queue: queue_of(&row.kind, row.queue.as_deref()).map(str::to_owned),
            kind: row.kind,
        }
    }
}

/// Rows of one kind that have left the queue.
#[derive(Debug)]
pub(crate) struct FinishedRow {
    pub(crate) kind: String,
    pub(crate) count: i64,
    /// Of these, those whose message was published meanwhile too.
    pub(crate) fresh: i64,
}

/// Messages that were published, and what is left of their rows.
#[derive(Debug)]
pub(crate) struct PublishedRow {
    pub(crate) messages: i64,
    pub(crate) rows: i64,
    pub(crate) payload_bytes: Option<i64>,
}

/// How large the tables are.
#[derive(Debug)]
pub(crate) struct SizeRow {
    pub(crate) tables: Vec<TableSize>,
    pub(crate) oldest_finished: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(visible: i64, later: i64, leased: i64) -> CountedKind {
        CountedKind {
            kind: "k".to_owned(),
            visible,
            later,
            leased,
            waiting: 0,
            dead: 0,
            oldest: None,
            lag: None,
            seen: None,
            paused_at: None,
            paused_by: None,
            paused_reason: None,
            is_target: false,
            queue: None,
        }
    }

    #[test]
    fn a_count_that_stopped_says_at_least() {
        let kind = KindStats::from(row(3, 5, 2));
        let said = [kind.due, kind.pending, kind.leased].map(|count| count.to_string());
        assert_eq!(said, ["1", "6", "2"]);
        let kind = KindStats::from(row(COUNT_MAX + 1, 0, 0));
        assert_eq!(kind.due.to_string(), "at least 100000");
        assert!(kind.pending.is_capped);
        let kind = KindStats::from(row(NEAR_MAX + 1, 0, 7));
        assert_eq!(kind.leased.to_string(), "at least 7", "the rest was not looked at");
        assert_eq!(kind.pending.to_string(), "9994");
    }

    #[test]
    fn the_first_id_of_a_time_comes_before_every_later_one() {
        let at = Timestamp(1_767_225_600_123_000);
        let id = first_id_since(at).to_string();
        assert!(id.starts_with("019b76da-a87b-0000"), "{id}");
        let now = Uuid::now_v7();
        assert!(first_id_since(Timestamp(0)) < now && now.to_string() > id);
    }
}
