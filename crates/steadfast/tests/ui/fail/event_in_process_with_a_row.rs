#![allow(unused)]

use serde::{Deserialize, Serialize};
use steadfast::Event;

#[derive(Serialize, Deserialize, Event)]
#[event("cache.dropped", in_process, ordering_key = id, delay = "10m", expires_after = "7d")]
struct CacheDropped {
    id: u64,
}

#[derive(Serialize, Deserialize, Event)]
#[event("offer.made", delay = "7d", expires_after = "1d")]
struct OfferMade;

fn main() {}
