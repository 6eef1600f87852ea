//! Where events go beyond the shop: `--sink URL`, a broker or a webhook. Each is a target that gets every event. The broker between a
//! shop and its warehouse (`--source URL`) is one too, for both of them.
//!
//! It works with nothing prepared: the sinks create on the other side what events need to stay there, under `--sink-name`. The
//! URLs are read here and not by clap, which would repeat a wrong one with the password in it.

use std::fmt::Write;
use std::net::IpAddr;

use clap::Args;
use reqwest::Url;
use steadfast::{Database, Nats, RabbitMq, RedisStreams, Steadfast, Webhook};

use crate::StartError;
use crate::sources::End;

/// What the targets are called. The names are stored with every delivery, and so there is one sink of each kind: two of a kind,
/// numbered, would become each other when somebody swaps them on the command line.
pub(crate) const TARGETS: [&str; 4] = ["shop.rabbitmq", "shop.nats", "shop.redis", "shop.webhook"];

/// What they are called in a warehouse.
pub(crate) const WAREHOUSE_TARGETS: [&str; 3] = ["warehouse.rabbitmq", "warehouse.nats", "warehouse.redis"];

/// NATS allows 255 characters for a stream, and AMQP as many bytes for a queue; nobody needs half of them.
const NAME_LENGTH_MAX: usize = 100;

/// Where events go, as the command line says it.
#[derive(Args)]
pub(crate) struct SinkOptions {
    /// Where every event goes, beyond the shop: amqp(s):// or rabbitmq://, nats:// or tls://, redis(s)://, or http(s):// for a
    /// webhook. May be repeated, with one of each kind. What events need there is created
    #[arg(long = "sink", value_name = "URL")]
    urls: Vec<String>,
    /// What it is called there: RabbitMQ has an exchange and a queue NAME.events, NATS a stream NAME in capitals, Redis a stream
    /// NAME.events
    #[arg(long = "sink-name", value_name = "NAME", default_value = "shop", value_parser = read_name)]
    name: String,
    /// Signs webhooks: whsec_ and base64 of at least 24 bytes; required for an http(s):// sink
    #[arg(long, value_name = "SECRET", env = "SHOP_WEBHOOK_SECRET", hide_env_values = true)]
    webhook_secret: Option<String>,
}

impl SinkOptions {
    /// What it is all called at brokers.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// Sinks that were read and are connected to nothing yet.
pub(crate) struct Sinks(Vec<Named>);

struct Named {
    target: &'static str,
    /// For people, without a password.
    place: String,
    sink: AnySink,
}

enum AnySink {
    RabbitMq(RabbitMq),
    Nats(Nats),
    Redis(RedisStreams),
    Webhook(Webhook),
}

impl Sinks {
    /// Reads the command line of a shop, whose warehouse may be behind the broker of this source.
    pub(crate) fn read(options: &SinkOptions, source: Option<&str>) -> Result<Self, StartError> {
        let mut sinks: Vec<Named> = Vec::new();
        let beside = source.filter(|source| options.urls.iter().all(|url| url != source));
        for url in options.urls.iter().map(String::as_str).chain(beside) {
            let sink = Named::read(url, &Way::from_shop(options, Some(url) == source))?;
            if sinks.iter().any(|other| other.target == sink.target) {
                let (target, flags) = match Some(url) == beside {
                    true => (sink.target, "--source and --sink are two of them"),
                    false => (sink.target, "--sink was given twice"),
                };
                return Err(format!(
                    "{flags} for {target}; there is one of each kind, since its name is stored with what it delivers"
                )
                .into());
            }
            sinks.push(sink);
        }
        Ok(Self(sinks))
    }

    /// Where a warehouse tells what it has reserved: the broker of its source.
    pub(crate) fn of_warehouse(source: &str, name: &str) -> Result<Self, StartError> {
        let way = Way {
            from: End::Warehouse,
            name,
            queues: vec![(End::Shop.queue(name), End::Shop.events())],
            webhook_secret: None,
        };
        Ok(Self(vec![Named::read(source, &way)?]))
    }

    /// Makes them targets of the outbox.
    pub(crate) fn declare<Db: Database>(self, sf: &Steadfast<Db>) {
        for Named { target, sink, .. } in self.0 {
            let target = sf.sink(target);
            match sink {
                AnySink::RabbitMq(rabbitmq) => target.deliver_to(rabbitmq),
                AnySink::Nats(nats) => target.deliver_to(nats),
                AnySink::Redis(redis) => target.deliver_to(redis),
                AnySink::Webhook(webhook) => target.deliver_to(webhook),
            }
        }
    }

    /// Where events go, for the banner; nothing if they stay here.
    pub(crate) fn describe(&self, heading: &str) -> String {
        let mut text = String::new();
        if !self.0.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{heading}");
        }
        for Named { target, place, .. } in &self.0 {
            let _ = writeln!(text, "  {target}: {place}");
        }
        text
    }
}

