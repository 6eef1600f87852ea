//! What can be asked for on the command line.
//!
//! `cargo xtask chaos` compiles this file as well: it answers `--help` and refuses a wrong word before anything is
//! built, and sees which servers are needed. So there is nothing but `clap` in here.

use std::hash::{BuildHasher, RandomState};

/// What is broken
#[derive(clap::Subcommand)]
pub(crate) enum Chaos {
    Command(CommandOptions),
    Outbox(OutboxOptions),
    Inbox(InboxOptions),
}

/// Two shops on one database, clients that retry, and accidents; then every key is judged
///
/// A run ends when every amount is reached. It fails if a promise was broken, or if something that should have happened
/// never did. Its choices follow from the seed; what the machine makes of them does not.
#[derive(clap::Args)]
pub(crate) struct CommandOptions {
    #[command(flatten)]
    common: Common,

    /// How many commands the clients send, retries not counted [default: 500000; 12000 with --quick]
    #[arg(long, value_name = "N")]
    commands: Option<u64>,

    /// How often a shop is killed with -9 [default: 1000; 60 with --quick]
    #[arg(long, value_name = "N")]
    kills: Option<u64>,

    /// How often PostgreSQL is crashed [default: 100; 6 with --quick]
    #[arg(long, value_name = "N")]
    crashes: Option<u64>,

    /// How many COMMITs lose their connection or their reply [default: 5000; 200 with --quick]
    #[arg(long, value_name = "N")]
    cuts: Option<u64>,
}

/// Two shops and a worker that send every event to three brokers, and all of them are killed; then every message is judged
///
/// The brokers are RabbitMQ, NATS and Redis, each of its own. A run ends when every amount is reached. It fails if a message is
/// missing at a broker, is there twice without a recorded cause or was never published, or if something that should have
/// happened never did.
#[derive(clap::Args)]
pub(crate) struct OutboxOptions {
    #[command(flatten)]
    common: Common,

    /// How many commands the clients send, retries not counted [default: 100000; 4000 with --quick]
    #[arg(long, value_name = "N")]
    commands: Option<u64>,

    /// How often a shop or the worker is killed with -9 [default: 500; 36 with --quick]
    #[arg(long, value_name = "N")]
    kills: Option<u64>,

    /// How often a broker is killed with -9, each in its turn [default: 90; 6 with --quick]
    #[arg(long, value_name = "N")]
    broker_kills: Option<u64>,
}

/// Two shops and two warehouses, each pair on a database of its own, with a broker between them, and all of it is killed; then every
/// order is judged
///
/// A run ends when every amount is reached. It fails if an order is not reserved exactly once in the warehouse, or not shown as
/// reserved exactly once in the shop, if anything else is, if a message is dead or left at the broker, or if something that should
/// have happened never did.
#[derive(clap::Args)]
pub(crate) struct InboxOptions {
    #[command(flatten)]
    common: Common,

    /// The broker between them [default: by chance]
    #[arg(long, value_enum)]
    broker: Option<BrokerKind>,

    /// How many commands the clients send, retries not counted [default: 100000; 5000 with --quick]
    #[arg(long, value_name = "N")]
    commands: Option<u64>,

    /// How often a shop or a warehouse is killed with -9 [default: 500; 48 with --quick]
    #[arg(long, value_name = "N")]
    kills: Option<u64>,

    /// How often the broker is killed with -9 [default: 30; 3 with --quick]
    #[arg(long, value_name = "N")]
    broker_kills: Option<u64>,

    /// How often PostgreSQL, which has both databases, is crashed [default: 30; 3 with --quick]
    #[arg(long, value_name = "N")]
    crashes: Option<u64>,

    /// How many COMMITs lose their connection or their reply [default: 2000; 60 with --quick]
    #[arg(long, value_name = "N")]
    cuts: Option<u64>,
}

/// What every run knows.
#[derive(clap::Args)]
struct Common {
    /// The database of the shops; with sqlite there is no server to crash and no connection to cut
    #[arg(long, value_enum, default_value = "postgres")]
    database: Database,

