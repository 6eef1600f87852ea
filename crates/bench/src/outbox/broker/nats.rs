//! NATS JetStream: a stream in files, as by default.

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::{self, Context as JetStream, stream};
use futures_util::StreamExt;
use steadfast::{Event, EventCx, Nats};

use super::{Broker, GROUP, Written, new_name};
use crate::command::order::Order;
use crate::error::{Context, Result};

pub(crate) struct Stream {
    url: String,
    name: String,
    context: JetStream,
}

impl Broker for Stream {
    const NAME: &'static str = "nats";
    const VARIABLE: &'static str = "TEST_NATS_URL";
    const LATENCY_GOAL: Option<f64> = Some(5.0);

    type Sink = Nats;
    type Source = Nats;

    async fn open(url: &str) -> Result<Self> {
        let client = async_nats::connect(url).await.context("connecting to NATS")?;
        let name = new_name();
        let context = jetstream::new(client);
        let config = stream::Config {
            subjects: vec![format!("{name}.>")],
            name: name.clone(),
            ..stream::Config::default()
        };
        context.create_stream(config).await.context("making a stream")?;
        Ok(Self {
            url: url.to_owned(),
            name,
            context,
        })
    }

    fn sink(&self) -> Result<Nats> {
        let name = self.name.clone();
        let nats = Nats::at(&self.url)?.stream(&self.name);
        Ok(nats.subject(move |event: &EventCx| format!("{name}.{}", event.event_type())))
    }

    fn source(&self) -> Result<Nats> {
        let nats = Nats::at(&self.url)?.stream(&self.name);
        Ok(nats.declare_consumer(GROUP, &format!("{}.>", self.name)))
    }

    async fn publish(&self, batch: &[Written]) -> Result<()> {
        let subject = format!("{}.{}", self.name, Order::TYPE);
        let mut confirmations = Vec::with_capacity(batch.len());
        for (id, payload) in batch {
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Msg-Id", id.to_string());
            let publishing = self
                .context
                .publish_with_headers(subject.clone(), headers, payload.clone().into());
            confirmations.push(publishing.await?);
        }
        for confirmation in confirmations {
            confirmation.await.context("NATS did not confirm")?;
        }
        Ok(())
    }

    fn consume(&self, hear: impl Fn(&[u8]) + Send + 'static) -> impl Future<Output = Result<()>> + Send + 'static {
        let (url, name) = (self.url.clone(), self.name.clone());
        async move {
            let context = jetstream::new(async_nats::connect(url).await?);
            let consumer = context.create_consumer_on_stream(pull::Config::default(), name);
            let mut messages = consumer.await?.messages().await?;
            while let Some(message) = messages.next().await {
                let message = message?;
                hear(&message.payload);
                message.ack().await?;
            }
            Ok(())
        }
    }

    async fn empty(&self) -> Result<()> {
        let stream = self.context.get_stream(&self.name).await?;
        stream.purge().await.map(drop).context("emptying the stream")
    }

    async fn remove(&self) -> Result<()> {
        let removing = self.context.delete_stream(&self.name).await;
        removing.map(drop).context("removing the stream")
    }
}
