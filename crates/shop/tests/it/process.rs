//! The shop as a child process, which dies with the test.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use uuid::Uuid;

use crate::http::{Request, Response};
use crate::{PATIENCE, eventually};

/// Any free port.
const ANYWHERE: &str = "127.0.0.1:0";

/// A shop that serves.
pub(crate) struct Shop {
    child: Child,
    address: String,
    said: Said,
}

/// What the process has written, shown when the test fails.
type Said = Arc<Mutex<String>>;

impl Shop {
    /// Starts a fault lab.
    pub(crate) async fn lab(url: &str) -> Self {
        Self::start(url, &["--lab"]).await
    }

    /// Starts it on a port of its own and waits until it serves.
    pub(crate) async fn start(url: &str, flags: &[&str]) -> Self {
        let mut shop = Command::new(env!("CARGO_BIN_EXE_shop"));
        shop.arg("serve").args(flags).env("DATABASE_URL", url);
        Self::spawn(shop, ANYWHERE).await
    }

    /// Starts it at this address, where one may have been before.
    pub(crate) async fn start_at(address: &str, url: &str) -> Self {
        let mut shop = Command::new(env!("CARGO_BIN_EXE_shop"));
        shop.arg("serve").env("DATABASE_URL", url);
        Self::spawn(shop, address).await
    }

    /// Starts the outside world, on a ledger.
    pub(crate) async fn outside(ledger: &str) -> Self {
        let mut shop = Command::new(env!("CARGO_BIN_EXE_shop"));
        shop.args(["outside", "--ledger", ledger]);
        Self::spawn(shop, ANYWHERE).await
    }

    /// Starts a worker on a port of its own and waits until it is there.
    pub(crate) async fn worker(url: &str, flags: &[&str]) -> Self {
        Self::spawn(worker(url, flags), ANYWHERE).await
    }

    /// Starts a worker that may not live long enough to say where it is.
    pub(crate) fn doomed_worker(url: &str, flags: &[&str]) -> Self {
        Self::launch(worker(url, flags), ANYWHERE)
    }

    /// Starts a warehouse on a database of its own.
    pub(crate) async fn warehouse(url: &str, flags: &[&str]) -> Self {
        Self::spawn(warehouse(url, flags), ANYWHERE).await
    }

    /// Starts a warehouse that may not live long enough to say where it is.
    pub(crate) fn doomed_warehouse(url: &str, flags: &[&str]) -> Self {
        Self::launch(warehouse(url, flags), ANYWHERE)
    }

    /// Starts what is to refuse to open, and hands out what it says.
    pub(crate) async fn refused(arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shop"));
        command.args(arguments);
        let mut shop = Self::launch(command, ANYWHERE);
        assert_eq!(shop.ended().await.code(), Some(1), "{}", shop.said());
        eventually("it is read why", async || shop.said().contains("error")).await;
        shop.said()
    }

    async fn spawn(shop: Command, address: &str) -> Self {
        let mut shop = Self::launch(shop, address);
        eventually("the address is printed", async || {
            assert!(shop.is_alive(), "the shop did not open: {}", shop.said());
            let said = shop.said();
            let line = said.lines().find_map(|line| line.strip_prefix("http://"));
            shop.address = line.unwrap_or_default().to_owned();
            !shop.address.is_empty()
        })
        .await;
        assert_eq!(shop.request("GET", "/livez").send().await.status, 200);
        shop
    }

    fn launch(mut shop: Command, address: &str) -> Self {
        let mut child = shop
            .args(["--listen", address])
            .env_remove("RUST_LOG")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let said = Said::default();
        listen(child.stdout.take().unwrap(), said.clone());
        listen(child.stderr.take().unwrap(), said.clone());
        Self {
            child,
            address: String::new(),
            said,
        }
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Everything it has printed and logged.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> Request {
        Request::new(&self.address, method, path)
    }

    /// `user-a` orders tea under a key.
    pub(crate) fn order(&self, key: &str) -> Request {
        self.request("POST", "/orders")
            .user("user-a")
            .key(key)
            .json(r#"{"sku":"tea","quantity":2}"#)
    }

    /// Waits until so many requests are held, with their transactions open.
    pub(crate) async fn holds(&self, count: u64) {
        eventually("the request is held", async || {
            self.request("GET", "/lab").send().await.json()["held"] == count
        })
        .await;
    }

    pub(crate) async fn release(&self) {
        assert_eq!(self.request("POST", "/lab/release").send().await.status, 200);
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `kill -9`, and the wait for its end.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Asks for the orderly end.
    pub(crate) async fn terminate(&self) {
        self.signal("-TERM").await;
    }

    /// Stops the whole process as it is, as a machine that sleeps, until [`Shop::wake`].
    pub(crate) async fn pause(&self) {
        self.signal("-STOP").await;
    }

    pub(crate) async fn wake(&self) {
        self.signal("-CONT").await;
    }

    async fn signal(&self, signal: &str) {
        let pid = self.child.id().unwrap().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().await.unwrap();
        assert!(sent.success(), "{signal}");
    }

    /// Moves the lab's time, for all processes on its database.
    pub(crate) async fn advance(&self, by: &str) {
        let advance = self
            .request("POST", "/lab/clock")
            .json(format!(r#"{{"advance":"{by}"}}"#));
        assert_eq!(advance.send().await.status, 200);
    }

    /// How the process ended.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .unwrap()
            .unwrap()
    }
}

/// An address that stays free while its shop is dead. Ports from 32768 on do not: the system hands them to whoever connects to
/// anything, and many tests do.
pub(crate) fn lasting_address() -> String {
    let addresses = std::iter::repeat_with(|| format!("127.0.0.1:{}", 10_000 + Uuid::now_v7().as_u128() % 20_000));
    let is_free = |address: &String| std::net::TcpListener::bind(address).is_ok();
    addresses.take(100).find(is_free).expect("a free port")
}

fn worker(url: &str, flags: &[&str]) -> Command {
    let mut shop = Command::new(env!("CARGO_BIN_EXE_shop"));
    shop.arg("worker").args(flags).env("DATABASE_URL", url);
    shop
}

fn warehouse(url: &str, flags: &[&str]) -> Command {
    let mut shop = Command::new(env!("CARGO_BIN_EXE_shop"));
    shop.arg("warehouse").args(flags).env("WAREHOUSE_DATABASE_URL", url);
    shop
}

impl Drop for Shop {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the shop at {} said:\n{}", self.address, self.said());
        }
    }
}

/// Sends a request as a good client does: again, as long as it is told to come back.
pub(crate) async fn send_until_settled(request: &Request) -> Response {
    let mut settled = None;
    eventually("the request is settled", async || {
        let response = request.send().await;
        let is_settled = !matches!(response.status, 409 | 503);
        settled = Some(response);
        is_settled
    })
    .await;
    settled.unwrap()
}

fn listen(stream: impl AsyncRead + Unpin + Send + 'static, said: Said) {
    tokio::spawn(async move {
        let mut lines = BufReader::new(stream).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            said.lock().unwrap().extend([&line, "\n"]);
        }
    });
}
