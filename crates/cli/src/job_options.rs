//! The part of the command line that is about jobs, queues and breakers, as clap reads it and `--help` shows it.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use steadfast::{BatchId, JobId, JobState, Priority};

use crate::delivery_options::Because;

#[derive(Subcommand)]
pub(crate) enum JobsVerb {
    /// List jobs, oldest first, without what they are about
    List(ListOptions),
    /// Show one job: where it stands, what it is about, and every attempt that failed
    Show(ShowOptions),
    /// Count the jobs of a batch by how they ended
    Batch(BatchOptions),
    /// Run a job that has failed now, with all its attempts, or every dead one that fits; audited
    Retry(ChangeOptions),
    /// Run a job now, with all its attempts, whatever it waits for, or every scheduled one that fits; audited
    RunNow(ChangeOptions),
    /// Say that a job is not wanted any more, or every one that fits and nobody works on; audited
    Cancel(ChangeOptions),
    /// Say when a job is run, or every one that fits and waits; audited
    Reschedule(RescheduleOptions),
    /// Put a job off, or every one that fits and waits; audited
    Snooze(SnoozeOptions),
}

impl JobsVerb {
    pub(crate) fn operator(&self) -> Option<&str> {
        match self {
            Self::Retry(options) | Self::RunNow(options) | Self::Cancel(options) => options.operator.as_deref(),
            Self::Reschedule(options) => options.change.operator.as_deref(),
            Self::Snooze(options) => options.change.operator.as_deref(),
            Self::List(_) | Self::Show(_) | Self::Batch(_) => None,
        }
    }
}

/// Which jobs.
#[derive(Args, Default)]
pub(crate) struct FilterOptions {
    /// Only jobs in this state
    #[arg(long, value_parser = states())]
    pub(crate) state: Option<JobState>,
    /// Only jobs of this name
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Only jobs that stand in this queue
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// Only jobs of this priority
    #[arg(long, value_parser = priorities())]
    pub(crate) priority: Option<Priority>,
    /// Only jobs whose last failure has this code
    #[arg(long)]
    pub(crate) code: Option<String>,
    /// Only jobs enqueued within this time: 30s, 5m, 24h, 7d
    #[arg(long, value_name = "DURATION", value_parser = steadfast::parse_duration)]
    pub(crate) since: Option<Duration>,
}

impl FilterOptions {
    /// Whether it lets everything through.
    pub(crate) fn is_empty(&self) -> bool {
        let words = [&self.name, &self.queue, &self.code];
        words.iter().all(|word| word.is_none())
            && self.state.is_none()
            && self.priority.is_none()
            && self.since.is_none()
    }
}

fn states() -> impl TypedValueParser<Value = JobState> {
    let words = JobState::ALL.map(JobState::as_str);
    PossibleValuesParser::new(words).map(|word| {
        let known = JobState::ALL.into_iter().find(|state| state.as_str() == word);
        known.unwrap_or(JobState::Available)
    })
}

fn priorities() -> impl TypedValueParser<Value = Priority> {
    let words = Priority::ALL.map(Priority::as_str);
    PossibleValuesParser::new(words).map(|word| {
        let known = Priority::ALL.into_iter().find(|priority| priority.as_str() == word);
        known.unwrap_or_default()
    })
}

#[derive(Args)]
pub(crate) struct ListOptions {
    #[command(flatten)]
    pub(crate) filter: FilterOptions,
    /// Only jobs of this batch
    #[arg(long, value_name = "ID")]
    pub(crate) batch: Option<BatchId>,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// Go on after this job, the last one of the page before
    #[arg(long, value_name = "ID")]
    pub(crate) after: Option<JobId>,
}

#[derive(Args)]
pub(crate) struct ShowOptions {
    /// The id of the job, or as much of its beginning as no other has
    pub(crate) id: String,
    /// Show what is masked otherwise
    #[arg(long)]
    pub(crate) reveal: bool,
}

#[derive(Args)]
pub(crate) struct BatchOptions {
    /// The id of the batch: that of the job which waits for its end
    pub(crate) id: BatchId,
}

/// One job by its id, or all that fit.
#[derive(Args)]
pub(crate) struct ChangeOptions {
    /// The id of the job, or as much of its beginning as no other has; without it, all that fit
    #[arg(conflicts_with_all = ["state", "name", "queue", "priority", "code", "since", "all", "dry_run"])]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) filter: FilterOptions,
    /// Without a filter: all of them
    #[arg(long)]
    pub(crate) all: bool,
    /// Only count them
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Why, for the audit
    #[arg(long, required_unless_present = "dry_run")]
    pub(crate) reason: Option<String>,
    /// Who does it, for the audit [env: STEADFAST_OPERATOR] [default: your login name]
    #[arg(long, value_name = "NAME")]
    operator: Option<String>,
}

impl ChangeOptions {
    /// Why; empty where nothing is changed.
    pub(crate) fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or_default()
    }
}

#[derive(Args)]
#[group(id = "when", required = true, multiple = false, args = ["at", "delay"])]
pub(crate) struct RescheduleOptions {
    #[command(flatten)]
    pub(crate) change: ChangeOptions,
    /// At this moment: 2026-03-29, "2026-03-29 02:30" in the time zone, or 2026-03-29T00:30:00Z
    #[arg(long, value_name = "MOMENT")]
    pub(crate) at: Option<String>,
    /// So long after now: 30s, 5m, 24h, 7d
    #[arg(long = "in", value_name = "DURATION", value_parser = steadfast::parse_duration)]
    pub(crate) delay: Option<Duration>,
    /// The time zone of the moment: a name of the IANA database
    #[arg(long, value_name = "NAME", default_value = "UTC")]
    pub(crate) tz: String,
}

#[derive(Args)]
pub(crate) struct SnoozeOptions {
    #[command(flatten)]
    pub(crate) change: ChangeOptions,
    /// So long after it would have been run, or after now if it is due: 30s, 5m, 24h, 7d
    #[arg(long = "for", value_name = "DURATION", value_parser = steadfast::parse_duration)]
    pub(crate) time: Duration,
}

#[derive(Subcommand)]
pub(crate) enum QueuesVerb {
    /// List queues, their limits, and what stands in them
    List,
    /// Begin no more jobs of a queue, on any node; audited
    Pause(NamedOptions),
    /// Go on with the jobs of a queue; audited
    Resume(NamedOptions),
    /// Pause a queue, and wait until nothing of it runs any more; audited
    Drain(NamedOptions),
}

impl QueuesVerb {
    pub(crate) fn operator(&self) -> Option<&str> {
        match self {
            Self::List => None,
            Self::Pause(options) | Self::Resume(options) | Self::Drain(options) => options.because.operator.as_deref(),
        }
    }
}

#[derive(Subcommand)]
pub(crate) enum BreakersVerb {
    /// List the breakers that processes share
    List,
    /// Hold a shared breaker open in all processes, until it is closed; audited
    Open(NamedOptions),
    /// Close a shared breaker in all processes, and let it judge by itself again; audited
    Close(NamedOptions),
}

impl BreakersVerb {
    pub(crate) fn operator(&self) -> Option<&str> {
        match self {
            Self::List => None,
            Self::Open(options) | Self::Close(options) => options.because.operator.as_deref(),
        }
    }
}

#[derive(Args)]
pub(crate) struct NamedOptions {
    /// Its name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) because: Because,
}
