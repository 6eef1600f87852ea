//! How fast deliveries go that have piled up, to handlers that do nothing.
//!
//! The baseline is the loop that people write: claim 500, call the handler, delete 500; two statements on one connection. A slice
//! is one drain, however long it takes. The tables are tidied up before they are filled, and on PostgreSQL the checkpoint is
//! made then: the pages of the rows have been written whole when the drain begins, so the log has little more than the changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use steadfast::Steadfast;

use super::place::{Ground, Hearing, Place, drainer, fill};
use crate::command::order::ORDER;
use crate::error::Result;
use crate::measure::{Aim, Called, Case, Ready, Series, Stage};
use crate::options::Database;

const BY_HAND: &str = "drain by hand";
const OUTSIDE: &str = "drain";
const IN_TRANSACTION: &str = "drain in transactions";

const GOAL: f64 = 0.7;
const WAL_BYTES_MAX: f64 = 600.0;

/// One transaction each takes longer: fewer of them are enough.
const IN_TRANSACTION_PART: usize = 5;

struct Drain<P: Place> {
    place: P,
    publisher: Steadfast<P::Db>,
    deliveries: usize,
}

pub(super) fn series<G: Ground>(ground: &G, deliveries: u32) -> Series {
    let outside = Case::new(OUTSIDE).against(BY_HAND, GOAL);
    let outside = match G::DATABASE {
        Database::Postgres => outside.aiming(Aim::WalBytes { at_most: WAL_BYTES_MAX }),
        Database::Sqlite => outside,
    };
    let cases = [
        Case::new(BY_HAND),
        outside,
        Case::new(IN_TRANSACTION).against(BY_HAND, None),
    ];
    let ground = ground.clone();
    Series::new(G::DATABASE, cases, move |_| prepare(ground, deliveries as usize))
}

async fn prepare<G: Ground>(ground: G, deliveries: usize) -> Result<Stage> {
    let place = ground.create().await?;
    let drain = Arc::new(Drain {
        publisher: place.open_publisher().await?,
        place,
        deliveries,
    });
    let removed = drain.clone();
    Ok(Stage::default()
        .gets_ready(BY_HAND, &drain, by_hand)
        .gets_ready(OUTSIDE, &drain, |drain, _| {
            let deliveries = drain.deliveries;
            ours(drain, Hearing::Outside, deliveries)
        })
        .gets_ready(IN_TRANSACTION, &drain, |drain, _| {
            let deliveries = drain.deliveries.div_ceil(IN_TRANSACTION_PART);
            ours(drain, Hearing::InTransaction, deliveries)
        })
        .counted_by(ground.meter())
        .ends_with(async move { removed.place.remove().await }))
}

async fn ours<P: Place>(drain: Arc<Drain<P>>, hearing: Hearing, deliveries: usize) -> Result<Ready> {
    drain.place.tidy().await?;
    fill(&drain.publisher, &ORDER, deliveries).await?;
    drainer(&drain.place, hearing, deliveries).await
}

async fn by_hand<P: Place>(drain: Arc<Drain<P>>, _: Duration) -> Result<Ready> {
    drain.place.tidy().await?;
    drain.place.fill_by_hand(drain.deliveries).await?;
    let draining = async move {
        let began = Instant::now();
        let mut hand = drain.place.open_hand().await?;
        let count = drain.place.drain_by_hand(&mut hand, drop).await?;
        if count != drain.deliveries {
            return Err(format!("{count} deliveries were drained by hand, not {}", drain.deliveries).into());
        }
        Ok(Called {
            count,
            in_time: count,
            took: began.elapsed(),
            ..Called::default()
        })
    };
    Ok(draining.boxed())
}
