//! Which broker a URL is of, and what the library says of it.

use steadfast::{Check, Nats, RabbitMq, RedisStreams};

use crate::Context;
use crate::error::{CliError, Exit, Result};
use crate::outside_options::DoctorOptions;
use crate::secret::{mask, mask_url};
use crate::words::with_flags;

/// A broker, and what was found there.
pub(crate) struct Examined {
    /// Its URL, without the password.
    pub(crate) broker: String,
    pub(crate) checks: Vec<Check>,
}

/// The brokers that we know.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Nats,
    RabbitMq,
    Redis,
}

impl Kind {
    fn of(url: &str) -> Result<Self> {
        // Only the scheme is repeated: what follows it may hold a password.
        let what = match url.split_once("://") {
            Some(("nats" | "tls", _)) => return Ok(Self::Nats),
            Some(("amqp" | "amqps", _)) => return Ok(Self::RabbitMq),
            Some(("redis" | "rediss", _)) => return Ok(Self::Redis),
            Some((other, _)) => format!("the URL of a broker begins with {other:?}"),
            None => "the URL of a broker has no scheme".to_owned(),
        };
        let help =
            "write nats:// or tls:// for NATS, amqp:// or amqps:// for RabbitMQ, redis:// or rediss:// for Redis";
        Err(CliError::new(Exit::Usage, what, help))
    }
}

/// Looks at all brokers of the settings, one after another.
pub(crate) async fn examine(context: &Context, options: &DoctorOptions) -> Result<Vec<Examined>> {
    let brokers: Vec<_> = context
        .config
        .brokers()
        .map(|url| Ok((Kind::of(url)?, url)))
        .collect::<Result<_>>()?;
    let has = |wanted| brokers.iter().any(|(kind, _)| *kind == wanted);
    if options.stream.is_some() && !has(Kind::Nats) {
        return Err(unused("--stream", "NATS", "nats://"));
    }
    if options.nats_monitor.is_some() && !has(Kind::Nats) {
        return Err(unused("--nats-monitor", "NATS", "nats://"));
    }
    if (options.exchange.is_some() || !options.queues.is_empty()) && !has(Kind::RabbitMq) {
        return Err(unused("--exchange or --queue", "RabbitMQ", "amqps://"));
    }
    let mut examined = Vec::with_capacity(brokers.len());
    for (kind, url) in brokers {
        let checks = match kind {
            Kind::Nats => nats(url, options).await?,
            Kind::RabbitMq => rabbitmq(url, options).await?,
            Kind::Redis => redis(url, options).await?,
        };
        examined.push(Examined {
            broker: mask_url(url),
            checks: checks.into_iter().map(told).collect(),
        });
    }
    Ok(examined)
}

fn unused(flag: &str, broker: &str, scheme: &str) -> CliError {
    let what = format!("{flag} is about {broker}, and no broker is one");
    CliError::new(Exit::Usage, what, format!("add --broker {scheme}HOST"))
}

async fn nats(url: &str, options: &DoctorOptions) -> Result<Vec<Check>> {
    let nats = match options.allow_plaintext {
        true => Nats::at_plaintext(url)?,
        false => Nats::at(url)?,
    };
    let nats = match &options.stream {
        Some(stream) => nats.stream(stream),
        None => nats,
    };
    let nats = match &options.nats_monitor {
        Some(url) => nats.monitor(url)?,
        None => nats,
    };
    Ok(nats.examine().await)
}

async fn rabbitmq(url: &str, options: &DoctorOptions) -> Result<Vec<Check>> {
    let plain = RabbitMq::at_plaintext(url)?;
    let rabbitmq = match RabbitMq::at(url) {
        Err(error) if !options.allow_plaintext => return Ok(vec![Check::failed("encryption", &error)]),
        _ => plain,
    };
    let rabbitmq = match &options.exchange {
        Some(exchange) => rabbitmq.exchange(exchange),
        None => rabbitmq,
    };
    let queues: Vec<_> = options.queues.iter().map(String::as_str).collect();
    Ok(rabbitmq.examine(&queues).await)
}

async fn redis(url: &str, options: &DoctorOptions) -> Result<Vec<Check>> {
    let plain = RedisStreams::at_plaintext(url)?;
    let redis = match RedisStreams::at(url) {
        Err(error) if !options.allow_plaintext => return Ok(vec![Check::failed("encryption", &error)]),
        _ => plain,
    };
    Ok(redis.examine().await)
}

/// As it is told here: with flags, and without any password that a client may have repeated.
fn told(mut check: Check) -> Check {
    check.found = mask(&with_flags(&check.found));
    check.fix = check.fix.as_deref().map(with_flags);
    check
}
