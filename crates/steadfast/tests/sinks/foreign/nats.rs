//! With nats-py.

use steadfast::testing::Harness;

use super::publishes_once;
use crate::source::nats::Stream;

#[steadfast::test(sqlite, postgres)]
async fn three_deliveries_during_a_slow_handler_publish_once(t: Harness<Db>) {
    let server = std::env::var("TEST_NATS_URL").expect("TEST_NATS_URL says where NATS is");
    let stream = Stream::create_at(server.trim_start_matches("nats://").to_owned()).await;
    let subject = format!("{}.order.placed", stream.name);
    publishes_once(&t, &stream, "produce_nats.py", &[&server, &subject]).await;
}
