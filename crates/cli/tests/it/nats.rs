//! doctor and NATS, the real server.

use async_nats::jetstream;
use async_nats::jetstream::stream::{Config, StorageType};
use uuid::Uuid;

use crate::private::{Private, free_port};
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

/// A server with JetStream, and where it answers questions about itself.
async fn monitored() -> Option<(Private, u16)> {
    let monitor = free_port();
    let settings = |port, directory: &std::path::Path| {
        let store = directory.display();
        format!("listen: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\njetstream {{ store_dir: \"{store}\" }}\n")
    };
    Some((Private::start("nats-server", settings).await?, monitor))
}

#[tokio::test]
async fn doctor_asks_the_monitoring_how_often_a_server_syncs() {
    let Some((nats, monitor)) = monitored().await else {
        return eprintln!("skipped: nats-server is not installed");
    };
    let client = async_nats::connect(format!("127.0.0.1:{}", nats.port)).await.unwrap();
    let version = client.server_info().version;
    create(&jetstream::new(client), StorageType::File).await;
    let doctor = async |more: String| {
        let url = format!("nats://127.0.0.1:{}", nats.port);
        Call::new(&format!("doctor --broker {url} {more}")).run().await.ok()
    };
    let told = doctor(format!("--nats-monitor http://127.0.0.1:{monitor}")).await;
    // The first that say it are those that can be told to.
    let said = match version.starts_with("2.9.") {
        true => format!("is not known: NATS {version} does not say it\n"),
        false => "the server syncs its files every 2m only\n".to_owned(),
    };
    let line = told
        .lines()
        .find(|line| line.starts_with("warn  sync_interval "))
        .unwrap();
    assert!(told.contains(&said), "{line}");
    assert!(told.contains("warn  replicas "), "{told}");
    let told = doctor(String::new()).await;
    assert!(!told.contains("  sync_interval  "), "nobody was asked: {told}");

    // Another server's monitoring, and none at all.
    let Some((_other, elsewhere)) = monitored().await else {
        return;
    };
    let told = doctor(format!("--nats-monitor http://127.0.0.1:{elsewhere}")).await;
    assert!(told.contains("that monitoring is of another server"), "{told}");
    let told = doctor(format!("--nats-monitor http://127.0.0.1:{}", free_port())).await;
    assert!(told.contains("its monitoring does not answer"), "{told}");
    assert!(told.contains("look at the URL of --nats-monitor"), "{told}");
}

#[tokio::test]
async fn a_server_that_syncs_each_message_is_safe_alone() {
    let client = async_nats::connect(server()).await.unwrap();
    let id = client.server_info().server_id;
    let context = jetstream::new(client);
    let kept = create(&context, StorageType::File).await;
    // As a NATS 2.15 with `sync_interval: always` answers.
    let answer = format!(
        r#"{{"server_id":"{id}","jetstream":{{"config":{{"sync_interval":120000000000,"sync_always":true,"strict":true}}}}}}"#
    );
    let monitoring = axum::Router::new().route("/nats/varz", axum::routing::get(async || answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let monitor = format!("http://{}/nats/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, monitoring).await });

    let line = format!("doctor --broker {} --stream {kept} --nats-monitor {monitor}", server());
    let told = Call::new(&line).run().await.ok();
    assert!(
        told.contains("ok    sync_interval  the server syncs each message before it confirms it\n"),
        "{told}"
    );
    assert!(
        told.contains(&format!("one server alone, which syncs each message: {kept}\n")),
        "{told}"
    );
    context.delete_stream(&kept).await.unwrap();
}
