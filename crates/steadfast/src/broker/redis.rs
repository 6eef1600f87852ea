//! Redis Streams: a message counts as delivered when the server has said which entry of the stream it is.
//!
//! A batch goes out as one pipeline, on a connection that it has to itself, and each message has a reply of its own. A connection
//! is used again only when all of its replies have come: one that is lost, or that nobody listens to any more, is closed and
//! replaced.

mod doctor;
#[cfg(feature = "push")]
mod messenger;
mod source;

#[cfg(feature = "push")]
pub use messenger::{RedisEar, RedisPubSub};
pub use source::RedisFeed;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, Pipeline, RedisResult, ServerError, Value};

use super::away::Away;
use super::{BROKER_BATCH_MAX, Confirmation, Sink, plaintext};
use crate::error::{Code, Error, Result};
use crate::failure::Failure;
use crate::outbox::EventCx;
use crate::telemetry;

/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long the server may take to reply to a batch.
const REPLY_LIMIT: Duration = Duration::from_secs(10);

/// After how long without a word a connection is asked whether it is still there. What is sent on one that is not may have
/// arrived, for all we know, and costs an attempt.
const IDLE_LIMIT: Duration = Duration::from_secs(1);

/// How many arguments an entry has at the most: the command, the stream, its length, `*`, and a name and a value for each of ten
/// attributes, the type of the payload and the payload.
const ARGUMENTS_MAX: usize = 6 + 2 * 12;

/// About how many bytes they have beside the payload. More of them only take longer.
const ENVELOPE_LENGTH: usize = 512;

/// The stream, if nobody chooses one.
const STREAM: &str = "events";

type StreamOf = dyn Fn(&EventCx) -> String + Send + Sync;

type Verdict = Result<Confirmation, Failure>;

/// A [sink](Sink) to streams of Redis, and a [source](super::Source) of what a group is handed.
///
/// ```no_run
/// # async fn example(sf: &steadfast::Steadfast<steadfast::sqlx::Sqlite>) -> steadfast::Result<()> {
/// use steadfast::RedisStreams;
///
/// let redis = RedisStreams::at("rediss://shop:secret@redis.example.org")?.stream("orders");
/// sf.sink("orders.redis").events("order.*").deliver_to(redis);
/// # Ok(())
/// # }
/// ```
///
/// The fields of an entry are the attributes of CloudEvents (`ce-id`, `ce-type`, ..), `content-type`, and the event itself as
/// `data`.
///
/// As a source it consumes from the stream by a consumer group:
///
/// ```no_run
/// # async fn example(sf: &steadfast::Steadfast<steadfast::sqlx::Sqlite>) -> steadfast::Result<()> {
/// # use steadfast::RedisStreams;
/// let redis = RedisStreams::at("rediss://shop:secret@redis.example.org")?.stream("orders").declare_group("warehouse");
/// sf.source("orders.redis").events("order.*").consume_from(redis);
/// # Ok(())
/// # }
/// ```
///
/// A message is known by its attributes of CloudEvents, or else by a field `message_id` and its event by a field `type`; its body is
/// `data`, `body` or `payload`. Entries whose consumer has died are taken over after a minute.
///
/// Redis knows no message again: one that is sent again is there twice, with the same `ce-id`. What is confirmed is in the memory
/// of the server. Whether it survives a crash is up to its settings (`appendonly`, `appendfsync`): the sink says in the log if
/// the server writes no append-only file at all.
pub struct RedisStreams {
    client: Client,
    stream_of: Arc<StreamOf>,
    /// The stream that messages come from.
    stream: String,
    group: Option<source::Group>,
    dead_letters: Option<String>,
    length_max: Option<u64>,
    /// Connections that nobody uses, and since when: no more than there are batches at once.
    idle: Mutex<Vec<(MultiplexedConnection, Instant)>>,
    was_looked_at: AtomicBool,
    away: Away,
}

