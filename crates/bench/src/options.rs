//! What can be asked for on the command line.
//!
//! `cargo xtask bench` compiles this file as well: it answers `--help` and refuses a wrong word before anything is
//! built, and sees whether a server is needed. So there is nothing but `clap` in here.

use std::path::PathBuf;
use std::time::Duration;

/// What is measured
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    Command(CommandOptions),
    Retry(RetryOptions),
    Service(ServiceOptions),
    Breaker(BreakerOptions),
    Outbox(OutboxOptions),
    Inbox(InboxOptions),
    Jobs(JobsOptions),
}

impl Bench {
    /// What every bench can be told.
    pub(crate) fn options(&self) -> &Options {
        match self {
            Self::Command(command) => &command.series.options,
            Self::Retry(retry) => &retry.series.options,
            Self::Service(service) => &service.options,
            Self::Breaker(breaker) => &breaker.options,
            Self::Outbox(outbox) => &outbox.series.options,
            Self::Inbox(inbox) => &inbox.series.options,
            Self::Jobs(jobs) => &jobs.series.options,
        }
    }

    /// On which databases it is measured; `None` for what needs none.
    pub(crate) fn databases(&self) -> Option<&DatabaseOptions> {
        match self {
            Self::Command(command) => Some(&command.databases),
            Self::Outbox(outbox) => Some(&outbox.databases),
            Self::Inbox(inbox) => Some(&inbox.databases),
            Self::Jobs(jobs) => Some(&jobs.databases),
            Self::Retry(_) | Self::Service(_) | Self::Breaker(_) => None,
        }
    }
}

/// What a command costs, as ratios to a bare transaction and to a hand-written key table
#[derive(clap::Args)]
pub(crate) struct CommandOptions {
    #[command(flatten)]
    pub(crate) series: SeriesOptions,

    #[command(flatten)]
    pub(crate) databases: DatabaseOptions,

    /// Keys in the table that is filled beforehand [default: 10000000; 1000000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keys: Option<u64>,
}

impl CommandOptions {
    pub(crate) fn keys(&self) -> u64 {
        let quick = self.series.options.quick;
        self.keys.unwrap_or(if quick { 1_000_000 } else { 10_000_000 })
    }
}

/// What it costs to decide when something is tried again, as a ratio to backon
#[derive(clap::Args)]
pub(crate) struct RetryOptions {
    #[command(flatten)]
    pub(crate) series: SeriesOptions,
}

/// How long `cargo check` takes for 20 commands under `#[service]`, as a ratio to the same by hand
#[derive(clap::Args)]
pub(crate) struct ServiceOptions {
    #[command(flatten)]
    pub(crate) options: Options,
}

/// What a call through a closed circuit breaker costs, as a ratio to `recloser`'s
#[derive(clap::Args)]
pub(crate) struct BreakerOptions {
    #[command(flatten)]
    pub(crate) options: Options,
}

/// What an event costs from its transaction to its handler, as ratios to commands without one and to a hand-written loop
#[derive(clap::Args)]
pub(crate) struct OutboxOptions {
    #[command(flatten)]
    pub(crate) series: SeriesOptions,

    #[command(flatten)]
    pub(crate) databases: DatabaseOptions,

    /// Deliveries that are pending when a drain begins [default: 50000; 5000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    deliveries: Option<u32>,

    /// Deliveries that are pending throughout where there are many [default: 100000; 20000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pending: Option<u32>,

    /// Deliveries that have been finished there [default: 1000000; 100000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    finished: Option<u32>,

    /// Live clients that follow one node where there are many
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    subscribers: u32,
}

impl OutboxOptions {
    pub(crate) fn deliveries(&self) -> u32 {
        self.deliveries.unwrap_or(self.by_default(50_000, 5_000))
    }

    pub(crate) fn pending(&self) -> u32 {
        self.pending.unwrap_or(self.by_default(100_000, 20_000))
    }

    pub(crate) fn finished(&self) -> u32 {
        self.finished.unwrap_or(self.by_default(1_000_000, 100_000))
    }

    pub(crate) fn subscribers(&self) -> u32 {
        self.subscribers
    }

    fn by_default(&self, many: u32, few: u32) -> u32 {
        if self.series.options.quick { few } else { many }
    }
}

/// What a message costs from a broker to its commit, as ratios to consumers that are written by hand
#[derive(clap::Args)]
pub(crate) struct InboxOptions {
    #[command(flatten)]
    pub(crate) series: SeriesOptions,

