#![doc = include_str!("../README.md")]
//!
//! # The way of a command
//!
//! Read the modules in this order and you follow one command from the socket to the stored answer:
//!
//! 1. `transport::axum`: a header becomes a key, a body an input.
//! 2. `command::execute`: begin, claim, handler, settle, commit. The one place where transactions begin and end.
//! 3. [`Tx`]: what a handler writes with.
//! 4. `store`: the two databases, statement by statement.
//!
//! # Features
//!
//! | feature | gives |
//! |---|---|
//! | `sqlite` | `Steadfast<Sqlite>`, with SQLite compiled in |
//! | `postgres` | `Steadfast<Postgres>`, with rustls and ring |
//! | `axum` | [`Steadfast::idempotent`], [`CmdTx`], [`Steadfast::routes`], [`Steadfast::serve`] |
//! | `prometheus` | the recorder behind `/metrics` |
//! | `testing` | [`testing::Observer`], which sees a command pass its crash points |
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "axum", feature = "testing")),
    allow(
        dead_code,
        unreachable_pub,
        rustdoc::broken_intra_doc_links,
        reason = "the common ground is written for all of them, and described with all of them"
    )
)]

mod command;
mod tx;
mod caller;
mod audit;
mod failure;
mod error;
mod clock;
mod purge;
mod store;
#[cfg(feature = "axum")]
mod transport;
mod steadfast;
#[cfg(feature = "axum")]
mod runtime;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;

pub use audit::AuditEntry;
pub use caller::{Caller, CallerCommand};
pub use clock::{Clock, parse_duration};
pub use command::{
    ANSWER_LENGTH_MAX, AsyncOnce, AsyncRerun, Command, Conflict, FingerprintPolicy, KEY_LENGTH_MAX, Key, KeyAnswer,
    KeyLookUp, KeyState, Owner, Quota, Reply, Scope, Secret, StoreFailures,
};
pub use error::{Code, Error, Result};
pub use failure::{Failure, FailureClass, FailureKind};
pub use purge::Purged;
pub use steadfast::{Builder, Steadfast};
pub use store::Database;
#[cfg(feature = "axum")]
pub use transport::axum::{Idempotent, IdempotentService, KeyRequirement};
#[cfg(feature = "axum")]
pub use transport::cmd_tx::CmdTx;
pub use tx::Tx;

pub use sqlx;

/// A transaction on PostgreSQL.
#[cfg(feature = "postgres")]
pub type PgTx = Tx<sqlx::Postgres>;
/// A transaction on SQLite.
#[cfg(feature = "sqlite")]
pub type SqliteTx = Tx<sqlx::Sqlite>;
