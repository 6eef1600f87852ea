//! The part of the command line that is about jobs, as clap reads it and `--help` shows it.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use steadfast::{BatchId, JobId, JobState};

use crate::delivery_options::Because;

#[derive(Subcommand)]
pub(crate) enum JobsVerb {
    /// List jobs, oldest first, without what they are about
    List(ListOptions),
    /// Show one job: where it stands, what it is about, and every attempt that failed
    Show(ShowOptions),
    /// Count the jobs of a batch by how they ended
    Batch(BatchOptions),
    /// Run a job now, with all its attempts, whether it is dead, waits for its next attempt or is scheduled; audited
    RunNow(DecideOptions),
    /// Say that a job is not wanted any more; audited
    Cancel(DecideOptions),
}

impl JobsVerb {
    pub(crate) fn operator(&self) -> Option<&str> {
        match self {
            Self::RunNow(options) | Self::Cancel(options) => options.because.operator.as_deref(),
            Self::List(_) | Self::Show(_) | Self::Batch(_) => None,
        }
    }
}

#[derive(Args)]
pub(crate) struct ListOptions {
    /// Only jobs in this state; without it, those that are still to do, or dead
    #[arg(long, value_parser = states())]
    pub(crate) state: Option<JobState>,
    /// Only jobs of this name
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Only jobs of this batch
    #[arg(long, value_name = "ID")]
    pub(crate) batch: Option<BatchId>,
    /// Only jobs whose last failure has this code
    #[arg(long)]
    pub(crate) code: Option<String>,
    /// Only jobs enqueued within this time: 30s, 5m, 24h, 7d
    #[arg(long, value_name = "DURATION", value_parser = steadfast::parse_duration)]
    pub(crate) since: Option<Duration>,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// Go on after this job, the last one of the page before
    #[arg(long, value_name = "ID")]
    pub(crate) after: Option<JobId>,
}

fn states() -> impl TypedValueParser<Value = JobState> {
    let words = JobState::ALL.map(JobState::as_str);
    PossibleValuesParser::new(words).map(|word| {
        let known = JobState::ALL.into_iter().find(|state| state.as_str() == word);
        known.unwrap_or(JobState::Available)
    })
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

#[derive(Args)]
pub(crate) struct DecideOptions {
    /// The id of the job, or as much of its beginning as no other has
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) because: Because,
}
