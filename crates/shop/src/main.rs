//! The demo shop: orders and payments that happen once, however often they are asked for.
//!
//! The way of a request: `auth` says who asks, `lab` may prepare an accident, Steadfast claims the key and reads the body,
//! and a command of `orders` or `payments` writes the row. `order` and `payment` hold what is sold and the rules of it.
//!
//! The services are written once for both databases, by `#[steadfast::service]`. What opens the shop on one of them has no
//! macro: the files in `open` are compiled twice, below `sqlite` and below `postgres`, which say what `Db` is.

#![allow(clippy::duplicate_mod, reason = "one body for two databases, see above")]

mod sqlite;
mod postgres;
mod listen;
mod banner;
mod auth;
mod lab;
mod input;
mod order;
mod orders;
mod payment;
mod payments;
mod problem;
mod quotes;
mod retention;
mod page;
mod outside;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use outside::OutsideOptions;
use retention::Retention;

/// Why the shop could not open: a sentence for the person who started it.
type StartError = Box<dyn std::error::Error + Send + Sync>;

/// The demo shop of Steadfast: every order happens once, however often it is sent.
///
/// Without a subcommand it serves. Start it, and it prints what to try.
#[derive(Parser)]
#[command(name = "shop", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeOptions,
}

#[derive(Subcommand)]
enum Command {
    /// Opens the shop and serves until Ctrl-C or SIGTERM
    Serve(ServeOptions),
    /// Runs the outside world to practise on: mail, payments, shipping and webhooks that can be told to fail
    Outside(OutsideOptions),
}

/// How the shop is opened.
#[derive(Args)]
pub(crate) struct ServeOptions {
    /// Address to listen on [default: 127.0.0.1:7878, or the next free port]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Database: sqlite://FILE or postgres://USER@HOST/NAME; several processes may share one
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true, default_value = sqlite::DEFAULT_URL)]
    database_url: String,
    /// Turn the shop into a fault lab: requests may hold, fail, panic or kill the process (see GET /lab)
    #[arg(long)]
    lab: bool,
    /// How long answers are kept and replayed, of one operation (payments.make=1s) or of all [default: 24h]
    #[arg(long, value_name = "[OPERATION=]DURATION", value_parser = Retention::read)]
    retention: Vec<Retention>,
    /// Where the outside world is, as `shop outside` prints it: orders are shown with a shipping quote from there
    #[arg(long, value_name = "URL")]
    outside: Option<String>,
    /// How often expired keys are purged, roughly [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = steadfast::parse_duration)]
    purge_every: Option<Duration>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn")))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    steadfast::telemetry::install_prometheus();

    let ended = match cli.command {
        Some(Command::Outside(options)) => outside::serve(&options).await,
        Some(Command::Serve(options)) => serve(&options).await,
        None => serve(&cli.serve).await,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            match error.downcast_ref::<steadfast::Error>() {
                // Its debug form has the code and the causes.
                Some(error) => eprintln!("{error:?}"),
                None => eprintln!("error: {error}"),
            }
            ExitCode::FAILURE
        }
    }
}

/// The URL decides on which database the shop opens.
async fn serve(options: &ServeOptions) -> Result<(), StartError> {
    let scheme = options.database_url.split(':').next().unwrap_or_default();
    match scheme {
        "sqlite" => {
            sqlite::make_directory(&options.database_url)?;
            sqlite::open::serve(options).await
        }
        "postgres" | "postgresql" => postgres::open::serve(options).await,
        // Only the scheme is repeated: what follows it may hold a password.
        other => Err(format!(
            "the database URL begins with {other:?}; the shop runs on sqlite: and postgres: URLs, for example \
             --database-url {} or --database-url postgres://postgres@127.0.0.1/postgres",
            sqlite::DEFAULT_URL
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[tokio::test]
    async fn a_url_of_another_database_is_refused_without_its_password() {
        let options = ServeOptions {
            listen: None,
            database_url: "mysql://root:secret@localhost/shop".into(),
            lab: false,
            retention: Vec::new(),
            outside: None,
            purge_every: None,
        };
        let error = serve(&options).await.expect_err("MySQL is not ours").to_string();
        assert!(error.contains("\"mysql\"") && error.contains("sqlite:"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
