//! The part of the command line that is about deliveries, as clap reads it and `--help` shows it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use steadfast::{DeliveryPlace, DeliveryState};

#[derive(Subcommand)]
pub(crate) enum OutboxVerb {
    /// List deliveries, oldest message first, without their payloads
    List(ListOptions),
    /// Show one message: its envelope, its payload, its deliveries and every attempt that failed
    Show(ShowOptions),
    /// Have a delivery tried now, or every pending one that fits; audited
    Requeue(RequeueOptions),
    /// Say that a delivery is not wanted any more, or everything that fits and nobody works on; audited
    Skip(ChangeOptions),
}

#[derive(Subcommand)]
pub(crate) enum DeadVerb {
    /// List dead letters, oldest message first, without their payloads
    List(DeadListOptions),
    /// Show dead letters by how they failed, the largest group first
    Groups(FilterOptions),
    /// Show one message: its envelope, its payload, its deliveries and every attempt that failed
    Show(ShowOptions),
    /// Give a dead letter another life, or every one that fits; audited
    Requeue(RequeueOptions),
    /// Give a dead letter up for good, or every one that fits; audited
    Discard(ChangeOptions),
    /// Print dead letters whole, one JSON object a line
    Export(ExportOptions),
}

#[derive(Subcommand)]
pub(crate) enum TargetsVerb {
    /// List targets, whether anybody works on them, and what waits for them
    List,
    /// Stop delivering to a target; audited
    Pause(TargetOptions),
    /// Go on delivering to a target; audited
    Resume(TargetOptions),
    /// Write no new deliveries for a target; audited
    Remove(TargetOptions),
}

#[derive(Subcommand)]
pub(crate) enum OperationsVerb {
    /// List bulk operations, newest first
    List {
        /// At most so many
        #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Go on with a bulk operation where it stopped
    Resume {
        /// The id of the operation, or as much of its beginning as no other has
        id: String,
    },
    /// End a bulk operation where it is; audited
    Cancel {
        /// The id of the operation, or as much of its beginning as no other has
        id: String,
        #[command(flatten)]
        because: Because,
    },
}

/// Which deliveries.
#[derive(Args, Clone, Default)]
pub(crate) struct FilterOptions {
    /// Only deliveries to this target
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
    /// Only events of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) event_type: Option<String>,
    /// Only events of this ordering key
    #[arg(long = "key", value_name = "KEY")]
    pub(crate) ordering_key: Option<String>,
    /// Only deliveries whose last failure has this code
    #[arg(long)]
    pub(crate) code: Option<String>,
    /// Only deliveries whose last failure has this fingerprint, as `dead groups` shows it
    #[arg(long)]
    pub(crate) fingerprint: Option<String>,
    /// Only messages published within this time: 30s, 5m, 24h, 7d
    #[arg(long, value_name = "DURATION", value_parser = steadfast::parse_duration)]
    pub(crate) since: Option<Duration>,
}

impl FilterOptions {
    /// Whether it lets everything through.
    pub(crate) fn is_empty(&self) -> bool {
        let words = [
            &self.target,
            &self.event_type,
            &self.ordering_key,
            &self.code,
            &self.fingerprint,
        ];
        words.iter().all(|word| word.is_none()) && self.since.is_none()
    }
}

/// How much of a list.
#[derive(Args)]
pub(crate) struct PageOptions {
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// Go on after this place, the last one of the page before
    #[arg(long, value_name = "PLACE")]
    pub(crate) after: Option<DeliveryPlace>,
}

#[derive(Args)]
pub(crate) struct ListOptions {
    /// Only deliveries in this state [default: pending, leased and dead]
    #[arg(long, value_enum)]
    pub(crate) state: Option<State>,
    #[command(flatten)]
    pub(crate) filter: FilterOptions,
    #[command(flatten)]
    pub(crate) page: PageOptions,
}

#[derive(Args)]
pub(crate) struct DeadListOptions {
    #[command(flatten)]
    pub(crate) filter: FilterOptions,
    #[command(flatten)]
    pub(crate) page: PageOptions,
}

/// Where a delivery stands.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum State {
    Pending,
    Leased,
    Dead,
    Delivered,
    Skipped,
    Discarded,
}

impl From<State> for DeliveryState {
    fn from(state: State) -> Self {
        match state {
            State::Pending => DeliveryState::Pending,
            State::Leased => DeliveryState::Leased,
            State::Dead => DeliveryState::Dead,
            State::Delivered => DeliveryState::Delivered,
            State::Skipped => DeliveryState::Skipped,
            State::Discarded => DeliveryState::Discarded,
        }
    }
}

#[derive(Args)]
pub(crate) struct ShowOptions {
    /// The id of the message, or as much of its beginning as no other has
    pub(crate) id: String,
    /// Show the members of the payload that the event redacts
    #[arg(long)]
    pub(crate) reveal: bool,
}

#[derive(Args)]
pub(crate) struct ExportOptions {
    #[command(flatten)]
    pub(crate) filter: FilterOptions,
    /// Export the members of payloads that events redact
    #[arg(long)]
    pub(crate) reveal: bool,
}

/// Who wants something, and why.
#[derive(Args)]
pub(crate) struct Because {
    /// Why, for the audit
    #[arg(long)]
    pub(crate) reason: String,
    /// Who does it, for the audit [env: STEADFAST_OPERATOR] [default: your login name]
    #[arg(long, value_name = "NAME")]
    pub(crate) operator: Option<String>,
}

/// One delivery by the id of its message, or all that fit.
#[derive(Args)]
pub(crate) struct ChangeOptions {
    /// The id of the message, or as much of its beginning as no other has; without it, all that fit
    #[arg(conflicts_with_all = ["event_type", "ordering_key", "code", "fingerprint", "since", "all", "dry_run"])]
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
pub(crate) struct RequeueOptions {
    #[command(flatten)]
    pub(crate) change: ChangeOptions,
    /// Deliver the JSON of this file instead, to this target alone; `-` is standard input
    #[arg(long, value_name = "FILE", requires = "id")]
    pub(crate) edited: Option<PathBuf>,
    /// Even if it came from elsewhere longer ago than the inbox remembers: look first whether it was handled since
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args)]
pub(crate) struct TargetOptions {
    /// The name of the target
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) because: Because,
}

impl OutboxVerb {
    pub(crate) fn operator(&self) -> Option<&str> {
        match self {
            OutboxVerb::Requeue(options) => options.change.operator.as_deref(),
            OutboxVerb::Skip(options) => options.operator.as_deref(),
            _ => None,
        }
    }
}

impl DeadVerb {
    pub(crate) fn operator(&self) -> Option<&str> {
        match self {
            DeadVerb::Requeue(options) => options.change.operator.as_deref(),
            DeadVerb::Discard(options) => options.operator.as_deref(),
            _ => None,
        }
    }
}

impl TargetsVerb {
    pub(crate) fn operator(&self) -> Option<&str> {
        match self {
            TargetsVerb::List => None,
            TargetsVerb::Pause(options) | TargetsVerb::Resume(options) | TargetsVerb::Remove(options) => {
                options.because.operator.as_deref()
            }
        }
    }
}

impl OperationsVerb {
    pub(crate) fn operator(&self) -> Option<&str> {
        match self {
            OperationsVerb::Cancel { because, .. } => because.operator.as_deref(),
            _ => None,
        }
    }
}
