//! The demo shop: orders and payments that happen once, however often they are asked for.
//!
//! The way of a request: `auth` says who asks, `lab` may prepare an accident, Steadfast claims the key and reads the body,
//! and a command of `orders` or `payments` writes the row and publishes what has happened. `order` and `payment` hold what is
//! sold and the rules of it. After the commit some process, this one or a worker, delivers the `events` to those who react,
//! `stock` and `mail`, to customers who look on, by `live` (and `across` processes), and beyond the process, by `sinks`. The same
//! processes do the `jobs` that commands have enqueued, and write the `digest` of each day.
//!
//! The stock may be kept elsewhere: then `shop warehouse` has it, in a database of its own. Orders go there by a broker, and by
//! `sources` comes back what `warehouse` notes.
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
mod events;
mod jobs;
mod stock;
mod mail;
mod digest;
mod live;
mod across;
mod sinks;
mod sources;
mod warehouse;
mod problem;
mod quotes;
mod outside_url;
mod retention;
mod page;
mod outside;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use lab::DeliveryFault;
use outside::OutsideOptions;
use retention::Retention;
use sinks::SinkOptions;

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
    /// Runs beside shops on the same database: reserves stock, sends mail and writes digests for them, and sells nothing
    Worker(ProcessOptions),
    /// Keeps the stock of shops that know it by --source, in a database of its own: reserves what they sell, once, and tells them
    Warehouse(WarehouseOptions),
    /// Runs the outside world to practise on: mail, payments, shipping and webhooks that can be told to fail
    Outside(OutsideOptions),
}

/// How the shop is opened.
#[derive(Args)]
pub(crate) struct ServeOptions {
    #[command(flatten)]
    process: ProcessOptions,
    /// How long answers are kept and replayed, of one operation (payments.make=1s) or of all [default: 24h]
    #[arg(long, value_name = "[OPERATION=]DURATION", value_parser = Retention::read)]
    retention: Vec<Retention>,
    /// How long a customer may take to pay for an order before he is reminded of it, once
    #[arg(long, value_name = "DURATION", default_value = "2d", value_parser = jobs::read_remind_after)]
    remind_after: Duration,
    /// Publish and enqueue only, and leave the rest to other processes: shop worker
    #[arg(long)]
    no_dispatch: bool,
}

/// What a process of a shop needs to know, whether it serves or only works.
#[derive(Args)]
pub(crate) struct ProcessOptions {
    #[command(flatten)]
    node: NodeOptions,
    /// Database: sqlite://FILE or postgres://USER@HOST/NAME; several processes may share one
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true, default_value = sqlite::DEFAULT_URL)]
    database_url: String,
    /// Where the outside world is, as `shop outside` prints it: orders are shown with a shipping quote from there, and mail is
    /// sent through it
    #[arg(long, value_name = "URL")]
    outside: Option<String>,
    #[command(flatten)]
    sinks: SinkOptions,
    /// The broker between this shop and its warehouse (shop warehouse): amqp(s):// or rabbitmq://, nats:// or tls://, redis(s)://.
    /// Orders go there, as with --sink, and what the warehouse has reserved comes from there. The stock is the warehouse's then, and
    /// this process reserves nothing: give it to every shop and worker on this database, or to none
    #[arg(long, value_name = "URL")]
    source: Option<String>,
    /// What tells other processes on this PostgreSQL of what customers hear live, instead of its NOTIFY: redis(s)://, nats:// or
    /// tls://. Give it to every shop and worker on this database, or to none
    #[arg(long, value_name = "URL")]
    push_across: Option<String>,
}

/// How a warehouse is opened.
#[derive(Args)]
pub(crate) struct WarehouseOptions {
    #[command(flatten)]
    node: NodeOptions,
    /// Database of the warehouse alone: sqlite://FILE or postgres://USER@HOST/NAME; several warehouses may share one
    #[arg(
        long,
        value_name = "URL",
        env = "WAREHOUSE_DATABASE_URL",
        hide_env_values = true,
        default_value = sqlite::DEFAULT_WAREHOUSE_URL
    )]
    database_url: String,
    /// The broker between shops and this warehouse, which the shops have as --source: amqp(s):// or rabbitmq://, nats:// or tls://,
    /// redis(s)://. Orders come from there, and what is reserved goes there. What that needs is created
    #[arg(long, value_name = "URL")]
    source: String,
    /// What the shops' events are called there: their --sink-name
    #[arg(long, value_name = "NAME", default_value = "shop", value_parser = sinks::read_name)]
    source_name: String,
}

