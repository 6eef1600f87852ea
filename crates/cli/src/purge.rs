//! `steadfast purge`: deletes what has expired, or counts it.

use serde::Serialize;
use steadfast::{Expired, Purged, Walked};
use steadfast_terminal::Bar;

use crate::Context;
use crate::database::{Access, on_database};
use crate::error::{CliError, Exit, Result};

#[derive(Serialize)]
struct Shown {
    expired_keys: u64,
    finished_messages: u64,
    finished_deliveries: u64,
    old_entries: u64,
    old_streams: u64,
    old_records: u64,
    old_ticks: u64,
    deleted: bool,
}

pub(crate) async fn run(context: &Context, is_dry: bool) -> Result<Exit> {
    let bar = Bar::default();
    let watch = |walked: Walked| {
        let Expired { keys, messages, .. } = walked.expired;
        let words = format!(
            "{:3.0} %  {keys} expired keys, {messages} finished messages",
            walked.part * 100.0
        );
        bar.show(walked.part, &words);
    };
    let access = if is_dry { Access::Read } else { Access::Write };
    let purged = on_database!(context, access, builder => {
        let sf = builder?.build().await?;
        if is_dry {
            sf.count_expired(watch).await.map(Purged::Done)
        } else {
            sf.purge_watched(watch).await
        }
    });
    bar.clear();
    let Purged::Done(expired) = purged? else {
        return Err(CliError::new(
            Exit::Conflict,
            "another process is purging",
            "let it; if it has died, its lease runs out within a minute",
        ));
    };
    let shown = Shown {
        expired_keys: expired.keys,
        finished_messages: expired.messages,
        finished_deliveries: expired.deliveries,
        old_entries: expired.entries,
        old_streams: expired.streams,
        old_records: expired.records,
        old_ticks: expired.ticks,
        deleted: !is_dry,
    };
    let done = if is_dry { "not deleted" } else { "deleted" };
    let line = |name, count: u64| (name, format!("{count}, {done}"));
    let lines = [
        line("expired keys", expired.keys),
        line("finished messages", expired.messages),
        line("finished deliveries", expired.deliveries),
        line("old entries", expired.entries),
        line("old streams", expired.streams),
        line("old inbox records", expired.records),
        line("old ticks", expired.ticks),
    ];
    context.output.record(&shown, &lines)?;
    Ok(Exit::Ok)
}
