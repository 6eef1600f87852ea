//! How far the run is, for whoever waits at a terminal.

use std::sync::atomic::{AtomicUsize, Ordering};

use steadfast_terminal::Bar;

pub(crate) struct Progress {
    total: usize,
    done: AtomicUsize,
    bar: Bar,
}

impl Progress {
    /// For so many slices.
    pub(crate) fn new(total: usize) -> Self {
        Self {
            total,
            done: AtomicUsize::new(0),
            bar: Bar::default(),
        }
    }

    /// A slice begins.
    pub(crate) fn begin(&self, what: &str) {
        let done = self.done.fetch_add(1, Ordering::Relaxed);
        self.prepare(done as f64 / self.total.max(1) as f64, what);
    }

    /// A preparation that takes its time has come so far.
    pub(crate) fn prepare(&self, part: f64, what: &str) {
        self.bar.show(part, &format!("{:3.0} %  {what}", part * 100.0));
    }

    /// A sentence that stays. Where there is no terminal, this is all one sees.
    pub(crate) fn say(&self, sentence: &str) {
        self.clear();
        eprintln!("{sentence}");
    }

    /// Leaves no trace.
    pub(crate) fn clear(&self) {
        self.bar.clear();
    }
}
