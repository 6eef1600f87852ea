//! A subscriber: a few lines on a socket, which cost as little as possible, since there are many and they share the processors
//! with the node.

use std::net::SocketAddr;
use std::time::Instant;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::super::latency::Tick;
use super::node::PATH;
use crate::error::{Context, Result};

/// Room for a few entries.
const BUFFER_LENGTH: usize = 1_024;

pub(super) struct Subscriber {
    lines: BufReader<TcpStream>,
    line: String,
}

/// What is pushed, as far as it matters here.
#[derive(Deserialize)]
struct Entry {
    data: Tick,
}

impl Subscriber {
    /// Connects, and waits until it hears everything from now on.
    pub(super) async fn connect(address: SocketAddr) -> Result<Self> {
        let mut socket = TcpStream::connect(address).await.context("connecting a subscriber")?;
        let request = format!("GET {PATH} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        socket.write_all(request.as_bytes()).await?;
        let mut subscriber = Self {
            lines: BufReader::with_capacity(BUFFER_LENGTH, socket),
            line: String::new(),
        };
        while subscriber.next_line().await? != "event: ready" {}
        Ok(subscriber)
    }

    /// Says what it hears and when, until the node or whoever listens is gone.
    pub(super) async fn listen(mut self, told: mpsc::UnboundedSender<(u64, Instant)>) {
        while let Ok(line) = self.next_line().await {
            let at = Instant::now();
            // Lines between them are the sizes of chunks, and places.
            let entry = line
                .strip_prefix("data: ")
                .and_then(|json| serde_json::from_str(json).ok());
            if let Some(Entry { data }) = entry
                && told.send((data.number, at)).is_err()
            {
                return;
            }
        }
    }

    async fn next_line(&mut self) -> Result<&str> {
        self.line.clear();
        match self.lines.read_line(&mut self.line).await? {
            0 => Err("the node has hung up".into()),
            _ => Ok(self.line.trim_end()),
        }
    }
}