/// What every process needs to know.
#[derive(Args)]
pub(crate) struct NodeOptions {
    /// Address to listen on [default: the first free port of 127.0.0.1, from 7878 on, of a worker from 7898 on, of a warehouse
    /// from 7918 on]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Turn the process into a fault lab: requests, deliveries and messages may hold, fail, panic or kill it (see GET /lab)
    #[arg(long)]
    lab: bool,
    /// An accident for deliveries, jobs or messages from a broker, in the lab only: stock.reserve:kill=after_handler@1 (see GET /lab)
    #[arg(long, value_name = "FAULT", requires = "lab", value_parser = DeliveryFault::read)]
    fault: Vec<DeliveryFault>,
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
        Some(Command::Worker(options)) => work(&options).await,
        Some(Command::Warehouse(options)) => keep_stock(&options).await,
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

async fn serve(options: &ServeOptions) -> Result<(), StartError> {
    match Engine::of(&options.process.database_url)? {
        Engine::Sqlite => sqlite::open::serve(options).await,
        Engine::Postgres => postgres::open::serve(options).await,
    }
}

async fn work(options: &ProcessOptions) -> Result<(), StartError> {
    match Engine::of(&options.database_url)? {
        Engine::Sqlite => sqlite::open::work(options).await,
        Engine::Postgres => postgres::open::work(options).await,
    }
}

async fn keep_stock(options: &WarehouseOptions) -> Result<(), StartError> {
    match Engine::of(&options.database_url)? {
        Engine::Sqlite => sqlite::open::keep_stock(options).await,
        Engine::Postgres => postgres::open::keep_stock(options).await,
    }
}

enum Engine {
    Sqlite,
    Postgres,
}

impl Engine {
    /// The URL decides on which database the shop opens.
    fn of(url: &str) -> Result<Self, StartError> {
        match url.split(':').next().unwrap_or_default() {
            "sqlite" => {
                sqlite::make_directory(url)?;
                Ok(Self::Sqlite)
            }
            "postgres" | "postgresql" => Ok(Self::Postgres),
            // Only the scheme is repeated: what follows it may hold a password.
            other => Err(format!(
                "the database URL begins with {other:?}; the shop runs on sqlite: and postgres: URLs, for example \
                 --database-url {} or --database-url postgres://postgres@127.0.0.1/postgres",
                sqlite::DEFAULT_URL
            )
            .into()),
        }
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

    #[test]
    fn a_url_of_another_database_is_refused_without_its_password() {
        let refused = Engine::of("mysql://root:secret@localhost/shop").err();
        let error = refused.expect("MySQL is not ours").to_string();
        assert!(error.contains("\"mysql\"") && error.contains("sqlite:"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn accidents_for_deliveries_are_taken_in_the_lab_only() {
        let read = |arguments: &[&str]| {
            Cli::try_parse_from(arguments)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        let of_a_warehouse = ["shop", "warehouse", "--source", "nats://127.0.0.1"];
        for command in [&["shop", "serve"][..], &["shop", "worker"], &of_a_warehouse] {
            let read = |flags: &[&str]| read(&[command, flags].concat());
            assert_eq!(read(&["--lab", "--fault", "panic@1"]), Ok(()));
            let refused = read(&["--fault", "panic"]).expect_err("no lab");
            assert!(refused.contains("--lab"), "{refused}");
            let sink = read(&["--lab", "--fault", "shop.nats:kill=before_finish@1"]);
            assert_eq!(sink, Ok(()));
            let unknown = read(&["--lab", "--fault", "explode"]).expect_err("no fault");
            assert!(unknown.contains("hold=500ms"), "{unknown}");
        }
    }

    #[test]
    fn a_warehouse_says_where_its_orders_come_from() {
        let refused = Cli::try_parse_from(["shop", "warehouse"])
            .map(drop)
            .expect_err("no source");
        assert!(refused.to_string().contains("--source <URL>"), "{refused}");
    }
}
