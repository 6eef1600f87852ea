//! How far the run is: a bar on a terminal, a line now and then in a log.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::error::Result;
use crate::scene::Scene;

/// Characters of the bar: a line with it fits 80 columns.
const WIDTH: usize = 20;

const BAR_EVERY: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(15);

/// How long no command at all may come to its end: much longer than any accident takes to pass.
const PATIENCE: Duration = Duration::from_secs(60);

/// Shows how far the run is, until it is stuck; whoever calls this ends it otherwise.
pub(crate) async fn show(scene: &Scene) -> Result<()> {
    let is_terminal = io::stderr().is_terminal();
    let (start, mut last) = (Instant::now(), (0, Instant::now()));
    loop {
        sleep(if is_terminal { BAR_EVERY } else { LINE_EVERY }).await;
        let line = line(scene, start.elapsed());
        if is_terminal {
            eprint!("\r\x1b[K{line}");
            // A bar that cannot be drawn is no reason to stop.
            let _ = io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
        if scene.finished() > last.0 {
            last = (scene.finished(), Instant::now());
        } else if last.1.elapsed() > PATIENCE {
            return Err(format!("no command has come to its end for {PATIENCE:?}").into());
        }
    }
}

/// Leaves no trace of the bar.
pub(crate) fn clear() {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

fn line(scene: &Scene, elapsed: Duration) -> String {
    let part = scene.finished() as f64 / scene.amounts.commands.max(1) as f64;
    let full = ((part * WIDTH as f64) as usize).min(WIDTH);
    format!(
        "{}{} {} commands, {} kills, {} cuts, {} s",
        "█".repeat(full),
        "░".repeat(WIDTH - full),
        scene.finished(),
        scene.kills(),
        scene.cuts(),
        elapsed.as_secs()
    )
}
