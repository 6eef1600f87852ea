//! Redis as a messenger: `PUBLISH` and `SUBSCRIBE`. Nothing is kept there.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use redis::{Client, RedisResult, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::{CONNECT_LIMIT, address_of, check_plaintext, client_of, open};
use crate::broker::{Ear, Messenger};
use crate::error::Result;
use crate::failure::Failure;

/// After how long without a word an ear asks whether the server is still there.
const IDLE_LIMIT: Duration = Duration::from_secs(15);

/// A channel of Redis, by which the processes of a service tell each other of what is pushed:
/// [`PushTarget::across`](crate::PushTarget::across).
///
/// The user needs `PUBLISH` and `SUBSCRIBE` on `steadfast.streams.*`. In a cluster of Redis, name any node. A server of its own is
/// not needed: channels are beside the keys, and shared by all databases of a server.
pub struct RedisPubSub {
    client: Client,
    /// What is told goes over it. Whoever uses it has it alone.
    line: Mutex<Option<MultiplexedConnection>>,
}

impl RedisPubSub {
    /// A server: `rediss://user:password@host:6379`. Nothing is connected before something is told or followed.
    ///
    /// # Errors
    /// SF303 if it is no such address, or if it is `redis://` to another machine: that would be plain text
    /// ([`at_plaintext`](Self::at_plaintext)).
    pub fn at(server: &str) -> Result<Self> {
        let redis = Self::at_plaintext(server)?;
        let instead = "write rediss://, or RedisPubSub::at_plaintext if nobody can listen on the way";
        check_plaintext(&redis.client, instead)?;
        Ok(redis)
    }

    /// A server, as [`at`](Self::at) has it, that the names of streams and passwords may go to as plain text.
    ///
    /// # Errors
    /// SF303 if it is no such address.
    pub fn at_plaintext(server: &str) -> Result<Self> {
        Ok(Self {
            client: client_of(server)?,
            line: Mutex::new(None),
        })
    }
}

impl Messenger for RedisPubSub {
    type Ear = RedisEar;

    async fn tell(&self, channel: &str, notice: &str) -> Result<(), Failure> {
        let mut line = self.line.lock().await;
        // Taken, so that nobody uses it again if it does not answer.
        if let Some(mut connection) = line.take()
            && publish(&mut connection, channel, notice).await.is_ok()
        {
            *line = Some(connection);
            return Ok(());
        }
        // A server closes connections that are idle for long.
        let mut connection = open(&self.client).await.map_err(away)?;
        publish(&mut connection, channel, notice).await.map_err(away)?;
        *line = Some(connection);
        Ok(())
    }

    async fn listen(&self, channel: &str) -> Result<RedisEar, Failure> {
        let listening = async {
            let mut line = self.client.get_async_pubsub().await?;
            line.subscribe(channel).await?;
            Ok::<_, redis::RedisError>(line)
        };
        let line = timeout(CONNECT_LIMIT, listening).await;
        let line = line.map_err(|_| away("it does not answer"))?.map_err(away)?;
        let (asks, hears) = line.split();
        Ok(RedisEar { asks, hears })
    }

    fn address(&self) -> String {
        address_of(&self.client)
    }
}

async fn publish(connection: &mut MultiplexedConnection, channel: &str, notice: &str) -> RedisResult<()> {
    redis::cmd("PUBLISH")
        .arg(channel)
        .arg(notice)
        .query_async(connection)
        .await
}

fn away(error: impl fmt::Display) -> Failure {
    Failure::transient("away", error.to_string())
}

/// What hears a channel of Redis.
pub struct RedisEar {
    asks: PubSubSink,
    hears: PubSubStream,
}

impl Ear for RedisEar {
    async fn hear(&mut self) -> Result<String, Failure> {
        loop {
            match timeout(IDLE_LIMIT, self.hears.next()).await {
                Ok(Some(message)) => return Ok(String::from_utf8_lossy(message.get_payload_bytes()).into_owned()),
                Ok(None) => return Err(away("the connection was lost")),
                Err(_) => {}
            }
            let asking = timeout(CONNECT_LIMIT, self.asks.ping::<Value>()).await;
            asking.map_err(|_| away("it does not answer"))?.map_err(away)?;
        }
    }
}

impl fmt::Debug for RedisPubSub {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisPubSub")
            .field("server", &self.address())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RedisEar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisEar").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn an_address_is_one_of_redis_and_plain_text_stays_on_this_machine() {
        for wrong in ["", "nats://127.0.0.1", "redis://ann:secret@redis.example.org"] {
            let refused = RedisPubSub::at(wrong).expect_err(wrong);
            assert_eq!(refused.code(), Code::ConfigurationInvalid, "{wrong}");
            assert!(!refused.to_string().contains("secret"), "{refused}");
        }
        RedisPubSub::at_plaintext("redis://ann:secret@redis.example.org").expect("said so");
        let redis = RedisPubSub::at("redis://ann:secret@127.0.0.1:6379").expect("an address");
        let shown = format!("{redis:?}");
        assert!(shown.contains("127.0.0.1:6379") && !shown.contains("secret"), "{shown}");
    }
}
