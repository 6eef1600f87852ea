//! `steadfast status`: the outbox on one screen.

use std::time::Duration;

use serde::Serialize;
use steadfast::{Backlog, Count, KindStats, OutboxStats, TableSize};
use steadfast_terminal::table;

use crate::Context;
use crate::database::{Access, on_database};
use crate::error::{CliError, Exit, Result};
use crate::output::{self, Color, bytes, escape, rounded};

/// How often a screen that is watched is drawn anew.
const DRAW_EVERY: Duration = Duration::from_secs(2);

/// Clears the screen, and goes to its corner.
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Serialize)]
struct Shown<'s> {
    targets: Vec<ShownKind<'s>>,
    tables: Vec<ShownTable<'s>>,
    window_seconds: u64,
    messages_per_hour: u64,
    rows_per_hour: u64,
    finished_per_hour: u64,
    growth_per_hour: i64,
    empty_in_seconds: Option<u64>,
    doubles_in_seconds: Option<u64>,
    forecast: String,
    retention_seconds: u64,
    retained_messages: u64,
    retained_bytes: u64,
}

#[derive(Serialize)]
struct ShownKind<'s> {
    target: &'s str,
    pending: u64,
    due: u64,
    waiting: u64,
    leased: u64,
    dead: u64,
    /// Whether there may be more of any of these.
    at_least: bool,
    oldest_seconds: Option<f64>,
    lag_seconds: Option<f64>,
    finished_per_hour: u64,
    seen_seconds: Option<f64>,
    known: bool,
    paused_by: Option<&'s str>,
    paused_reason: Option<&'s str>,
}

#[derive(Serialize)]
struct ShownTable<'s> {
    table: &'s str,
    rows: Option<u64>,
    bytes: Option<u64>,
}

pub(crate) async fn run(context: &Context, is_watched: bool) -> Result<Exit> {
    if is_watched && (context.output.is_json || !output::is_terminal()) {
        return Err(CliError::new(
            Exit::Usage,
            "only a terminal can be watched",
            "leave --watch out, and call `steadfast status --json` as often as you like",
        ));
    }
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        loop {
            let stats = sf.outbox_stats().await?;
            if context.output.is_json {
                context.output.objects(&[shown(&stats)])?;
            } else {
                let clear = if is_watched { CLEAR } else { "" };
                context.output.print(&format!("{clear}{}", describe(context, &stats)))?;
            }
            if !is_watched {
                return Ok(Exit::Ok);
            }
            tokio::time::sleep(DRAW_EVERY).await;
        }
    })
}

fn shown(stats: &OutboxStats) -> Shown<'_> {
    let forecast = stats.forecast();
    let (empty_in, doubles_in) = match forecast.backlog {
        Backlog::EmptyIn(after) => (Some(after), None),
        Backlog::DoublesIn(after) => (None, Some(after)),
        _ => (None, None),
    };
    let seconds = |duration: Duration| duration.as_secs();
    Shown {
        targets: stats.kinds.iter().map(shown_kind).collect(),
        tables: stats.tables.iter().map(shown_table).collect(),
        window_seconds: stats.flow.window.as_secs(),
        messages_per_hour: stats.flow.messages_per_hour,
        rows_per_hour: stats.flow.entered_per_hour,
        finished_per_hour: stats.flow.finished_per_hour,
        growth_per_hour: forecast.growth_per_hour,
        empty_in_seconds: empty_in.map(seconds),
        doubles_in_seconds: doubles_in.map(seconds),
        forecast: forecast.to_string(),
        retention_seconds: stats.retention.as_secs(),
        retained_messages: forecast.retained_messages,
        retained_bytes: forecast.retained_bytes,
    }
}

fn shown_kind(kind: &KindStats) -> ShownKind<'_> {
    let counts = [kind.pending, kind.due, kind.waiting, kind.leased, kind.dead];
    let seconds = |duration: Option<Duration>| duration.map(|duration| duration.as_secs_f64());
    ShownKind {
        target: &kind.kind,
        pending: kind.pending.number,
        due: kind.due.number,
        waiting: kind.waiting.number,
        leased: kind.leased.number,
        dead: kind.dead.number,
        at_least: counts.iter().any(|count| count.is_capped),
        oldest_seconds: seconds(kind.oldest),
        lag_seconds: seconds(kind.lag),
        finished_per_hour: kind.finished_per_hour,
        seen_seconds: seconds(kind.seen),
        known: kind.is_known(),
        paused_by: kind.paused.as_ref().map(|paused| &*paused.by),
        paused_reason: kind.paused.as_ref().map(|paused| &*paused.reason),
    }
}

fn shown_table(table: &TableSize) -> ShownTable<'_> {
    ShownTable {
        table: &table.name,
        rows: table.rows,
        bytes: table.bytes,
    }
}

fn describe(context: &Context, stats: &OutboxStats) -> String {
    let mut text = String::new();
    if stats.kinds.is_empty() {
        text += "no target was ever declared\n";
    } else {
        let header = [
            "target",
            "pending",
            "waiting",
            "leased",
            "dead",
            "oldest",
            "lag",
            "done an hour",
            "last seen",
            "",
        ];
        let rows: Vec<_> = stats.kinds.iter().map(row).collect();
        // A blank last cell of the header leaves two spaces behind it.
        let drawn = table(&header, &rows);
        text.extend(drawn.lines().map(|line| format!("{}\n", line.trim_end())));
    }
    let rows: Vec<_> = stats.tables.iter().map(table_row).collect();
    text += &format!("\n{}\n", table(&["table", "rows", "size"], &rows));
    let forecast = stats.forecast();
    let line = match forecast.backlog {
        Backlog::DoublesIn(_) => context.output.paint(Color::Yellow, &forecast.to_string()),
        _ => forecast.to_string(),
    };
    text += &format!("backlog    {line}\n");
    text += &format!(
        "retention  {}: at this pace {} messages, about {}\n",
        rounded(stats.retention),
        forecast.retained_messages,
        bytes(forecast.retained_bytes)
    );
    text
}

fn row(kind: &KindStats) -> Vec<String> {
    let count = |count: Count| match count.is_capped {
        true => format!("> {}", count.number),
        false => count.number.to_string(),
    };
    let time = |duration: Option<Duration>| duration.map_or_else(|| "-".to_owned(), rounded);
    let note = match &kind.paused {
        Some(paused) => format!("paused by {}: {}", escape(&paused.by), escape(&paused.reason)),
        None if !kind.is_known() => "nobody works on it".to_owned(),
        None => String::new(),
    };
    vec![
        escape(&kind.kind),
        count(kind.pending),
        count(kind.waiting),
        count(kind.leased),
        count(kind.dead),
        time(kind.oldest),
        time(kind.lag),
        kind.finished_per_hour.to_string(),
        kind.seen
            .map_or_else(|| "never".to_owned(), |seen| format!("{} ago", rounded(seen))),
        note,
    ]
}

fn table_row(table: &TableSize) -> Vec<String> {
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    vec![
        table.name.clone(),
        known(table.rows.map(|rows| rows.to_string())),
        known(table.bytes.map(bytes)),
    ]
}
