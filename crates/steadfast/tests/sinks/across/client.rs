//! A live client that follows one topic.

use axum::Router;
use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt;
use serde_json::Value;
use sqlx::Postgres;
use steadfast::{Push, StreamName};
use tower::ServiceExt;

pub(super) struct Client {
    body: BodyDataStream,
    text: String,
}

impl Client {
    /// Follows the topic from now on.
    pub(super) async fn connect(push: &Push<Postgres>, topic: &str) -> Self {
        let stream = StreamName::topic(topic);
        let route = push.route(move |_| {
            let streams = vec![stream.clone()];
            async move { Ok(streams) }
        });
        let router: Router = Router::new().route("/events", route);
        let request = http::Request::get("/events").body(Body::empty()).unwrap();
        let answer = router.oneshot(request).await.unwrap();
        let mut client = Self {
            body: answer.into_body().into_data_stream(),
            text: String::new(),
        };
        while !client.event().await.contains("event: ready") {}
        client
    }

    /// The number of the next order.
    pub(super) async fn order(&mut self) -> u32 {
        loop {
            let event = self.event().await;
            assert!(!event.contains("resync"), "it has missed nothing");
            if let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) {
                let entry: Value = serde_json::from_str(data).unwrap();
                return serde_json::from_value(entry["data"]["order"].clone()).unwrap();
            }
        }
    }

    /// The next event, as it is written.
    async fn event(&mut self) -> String {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let event = event.to_owned();
                self.text = rest.to_owned();
                return event;
            }
            let bytes = self.body.next().await.expect("the connection lives").unwrap();
            self.text.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }
}
