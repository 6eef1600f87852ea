//! How far the work is, for whoever waits at a terminal: one line on standard error that is written over.

use std::io::{self, IsTerminal, Write};

/// Characters of the bar: a line with it and a few words fits 80 columns.
const WIDTH: usize = 24;

/// A bar on standard error, if that is a terminal.
pub struct Bar {
    is_shown: bool,
}

impl Default for Bar {
    fn default() -> Self {
        Self {
            is_shown: io::stderr().is_terminal(),
        }
    }
}

impl Bar {
    /// Whether anybody sees it.
    pub fn is_shown(&self) -> bool {
        self.is_shown
    }

    /// Draws the bar, `part` of it full, with words behind it.
    pub fn show(&self, part: f64, words: &str) {
        if self.is_shown {
            eprint!("\r\x1b[K{} {words}", blocks(part));
            // A bar that cannot be drawn is no reason to stop.
            let _ = io::stderr().flush();
        }
    }

    /// Leaves no trace.
    pub fn clear(&self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}

fn blocks(part: f64) -> String {
    let full = ((part * WIDTH as f64) as usize).min(WIDTH);
    format!("{}{}", "█".repeat(full), "░".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_and_never_overflows() {
        let full = |part| blocks(part).matches('█').count();
        assert_eq!((full(0.0), full(0.5), full(1.0), full(1.5)), (0, 12, 24, 24));
        assert_eq!(blocks(0.3).chars().count(), WIDTH);
    }
}
