//! How answers are shown: tables for people, one JSON object a line for programs.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use steadfast_terminal::table;

use crate::error::{CliError, Exit, Result};

/// Where answers go, and in which form.
pub(crate) struct Output {
    pub(crate) is_json: bool,
    has_color: bool,
}

/// The colours that mean something.
#[derive(Clone, Copy)]
pub(crate) enum Color {
    Red = 31,
    Green = 32,
    Yellow = 33,
}

impl Output {
    pub(crate) fn new(is_json: bool, has_color: bool) -> Self {
        Self { is_json, has_color }
    }

    /// Writes text. Whoever reads it may have seen enough: a pipe that is closed is not trouble.
    pub(crate) fn print(&self, text: &str) -> Result<()> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::new(
                Exit::Failed,
                "the answer could not be written",
                "look where the output goes",
            )
            .because(&error)),
            _ => Ok(()),
        }
    }

    /// Writes records: each as an object of its own, or all of them as a table.
    pub(crate) fn records<T: Serialize>(
        &self,
        records: &[T],
        header: &[&str],
        row: impl Fn(&T) -> Vec<String>,
    ) -> Result<()> {
        if self.is_json {
            return self.objects(records);
        }
        if records.is_empty() {
            self.remark("there are none");
            return Ok(());
        }
        let rows: Vec<_> = records.iter().map(row).collect();
        self.print(&table(header, &rows))
    }

    /// Writes each record as a JSON object on a line of its own.
    pub(crate) fn objects<T: Serialize>(&self, records: &[T]) -> Result<()> {
        let mut text = String::new();
        for record in records {
            let line = serde_json::to_string(record).map_err(|error| {
                CliError::new(Exit::Failed, "the answer is not JSON", "report it as a mistake of ours").because(&error)
            })?;
            text.push_str(&line);
            text.push('\n');
        }
        self.print(&text)
    }

    /// Writes one thing: as an object, or as lines of a name and a value.
    pub(crate) fn record<T: Serialize>(&self, record: &T, lines: &[(&str, String)]) -> Result<()> {
        if self.is_json {
            return self.objects(std::slice::from_ref(record));
        }
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for (name, value) in lines {
            let _ = writeln!(text, "{name:width$}  {value}");
        }
        self.print(&text)
    }

    /// A remark beside the answer, for people only.
    pub(crate) fn remark(&self, text: &str) {
        if !self.is_json {
            eprintln!("{text}");
        }
    }

    pub(crate) fn paint(&self, color: Color, text: &str) -> String {
        if self.has_color {
            format!("\x1b[{}m{text}\x1b[0m", color as u8)
        } else {
            text.to_owned()
        }
    }
}

/// Whether the answer goes to a person who sees colours.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Stored text, safe on a terminal: what would move the cursor, colour it or turn the writing around is spelled out.
pub(crate) fn escape(text: &str) -> String {
    let is_risky = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if is_risky(character) {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe
}

/// A moment as people say it: `3 min ago`, `in 23 h`.
pub(crate) fn relative(at: SystemTime, now: SystemTime) -> String {
    match now.duration_since(at) {
        Ok(age) => format!("{} ago", rounded(age)),
        Err(ahead) => format!("in {}", rounded(ahead.duration())),
    }
}

/// A time as people say it: `3 min`.
pub(crate) fn rounded(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A size as people say it: `1.5 MB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if bytes < 1_000 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1_000.0;
    let mut unit = 0;
    while size >= 999.95 && unit + 1 < UNITS.len() {
        size /= 1_000.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_move_the_cursor_is_spelled_out() {
        assert_eq!(escape("plain, ä and 茶"), "plain, ä and 茶");
        assert_eq!(escape("a\x1b[2Jb\n\r\u{202e}"), "a\\u{1b}[2Jb\\n\\r\\u{202e}");
    }

    #[test]
    fn sizes_are_rounded_for_reading() {
        assert_eq!(
            [0, 999, 1_000, 1_540_000, 999_960_000, 2_000_000_000_000_000].map(bytes),
            ["0 B", "999 B", "1.0 kB", "1.5 MB", "1.0 GB", "2000.0 TB"]
        );
    }

    #[test]
    fn times_are_rounded_for_reading() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let ago = |seconds| relative(now - Duration::from_secs(seconds), now);
        assert_eq!(
            [ago(0), ago(59), ago(200), ago(7_300)],
            ["0 s ago", "59 s ago", "3 min ago", "2 h ago"]
        );
        assert_eq!(relative(now + Duration::from_secs(172_800), now), "in 2 d");
    }
}
