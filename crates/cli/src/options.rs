//! The command line, as clap reads it and `--help` shows it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use steadfast::KeyId;

use crate::cron_options::CronVerb;
use crate::delivery_options::{DeadVerb, OperationsVerb, OutboxVerb, TargetsVerb};
use crate::inbox_options::InboxVerb;
use crate::job_options::{BreakersVerb, JobsVerb, QueuesVerb};
use crate::outside_options::{DoctorOptions, WebhooksVerb};
use crate::schedule_options::SchedulesVerb;

/// Migrates, looks at keys, deliveries, the inbox, jobs, schedules and the audit, purges, tries webhooks and schedules out, and finds out what is
/// wrong.
///
/// Steadfast keeps the keys of idempotent commands and the messages they publish in your SQLite or PostgreSQL database. This is
/// the tool beside it.
#[derive(Parser)]
#[command(
    name = "steadfast",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unhealthy.
Settings: a flag wins over the environment, that over steadfast.toml (here or in a directory above), that over the \
default; `steadfast config` shows each of them."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalOptions,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What every verb takes.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalOptions {
    /// Database: sqlite://FILE or postgres://USER@HOST/NAME [env: DATABASE_URL]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    /// Where the tables are: a schema (PostgreSQL) or prefix (SQLite) [env: STEADFAST_SCHEMA] [default: steadfast]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) schema: Option<String>,
    /// Print one JSON object a line, with times in UTC (RFC 3339)
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// When to colour the output [env: STEADFAST_COLOR, NO_COLOR] [default: auto]
    #[arg(long, global = true, value_name = "WHEN", value_parser = ["auto", "always", "never"])]
    pub(crate) color: Option<String>,
    /// How long services keep messages [env: STEADFAST_MESSAGE_RETENTION] [default: 7d]
    #[arg(long, global = true, value_name = "DURATION")]
    pub(crate) message_retention: Option<String>,
    /// How long services remember messages from elsewhere [env: STEADFAST_INBOX_RETENTION] [default: 7d]
    #[arg(long, global = true, value_name = "DURATION")]
    pub(crate) inbox_retention: Option<String>,
    /// Do not ask before something is forgotten or changed for many
    #[arg(long, global = true)]
    pub(crate) yes: bool,
}

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Create or upgrade the tables, or show how
    #[command(arg_required_else_help = true)]
    Migrate {
        #[command(subcommand)]
        verb: MigrateVerb,
    },
    /// List, show or forget keys
    #[command(arg_required_else_help = true)]
    Keys {
        #[command(subcommand)]
        verb: KeysVerb,
    },
    /// List, show, requeue or skip deliveries of messages
    #[command(arg_required_else_help = true)]
    Outbox {
        #[command(subcommand)]
        verb: OutboxVerb,
    },
    /// List, group, show, requeue, discard or export what was given up
    #[command(arg_required_else_help = true)]
    Dead {
        #[command(subcommand)]
        verb: DeadVerb,
    },
    /// List, pause, resume or remove targets of messages
    #[command(arg_required_else_help = true)]
    Targets {
        #[command(subcommand)]
        verb: TargetsVerb,
    },
    /// List, resume or cancel bulk operations
    #[command(arg_required_else_help = true)]
    Operations {
        #[command(subcommand)]
        verb: OperationsVerb,
    },
    /// List, show or count messages from elsewhere that were handled
    #[command(arg_required_else_help = true)]
    Inbox {
        #[command(subcommand)]
        verb: InboxVerb,
    },
    /// List, show, retry, run, cancel, reschedule or snooze jobs
    #[command(arg_required_else_help = true)]
    Jobs {
        #[command(subcommand)]
        verb: JobsVerb,
    },
    /// List, show, pause, resume, trigger, backfill or remove schedules that make jobs
    #[command(arg_required_else_help = true)]
    Schedules {
        #[command(subcommand)]
        verb: SchedulesVerb,
    },
    /// List, pause, resume or drain queues of jobs
    #[command(arg_required_else_help = true)]
    Queues {
        #[command(subcommand)]
        verb: QueuesVerb,
    },
    /// List, open or close breakers that processes share
    #[command(arg_required_else_help = true)]
    Breakers {
        #[command(subcommand)]
        verb: BreakersVerb,
    },
    /// Say why a message is where it is, and what to do
    Why {
        /// The id of the message, or as much of its beginning as no other has
        id: String,
    },
    /// Show what waits in the outbox, for how long, how large it is, and what comes of it
    Status {
        /// Draw it anew every 2 seconds, on a terminal
        #[arg(long)]
        watch: bool,
    },
    /// Delete expired keys, finished messages and old records of the inbox now; services do it by themselves every hour
    Purge {
        /// Only count them
        #[arg(long)]
        dry_run: bool,
    },
    /// Show who did what, when and why, newest first
    Audit(AuditOptions),
    /// Look at the database, its settings, your rights and brokers, and say what to do; changes nothing
    Doctor(DoctorOptions),
    /// Try out endpoints of webhooks; needs no database
    #[command(arg_required_else_help = true)]
    Webhooks {
        #[command(subcommand)]
        verb: WebhooksVerb,
    },
    /// Say whether the database answers and has the right tables; exits with 5 if not
    Health,
    /// Explain a code such as SF301, or list all of them; needs no database
    Explain {
        /// The code
        code: Option<String>,
    },
    /// Show the canonical form and the fingerprint of an input; needs no database
    Fingerprint(FingerprintOptions),
    /// Try out schedules; needs no database
    #[command(arg_required_else_help = true)]
    Cron {
        #[command(subcommand)]
        verb: CronVerb,
    },
    /// Show each setting and where it came from
    Config,
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    Man {
        /// Write a page for each verb into this directory instead
        #[arg(long, value_name = "DIRECTORY")]
        directory: Option<PathBuf>,
    },
}

