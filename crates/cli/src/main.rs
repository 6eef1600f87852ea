//! `steadfast`: what an operator has in hand. Migrate, look at keys, deliveries, the inbox, jobs, queues, breakers and the audit, give dead letters
//! another life, purge, try webhooks and schedules out, and find out what is wrong.
//!
//! The way of a call: `options` reads the line, `config` adds what the environment and `steadfast.toml` say, `database`
//! opens what the verb needs and no more, a file of the verb's name asks the library, and `output` shows the answer. No SQL
//! is written here; it lives in the library, beside the tables.

mod options;
mod delivery_options;
mod inbox_options;
mod job_options;
mod outside_options;
mod cron_options;
mod schedule_options;
mod config;
mod database;
mod error;
mod secret;
mod output;
mod confirm;
mod suggest;
mod words;
mod migrate;
mod keys;
mod deliveries;
mod change;
mod targets;
mod operations;
mod inbox;
mod jobs;
mod schedules;
mod job_change;
mod queues;
mod breakers;
mod why;
mod status;
mod purge;
mod audit;
mod doctor;
mod brokers;
mod webhooks;
mod health;
mod explain;
mod fingerprint;
mod cron;
mod shell;

use std::process::ExitCode;

use clap::Parser;

use config::Config;
use cron_options::CronVerb;
use delivery_options::{DeadVerb, OutboxVerb};
use error::{Exit, Result};
use options::{Cli, KeysVerb, MigrateVerb, Verb};
use output::Output;
use outside_options::WebhooksVerb;
use steadfast::DeliveryState;

/// What every verb gets: the settings, and where to show things.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) output: Output,
    /// Whether the person has said yes already.
    pub(crate) is_confirmed: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    match run(cli).await {
        Ok(exit) => exit.into(),
        Err(error) => {
            error.print();
            error.exit.into()
        }
    }
}

/// Says what is wrong with the line, or the help that was asked for.
fn refuse(error: &clap::Error) -> ExitCode {
    let told = error.to_string();
    let masked = secret::mask(&told);
    if masked == told {
        error.exit();
    }
    eprint!("{masked}");
    Exit::Usage.into()
}

async fn run(cli: Cli) -> Result<Exit> {
    let config = Config::load(&cli.global, cli.verb.operator(), cli.verb.brokers())?;
    let context = Context {
        output: Output::new(cli.global.json, config.has_color()?),
        is_confirmed: cli.global.yes,
        config,
    };
    match cli.verb {
        Verb::Migrate { verb } => match verb {
            MigrateVerb::Up => migrate::up(&context).await,
            MigrateVerb::Status => migrate::status(&context).await,
            MigrateVerb::Sql(options) => migrate::sql(&context, &options),
        },
        Verb::Keys { verb } => match verb {
            KeysVerb::List(options) => keys::list(&context, options).await,
            KeysVerb::Show(options) => keys::show(&context, &options).await,
            KeysVerb::Forget(options) => keys::forget(&context, &options).await,
        },
        Verb::Outbox { verb } => match verb {
            OutboxVerb::List(options) => deliveries::list(&context, &options).await,
            OutboxVerb::Show(options) => deliveries::show(&context, &options).await,
            OutboxVerb::Requeue(options) => change::requeue(&context, &options, DeliveryState::Pending).await,
            OutboxVerb::Skip(options) => change::skip(&context, &options).await,
        },
        Verb::Dead { verb } => match verb {
            DeadVerb::List(options) => deliveries::dead(&context, &options).await,
            DeadVerb::Groups(filter) => deliveries::groups(&context, &filter).await,
            DeadVerb::Show(options) => deliveries::show(&context, &options).await,
            DeadVerb::Requeue(options) => change::requeue(&context, &options, DeliveryState::Dead).await,
            DeadVerb::Discard(options) => change::discard(&context, &options).await,
            DeadVerb::Export(options) => deliveries::export(&context, &options).await,
        },
        Verb::Targets { verb } => targets::run(&context, &verb).await,
        Verb::Operations { verb } => operations::run(&context, &verb).await,
        Verb::Inbox { verb } => inbox::run(&context, &verb).await,
        Verb::Jobs { verb } => jobs::run(&context, &verb).await,
        Verb::Schedules { verb } => schedules::run(&context, &verb).await,
        Verb::Queues { verb } => queues::run(&context, &verb).await,
        Verb::Breakers { verb } => breakers::run(&context, &verb).await,
        Verb::Why { id } => why::run(&context, &id).await,
        Verb::Status { watch } => status::run(&context, watch).await,
        Verb::Purge { dry_run } => purge::run(&context, dry_run).await,
        Verb::Audit(options) => audit::run(&context, options).await,
        Verb::Doctor(options) => doctor::run(&context, &options).await,
        Verb::Webhooks { verb } => match verb {
            WebhooksVerb::Test(options) => webhooks::test(&context, &options).await,
        },
        Verb::Health => health::run(&context).await,
        Verb::Explain { code } => explain::run(&context, code.as_deref()),
        Verb::Fingerprint(options) => fingerprint::run(&context, &options),
        Verb::Cron { verb } => match verb {
            CronVerb::Next(options) => cron::next(&context, &options),
        },
        Verb::Config => context.config.show(&context.output),
        Verb::Completions { shell } => shell::completions(&context, shell),
        Verb::Man { directory } => shell::man(&context, directory.as_deref()),
    }
}
