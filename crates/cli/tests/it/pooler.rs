//! A real pooler between us and PostgreSQL: PgBouncer, where it is installed.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::process::Call;

/// A pooler that runs until it is dropped.
struct Pooler {
    _process: Child,
    _directory: TempDir,
    url: String,
}

impl Pooler {
    /// `None` where it is not installed.
    async fn start(mode: &str, processes: u32) -> Option<Self> {
        let server_url = std::env::var("TEST_DATABASE_URL").unwrap();
        let password = server_url
            .rsplit_once('@')
            .and_then(|(user, _)| user.split_once("://")?.1.split_once(':'));
        // It reads no empty one, and a server that trusts us does not look at it.
        let password = password.map_or("none", |(_, password)| password);
        let server = PgConnectOptions::from_str(&server_url).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let directory = tempfile::tempdir().unwrap();
        // It refuses to be root, and then reads its settings as nobody.
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let settings = directory.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]
shop = host={} port={} dbname={} user={} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
ignore_startup_parameters = extra_float_digits
pool_mode = {mode}
default_pool_size = {processes}
",
            server.get_host(),
            server.get_port(),
            server.get_database().unwrap_or("postgres"),
            server.get_username(),
        );
        std::fs::write(&settings, text).unwrap();
        let mut command = Command::new("pgbouncer");
        if std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0) {
            command.args(["--user", "nobody"]);
        }
        let mut process = command
            .arg(&settings)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .ok()?;
        let options = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(port)
            .username("shop")
            .database("shop");
        while let Err(error) = PgConnection::connect_with(&options).await {
            assert!(matches!(error, sqlx::Error::Io(_)), "{error}");
            assert_eq!(process.try_wait().unwrap(), None, "PgBouncer has ended");
            tokio::task::yield_now().await;
        }
        Some(Self {
            _process: process,
            _directory: directory,
            url: options.to_url_lossy().to_string(),
        })
    }
}

#[tokio::test]
async fn doctor_finds_a_pooler_in_transaction_mode_however_many_processes_it_has() {
    for processes in [1, 2, 20] {
        let Some(pooler) = Pooler::start("transaction", processes).await else {
            return eprintln!("skipped: PgBouncer is not installed");
        };
        // Statements that the first one has left prepared are in the way of those that follow.
        for _ in 0..3 {
            let told = Call::new("doctor --schema nowhere")
                .env("DATABASE_URL", &pooler.url)
                .run()
                .await;
            assert!(
                told.out.contains("a pooler in transaction mode stands between")
                    && told.out.contains("fix: use a pooler in session mode"),
                "{processes}: {}{}",
                told.out,
                told.err
            );
        }
        let said = Call::new("health").env("DATABASE_URL", &pooler.url).run().await;
        said.refused(5, "error[SF120]: ", "use a pooler in session mode");
    }
}

#[tokio::test]
async fn doctor_has_nothing_against_a_pooler_in_session_mode() {
    let Some(pooler) = Pooler::start("session", 10).await else {
        return eprintln!("skipped: PgBouncer is not installed");
    };
    let told = Call::new("doctor").env("DATABASE_URL", &pooler.url).run().await.out;
    assert!(told.contains("ok    pooler "), "{told}");
}
