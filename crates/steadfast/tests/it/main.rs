//! One suite, two databases: everything in `conformance` is compiled twice, once for each `Db`.
//!
//! Run it by `cargo xtask test`, which brings a PostgreSQL along.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]
#![allow(
    clippy::duplicate_mod,
    reason = "the conformance suite is compiled once for each database"
)]

mod harness;

mod postgres;
mod sqlite;

mod crash;
mod job_crash;
mod kit;
mod operate_crash;
mod schedule_crash;
mod outbox_crash;

#[test]
fn the_readme_shows_the_example_as_it_is() {
    let (readme, example) = (
        include_str!("../../../../README.md"),
        include_str!("../../examples/orders.rs"),
    );
    let program = example
        .split_once("use axum")
        .map(|(_, program)| program.trim())
        .unwrap();
    assert!(readme.contains(program));
}

#[test]
fn the_guide_shows_the_events_as_they_are() {
    let (guide, example) = (
        include_str!("../../../../docs/guide/outbox.md"),
        include_str!("../../examples/events.rs"),
    );
    let (_, program) = example.split_once("use serde").unwrap();
    assert!(guide.contains(program.trim()));
}

#[test]
fn the_guide_shows_the_tests_as_they_are() {
    let (guide, tests) = (
        include_str!("../../../../docs/guide/testing.md"),
        include_str!("../guide/main.rs"),
    );
    let (_, tests) = tests.split_once("use steadfast").unwrap();
    assert!(guide.contains(tests.trim()));
}