impl RedisStreams {
    /// A server: `rediss://user:password@host:6379/0`. Nothing is connected before something is sent.
    ///
    /// # Errors
    /// SF303 if it is no such address, or if it is `redis://` to another machine: that would be plain text
    /// ([`at_plaintext`](Self::at_plaintext)).
    pub fn at(server: &str) -> Result<Self> {
        let redis = Self::at_plaintext(server)?;
        let instead = "write rediss://, or RedisStreams::at_plaintext if nobody can listen on the way";
        check_plaintext(&redis.client, instead)?;
        Ok(redis)
    }

    /// A server, as [`at`](Self::at) has it, that events and passwords may go to as plain text.
    ///
    /// # Errors
    /// SF303 if it is no such address.
    pub fn at_plaintext(server: &str) -> Result<Self> {
        Ok(Self {
            client: client_of(server)?,
            stream_of: Arc::new(|_| STREAM.to_owned()),
            stream: STREAM.to_owned(),
            group: None,
            dead_letters: None,
            length_max: None,
            idle: Mutex::default(),
            was_looked_at: AtomicBool::new(false),
            away: Away::default(),
        })
    }

    /// The stream that messages are added to; `events` by default. It is made if it is not there.
    pub fn stream(mut self, name: &str) -> Self {
        self.stream = name.to_owned();
        let name = name.to_owned();
        self.stream_of(move |_| name.clone())
    }

    /// Which stream an event is added to.
    pub fn stream_of(mut self, stream_of: impl Fn(&EventCx) -> String + Send + Sync + 'static) -> Self {
        self.stream_of = Arc::new(stream_of);
        self
    }

    /// About how many entries a stream keeps: the oldest are dropped, whether somebody has read them or not (`MAXLEN ~`). Without
    /// it, nothing is dropped.
    pub fn max_length(mut self, entries: u64) -> Self {
        self.length_max = Some(entries);
        self
    }

    /// The server, without user and password.
    fn address(&self) -> String {
        address_of(&self.client)
    }

    /// A connection for one batch alone; if there is none, why not.
    async fn connection(&self) -> Result<MultiplexedConnection, String> {
        if let Some(connection) = self.idle_connection().await {
            return Ok(connection);
        }
        let mut connection = self.open().await.map_err(|error| error.to_string())?;
        self.look_at(&mut connection).await;
        Ok(connection)
    }

    async fn open(&self) -> RedisResult<MultiplexedConnection> {
        open(&self.client).await
    }

    async fn idle_connection(&self) -> Option<MultiplexedConnection> {
        loop {
            let next = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let (mut connection, since) = next?;
            let is_there = since.elapsed() < IDLE_LIMIT || {
                let ping = redis::cmd("PING");
                let asking = tokio::time::timeout(CONNECT_LIMIT, connection.send_packed_command(&ping)).await;
                matches!(asking, Ok(Ok(_)))
            };
            if is_there {
                return Some(connection);
            }
        }
    }

    fn put_back(&self, connection: MultiplexedConnection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push((connection, Instant::now()));
    }

    /// Says once in the log if the server keeps nothing. One that does not say is not asked again.
    async fn look_at(&self, connection: &mut MultiplexedConnection) {
        if self.was_looked_at.swap(true, Ordering::Relaxed) {
            return;
        }
        let info = redis::cmd("INFO")
            .arg("persistence")
            .query_async::<String>(connection)
            .await;
        if info.is_ok_and(|info| keeps_nothing(&info)) {
            telemetry::redis_keeps_nothing(&self.address());
        }
    }

    fn pipeline(&self, batch: &[EventCx]) -> (Pipeline, Vec<String>) {
        let mut pipeline = Pipeline::with_capacity(batch.len());
        let mut streams = Vec::with_capacity(batch.len());
        for event in batch {
            let stream = (self.stream_of)(event);
            // With room for all of it: to grow step by step took longer than everything else that is done here.
            let mut add = Cmd::with_capacity(ARGUMENTS_MAX, ENVELOPE_LENGTH + event.payload().len());
            add.arg("XADD").arg(&stream);
            if let Some(entries) = self.length_max {
                add.arg("MAXLEN").arg("~").arg(entries);
            }
            add.arg("*");
            for (name, value) in event.headers() {
                add.arg(name).arg(&*value);
            }
            add.arg("content-type").arg("application/json");
            add.arg("data").arg(event.payload());
            pipeline.add_command(add);
            streams.push(stream);
        }
        (pipeline, streams)
    }

