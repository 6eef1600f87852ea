//! What doctor says of brokers without asking any.

use crate::private::free_port;
use crate::process::Call;

#[tokio::test]
async fn a_broker_elsewhere_is_not_spoken_to_as_plain_text_unless_somebody_says_so() {
    for url in [
        "amqp://ann:secret@rabbit.example.org",
        "redis://ann:secret@redis.example.org",
    ] {
        let said = Call::new(&format!("doctor --broker {url}")).run().await;
        assert_eq!(said.exit, 5, "{}{}", said.out, said.err);
        let told = &said.out;
        assert!(told.contains("ann:****@"), "{told}");
        assert!(told.contains("fail  encryption  SF303: "), "{told}");
        assert!(told.contains("or --allow-plaintext if nobody can listen"), "{told}");
        assert!(!told.contains("secret"), "{told}");
    }
}

#[tokio::test]
async fn a_broker_that_is_not_there_fails_without_a_database_and_without_its_password() {
    for (scheme, name) in [("nats", "NATS"), ("amqp", "RabbitMQ"), ("redis", "Redis")] {
        let url = format!("{scheme}://ann:secret@127.0.0.1:{}", free_port());
        let said = Call::new(&format!("doctor --broker {url}")).run().await;
        assert_eq!(said.exit, 5, "{}{}", said.out, said.err);
        let line = format!("fail  reachable  {name} is not to be had: ");
        assert!(
            said.out.contains(&line) && said.out.contains("host and port in the URL"),
            "{}",
            said.out
        );
        assert!(!said.out.contains("secret"), "{}", said.out);
        assert_eq!(
            said.out.lines().count(),
            3,
            "the URL, the check and its fix: {}",
            said.out
        );
    }
}

#[tokio::test]
async fn brokers_come_from_the_flag_then_the_environment_then_the_file_and_show_no_password() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("steadfast.toml");
    let set = |text: &str| std::fs::write(&file, text).unwrap();
    set("brokers = [\"nats://secret@one.example.org\", \"redis://:secret@two.example.org\"]\n");
    let call = |line: &str| Call::new(line).directory(directory.path());
    let shown = call("config --json").run().await.ok();
    assert!(
        shown.contains("\"value\":\"nats://****@one.example.org redis://:****@two.example.org\",\"from\":\"file "),
        "{shown}"
    );
    let nobody = format!("nats://127.0.0.1:{}", free_port());
    let named = |told: &str| told.lines().find(|line| line.contains("://")).unwrap().to_owned();
    let said = call("doctor").env("STEADFAST_BROKERS", &nobody).run().await;
    assert_eq!(named(&said.out), nobody);
    let other = format!("nats://127.0.0.1:{}", free_port());
    let line = format!("doctor --json --broker {other}");
    let said = call(&line).env("STEADFAST_BROKERS", &nobody).run().await;
    assert!(
        said.out.ends_with(&format!(",\"broker\":\"{other}\"}}\n")),
        "{}",
        said.out
    );
    assert_eq!(said.out.lines().count(), 1, "{}", said.out);
    set("brokers = \"nats://one.example.org\"\n");
    let said = call("config").run().await;
    said.refused(
        2,
        "the setting \"brokers\" is not a list of texts in quotes",
        "write brokers = [\"…\"]",
    );
}

#[tokio::test]
async fn what_is_about_no_broker_is_refused_with_what_to_write() {
    let refused = async |line: &str, cause: &str, help: &str| {
        let said = Call::new(&format!("doctor {line}")).run().await;
        said.refused(2, cause, help);
        assert!(!said.err.contains("secret"), "{}", said.err);
    };
    refused(
        "--broker kafka://ann:secret@k",
        "begins with \"kafka\"",
        "write nats://",
    )
    .await;
    refused("--broker secret", "has no scheme", "write nats://").await;
    refused("--broker nats://", "the address of NATS is not usable", "").await;
    refused(
        "--broker redis://127.0.0.1 --queue orders",
        "--queue is about RabbitMQ",
        "--broker amqps://",
    )
    .await;
    refused(
        "--broker redis://127.0.0.1 --stream ORDERS",
        "--stream is about NATS",
        "--broker nats://",
    )
    .await;
    refused(
        "--broker redis://127.0.0.1 --nats-monitor http://127.0.0.1:8222",
        "--nats-monitor is about NATS",
        "--broker nats://",
    )
    .await;
    refused(
        "--broker nats://127.0.0.1 --nats-monitor 127.0.0.1:8222",
        "the address of NATS's monitoring is not usable",
        "",
    )
    .await;
    refused("", "no database is named", "--database-url").await;
}
