//! What is at the brokers when all is over, read with clients that know nothing of us.

use std::collections::HashMap;

use async_nats::jetstream;
use async_nats::jetstream::consumer::{Consumer, pull};
use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use redis::AsyncCommands;
use redis::streams::{StreamInfoGroupsReply, StreamRangeReply};

use crate::error::{Context, Result};
use crate::options::BrokerKind;
use crate::server::Server;

/// What the shop's exchange, queue and streams are called there (`--sink-name`).
pub(crate) const SINK_NAME: &str = "chaos";

/// Who consumes there, in a run that is about the inbox.
const CONSUMERS: [&str; 2] = ["warehouse", "shop"];

/// How many entries of Redis are read at once: the client waits half a second for a reply.
const REDIS_PAGE: usize = 200;

/// A kind of broker, and the shop's target that sends to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broker {
    RabbitMq,
    Nats,
    Redis,
}

/// Each id, and how often it is there.
pub(crate) type Arrived = HashMap<String, u64>;

impl From<BrokerKind> for Broker {
    fn from(kind: BrokerKind) -> Self {
        match kind {
            BrokerKind::Rabbitmq => Self::RabbitMq,
            BrokerKind::Nats => Self::Nats,
            BrokerKind::Redis => Self::Redis,
        }
    }
}

impl Broker {
    pub(crate) const ALL: [Self; 3] = [Self::RabbitMq, Self::Nats, Self::Redis];

    /// As its variables have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RabbitMq => "RABBITMQ",
            Self::Nats => "NATS",
            Self::Redis => "REDIS",
        }
    }

    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::RabbitMq => "shop.rabbitmq",
            Self::Nats => "shop.nats",
            Self::Redis => "shop.redis",
        }
    }

    /// How the names of sinks and sources end that have to do with it.
    pub(crate) fn suffix(self) -> &'static str {
        self.target().trim_start_matches("shop.")
    }

    /// How many messages it still has for shops and warehouses: not handed out, or not acknowledged. RabbitMQ says nothing of the
    /// latter while their consumer is there.
    pub(crate) async fn left(self, server: &Server) -> Result<u64> {
        let left = match self {
            Self::RabbitMq => left_at_rabbitmq(&server.url).await,
            Self::Nats => left_at_nats(server.address()).await,
            Self::Redis => left_at_redis(&server.url).await,
        };
        left.context(format!("counting what is left at {}", server.name))
    }

    /// Reads everything that is at the broker.
    pub(crate) async fn arrived(self, server: &Server) -> Result<Arrived> {
        let ids = match self {
            Self::RabbitMq => at_rabbitmq(&server.url).await,
            Self::Nats => at_nats(server.address()).await,
            Self::Redis => at_redis(&server.url).await,
        };
        let mut arrived = Arrived::new();
        for id in ids.context(format!("reading what is at {}", server.name))? {
            *arrived.entry(id).or_default() += 1;
        }
        Ok(arrived)
    }
}

async fn at_rabbitmq(url: &str) -> Result<Vec<String>> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let queue = format!("{SINK_NAME}.events");
    let mut ids = Vec::new();
    // Without an acknowledgement: it is the last that anybody reads.
    let options = BasicGetOptions { no_ack: true };
    while let Some(message) = channel.basic_get(queue.as_str().into(), options).await? {
        let id = message.delivery.properties.message_id();
        ids.push(id.as_ref().ok_or("a message without an id")?.to_string());
    }
    Ok(ids)
}

async fn at_nats(address: &str) -> Result<Vec<String>> {
    let client = async_nats::connect(address).await?;
    let stream = jetstream::new(client).get_stream(SINK_NAME.to_uppercase()).await?;
    let last = stream.get_info().await?.state.last_sequence;
    let mut ids = Vec::new();
    for number in 1..=last {
        let message = stream.get_raw_message(number).await?;
        let id = message.headers.get("Nats-Msg-Id");
        ids.push(id.ok_or("a message without an id")?.to_string());
    }
    Ok(ids)
}

async fn at_redis(url: &str) -> Result<Vec<String>> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let stream = format!("{SINK_NAME}.events");
    let mut ids: Vec<String> = Vec::new();
    let mut start = "-".to_owned();
    loop {
        let page: StreamRangeReply = connection.xrange_count(&stream, &start, "+", REDIS_PAGE).await?;
        let Some(last) = page.ids.last() else { return Ok(ids) };
        start = format!("({}", last.id);
        for entry in &page.ids {
            ids.push(entry.get("ce-id").ok_or("an entry without an id")?);
        }
    }
}

async fn left_at_rabbitmq(url: &str) -> Result<u64> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let mut left = 0;
    for consumer in CONSUMERS {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let queue = format!("{SINK_NAME}.{consumer}");
        let looking = channel.queue_declare(queue.as_str().into(), options, FieldTable::default());
        left += u64::from(looking.await?.message_count());
    }
    connection.close(200, "looked".into()).await?;
    Ok(left)
}

async fn left_at_nats(address: &str) -> Result<u64> {
    let client = async_nats::connect(address).await?;
    let stream = jetstream::new(client).get_stream(SINK_NAME.to_uppercase()).await?;
    let mut left = 0;
    for consumer in CONSUMERS {
        let mut consumer: Consumer<pull::Config> = stream.get_consumer(consumer).await?;
        let info = consumer.info().await?;
        left += info.num_pending + info.num_ack_pending as u64;
    }
    Ok(left)
}

async fn left_at_redis(url: &str) -> Result<u64> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let groups: StreamInfoGroupsReply = connection.xinfo_groups(format!("{SINK_NAME}.events")).await?;
    let left = groups.groups.iter().map(|group| group.pending + group.lag.unwrap_or(0));
    Ok(left.sum::<usize>() as u64)
}
