//! A line to a broker that can be cut and mended: plain TCP, whatever is said on it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the line does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Works,
    /// Nobody gets through, and who was through is cut off.
    IsCut,
    /// What the broker says does not arrive.
    IsMute,
}

/// A line to a broker.
pub(crate) struct Line {
    address: SocketAddr,
    state: watch::Sender<State>,
    calls: Arc<AtomicUsize>,
}

impl Line {
    /// A line to the broker at this address, such as `127.0.0.1:4222`.
    pub(crate) async fn to(broker: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, watched) = watch::channel(State::Works);
        let calls = Arc::new(AtomicUsize::new(0));
        let (broker, counted) = (broker.to_owned(), calls.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(carry(client, broker.clone(), watched.clone()));
            }
        });
        Self { address, state, calls }
    }

    /// Its end here, as host and port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn cut(&self) {
        self.state.send_replace(State::IsCut);
    }

    pub(crate) fn mute(&self) {
        self.state.send_replace(State::IsMute);
    }

    pub(crate) fn mend(&self) {
        self.state.send_replace(State::Works);
    }

    /// How often somebody has called.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

/// Carries what both say, until one of them hangs up or the line is cut.
async fn carry(mut client: TcpStream, broker: String, mut state: watch::Receiver<State>) {
    if *state.borrow() == State::IsCut {
        return;
    }
    let Ok(mut server) = TcpStream::connect(broker).await else {
        return;
    };
    let (mut hear_client, mut tell_client) = client.split();
    let (mut hear_server, mut tell_server) = server.split();
    let mut muted = state.clone();
    let replies = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let Ok(length @ 1..) = hear_server.read(&mut buffer).await else {
                return;
            };
            if muted.wait_for(|state| *state == State::Works).await.is_err() {
                return;
            }
            if tell_client.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = tokio::io::copy(&mut hear_client, &mut tell_server) => {}
        () = replies => {}
        _ = state.wait_for(|state| *state == State::IsCut) => {}
    }
}
