//! A plain HTTP client: one request, one connection, nothing that retries behind our back.

use std::fmt::Write;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A POST with a JSON body.
pub(crate) struct Post<'a> {
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a str,
}

impl Post<'_> {
    /// Sends it and reads the whole answer. When the time is over the client hangs up.
    pub(crate) async fn send(&self, address: SocketAddr, patience: Duration) -> io::Result<Response> {
        let exchange = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(self.bytes(address).as_bytes()).await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            Response::read(answer)
        };
        timeout(patience, exchange).await.map_err(|_| ErrorKind::TimedOut)?
    }

    fn bytes(&self, address: SocketAddr) -> String {
        let (path, body) = (self.path, self.body);
        let mut text = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
        for (name, value) in self.headers {
            // Writing to a string does not fail.
            let _ = write!(text, "{name}: {value}\r\n");
        }
        let _ = write!(
            text,
            "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        text
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
    /// An answer that breaks off, because its process was killed, is none.
    fn read(mut answer: Vec<u8>) -> io::Result<Self> {
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.ok_or(ErrorKind::UnexpectedEof)?;
        let body = answer.split_off(end + 4);
        let head = String::from_utf8_lossy(&answer).into_owned();
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        let response = Self {
            status: status.ok_or(ErrorKind::InvalidData)?,
            head,
            body,
        };
        let length = response.header("content-length").and_then(|length| length.parse().ok());
        if length != Some(response.body.len()) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(response)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_breaks_off_is_none() {
        let whole = b"HTTP/1.1 201 Created\r\nIdempotent-Replayed: true\r\ncontent-length: 5\r\n\r\nhello";
        let answer = Response::read(whole.to_vec()).expect("a whole answer");
        assert_eq!((answer.status, answer.body.as_slice()), (201, &b"hello"[..]));
        assert_eq!(answer.header("idempotent-replayed"), Some("true"));
        for end in 0..whole.len() {
            assert!(Response::read(whole[..end].to_vec()).is_err(), "{end}");
        }
    }
}
