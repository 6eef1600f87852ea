//! A duration as it is written in options.
//!
//! The macros compile this same file (`crates/macros/src/duration.rs` is a link to it): what an attribute accepts at
//! compile time and what a setting accepts at run time cannot differ.

use std::time::Duration;

/// A whole number and a unit: `500ms`, `30s`, `5m`, `24h`, `7d`.
pub(crate) fn read(text: &str) -> Option<Duration> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let millis_per_unit = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let number: u64 = number.parse().ok()?;
    number.checked_mul(millis_per_unit).map(Duration::from_millis)
}