/// What a sink has to know, beside where it leads to.
struct Way<'w> {
    from: End,
    name: &'w str,
    /// What RabbitMQ needs to have, since it forgets what no queue takes: queues, and what they take.
    queues: Vec<(String, &'static [&'static str])>,
    webhook_secret: Option<&'w str>,
}

impl<'w> Way<'w> {
    fn from_shop(options: &'w SinkOptions, is_to_warehouse: bool) -> Self {
        let name = &options.name;
        let mut queues = vec![(format!("{name}.events"), &["#"][..])];
        if is_to_warehouse {
            // Orders wait for it there, also before it is started for the first time.
            queues.push((End::Warehouse.queue(name), End::Warehouse.events()));
        }
        Self {
            from: End::Shop,
            name,
            queues,
            webhook_secret: options.webhook_secret.as_deref(),
        }
    }

    /// What the target of this place among [`TARGETS`] is called.
    fn target(&self, place: usize) -> &'static str {
        match self.from {
            End::Shop => TARGETS[place],
            End::Warehouse => WAREHOUSE_TARGETS[place],
        }
    }
}

impl Named {
    fn read(text: &str, way: &Way<'_>) -> Result<Self, StartError> {
        let url = Url::parse(text).map_err(|error| format!("a --sink cannot be read: {error}; {EXAMPLES}"))?;
        let address = address(&url);
        let refused = |error: steadfast::Error| format!("--sink {}://{address} is not usable: {error}", url.scheme());
        let name = way.name;
        let (target, place, sink) = match url.scheme() {
            "amqp" | "amqps" | "rabbitmq" => {
                let events = format!("{name}.events");
                let mut rabbitmq = rabbitmq(text).map_err(refused)?.exchange(&events).declare_exchange();
                for (queue, keys) in &way.queues {
                    rabbitmq = rabbitmq.declare_queue(queue, keys);
                }
                let queues: Vec<_> = way.queues.iter().map(|(queue, _)| &**queue).collect();
                let queues = match queues[..] {
                    [queue] => format!("the queue {queue}"),
                    _ => format!("the queues {}", queues.join(" and ")),
                };
                let place = format!("RabbitMQ at {address}, the exchange {events} and from there {queues}");
                (way.target(0), place, AnySink::RabbitMq(rabbitmq))
            }
            "nats" | "tls" => {
                let (stream, prefix) = (name.to_uppercase(), name.to_owned());
                let nats = Nats::at(text)
                    .map_err(refused)?
                    .declare_stream(&stream, &[&format!("{name}.>")])
                    .subject(move |event| format!("{prefix}.{}", event.event_type()));
                let place = format!("NATS at {address}, the stream {stream}, with the subjects {name}.>");
                (way.target(1), place, AnySink::Nats(nats))
            }
            "redis" | "rediss" => {
                let stream = format!("{name}.events");
                let redis = RedisStreams::at(text).map_err(refused)?.stream(&stream);
                let place = format!("Redis at {address}, the stream {stream}");
                (way.target(2), place, AnySink::Redis(redis))
            }
            "http" | "https" => {
                let secret = way.webhook_secret.filter(|secret| !secret.is_empty());
                let secret = secret.ok_or_else(|| format!("--sink {}://{address} {NEEDS_SECRET}", url.scheme()))?;
                let mut webhook = Webhook::to(text).signed_by([secret]);
                if is_this_machine(&url) {
                    webhook = webhook.allow_private().allow_plaintext();
                }
                let place = format!("a webhook at {address}, signed");
                (TARGETS[3], place, AnySink::Webhook(webhook.build().map_err(refused)?))
            }
            other => {
                return Err(format!("a --sink begins with {other:?}, which the shop does not know; {EXAMPLES}").into());
            }
        };
        Ok(Self { target, place, sink })
    }
}

const EXAMPLES: &str = "write amqp://guest:guest@127.0.0.1:5672/%2f, nats://127.0.0.1:4222, redis://127.0.0.1:6379 or \
                        https://example.org/hooks";

const NEEDS_SECRET: &str = "is a webhook, and is signed; give it --webhook-secret or SHOP_WEBHOOK_SECRET, for instance \
                            \"whsec_$(head -c 32 /dev/urandom | base64)\"";

/// RabbitMQ at this address. Some tools write `rabbitmq:`, and mean the same.
pub(crate) fn rabbitmq(text: &str) -> steadfast::Result<RabbitMq> {
    let plain = text.strip_prefix("rabbitmq:").map(|rest| format!("amqp:{rest}"));
    RabbitMq::at(plain.as_deref().unwrap_or(text))
}

