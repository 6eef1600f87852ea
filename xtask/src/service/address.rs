//! Where a server listens: taken from a URL somebody gave us, or a free port for one of ours.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::error::{Context, Result};

/// How long a server may take to accept a connection, or to answer on it. Generous for a database in
/// another town.
const CONNECT_BOUND: Duration = Duration::from_secs(5);

/// `host:port` of a URL, without user and password, so that it may be printed. `None` if the URL
/// names no host, as those of Unix sockets do.
pub(crate) fn of_url(url: &str, default_port: u16) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    // The colons inside of an IPv6 address are not the one before the port.
    let after_host = place.rfind(']').map_or(0, |bracket| bracket + 1);
    match place[after_host..].rsplit_once(':') {
        _ if place.is_empty() || place.contains('%') => None,
        Some(_) => Some(place.to_owned()),
        None => Some(format!("{place}:{default_port}")),
    }
}

/// Whether somebody accepts connections at `host:port`.
pub(crate) fn answers(address: &str) -> bool {
    connect(address).is_some()
}

/// Whether somebody at `host:port` answers a client that begins with `say` by what begins with `hear`.
pub(crate) fn greets(address: &str, say: &[u8], hear: &[u8]) -> bool {
    let Some(mut stream) = connect(address) else {
        return false;
    };
    let mut heard = vec![0; hear.len()];
    let asked = stream
        .set_read_timeout(Some(CONNECT_BOUND))
        .and_then(|()| stream.write_all(say))
        .and_then(|()| stream.read_exact(&mut heard));
    asked.is_ok() && heard == hear
}

fn connect(address: &str) -> Option<TcpStream> {
    let mut addresses = address.to_socket_addrs().ok()?;
    addresses.find_map(|address| TcpStream::connect_timeout(&address, CONNECT_BOUND).ok())
}

/// A port of 127.0.0.1 that nobody uses now. Somebody may take it before the server does; then the
/// server says so in its log and the next run gets another one.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr().context("the free port has no address")?.port())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn an_address_carries_no_password() {
        let address = of_url("postgres://me:s3cr@et@db.example:6000/shop?sslmode=require", 5432);
        assert_eq!(address.as_deref(), Some("db.example:6000"));
    }

    #[test]
    fn a_missing_port_is_the_default_one() {
        assert_eq!(
            of_url("postgres://localhost/shop", 5432).as_deref(),
            Some("localhost:5432")
        );
        assert_eq!(of_url("postgres://me@[::1]/shop", 5432).as_deref(), Some("[::1]:5432"));
        assert_eq!(of_url("postgres://[::1]:7", 5432).as_deref(), Some("[::1]:7"));
    }

    #[test]
    fn a_url_without_a_host_has_no_address() {
        assert_eq!(of_url("postgres:///shop?host=/run/postgresql", 5432), None);
        assert_eq!(of_url("postgres://%2Frun%2Fpostgresql/shop", 5432), None);
        assert_eq!(of_url("not a url", 5432), None);
    }

    #[test]
    fn a_greeting_is_known_by_how_it_begins() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let server = thread::spawn(move || {
            for answer in ["+PONG\r\n", "-LOADING\r\n", "+P", ""] {
                let (mut client, _) = listener.accept().expect("a client");
                let mut said = [0; 6];
                client.read_exact(&mut said).expect("what the client says");
                assert_eq!(&said, b"PING\r\n");
                client.write_all(answer.as_bytes()).expect("a client that listens");
            }
        });
        let answers = [(); 4].map(|()| greets(&address, b"PING\r\n", b"+PONG"));
        server.join().expect("a server that is asked four times");
        assert_eq!(answers, [true, false, false, false]);
    }

    #[test]
    fn a_port_just_found_free_does_not_answer() {
        let port = free_port().expect("a free port");
        assert!(!answers(&format!("127.0.0.1:{port}")));
    }
}
