//! What endangers messages that a stream of NATS has confirmed.

use std::time::Duration;

use async_nats::jetstream::context::{ContextBuilder, GetStreamErrorKind, RequestErrorKind};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{Context, ErrorCode};
use async_nats::{ConnectError, ConnectErrorKind};
use futures_util::{StreamExt, TryStreamExt};
use serde::de::IgnoredAny;

use super::Nats;
use super::monitor::Syncs;
use super::source::loses;
use crate::broker::plaintext;
use crate::doctor::{Check, Verdict};

/// How long the server may take to answer a question. One that a user may not ask is never answered.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// How many streams are looked at: an account with more of them does not make them by hand, and they are alike.
const STREAMS_MAX: usize = 1_000;

/// How many consumers of a stream are looked at.
const CONSUMERS_MAX: usize = 1_000;

/// How many streams or consumers a line names.
const NAMES_MAX: usize = 5;

/// The first version that can sync each message.
const SYNC_INTERVAL_SINCE: (u32, u32) = (2, 10);

/// Why a question has no answer.
const UNASKED: &str = "let the user publish to `$JS.API.INFO`, `$JS.API.STREAM.LIST` and `$JS.API.STREAM.INFO.*`, or ask whoever \
                       runs the server";

impl Nats {
    /// Looks at the server, and at its [`stream`](Self::stream) or at all streams of the account: whether what they confirm is
    /// safe. It changes nothing.
    ///
    /// ```
    /// use steadfast::{Nats, Verdict};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// let checks = Nats::at("nats://127.0.0.1:1")?.examine().await; // nobody is there
    /// assert_eq!((checks[0].name, checks[0].verdict), ("reachable", Verdict::Fail));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn examine(&self) -> Vec<Check> {
        let client = match self.open().await {
            Ok(client) => client,
            Err(error) => return vec![unreachable(&error, self.needs_tls)],
        };
        let server = client.server_info();
        let is_encrypted = self.needs_tls || server.tls_required;
        let instead = "let the server speak TLS, and write tls://";
        let mut checks = vec![
            Check::ok("reachable", format!("NATS {} answers", server.version)),
            plaintext::encryption(is_encrypted, self.server.host(), instead),
        ];
        let context = ContextBuilder::new().timeout(ANSWER_LIMIT).build(client);
        let jetstream = jetstream(&context).await;
        let is_off = jetstream.verdict == Verdict::Fail;
        checks.push(jetstream);
        if is_off {
            return checks;
        }
        let syncs = match &self.monitor {
            Some(monitor) => Some(monitor.ask(&server.server_id).await),
            None => None,
        };
        let syncs_always = matches!(syncs, Some(Ok(Syncs::Always)));
        checks.extend(syncs.map(|syncs| sync_interval(syncs, &server.version)));
        match self.configs(&context).await {
            Ok(streams) if syncs_always => checks.extend([storage(&streams), replicas_of_synced(&streams)]),
            Ok(streams) => checks.extend([storage(&streams), replicas(&streams, &server.version)]),
            Err(check) => checks.push(check),
        }
        if let Some(name) = &self.stream {
            checks.extend(consumers(&context, name).await);
        }
        checks
    }

    /// The settings of the streams; if they are not to be had, why not.
    async fn configs(&self, context: &Context) -> Result<Vec<Config>, Check> {
        let unknown = |why: String| Check::warn("streams", format!("nothing is known of the streams: {why}"), UNASKED);
        let Some(name) = &self.stream else {
            let infos = context.streams().take(STREAMS_MAX).map_ok(|info| info.config);
            return infos.try_collect().await.map_err(|error| unknown(error.to_string()));
        };
        let stream = context.get_stream(name).await.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => Check::fail(
                "streams",
                format!("there is no stream {name}"),
                "create it, or look at its name: until then messages for it fail as no_stream",
            ),
            _ => unknown(error.to_string()),
        })?;
        Ok(vec![stream.cached_info().config.clone()])
    }
}

/// Whether consumers of the stream hand messages out until they are acknowledged. If there are none, or nobody may ask for them, there
/// is nothing to say.
async fn consumers(context: &Context, stream: &str) -> Option<Check> {
    let stream = context.get_stream(stream).await.ok()?;
    let infos: Vec<_> = stream.consumers().take(CONSUMERS_MAX).try_collect().await.ok()?;
    let lossy = infos.iter().filter_map(|info| {
        let how = loses(&info.config)?;
        Some(format!("{} {how}", info.name))
    });
    let lossy: Vec<_> = lossy.take(NAMES_MAX).collect();
    match (infos.is_empty(), lossy.is_empty()) {
        (true, _) => None,
        (false, true) => Some(Check::ok(
            "consumers",
            "consumers hand messages out until they are acknowledged",
        )),
        (false, false) => Some(Check::warn(
            "consumers",
            format!("consumers lose messages: {}", lossy.join(", ")),
            "make them anew with `--ack explicit --max-deliver -1`, if each message matters; a source of ours refuses them",
        )),
    }
}

