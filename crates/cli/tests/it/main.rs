//! The command line as an operator meets it: the real binary, on real databases of both kinds.
//!
//! The files in `suite` are compiled twice, below `sqlite` and below `postgres`; `super::Database` is a fresh database of
//! that kind.

#![allow(
    clippy::unwrap_used,
    reason = "in a test a surprise is a failure, and its line is what one wants to see"
)]
#![allow(clippy::duplicate_mod, reason = "one suite for two databases, see above")]

mod sqlite;
mod postgres;
#[cfg(target_os = "linux")]
mod pooler;
mod process;
mod private;
mod offline;
mod cron;
mod brokers;
mod nats;
mod rabbitmq;
mod redis;
mod webhooks;
mod guide;

use std::time::Duration;

/// How long a fact may take to become true: much longer than it does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something holds.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = tokio::time::timeout(PATIENCE, asking).await;
    assert!(ended.is_ok(), "waited {PATIENCE:?} in vain until {what}");
}
