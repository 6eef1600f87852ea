//! A proxy in front of PostgreSQL that counts what passes and has accidents on request.
//!
//! It stands between a service and its database, in the service's own tests or in a process that makes trouble for
//! many. It understands the protocol, so that it can tell a COMMIT from a row that contains the word, count round
//! trips and statements exactly, and cut a connection on either side of a commit:
//!
//! ```no_run
//! # async fn example(url: &str) -> Result<(), Box<dyn std::error::Error>> {
//! use steadfast::testing::proxy::{Answer, Fault, Proxy};
//!
//! let proxy = Proxy::start("127.0.0.1:5432").await?;
//! let url = proxy.url(url); // the database's, but through the proxy: connect to this
//!
//! proxy.arm(Fault::CutAfterCommit);
//! // … a transaction commits here, and its client is told that the connection was lost …
//! proxy.until(|counts| counts.settled == 1).await;
//! assert_eq!(proxy.fired()[0].answer, Answer::Committed);
//! println!("{:#?}\n{}", proxy.counts(), proxy.statements().join("\n"));
//! # Ok(()) }
//! ```
//!
//! Connections through it are not encrypted: a client that asks is told that the server cannot, so `sslmode=prefer`
//! works and `sslmode=require` does not.

mod connection;
mod session;
mod fault;
mod counts;
mod frame;
mod sql;

pub use counts::Counts;
pub use fault::{Answer, Fault, Fired};

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use counts::Record;
use frame::Side;

/// How long to wait after a connection could not be accepted, as when there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A proxy in front of a PostgreSQL server, on a port of its own of this machine.
///
/// Dropped, it ends all of its connections. Everything that can be set holds for all connections, those of now and
/// those to come.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    _ended: DropGuard,
}

