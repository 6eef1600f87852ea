//! What people write between RabbitMQ and PostgreSQL, as good as it gets: messages that were handled stand in a table, in the
//! transaction of what they led to, and the broker is told after the commit.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, Consumer};
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::task::JoinSet;

use super::consume::CONSUMER;
use crate::command::order::{INSERT, Order};
use crate::error::{Context, Error, Result};
use crate::outbox::broker::rabbitmq::Exchange;

const BATCH: usize = 100;
const BATCH_PREFETCH: u16 = 500;

const WORKERS: usize = 16;
/// One that is worked on, and a few that are on their way.
const WORKER_PREFETCH: u16 = 8;

const CLAIM: &str = "
    INSERT INTO handled_messages (consumer, message_id)
    SELECT $1, id FROM unnest($2::text[]) AS i (id)
    ON CONFLICT DO NOTHING
    RETURNING message_id";

/// One consumer, and up to 100 messages a transaction, acknowledged at once. It is a task, as ours is: a future that the main thread
/// waits for is woken from another one each time.
pub(super) async fn in_batches(pool: &PgPool, from: &Exchange, messages: usize) -> Result<Duration> {
    let began = Instant::now();
    let connection = connect(from).await?;
    let (channel, consumer) = consume(&connection, from, BATCH_PREFETCH).await?;
    let mut batches = consumer.ready_chunks(BATCH);
    let mut conn = pool.acquire().await?;
    let working = tokio::spawn(async move {
        let mut handled = 0;
        while handled < messages {
            let batch = batches.next().await.ok_or("the queue is gone")?;
            let batch = batch.into_iter().collect::<lapin::Result<Vec<_>>>()?;
            handle_together(&mut conn, &batch).await?;
            if let Some(last) = batch.last() {
                let all = BasicAckOptions { multiple: true };
                channel.basic_ack(last.delivery_tag, all).await?;
            }
            handled += batch.len();
        }
        Ok::<_, Error>(())
    });
    working.await.context("the consumer broke down")??;
    let took = began.elapsed();
    connection.close(200, "it stops".into()).await?;
    Ok(took)
}

async fn handle_together(conn: &mut PgConnection, batch: &[Delivery]) -> Result<()> {
    let mut tx = conn.begin().await?;
    let ids = batch.iter().map(message_id).collect::<Result<Vec<_>>>()?;
    let new: Vec<String> = sqlx::query_scalar(CLAIM)
        .bind(CONSUMER)
        .bind(&ids)
        .fetch_all(&mut *tx)
        .await?;
    let mut new: HashSet<&str> = new.iter().map(String::as_str).collect();
    for (delivery, id) in batch.iter().zip(&ids) {
        // Within one batch the first of two is the new one.
        if new.remove(id) {
            place(&mut tx, delivery).await?;
        }
    }
    tx.commit().await?;
    Ok(())
}

/// 16 workers, each with a channel and a connection to the database: one transaction for each message.
pub(super) async fn in_workers(pool: &PgPool, from: &Exchange, messages: usize) -> Result<Duration> {
    let began = Instant::now();
    let connection = connect(from).await?;
    let (told, mut done) = tokio::sync::mpsc::unbounded_channel();
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (channel, mut consumer) = consume(&connection, from, WORKER_PREFETCH).await?;
        let (mut conn, told) = (pool.acquire().await?, told.clone());
        workers.spawn(async move {
            while let Some(delivery) = consumer.next().await {
                let delivery = delivery?;
                handle(&mut conn, &delivery).await?;
                channel
                    .basic_ack(delivery.delivery_tag, BasicAckOptions::default())
                    .await?;
                // Whoever counts has had enough.
                let _ = told.send(());
            }
            Ok::<_, Error>(())
        });
    }
    let mut handled = 0;
    while handled < messages {
        tokio::select! {
            _ = done.recv() => handled += 1,
            Some(ended) = workers.join_next() => {
                ended.context("a worker broke down")??;
                return Err("the queue is gone".into());
            }
        }
    }
    let took = began.elapsed();
    connection.close(200, "it stops".into()).await?;
    Ok(took)
}

async fn handle(conn: &mut PgConnection, delivery: &Delivery) -> Result<()> {
    let mut tx = conn.begin().await?;
    let claiming =
        sqlx::query("INSERT INTO handled_messages (consumer, message_id) VALUES ($1, $2) ON CONFLICT DO NOTHING")
            .bind(CONSUMER)
            .bind(message_id(delivery)?)
            .execute(&mut *tx);
    if claiming.await?.rows_affected() == 1 {
        place(&mut tx, delivery).await?;
    }
    tx.commit().await?;
    Ok(())
}

async fn place(conn: &mut PgConnection, delivery: &Delivery) -> Result<i64> {
    let order: Order = serde_json::from_slice(&delivery.data)?;
    let inserting = sqlx::query_scalar(INSERT)
        .bind(&order.sku)
        .bind(order.quantity)
        .bind(&order.note);
    Ok(inserting.fetch_one(conn).await?)
}

fn message_id(delivery: &Delivery) -> Result<&str> {
    let id = delivery.properties.message_id().as_ref();
    Ok(id.ok_or("a message has no id")?.as_str())
}

async fn connect(to: &Exchange) -> Result<Connection> {
    let (url, _) = to.queue();
    let connecting = Connection::connect(url, ConnectionProperties::default());
    connecting.await.context("connecting to RabbitMQ")
}

async fn consume(connection: &Connection, from: &Exchange, prefetch: u16) -> Result<(Channel, Consumer)> {
    let (_, queue) = from.queue();
    let channel = connection.create_channel().await?;
    channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let consuming = channel.basic_consume(queue.clone(), "".into(), options, FieldTable::default());
    let consumer = consuming.await?;
    Ok((channel, consumer))
}
