//! The event that the tests of the brokers send.

use serde::{Deserialize, Serialize};
use steadfast::testing::{Harness, TestDatabase, eventually};
use steadfast::{Event, LookedMessage, MessageId};

#[derive(Serialize, Deserialize)]
pub(crate) struct Placed {
    pub(crate) order: u32,
}

impl Event for Placed {
    const TYPE: &'static str = "order.placed";
}

/// An event as large as somebody likes.
#[derive(Serialize, Deserialize)]
pub(crate) struct Described {
    pub(crate) text: String,
}

impl Event for Described {
    const TYPE: &'static str = "order.described";
}

pub(crate) async fn publish<Db: TestDatabase>(t: &Harness<Db>, order: u32) -> MessageId {
    let publishing = t.sf().transact(async |tx| Ok(tx.publish(&Placed { order })?));
    publishing.await.unwrap()
}

/// Publishes many at once, so that they are sent together.
pub(crate) async fn publish_all<Db: TestDatabase>(t: &Harness<Db>, orders: std::ops::Range<u32>) -> Vec<MessageId> {
    let publishing = t.sf().transact(async |tx| {
        let mut ids = Vec::new();
        for order in orders.clone() {
            ids.push(tx.publish(&Placed { order })?);
        }
        Ok(ids)
    });
    publishing.await.unwrap()
}

pub(crate) async fn look<Db: TestDatabase>(t: &Harness<Db>, id: MessageId) -> LookedMessage {
    t.sf().message(id).look().await.unwrap().unwrap()
}

/// Waits until nothing is left to do.
pub(crate) async fn all_are_delivered<Db: TestDatabase>(t: &Harness<Db>) {
    eventually("all are delivered", || async {
        t.advance("30m");
        t.sf().drain().await.unwrap();
        t.sf().outbox_stats().await.unwrap().backlog().number == 0
    })
    .await;
}
