//! The part of the command line that is about brokers and endpoints, as clap reads it and `--help` shows it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

#[derive(Args)]
#[command(after_help = "\
Brokers are looked at as a sink of this URL would use them. Nothing is changed, and no message is sent.

NATS: whether JetStream is on, and whether streams are kept in files and on several servers: all streams of the account, or \
--stream. How often a server syncs its files (sync_interval) it tells no client, but its monitoring, from 2.10 on: --nats-monitor.

RabbitMQ: whether an --exchange and each --queue are durable and replicated. AMQP lists no queues, so name them. The user needs \
the right to configure what is looked at; RabbitMQ (3.8 or later) logs each question as a declaration that it has refused.

Redis: appendonly, appendfsync and maxmemory-policy. What the user may not see, or a managed service hides, is told as not known.")]
pub(crate) struct DoctorOptions {
    /// A broker to look at: nats://, tls://, amqp[s]:// or redis[s]://; may be repeated [env: STEADFAST_BROKERS]
    #[arg(long = "broker", value_name = "URL")]
    pub(crate) brokers: Vec<String>,
    /// Only this stream of NATS
    #[arg(long, value_name = "NAME")]
    pub(crate) stream: Option<String>,
    /// Where the server of NATS answers questions about itself (http_port in its settings), as in http://127.0.0.1:8222: it is asked
    /// how often it syncs its files
    #[arg(long, value_name = "URL")]
    pub(crate) nats_monitor: Option<String>,
    /// This exchange of RabbitMQ
    #[arg(long, value_name = "NAME", value_parser = amqp_name)]
    pub(crate) exchange: Option<String>,
    /// This queue of RabbitMQ; may be repeated
    #[arg(long = "queue", value_name = "NAME", value_parser = amqp_name)]
    pub(crate) queues: Vec<String>,
    /// Speak to brokers on other machines as plain text, passwords too
    #[arg(long)]
    pub(crate) allow_plaintext: bool,
}

fn amqp_name(name: &str) -> Result<String, &'static str> {
    match name.len() {
        1..=255 => Ok(name.to_owned()),
        _ => Err("a name has 1 to 255 bytes"),
    }
}

#[derive(Subcommand)]
pub(crate) enum WebhooksVerb {
    /// Send a signed test event to an endpoint, and say what became of it
    ///
    /// The event has the type dev.steadfast.webhook.test and is sent exactly as the library sends yours: the same headers and
    /// signatures, the same rules about where webhooks may go, the same limits. No database is needed.
    ///
    /// The secret is never an argument, where others could read it. It is in STEADFAST_WEBHOOK_SECRET, in a file, or on standard
    /// input: `whsec_` and base64. While a secret is being replaced there may be several, with spaces or line ends between them.
    Test(TestOptions),
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  STEADFAST_WEBHOOK_SECRET=whsec_… steadfast webhooks test https://example.org/hooks
  pass show partner | steadfast webhooks test https://example.org/hooks --secret-file -
  steadfast webhooks test http://127.0.0.1:8080/hooks --unsigned --allow-private --allow-plaintext

Exit codes: 0 delivered, 1 a message would be dead, 5 it would wait or be tried again, 2 usage.")]
pub(crate) struct TestOptions {
    /// The endpoint
    pub(crate) url: String,
    /// Where the secret is; `-` is standard input [default: the environment's STEADFAST_WEBHOOK_SECRET]
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Send it without a signature
    #[arg(long, conflicts_with = "secret_file")]
    pub(crate) unsigned: bool,
    /// Let it go to this machine and to private addresses
    #[arg(long)]
    pub(crate) allow_private: bool,
    /// Let it speak plain HTTP to this machine; needs --allow-private too
    #[arg(long, requires = "allow_private")]
    pub(crate) allow_plaintext: bool,
    /// How long the request may take
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = steadfast::parse_duration)]
    pub(crate) time_limit: Duration,
    /// Trust the certificates of this PEM file too, for an authority of your own; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) trust: Vec<PathBuf>,
}
