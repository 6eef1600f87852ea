//! Redis Streams as a source: a consumer group.
//!
//! Each lane is a consumer of the group under a name of its own. What it was handed and did not acknowledge stays with it, so that
//! others take it over when it has been silent for long enough (`XAUTOCLAIM`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError, Value};
use serde::{Deserialize, Serialize};

use super::RedisStreams;
use crate::broker::{Feed, Incoming, Source};
use crate::clock::{ReadDuration, random};
use crate::failure::Failure;

/// After how long a message is taken over that somebody was handed and did not acknowledge, unless somebody says otherwise: longer
/// than a handler may take.
const TAKE_OVER_AFTER: Duration = Duration::from_secs(60);

/// How long the server waits for a message before it says that there is none. Less than it may take to reply.
const IDLE: Duration = Duration::from_secs(2);

/// What begins the names of our consumers.
const CONSUMER: &str = "steadfast-";

/// For how long a consumer of ours has to be silent before its name is removed, if it has nothing: so many times as long as it takes
/// until others take over what it has, and longer than one that lives waits for an answer.
const SILENCES: u32 = 10;
const SILENT_AT_LEAST: Duration = Duration::from_secs(5);

/// Removes the names of processes that are gone. With a name goes what it was handed and did not acknowledge, so only those go that
/// have nothing; a script, since one that is asked about may be handed something before it is removed.
const FORGET_IDLE: &str = "
    local removed = 0
    for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
        local is = {}
        for place = 1, #consumer, 2 do
            is[consumer[place]] = consumer[place + 1]
        end
        local is_ours = string.sub(is['name'], 1, #ARGV[2]) == ARGV[2]
        if is_ours and is['pending'] == 0 and is['idle'] >= tonumber(ARGV[3]) then
            redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], is['name'])
            removed = removed + 1
        end
    end
    return removed";

/// The field of a dead letter that says why it is one.
const WHY: &str = "steadfast-why";

/// The fields that may have the body: ours, and what others call it.
const BODIES: [&str; 3] = ["data", "body", "payload"];

/// A group of consumers.
pub(super) struct Group {
    name: String,
    /// Whether it is created if it is not there.
    declares: bool,
    take_over_after: Duration,
}

impl RedisStreams {
    /// The consumer group of the [stream](Self::stream) to consume by, as a [source](Source). It has to be there.
    pub fn group(mut self, name: &str) -> Self {
        self.group = Some(Group {
            name: name.to_owned(),
            declares: false,
            take_over_after: TAKE_OVER_AFTER,
        });
        self
    }

    /// Creates that group if it is not there, and the stream too. It begins with the oldest entry.
    pub fn declare_group(self, name: &str) -> Self {
        let mut redis = self.group(name);
        if let Some(group) = &mut redis.group {
            group.declares = true;
        }
        redis
    }

    /// After how long a message is handed to somebody else that was not acknowledged; a minute by default. Choose it after the
    /// group.
    ///
    /// # Panics
    /// If the text is no duration.
    pub fn take_over_after(mut self, after: impl ReadDuration) -> Self {
        let after = after.read_duration().unwrap_or_else(|error| panic!("{error:?}"));
        if let Some(group) = &mut self.group {
            group.take_over_after = after;
        }
        self
    }

    /// A stream that copies of messages go to that are given up; their dead letters are in the database. A copy has the fields of the
    /// message, the body as `data`, and says why it is there (`steadfast-why`).
    pub fn dead_letter_stream(mut self, name: &str) -> Self {
        self.dead_letters = Some(name.to_owned());
        self
    }
}

fn away(error: impl std::fmt::Display) -> Failure {
    Failure::transient("away", error.to_string())
}

/// Removes the names of our consumers that are gone. Where scripts are not allowed they stay, which harms nobody.
async fn forget_idle(connection: &mut MultiplexedConnection, stream: &str, group: &str, idle: Duration) {
    let mut forget = redis::cmd("EVAL");
    forget.arg(FORGET_IDLE).arg(1).arg(stream).arg(group).arg(CONSUMER);
    forget.arg(u64::try_from(idle.as_millis()).unwrap_or(u64::MAX));
    let _ = forget.query_async::<Value>(connection).await;
}

impl Source for RedisStreams {
    type Feed = RedisFeed;

    async fn open(&self, prefetch: usize) -> Result<RedisFeed, Failure> {
        let Some(group) = &self.group else {
            let message = "no group of Redis is named to consume by; write .stream(\"orders\").group(\"warehouse\")";
            return Err(Failure::transient("no_group", message));
        };
        if self.dead_letters.as_ref() == Some(&self.stream) {
            let words = format!(
                "the stream {:?} cannot have the dead letters of its own messages, which would come back; name another one",
                self.stream
            );
            return Err(Failure::transient("own_dead_letters", words));
        }
        let mut connection = RedisStreams::open(self).await.map_err(away)?;
        self.look_at(&mut connection).await;
        let stream = self.stream.clone();
        if group.declares {
            let mut create = redis::cmd("XGROUP");
            create
                .arg("CREATE")
                .arg(&stream)
                .arg(&group.name)
                .arg("0")
                .arg("MKSTREAM");
            match create.query_async::<Value>(&mut connection).await {
                Err(error) if error.code() != Some("BUSYGROUP") => return Err(away(error)),
                _ => {}
            }
        }
        let idle = group.take_over_after.saturating_mul(SILENCES).max(SILENT_AT_LEAST);
        forget_idle(&mut connection, &stream, &group.name, idle).await;
        Ok(RedisFeed {
            connection,
            stream,
            group: group.name.clone(),
            consumer: format!("{CONSUMER}{}-{:016x}", std::process::id(), random()),
            prefetch,
            take_over_after: group.take_over_after,
            looked_at: None,
            cursor: "0-0".to_owned(),
            out: HashMap::new(),
            receipts: 0,
        })
    }

