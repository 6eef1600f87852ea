//! The trial itself: on a sink that holds everything, and on some that do not.

use std::sync::{Arc, Mutex};

use steadfast::testing::{Arrived, Harness, SinkTrial, try_sink};
use steadfast::{Confirmation, EventCx, Failure, Sink};

/// Another side in memory.
#[derive(Clone, Default)]
struct Memory {
    arrived: Arc<Mutex<Vec<Arrived>>>,
    flaw: Option<Flaw>,
}

/// What is wrong with it.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    ConfirmsWhatItLost,
    HasOtherIds,
    CutsPayloads,
    EncodesAttributes,
}

impl Memory {
    fn with(flaw: Flaw) -> Self {
        Self {
            flaw: Some(flaw),
            ..Self::default()
        }
    }

    fn take(&self, event: &EventCx) {
        let mut arrived = self.arrived.lock().unwrap();
        let has = |flaw| self.flaw == Some(flaw);
        if has(Flaw::ConfirmsWhatItLost) && arrived.len() == 100 {
            return;
        }
        let mut attributes: std::collections::BTreeMap<_, _> = event
            .attributes()
            .map(|(name, value)| (name.to_owned(), value.into_owned()))
            .collect();
        if has(Flaw::HasOtherIds) && event.event_type() == "sink.again" {
            attributes.insert("id".to_owned(), arrived.len().to_string());
        }
        if has(Flaw::EncodesAttributes) {
            attributes
                .entry("partitionkey".to_owned())
                .and_modify(|key| *key = key.replace(' ', "%20"));
        }
        let mut payload = event.payload().to_vec();
        if has(Flaw::CutsPayloads) {
            payload.truncate(64 * 1024);
        }
        arrived.push(Arrived { attributes, payload });
    }
}

impl Sink for Memory {
    async fn send(&self, batch: &[EventCx]) -> Vec<Result<Confirmation, Failure>> {
        batch.iter().for_each(|event| self.take(event));
        batch.iter().map(|_| Ok(Confirmation::silent())).collect()
    }
}

impl SinkTrial for Memory {
    type Sink = Self;

    fn sink(&self) -> Self {
        self.clone()
    }

    async fn arrived(&self) -> Vec<Arrived> {
        self.arrived.lock().unwrap().clone()
    }
}

#[steadfast::test(sqlite, postgres)]
async fn a_sink_in_memory_holds_everything(t: Harness<Db>) {
    try_sink(&t, &Memory::default()).await;
}

#[steadfast::test(sqlite)]
#[should_panic(expected = "everything that was published has arrived")]
async fn a_sink_that_confirms_what_it_lost_is_found_out(t: Harness<Db>) {
    try_sink(&t, &Memory::with(Flaw::ConfirmsWhatItLost)).await;
}

#[steadfast::test(sqlite)]
#[should_panic(expected = "is known by its id")]
async fn a_sink_that_makes_ids_of_its_own_is_found_out(t: Harness<Db>) {
    try_sink(&t, &Memory::with(Flaw::HasOtherIds)).await;
}

#[steadfast::test(sqlite)]
#[should_panic(expected = "the payload is what was published")]
async fn a_sink_that_cuts_payloads_is_found_out(t: Harness<Db>) {
    try_sink(&t, &Memory::with(Flaw::CutsPayloads)).await;
}

#[steadfast::test(sqlite)]
#[should_panic(expected = "key 1")]
async fn a_sink_that_changes_attributes_is_found_out(t: Harness<Db>) {
    try_sink(&t, &Memory::with(Flaw::EncodesAttributes)).await;
}
