//! `steadfast cron next`: when a cron expression is due, before a service has it. It needs no database.

use std::iter;
use std::time::SystemTime;

use serde::Serialize;
use steadfast::{Cron, rfc3339};

use crate::Context;
use crate::cron_options::NextOptions;
use crate::error::{Exit, Result};

#[derive(Serialize)]
struct Shown {
    at: String,
    local: String,
    weekday: &'static str,
}

pub(crate) fn next(context: &Context, options: &NextOptions) -> Result<Exit> {
    let cron = Cron::parse(&options.expression, &options.tz)?;
    let after = match &options.after {
        Some(after) => cron.moment(after)?,
        None => SystemTime::now(),
    };
    let ticks = iter::successors(cron.next_after(after), |tick| cron.next_after(*tick));
    let shown: Vec<_> = ticks
        .take(options.count as usize)
        .map(|tick| {
            let local = cron.local(tick);
            Shown {
                at: rfc3339(tick),
                weekday: weekday(&local),
                local,
            }
        })
        .collect();
    context
        .output
        .records(&shown, &["day", "local", "offset", "utc"], |tick| {
            let (local, offset) = tick.local.split_at("2026-03-29T03:00:00".len());
            vec![
                tick.weekday.to_owned(),
                local.replace('T', " "),
                offset.to_owned(),
                tick.at.clone(),
            ]
        })?;
    Ok(Exit::Ok)
}

/// The weekday of a date that is written as RFC 3339 has it, by Zeller's congruence.
fn weekday(local: &str) -> &'static str {
    const NAMES: [&str; 7] = ["Sat", "Sun", "Mon", "Tue", "Wed", "Thu", "Fri"];
    let number = |range: std::ops::Range<usize>| local.get(range).and_then(|digits| digits.parse().ok()).unwrap_or(1);
    let (year, month, day): (usize, usize, usize) = (number(0..4), number(5..7), number(8..10));
    // January and February belong to the year before.
    let (year, month) = if month < 3 {
        (year - 1, month + 12)
    } else {
        (year, month)
    };
    NAMES[(day + 13 * (month + 1) / 5 + year + year / 4 - year / 100 + year / 400) % 7]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_its_weekday() {
        for (date, day) in [
            ("1970-01-01", "Thu"),
            ("2000-02-29", "Tue"),
            ("2026-03-29", "Sun"),
            ("2100-03-01", "Mon"),
        ] {
            assert_eq!(weekday(date), day, "{date}");
        }
    }
}
