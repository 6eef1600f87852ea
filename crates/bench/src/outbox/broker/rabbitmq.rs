//! RabbitMQ: a durable queue behind an exchange, and persistent messages.

use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use steadfast::{Event, RabbitMq};

use super::{Broker, Written, new_name};
use crate::command::order::Order;
use crate::error::{Context, Result};

/// Delivery mode.
const PERSISTENT: u8 = 2;

/// An exchange, and a queue of the same name that gets everything.
pub(crate) struct Exchange {
    url: String,
    name: ShortString,
    channel: Channel,
    _connection: Connection,
}

impl Exchange {
    /// Where the broker is, and the name of the queue.
    pub(crate) fn queue(&self) -> (&str, &ShortString) {
        (&self.url, &self.name)
    }
}

impl Broker for Exchange {
    const NAME: &'static str = "rabbitmq";
    const VARIABLE: &'static str = "TEST_RABBITMQ_URL";
    const LATENCY_GOAL: Option<f64> = Some(5.0);

    type Sink = RabbitMq;
    type Source = RabbitMq;

    async fn open(url: &str) -> Result<Self> {
        let connecting = Connection::connect(url, ConnectionProperties::default());
        let connection = connecting.await.context("connecting to RabbitMQ")?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let name: ShortString = new_name().into();
        let exchange = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        channel
            .exchange_declare(name.clone(), ExchangeKind::Topic, exchange, FieldTable::default())
            .await?;
        let queue = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        channel
            .queue_declare(name.clone(), queue, FieldTable::default())
            .await?;
        let bind = QueueBindOptions::default();
        channel
            .queue_bind(name.clone(), name.clone(), "#".into(), bind, FieldTable::default())
            .await?;
        Ok(Self {
            url: url.to_owned(),
            name,
            channel,
            _connection: connection,
        })
    }

    fn sink(&self) -> Result<RabbitMq> {
        Ok(RabbitMq::at(&self.url)?.exchange(self.name.as_str()))
    }

    fn source(&self) -> Result<RabbitMq> {
        Ok(RabbitMq::at(&self.url)?.queue(self.name.as_str()))
    }

    async fn publish(&self, batch: &[Written]) -> Result<()> {
        let mut confirmations = Vec::with_capacity(batch.len());
        for (id, payload) in batch {
            let properties = BasicProperties::default()
                .with_delivery_mode(PERSISTENT)
                .with_content_type("application/json".into())
                .with_message_id(id.to_string().into());
            let options = BasicPublishOptions::default();
            let publishing =
                self.channel
                    .basic_publish(self.name.clone(), Order::TYPE.into(), options, payload, properties);
            confirmations.push(publishing.await?);
        }
        for confirmation in confirmations {
            if !confirmation.await?.is_ack() {
                return Err("RabbitMQ did not confirm".into());
            }
        }
        Ok(())
    }

    fn consume(&self, hear: impl Fn(&[u8]) + Send + 'static) -> impl Future<Output = Result<()>> + Send + 'static {
        let (url, name) = (self.url.clone(), self.name.clone());
        async move {
            let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            let options = BasicConsumeOptions::default();
            let consuming = channel.basic_consume(name, "".into(), options, FieldTable::default());
            let mut consumer = consuming.await?;
            while let Some(delivery) = consumer.next().await {
                let delivery = delivery?;
                hear(&delivery.data);
                delivery.ack(BasicAckOptions::default()).await?;
            }
            Ok(())
        }
    }

    async fn empty(&self) -> Result<()> {
        let purging = self
            .channel
            .queue_purge(self.name.clone(), QueuePurgeOptions::default());
        purging.await.map(drop).context("emptying the queue")
    }

    async fn remove(&self) -> Result<()> {
        let queue = self
            .channel
            .queue_delete(self.name.clone(), QueueDeleteOptions::default());
        queue.await.context("removing the queue")?;
        let exchange = ExchangeDeleteOptions::default();
        let removing = self.channel.exchange_delete(self.name.clone(), exchange);
        removing.await.context("removing the exchange")
    }
}
