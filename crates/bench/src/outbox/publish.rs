//! A command with an event, and the same without: what the messages and their deliveries add to the transaction.
//!
//! Nobody works on the deliveries meanwhile: that is measured by itself.

use std::sync::Arc;

use steadfast::Steadfast;

use super::place::{Ground, Place};
use crate::command::keys::new_key;
use crate::command::order::{OPERATION, ORDER, OWNER};
use crate::error::{Context, Result};
use crate::measure::{Case, Series, Stage};

const COMMAND: &str = "command";
const PUBLISHING: &str = "publishing command";
const GOAL: f64 = 0.85;

pub(super) fn series<G: Ground>(ground: &G) -> Series {
    let cases = [Case::new(COMMAND), Case::new(PUBLISHING).against(COMMAND, GOAL)];
    let ground = ground.clone();
    Series::new(G::DATABASE, cases, |_| prepare(ground))
}

async fn prepare<G: Ground>(ground: G) -> Result<Stage> {
    let place = ground.create().await?;
    let sf = Arc::new(place.open_publisher().await?);
    place.tidy().await?;
    Ok(Stage::default()
        .does(COMMAND, &sf, |sf, _| run::<G::Place>(sf, 0))
        .does(PUBLISHING, &sf, |sf, _| run::<G::Place>(sf, 1))
        .counted_by(ground.meter())
        .ends_with(async move { place.remove().await }))
}

async fn run<P: Place>(sf: Arc<Steadfast<P::Db>>, events: usize) -> Result<()> {
    let key = new_key();
    let command = sf.command(OPERATION, &key).owner(&OWNER).input(&*ORDER);
    let running = command.run(async |tx| {
        let id = P::place_order(tx, &ORDER).await?;
        for _ in 0..events {
            tx.publish(&*ORDER)?;
        }
        Ok(ORDER.placed(id))
    });
    running.await.map(drop).context("running a command")
}
