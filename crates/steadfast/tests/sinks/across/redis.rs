//! By channels of Redis, the real server.

use futures_util::StreamExt;
use redis::aio::PubSub;
use steadfast::RedisPubSub;
use steadfast::testing::Harness;

use super::{
    Broker, bears_an_outage, bears_strangers, hears_at_once, keeps_instances_apart, tells_of_what_is_committed,
};

pub(crate) struct Redis {
    host: String,
    hears: Option<PubSub>,
}

impl Redis {
    pub(crate) fn at(host: &str) -> Self {
        Self {
            host: host.to_owned(),
            hears: None,
        }
    }

    fn find() -> Self {
        let url = std::env::var("TEST_REDIS_URL");
        let url = url.expect("TEST_REDIS_URL says where Redis is; `cargo xtask test` brings one");
        Self::at(url.trim_start_matches("redis://"))
    }

    fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://{}", self.host)).unwrap()
    }
}

impl Broker for Redis {
    type Messenger = RedisPubSub;

    fn host(&self) -> String {
        self.host.clone()
    }

    fn messenger_at(&self, address: &str) -> RedisPubSub {
        RedisPubSub::at(&format!("redis://{address}")).unwrap()
    }

    async fn listen(&mut self) {
        let mut hears = self.client().get_async_pubsub().await.unwrap();
        hears.psubscribe("steadfast.streams.*").await.unwrap();
        self.hears = Some(hears);
    }

    async fn heard(&mut self) -> (String, String) {
        let hears = self.hears.as_mut().expect("somebody listens");
        let message = hears.on_message().next().await.unwrap();
        let notice = String::from_utf8_lossy(message.get_payload_bytes()).into_owned();
        (message.get_channel_name().to_owned(), notice)
    }

    async fn shout(&mut self, channel: &str, bytes: &[u8]) {
        let mut connection = self.client().get_multiplexed_async_connection().await.unwrap();
        let saying = redis::cmd("PUBLISH")
            .arg(channel)
            .arg(bytes)
            .query_async(&mut connection)
            .await;
        let () = saying.unwrap();
    }
}

#[steadfast::test(postgres)]
async fn what_one_node_pushes_another_hears_at_once_without_notify(t: Harness<Db>) {
    hears_at_once(&t, &Redis::find()).await;
}

#[steadfast::test(postgres)]
async fn a_notice_is_told_when_it_is_committed_and_says_nothing_of_it(t: Harness<Db>) {
    tells_of_what_is_committed(&t, &mut Redis::find()).await;
}

#[steadfast::test(postgres)]
async fn instances_on_one_server_have_channels_of_their_own(t: Harness<Db>) {
    keeps_instances_apart(&t, &mut Redis::find()).await;
}

#[steadfast::test(postgres)]
async fn what_others_say_on_the_channel_does_no_harm(t: Harness<Db>) {
    bears_strangers(&t, &mut Redis::find()).await;
}

#[steadfast::test(postgres)]
async fn while_the_server_is_away_clients_hear_by_the_clock_and_nobody_knocks_all_the_time(t: Harness<Db>) {
    bears_an_outage(&t, &Redis::find()).await;
}
