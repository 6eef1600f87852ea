//! The ways in. A transport finds the key and the input, calls `execute`, and turns the outcome into its own words.

pub(crate) mod axum;
pub(crate) mod cmd_tx;
mod http_key;
pub(crate) mod problem;
pub(crate) mod routes;
#[cfg(feature = "service")]
pub(crate) mod service;
