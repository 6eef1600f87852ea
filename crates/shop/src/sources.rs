//! The broker between a shop and its warehouse: `--source URL`, on both sides. Each side has a place of its own there, in which what
//! the other one says waits for it; it is created, so nothing has to be prepared.
//!
//! The URLs are read here and not by clap, which would repeat a wrong one with the password in it.

use std::time::Duration;

use reqwest::Url;
use steadfast::{Database, Nats, RabbitMq, RedisStreams, Steadfast};

use crate::StartError;
use crate::sinks::{address, rabbitmq};

/// What the sources are called, in a shop and in a warehouse: after what comes from them. The names are stored with what nobody can
/// read.
pub(crate) const NAMES: [&str; 6] = [
    "reservations.rabbitmq",
    "reservations.nats",
    "reservations.redis",
    "orders.rabbitmq",
    "orders.nats",
    "orders.redis",
];

/// How many bytes a message may have: much more than an order or a reservation needs.
const LENGTH_MAX: usize = 64 * 1024;

/// A side of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Shop,
    Warehouse,
}

impl End {
    /// What it is called at the broker: a consumer of NATS, a group of Redis.
    fn name(self) -> &'static str {
        match self {
            Self::Shop => "shop",
            Self::Warehouse => "warehouse",
        }
    }

    /// Its queue at RabbitMQ.
    pub(crate) fn queue(self, name: &str) -> String {
        format!("{name}.{}", self.name())
    }

    /// What it wants to hear of. Both speak at the same place, so each says exactly what it means.
    pub(crate) fn events(self) -> &'static [&'static str] {
        match self {
            Self::Shop => &["stock.reserved"],
            Self::Warehouse => &["order.placed", "order.cancelled"],
        }
    }

    /// The subjects of NATS that these are among; a consumer has one.
    fn subject(self, name: &str) -> String {
        match self {
            Self::Shop => format!("{name}.stock.>"),
            Self::Warehouse => format!("{name}.order.>"),
        }
    }

    fn source(self, place: usize) -> &'static str {
        match self {
            Self::Shop => NAMES[place],
            Self::Warehouse => NAMES[place + 3],
        }
    }
}

/// A source that was read and is connected to nothing yet.
pub(crate) struct Source {
    end: End,
    name: &'static str,
    /// For people, without a password.
    place: String,
    broker: Broker,
}

enum Broker {
    RabbitMq(RabbitMq),
    Nats(Nats),
    Redis(RedisStreams),
}

impl Source {
    /// Reads the URL of a broker. What was handed to a process that has died comes again after `again_after`, where the broker does
    /// not see that it is dead.
    pub(crate) fn read(text: &str, name: &str, end: End, again_after: Option<Duration>) -> Result<Self, StartError> {
        let url = Url::parse(text).map_err(|error| format!("--source cannot be read: {error}; {EXAMPLES}"))?;
        let address = address(&url);
        let refused = |error: steadfast::Error| format!("--source {}://{address} is not usable: {error}", url.scheme());
        let (events, whose) = (format!("{name}.events"), end.name());
        let (source, place, broker) = match url.scheme() {
            "amqp" | "amqps" | "rabbitmq" => {
                let queue = end.queue(name);
                let rabbitmq = rabbitmq(text).map_err(refused)?.exchange(&events).declare_exchange();
                let place = format!("RabbitMQ at {address}, the queue {queue}");
                let rabbitmq = rabbitmq.declare_queue(&queue, end.events());
                (end.source(0), place, Broker::RabbitMq(rabbitmq))
            }
            "nats" | "tls" => {
                let stream = name.to_uppercase();
                let nats = Nats::at(text).map_err(refused)?;
                let mut nats = nats
                    .declare_stream(&stream, &[&format!("{name}.>")])
                    .declare_consumer(whose, &end.subject(name));
                if let Some(after) = again_after {
                    nats = nats.ack_wait(after);
                }
                let place = format!("NATS at {address}, the consumer {whose} of the stream {stream}");
                (end.source(1), place, Broker::Nats(nats))
            }
            "redis" | "rediss" => {
                let redis = RedisStreams::at(text).map_err(refused)?;
                let mut redis = redis.stream(&events).declare_group(whose);
                if let Some(after) = again_after {
                    redis = redis.take_over_after(after);
                }
                let place = format!("Redis at {address}, the group {whose} of the stream {events}");
                (end.source(2), place, Broker::Redis(redis))
            }
            "http" | "https" => {
                return Err(format!(
                    "--source {}://{address} is no broker, and nothing comes from there; {EXAMPLES}",
                    url.scheme()
                )
                .into());
            }
            other => {
                return Err(format!("--source begins with {other:?}, which the shop does not know; {EXAMPLES}").into());
            }
        };
        Ok(Self {
            end,
            name: source,
            place,
            broker,
        })
    }

