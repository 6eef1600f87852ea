//! One job a transaction, by many callers at once, and a bare transaction with one INSERT: what the message and its row of the queue
//! add to a commit.
//!
//! Nobody works on the jobs meanwhile, here and with the others.

use std::sync::Arc;

use steadfast::{Dispatcher, Steadfast};

use super::peer::{self, Peers};
use super::work;
use crate::command::order::ORDER;
use crate::error::Result;
use crate::measure::{Case, Series, Stage};
use crate::outbox::place::{Ground, Place};

const BARE: &str = "bare insert";
const OURS: &str = "enqueue";

/// Of the bare transaction.
const GOAL: f64 = 0.85;

/// Of each of the others.
const PEER_GOAL: f64 = 1.0;

/// The others say how long they take for a number of jobs, which is a part of those that are drained: one transaction each takes longer.
const PEER_PART: usize = 5;

struct Desk<P: Place> {
    place: P,
    sf: Steadfast<P::Db>,
}

pub(super) fn series<G: Ground>(ground: &G, peers: &Peers, jobs: usize) -> Series {
    let ours = Case::new(OURS).against(BARE, GOAL);
    let ours = peers.names(OURS).fold(ours, |ours, name| ours.against(name, PEER_GOAL));
    let mut cases = vec![Case::new(BARE), ours];
    cases.extend(peers.names(OURS).map(Case::new));
    let (ground, peers) = (ground.clone(), peers.clone());
    Series::new(G::DATABASE, cases, move |_| prepare(ground, peers, jobs))
}

async fn prepare<G: Ground>(ground: G, peers: Peers, jobs: usize) -> Result<Stage> {
    let place = ground.create().await?;
    let sf = place.open(Dispatcher::off()).await?;
    place.tidy().await?;
    let desk = Arc::new(Desk { place, sf });
    let removed = desk.clone();
    let stage = Stage::default()
        .does(
            BARE,
            &desk,
            |desk, _| async move { desk.place.place_order_bare().await },
        )
        .does(
            OURS,
            &desk,
            |desk, _| async move { work::enqueue(&desk.sf, &ORDER).await },
        )
        .counted_by(ground.meter());
    let jobs = jobs.div_ceil(PEER_PART);
    let (stage, peers) = peers.take_part(stage, OURS, peer::Case::Enqueue, jobs).await?;
    Ok(stage.ends_with(async move {
        peers.remove().await?;
        removed.place.remove().await
    }))
}
