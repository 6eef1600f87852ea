//! Whether many rows slow it down: the same number of jobs, claimed and finished where there is nothing else, and where many are
//! scheduled and many more have been finished.
//!
//! Those that are finished were enqueued and run like any other, so that all that is left of a job is there.

use std::sync::Arc;
use std::time::Duration;

use steadfast::{Dispatcher, Steadfast};

use super::work::{Due, Handling, fill, worker};
use crate::error::Result;
use crate::measure::{Case, Ready, Series, Stage};
use crate::options::JobsOptions;
use crate::outbox::place::{Ground, Place};
use crate::progress::Progress;

const EMPTY: &str = "claim and finish, empty table";

/// It takes at most 1.3 times as long.
const GOAL: f64 = 0.77;

/// Jobs that are enqueued before they are run, where many have to be finished.
const FINISHED_AT_ONCE: usize = 50_000;

struct Table<P: Place> {
    place: P,
    sf: Steadfast<P::Db>,
    jobs: usize,
}

pub(super) fn series<G: Ground>(ground: &G, options: &JobsOptions) -> Series {
    let (jobs, scheduled, finished) = (options.jobs(), options.scheduled(), options.finished());
    let full = format!("claim and finish, {finished} finished and {scheduled} scheduled");
    let cases = [Case::new(EMPTY), Case::new(&full).against(EMPTY, GOAL)];
    let ground = ground.clone();
    Series::new(G::DATABASE, cases, move |progress| async move {
        let empty = Arc::new(Table::create(&ground, jobs).await?);
        let filled = Arc::new(Table::create(&ground, jobs).await?);
        filled.fill(scheduled, finished, &progress).await?;
        let removed = [empty.clone(), filled.clone()];
        Ok(Stage::default()
            .gets_ready(EMPTY, &empty, get_ready)
            .gets_ready(full, &filled, get_ready)
            .counted_by(ground.meter())
            .ends_with(async move {
                for table in removed {
                    table.place.remove().await?;
                }
                Ok(())
            }))
    })
}

impl<P: Place> Table<P> {
    async fn create(ground: &impl Ground<Place = P>, jobs: usize) -> Result<Self> {
        let place = ground.create().await?;
        let sf = place.open(Dispatcher::off()).await?;
        Ok(Self { place, sf, jobs })
    }

    async fn fill(&self, scheduled: usize, finished: usize, progress: &Progress) -> Result<()> {
        let mut done = 0;
        while done < finished {
            progress.prepare(done as f64 / finished as f64, &format!("running {finished} jobs"));
            let count = FINISHED_AT_ONCE.min(finished - done);
            fill(&self.sf, count, Due::Now).await?;
            worker(&self.place, Handling::Outside, count).await?.await?;
            done += count;
        }
        progress.prepare(0.0, &format!("scheduling {scheduled} jobs"));
        fill(&self.sf, scheduled, Due::Tomorrow).await
    }
}

async fn get_ready<P: Place>(table: Arc<Table<P>>, _: Duration) -> Result<Ready> {
    table.place.tidy().await?;
    fill(&table.sf, table.jobs, Due::Now).await?;
    worker(&table.place, Handling::Outside, table.jobs).await
}
