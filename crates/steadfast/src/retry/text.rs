//! A policy as it is written: `retries = 5, backoff = exponential("200ms"), cap = "10s", jitter = full, max_age = "1h"`.
//!
//! The macros compile this same file (`crates/macros/src/retry/text.rs` is a link to it).

use std::time::Duration;

use super::backoff::{Backoff, Jitter, RETRIES_MAX, Refusal, Settings};
use crate::duration;
use crate::words::{did_you_mean, list};

const OPTIONS: [&str; 5] = ["retries", "backoff", "cap", "jitter", "max_age"];
const BACKOFFS: [&str; 4] = ["immediate", "constant", "linear", "exponential"];
const JITTERS: [&str; 4] = ["none", "full", "equal", "decorrelated"];

/// Reads one option after the other.
pub(super) struct Reader {
    settings: Settings,
    seen: Vec<String>,
}

impl Reader {
    pub(super) fn new() -> Self {
        Self {
            settings: Settings::DEFAULT,
            seen: Vec::new(),
        }
    }

    /// Reads `name = value`. What is wrong is said with what to write instead.
    pub(super) fn option(&mut self, text: &str) -> Result<(), String> {
        let Some((name, value)) = text.split_once('=') else {
            return Err(format!("`{}` has no value; write `name = value`", text.trim()));
        };
        let (name, value) = (name.trim(), value.trim());
        if self.seen.iter().any(|seen| seen == name) {
            return Err(format!("`{name}` is there twice; once is enough"));
        }
        match name {
            "retries" => self.settings.retries = retries(value)?,
            "backoff" => self.settings.backoff = backoff(value)?,
            "cap" => self.settings.cap = time(value)?,
            "jitter" => self.settings.jitter = jitter(value)?,
            "max_age" => self.settings.max_age = Some(time(value)?),
            _ => {
                return Err(format!(
                    "`{name}` is no option of a retry policy; write {}{}",
                    list(&OPTIONS),
                    did_you_mean(name, &OPTIONS)
                ));
            }
        }
        self.seen.push(name.to_owned());
        Ok(())
    }

    pub(super) fn end(self) -> Result<Settings, Refusal> {
        self.settings.check()?;
        Ok(self.settings)
    }
}

fn retries(value: &str) -> Result<u32, String> {
    let number = value.replace("- ", "-");
    number
        .parse()
        .map_err(|_| format!("{number} is no number of retries; write 0 to {RETRIES_MAX}, where 5 means six attempts"))
}

fn backoff(value: &str) -> Result<Backoff, String> {
    let (word, base) = match value.split_once('(') {
        Some((word, base)) => (word.trim(), base.trim().strip_suffix(')').map(str::trim)),
        None => (value, None),
    };
    let kind: fn(Duration) -> Backoff = match word {
        "immediate" if value == word => return Ok(Backoff::Immediate),
        "constant" => Backoff::Constant,
        "linear" => Backoff::Linear,
        "exponential" => Backoff::Exponential,
        _ => return Err(unknown("backoff", value, word, &BACKOFFS)),
    };
    match base {
        Some(base) => time(base).map(kind),
        None => Err(format!(
            "`backoff = {word}` has no delay; write `backoff = {word}(\"200ms\")`"
        )),
    }
}

fn jitter(value: &str) -> Result<Jitter, String> {
    match value {
        "none" => Ok(Jitter::None),
        "full" => Ok(Jitter::Full),
        "equal" => Ok(Jitter::Equal),
        "decorrelated" => Ok(Jitter::Decorrelated),
        _ => Err(unknown("jitter", value, value, &JITTERS)),
    }
}

fn time(value: &str) -> Result<Duration, String> {
    let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    quoted.and_then(duration::read).ok_or_else(|| {
        format!("{value} is not a duration; write a whole number and a unit in quotes: \"500ms\", \"30s\", \"5m\", \"24h\" or \"7d\"")
    })
}

fn unknown(option: &str, value: &str, word: &str, known: &[&str]) -> String {
    format!(
        "`{option} = {value}` is not known; write {}{}",
        list(known),
        did_you_mean(word, known)
    )
}