impl Proxy {
    /// Starts a proxy for the server at `host:port`.
    ///
    /// A server is not needed yet: each connection of a client makes its own. If the server refuses it, that client's
    /// connection is closed, as it is when a server restarts; the proxy goes on.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// use steadfast::testing::proxy::Proxy;
    ///
    /// let proxy = Proxy::start("db.example:5432").await?;
    /// let url = proxy.url("postgres://me:secret@db.example/shop?application_name=test");
    /// let port = proxy.port();
    /// assert_eq!(url, format!("postgres://me:secret@127.0.0.1:{port}/shop?application_name=test"));
    /// assert_eq!(proxy.counts().connections, 0);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// If no port can be opened.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub async fn start(upstream: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let ended = CancellationToken::new();
        let proxy = Self {
            port: listener.local_addr()?.port(),
            shared: Arc::new(Shared {
                upstream: Mutex::new(upstream.into()),
                conditions: watch::Sender::default(),
                record: watch::Sender::default(),
                connected: Mutex::new(ended.child_token()),
                ended: ended.clone(),
            }),
            _ended: ended.clone().drop_guard(),
        };
        let accepting = accept(listener, proxy.shared.clone());
        tokio::spawn(ended.run_until_cancelled_owned(accepting));
        Ok(proxy)
    }

    /// The port it listens on, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a database, with this proxy in place of its server.
    ///
    /// Only the place is changed; a `host`, `hostaddr` or `port` among the parameters is left out.
    pub fn url(&self, url: &str) -> String {
        through(self.port, url)
    }

    /// Sends new connections to another server, as a fail-over does. Those of now stay until they end or are
    /// [cut](Self::cut).
    pub fn set_upstream(&self, upstream: impl Into<String>) {
        *lock(&self.shared.upstream) = upstream.into();
    }

    /// How much has passed.
    pub fn counts(&self) -> Counts {
        self.shared.record.borrow().counts
    }

    /// The statements that were sent, in their order, each on one line.
    ///
    /// A prepared statement is shown each time it is executed, with `$1` where a value was. Blanks and comments are one
    /// space; of a long statement the first 2,000 bytes are shown, and the first 10,000 statements.
    pub fn statements(&self) -> Vec<String> {
        let record = self.shared.record.borrow();
        record
            .statements
            .iter()
            .map(|statement| statement.text.clone())
            .collect()
    }

    /// The faults that have happened, in their order: the first 100,000 of them.
    ///
    /// Those whose answer is [`Answer::Awaited`] change until it is there.
    pub fn fired(&self) -> Vec<Fired> {
        self.shared.record.borrow().fired.clone()
    }

    /// Counts from zero again, and forgets statements and faults that have happened. What is armed stays armed.
    pub fn reset_counts(&self) {
        self.shared.record.send_modify(Record::reset);
    }

    /// Waits until the counts are as said, however long that takes: put a time limit around it.
    ///
    /// For instance until a BEGIN has gone to the server: `proxy.until(|counts| counts.begins == 1).await`.
    pub async fn until(&self, mut fact: impl FnMut(&Counts) -> bool) {
        let mut record = self.shared.record.subscribe();
        // An error would mean that the proxy is gone, and we have it in our hands.
        let _ = record.wait_for(|record| fact(&record.counts)).await;
    }

    /// Lets a fault happen to the next COMMIT. Armed several times, one happens to each of the next.
    pub fn arm(&self, fault: Fault) {
        self.shared.record.send_modify(|record| record.armed.next(fault));
    }

    /// Lets a fault happen to every `n`th COMMIT from now on; never, if `n` is zero.
    ///
    /// Where a fault of [`arm`](Self::arm) falls on the same COMMIT, that one happens.
    pub fn arm_every(&self, fault: Fault, n: u64) {
        self.shared.record.send_modify(|record| record.armed.every(fault, n));
    }

    /// Lets one of these faults happen to a share of all COMMITs, between 0 and 1, chosen by chance.
    ///
    /// The same seed makes the same choice for the first, second, third… COMMIT that arrives here, on every machine.
    /// Faults of [`arm`](Self::arm) and [`arm_every`](Self::arm_every) go before.
    pub fn arm_share(&self, share: f64, seed: u64, faults: &[Fault]) {
        let arm = |record: &mut Record| record.armed.share(share, seed, faults);
        self.shared.record.send_modify(arm);
    }

    /// Lets nothing more happen to any COMMIT.
    pub fn disarm(&self) {
        self.shared
            .record
            .send_modify(|record| record.armed = Default::default());
    }

    /// Delays everything that comes from the server, each chunk by itself; by zero at first.
    pub fn delay(&self, delay: Duration) {
        self.shared
            .conditions
            .send_modify(|conditions| conditions.delay = delay);
    }

    /// Passes bytes in pieces of so many, in both directions, each sent by itself; zero, as at first, passes what
    /// there is.
    pub fn slice(&self, length: usize) {
        self.shared
            .conditions
            .send_modify(|conditions| conditions.slice = length);
    }

    /// Lets nothing pass in either direction, as a network that is down: not even that one side has left.
    ///
    /// New connections are accepted and not answered. What was sent meanwhile arrives when it is over.
    pub fn black_hole(&self, is_on: bool) {
        self.shared
            .conditions
            .send_modify(|conditions| conditions.is_black_hole = is_on);
    }

    /// Lets clients go on speaking, and keeps back what the server answers.
    pub fn hold_replies(&self) {
        self.shared
            .conditions
            .send_modify(|conditions| conditions.holds_replies = true);
    }

    /// Lets the server's answers through again, those first that were held.
    pub fn let_replies_through(&self) {
        self.shared
            .conditions
            .send_modify(|conditions| conditions.holds_replies = false);
    }

    /// Ends all connections of now, on both sides, without another word.
    pub fn cut(&self) {
        let next = self.shared.ended.child_token();
        std::mem::replace(&mut *lock(&self.shared.connected), next).cancel();
    }
}

/// What a proxy shares with its connections.
struct Shared {
    upstream: Mutex<String>,
    conditions: watch::Sender<Conditions>,
    record: watch::Sender<Record>,
    /// Cancelled, and replaced by a new one, when all that are connected are cut off.
    connected: Mutex<CancellationToken>,
    /// Cancelled when the proxy is dropped, and all the others with it.
    ended: CancellationToken,
}

/// How the line is.
#[derive(Clone, Copy, Default)]
struct Conditions {
    delay: Duration,
    /// Zero: as it comes.
    slice: usize,
    is_black_hole: bool,
    holds_replies: bool,
}

impl Shared {
    fn upstream(&self) -> String {
        lock(&self.upstream).clone()
    }

