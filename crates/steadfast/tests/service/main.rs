//! `#[steadfast::service]` from the user's side: which blocks it takes, and what it makes of them.
//!
//! What its commands promise is in `tests/it/conformance/doors.rs`, beside the other ways in; what it refuses in `tests/ui`.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

mod events;
mod guide;
mod http;
mod ladder;
mod reactions;
mod schedules;
mod shapes;
