//! doctor and RabbitMQ, the real broker.

use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use uuid::Uuid;

use crate::process::{Call, Said};

fn broker() -> String {
    let url = std::env::var("TEST_RABBITMQ_URL");
    url.expect("TEST_RABBITMQ_URL says where RabbitMQ is; `cargo xtask test` brings one")
}

/// A channel, and names that only this test has.
struct Rabbit {
    channel: Channel,
    prefix: String,
    _connection: Connection,
}

impl Rabbit {
    async fn connect() -> Self {
        let broker = broker();
        let connecting = Connection::connect(&broker, ConnectionProperties::default());
        let connection = connecting.await.unwrap();
        Self {
            channel: connection.create_channel().await.unwrap(),
            prefix: format!("t{}", Uuid::now_v7().simple()),
            _connection: connection,
        }
    }

    async fn queue(&self, name: &str, options: QueueDeclareOptions, arguments: &[(&str, AMQPValue)]) -> String {
        let name = format!("{}.{name}", self.prefix);
        let mut table = FieldTable::default();
        for (argument, value) in arguments {
            table.insert((*argument).into(), value.clone());
        }
        let declared = self.channel.queue_declare(name.as_str().into(), options, table);
        declared.await.unwrap();
        name
    }

    async fn exchange(&self, name: &str, kind: ExchangeKind, durable: bool) -> String {
        let name = format!("{}.{name}", self.prefix);
        let options = ExchangeDeclareOptions {
            durable,
            ..ExchangeDeclareOptions::default()
        };
        let declared = self
            .channel
            .exchange_declare(name.as_str().into(), kind, options, FieldTable::default());
        declared.await.unwrap();
        name
    }

    async fn delete(&self, queues: &[&String], exchanges: &[&String]) {
        for name in queues {
            let deleted = self
                .channel
                .queue_delete(name.as_str().into(), QueueDeleteOptions::default());
            deleted.await.unwrap();
        }
        for name in exchanges {
            let deleted = self
                .channel
                .exchange_delete(name.as_str().into(), ExchangeDeleteOptions::default());
            deleted.await.unwrap();
        }
    }
}

async fn doctor(more: &str) -> Said {
    Call::new(&format!("doctor --broker {} {more}", broker())).run().await
}

/// The verdict on a queue or an exchange, and what was found.
fn line<'s>(said: &'s Said, name: &str) -> &'s str {
    let found = said.out.lines().find(|line| line.contains(name));
    found.unwrap_or_else(|| panic!("{name} is not in {}{}", said.out, said.err))
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

const DURABLE: QueueDeclareOptions = QueueDeclareOptions {
    passive: false,
    durable: true,
    exclusive: false,
    auto_delete: false,
    nowait: false,
};

#[tokio::test]
async fn doctor_knows_what_becomes_of_a_queue_and_changes_none() {
    let rabbit = Rabbit::connect().await;
    let transient = QueueDeclareOptions {
        durable: false,
        ..DURABLE
    };
    let exclusive = QueueDeclareOptions {
        exclusive: true,
        ..transient
    };
    let vanishing = QueueDeclareOptions {
        auto_delete: true,
        ..DURABLE
    };
    let arguments = [
        ("x-message-ttl", AMQPValue::LongInt(60_000)),
        ("x-dead-letter-exchange", text("it's gone")),
        ("x-single-active-consumer", AMQPValue::Boolean(true)),
    ];
    let kept = rabbit.queue("kept", DURABLE, &[("x-queue-type", text("quorum"))]).await;
    let classic = rabbit.queue("classic", DURABLE, &[]).await;
    let argued = rabbit.queue("argued", DURABLE, &arguments).await;
    let lost = rabbit.queue("lost", transient, &[]).await;
    let owned = rabbit.queue("owned", exclusive, &[]).await;
    let brief = rabbit.queue("brief", vanishing, &[]).await;
    let missing = format!("{}.missing", rabbit.prefix);

    let said = doctor(&format!("--queue {kept}")).await;
    assert_eq!(said.exit, 0, "{}{}", said.out, said.err);
    assert_eq!(
        line(&said, &kept),
        format!("ok    queue       the queue {kept} is durable and replicated (quorum)")
    );

    let names = [&classic, &argued, &lost, &owned, &brief, &missing];
    let line_of_names = names.map(|name| format!("--queue {name}")).join(" ");
    let said = doctor(&line_of_names).await;
    assert_eq!(said.exit, 5, "{}{}", said.out, said.err);
    for (name, begins, says) in [
        (&classic, "warn  queue ", "is durable and classic: one machine has it"),
        (&argued, "warn  queue ", "is durable and classic: one machine has it"),
        (&lost, "fail  queue ", "is not durable"),
        (&owned, "fail  queue ", "belongs to one connection alone"),
        (&brief, "warn  queue ", "is deleted with its last consumer"),
        (&missing, "fail  queue ", "there is no queue "),
    ] {
        let line = line(&said, name);
        assert!(line.starts_with(begins) && line.contains(says), "{line}");
    }
    // Looked at again, they are what they were.
    assert_eq!(doctor(&line_of_names).await.out, said.out);
    rabbit
        .delete(&[&kept, &classic, &argued, &lost, &owned, &brief], &[])
        .await;
}

#[tokio::test]
async fn doctor_knows_an_exchange_that_a_restart_would_lose() {
    let rabbit = Rabbit::connect().await;
    let kept = rabbit.exchange("kept", ExchangeKind::Topic, true).await;
    let other = rabbit.exchange("other", ExchangeKind::Fanout, true).await;
    let lost = rabbit.exchange("lost", ExchangeKind::Direct, false).await;
    for (name, exit, begins, says) in [
        (&kept, 0, "ok    exchange ", "is durable"),
        (&other, 0, "ok    exchange ", "is durable"),
        (&lost, 0, "warn  exchange ", "is not durable"),
        (
            &format!("{}.missing", rabbit.prefix),
            5,
            "fail  exchange ",
            "there is no exchange",
        ),
    ] {
        let said = doctor(&format!("--exchange {name}")).await;
        assert_eq!(said.exit, exit, "{}{}", said.out, said.err);
        let line = line(&said, name);
        assert!(line.starts_with(begins) && line.contains(says), "{line}");
    }
    rabbit.delete(&[], &[&kept, &other, &lost]).await;
}

#[tokio::test]
async fn a_wrong_password_fails_and_is_not_shown() {
    let (user, host) = broker()
        .rsplit_once('@')
        .map(|(user, host)| (user.to_owned(), host.to_owned()))
        .unwrap();
    let user = user.rsplit_once(':').unwrap().0;
    let said = Call::new(&format!("doctor --broker {user}:swordfish@{host}"))
        .run()
        .await;
    assert_eq!(said.exit, 5, "{}{}", said.out, said.err);
    assert!(
        said.out.contains("fail  reachable  RabbitMQ is not to be had: "),
        "{}",
        said.out
    );
    assert!(
        said.out.contains("fix: look at user, password and vhost"),
        "{}",
        said.out
    );
    assert!(!said.out.contains("swordfish"), "{}", said.out);
}
