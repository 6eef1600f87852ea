//! Connections to one endpoint: made to the address that was checked, verified by TLS, kept for a moment.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ProtocolVersion, RootCertStore, crypto::ring};
use tokio_util::task::AbortOnDropHandle;
use url::Host;

use super::guard::Endpoint;
use crate::error::BoxError;

/// How long a connection waits for the next request. Servers hang up on idle ones, the hastiest after five seconds, and a request
/// that crosses with that is one whose fate nobody knows.
const IDLE_MAX: Duration = Duration::from_secs(3);

/// A connection is ready when the answer has ended, unless the other side has answered before it has read the request.
const READY_TIME_MAX: Duration = Duration::from_millis(100);

/// The status line and the headers of an answer are not longer than this.
const HEAD_LENGTH_MAX: usize = 64 * 1024;

/// What connections are made with; another one in tests.
pub(super) trait Network: Send + Sync {
    /// The addresses of a name.
    fn resolve<'n>(&'n self, name: &'n str) -> BoxFuture<'n, io::Result<Vec<IpAddr>>>;

    /// A connection to one address.
    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>>;
}

/// The system's resolver and its sockets.
pub(super) struct Internet;

impl Network for Internet {
    fn resolve<'n>(&'n self, name: &'n str) -> BoxFuture<'n, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let addresses = tokio::net::lookup_host((name, 0)).await?;
            Ok(addresses.map(|address| address.ip()).collect())
        })
    }

    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(address))
    }
}

/// Why there is no connection. Nothing was sent.
#[derive(Debug)]
pub(super) enum Unconnected {
    /// The name leads where webhooks may not go.
    Refused(String),
    /// Nobody answers there, or nobody who can be trusted.
    Away(BoxError),
}

/// What was met on the way to a connection, as far as it went: for people who want to know.
#[derive(Default)]
pub(super) struct Way {
    /// What the host stands for.
    pub(super) addresses: Vec<SocketAddr>,
    /// The one that answered.
    pub(super) peer: Option<SocketAddr>,
    /// What both sides have agreed to be encrypted with.
    pub(super) tls: Option<&'static str>,
}

/// A connection over which nothing is on its way.
pub(super) struct Connection {
    pub(super) sender: http1::SendRequest<Full<Bytes>>,
    /// Whoever drops the connection ends it, whatever it is doing.
    _speaking: AbortOnDropHandle<()>,
}

impl Connection {
    /// Whether another request may be sent over it, now that the answer to the last one has ended.
    pub(super) async fn is_reusable(&mut self) -> bool {
        let ready = tokio::time::timeout(READY_TIME_MAX, self.sender.ready()).await;
        matches!(ready, Ok(Ok(())))
    }
}

/// The connections of one endpoint.
pub(super) struct Connections {
    pub(super) endpoint: Endpoint,
    tls: Option<Tls>,
    network: Box<dyn Network>,
    idle: Mutex<Vec<(Connection, Instant)>>,
}

struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Connections {
    /// # Errors
    /// The rule that the endpoint or a certificate breaks.
    pub(super) fn new(endpoint: Endpoint, trusted: &[Vec<u8>], network: Box<dyn Network>) -> Result<Self, String> {
        let tls = match endpoint.is_tls {
            true => Some(Tls {
                connector: TlsConnector::from(Arc::new(config(trusted)?)),
                name: server_name(&endpoint.host)?,
            }),
            false => None,
        };
        Ok(Self {
            endpoint,
            tls,
            network,
            idle: Mutex::default(),
        })
    }

    /// A connection that has been used and may be used again. The one that was used last is the likeliest to be there still.
    pub(super) fn idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(connection, since)| since.elapsed() < IDLE_MAX && !connection.sender.is_closed());
        idle.pop().map(|(connection, _)| connection)
    }

    /// Keeps a connection whose last answer was read to its end. There are never more than requests at once.
    pub(super) fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push((connection, Instant::now()));
    }

    /// A new connection. The name is resolved once, and what is connected to is what was checked: whoever answers otherwise
    /// the next time answers nobody.
    pub(super) async fn connect(&self, way: &mut Way) -> Result<Connection, Unconnected> {
        way.addresses = self.addresses().await.map_err(away)?;
        self.check(&way.addresses)?;
        let stream = self.dial(&way.addresses).await.map_err(away)?;
        way.peer = stream.peer_addr().ok();
        // A request is small and waits for its answer.
        stream.set_nodelay(true).map_err(away)?;
        match &self.tls {
            Some(Tls { connector, name }) => {
                let stream = connector.connect(name.clone(), stream).await.map_err(away)?;
                way.tls = stream.get_ref().1.protocol_version().map(tls_name);
                speak(stream).await
            }
            None => speak(stream).await,
        }
    }

    /// Where the endpoint is now.
    async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let addresses = match &self.endpoint.host {
            Host::Domain(name) => self.network.resolve(name).await?,
            Host::Ipv4(address) => vec![IpAddr::V4(*address)],
            Host::Ipv6(address) => vec![IpAddr::V6(*address)],
        };
        let port = self.endpoint.port;
        Ok(addresses.into_iter().map(|address| (address, port).into()).collect())
    }

    /// One forbidden address among them is enough to refuse them all: an honest name has none.
    fn check(&self, addresses: &[SocketAddr]) -> Result<(), Unconnected> {
        let check = |address: &SocketAddr| self.endpoint.check_address(address.ip());
        addresses.iter().try_for_each(check).map_err(Unconnected::Refused)
    }

    /// The first of the addresses that answers.
    async fn dial(&self, addresses: &[SocketAddr]) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
        for address in addresses {
            match self.network.dial(*address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn away(error: impl Into<BoxError>) -> Unconnected {
    Unconnected::Away(error.into())
}

fn tls_name(version: ProtocolVersion) -> &'static str {
    match version {
        ProtocolVersion::TLSv1_2 => "TLS 1.2",
        ProtocolVersion::TLSv1_3 => "TLS 1.3",
        _ => "TLS",
    }
}

/// Speaks HTTP/1.1 over a stream.
async fn speak(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Connection, Unconnected> {
    let handshake = http1::Builder::new()
        .max_buf_size(HEAD_LENGTH_MAX)
        .handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.map_err(away)?;
    let speaking = tokio::spawn(async move {
        // Whoever waits for an answer hears of it.
        let _ = connection.await;
    });
    Ok(Connection {
        sender,
        _speaking: AbortOnDropHandle::new(speaking),
    })
}

/// Verifies the other side by the roots of browsers, and those that were added.
fn config(trusted: &[Vec<u8>]) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    for pem in trusted {
        let unreadable = |error: &dyn std::fmt::Display| {
            format!("trusts a certificate that cannot be read: {error}; give it as PEM")
        };
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| unreadable(&error))?;
            roots.add(certificate).map_err(|error| unreadable(&error))?;
        }
        if roots.len() == before {
            return Err(unreadable(&"there is none in it"));
        }
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot be spoken to by TLS: {error}; report this"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Whom the certificate has to name.
fn server_name(host: &Host<String>) -> Result<ServerName<'static>, String> {
    match host {
        Host::Domain(name) => ServerName::try_from(name.trim_end_matches('.').to_owned())
            .map_err(|_| "has a host that no certificate can name; write a name as in DNS".to_owned()),
        Host::Ipv4(address) => Ok(IpAddr::V4(*address).into()),
        Host::Ipv6(address) => Ok(IpAddr::V6(*address).into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::net::TcpListener;

    use super::*;
    use crate::broker::webhook::guard::Allowed;

    /// A network in which names mean something else each time they are asked for, and every connection is written down.
    #[derive(Default)]
    struct Rebinding {
        answers: Mutex<VecDeque<Vec<&'static str>>>,
        /// Where each address really is.
        server: Option<SocketAddr>,
        dialled: Mutex<Vec<SocketAddr>>,
    }

    impl Network for Arc<Rebinding> {
        fn resolve<'n>(&'n self, _: &'n str) -> BoxFuture<'n, io::Result<Vec<IpAddr>>> {
            let answer = self.answers.lock().expect("no panic").pop_front();
            let answer = answer.expect("nobody asks more often than there are connections");
            Box::pin(async move {
                Ok(answer
                    .iter()
                    .map(|address| address.parse().expect("an address"))
                    .collect())
            })
        }

        fn dial(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
            self.dialled.lock().expect("no panic").push(address);
            match self.server {
                Some(server) => Box::pin(TcpStream::connect(server)),
                None => Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) }),
            }
        }
    }

    fn connections(network: &Arc<Rebinding>) -> Connections {
        let endpoint = Endpoint::new("https://rebinding.example.org:8443/", Allowed::default()).expect("a name");
        Connections::new(endpoint, &[], Box::new(network.clone())).expect("a public endpoint")
    }

    fn dialled(network: &Rebinding) -> Vec<String> {
        network
            .dialled
            .lock()
            .expect("no panic")
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[tokio::test]
    async fn a_name_that_turns_to_this_machine_gets_no_connection() {
        let answers = [
            vec!["93.184.215.14"],
            vec!["127.0.0.1"],
            vec!["93.184.215.14", "169.254.169.254"],
            vec!["::ffff:10.0.0.1"],
            vec![],
        ];
        let network = Arc::new(Rebinding {
            answers: Mutex::new(answers.into()),
            ..Rebinding::default()
        });
        let connections = connections(&network);
        let mut ends = Vec::new();
        for _ in 0..5 {
            ends.push(
                connections
                    .connect(&mut Way::default())
                    .await
                    .err()
                    .expect("nobody is there"),
            );
        }
        assert!(
            matches!(
                &ends[..],
                [
                    Unconnected::Away(_),
                    Unconnected::Refused(_),
                    Unconnected::Refused(_),
                    Unconnected::Refused(_),
                    Unconnected::Away(_)
                ]
            ),
            "{ends:?}"
        );
        assert_eq!(dialled(&network), ["93.184.215.14:8443"]);
        assert!(
            network.answers.lock().expect("no panic").is_empty(),
            "each connection has asked once"
        );
    }

    /// The name is asked for once, and the address that was checked is the one that is dialled, though the name means this
    /// machine by then.
    #[tokio::test]
    async fn what_is_dialled_is_what_was_checked() {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let network = Arc::new(Rebinding {
            answers: Mutex::new([vec!["93.184.215.14"], vec!["127.0.0.1"]].into()),
            server: server.local_addr().ok(),
            ..Rebinding::default()
        });
        let connections = connections(&network);
        // It hangs up in the middle of the TLS handshake.
        let mut way = Way::default();
        let (end, _) = tokio::join!(connections.connect(&mut way), async {
            drop(server.accept().await);
        });
        assert!(matches!(end, Err(Unconnected::Away(_))));
        assert!(way.peer.is_some() && way.tls.is_none(), "it came as far as that");
        assert_eq!(dialled(&network), ["93.184.215.14:8443"]);
        assert_eq!(
            network.answers.lock().expect("no panic").len(),
            1,
            "nobody has asked again"
        );
    }

    #[test]
    fn what_is_trusted_is_a_certificate() {
        for pem in [
            "",
            "no certificate",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
        ] {
            let rule = config(&[pem.into()]).expect_err(pem);
            assert!(rule.contains("give it as PEM"), "{rule}");
        }
    }
}