fn unreachable(error: &ConnectError, needs_tls: bool) -> Check {
    let fix = match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            "look at user and password in the URL"
        }
        // The client says no more of a server that speaks no TLS than of one that is not there.
        ConnectErrorKind::Tls | ConnectErrorKind::Io if needs_tls => {
            "start the server, and let it speak TLS with a certificate that this machine trusts; or write nats:// and \
             Nats::at_plaintext if nobody can listen on the way"
        }
        _ => "start the server, or look at host and port in the URL",
    };
    Check::fail("reachable", format!("NATS is not to be had: {error}"), fix)
}

async fn jetstream(context: &Context) -> Check {
    let unknown = |why: String| {
        let found = format!("the server does not say whether JetStream is on: {why}");
        Check::warn("jetstream", found, UNASKED)
    };
    let off = |whose: &str| {
        Check::fail(
            "jetstream",
            format!("JetStream is off for this {whose}"),
            "turn it on (`jetstream {}` in the server's or the account's settings): without it nothing is kept or confirmed",
        )
    };
    // Only whether it answers: what it says of the account differs from version to version.
    match context.request::<_, _, Response<IgnoredAny>>("INFO", b"").await {
        Ok(Response::Ok(_)) => Check::ok("jetstream", "JetStream is on"),
        Ok(Response::Err { error }) if is_off(error.error_code()) => off("account"),
        Ok(Response::Err { error }) => unknown(error.to_string()),
        Err(error) if error.kind() == RequestErrorKind::NoResponders => off("server"),
        Err(error) => unknown(error.to_string()),
    }
}

fn is_off(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
    )
}

fn storage(streams: &[Config]) -> Check {
    if streams.is_empty() {
        return Check::ok("storage", "there is no stream yet");
    }
    match named(streams, |stream| stream.storage == StorageType::Memory) {
        None => Check::ok("storage", "streams are kept in files"),
        Some(names) => Check::fail(
            "storage",
            format!("streams are kept in memory: {names}"),
            "make them anew with `--storage file`: a server that is started again has lost what they confirmed",
        ),
    }
}

/// How much a crash of the machine loses of what its server has confirmed.
fn sync_interval(syncs: Result<Syncs, String>, version: &str) -> Check {
    let unknown = |why: &str, fix: &str| {
        let found = format!("how often the server syncs its files is not known: {why}");
        Check::warn("sync_interval", found, fix)
    };
    match syncs {
        Ok(Syncs::Always) => Check::ok("sync_interval", "the server syncs each message before it confirms it"),
        Ok(Syncs::Every(interval)) => Check::warn(
            "sync_interval",
            format!("the server syncs its files every {} only", spoken(interval)),
            "set `sync_interval: always` in its jetstream settings, or have replicas on machines that do not fail together: \
             otherwise a crash of the machine loses what was confirmed since",
        ),
        Ok(Syncs::Unsaid) => unknown(
            &format!("NATS {version} does not say it"),
            "run NATS 2.10 or later with `sync_interval: always` in its jetstream settings",
        ),
        Err(why) => unknown(
            &why,
            "look at the URL of Nats::monitor, which is `http_port` of the server that clients connect to; or look for \
             `sync_interval: always` in its jetstream settings",
        ),
    }
}

/// A duration as the settings of the server have it.
fn spoken(interval: Duration) -> String {
    match interval.as_secs() {
        seconds if seconds > 0 && seconds % 60 == 0 => format!("{}m", seconds / 60),
        _ => format!("{interval:?}"),
    }
}

/// One server is enough to survive a crash, if it syncs before it confirms.
fn replicas_of_synced(streams: &[Config]) -> Check {
    match named(streams, is_alone) {
        None => Check::ok("replicas", "no stream is on one server alone"),
        Some(names) => Check::ok(
            "replicas",
            format!("streams are on one server alone, which syncs each message: {names}"),
        ),
    }
}