/// Host and port as they may be shown: user and password, path and query may be secret.
pub(crate) fn address(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// Whether a webhook stays on this machine, as in a demo: then it may be plain text to an address that is nobody else's.
fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// What fits the names of all of them: a subject of NATS has dots between its parts, and a stream has none.
pub(crate) fn read_name(text: &str) -> Result<String, String> {
    let is_letter = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-');
    if text.is_empty() || text.len() > NAME_LENGTH_MAX || !text.chars().all(is_letter) {
        return Err(format!(
            "write small letters, digits and dashes, at most {NAME_LENGTH_MAX}"
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn read(urls: &[&str], secret: Option<&str>) -> Result<String, String> {
        read_with(urls, secret, None)
    }

    fn read_with(urls: &[&str], secret: Option<&str>, source: Option<&str>) -> Result<String, String> {
        let options = SinkOptions {
            urls: urls.iter().map(|url| (*url).to_owned()).collect(),
            name: "shop".to_owned(),
            webhook_secret: secret.map(str::to_owned),
        };
        let sinks = Sinks::read(&options, source).map_err(|error| error.to_string())?;
        Ok(sinks.describe("Every event also goes to"))
    }

    #[test]
    fn every_kind_is_a_target_of_its_own_and_shows_no_password() {
        let urls = [
            "amqp://ann:hunter2@127.0.0.1:5672/%2f",
            "nats://ann:hunter2@127.0.0.1:4222",
            "rediss://ann:hunter2@redis.example.org:6380/0",
            "https://example.org/hunter2?hunter2",
        ];
        let said = read(&urls, Some(SECRET)).expect("four sinks");
        for (target, line) in TARGETS.iter().zip(said.lines().skip(1)) {
            assert!(line.starts_with(&format!("  {target}: ")), "{line}");
        }
        assert_eq!(said.lines().count(), 1 + TARGETS.len());
        assert!(
            said.contains("redis.example.org:6380") && !said.contains("hunter2"),
            "{said}"
        );
        assert_eq!(read(&[], None), Ok(String::new()));
    }

    #[test]
    fn other_schemes_of_a_kind_are_the_same_target() {
        for (url, target) in [
            ("rabbitmq://guest:guest@localhost/%2f", "shop.rabbitmq"),
            ("amqps://rabbit.example.org", "shop.rabbitmq"),
            ("tls://nats.example.org", "shop.nats"),
            ("redis://[::1]:6379", "shop.redis"),
            ("http://127.0.0.1:7979/webhooks/shop", "shop.webhook"),
            ("http://[::1]:7979/", "shop.webhook"),
        ] {
            let said = read(&[url], Some(SECRET)).expect(url);
            assert!(said.contains(target), "{said}");
        }
    }

    #[test]
    fn what_cannot_be_a_sink_is_refused_with_the_reason_and_without_the_password() {
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
            ("http://example.org/hunter2", "write https"),
            ("https://ann:hunter2@example.org/", "remove them"),
            ("https://10.0.0.1/hunter2", "a private address"),
        ] {
            let refused = read(&[url], Some(SECRET)).expect_err(url);
            assert!(refused.contains(says), "{url}: {refused}");
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }

    #[test]
    fn a_webhook_without_a_usable_secret_is_refused() {
        for (secret, says) in [
            (None, "--webhook-secret or SHOP_WEBHOOK_SECRET"),
            (Some(""), "--webhook-secret or SHOP_WEBHOOK_SECRET"),
            (Some("hunter2"), "is not `whsec_` and base64"),
        ] {
            let refused = read(&["https://example.org/hooks"], secret).expect_err("no secret");
            assert!(refused.contains(says) && !refused.contains("hunter2"), "{refused}");
        }
        assert!(read(&["nats://127.0.0.1"], None).is_ok(), "nobody else needs one");
    }

    #[test]
    fn there_is_one_of_each_kind() {
        let two = ["amqp://127.0.0.1:1/", "rabbitmq://127.0.0.1:2/"];
        let refused = read(&two, None).expect_err("two of a kind");
        assert!(
            refused.contains("shop.rabbitmq") && refused.contains("one of each kind"),
            "{refused}"
        );
    }

    #[test]
    fn the_broker_of_a_warehouse_is_a_sink_once() {
        let url = "amqp://127.0.0.1:1/";
        let said = read_with(&[], None, Some(url)).expect("a sink");
        assert!(
            said.contains("shop.rabbitmq") && said.contains("shop.warehouse"),
            "{said}"
        );
        assert_eq!(read_with(&[url], None, Some(url)), Ok(said));
        let both = read_with(&[url], None, Some("nats://127.0.0.1")).expect("two sinks");
        assert!(!both.contains("shop.warehouse") && both.contains("shop.nats"), "{both}");
        let refused = read_with(&[url], None, Some("amqp://127.0.0.1:2/")).expect_err("two of a kind");
        assert!(refused.contains("--source and --sink"), "{refused}");
    }

    #[test]
    fn a_name_fits_every_broker() {
        for good in ["shop", "shop-2", "7"] {
            assert_eq!(read_name(good).as_deref(), Ok(good));
        }
        for bad in ["", "shop.eu", "Shop", "a b", ">", &"x".repeat(NAME_LENGTH_MAX + 1)] {
            assert!(read_name(bad).is_err(), "{bad}");
        }
    }
}
