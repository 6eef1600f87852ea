//! Whether many rows slow the engine down: the same number of deliveries, claimed and finished where there is nothing else, and
//! where many are pending, half of them not due, and many more have been finished.

use std::sync::Arc;

use steadfast::Steadfast;

use super::place::{Ground, Hearing, Place, drainer, fill};
use crate::command::order::ORDER;
use crate::error::Result;
use crate::measure::{Case, Ready, Series, Stage};
use crate::options::OutboxOptions;
use crate::progress::Progress;

const EMPTY: &str = "claim and finish, empty table";

/// At most 20 % slower.
const GOAL: f64 = 0.8;

struct Table<P: Place> {
    place: P,
    publisher: Steadfast<P::Db>,
    /// In each slice.
    deliveries: usize,
}

pub(super) fn series<G: Ground>(ground: &G, options: &OutboxOptions) -> Series {
    let (pending, finished) = (options.pending(), options.finished());
    // Half of the pending ones are due, and no slice may run out of them.
    let deliveries = options.deliveries().min(pending / 4).max(1) as usize;
    let full = format!("claim and finish, {pending} pending and {finished} finished");
    let cases = [Case::new(EMPTY), Case::new(&full).against(EMPTY, GOAL)];
    let ground = ground.clone();
    Series::new(G::DATABASE, cases, move |progress| async move {
        let empty = Arc::new(Table::create(&ground, deliveries).await?);
        let filled = Arc::new(Table::create(&ground, deliveries).await?);
        filled.fill(pending as usize, finished, &progress).await?;
        let removed = [empty.clone(), filled.clone()];
        Ok(Stage::default()
            .gets_ready(EMPTY, &empty, |table, _| get_ready(table))
            .gets_ready(full, &filled, |table, _| get_ready(table))
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
    async fn create(ground: &impl Ground<Place = P>, deliveries: usize) -> Result<Self> {
        let place = ground.create().await?;
        Ok(Self {
            publisher: place.open_publisher().await?,
            place,
            deliveries,
        })
    }

    async fn fill(&self, pending: usize, finished: u32, progress: &Progress) -> Result<()> {
        progress.prepare(0.0, &format!("writing {finished} finished deliveries"));
        self.place.fill_history(finished).await?;
        progress.prepare(0.0, &format!("publishing {pending} events"));
        fill(&self.publisher, &ORDER, pending).await?;
        self.place.put_half_off().await
    }
}

/// What is claimed in the slice is published before it, so that the table stays as large as it was.
async fn get_ready<P: Place>(table: Arc<Table<P>>) -> Result<Ready> {
    fill(&table.publisher, &ORDER, table.deliveries).await?;
    table.place.tidy().await?;
    drainer(&table.place, Hearing::Outside, table.deliveries).await
}
