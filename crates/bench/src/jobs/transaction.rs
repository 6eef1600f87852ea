//! Jobs whose handler writes in their own transaction, and a bare transaction with the same INSERT: what it costs that the write and the
//! end of the job are one commit.

use std::sync::Arc;
use std::time::Duration;

use steadfast::{Dispatcher, Steadfast};

use super::work::{Due, Handling, fill, worker};
use crate::error::Result;
use crate::measure::{Case, Ready, Series, Stage};
use crate::outbox::place::{Ground, Place};

const BARE: &str = "bare transaction";
const OURS: &str = "drain in transactions";

const GOAL: f64 = 0.8;

/// One transaction each takes longer: fewer of them are enough.
const PART: usize = 5;

struct Drain<P: Place> {
    place: P,
    sf: Steadfast<P::Db>,
    jobs: usize,
}

pub(super) fn series<G: Ground>(ground: &G, jobs: usize) -> Series {
    let cases = [Case::new(BARE), Case::new(OURS).against(BARE, GOAL)];
    let ground = ground.clone();
    Series::new(G::DATABASE, cases, move |_| prepare(ground, jobs.div_ceil(PART)))
}

async fn prepare<G: Ground>(ground: G, jobs: usize) -> Result<Stage> {
    let place = ground.create().await?;
    let sf = place.open(Dispatcher::off()).await?;
    let drain = Arc::new(Drain { place, sf, jobs });
    let removed = drain.clone();
    Ok(Stage::default()
        .does(
            BARE,
            &drain,
            |drain, _| async move { drain.place.place_order_bare().await },
        )
        .gets_ready(OURS, &drain, ours)
        .counted_by(ground.meter())
        .ends_with(async move { removed.place.remove().await }))
}

async fn ours<P: Place>(drain: Arc<Drain<P>>, _: Duration) -> Result<Ready> {
    drain.place.tidy().await?;
    fill(&drain.sf, drain.jobs, Due::Now).await?;
    worker(&drain.place, Handling::InTransaction, drain.jobs).await
}
