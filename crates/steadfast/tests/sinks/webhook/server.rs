//! An HTTP server on this machine that keeps what it was sent.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use axum::serve::Listener;
use futures_util::future::BoxFuture;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use steadfast::{Webhook, WebhookOptions};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

pub(super) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A request that has come.
#[derive(Clone)]
pub(super) struct Received {
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Received {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().expect("ASCII")
    }
}

type Answer = Box<dyn Fn(usize) -> BoxFuture<'static, Response> + Send + Sync>;

/// The server, and what it has seen.
#[derive(Clone)]
pub(super) struct Server(Arc<Inner>);

struct Inner {
    address: SocketAddr,
    certificate: Option<String>,
    received: Mutex<Vec<Received>>,
    connections: Arc<AtomicUsize>,
    answer: Answer,
}

impl Server {
    /// Answers the n-th request, from 0, with what this says.
    pub(super) fn start<A: Future<Output = Response> + Send + 'static>(
        answer: impl Fn(usize) -> A + Send + Sync + 'static,
    ) -> Self {
        Self::listen(&bind(), None, answer)
    }

    /// The same by TLS, with a certificate of an authority of its own.
    pub(super) fn start_tls<A: Future<Output = Response> + Send + 'static>(
        answer: impl Fn(usize) -> A + Send + Sync + 'static,
    ) -> Self {
        Self::listen(&bind(), Some(certify()), answer)
    }

    /// The same on a port that was bound before, where nobody was there until now.
    pub(super) fn start_at<A: Future<Output = Response> + Send + 'static>(
        socket: TcpSocket,
        answer: impl Fn(usize) -> A + Send + Sync + 'static,
    ) -> Self {
        Self::listen(&Mutex::new(Some(socket)), None, answer)
    }

    fn listen<A: Future<Output = Response> + Send + 'static>(
        socket: &Mutex<Option<TcpSocket>>,
        tls: Option<(TlsAcceptor, String)>,
        answer: impl Fn(usize) -> A + Send + Sync + 'static,
    ) -> Self {
        let socket = socket.lock().unwrap().take().expect("a socket");
        let tcp = socket.listen(1024).expect("a port");
        let (acceptor, certificate) = tls.unzip();
        let connections = Arc::default();
        let server = Self(Arc::new(Inner {
            address: tcp.local_addr().expect("an address"),
            certificate,
            received: Mutex::default(),
            connections: Arc::clone(&connections),
            answer: Box::new(move |number| Box::pin(answer(number))),
        }));
        let router = Router::new().fallback(take).with_state(server.clone());
        let door = Door {
            tcp,
            acceptor,
            connections,
        };
        tokio::spawn(async move { axum::serve(door, router).await });
        server
    }

    /// A webhook to it.
    pub(super) fn webhook(&self) -> WebhookOptions {
        let address = self.0.address;
        match &self.0.certificate {
            Some(certificate) => Webhook::to(format!("https://{address}/hooks?a=b"))
                .signed_by([SECRET])
                .allow_private()
                .trust(certificate.as_str()),
            None => Webhook::to(format!("http://{address}/hooks"))
                .signed_by([SECRET])
                .allow_private()
                .allow_plaintext(),
        }
    }

    /// The authority that vouches for it, if it speaks TLS.
    pub(super) fn certificate(&self) -> &str {
        self.0.certificate.as_deref().unwrap_or_default()
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.0.address
    }

    pub(super) fn received(&self) -> Vec<Received> {
        self.0.received.lock().unwrap().clone()
    }

    /// How many connections were made.
    pub(super) fn connections(&self) -> usize {
        self.0.connections.load(Ordering::SeqCst)
    }
}

async fn take(State(server): State<Server>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let number = {
        let mut received = server.0.received.lock().unwrap();
        received.push(Received {
            path: uri.to_string(),
            headers,
            body,
        });
        received.len() - 1
    };
    (server.0.answer)(number).await
}

/// A port of this machine that is ours, and that nobody listens on yet.
pub(super) fn reserve() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().unwrap()).expect("a port");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}

fn bind() -> Mutex<Option<TcpSocket>> {
    Mutex::new(Some(reserve().0))
}

/// An authority, and a server that it vouches for.
fn certify() -> (TlsAcceptor, String) {
    let mut authority = CertificateParams::new([]).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().expect("a key");
    let pem = authority.self_signed(&authority_key).expect("a certificate").pem();
    let issuer = Issuer::new(authority, authority_key);

    let key = KeyPair::generate().expect("a key");
    let server = CertificateParams::new(["127.0.0.1".to_owned()]).expect("parameters");
    let certificate = server.signed_by(&key, &issuer).expect("a certificate");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
        )
        .expect("a certificate and its key");
    (Arc::new(config).into(), pem)
}

/// Where connections come in.
struct Door {
    tcp: TcpListener,
    acceptor: Option<TlsAcceptor>,
    connections: Arc<AtomicUsize>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Listener for Door {
    type Io = Box<dyn Stream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let (stream, address) = self.tcp.accept().await.expect("a client");
            self.connections.fetch_add(1, Ordering::SeqCst);
            match &self.acceptor {
                None => return (Box::new(stream), address),
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        return (Box::new(stream), address);
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}
