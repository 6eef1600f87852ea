//! PostgreSQL: a fresh cluster per run, tuned for tests that come and go, as in production for a
//! bench, or back again after every crash for chaos.
//!
//! There are no unit tests in this module: `--skip postgres::` would skip them together with the
//! tests that need a server.

use super::{Image, Package, Ready, Service};

/// PostgreSQL 15 or whatever newer one is installed.
///
/// Durability is off on purpose: no test survives the machine, and a crash of the *server process*
/// loses nothing without fsync either. 300 connections, because every test brings its own pools.
pub(crate) const POSTGRES: Service = Service {
    name: "postgres",
    variable: "TEST_DATABASE_URL",
    url: "postgres://postgres@127.0.0.1:{port}/postgres",
    default_port: 5432,
    programs: &["initdb", "postgres"],
    place: "/usr/lib/postgresql/*/bin",
    users: &["postgres", "nobody"],
    arguments: &[
        "-c",
        "fsync=off",
        "-c",
        "synchronous_commit=off",
        "-c",
        "full_page_writes=off",
        "-c",
        "max_connections=300",
    ],
    start: r#"
        [ -d "$home/data" ] ||
            "$bin/initdb" --auth=trust --no-sync -U postgres -E UTF8 --locale=C -D "$home/data" || exit
        exec "$bin/postgres" -D "$home/data" -p "$port" \
            -c listen_addresses=127.0.0.1 -c unix_socket_directories= $arguments
    "#,
    // An immediate shutdown: it does not wait for clients, and the data is thrown away anyway.
    stop: r#"kill -QUIT "$server""#,
    comes_back: false,
    ready: Ready::Command(&["pg_isready", "-q", "-h", "127.0.0.1", "-p", "{port}", "-U", "postgres"]),
    image: Image {
        name: "postgres:15",
        environment: &["POSTGRES_HOST_AUTH_METHOD=trust"],
    },
    package: Package {
        name: "postgresql",
        config: "/etc/postgresql-common/createcluster.conf",
        config_text: "create_main_cluster = false",
        // Its unit starts clusters, and there is none.
        units: &[],
    },
};

/// The same with the settings of production: every commit reaches the disk. Checkpoints are far
/// apart, so that a slice of a bench is rarely hit by one. It has a variable of its own, since the
/// server of the tests would make commits look free.
pub(crate) const POSTGRES_BENCH: Service = Service {
    name: "postgres-bench",
    variable: "BENCH_DATABASE_URL",
    arguments: &[
        "-c",
        "fsync=on",
        "-c",
        "synchronous_commit=on",
        "-c",
        "full_page_writes=on",
        "-c",
        "shared_buffers=512MB",
        "-c",
        "max_connections=300",
        "-c",
        "max_wal_size=4GB",
        "-c",
        "checkpoint_timeout=30min",
    ],
    ..POSTGRES
};

/// The same for chaos, which crashes it. What was acknowledged must survive that, so commits are
/// synchronous; only the machine's own crash would lose something, and that is not tried.
pub(crate) const POSTGRES_CHAOS: Service = Service {
    name: "postgres-chaos",
    variable: "CHAOS_DATABASE_URL",
    arguments: &[
        "-c",
        "fsync=off",
        "-c",
        "synchronous_commit=on",
        "-c",
        "full_page_writes=off",
        "-c",
        "max_connections=300",
    ],
    comes_back: true,
    ..POSTGRES
};
