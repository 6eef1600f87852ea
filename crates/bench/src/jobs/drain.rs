//! How fast jobs go that have piled up, to a handler that does nothing.
//!
//! The baseline is the loop that people write, that of `bench outbox`: claim 500, call the handler, delete 500. A slice is one drain,
//! however long it takes. Ours ends when its dispatcher has ended and everything is done; that of the others when their handler was
//! called for the last time, whatever is still to be written then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use steadfast::{Dispatcher, Steadfast};

use super::peer::{self, Peers};
use super::work::{Due, Handling, fill, worker};
use crate::error::Result;
use crate::measure::{Called, Case, Ready, Series, Stage};
use crate::outbox::place::{Ground, Place};

const BY_HAND: &str = "drain by hand";
const OURS: &str = "drain";

/// Of each of the others, and so of the best of them.
const PEER_GOAL: f64 = 1.3;

struct Drain<P: Place> {
    place: P,
    sf: Steadfast<P::Db>,
    jobs: usize,
}

pub(super) fn series<G: Ground>(ground: &G, peers: &Peers, jobs: usize) -> Series {
    let ours = Case::new(OURS).against(BY_HAND, None);
    let ours = peers.names(OURS).fold(ours, |ours, name| ours.against(name, PEER_GOAL));
    let mut cases = vec![Case::new(BY_HAND), ours];
    cases.extend(peers.names(OURS).map(Case::new));
    let (ground, peers) = (ground.clone(), peers.clone());
    Series::new(G::DATABASE, cases, move |_| prepare(ground, peers, jobs))
}

async fn prepare<G: Ground>(ground: G, peers: Peers, jobs: usize) -> Result<Stage> {
    let place = ground.create().await?;
    let sf = place.open(Dispatcher::off()).await?;
    let drain = Arc::new(Drain { place, sf, jobs });
    let removed = drain.clone();
    let stage = Stage::default()
        .gets_ready(BY_HAND, &drain, by_hand)
        .gets_ready(OURS, &drain, ours)
        .counted_by(ground.meter());
    let (stage, peers) = peers.take_part(stage, OURS, peer::Case::Drain, jobs).await?;
    Ok(stage.ends_with(async move {
        peers.remove().await?;
        removed.place.remove().await
    }))
}

async fn ours<P: Place>(drain: Arc<Drain<P>>, _: Duration) -> Result<Ready> {
    drain.place.tidy().await?;
    fill(&drain.sf, drain.jobs, Due::Now).await?;
    worker(&drain.place, Handling::Outside, drain.jobs).await
}

async fn by_hand<P: Place>(drain: Arc<Drain<P>>, _: Duration) -> Result<Ready> {
    drain.place.tidy().await?;
    drain.place.fill_by_hand(drain.jobs).await?;
    let draining = async move {
        let began = Instant::now();
        let mut hand = drain.place.open_hand().await?;
        let count = drain.place.drain_by_hand(&mut hand, drop).await?;
        if count != drain.jobs {
            return Err(format!("{count} jobs were drained by hand, not {}", drain.jobs).into());
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
