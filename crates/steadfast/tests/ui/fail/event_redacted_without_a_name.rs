#![allow(unused)]

use serde::{Deserialize, Serialize};
use steadfast::Event;

#[derive(Serialize, Deserialize, Event)]
#[event("user.joined")]
struct Unnamed(#[redact] String);

#[derive(Serialize, Deserialize, Event)]
#[event("user.joined")]
#[redact]
struct Whole {
    email: String,
}

#[derive(Serialize, Deserialize, Event)]
#[event("user.joined")]
struct Flattened {
    #[redact]
    #[serde(flatten)]
    whole: Whole,
}

#[derive(Serialize, Deserialize, Event)]
#[event("user.joined")]
enum Many {
    One {
        #[redact]
        email: String,
    },
}

fn main() {}