    #[command(flatten)]
    pub(crate) databases: DatabaseOptions,

    /// Messages that are in the queue when a slice begins [default: 20000; 5000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    messages: Option<u32>,

    /// Messages that wait where memory is looked at, and twice as many [default: 100000; 10000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    backlog: Option<u32>,
}

impl InboxOptions {
    pub(crate) fn messages(&self) -> usize {
        let quick = self.series.options.quick;
        self.messages.unwrap_or(if quick { 5_000 } else { 20_000 }) as usize
    }

    pub(crate) fn backlog(&self) -> usize {
        let quick = self.series.options.quick;
        self.backlog.unwrap_or(if quick { 10_000 } else { 100_000 }) as usize
    }
}

/// What a job costs from its transaction to its end, as ratios to bare transactions, to a hand-written loop and to other projects
#[derive(clap::Args)]
pub(crate) struct JobsOptions {
    #[command(flatten)]
    pub(crate) series: SeriesOptions,

    #[command(flatten)]
    pub(crate) databases: DatabaseOptions,

    /// Jobs that are available when a drain begins [default: 50000; 5000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,

    /// Jobs that are scheduled throughout where there are many [default: 100000; 10000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    scheduled: Option<u32>,

    /// Jobs that have been finished there [default: 1000000; 50000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    finished: Option<u32>,

    /// Without other projects: they take minutes to build the first time
    #[arg(long)]
    pub(crate) no_peers: bool,
}

impl JobsOptions {
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.unwrap_or(self.by_default(50_000, 5_000)) as usize
    }

    pub(crate) fn scheduled(&self) -> usize {
        self.scheduled.unwrap_or(self.by_default(100_000, 10_000)) as usize
    }

    pub(crate) fn finished(&self) -> usize {
        self.finished.unwrap_or(self.by_default(1_000_000, 50_000)) as usize
    }

    /// Whether other projects are measured as well: they know no other database.
    pub(crate) fn wants_peers(&self) -> bool {
        !self.no_peers && self.databases.wants(Database::Postgres)
    }

    /// How many rounds a series with other projects takes at the most. Each of their slices is a process that has to start and to
    /// warm up, and all of it should be over in three minutes.
    pub(crate) fn peer_rounds_max(&self) -> usize {
        let options = &self.series.options;
        if options.quick && options.rounds.is_none() {
            3
        } else {
            usize::MAX
        }
    }

    fn by_default(&self, many: u32, few: u32) -> u32 {
        if self.series.options.quick { few } else { many }
    }
}

/// Where it is measured.
#[derive(clap::Args)]
pub(crate) struct DatabaseOptions {
    /// Measure on this database only [default: both]
    #[arg(long, value_enum)]
    pub(crate) database: Option<Database>,
}

impl DatabaseOptions {
    pub(crate) fn wants(&self, database: Database) -> bool {
        self.database.is_none_or(|only| only == database)
    }
}

/// What a bench of series can be told.
#[derive(clap::Args)]
pub(crate) struct SeriesOptions {
    #[command(flatten)]
    pub(crate) options: Options,

    /// Only cases whose name contains this, and what they are compared with; may be repeated
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,

    /// How long each case runs in a round [default: 2; 0.6 with --quick]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
}

impl SeriesOptions {
    pub(crate) fn slice(&self) -> Duration {
        let default = Duration::from_millis(if self.options.quick { 600 } else { 2_000 });
        self.seconds.unwrap_or(default)
    }
}

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Few and short rounds: all of it within three minutes, to see that it works
    #[arg(long)]
    pub(crate) quick: bool,

    /// How often each comparison is made [default: 11; 7 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,

    /// One line of JSON for each figure, instead of a table
    #[arg(long)]
    pub(crate) json: bool,

    /// Fail if a goal does not hold
    #[arg(long)]
    pub(crate) strict: bool,

    /// Where files are kept while it is measured: on a real disk
    #[arg(long, value_name = "PATH", env = "BENCH_DIRECTORY", default_value = "target/bench")]
    pub(crate) directory: PathBuf,
}

impl Options {
    /// An odd number by default, so that the median is a round that took place.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 7 } else { 11 }).into()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Database {
    Sqlite,
    Postgres,
}

impl Database {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }
}

/// More than an hour for one slice is a slip of the finger.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if seconds > 0.0 && seconds <= 3_600.0 {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err("not between 0 and 3600".to_owned())
}
