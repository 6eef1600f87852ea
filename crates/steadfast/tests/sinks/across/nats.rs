//! By subjects of NATS, the real server.

use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use steadfast::NatsPubSub;
use steadfast::testing::Harness;

use super::{
    Broker, bears_an_outage, bears_strangers, hears_at_once, keeps_instances_apart, tells_of_what_is_committed,
};

pub(crate) struct Nats {
    host: String,
    hears: Option<Subscriber>,
}

impl Nats {
    pub(crate) fn at(host: &str) -> Self {
        Self {
            host: host.to_owned(),
            hears: None,
        }
    }

    fn find() -> Self {
        let url = std::env::var("TEST_NATS_URL");
        let url = url.expect("TEST_NATS_URL says where NATS is; `cargo xtask test` brings one");
        Self::at(url.trim_start_matches("nats://"))
    }

    async fn client(&self) -> Client {
        async_nats::connect(&self.host).await.unwrap()
    }
}

impl Broker for Nats {
    type Messenger = NatsPubSub;

    fn host(&self) -> String {
        self.host.clone()
    }

    fn messenger_at(&self, address: &str) -> NatsPubSub {
        NatsPubSub::at(&format!("nats://{address}")).unwrap()
    }

    async fn listen(&mut self) {
        let client = self.client().await;
        let mut hears = client.subscribe("steadfast.streams.*").await.unwrap();
        // It hears itself, so the server knows that it listens.
        client.publish("steadfast.streams.test", "".into()).await.unwrap();
        hears.next().await.unwrap();
        self.hears = Some(hears);
    }

    async fn heard(&mut self) -> (String, String) {
        let hears = self.hears.as_mut().expect("somebody listens");
        let message = hears.next().await.unwrap();
        let notice = String::from_utf8_lossy(&message.payload).into_owned();
        (message.subject.to_string(), notice)
    }

    async fn shout(&mut self, channel: &str, bytes: &[u8]) {
        let client = self.client().await;
        client.publish(channel.to_owned(), bytes.to_vec().into()).await.unwrap();
        client.flush().await.unwrap();
    }
}

#[steadfast::test(postgres)]
async fn what_one_node_pushes_another_hears_at_once_without_notify(t: Harness<Db>) {
    hears_at_once(&t, &Nats::find()).await;
}

#[steadfast::test(postgres)]
async fn a_notice_is_told_when_it_is_committed_and_says_nothing_of_it(t: Harness<Db>) {
    tells_of_what_is_committed(&t, &mut Nats::find()).await;
}

#[steadfast::test(postgres)]
async fn instances_on_one_server_have_channels_of_their_own(t: Harness<Db>) {
    keeps_instances_apart(&t, &mut Nats::find()).await;
}

#[steadfast::test(postgres)]
async fn what_others_say_on_the_channel_does_no_harm(t: Harness<Db>) {
    bears_strangers(&t, &mut Nats::find()).await;
}

#[steadfast::test(postgres)]
async fn while_the_server_is_away_clients_hear_by_the_clock_and_nobody_knocks_all_the_time(t: Harness<Db>) {
    bears_an_outage(&t, &Nats::find()).await;
}
