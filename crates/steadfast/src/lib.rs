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
//! | `encryption` | [`Encryption`] of stored answers, by ring |
//! | `prometheus` | the recorder behind `/metrics` |
//! | `testing` | the test kit: [`#[steadfast::test]`](macro@test), [`testing::Harness`], crashes everywhere |
#![cfg_attr(
    not(all(
        feature = "sqlite",
        feature = "postgres",
        feature = "axum",
        feature = "encryption",
        feature = "testing"
    )),
    allow(
        dead_code,
        unreachable_pub,
        rustdoc::broken_intra_doc_links,
        reason = "the common ground is written for all of them, and described with all of them"
    )
)]

mod command;
mod tx;
mod to_the_end;
mod caller;
mod page;
mod audit;
mod failure;
mod error;
mod clock;
mod purge;
mod doctor;
mod store;
#[cfg(feature = "axum")]
mod transport;
mod steadfast;
#[cfg(feature = "axum")]
mod runtime;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;

pub use audit::{AuditEntry, AuditList, AuditPage, AuditRecord};
pub use caller::{Caller, CallerCommand};
pub use clock::{Clock, parse_duration, rfc3339};
#[cfg(feature = "encryption")]
pub use command::Encryption;
pub use command::{
    ANSWER_LENGTH_MAX, AsyncOnce, AsyncRerun, Command, Conflict, FingerprintPolicy, KEY_LENGTH_MAX, Key, KeyAnswer,
    KeyId, KeyList, KeyLookUp, KeyPage, KeyState, ListedKey, Meaning, Owner, Quota, Reply, Scope, Secret,
    StoreFailures,
};
pub use doctor::{Check, Verdict};
pub use error::{Code, Error, Result};
pub use failure::{Failure, FailureClass, FailureKind};
pub use purge::{Purged, Walked};
pub use steadfast::{Builder, Steadfast};
pub use store::{Database, MigrationStatus};
#[cfg(feature = "axum")]
pub use transport::axum::{Idempotent, IdempotentService, KeyRequirement};
#[cfg(feature = "axum")]
pub use transport::cmd_tx::CmdTx;
pub use tx::Tx;

pub use sqlx;

/// Makes one async function a test on each of the databases it names: `sqlite`, `postgres` or both.
///
/// ```
/// use steadfast::testing::Harness;
///
/// #[steadfast::test(sqlite, postgres)]
/// async fn an_order_is_placed_once(t: Harness<Db>) {
///     t.assert_keys(0).await;
/// }
/// # fn main() {}
/// ```
///
/// becomes the tests `an_order_is_placed_once::sqlite` and `an_order_is_placed_once::postgres`. `Db` is
/// `steadfast::sqlx::Sqlite` in one and `steadfast::sqlx::Postgres` in the other, in the signature and in the body.
/// The test takes the [`Harness`](testing::Harness) of a fresh database, by any name, and returns nothing or a
/// `Result`. It needs no other attribute, not even a runtime's: [`testing::run`] brings one. `#[ignore]`,
/// `#[should_panic]` and other attributes are kept. The body stands in a module of the test's name, which uses
/// everything of the one around it.
///
/// Tests on PostgreSQL need a server: `TEST_DATABASE_URL=postgres://postgres@127.0.0.1:5432/postgres`. They make
/// databases of their own there, and drop them. Without one, skip them: `cargo test -- --skip ::postgres`.
///
/// What cannot be a test is refused, with what to write instead:
///
/// ```compile_fail
/// # use steadfast::testing::Harness;
/// #[steadfast::test(mysql)] // `mysql` is no database; write `sqlite`, `postgres` or both
/// async fn an_order_is_placed_once(t: Harness<Db>) {}
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// # use steadfast::testing::Harness;
/// #[steadfast::test(sqlite)]
/// fn an_order_is_placed_once(t: Harness<Db>) {} // a test of the kit is async: write `async fn`
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// # use steadfast::testing::Harness;
/// #[steadfast::test(sqlite)]
/// async fn an_order_is_placed_once() {} // a test takes the harness: write `(t: Harness<Db>)`
/// # fn main() {}
/// ```
#[cfg(feature = "testing")]
pub use steadfast_macros::test;

/// A transaction on PostgreSQL.
#[cfg(feature = "postgres")]
pub type PgTx = Tx<sqlx::Postgres>;
/// A transaction on SQLite.
#[cfg(feature = "sqlite")]
pub type SqliteTx = Tx<sqlx::Sqlite>;