    /// Feeds the reactions of this process from there.
    pub(crate) fn declare<Db: Database>(self, sf: &Steadfast<Db>) {
        let mut intake = sf.source(self.name).max_length(LENGTH_MAX);
        for event in self.end.events() {
            intake = intake.events(event);
        }
        match self.broker {
            Broker::RabbitMq(rabbitmq) => intake.consume_from(rabbitmq),
            Broker::Nats(nats) => intake.consume_from(nats),
            Broker::Redis(redis) => intake.consume_from(redis),
        }
    }

    /// Where events come from, for the banner.
    pub(crate) fn describe(&self, heading: &str) -> String {
        format!("{heading}\n  {}: {}\n", self.name, self.place)
    }
}

const EXAMPLES: &str = "write amqp://guest:guest@127.0.0.1:5672/%2f, nats://127.0.0.1:4222 or redis://127.0.0.1:6379";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str, end: End) -> Result<String, String> {
        let read = Source::read(url, "shop", end, Some(Duration::from_secs(2)));
        read.map(|source| source.describe("From"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn each_side_of_each_broker_has_a_place_of_its_own() {
        for (url, kind) in [
            ("rabbitmq://ann:hunter2@127.0.0.1:5672/%2f", "rabbitmq"),
            ("amqps://ann:hunter2@rabbit.example.org", "rabbitmq"),
            ("tls://ann:hunter2@nats.example.org", "nats"),
            ("redis://ann:hunter2@[::1]:6379", "redis"),
        ] {
            let shop = read(url, End::Shop).expect(url);
            let warehouse = read(url, End::Warehouse).expect(url);
            assert!(shop.contains(&format!("  reservations.{kind}: ")), "{shop}");
            assert!(warehouse.contains(&format!("  orders.{kind}: ")), "{warehouse}");
            assert!(
                warehouse.contains("warehouse") && !shop.contains("warehouse"),
                "{warehouse}{shop}"
            );
            assert!(!shop.contains("hunter2") && !warehouse.contains("hunter2"), "{shop}");
        }
    }

    #[test]
    fn what_cannot_be_a_source_is_refused_with_the_reason_and_without_the_password() {
        for (url, says) in [
            ("", "write amqp://"),
            ("hunter2", "write amqp://"),
            ("kafka://ann:hunter2@127.0.0.1:9092", "begins with \"kafka\""),
            ("nats://ann:hunter2@127.0.0.1:port", "invalid port number"),
            ("amqp://ann:hunter2@rabbit.example.org", "as plain text"),
            ("redis://ann:hunter2@redis.example.org", "as plain text"),
            (
                "redis://ann:hunter2@127.0.0.1/hunter2",
                "redis://127.0.0.1 is not usable",
            ),
            ("https://example.org/hunter2", "is no broker"),
        ] {
            let refused = read(url, End::Warehouse).expect_err(url);
            assert!(
                refused.contains(says) && refused.contains("--source"),
                "{url}: {refused}"
            );
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }
}
