//! RabbitMQ: a node of its own that neither clusters nor leaves anything behind; also one to kill.
//!
//! Erlang's nodes find each other through `epmd`, a daemon that whoever comes first starts and nobody
//! ends. A node that is told the port of its distribution needs none, so none is started.

use super::{Image, Package, Ready, Service};

/// RabbitMQ 3.10 or whatever newer one is installed, without plugins. Every path is named, also those
/// of files that are not there, since it would otherwise read the machine's own.
///
/// `RUNNING_UNDER_SYSTEMD` makes its script become the Erlang machine instead of waiting for it, so
/// that the leash holds the machine itself. The name is given twice, since RabbitMQ would otherwise
/// start `epmd` to see whether the name is taken. `$home/rabbitmqctl` asks this node, which no `epmd` could tell it of.
pub(crate) const RABBITMQ: Service = Service {
    name: "rabbitmq",
    variable: "TEST_RABBITMQ_URL",
    url: "amqp://guest:guest@127.0.0.1:{port}/%2f",
    default_port: 5672,
    programs: &["rabbitmq-server"],
    place: "/usr/lib/rabbitmq/bin",
    users: &["rabbitmq", "nobody"],
    arguments: &[],
    start: r#"
        printf 'listeners.tcp.1 = 127.0.0.1:%s\n' "$port" >"$home/rabbitmq.conf" &&
        printf '[].\n' >"$home/enabled_plugins" || exit
        export HOME="$home" RUNNING_UNDER_SYSTEMD=1
        export RABBITMQ_NODENAME="steadfast-$port@localhost"
        export RABBITMQ_CONF_ENV_FILE=/dev/null
        export RABBITMQ_CONFIG_FILE="$home/rabbitmq.conf"
        export RABBITMQ_CONFIG_FILES="$home/conf.d" RABBITMQ_ADVANCED_CONFIG_FILE="$home/advanced.config"
        export RABBITMQ_ENABLED_PLUGINS_FILE="$home/enabled_plugins"
        export RABBITMQ_MNESIA_BASE="$home/mnesia"
        export RABBITMQ_LOG_BASE="$home/log" RABBITMQ_LOGS=-
        printf '%s\n' '#!/bin/sh' "export HOME='$home' RABBITMQ_CONF_ENV_FILE=/dev/null" \
            "export RABBITMQ_CTL_ERL_ARGS='-start_epmd false -erl_epmd_port $spare_port -dist_listen false'" \
            "exec '$bin/rabbitmqctl' --quiet --node '$RABBITMQ_NODENAME' \"\$@\"" >"$home/rabbitmqctl" &&
            chmod u+x "$home/rabbitmqctl" || exit
        exec "$bin/rabbitmq-server" -sname "$RABBITMQ_NODENAME" \
            -start_epmd false -erl_epmd_port "$spare_port" \
            -kernel inet_dist_use_interface '{127,0,0,1}' $arguments
    "#,
    // It survives that, its helpers end with it, and asking takes seconds.
    stop: r#"kill -KILL "$server""#,
    comes_back: false,
    // A client names its protocol, and the server opens with a method on channel 0.
    ready: Ready::Greeting {
        say: b"AMQP\x00\x00\x09\x01",
        hear: b"\x01\x00\x00",
    },
    image: Image {
        name: "rabbitmq:3.10",
        environment: &[],
    },
    package: Package {
        name: "rabbitmq-server",
        config: "",
        config_text: "",
        units: &["rabbitmq-server.service", "epmd.service", "epmd.socket"],
    },
};

/// The same to be killed. It takes small messages only, since the largest event would not be too large for the default.
pub(crate) const RABBITMQ_CHAOS: Service = Service {
    name: "chaos_rabbitmq_server",
    variable: "CHAOS_RABBITMQ_URL",
    arguments: &["-rabbit", "max_message_size", "65536"],
    comes_back: true,
    ..RABBITMQ
};
