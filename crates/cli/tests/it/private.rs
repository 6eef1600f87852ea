//! A server of one test alone, for settings that no other test should meet.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How long a server may take to listen, on a machine that is busy.
const START_LIMIT: Duration = Duration::from_secs(30);

/// It runs until it is dropped.
pub(crate) struct Private {
    _process: Child,
    _directory: TempDir,
    pub(crate) port: u16,
}

impl Private {
    /// Starts a program with settings for this port and this directory; `None` where it is not installed.
    pub(crate) async fn start(program: &str, settings: impl Fn(u16, &Path) -> String) -> Option<Self> {
        let port = free_port();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("settings");
        std::fs::write(&file, settings(port, directory.path())).unwrap();
        // Some systems keep servers where only root looks.
        let places = ["", "/usr/sbin/", "/usr/local/bin/"].map(|place| format!("{place}{program}"));
        let process = places.iter().find_map(|program| {
            let mut command = Command::new(program);
            // NATS takes its settings by a flag, Redis without one.
            if program.contains("nats") {
                command.arg("-c");
            }
            let command = command.arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
            command.kill_on_drop(true).spawn().ok()
        });
        let mut process = process?;
        let listening = async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                assert_eq!(process.try_wait().unwrap(), None, "{program} has ended");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(START_LIMIT, listening).await.expect("it listens");
        Some(Self {
            _process: process,
            _directory: directory,
            port,
        })
    }
}

/// A port of this machine that nobody listens on.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
