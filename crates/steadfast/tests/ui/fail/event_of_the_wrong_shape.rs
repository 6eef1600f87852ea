#![allow(unused)]

use serde::{Deserialize, Serialize};
use steadfast::Event;

#[derive(Serialize, Deserialize, Event)]
struct Unnamed;

#[derive(Serialize, Deserialize, Event)]
#[event]
struct StillUnnamed;

#[derive(Serialize, Deserialize, Event)]
#[event("OrderPlaced")]
struct Capital;

#[derive(Serialize, Deserialize, Event)]
#[event("order..placed")]
struct EmptyPart;

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed", version = 0)]
struct Zeroth;

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed")]
#[event("order.made")]
struct Twice;

#[derive(Serialize, Event)]
#[event("order.placed")]
struct Borrowing<'a> {
    sku: &'a str,
}

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed")]
struct Generic<T> {
    order: T,
}

#[derive(Clone, Copy, Event)]
#[event("order.placed")]
union Bits {
    number: u32,
}

fn main() {}
