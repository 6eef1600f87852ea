//! With redis-py.

use steadfast::testing::Harness;

use super::publishes_once;
use crate::source::redis::Stream;

#[steadfast::test(sqlite, postgres)]
async fn three_deliveries_during_a_slow_handler_publish_once(t: Harness<Db>) {
    let server = std::env::var("TEST_REDIS_URL").expect("TEST_REDIS_URL says where Redis is");
    let stream = Stream::create_at(server.clone()).await;
    publishes_once(&t, &stream, "produce_redis.py", &[&server, &stream.name]).await;
}
