//! `steadfast purge`: deletes what has expired, or counts it.

use serde::Serialize;
use steadfast::{Purged, Walked};
use steadfast_terminal::Bar;

use crate::Context;
use crate::database::{Access, on_database};
use crate::error::{CliError, Exit, Result};

#[derive(Serialize)]
struct Shown {
    expired_keys: u64,
    deleted: bool,
}

pub(crate) async fn run(context: &Context, is_dry: bool) -> Result<Exit> {
    let bar = Bar::default();
    let watch = |walked: Walked| {
        let words = format!("{:3.0} %  {} expired keys", walked.part * 100.0, walked.keys);
        bar.show(walked.part, &words);
    };
    let access = if is_dry { Access::Read } else { Access::Write };
    let purged = on_database!(context, access, builder => {
        let sf = builder?.build().await?;
        if is_dry {
            sf.count_expired(watch).await.map(Purged::Keys)
        } else {
            sf.purge_watched(watch).await
        }
    });
    bar.clear();
    let Purged::Keys(expired_keys) = purged? else {
        return Err(CliError::new(
            Exit::Conflict,
            "another process is purging",
            "let it; if it has died, its lease runs out within a minute",
        ));
    };
    let shown = Shown {
        expired_keys,
        deleted: !is_dry,
    };
    let done = if is_dry { "not deleted" } else { "deleted" };
    let line = ("expired keys", format!("{expired_keys}, {done}"));
    context.output.record(&shown, &[line])?;
    Ok(Exit::Ok)
}
