//! What a server of NATS says of itself over HTTP, and tells no client: how often it syncs its files.
//!
//! Servers before 2.10 do not say it there either.

use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::error::{BoxError, Code, Error, Result};

/// How long it may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// How long an answer may be: a real one has some kilobytes.
const ANSWER_LENGTH_MAX: usize = 1024 * 1024;

/// Where servers answer, if nobody says otherwise.
const PORT: u16 = 8222;

/// Where a server answers questions about itself.
#[derive(Debug)]
pub(super) struct Monitor {
    host: String,
    port: u16,
    /// What stands before the questions: `http_base_path` of the server.
    path: String,
}

/// How often a server syncs its files.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Syncs {
    /// With each message, before it is confirmed.
    Always,
    Every(Duration),
    /// It does not say so.
    Unsaid,
}

/// What it answers, as far as we want to know.
#[derive(Deserialize)]
struct Varz {
    server_id: String,
    jetstream: Option<JetStream>,
}

#[derive(Deserialize)]
struct JetStream {
    config: Option<Config>,
}

#[derive(Deserialize)]
struct Config {
    /// In nanoseconds. It is there beside the other one too.
    sync_interval: Option<u64>,
    #[serde(default)]
    sync_always: bool,
}

impl Monitor {
    /// Reads an address.
    pub(super) fn read(url: &str) -> Result<Self> {
        let unusable = || {
            let message =
                "the address of NATS's monitoring is not usable; write http://host:8222, without user and password";
            Error::new(Code::ConfigurationInvalid, message)
        };
        let uri: Uri = url.parse().map_err(|_| unusable())?;
        let authority = uri.authority().ok_or_else(unusable)?;
        if uri.scheme_str() != Some("http") || authority.as_str().contains('@') || uri.query().is_some() {
            return Err(unusable());
        }
        Ok(Self {
            host: authority.host().to_owned(),
            port: authority.port_u16().unwrap_or(PORT),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Asks the server, which has to be the one of this id; if there is no answer, why not.
    pub(super) async fn ask(&self, server_id: &str) -> Result<Syncs, String> {
        let asking = tokio::time::timeout(ANSWER_LIMIT, self.get("varz")).await;
        let answer = asking.map_err(|_| format!("its monitoring did not answer within {ANSWER_LIMIT:?}"))?;
        let answer = answer.map_err(|error| format!("its monitoring does not answer: {error}"))?;
        read(&answer, server_id)
    }

    async fn get(&self, what: &str) -> Result<Bytes, BoxError> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.port)).await?;
        let (mut sender, speaking) = http1::handshake(TokioIo::new(stream)).await?;
        let _speaking = AbortOnDropHandle::new(tokio::spawn(speaking));
        let request = Request::get(format!("{}/{what}", self.path))
            .header(HOST, format!("{}:{}", self.host, self.port))
            .body(Empty::<Bytes>::new())?;
        let answer = sender.send_request(request).await?;
        if answer.status() != StatusCode::OK {
            return Err(format!("it answers {} to /{what}", answer.status()).into());
        }
        let body = Limited::new(answer.into_body(), ANSWER_LENGTH_MAX);
        Ok(body.collect().await?.to_bytes())
    }
}

/// What an answer says, if it is that of this server.
fn read(answer: &[u8], server_id: &str) -> Result<Syncs, String> {
    let varz: Varz = serde_json::from_slice(answer).map_err(|_| "what answers is no monitoring of NATS".to_owned())?;
    if varz.server_id != server_id {
        return Err("that monitoring is of another server".to_owned());
    }
    let config = varz.jetstream.and_then(|jetstream| jetstream.config);
    Ok(match config {
        Some(Config { sync_always: true, .. }) => Syncs::Always,
        Some(Config {
            sync_interval: Some(nanoseconds),
            ..
        }) => Syncs::Every(Duration::from_nanos(nanoseconds)),
        _ => Syncs::Unsaid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_http_and_has_no_password() {
        let monitor = Monitor::read("http://127.0.0.1").expect("an address");
        assert_eq!((&*monitor.host, monitor.port, &*monitor.path), ("127.0.0.1", 8222, ""));
        let monitor = Monitor::read("http://[::1]:9222/nats/").expect("an address");
        assert_eq!((&*monitor.host, monitor.port, &*monitor.path), ("[::1]", 9222, "/nats"));
        for wrong in [
            "",
            "127.0.0.1:8222",
            "nats://127.0.0.1:8222",
            "http://ann:secret@127.0.0.1:8222",
            "http://",
        ] {
            let refused = Monitor::read(wrong).expect_err(wrong);
            assert_eq!(refused.code(), Code::ConfigurationInvalid, "{wrong}");
            assert!(!refused.to_string().contains("secret"), "{refused}");
        }
    }

    /// What servers of these versions have answered, shortened.
    #[test]
    fn servers_say_how_often_they_sync_from_2_10_on() {
        let said = |config: &str| {
            let answer = format!(
                r#"{{"server_id":"NABC","port":4222,"jetstream":{{"config":{config},"stats":{{"memory":0}}}}}}"#
            );
            read(answer.as_bytes(), "NABC")
        };
        let of_2_9 = r#"{"max_memory":18957388800,"max_storage":26565980160,"store_dir":"/data/jetstream"}"#;
        assert_eq!(said(of_2_9), Ok(Syncs::Unsaid));
        let of_2_10 = r#"{"max_memory":18957388800,"store_dir":"/data/jetstream","sync_interval":120000000000}"#;
        assert_eq!(said(of_2_10), Ok(Syncs::Every(Duration::from_secs(120))));
        let of_2_15 =
            r#"{"store_dir":"/data/jetstream","sync_interval":120000000000,"sync_always":true,"strict":true}"#;
        assert_eq!(said(of_2_15), Ok(Syncs::Always));
        assert_eq!(
            read(br#"{"server_id":"NABC"}"#, "NABC"),
            Ok(Syncs::Unsaid),
            "without JetStream"
        );
        let other = read(br#"{"server_id":"NXYZ"}"#, "NABC").expect_err("another one");
        assert!(other.contains("another server"), "{other}");
        read(b"<html>", "NABC").expect_err("no answer");
    }
}