    /// Small amounts, as in CI: two or three minutes on two cores
    #[arg(long)]
    quick: bool,

    /// How many clients there are
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=1000))]
    clients: u16,

    /// Repeats the choices of another run [default: by chance]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// One line of JSON for each witness, instead of a table
    #[arg(long)]
    json: bool,
}

/// A run, as it was asked for.
pub(crate) struct Run {
    pub(crate) kind: Kind,
    pub(crate) database: Database,
    /// The broker between shops and warehouses.
    pub(crate) broker: BrokerKind,
    pub(crate) amounts: Amounts,
    pub(crate) clients: u16,
    pub(crate) seed: u64,
    pub(crate) json: bool,
}

/// Who suffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Command,
    Outbox,
    Inbox,
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amounts {
    pub(crate) commands: u64,
    pub(crate) kills: u64,
    pub(crate) crashes: u64,
    pub(crate) cuts: u64,
    pub(crate) broker_kills: u64,
}

impl Chaos {
    pub(crate) fn run(&self) -> Run {
        match self {
            Self::Command(options) => options.run(),
            Self::Outbox(options) => options.run(),
            Self::Inbox(options) => options.run(),
        }
    }
}

impl CommandOptions {
    fn run(&self) -> Run {
        let common = &self.common;
        let on_a_server = |amount: u64| common.on_a_server(amount);
        common.run(
            Kind::Command,
            Amounts {
                commands: common.amount(self.commands, 12_000, 500_000),
                kills: common.amount(self.kills, 60, 1_000),
                crashes: on_a_server(common.amount(self.crashes, 6, 100)),
                cuts: on_a_server(common.amount(self.cuts, 200, 5_000)),
                broker_kills: 0,
            },
        )
    }
}

impl OutboxOptions {
    fn run(&self) -> Run {
        let common = &self.common;
        common.run(
            Kind::Outbox,
            Amounts {
                commands: common.amount(self.commands, 4_000, 100_000),
                kills: common.amount(self.kills, 36, 500),
                crashes: 0,
                cuts: 0,
                broker_kills: common.amount(self.broker_kills, 6, 90),
            },
        )
    }
}

impl InboxOptions {
    fn run(&self) -> Run {
        let common = &self.common;
        let run = common.run(
            Kind::Inbox,
            Amounts {
                commands: common.amount(self.commands, 5_000, 100_000),
                kills: common.amount(self.kills, 48, 500),
                crashes: common.on_a_server(common.amount(self.crashes, 3, 30)),
                cuts: common.on_a_server(common.amount(self.cuts, 60, 2_000)),
                broker_kills: common.amount(self.broker_kills, 3, 30),
            },
        );
        Run {
            broker: self.broker.unwrap_or(run.broker),
            ..run
        }
    }
}

impl Common {
    fn on_a_server(&self, amount: u64) -> u64 {
        match self.database {
            Database::Postgres => amount,
            Database::Sqlite => 0,
        }
    }

    fn amount(&self, asked: Option<u64>, quick: u64, full: u64) -> u64 {
        asked.unwrap_or(if self.quick { quick } else { full })
    }

    fn run(&self, kind: Kind, amounts: Amounts) -> Run {
        // Short enough to be read aloud.
        let seed = self.seed.unwrap_or_else(|| RandomState::new().hash_one(0) % 1_000_000);
        let brokers = [BrokerKind::Rabbitmq, BrokerKind::Nats, BrokerKind::Redis];
        Run {
            kind,
            database: self.database,
            broker: brokers[(seed % 3) as usize],
            amounts,
            clients: self.clients,
            seed,
            json: self.json,
        }
    }
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Outbox => "outbox",
            Self::Inbox => "inbox",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Database {
    Postgres,
    Sqlite,
}

impl Database {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BrokerKind {
    Rabbitmq,
    Nats,
    Redis,
}
