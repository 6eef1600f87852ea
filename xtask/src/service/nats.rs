//! NATS with JetStream, which keeps its streams in files; also one to kill.

use super::{Image, Package, Ready, Service};

/// NATS 2.9 or whatever newer one is installed.
pub(crate) const NATS: Service = Service {
    name: "nats",
    variable: "TEST_NATS_URL",
    url: "nats://127.0.0.1:{port}",
    default_port: 4222,
    programs: &["nats-server"],
    place: "/usr/sbin",
    users: &["nats", "nobody"],
    arguments: &["-js"],
    start: r#"exec "$bin/nats-server" -a 127.0.0.1 -p "$port" -sd "$home/data" $arguments"#,
    stop: r#"kill -TERM "$server""#,
    comes_back: false,
    // The server speaks first.
    ready: Ready::Greeting {
        say: b"",
        hear: b"INFO ",
    },
    image: Image {
        name: "nats:2.9",
        environment: &[],
    },
    package: Package {
        name: "nats-server",
        config: "",
        config_text: "",
        units: &["nats-server.service"],
    },
};

/// The same to be killed: what it has confirmed it has written, and the machine lives on. It takes small messages only, since
/// the largest event would not be too large for the default.
pub(crate) const NATS_CHAOS: Service = Service {
    name: "chaos_nats_server",
    variable: "CHAOS_NATS_URL",
    start: r#"
        printf 'max_payload: 64KB\n' >"$home/nats.conf" || exit
        exec "$bin/nats-server" -c "$home/nats.conf" -a 127.0.0.1 -p "$port" -sd "$home/data" $arguments
    "#,
    comes_back: true,
    ..NATS
};
