//! Redis Streams, with an append-only file that is synced once a second, as by default.

use redis::aio::MultiplexedConnection;
use redis::streams::{StreamReadOptions, StreamReadReply};
use redis::{AsyncCommands, AsyncConnectionConfig, Client};
use steadfast::{Event, RedisStreams};

use super::{Broker, GROUP, Written, new_name};
use crate::command::order::Order;
use crate::error::{Context, Result};

pub(crate) struct Stream {
    url: String,
    name: String,
    connection: MultiplexedConnection,
}

impl Broker for Stream {
    const NAME: &'static str = "redis";
    const VARIABLE: &'static str = "TEST_REDIS_URL";
    const LATENCY_GOAL: Option<f64> = None;

    type Sink = RedisStreams;
    type Source = RedisStreams;

    async fn open(url: &str) -> Result<Self> {
        let connecting = Client::open(url).context("reading the URL of Redis")?;
        let connection = connecting.get_multiplexed_async_connection().await;
        Ok(Self {
            url: url.to_owned(),
            name: new_name(),
            connection: connection.context("connecting to Redis")?,
        })
    }

    fn sink(&self) -> Result<RedisStreams> {
        Ok(RedisStreams::at(&self.url)?.stream(&self.name))
    }

    fn source(&self) -> Result<RedisStreams> {
        Ok(RedisStreams::at(&self.url)?.stream(&self.name).declare_group(GROUP))
    }

    async fn publish(&self, batch: &[Written]) -> Result<()> {
        let mut pipeline = redis::pipe();
        for (id, payload) in batch {
            pipeline
                .cmd("XADD")
                .arg(&self.name)
                .arg("*")
                .arg("id")
                .arg(id.to_string())
                .arg("type")
                .arg(Order::TYPE)
                .arg("data")
                .arg(payload);
        }
        let mut connection = self.connection.clone();
        let adding = pipeline.query_async::<Vec<String>>(&mut connection);
        adding.await.map(drop).context("adding to the stream")
    }

    fn consume(&self, hear: impl Fn(&[u8]) + Send + 'static) -> impl Future<Output = Result<()>> + Send + 'static {
        let (url, name) = (self.url.clone(), self.name.clone());
        async move {
            // It waits for as long as nothing comes.
            let patient = AsyncConnectionConfig::new().set_response_timeout(None);
            let client = Client::open(url)?;
            let mut connection = client.get_multiplexed_async_connection_with_config(&patient).await?;
            let options = StreamReadOptions::default().block(0);
            let mut last = "0".to_owned();
            loop {
                let reply: Option<StreamReadReply> = connection.xread_options(&[&name], &[&last], &options).await?;
                for entry in reply.into_iter().flat_map(|reply| reply.keys).flat_map(|key| key.ids) {
                    hear(&entry.get::<Vec<u8>>("data").unwrap_or_default());
                    last = entry.id;
                }
            }
        }
    }

    async fn empty(&self) -> Result<()> {
        let removing = self.connection.clone().del::<_, i64>(&self.name).await;
        removing.map(drop).context("removing the stream")
    }

    async fn remove(&self) -> Result<()> {
        self.empty().await
    }
}
