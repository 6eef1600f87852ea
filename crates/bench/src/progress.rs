//! How far the run is, for whoever waits at a terminal: one line on standard error that is written over.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Characters of the bar: a line with it and a case's name fits 80 columns.
const WIDTH: usize = 24;

pub(crate) struct Progress {
    total: usize,
    done: AtomicUsize,
    is_shown: bool,
}

impl Progress {
    /// For so many slices.
    pub(crate) fn new(total: usize) -> Self {
        Self {
            total,
            done: AtomicUsize::new(0),
            is_shown: io::stderr().is_terminal(),
        }
    }

    /// A slice begins.
    pub(crate) fn begin(&self, what: &str) {
        let done = self.done.fetch_add(1, Ordering::Relaxed);
        self.show(done as f64 / self.total.max(1) as f64, what);
    }

    /// A preparation that takes its time has come so far.
    pub(crate) fn prepare(&self, part: f64, what: &str) {
        self.show(part, what);
    }

    /// A sentence that stays. Where there is no terminal, this is all one sees.
    pub(crate) fn say(&self, sentence: &str) {
        self.clear();
        eprintln!("{sentence}");
    }

    /// Leaves no trace.
    pub(crate) fn clear(&self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }

    fn show(&self, part: f64, what: &str) {
        if !self.is_shown {
            return;
        }
        eprint!("\r\x1b[K{} {:3.0} %  {what}", bar(part), part * 100.0);
        // A bar that cannot be drawn is no reason to stop measuring.
        let _ = io::stderr().flush();
    }
}

fn bar(part: f64) -> String {
    let full = ((part * WIDTH as f64) as usize).min(WIDTH);
    format!("{}{}", "█".repeat(full), "░".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_and_never_overflows() {
        let full = |part| bar(part).matches('█').count();
        assert_eq!((full(0.0), full(0.5), full(1.0), full(1.5)), (0, 12, 24, 24));
        assert_eq!(bar(0.3).chars().count(), WIDTH);
    }
}
