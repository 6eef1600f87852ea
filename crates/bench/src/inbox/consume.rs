//! Ours: a source with its defaults but for the lanes, and a reaction that places an order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use steadfast::{Failure, Feed, Incoming, Source, Steadfast, Tx};

use crate::command::order::Order;
use crate::error::{Context, Result};
use crate::outbox::place::{Count, Place};

/// Who handles messages, also by hand.
pub(super) const CONSUMER: &str = "bench.place";

/// Consumes until so many messages are acknowledged, and says how long that took: from the connection to the broker on.
pub(super) async fn until<P: Place>(
    sf: &Steadfast<P::Db>,
    source: impl Source,
    lanes: usize,
    messages: usize,
) -> Result<Duration> {
    let count = Arc::new(Count::until(messages));
    let counted = Counted {
        source,
        count: count.clone(),
    };
    sf.reaction::<Order>(CONSUMER).run(place::<P>);
    let intake = sf.source("bench.orders").events("order.*").concurrency(lanes);
    intake.consume_from(counted);
    let began = Instant::now();
    let service = sf.clone();
    let dispatching = tokio::spawn(async move { service.dispatch().await });
    count.enough().await?;
    let took = began.elapsed();
    sf.stop();
    let ended = dispatching.await.context("the dispatcher broke down")?;
    ended.context("dispatching")?;
    Ok(took)
}

async fn place<P: Place>(tx: &mut Tx<P::Db>, order: Order) -> Result<(), Failure> {
    P::place_order(tx, &order).await.map(drop)
}

/// A source that counts what is acknowledged.
struct Counted<S> {
    source: S,
    count: Arc<Count>,
}

impl<S: Source> Source for Counted<S> {
    type Feed = CountedFeed<S::Feed>;

    async fn open(&self, prefetch: usize) -> Result<Self::Feed, Failure> {
        Ok(CountedFeed {
            feed: self.source.open(prefetch).await?,
            count: self.count.clone(),
        })
    }

    fn attributes(&self, message: &Incoming) -> Vec<(String, String)> {
        self.source.attributes(message)
    }

    fn address(&self) -> String {
        self.source.address()
    }
}

struct CountedFeed<F> {
    feed: F,
    count: Arc<Count>,
}

impl<F: Feed> Feed for CountedFeed<F> {
    async fn receive(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        self.feed.receive(max).await
    }

    async fn receive_ahead(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        self.feed.receive_ahead(max).await
    }

    async fn ack(&mut self, receipts: &[u64]) -> Result<(), Failure> {
        self.feed.ack(receipts).await?;
        self.count.hear_of(receipts.len());
        Ok(())
    }

    async fn close(self) {
        self.feed.close().await;
    }
}