    /// What the replies say, each of its message.
    fn verdicts(&self, streams: &[String], replies: Vec<Value>) -> Vec<Verdict> {
        let closed = replies.iter().find_map(|reply| match reply {
            Value::ServerError(error) if takes_no_writes(error) => Some(said(error)),
            _ => None,
        });
        let pause = match closed {
            Some(why) => self.away.has_missed(&self.address(), &why),
            None => {
                self.away.is_back(&self.address());
                Duration::ZERO
            }
        };
        let verdict = |(stream, reply): (&String, Value)| match reply {
            Value::ServerError(error) if takes_no_writes(&error) => Err(Failure::snooze(pause)),
            Value::ServerError(error) => Err(refusal(stream, &error)),
            reply => match redis::from_redis_value::<String>(reply) {
                Ok(entry) => Ok(Confirmation::new([stream.as_str(), " ", &entry].concat())),
                Err(error) => Err(unconfirmed(&error.to_string())),
            },
        };
        streams.iter().zip(replies).map(verdict).collect()
    }
}

impl Sink for RedisStreams {
    async fn send(&self, batch: &[EventCx]) -> Vec<Verdict> {
        let mut connection = match self.connection().await {
            Ok(connection) => connection,
            Err(why) => {
                let pause = self.away.has_missed(&self.address(), &why);
                return batch.iter().map(|_| Err(Failure::snooze(pause))).collect();
            }
        };
        let (pipeline, streams) = self.pipeline(batch);
        match connection.send_packed_commands(&pipeline, 0, batch.len()).await {
            Ok(replies) => {
                self.put_back(connection);
                self.verdicts(&streams, replies)
            }
            Err(error) => {
                let why = error.to_string();
                batch.iter().map(|_| Err(unconfirmed(&why))).collect()
            }
        }
    }

    fn batch_max(&self) -> usize {
        BROKER_BATCH_MAX
    }
}

/// A server as its address says; nothing is connected.
fn client_of(server: &str) -> Result<Client> {
    let refused = |message| Error::new(Code::ConfigurationInvalid, message);
    let client = Client::open(server)
        .map_err(|_| refused("the address of Redis is not usable; write rediss://user:password@host:6379/0"))?;
    if let ConnectionAddr::TcpTls { insecure: true, .. } = client.get_connection_info().addr() {
        return Err(refused(
            "the address of Redis says that anybody may pretend to be it; leave out #insecure",
        ));
    }
    Ok(client)
}

/// Refuses plain text to another machine, and says what to write instead.
fn check_plaintext(client: &Client, instead: &str) -> Result<()> {
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, _) => plaintext::check(host, instead),
        _ => Ok(()),
    }
}

/// The server, without user and password.
fn address_of(client: &Client) -> String {
    format!("redis at {}", client.get_connection_info().addr())
}

async fn open(client: &Client) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_LIMIT))
        .set_response_timeout(Some(REPLY_LIMIT));
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// The server writes no append-only file. One that says nothing of it may be of another kind.
fn keeps_nothing(info: &str) -> bool {
    info.lines().any(|line| line.trim() == "aof_enabled:0")
}

/// Whether it is the server that takes nothing now, whatever the message is.
fn takes_no_writes(error: &ServerError) -> bool {
    matches!(
        error.code(),
        "MISCONF"
            | "OOM"
            | "READONLY"
            | "LOADING"
            | "NOAUTH"
            | "WRONGPASS"
            | "NOREPLICAS"
            | "MASTERDOWN"
            | "CLUSTERDOWN"
            | "BUSY"
    )
}