    fn has_dead_letters(&self) -> bool {
        self.dead_letters.is_some()
    }

    /// The server has said which entry it is.
    async fn bury(&self, message: &Incoming, why: &str) -> Result<(), Failure> {
        let Some(stream) = &self.dead_letters else {
            return Ok(());
        };
        let mut connection = self.connection().await.map_err(away)?;
        let mut add = redis::cmd("XADD");
        add.arg(stream).arg("*");
        for (name, value) in message.headers() {
            add.arg(&*bytes_of(name)).arg(&*bytes_of(value));
        }
        add.arg(WHY).arg(why).arg(BODIES[0]).arg(&**message.body());
        add.query_async::<String>(&mut connection).await.map_err(away)?;
        self.put_back(connection);
        Ok(())
    }

    fn address(&self) -> String {
        let group = self.group.as_ref().map_or("", |group| &group.name);
        format!("{} stream {} group {group}", RedisStreams::address(self), self.stream)
    }
}

/// One consumer of a group of Redis.
pub struct RedisFeed {
    connection: MultiplexedConnection,
    stream: String,
    group: String,
    consumer: String,
    /// How many may be here and not acknowledged.
    prefetch: usize,
    take_over_after: Duration,
    /// When it was last looked for what others have left.
    looked_at: Option<Instant>,
    /// Where the look goes on.
    cursor: String,
    /// The entries that were received and are not acknowledged, by their receipts.
    out: HashMap<u64, String>,
    receipts: u64,
}

impl RedisFeed {
    /// What others were handed and have left, if it is time to look.
    async fn take_over(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        let every = self.take_over_after / 2;
        if self.looked_at.is_some_and(|looked_at| looked_at.elapsed() < every) {
            return Ok(Vec::new());
        }
        let idle = u64::try_from(self.take_over_after.as_millis()).unwrap_or(u64::MAX);
        let mut claim = redis::cmd("XAUTOCLAIM");
        claim
            .arg(&self.stream)
            .arg(&self.group)
            .arg(&self.consumer)
            .arg(idle)
            .arg(&self.cursor);
        claim.arg("COUNT").arg(max);
        let reply: Value = claim
            .query_async(&mut self.connection)
            .await
            .map_err(|error| self.refused(&error))?;
        let Value::Array(parts) = reply else {
            return Ok(Vec::new());
        };
        let mut parts = parts.into_iter();
        let cursor = parts.next().and_then(|cursor| String::from_redis_value(cursor).ok());
        self.cursor = cursor.unwrap_or_else(|| "0-0".to_owned());
        if self.cursor == "0-0" {
            self.looked_at = Some(Instant::now());
        }
        let entries = parts.next().unwrap_or(Value::Nil);
        Ok(self.take(entries, true))
    }

    /// What nobody was handed yet.
    async fn read(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP")
            .arg(&self.group)
            .arg(&self.consumer)
            .arg("COUNT")
            .arg(max);
        read.arg("BLOCK")
            .arg(u64::try_from(IDLE.as_millis()).unwrap_or(u64::MAX));
        read.arg("STREAMS").arg(&self.stream).arg(">");
        let reply: Value = read
            .query_async(&mut self.connection)
            .await
            .map_err(|error| self.refused(&error))?;
        // One stream was asked for: its name, and its entries.
        let entries = match reply {
            Value::Array(streams) => match streams.into_iter().next() {
                Some(Value::Array(parts)) => parts.into_iter().nth(1).unwrap_or(Value::Nil),
                _ => Value::Nil,
            },
            Value::Map(streams) => streams.into_iter().next().map_or(Value::Nil, |(_, entries)| entries),
            _ => Value::Nil,
        };
        Ok(self.take(entries, false))
    }

    fn take(&mut self, entries: Value, is_redelivered: bool) -> Vec<Incoming> {
        let Value::Array(entries) = entries else {
            return Vec::new();
        };
        let mut messages = Vec::new();
        for entry in entries {
            // An entry that was deleted meanwhile has no fields.
            let Value::Array(parts) = entry else { continue };
            let mut parts = parts.into_iter();
            let id = parts.next().and_then(|id| String::from_redis_value(id).ok());
            let (Some(id), Some(Value::Array(fields))) = (id, parts.next()) else {
                continue;
            };
            self.receipts += 1;
            messages.push(
                incoming(fields)
                    .with_place(format!("{} {id}", self.stream))
                    .redelivered(is_redelivered)
                    .with_receipt(self.receipts),
            );
            self.out.insert(self.receipts, id);
        }
        messages
    }