    /// What shall happen to the COMMIT that has just arrived.
    fn fate(&self) -> Option<Fault> {
        let mut fate = None;
        self.record.send_if_modified(|record| {
            fate = record.armed.fate();
            false
        });
        fate
    }

    async fn delay(&self) {
        let delay = self.conditions.borrow().delay;
        // A sleep of nothing is a millisecond.
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    /// Waits until something from this side may pass.
    async fn passable(&self, from: Side) -> Conditions {
        let mut conditions = self.conditions.subscribe();
        let is_passable = |now: &Conditions| !(now.is_black_hole || (now.holds_replies && from == Side::Server));
        match conditions.wait_for(is_passable).await {
            Ok(now) => *now,
            // Its sender is a field of ours.
            Err(_) => Conditions::default(),
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut number = 0;
    loop {
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        number += 1;
        let cut = lock(&shared.connected).clone();
        tokio::spawn(connection::serve(shared.clone(), number, client, cut));
    }
}

/// A database's URL with another place in it: `scheme://user:password@` **`host:port`** `/database?parameters`.
fn through(port: u16, url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let user = authority.rfind('@').map_or("", |at| &authority[..=at]);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let is_place = |parameter: &&str| matches!(parameter.split('=').next(), Some("host" | "hostaddr" | "port"));
    let parameters: Vec<&str> = query.split('&').filter(|p| !p.is_empty() && !is_place(p)).collect();
    let question = if parameters.is_empty() { "" } else { "?" };
    format!(
        "{scheme}://{user}127.0.0.1:{port}{path}{question}{}",
        parameters.join("&")
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these guard is replaced whole, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    const STARTUP: &[u8] = b"\0\0\0\x11\0\x03\0\0user\0me\0\0";

    /// A proxy, and what its server would listen on.
    async fn proxy() -> (Proxy, TcpListener) {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let upstream = server.local_addr().expect("bound").to_string();
        (Proxy::start(upstream).await.expect("a port"), server)
    }

    async fn client(proxy: &Proxy) -> TcpStream {
        TcpStream::connect(("127.0.0.1", proxy.port())).await.expect("accepted")
    }

    /// What arrives until the other side leaves.
    async fn all_of(stream: &mut TcpStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        let reading = timeout(Duration::from_secs(10), stream.read_to_end(&mut bytes)).await;
        // Left with or without something unread: both are an end.
        let _ = reading.expect("the other side leaves");
        bytes
    }

    #[tokio::test]
    async fn a_message_without_sense_ends_its_connection_and_no_other() {
        let (proxy, server) = proxy().await;
        for noise in [
            &b"\0\0\0\x03"[..],
            b"\xff\xff\xff\xff",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02",
        ] {
            let mut client = client(&proxy).await;
            client.write_all(noise).await.expect("taken");
            assert!(all_of(&mut client).await.is_empty());
        }
        assert_eq!(proxy.counts(), Counts::default());

        for (from_client, from_server) in [(&b"Q\0\0\0\x03"[..], &b""[..]), (b"", b"D\x7f\xff\xff\xff")] {
            let mut client = client(&proxy).await;
            client.write_all(STARTUP).await.expect("taken");
            let (mut served, _) = server.accept().await.expect("the proxy connects");
            served.read_exact(&mut [0; STARTUP.len()]).await.expect("passed");
            client.write_all(from_client).await.expect("taken");
            served.write_all(from_server).await.expect("taken");
            assert!(all_of(&mut client).await.is_empty());
            assert!(all_of(&mut served).await.is_empty());
        }
        assert_eq!(proxy.counts().connections, 2);
    }

    #[tokio::test]
    async fn encryption_is_declined_by_the_proxy_and_never_seen_by_the_server() {
        let (proxy, server) = proxy().await;
        let mut client = client(&proxy).await;
        for request in [b"\0\0\0\x08\x04\xd2\x16\x30", b"\0\0\0\x08\x04\xd2\x16\x2f"] {
            client.write_all(request).await.expect("taken");
            assert_eq!(client.read_u8().await.expect("answered"), b'N');
        }
        client.write_all(STARTUP).await.expect("taken");
        client.shutdown().await.expect("still there");
        let (mut served, _) = server.accept().await.expect("the proxy connects");
        assert_eq!(all_of(&mut served).await, STARTUP);
    }

    #[tokio::test]
    async fn a_dropped_proxy_ends_its_connections_and_leaves_its_port() {
        let (proxy, server) = proxy().await;
        let mut client = client(&proxy).await;
        client.write_all(STARTUP).await.expect("taken");
        let (mut served, _) = server.accept().await.expect("the proxy connects");
        let port = proxy.port();
        proxy.black_hole(true);
        drop(proxy);
        assert!(all_of(&mut client).await.is_empty());
        all_of(&mut served).await;
        assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    }

    #[tokio::test]
    async fn messages_sent_together_are_one_round_trip_whenever_they_are_answered() {
        let (proxy, server) = proxy().await;
        let mut client = client(&proxy).await;
        client.write_all(STARTUP).await.expect("taken");
        let (mut served, _) = server.accept().await.expect("the proxy connects");
        served.read_exact(&mut [0; STARTUP.len()]).await.expect("passed");
        let ready = b"Z\0\0\0\x05I";
        served.write_all(ready).await.expect("taken");
        client.read_exact(&mut [0; 6]).await.expect("passed");

        // Single bytes, so that the second message is still on its way when the first has been answered.
        proxy.slice(1);
        let query = b"Q\0\0\0\x0dSELECT 1\0";
        client.write_all(&[query, &query[..]].concat()).await.expect("taken");
        served.read_exact(&mut [0; 14]).await.expect("passed");
        served.write_all(ready).await.expect("taken");
        client.read_exact(&mut [0; 6]).await.expect("passed");
        served.read_exact(&mut [0; 14]).await.expect("passed");
        served.write_all(ready).await.expect("taken");
        client.read_exact(&mut [0; 6]).await.expect("passed");
        assert_eq!((proxy.counts().round_trips, proxy.counts().statements), (1, 2));

        // Notices come unasked, and begin no round trip in the middle of a question.
        client.write_all(b"D\0\0\0\x06S\0").await.expect("taken");
        served.read_exact(&mut [0; 7]).await.expect("passed");
        served.write_all(b"N\0\0\0\x05\0").await.expect("taken");
        client.read_exact(&mut [0; 6]).await.expect("passed");
        client.write_all(b"S\0\0\0\x04").await.expect("taken");
        served.read_exact(&mut [0; 5]).await.expect("passed");
        // Read by the server, but perhaps not yet counted: nothing was answered.
        let counted = proxy.until(|counts| counts.bytes_up == STARTUP.len() as u64 + 40);
        timeout(Duration::from_secs(10), counted).await.expect("counted");
        assert_eq!(proxy.counts().round_trips, 2);
        assert_eq!(proxy.counts().pings, 0, "it had something to synchronise");
    }

    #[tokio::test]
    async fn the_last_words_of_a_server_reach_a_client_that_goes_on_speaking() {
        let (proxy, server) = proxy().await;
        let mut client = client(&proxy).await;
        client.write_all(STARTUP).await.expect("taken");
        let (mut served, _) = server.accept().await.expect("the proxy connects");
        served.read_exact(&mut [0; STARTUP.len()]).await.expect("passed");
        proxy.hold_replies();
        let fatal = b"E\0\0\0\x05\0";
        served.write_all(fatal).await.expect("taken");
        drop(served);
        for _ in 0..20 {
            client.write_all(b"S\0\0\0\x04").await.expect("taken");
            tokio::task::yield_now().await;
        }
        proxy.let_replies_through();
        assert_eq!(all_of(&mut client).await, fatal);
    }

    #[test]
    fn a_url_leads_to_the_proxy_whatever_form_it_has() {
        for (url, expected) in [
            ("postgres://localhost", "postgres://127.0.0.1:7"),
            ("postgresql://u@h:5432/db", "postgresql://u@127.0.0.1:7/db"),
            ("postgres://u:p@ss@[::1]:5432/db", "postgres://u:p@ss@127.0.0.1:7/db"),
            (
                "postgres:///db?host=/tmp&port=1&options=a",
                "postgres://127.0.0.1:7/db?options=a",
            ),
            ("postgres://u@h?hostaddr=1.2.3.4", "postgres://u@127.0.0.1:7"),
        ] {
            assert_eq!(through(7, url), expected);
        }
    }
}