fn refusal(stream: &str, error: &ServerError) -> Failure {
    match error.code() {
        "WRONGTYPE" => Failure::transient(
            "wrong_type",
            format!("the key {stream:?} of Redis is no stream; choose another one, or remove what is there"),
        ),
        _ => Failure::transient("refused", format!("Redis adds nothing to {stream:?}: {}", said(error))),
    }
}

/// What the server said.
fn said(error: &ServerError) -> String {
    format!("{} {}", error.code(), error.details().unwrap_or_default())
}

fn unconfirmed(why: &str) -> Failure {
    Failure::unknown("unconfirmed", format!("Redis did not confirm it: {why}"))
}

impl fmt::Debug for RedisStreams {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreams")
            .field("server", &self.address())
            .field("length_max", &self.length_max)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureKind;

    #[test]
    fn an_address_is_one_of_redis_and_keeps_its_password_to_itself() {
        for wrong in [
            "",
            "nats://127.0.0.1",
            "http://127.0.0.1",
            "redis://",
            "rediss://127.0.0.1/#insecure",
        ] {
            let refused = RedisStreams::at(wrong).expect_err(wrong);
            assert_eq!(refused.code(), Code::ConfigurationInvalid, "{wrong}");
        }
        let redis = RedisStreams::at("redis://ann:secret@127.0.0.1:6379").expect("an address");
        let shown = format!("{redis:?}");
        assert!(shown.contains("127.0.0.1:6379") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn plain_text_goes_elsewhere_only_if_somebody_says_so() {
        let refused = RedisStreams::at("redis://ann:secret@redis.example.org").expect_err("plain text");
        assert_eq!(refused.code(), Code::ConfigurationInvalid);
        let said = refused.to_string();
        assert!(
            said.contains("redis.example.org") && said.contains("rediss://"),
            "{said}"
        );
        assert!(!said.contains("secret"), "{said}");
        RedisStreams::at("redis://[::1]:6379").expect("this machine");
        RedisStreams::at("rediss://ann:secret@redis.example.org").expect("encrypted");
        RedisStreams::at_plaintext("redis://ann:secret@redis.example.org").expect("said so");
    }

    #[test]
    fn each_reply_is_the_verdict_on_its_own_message() {
        let redis = RedisStreams::at("redis://127.0.0.1:6379").expect("an address");
        let replies = [
            "$3\r\n1-0\r\n",
            "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
            "-NOPERM No permissions to access a key\r\n",
            "-MISCONF Errors writing to the AOF file: No space left on device\r\n",
            "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
            "-READONLY You can't write against a read only replica.\r\n",
            "-LOADING Redis is loading the dataset in memory\r\n",
            "-NOAUTH Authentication required.\r\n",
        ];
        let replies = replies.map(|reply| redis::parse_redis_value(reply.as_bytes()).expect("a reply"));
        let streams = vec!["events".to_owned(); replies.len()];
        let verdicts = redis.verdicts(&streams, replies.into());
        assert_eq!(verdicts[0].as_ref().ok(), Some(&Confirmation::new("events 1-0")));
        let failure = |number: usize| verdicts[number].as_ref().expect_err("a failure");
        assert_eq!(
            (failure(1).kind(), failure(1).code()),
            (FailureKind::Transient, "wrong_type")
        );
        assert_eq!(
            (failure(2).kind(), failure(2).code()),
            (FailureKind::Transient, "refused")
        );
        for number in 3..verdicts.len() {
            assert_eq!(failure(number).kind(), FailureKind::Snooze, "{number}");
            assert!(failure(number).retry_after() > Some(Duration::ZERO), "{number}");
        }
    }

    #[test]
    fn a_server_without_an_append_only_file_is_known_by_what_it_says() {
        assert!(keeps_nothing("# Persistence\r\nloading:0\r\naof_enabled:0\r\n"));
        assert!(!keeps_nothing("# Persistence\r\nloading:0\r\naof_enabled:1\r\n"));
        assert!(!keeps_nothing(""));
    }
}