impl Verb {
    /// Who acts, where the verb asks for it.
    pub(crate) fn operator(&self) -> Option<&str> {
        match self {
            Verb::Keys {
                verb: KeysVerb::Forget(options),
            } => options.operator.as_deref(),
            Verb::Outbox { verb } => verb.operator(),
            Verb::Dead { verb } => verb.operator(),
            Verb::Targets { verb } => verb.operator(),
            Verb::Operations { verb } => verb.operator(),
            Verb::Jobs { verb } => verb.operator(),
            Verb::Schedules { verb } => verb.operator(),
            Verb::Queues { verb } => verb.operator(),
            Verb::Breakers { verb } => verb.operator(),
            _ => None,
        }
    }

    /// The brokers that are to be looked at, where the verb asks for them.
    pub(crate) fn brokers(&self) -> &[String] {
        match self {
            Verb::Doctor(options) => &options.brokers,
            _ => &[],
        }
    }
}

#[derive(Subcommand)]
pub(crate) enum MigrateVerb {
    /// Run the migrations that are missing, in one transaction; needs the right to create tables
    Up,
    /// Show which migrations have run
    Status,
    /// Print the migrations as a script for your own tool; needs no database
    Sql(SqlOptions),
}

#[derive(Args)]
pub(crate) struct SqlOptions {
    /// The last migration to print [default: the newest]
    #[arg(long, value_name = "VERSION")]
    pub(crate) to: Option<i64>,
    /// For which database [default: the one of the database URL]
    #[arg(long, value_enum)]
    pub(crate) database: Option<Engine>,
}

/// A database we work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

#[derive(Subcommand)]
pub(crate) enum KeysVerb {
    /// List keys in the order of their ids, without their answers
    List(ListOptions),
    /// Show one key; its stored answer only with --answer
    Show(ShowOptions),
    /// Forget a key, so that the next command with it executes again; written into the audit
    Forget(ForgetOptions),
}

#[derive(Args)]
pub(crate) struct ListOptions {
    /// Only keys of this operation
    #[arg(long)]
    pub(crate) operation: Option<String>,
    /// Only keys of this tenant
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// Only keys of this user
    #[arg(long)]
    pub(crate) user: Option<String>,
    /// Only keys in this state
    #[arg(long, value_enum)]
    pub(crate) state: Option<State>,
    /// Only keys stored within this time: 30s, 5m, 24h, 7d
    #[arg(long, value_name = "DURATION", value_parser = steadfast::parse_duration)]
    pub(crate) since: Option<Duration>,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// Go on after this id, the last one of the page before
    #[arg(long, value_name = "ID")]
    pub(crate) after: Option<KeyId>,
}

/// How a command ended.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum State {
    Completed,
    Failed,
}

#[derive(Args)]
pub(crate) struct ShowOptions {
    /// The id of the key, or as much of its beginning as no other has
    pub(crate) id: String,
    /// Print the stored answer too; it may hold what only its owner should see
    #[arg(long)]
    pub(crate) answer: bool,
}

#[derive(Args)]
pub(crate) struct ForgetOptions {
    /// The id of the key, or as much of its beginning as no other has
    pub(crate) id: String,
    /// Why, for the audit
    #[arg(long)]
    pub(crate) reason: String,
    /// Who does it, for the audit [env: STEADFAST_OPERATOR] [default: your login name]
    #[arg(long, value_name = "NAME")]
    operator: Option<String>,
}

#[derive(Args)]
pub(crate) struct AuditOptions {
    /// Only what this actor did
    #[arg(long)]
    pub(crate) actor: Option<String>,
    /// Only this action, such as key.evict
    #[arg(long)]
    pub(crate) action: Option<String>,
    /// Only what was written within this time: 30s, 5m, 24h, 7d
    #[arg(long, value_name = "DURATION", value_parser = steadfast::parse_duration)]
    pub(crate) since: Option<Duration>,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// Go on before this entry, the last one of the page before
    #[arg(long, value_name = "ID")]
    pub(crate) before: Option<i64>,
}

/// A fingerprint is that of a Rust call (`--operation`) or of a request (`--method` and `--path`).
#[derive(Args)]
pub(crate) struct FingerprintOptions {
    /// The input or body; standard input if it is left out or `-`
    pub(crate) file: Option<PathBuf>,
    /// A Rust call of this operation: `sf.command(OPERATION, key).input(..)`
    #[arg(long, conflicts_with_all = ["method", "path", "content_type"], required_unless_present = "path")]
    pub(crate) operation: Option<String>,
    /// A request with this method, through `sf.idempotent()`
    #[arg(long, default_value = "POST")]
    pub(crate) method: String,
    /// The path of the request, with its query behind a `?` if it has one
    #[arg(long)]
    pub(crate) path: Option<String>,
    /// The query of the request, if it is not behind the path
    #[arg(long, requires = "path")]
    pub(crate) query: Option<String>,
    /// The Content-Type of the request
    #[arg(long, value_name = "TYPE", default_value = "application/json")]
    pub(crate) content_type: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
