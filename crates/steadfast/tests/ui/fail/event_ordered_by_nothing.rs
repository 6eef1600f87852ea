#![allow(unused)]

use serde::{Deserialize, Serialize};
use steadfast::Event;

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed", ordering_key = oder_id)]
struct Misspelt {
    order_id: u64,
}

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed", ordering_key = "order_id")]
struct Quoted {
    order_id: u64,
}

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed", ordering_key = order_id)]
enum Many {
    One { order_id: u64 },
}

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed", ordering_key = customer)]
struct MaybeNobody {
    customer: Option<u64>,
}

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed", ordering_key = self.order.id)]
struct Nested {
    order: u64,
}

fn main() {}
