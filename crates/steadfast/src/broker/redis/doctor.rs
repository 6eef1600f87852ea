//! What endangers entries that Redis has confirmed.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, ErrorKind, RedisError};

use super::RedisStreams;
use crate::broker::plaintext;
use crate::doctor::Check;

/// What to do where the server does not say.
const UNASKED: &str = "ask whoever runs the server, or let the user look (`ACL SETUSER NAME +info +config|get`)";

/// What the server says of itself. A user may not ask, and a managed service may not answer.
#[derive(Default)]
struct Settings {
    info: HashMap<String, String>,
    append_fsync: Option<String>,
}

impl RedisStreams {
    /// Looks at the server: whether what it confirms is safe. It changes nothing. What the server does not say, or not to this
    /// user, is told as not known.
    ///
    /// ```
    /// use steadfast::{RedisStreams, Verdict};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// let checks = RedisStreams::at("redis://127.0.0.1:1")?.examine().await; // nobody is there
    /// assert_eq!((checks[0].name, checks[0].verdict), ("reachable", Verdict::Fail));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn examine(&self) -> Vec<Check> {
        let mut connection = match self.open().await {
            Ok(connection) => connection,
            Err(error) => return vec![unreachable(&error)],
        };
        let settings = Settings::ask(&mut connection).await;
        let version = settings.info.get("redis_version");
        let answers = version.map_or_else(
            || "Redis answers".to_owned(),
            |version| format!("Redis {version} answers"),
        );
        let instead = "let the server speak TLS, and write rediss://";
        vec![
            Check::ok("reachable", answers),
            match self.client.get_connection_info().addr() {
                ConnectionAddr::Tcp(host, _) => plaintext::encryption(false, host, instead),
                ConnectionAddr::TcpTls { host, .. } => plaintext::encryption(true, host, instead),
                _ => plaintext::encryption(false, "localhost", instead),
            },
            settings.append_only(),
            settings.append_fsync(),
            settings.eviction(),
        ]
    }
}

fn unreachable(error: &RedisError) -> Check {
    let fix = match error.kind() {
        ErrorKind::AuthenticationFailed => "look at user and password in the URL",
        _ => "start the server, or look at host and port in the URL",
    };
    Check::fail("reachable", format!("Redis is not to be had: {error}"), fix)
}

impl Settings {
    async fn ask(connection: &mut MultiplexedConnection) -> Self {
        let info = redis::cmd("INFO").query_async::<String>(connection).await;
        let mut config = redis::cmd("CONFIG");
        config.arg("GET").arg("appendfsync");
        let config = config.query_async::<HashMap<String, String>>(connection).await;
        Self::read(&info.unwrap_or_default(), config.unwrap_or_default())
    }

    fn read(info: &str, mut config: HashMap<String, String>) -> Self {
        let pairs = info.lines().filter_map(|line| line.trim().split_once(':'));
        Self {
            info: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            append_fsync: config.remove("appendfsync"),
        }
    }

    fn said(&self, name: &str) -> Option<&str> {
        self.info.get(name).map(String::as_str)
    }

    fn append_only(&self) -> Check {
        match self.said("aof_enabled") {
            Some("1") => Check::ok("appendonly", "the server writes an append-only file"),
            Some(_) => Check::fail(
                "appendonly",
                "the server writes no append-only file",
                "`CONFIG SET appendonly yes`, and into redis.conf: a server that is started again has lost what it confirmed since its \
                 last snapshot, unless whoever runs it keeps it in another way",
            ),
            None => unknown("appendonly"),
        }
    }

    fn append_fsync(&self) -> Check {
        let fix = "`CONFIG SET appendfsync always`, and into redis.conf, if that is too much to lose; it costs a sync for each batch";
        let lost = |what: &str| Check::warn("appendfsync", what, fix);
        match (self.said("aof_enabled"), self.append_fsync.as_deref()) {
            (Some("0"), _) => Check::ok("appendfsync", "nothing is written that could be synced"),
            (_, None) => unknown("appendfsync"),
            (_, Some("always")) => Check::ok("appendfsync", "what is confirmed is on the disk"),
            (_, Some("everysec")) => lost("a crash of the machine loses the last second of what was confirmed"),
            (_, Some(_)) => {
                lost("a crash of the machine loses what the system has not written yet, often half a minute")
            }
        }
    }

    fn eviction(&self) -> Check {
        let Some(policy) = self.said("maxmemory_policy") else {
            return unknown("maxmemory_policy");
        };
        let found = format!("the policy is {policy}");
        if policy == "noeviction" {
            return Check::ok(
                "maxmemory_policy",
                format!("{found}: a full server takes nothing, and messages wait"),
            );
        }
        if !policy.starts_with("allkeys") {
            let found = format!("{found}: streams are kept unless somebody lets them expire");
            return Check::ok("maxmemory_policy", found);
        }
        let fix = "`CONFIG SET maxmemory-policy noeviction`, and into redis.conf: otherwise a full server deletes whole streams, read \
                   or not";
        match self.said("maxmemory") {
            Some("0") => {
                let found = format!("{found}, which does nothing before maxmemory is set");
                Check::warn("maxmemory_policy", found, fix)
            }
            _ => Check::fail("maxmemory_policy", found, fix),
        }
    }
}

fn unknown(name: &'static str) -> Check {
    Check::warn(name, "not known: the server does not say, or not to this user", UNASKED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn settings(info: &str, fsync: Option<&str>) -> Settings {
        let config = fsync.map(|value| ("appendfsync".to_owned(), value.to_owned()));
        Settings::read(info, config.into_iter().collect())
    }

    #[test]
    fn what_a_crash_would_cost_is_judged_by_what_the_server_says() {
        let append_only = |info| settings(info, None).append_only().verdict;
        assert_eq!(append_only("# Persistence\r\naof_enabled:1\r\n"), Verdict::Ok);
        assert_eq!(append_only("# Persistence\r\naof_enabled:0\r\n"), Verdict::Fail);
        assert_eq!(append_only(""), Verdict::Warn, "not known is no failure");
        let fsync = |value| settings("aof_enabled:1", value).append_fsync();
        assert_eq!(fsync(Some("always")).verdict, Verdict::Ok);
        assert!(fsync(Some("everysec")).found.contains("the last second"));
        assert!(fsync(Some("no")).found.contains("half a minute"));
        let refused = fsync(None);
        assert_eq!(refused.verdict, Verdict::Warn);
        assert!(refused.found.contains("not known"), "{}", refused.found);
        assert_eq!(settings("aof_enabled:0", None).append_fsync().verdict, Verdict::Ok);
    }

    #[test]
    fn a_policy_that_deletes_streams_fails_as_soon_as_there_is_a_limit() {
        let eviction = |info: &str| settings(info, None).eviction().verdict;
        for policy in ["allkeys-lru", "allkeys-lfu", "allkeys-random"] {
            assert_eq!(
                eviction(&format!("maxmemory:1048576\r\nmaxmemory_policy:{policy}\r\n")),
                Verdict::Fail
            );
            assert_eq!(
                eviction(&format!("maxmemory:0\r\nmaxmemory_policy:{policy}\r\n")),
                Verdict::Warn
            );
        }
        for policy in ["noeviction", "volatile-lru", "volatile-ttl"] {
            assert_eq!(
                eviction(&format!("maxmemory:1048576\r\nmaxmemory_policy:{policy}\r\n")),
                Verdict::Ok
            );
        }
        assert_eq!(eviction(""), Verdict::Warn, "not known is no failure");
    }
}
