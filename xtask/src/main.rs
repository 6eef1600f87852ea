//! The project's own tool, called as `cargo xtask`. It needs cargo and a Unix shell, nothing else.
//!
//! `test`, `services`, `bench` and `chaos` are about servers ([`service`]); the other commands look at the
//! code, and `check` runs all of those in a row.

mod bench;
mod chaos;
mod check;
mod deps;
mod error;
mod features;
mod guarantees;
mod peers;
mod process;
mod python;
mod service;
mod services;
mod table;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::Result;

/// Everything a contributor runs, in one tool
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
#[command(after_help = "\
Every day:
  cargo xtask test --only sqlite     the quick loop
  cargo xtask test                   every test; starts PostgreSQL and the brokers by itself if it can
  cargo xtask test -- -p steadfast in_flight -- --nocapture
  cargo xtask check                  before a commit
  cargo xtask bench command --quick  what a command costs, in three minutes
  cargo xtask bench outbox --quick   what an event costs on its way to its handler
  cargo xtask bench jobs --quick     what a job costs, beside other projects
  cargo xtask bench service          how long the compiler takes for a service
  cargo xtask bench breaker          what a call through a closed breaker costs
  cargo xtask chaos command --quick  kills, crashes and cuts, in three minutes
  eval \"$(cargo xtask services up)\"  servers that stay, for an editor")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Test(test::TestArgs),
    #[command(subcommand)]
    Services(services::ServicesCommand),
    /// Measure what Steadfast costs, against baselines in the same run
    #[command(subcommand)]
    Bench(bench::options::Bench),
    /// Break everything on purpose, and judge whether the promises held
    #[command(subcommand)]
    Chaos(chaos::options::Chaos),
    /// Check format, lints, docs, features, dependencies and guarantees
    Check,
    /// Check that steadfast compiles without features, with each alone, and with all
    Features,
    /// Check licences, forbidden crates, duplicates and what every manifest needs
    Deps,
    /// Check that every test named in docs/guarantees.md exists
    Guarantees,
}

fn main() -> ExitCode {
    run(&Cli::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn run(cli: &Cli) -> Result<ExitCode> {
    match &cli.command {
        Command::Test(arguments) => return test::run(arguments),
        Command::Services(command) => services::run(command)?,
        Command::Bench(bench) => return bench::run(bench),
        Command::Chaos(chaos) => return chaos::run(chaos),
        Command::Check => check::run()?,
        Command::Features => features::run()?,
        Command::Deps => deps::run()?,
        Command::Guarantees => guarantees::run()?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_second_double_dash_is_left_to_cargo_test() {
        let words = ["xtask", "test", "--keep", "--", "-p", "steadfast", "--", "--nocapture"];
        assert!(Cli::try_parse_from(words).is_ok());
    }
}
