//! doctor and NATS, the real server.

use async_nats::jetstream;
use async_nats::jetstream::stream::{Config, StorageType};
use uuid::Uuid;

use crate::private::Private;
use crate::process::Call;

fn server() -> String {
    let url = std::env::var("TEST_NATS_URL");
    url.expect("TEST_NATS_URL says where NATS is; `cargo xtask test` brings one")
}

async fn create(context: &jetstream::Context, storage: StorageType) -> String {
    let name = format!("t{}", Uuid::now_v7().simple());
    let config = Config {
        name: name.clone(),
        subjects: vec![format!("{name}.>")],
        storage,
        ..Config::default()
    };
    context.create_stream(config).await.unwrap();
    name
}

#[tokio::test]
async fn doctor_finds_a_stream_in_memory_and_one_on_a_single_server() {
    let context = jetstream::new(async_nats::connect(server()).await.unwrap());
    let (quick, kept) = (
        create(&context, StorageType::Memory).await,
        create(&context, StorageType::File).await,
    );
    let doctor = |more: &str| Call::new(&format!("doctor --broker {} {more}", server()));

    let said = doctor(&format!("--stream {quick}")).run().await;
    assert_eq!(said.exit, 5, "{}{}", said.out, said.err);
    assert!(said.out.contains("ok    jetstream   JetStream is on"), "{}", said.out);
    assert!(
        said.out
            .contains(&format!("fail  storage     streams are kept in memory: {quick}\n")),
        "{}",
        said.out
    );
    assert!(
        said.out.contains("fix: make them anew with `--storage file`"),
        "{}",
        said.out
    );

    let told = doctor(&format!("--stream {kept}")).run().await.ok();
    assert!(told.contains("ok    storage     streams are kept in files"), "{told}");
    assert!(
        told.contains("warn  replicas    streams are on one server alone"),
        "{told}"
    );
    assert!(told.contains("sync_interval: always"), "{told}");

    let all = doctor("").run().await;
    assert_eq!(all.exit, 5, "the one in memory is among them: {}", all.out);
    assert!(all.out.contains("fail  storage "), "{}", all.out);

    context.delete_stream(&quick).await.unwrap();
    let said = doctor(&format!("--stream {quick}")).run().await;
    assert_eq!(said.exit, 5, "{}{}", said.out, said.err);
    assert!(
        said.out.contains(&format!("there is no stream {quick}")),
        "{}",
        said.out
    );
    context.delete_stream(&kept).await.unwrap();
}

#[tokio::test]
async fn doctor_finds_a_server_without_jetstream_and_a_password_that_is_wrong() {
    let settings = |port, _: &std::path::Path| {
        format!("listen: 127.0.0.1:{port}\nauthorization {{ user: ann, password: \"open/sesame%\" }}\n")
    };
    let Some(nats) = Private::start("nats-server", settings).await else {
        return eprintln!("skipped: nats-server is not installed");
    };
    let doctor = async |password: &str| {
        let url = format!("nats://ann:{password}@127.0.0.1:{}", nats.port);
        let said = Call::new(&format!("doctor --broker {url}")).run().await;
        assert_eq!(said.exit, 5, "{}{}", said.out, said.err);
        assert!(!said.out.contains(password), "{}", said.out);
        said.out
    };
    let told = doctor("open%2Fsesame%25").await;
    assert!(
        told.contains("ok    reachable ") && told.contains("fail  jetstream   JetStream is off"),
        "{told}"
    );
    let told = doctor("swordfish").await;
    assert!(told.contains("fail  reachable  NATS is not to be had: "), "{told}");
    assert!(told.contains("fix: look at user and password in the URL"), "{told}");
}

#[tokio::test]
async fn doctor_says_that_a_server_which_should_speak_tls_does_not() {
    let url = server().replace("nats://", "tls://");
    let said = Call::new(&format!("doctor --broker {url}")).run().await;
    assert_eq!(said.exit, 5, "{}{}", said.out, said.err);
    assert!(
        said.out.contains("fail  reachable  NATS is not to be had: "),
        "{}",
        said.out
    );
    assert!(
        said.out.contains("--allow-plaintext if nobody can listen"),
        "{}",
        said.out
    );
}
