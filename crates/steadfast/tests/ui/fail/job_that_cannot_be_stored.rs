use serde::{Deserialize, Serialize};
use steadfast::Job;

#[derive(Serialize, Deserialize, Job)]
struct Unnamed;

#[derive(Serialize, Deserialize, Job)]
#[job("Receipt Send", version = 0)]
struct Misnamed;

#[derive(Serialize, Deserialize, Job)]
#[job("receipt.send", line = "mail")]
struct Unknown(#[redact] u8);

fn main() {}
