//! The trial itself: on a queue that holds everything, and on some that do not.

use steadfast::testing::{Harness, SourceTrial, TestFeed, TestQueue, try_source};
use steadfast::{Failure, Feed, Incoming, Source};

#[steadfast::test(sqlite, postgres)]
async fn a_queue_in_memory_holds_everything(t: Harness<Db>) {
    try_source(&t, &Flawed(TestQueue::default(), None)).await;
}

/// What is wrong with a queue.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    ForgetsWhatItHandsOut,
    SaysNothingOfRedelivery,
    CutsBodies,
    ForgetsAcks,
}

#[derive(Clone)]
struct Flawed(TestQueue, Option<Flaw>);

struct FlawedFeed(TestFeed, Option<Flaw>);

impl Source for Flawed {
    type Feed = FlawedFeed;

    async fn open(&self, prefetch: usize) -> Result<FlawedFeed, Failure> {
        Ok(FlawedFeed(Source::open(&self.0, prefetch).await?, self.1))
    }
}

impl Feed for FlawedFeed {
    async fn receive(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        let mut messages = self.0.receive(max).await?;
        for message in &mut messages {
            *message = match self.1 {
                Some(Flaw::SaysNothingOfRedelivery) => message.clone().redelivered(false),
                Some(Flaw::CutsBodies) if message.body().len() > 1024 => {
                    let id = message.message_id().unwrap().to_owned();
                    Incoming::new(message.body().slice(..1024))
                        .with_message_id(id)
                        .with_event_type("source.odd")
                        .with_receipt(message.receipt())
                }
                _ => continue,
            };
        }
        if self.1 == Some(Flaw::ForgetsWhatItHandsOut) {
            let receipts: Vec<_> = messages.iter().map(Incoming::receipt).collect();
            self.0.ack(&receipts).await?;
        }
        Ok(messages)
    }

    async fn ack(&mut self, receipts: &[u64]) -> Result<(), Failure> {
        match self.1 {
            Some(Flaw::ForgetsAcks) => Ok(()),
            _ => self.0.ack(receipts).await,
        }
    }
}

impl SourceTrial for Flawed {
    type Source = Self;

    fn source(&self) -> Self {
        self.clone()
    }

    async fn send(&self, message: &Incoming) {
        self.0.send(message.clone());
    }

    async fn left(&self) -> usize {
        self.0.waiting() + self.0.out()
    }
}

#[steadfast::test(sqlite)]
#[should_panic(expected = "messages have come within")]
async fn a_source_that_forgets_what_it_hands_out_is_found_out(t: Harness<Db>) {
    try_source(&t, &Flawed(TestQueue::default(), Some(Flaw::ForgetsWhatItHandsOut))).await;
}

#[steadfast::test(sqlite)]
#[should_panic(expected = "says that it came before")]
async fn a_source_that_does_not_say_what_comes_again_is_found_out(t: Harness<Db>) {
    try_source(&t, &Flawed(TestQueue::default(), Some(Flaw::SaysNothingOfRedelivery))).await;
}

#[steadfast::test(sqlite)]
#[should_panic(expected = "byte for byte")]
async fn a_source_that_cuts_bodies_is_found_out(t: Harness<Db>) {
    try_source(&t, &Flawed(TestQueue::default(), Some(Flaw::CutsBodies))).await;
}

#[steadfast::test(sqlite)]
#[should_panic(expected = "comes again, and nothing else")]
async fn a_source_that_does_not_hear_what_was_handled_is_found_out(t: Harness<Db>) {
    try_source(&t, &Flawed(TestQueue::default(), Some(Flaw::ForgetsAcks))).await;
}
