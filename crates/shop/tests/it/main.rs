//! The shop as its users meet it: the real binary, real sockets, real kills, on both databases.
//!
//! The files in `suite` are compiled twice, below `sqlite` and below `postgres`; `super::Database` is a fresh database
//! of that kind. A test waits for facts, with a bound, and never sleeps to be right.

#![allow(
    clippy::unwrap_used,
    reason = "in a test a surprise is a failure, and its line is what one wants to see"
)]
#![allow(clippy::duplicate_mod, reason = "one suite for two databases, see above")]

mod sqlite;
mod postgres;
mod outside;
mod process;
mod http;
mod browser;

use std::time::Duration;

/// How long a fact may take to become true: much longer than it does, so that only a broken shop gets there. A process that was killed
/// outside of the lab holds its leases for 30 seconds.
const PATIENCE: Duration = Duration::from_secs(90);

/// How often is asked whether it has.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Waits until something holds.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !holds().await {
            tokio::time::sleep(ASK_EVERY).await;
        }
    };
    let ended = tokio::time::timeout(PATIENCE, asking).await;
    assert!(ended.is_ok(), "waited {PATIENCE:?} in vain until {what}");
}
