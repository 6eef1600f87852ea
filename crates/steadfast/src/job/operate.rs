//! Queues, for those who look after them: which there are, what stands in them, and how one is paused, resumed or drained.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

use crate::audit::AuditEntry;
use crate::clock::Timestamp;
use crate::error::{Code, Error, Result};
use crate::outbox::{Count, KindStats, Paused, SILENCE_MAX};
use crate::queue::JOBS;
use crate::steadfast::Steadfast;
use crate::store::jobs::{Jobs, QueueStateRow};
use crate::store::{Database, Store};
use crate::words;

/// How often it is looked whether a queue is drained.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A queue, as it stands.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ListedQueue {
    /// Its name.
    pub name: String,
    /// How many of its jobs run at once on all nodes together, if that is limited.
    pub limit: Option<u32>,
    /// The same for those of one [limit key](crate::Enqueue::limit_key).
    pub limit_per_key: Option<u32>,
    /// How many begin within a time, if that is limited.
    pub rate: Option<(u32, Duration)>,
    /// Who has paused it and why, if somebody has.
    pub paused: Option<Paused>,
    /// When a node that works on it last said so.
    pub seen_at: Option<SystemTime>,
    /// Whether that was lately: a node says it every minute.
    pub is_known: bool,
    /// Jobs that are due, and wait for hands or for room under a limit.
    pub available: Count,
    /// Jobs that are due later, for the first time or again.
    pub scheduled: Count,
    /// Jobs that somebody works on. One whose lease has expired is available.
    pub running: Count,
    /// Jobs that were given up.
    pub dead: Count,
}

impl ListedQueue {
    fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// Says how it was declared, and whether it is paused.
    fn declared(&mut self, row: &QueueStateRow) {
        let number = |number: Option<i64>| number.and_then(|number| u32::try_from(number).ok());
        let every = row.rate_every.and_then(|every| u64::try_from(every).ok());
        self.limit = number(row.running_max);
        self.limit_per_key = number(row.key_running_max);
        self.rate = number(row.rate_count).zip(every.map(Duration::from_micros));
        self.paused = Paused::of_queue(row);
    }

    /// Adds what is known of one of its kinds.
    fn add(&mut self, kind: &KindStats, now: Timestamp) {
        self.is_known |= kind.seen.is_some_and(|seen| seen < SILENCE_MAX);
        let seen_at = kind.seen.map(|seen| SystemTime::from(now.before(seen)));
        self.seen_at = self.seen_at.max(seen_at);
        let due = kind.due.plus(kind.waiting);
        self.available = self.available.plus(due);
        self.scheduled = self.scheduled.plus(kind.pending.without(due));
        self.running = self.running.plus(kind.leased);
        self.dead = self.dead.plus(kind.dead);
    }
}

impl<Db: Database> Steadfast<Db> {
    /// Every queue that was declared, that a node works on or that a job stands in, by name. It is cheap, however much there is: counts
    /// stop at a hundred thousand of each kind of jobs, and then say so.
    ///
    /// ```
    /// # use steadfast::{QueueOptions, Steadfast};
    /// # use steadfast::sqlx::Sqlite;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// sf.queue("mail", QueueOptions::new().limit(20))?;
    /// sf.declare().await?;
    /// for queue in sf.list_queues().await? {
    ///     println!("{}: {} available, {} running", queue.name, queue.available, queue.running);
    /// }
    /// sf.pause_queue("mail", "ann", "the mail server is down").await?;
    /// assert_eq!(sf.list_queues().await?[0].paused.as_ref().map(|paused| &*paused.by), Some("ann"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn list_queues(&self) -> Result<Vec<ListedQueue>> {
        let now = self.clock().at(self.store().now().await?);
        let mut queues = BTreeMap::<String, ListedQueue>::new();
        for row in self.ask("list queues").list_queues().await? {
            let queue = queues
                .entry(row.name.clone())
                .or_insert_with_key(|name| ListedQueue::named(name));
            queue.declared(&row);
        }
        let kinds = self.ask("count jobs").kind_counts(self.clock().ahead()).await?;
        for kind in kinds.into_iter().map(KindStats::from) {
            if let Some(name) = kind.queue.clone().filter(|_| kind.kind.starts_with(JOBS)) {
                let queue = queues.entry(name).or_insert_with_key(|name| ListedQueue::named(name));
                queue.add(&kind, now);
            }
        }
        Ok(queues.into_values().collect())
    }

    /// Begins no more jobs of a queue, on any node, until it is [resumed](Self::resume_queue). What runs ends; what is enqueued
    /// meanwhile waits.
    ///
    /// # Errors
    /// SF102 if there is no queue of this name.
    pub async fn pause_queue(&self, name: &str, operator: &str, reason: &str) -> Result<()> {
        self.set_queue_pause(name, Some((operator, reason)), "queue.pause", operator, reason)
            .await
    }

    /// Goes on with the jobs of a queue.
    ///
    /// # Errors
    /// As [`pause_queue`](Self::pause_queue).
    pub async fn resume_queue(&self, name: &str, operator: &str, reason: &str) -> Result<()> {
        self.set_queue_pause(name, None, "queue.resume", operator, reason)
            .await?;
        self.rows_were_committed();
        Ok(())
    }

    /// Pauses a queue, and waits until nothing of it runs any more, or until `watch` breaks off. It stays paused. `watch` is called about
    /// four times a second.
    ///
    /// A node that was just claiming when it was paused may still begin jobs that it has found: so nothing of it may run at two looks in
    /// a row.
    ///
    /// # Errors
    /// As [`pause_queue`](Self::pause_queue).
    pub async fn drain_queue(
        &self,
        name: &str,
        operator: &str,
        reason: &str,
        mut watch: impl FnMut(&ListedQueue) -> ControlFlow<()> + Send,
    ) -> Result<ListedQueue> {
        self.pause_queue(name, operator, reason).await?;
        let mut was_empty = false;
        loop {
            let queues = self.list_queues().await?;
            let found = queues.into_iter().find(|queue| queue.name == name);
            let queue = found.unwrap_or_else(|| ListedQueue::named(name));
            let is_empty = queue.running.number == 0;
            if (is_empty && was_empty) || watch(&queue).is_break() {
                return Ok(queue);
            }
            was_empty = is_empty;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn set_queue_pause(
        &self,
        name: &str,
        pause: Option<(&str, &str)>,
        action: &str,
        operator: &str,
        reason: &str,
    ) -> Result<()> {
        let queues = self.list_queues().await?;
        if !queues.iter().any(|queue| queue.name == name) {
            return Err(unknown_queue(name, &queues));
        }
        let entry = AuditEntry::new(operator, action, name).because(reason);
        let entry = &entry;
        let set = self.transact(async |tx| {
            let (store, conn, offset) = tx.parts("pause a queue");
            store.pause_queue(conn, name, pause, offset).await?;
            Ok(tx.audit(entry).await?)
        });
        set.await.map_err(Error::unwrapped)
    }
}

/// There is no queue of this name; perhaps there is one nearby.
fn unknown_queue(name: &str, queues: &[ListedQueue]) -> Error {
    let known: Vec<_> = queues.iter().map(|queue| &*queue.name).collect();
    let near = words::did_you_mean(name, &known);
    let help = match &*near {
        "" => "; `steadfast queues list` shows them",
        near => near,
    };
    Error::new(Code::InputInvalid, format!("there is no queue {name:?}{help}"))
}
