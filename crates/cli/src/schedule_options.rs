//! The part of the command line that is about schedules that make jobs, as clap reads it and `--help` shows it.

use clap::{Args, Subcommand};

use crate::delivery_options::Because;

#[derive(Subcommand)]
pub(crate) enum SchedulesVerb {
    /// List schedules by name, with when they are due next
    List,
    /// Show one schedule: when it is due next, what it makes, and what it has made lately
    Show(ShowOptions),
    /// Make no jobs of a schedule's ticks until it is resumed; audited
    Pause(DecideOptions),
    /// Make jobs of a schedule's ticks again; what it has missed is up to its policy; audited
    Resume(DecideOptions),
    /// Make a job of a schedule now, beside those of its ticks; audited
    Trigger(DecideOptions),
    /// Make jobs of ticks that had none, from one moment to another; shows which before it does; audited
    Backfill(BackfillOptions),
    /// Remove a schedule; one that a program declares comes back when that starts; audited
    Remove(DecideOptions),
}

impl SchedulesVerb {
    pub(crate) fn operator(&self) -> Option<&str> {
        match self {
            Self::Pause(options) | Self::Resume(options) | Self::Trigger(options) | Self::Remove(options) => {
                options.because.operator.as_deref()
            }
            Self::Backfill(options) => options.operator.as_deref(),
            Self::List | Self::Show(_) => None,
        }
    }
}

#[derive(Args)]
pub(crate) struct ShowOptions {
    /// The name of the schedule
    pub(crate) name: String,
    /// So many of its next runs
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) count: u32,
}

#[derive(Args)]
pub(crate) struct DecideOptions {
    /// The name of the schedule
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) because: Because,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  steadfast schedules backfill shop.digest --from 2026-03-02 --until \"2026-03-06 12:00\" --dry-run
  steadfast schedules backfill shop.digest --from 2026-03-02 --until 2026-03-06T11:00:00Z --reason \"the mail server was away\" --yes

A moment without an offset is one of the schedule's time zone, or of UTC if it has none. At most 1,000 ticks at once, none in the \
future and none older than 90 days.")]
pub(crate) struct BackfillOptions {
    /// The name of the schedule
    pub(crate) name: String,
    /// From this moment on: 2026-03-29, "2026-03-29 02:30", or 2026-03-29T00:30:00Z
    #[arg(long, value_name = "MOMENT")]
    pub(crate) from: String,
    /// Up to this moment
    #[arg(long, value_name = "MOMENT")]
    pub(crate) until: String,
    /// Only show which ticks there are, and which of them had a job
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Why, for the audit
    #[arg(long, required_unless_present = "dry_run")]
    pub(crate) reason: Option<String>,
    /// Who does it, for the audit [env: STEADFAST_OPERATOR] [default: your login name]
    #[arg(long, value_name = "NAME")]
    pub(crate) operator: Option<String>,
}