    fn refused(&self, error: &RedisError) -> Failure {
        match error.code() {
            Some("NOGROUP") => Failure::transient(
                "no_group",
                format!(
                    "Redis has no group {:?} of the stream {:?}; create it, or let the source do it",
                    self.group, self.stream
                ),
            ),
            _ => away(error),
        }
    }
}

impl Feed for RedisFeed {
    async fn receive(&mut self, max: usize) -> Result<Vec<Incoming>, Failure> {
        let max = max.min(self.prefetch.saturating_sub(self.out.len())).max(1);
        let left = self.take_over(max).await?;
        if !left.is_empty() {
            return Ok(left);
        }
        self.read(max).await
    }

    async fn ack(&mut self, receipts: &[u64]) -> Result<(), Failure> {
        let entries: Vec<_> = receipts.iter().filter_map(|receipt| self.out.remove(receipt)).collect();
        if entries.is_empty() {
            return Ok(());
        }
        let mut ack = redis::cmd("XACK");
        ack.arg(&self.stream).arg(&self.group).arg(entries);
        ack.query_async::<Value>(&mut self.connection)
            .await
            .map(drop)
            .map_err(away)
    }

    /// A name that has nothing left is removed. With a name, what it was handed and did not acknowledge would be lost; it is asked on
    /// the same connection, behind whatever was asked before.
    async fn close(mut self) {
        let mut pending = redis::cmd("XPENDING");
        pending
            .arg(&self.stream)
            .arg(&self.group)
            .arg("-")
            .arg("+")
            .arg(1)
            .arg(&self.consumer);
        let pending = pending.query_async::<Value>(&mut self.connection).await;
        if matches!(pending, Ok(Value::Array(entries)) if entries.is_empty()) {
            let mut remove = redis::cmd("XGROUP");
            remove
                .arg("DELCONSUMER")
                .arg(&self.stream)
                .arg(&self.group)
                .arg(&self.consumer);
            let _ = remove.query_async::<Value>(&mut self.connection).await;
        }
    }
}

impl std::fmt::Debug for RedisFeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisFeed")
            .field("stream", &self.stream)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

/// An entry as a message: one of its fields is the body, and the others are headers.
fn incoming(fields: Vec<Value>) -> Incoming {
    let mut bytes = fields
        .into_iter()
        .map(|field| Vec::<u8>::from_redis_value(field).unwrap_or_default());
    let mut pairs = Vec::new();
    while let (Some(name), Some(value)) = (bytes.next(), bytes.next()) {
        pairs.push((text(name), value));
    }
    let place = BODIES
        .iter()
        .find_map(|body| pairs.iter().position(|(name, _)| name == body));
    let body = place.map(|place| pairs.remove(place).1).unwrap_or_default();
    let mut message = Incoming::new(body);
    for (name, value) in pairs {
        message = message.with_header(name, text(value));
    }
    let header = |names: &[&str]| names.iter().find_map(|name| message.header(name)).map(str::to_owned);
    let id = header(&["message_id", "message-id", "ce-id"]);
    let correlation_id = header(&["correlation_id", "correlation-id", "ce-correlationid"]);
    let content_type = header(&["content-type", "content_type"]);
    let event_type = header(&["type", "ce-type"]);
    if let Some(id) = id {
        message = message.with_message_id(id);
    }
    if let Some(id) = correlation_id {
        message = message.with_correlation_id(id);
    }
    if let Some(content_type) = content_type {
        message = message.with_content_type(content_type);
    }
    if let Some(event_type) = event_type {
        message = message.with_event_type(event_type);
    }
    message
}

/// Bytes as text. What is none is written as JSON, `{"bytes":[255]}`, and so is a text that could be taken for that.
fn text(bytes: Vec<u8>) -> String {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) if Marked::read(&text).is_none() => return text,
        Ok(text) => text.into_bytes(),
        Err(error) => error.into_bytes(),
    };
    serde_json::to_string(&Marked { bytes }).unwrap_or_default()
}

/// Bytes as they came.
fn bytes_of(text: &str) -> Cow<'_, [u8]> {
    match Marked::read(text) {
        Some(marked) => marked.bytes.into(),
        None => text.as_bytes().into(),
    }
}

/// Bytes that are no text, as a text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Marked {
    bytes: Vec<u8>,
}

impl Marked {
    fn read(text: &str) -> Option<Self> {
        match text.starts_with('{') {
            true => serde_json::from_str(text).ok(),
            false => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_field_are_the_same_after_they_were_text() {
        for bytes in [
            &b""[..],
            b"all of them",
            b"[255]",
            b"{\"bytes\":[255]}",
            b"{\"bytes\":1}",
            b"\xff\x00",
        ] {
            let text = text(bytes.to_vec());
            assert_eq!(&*bytes_of(&text), bytes, "{text}");
        }
        assert_eq!(text(b"\xff\x00".to_vec()), "{\"bytes\":[255,0]}");
    }
}
