//! The sinks and the sources, each against the real thing.
//!
//! Tests of a broker stand in a module of its name: `cargo xtask test` brings the broker, and skips them where there is none.
//! Those that kill a broker, or change how it is set, have one of their own: [`chaos`].
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

mod across;
mod chaos;
mod chaos_nats_server;
mod chaos_rabbitmq_server;
mod chaos_redis_server;
mod foreign;
mod line;
mod memory;
mod nats;
mod order;
mod rabbitmq;
mod redis;
mod source;
mod webhook;
