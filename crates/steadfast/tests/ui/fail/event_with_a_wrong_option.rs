#![allow(unused)]

use serde::{Deserialize, Serialize};
use steadfast::Event;

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed", verson = 2, expire_after = "7d", in_process = true, delay)]
struct Misspelt;

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed", delay = "10 minutes", expires_after = 7, version = 2, version = 3)]
struct Wrong;

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed" version = 2)]
struct NoComma;

fn main() {}
