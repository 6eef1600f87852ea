//! How shops on one database tell each other of what customers should hear live: `--push-across URL`, a Redis or a NATS. Without it,
//! PostgreSQL does.
//!
//! The URL is read here and not by clap, which would repeat a wrong one with the password in it.

use reqwest::Url;
use steadfast::{Database, NatsPubSub, PushTarget, RedisPubSub};

use crate::StartError;
use crate::sinks::address;

/// What was read and is connected to nothing yet.
pub(crate) struct Across {
    /// For people, without a password.
    place: String,
    messenger: AnyMessenger,
}

enum AnyMessenger {
    Nats(Box<NatsPubSub>),
    Redis(Box<RedisPubSub>),
}

impl Across {
    pub(crate) fn read(text: &str) -> Result<Self, StartError> {
        let url = Url::parse(text).map_err(|error| format!("--push-across cannot be read: {error}; {EXAMPLES}"))?;
        let (scheme, address) = (url.scheme(), address(&url));
        let refused = |error: steadfast::Error| format!("--push-across {scheme}://{address} is not usable: {error}");
        let (place, messenger) = match scheme {
            "nats" | "tls" => {
                let nats = NatsPubSub::at(text).map_err(refused)?;
                (format!("NATS at {address}"), AnyMessenger::Nats(nats.into()))
            }
            "redis" | "rediss" => {
                let redis = RedisPubSub::at(text).map_err(refused)?;
                (format!("Redis at {address}"), AnyMessenger::Redis(redis.into()))
            }
            other => {
                let what = format!("--push-across begins with {other:?}, which carries no notices; {EXAMPLES}");
                return Err(what.into());
            }
        };
        Ok(Self { place, messenger })
    }

    /// Has it carry what a push tells other processes.
    pub(crate) fn carry<Db: Database>(self, push: PushTarget<'_, Db>) -> PushTarget<'_, Db> {
        match self.messenger {
            AnyMessenger::Nats(nats) => push.across(*nats),
            AnyMessenger::Redis(redis) => push.across(*redis),
        }
    }

    /// For the banner.
    pub(crate) fn describe(&self) -> String {
        format!("Shops and workers tell each other of what is live by {}\n", self.place)
    }
}

const EXAMPLES: &str = "write redis://127.0.0.1:6379 or nats://127.0.0.1:4222";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<String, String> {
        let across = Across::read(url).map_err(|error| error.to_string())?;
        Ok(across.describe())
    }

    #[test]
    fn redis_and_nats_carry_notices_and_show_no_password() {
        for (url, says) in [
            ("redis://ann:hunter2@127.0.0.1:6379", "Redis at 127.0.0.1:6379"),
            ("rediss://ann:hunter2@redis.example.org", "Redis at redis.example.org"),
            ("nats://ann:hunter2@127.0.0.1:4222", "NATS at 127.0.0.1:4222"),
            ("tls://ann:hunter2@nats.example.org", "NATS at nats.example.org"),
        ] {
            let said = read(url).expect(url);
            assert!(said.contains(says) && !said.contains("hunter2"), "{said}");
        }
    }

    #[test]
    fn what_carries_no_notices_is_refused_with_the_reason_and_without_the_password() {
        for (url, says) in [
            ("hunter2", "write redis://"),
            ("amqp://ann:hunter2@127.0.0.1", "begins with \"amqp\""),
            ("redis://ann:hunter2@redis.example.org", "as plain text"),
        ] {
            let refused = read(url).expect_err(url);
            assert!(refused.contains(says) && !refused.contains("hunter2"), "{refused}");
        }
    }
}
