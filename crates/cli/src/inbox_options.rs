//! The part of the command line that is about the inbox, as clap reads it and `--help` shows it.

use std::time::Duration;

use clap::{Args, Subcommand};
use steadfast::InboxPlace;

#[derive(Subcommand)]
pub(crate) enum InboxVerb {
    /// List records by consumer, source and message id
    List(ListOptions),
    /// Show whether a message was handled, where its delivery stands if it is kept, and until when it is remembered
    Show(ShowOptions),
    /// Count records by consumer and source
    Stats(WhoseOptions),
}

/// Whose records.
#[derive(Args, Clone, Default)]
pub(crate) struct WhoseOptions {
    /// Only records of this consumer: the name of its reaction
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Only messages of this source: who says it, not by which broker it came
    #[arg(long)]
    pub(crate) source: Option<String>,
}

#[derive(Args)]
pub(crate) struct ListOptions {
    #[command(flatten)]
    pub(crate) whose: WhoseOptions,
    /// Only messages received within this time: 30s, 5m, 24h, 7d
    #[arg(long, value_name = "DURATION", value_parser = steadfast::parse_duration)]
    pub(crate) since: Option<Duration>,
    /// Only messages received longer ago than this
    #[arg(long, value_name = "DURATION", value_parser = steadfast::parse_duration)]
    pub(crate) until: Option<Duration>,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// Go on after this place, the last one of the page before
    #[arg(long, value_name = "PLACE")]
    pub(crate) after: Option<InboxPlace>,
}

#[derive(Args)]
pub(crate) struct ShowOptions {
    /// The id that the producer gave the message, whole
    pub(crate) message_id: String,
    #[command(flatten)]
    pub(crate) whose: WhoseOptions,
}
