//! Queues: jobs that share hands in each process, and limits over all of them.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::ReadDuration;
use crate::error::{Code, Error, Result};
use crate::outbox::name;
use crate::queue::Queue;
use crate::registry::{Declared, Registry};
use crate::steadfast::Steadfast;
use crate::store::{Database, QueueRow};

/// How many jobs of a queue run at once in a process, unless it says otherwise.
const CONCURRENCY: u32 = 32;

/// The longest time that a rate counts in.
const RATE_EVERY_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// How soon a job has its turn, against others that want the same hands.
///
/// While there is enough to do of each, of 21 hands that become free 16 take a job of high priority, 4 a normal one and 1 a low one. So
/// what is urgent hardly waits, and nothing waits for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Before others.
    High,
    /// As most are.
    #[default]
    Normal,
    /// When there is time.
    Low,
}

impl Priority {
    /// All of them, the highest first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The word for it, in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }

    /// Reads what [`as_str`](Self::as_str) wrote.
    pub(crate) fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|priority| priority.as_str() == word)
    }

    pub(super) fn weight(self) -> u32 {
        match self {
            Self::High => 16,
            Self::Normal => 4,
            Self::Low => 1,
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the jobs of a queue are run: [`Steadfast::queue`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueOptions {
    concurrency: Option<u32>,
    limit: Option<u32>,
    limit_per_key: Option<u32>,
    rate: Option<(u32, Duration)>,
}

impl QueueOptions {
    /// As a queue is that says nothing: 32 at once in each process, and no limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many of its jobs run at once in this process; 32 by default.
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// How many of its jobs run at once on all nodes together.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// How many of its jobs with the same [limit key](crate::Enqueue::limit_key) run at once on all nodes together. The keys take turns,
    /// however many jobs each of them has.
    pub fn limit_per_key(mut self, limit: u32) -> Self {
        self.limit_per_key = Some(limit);
        self
    }

    /// How many of its jobs begin within a time, on all nodes together: `.rate(100, "1m")`. As many may begin at once, and then one for
    /// each that the time has room for. Every attempt counts.
    ///
    /// # Panics
    /// If the text is no duration.
    pub fn rate(mut self, count: u32, every: impl ReadDuration) -> Self {
        self.rate = Some((count, crate::command::attempt::read(every)));
        self
    }

    /// Fails with what cannot be meant.
    fn check(&self) -> Result<(), String> {
        let numbers = [
            ("concurrency", self.concurrency),
            ("limit", self.limit),
            ("limit_per_key", self.limit_per_key),
            ("rate", self.rate.map(|(count, _)| count)),
        ];
        for (what, number) in numbers {
            if let Some(number) = number.filter(|number| *number == 0 || i32::try_from(*number).is_err()) {
                return Err(format!(
                    "{what} is {number}, and no job would ever run, or any number; write 1 to {}, or pause the queue",
                    i32::MAX
                ));
            }
        }
        match self.rate {
            Some((_, every)) if every.is_zero() || every > RATE_EVERY_MAX => Err(format!(
                "rate counts within {every:?}; write more than nothing, and a year at the most"
            )),
            _ => Ok(()),
        }
    }
}

/// The queues that this process has declared.
pub(crate) type Queues = Registry<DeclaredQueue>;

pub(crate) struct DeclaredQueue {
    name: Arc<str>,
    options: QueueOptions,
    location: &'static Location<'static>,
}

impl Declared for DeclaredQueue {
    const PLURAL: &'static str = "queues";

    fn name(&self) -> &str {
        &self.name
    }

    fn location(&self) -> &'static Location<'static> {
        self.location
    }
}

impl<Db: Database> Steadfast<Db> {
    /// Says how the jobs of a queue are run: those whose type [names it](crate::Job::QUEUE), and those that were
    /// [put there](crate::Enqueue::queue). This process works on both from then on, as far as it has handlers for them.
    ///
    /// The concurrency is this process's. Limits and rates are written into the database by whoever declares them, and hold for all
    /// nodes; the one that was declared last counts.
    ///
    /// ```
    /// # use steadfast::{QueueOptions, Steadfast};
    /// # use steadfast::sqlx::Sqlite;
    /// # fn example(sf: &Steadfast<Sqlite>) -> steadfast::Result<()> {
    /// // 8 at once here, 20 on all nodes, 2 of each tenant, and 100 beginnings a minute.
    /// sf.queue("mail", QueueOptions::new().concurrency(8).limit(20).limit_per_key(2).rate(100, "1m"))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// SF303 if the queue cannot be called that, or a number is 0.
    ///
    /// # Panics
    /// With SF305 if the queue is declared elsewhere in this program.
    #[track_caller]
    pub fn queue(&self, name: &str, options: QueueOptions) -> Result<()> {
        check_name(name)?;
        options.check().map_err(|rule| {
            Error::new(
                Code::ConfigurationInvalid,
                format!("the queue {name} cannot be run like this: {rule}"),
            )
        })?;
        self.queues().add(DeclaredQueue {
            name: name.into(),
            options,
            location: Location::caller(),
        });
        Ok(())
    }

    /// A queue, as the engine has to know it.
    pub(super) fn queue_of(&self, name: &str) -> Queue {
        let all = self.queues().all();
        let declared = all.iter().find(|queue| &*queue.name == name);
        Queue {
            name: declared.map_or_else(|| name.into(), |queue| queue.name.clone()),
            concurrency: declared
                .and_then(|queue| queue.options.concurrency)
                .unwrap_or(CONCURRENCY),
        }
    }

    /// The queues that this process has declared, as they are written down.
    pub(crate) fn queue_rows(&self) -> Vec<QueueRow> {
        let all = self.queues().all();
        let row = |queue: &Arc<DeclaredQueue>| QueueRow {
            name: queue.name.clone(),
            running_max: queue.options.limit,
            key_running_max: queue.options.limit_per_key,
            rate: queue.options.rate,
        };
        all.iter().map(row).collect()
    }
}

/// Fails unless a queue can be called that.
pub(super) fn check_name(name: &str) -> Result<()> {
    name::check(name).map_err(|rule| Error::new(Code::ConfigurationInvalid, format!("a queue cannot be called {rule}")))
}
