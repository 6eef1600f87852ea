//! A plain HTTP client: one request, one connection, every byte under the test's control.

use std::io;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::PATIENCE;

/// A request that has not been sent; clone it for a retry.
#[derive(Clone)]
pub(crate) struct Request {
    address: String,
    head: Vec<u8>,
    body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(address: &str, method: &str, path: &str) -> Self {
        let request = Self {
            address: address.into(),
            head: format!("{method} {path} HTTP/1.1\r\n").into(),
            body: Vec::new(),
        };
        request.header("Host", address).header("Connection", "close")
    }

    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.head
            .extend([name.as_bytes(), b": ", value.as_ref(), b"\r\n"].concat());
        self
    }

    pub(crate) fn user(self, token: &str) -> Self {
        self.header("Authorization", format!("Bearer {token}"))
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.header("Idempotency-Key", key)
    }

    pub(crate) fn fault(self, fault: &str) -> Self {
        self.header("Shop-Fault", fault)
    }

    pub(crate) fn json(self, body: impl Into<Vec<u8>>) -> Self {
        self.header("Content-Type", "application/json").body(body)
    }

    pub(crate) fn form(self, body: &str) -> Self {
        self.header("Content-Type", "application/x-www-form-urlencoded")
            .body(body)
    }

    fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends it and leaves the answer unread. Dropping the stream is hanging up.
    pub(crate) async fn dispatch(&self) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.write_all(&self.bytes()).await?;
        Ok(stream)
    }

    /// Sends it and reads the answer; fails if the server is not there or dies.
    pub(crate) async fn try_send(&self) -> io::Result<Response> {
        let exchange = async {
            let (mut reader, mut writer) = TcpStream::connect(&self.address).await?.into_split();
            let bytes = self.bytes();
            // A server may answer before it has read everything, and close: what counts is what it said.
            let writing = async { drop(writer.write_all(&bytes).await) };
            let reading = async {
                let mut answer = Vec::new();
                match reader.read_to_end(&mut answer).await {
                    Err(error) if answer.is_empty() => Err(error),
                    _ => Response::read(&answer),
                }
            };
            tokio::join!(writing, reading).1
        };
        tokio::time::timeout(PATIENCE, exchange).await?
    }

    pub(crate) async fn send(&self) -> Response {
        self.try_send().await.unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        let length = format!("Content-Length: {}\r\n\r\n", self.body.len());
        [&self.head, length.as_bytes(), &self.body].concat()
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    fn read(answer: &[u8]) -> io::Result<Self> {
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        Ok(Self {
            status: status.ok_or(io::ErrorKind::InvalidData)?,
            head,
            body: answer[end + 4..].to_vec(),
        })
    }

    /// A header's value, in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}
