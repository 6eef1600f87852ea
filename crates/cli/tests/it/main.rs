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
