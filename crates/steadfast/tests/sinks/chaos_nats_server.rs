//! A NATS to kill, and one that takes small messages only.

use steadfast::testing::{Harness, SinkTrial};
use tokio::sync::Mutex;

use super::chaos::{Victim, outlives_a_kill, refuses_what_is_too_large};
use super::nats::Stream;

static TURN: Mutex<()> = Mutex::const_new(());

async fn server() -> Victim {
    Victim::take("NATS", &TURN).await
}

#[steadfast::test(sqlite)]
async fn a_killed_server_loses_nothing_and_has_nothing_twice(t: Harness<Db>) {
    let server = server().await;
    let stream = Stream::create_at(server.host().to_owned()).await;
    let sink = stream.sink();
    outlives_a_kill(&t, &server, sink, async || {
        let ids = stream.ids().await;
        let each: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(
            each.len(),
            ids.len(),
            "the stream knows what it has seen, also after a restart"
        );
        ids
    })
    .await;
}

#[steadfast::test(sqlite)]
async fn what_is_larger_than_the_server_takes_is_dead_and_harms_no_other(t: Harness<Db>) {
    let server = server().await;
    let stream = Stream::create_at(server.host().to_owned()).await;
    let ids = refuses_what_is_too_large(&t, stream.sink()).await;
    assert_eq!(stream.messages().await.len(), ids.len());
}

#[steadfast::test(sqlite, postgres)]
async fn a_killed_server_hands_out_again_what_then_acts_once(t: Harness<Db>) {
    let server = server().await;
    let stream = crate::source::nats::Stream::create_at(server.host().to_owned()).await;
    crate::source::outlives_a_kill(&t, &server, &stream, async || stream.again().await).await;
}

#[steadfast::test(postgres)]
async fn a_killed_server_keeps_no_live_client_from_hearing_everything(t: Harness<Db>) {
    let server = server().await;
    let nats = crate::across::nats::Nats::at(server.host());
    crate::across::outlives_a_kill(&t, &server, &nats).await;
}
