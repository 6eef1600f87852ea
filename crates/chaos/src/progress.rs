//! How far the run is: a bar on a terminal, a line now and then in a log.

use std::time::{Duration, Instant};

use steadfast_terminal::Bar;
use tokio::time::sleep;

use crate::error::Result;
use crate::options::Kind;
use crate::scene::Scene;

const BAR_EVERY: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(15);

/// How long no command at all may come to its end: much longer than any accident takes to pass. When the accidents are over,
/// others say how long the rest may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Shows how far the run is, until it is stuck; whoever calls this ends it otherwise.
pub(crate) async fn show(scene: &Scene) -> Result<()> {
    let bar = Bar::default();
    let (start, mut last) = (Instant::now(), (0, Instant::now()));
    loop {
        sleep(if bar.is_shown() { BAR_EVERY } else { LINE_EVERY }).await;
        let line = line(scene, start.elapsed());
        if bar.is_shown() {
            let part = scene.finished() as f64 / scene.amounts.commands.max(1) as f64;
            bar.show(part, &line);
        } else {
            eprintln!("{line}");
        }
        if scene.finished() > last.0 {
            last = (scene.finished(), Instant::now());
        } else if !scene.is_calm() && last.1.elapsed() > PATIENCE {
            return Err(format!("no command has come to its end for {PATIENCE:?}").into());
        }
    }
}

/// Leaves no trace of the bar.
pub(crate) fn clear() {
    Bar::default().clear();
}

fn line(scene: &Scene, elapsed: Duration) -> String {
    let (finished, kills, seconds) = (scene.finished(), scene.kills(), elapsed.as_secs());
    match scene.kind {
        Kind::Command => format!("{finished} commands, {kills} kills, {} cuts, {seconds} s", scene.cuts()),
        Kind::Outbox | Kind::Inbox => {
            let brokers = scene.broker_kills();
            format!("{finished} commands, {kills} kills, {brokers} of brokers, {seconds} s")
        }
    }
}
