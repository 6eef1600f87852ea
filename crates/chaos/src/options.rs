//! What can be asked for on the command line.
//!
//! `cargo xtask chaos` compiles this file as well: it answers `--help` and refuses a wrong word before anything is
//! built, and sees whether a server is needed. So there is nothing but `clap` in here.

use std::hash::{BuildHasher, RandomState};

/// What is broken
#[derive(clap::Subcommand)]
pub(crate) enum Chaos {
    Command(Options),
}

impl Chaos {
    pub(crate) fn options(&self) -> &Options {
        match self {
            Self::Command(options) => options,
        }
    }
}

/// Two shops on one database, clients that retry, and accidents; then every key is judged
///
/// A run ends when every amount is reached. It fails if a promise was broken, or if something that should have happened
/// never did. Its choices follow from the seed; what the machine makes of them does not.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The database of the shops; with sqlite there is no server to crash and no connection to cut
    #[arg(long, value_enum, default_value = "postgres")]
    pub(crate) database: Database,

    /// Small amounts, as in CI: about three minutes on two cores
    #[arg(long)]
    pub(crate) quick: bool,

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

    /// How many clients there are
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) clients: u16,

    /// Repeats the choices of another run [default: by chance]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// One line of JSON for each witness, instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amounts {
    pub(crate) commands: u64,
    pub(crate) kills: u64,
    pub(crate) crashes: u64,
    pub(crate) cuts: u64,
}

impl Options {
    pub(crate) fn amounts(&self) -> Amounts {
        let amount = |asked: Option<u64>, quick: u64, full: u64| asked.unwrap_or(if self.quick { quick } else { full });
        let on_a_server = |amount: u64| if self.database == Database::Postgres { amount } else { 0 };
        Amounts {
            commands: amount(self.commands, 12_000, 500_000),
            kills: amount(self.kills, 60, 1_000),
            crashes: on_a_server(amount(self.crashes, 6, 100)),
            cuts: on_a_server(amount(self.cuts, 200, 5_000)),
        }
    }

    pub(crate) fn seed(&self) -> u64 {
        // Short enough to be read aloud.
        self.seed.unwrap_or_else(|| RandomState::new().hash_one(0) % 1_000_000)
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