/// A server syncs its files only now and then, and trusts in others to have the rest.
fn replicas(streams: &[Config], version: &str) -> Check {
    let Some(names) = named(streams, is_alone) else {
        return Check::ok("replicas", "no stream is on one server alone");
    };
    let (synced, fix) = match can_sync_always(version) {
        true => (
            "which syncs every two minutes unless its sync_interval is always; it does not tell clients",
            "give them more replicas (`nats stream edit --replicas 3`, in a cluster), or see that the server has `sync_interval: \
             always` in its jetstream settings (Nats::monitor asks it): otherwise a crash of the machine loses what they confirmed last",
        ),
        false => (
            "which syncs every two minutes",
            "give them more replicas (`nats stream edit --replicas 3`, in a cluster), or run NATS 2.10 or later with \
             `sync_interval: always`: otherwise a crash of the machine loses what they confirmed last",
        ),
    };
    Check::warn(
        "replicas",
        format!("streams are on one server alone, {synced}: {names}"),
        fix,
    )
}

fn is_alone(stream: &Config) -> bool {
    stream.storage == StorageType::File && stream.num_replicas <= 1
}

fn can_sync_always(version: &str) -> bool {
    let mut parts = version.split('.').map_while(|part| part.parse().ok());
    let parts = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    parts >= SYNC_INTERVAL_SINCE
}

/// The streams of which this holds, if there are any.
fn named(streams: &[Config], is_one: impl Fn(&Config) -> bool) -> Option<String> {
    let all = streams.iter().filter(|stream| is_one(stream));
    let mut names: Vec<_> = all.map(|stream| stream.name.clone()).collect();
    let more = names.len().saturating_sub(NAMES_MAX);
    names.truncate(NAMES_MAX);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(name: &str, storage: StorageType, num_replicas: usize) -> Config {
        Config {
            name: name.to_owned(),
            storage,
            num_replicas,
            ..Config::default()
        }
    }

    #[test]
    fn a_stream_in_memory_fails_and_one_on_a_single_server_is_a_warning() {
        let safe = [stream("SAFE", StorageType::File, 3)];
        assert_eq!(storage(&safe).verdict, Verdict::Ok);
        assert_eq!(replicas(&safe, "2.10.4").verdict, Verdict::Ok);
        let memory = storage(&[
            stream("SAFE", StorageType::File, 3),
            stream("QUICK", StorageType::Memory, 3),
        ]);
        assert_eq!(memory.verdict, Verdict::Fail);
        assert!(memory.found.ends_with(": QUICK"), "{}", memory.found);
        let alone = |version| replicas(&[stream("ALONE", StorageType::File, 1)], version);
        assert_eq!(alone("2.9.10").verdict, Verdict::Warn);
        assert!(alone("2.9.10").fix.is_some_and(|fix| fix.contains("2.10 or later")));
        assert!(alone("2.10.0-beta.1").found.contains("does not tell clients"));
        assert_eq!(storage(&[]).verdict, Verdict::Ok);
        let said = [stream("QUICK", StorageType::Memory, 1)];
        assert_eq!(
            replicas(&said, "2.10.4").verdict,
            Verdict::Ok,
            "that it is in memory is said already"
        );
    }

    #[test]
    fn a_server_that_syncs_each_message_is_safe_alone_and_one_that_does_not_or_does_not_say_is_a_warning() {
        let alone = [stream("ALONE", StorageType::File, 1)];
        assert_eq!(replicas_of_synced(&alone).verdict, Verdict::Ok);
        let check = |syncs| sync_interval(syncs, "2.9.10");
        assert_eq!(check(Ok(Syncs::Always)).verdict, Verdict::Ok);
        let seldom = check(Ok(Syncs::Every(Duration::from_secs(120))));
        assert_eq!(seldom.verdict, Verdict::Warn);
        assert!(seldom.found.ends_with("every 2m only"), "{}", seldom.found);
        assert_eq!(spoken(Duration::from_secs(90)), "90s");
        let unsaid = check(Ok(Syncs::Unsaid));
        assert_eq!(unsaid.verdict, Verdict::Warn);
        assert!(
            unsaid.found.ends_with("NATS 2.9.10 does not say it"),
            "{}",
            unsaid.found
        );
        assert_eq!(check(Err("nobody is there".to_owned())).verdict, Verdict::Warn);
    }

    #[test]
    fn a_line_names_the_first_streams_and_counts_the_rest() {
        let streams: Vec<_> = ('A'..='G')
            .map(|name| stream(&name.to_string(), StorageType::Memory, 1))
            .collect();
        let named = |count: usize| named(&streams[..count], |_| true);
        assert_eq!(named(0), None);
        assert_eq!(named(5).as_deref(), Some("A, B, C, D, E"));
        assert_eq!(named(7).as_deref(), Some("A, B, C, D, E, 2 more"));
    }
}
