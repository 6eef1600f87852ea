//! Redis with its append-only file, as whoever keeps a stream in it should have it; also one to kill.

use super::{Image, Package, Ready, Service};

/// Redis 7.0 or whatever newer one is installed.
pub(crate) const REDIS: Service = Service {
    name: "redis",
    variable: "TEST_REDIS_URL",
    url: "redis://127.0.0.1:{port}",
    default_port: 6379,
    programs: &["redis-server"],
    place: "/usr/bin",
    users: &["redis", "nobody"],
    arguments: &["--appendonly", "yes"],
    start: r#"exec "$bin/redis-server" --bind 127.0.0.1 --port "$port" --dir "$home" $arguments"#,
    stop: r#"kill -TERM "$server""#,
    comes_back: false,
    // While it reads its file it answers with an error.
    ready: Ready::Greeting {
        say: b"PING\r\n",
        hear: b"+PONG",
    },
    image: Image {
        name: "redis:7.0",
        environment: &[],
    },
    package: Package {
        name: "redis-server",
        config: "",
        config_text: "",
        units: &["redis-server.service"],
    },
};

/// The same to be killed: it replies when an entry is in its file.
pub(crate) const REDIS_CHAOS: Service = Service {
    name: "chaos_redis_server",
    variable: "CHAOS_REDIS_URL",
    arguments: &["--appendonly", "yes", "--appendfsync", "always"],
    comes_back: true,
    ..REDIS
};
