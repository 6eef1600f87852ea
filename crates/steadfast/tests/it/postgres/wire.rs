//! A wire to the server that can be held, and cut.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

/// Passes bytes between clients and a server, replies only while it is open.
pub(crate) struct Wire {
    pub(crate) port: u16,
    is_open: watch::Sender<bool>,
    /// Cancelled, and replaced by a new one, when all that are connected are cut off.
    connected: Arc<Mutex<CancellationToken>>,
    begins: Arc<Semaphore>,
}

impl Wire {
    pub(crate) async fn to(host: String, port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let wire = Self {
            port: listener.local_addr().unwrap().port(),
            is_open: watch::Sender::new(true),
            connected: Arc::default(),
            begins: Arc::new(Semaphore::new(0)),
        };
        let (is_open, connected, begins) = (wire.is_open.subscribe(), wire.connected.clone(), wire.begins.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect((host.as_str(), port)).await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let cut = connected.lock().unwrap().clone();
                let requests = pass_requests(from_client, to_server, begins.clone());
                tokio::spawn(cut.clone().run_until_cancelled_owned(requests));
                let replies = pass_replies(from_server, to_client, is_open.clone());
                tokio::spawn(cut.run_until_cancelled_owned(replies));
            }
        });
        wire
    }

    pub(crate) fn hold_replies(&self) {
        self.is_open.send_replace(false);
    }

    pub(crate) fn let_replies_through(&self) {
        self.is_open.send_replace(true);
    }

    /// Ends all connections without another word. New ones are as the wire is.
    pub(crate) fn cut(&self) {
        std::mem::take(&mut *self.connected.lock().unwrap()).cancel();
    }

    /// Waits until a BEGIN has gone to the server.
    pub(crate) async fn begin_was_sent(&self) {
        self.begins.acquire().await.unwrap().forget();
    }
}

async fn pass_requests(mut client: OwnedReadHalf, mut server: OwnedWriteHalf, begins: Arc<Semaphore>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = client.read(&mut buffer).await {
        if server.write_all(&buffer[..length]).await.is_err() {
            return;
        }
        if buffer[..length].windows(5).any(|bytes| bytes == b"BEGIN") {
            begins.add_permits(1);
        }
    }
}

async fn pass_replies(mut server: OwnedReadHalf, mut client: OwnedWriteHalf, mut is_open: watch::Receiver<bool>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = server.read(&mut buffer).await {
        if is_open.wait_for(|is_open| *is_open).await.is_err() || client.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
