//! The part of the command line that is about schedules, as clap reads it and `--help` shows it.

use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub(crate) enum CronVerb {
    /// Show when a cron expression is due next
    ///
    /// The time zones are those that a service of this version has, whatever this machine has installed.
    Next(NextOptions),
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  steadfast cron next \"0 9 * * MON-FRI\" --tz Europe/Madrid
  steadfast cron next \"30 2 * * *\" --tz America/New_York --after 2026-03-07 -n 3
  steadfast cron next @hourly --json

Fields: minute, hour, day of month, month, day of week; or six, with the second first. What is skipped when the clock is set \
forward is due at the first moment after it, and what comes twice when it is set back is due once, unless the expression is about \
every hour or has a `*` in its minutes or seconds: that one goes with the clock on the wall.")]
pub(crate) struct NextOptions {
    /// The cron expression, in quotes
    pub(crate) expression: String,
    /// The time zone: a name of the IANA database
    #[arg(long, value_name = "NAME", default_value = "UTC")]
    pub(crate) tz: String,
    /// Only after this moment: 2026-03-29, "2026-03-29 02:30" in the time zone, or 2026-03-29T00:30:00Z [default: now]
    #[arg(long, value_name = "MOMENT")]
    pub(crate) after: Option<String>,
    /// So many
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) count: u32,
}
