//! `webhooks test` against a server on this machine.

// The one that the library tries its webhooks on.
#[allow(dead_code, reason = "the library's tests need more of it")]
#[path = "../../../steadfast/tests/sinks/webhook/server.rs"]
mod server;

use axum::http::StatusCode;
use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::private::free_port;
use crate::process::{Call, Said};
use server::{Received, SECRET, Server};

/// Another secret, of the same other side.
const OLD: &str = "whsec_b2xkIHNlY3JldCBvZiB0aGUgb3RoZXIgc2lkZQ==";

fn call(url: &str, more: &str) -> Call {
    Call::new(&format!("webhooks test {url} {more}")).env("STEADFAST_WEBHOOK_SECRET", SECRET)
}

/// Tries a server that answers so, over plain HTTP.
async fn answered<A: Future<Output = Response> + Send + 'static>(
    more: &str,
    answer: impl Fn(usize) -> A + Send + Sync + 'static,
) -> Said {
    let server = Server::start(answer);
    let url = format!("http://{}/hooks/hunter2", server.address());
    let said = call(&url, &format!("--allow-private --allow-plaintext {more}"))
        .run()
        .await;
    for text in [&said.out, &said.err] {
        assert!(!text.contains(SECRET) && !text.contains("hunter2"), "{text}");
    }
    said
}

/// Whether a request is signed by this secret, worked out from the specification alone.
fn is_signed_by(received: &Received, secret: &str) -> bool {
    let secret = BASE64_STANDARD.decode(secret.trim_start_matches("whsec_")).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret).unwrap();
    let (id, timestamp) = (received.header("webhook-id"), received.header("webhook-timestamp"));
    mac.update(&[id.as_bytes(), b".", timestamp.as_bytes(), b".", &received.body].concat());
    let expected = format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()));
    received
        .header("webhook-signature")
        .split(' ')
        .any(|one| one == expected)
}

#[tokio::test]
async fn an_endpoint_gets_a_signed_event_by_tls_and_the_way_there_is_told() {
    let server = Server::start_tls(|_| async { (StatusCode::ACCEPTED, "thank\nyou").into_response() });
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("authority.pem");
    std::fs::write(&authority, server.certificate()).unwrap();
    let (url, address) = (format!("https://{}/hooks", server.address()), server.address());
    let more = format!("--allow-private --trust {}", authority.display());
    let told = call(&url, &more).run().await.ok();
    let received = server.received();
    assert_eq!(received.len(), 1, "one event");
    assert_eq!(received[0].header("ce-type"), "dev.steadfast.webhook.test");
    assert!(is_signed_by(&received[0], SECRET));
    let id = received[0].header("webhook-id");
    for line in [
        format!("endpoint   https://{address}\n"),
        "resolved   127.0.0.1\n".to_owned(),
        format!("connected  {address}, TLS 1.3\n"),
        format!("event      dev.steadfast.webhook.test {id}, signed\n"),
        "status     202, after ".to_owned(),
        "answer     thank you\n".to_owned(),
        "a message  is delivered\n".to_owned(),
    ] {
        assert!(told.contains(&line), "{line:?} is not in {told}");
    }

    let untrusted = call(&url, "--allow-private").run().await;
    assert_eq!(untrusted.exit, 5, "{}{}", untrusted.out, untrusted.err);
    assert!(untrusted.out.contains(", but TLS failed\n"), "{}", untrusted.out);
    assert!(
        untrusted.out.contains("why        invalid peer certificate"),
        "{}",
        untrusted.out
    );
    assert!(
        untrusted.out.contains("fix        look at the certificate"),
        "{}",
        untrusted.out
    );
    assert_eq!(server.received().len(), 1, "nothing was sent to it");
}

#[tokio::test]
async fn the_secret_comes_from_the_environment_a_file_or_standard_input_and_may_be_several() {
    let server = Server::start(|_| async { StatusCode::NO_CONTENT.into_response() });
    let url = format!("http://{}/", server.address());
    let line = |more: &str| Call::new(&format!("webhooks test {url} --allow-private --allow-plaintext {more}"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secret");
    std::fs::write(&file, format!("{SECRET}\n{OLD}\n")).unwrap();
    let of_file = line(&format!("--secret-file {}", file.display()));
    let told = of_file.env("STEADFAST_WEBHOOK_SECRET", "ignored").run().await.ok();
    assert!(told.contains("signed by 2 secrets"), "{told}");
    line("--secret-file -").input(OLD).run().await.ok();
    let told = line("--unsigned").env("STEADFAST_WEBHOOK_SECRET", OLD).run().await.ok();
    assert!(
        told.contains(", unsigned\n") && told.contains("answer     (empty)\n"),
        "{told}"
    );
    let received = server.received();
    assert!(is_signed_by(&received[0], SECRET) && is_signed_by(&received[0], OLD));
    assert!(is_signed_by(&received[1], OLD) && !is_signed_by(&received[1], SECRET));
    assert!(!received[2].headers.contains_key("webhook-signature"));

    let said = line("").run().await;
    said.refused(
        2,
        "there is no secret to sign with",
        "--secret-file, or send it with --unsigned",
    );
    let said = line("").env("STEADFAST_WEBHOOK_SECRET", "hunter2").run().await;
    said.refused(2, "is not `whsec_` and base64", "write it so");
    assert!(!said.err.contains("hunter2"), "{}", said.err);
    let said = line("--secret-file /no/such/file").run().await;
    said.refused(2, "/no/such/file cannot be read", "for standard input");
    assert_eq!(server.received().len(), 3, "nothing was sent without a secret");
}

#[tokio::test]
async fn what_the_endpoint_answers_is_what_becomes_of_a_message() {
    let gone = answered("", |_| async { (StatusCode::GONE, "we have moved").into_response() }).await;
    assert_eq!(gone.exit, 1, "{}{}", gone.out, gone.err);
    assert!(
        gone.out.contains("status     410, after ") && gone.out.contains("answer     we have moved\n"),
        "{}",
        gone.out
    );
    assert!(
        gone.out.contains("a message  is dead") && gone.out.contains("fix        the endpoint is gone"),
        "{}",
        gone.out
    );

    let elsewhere = |_| async { (StatusCode::FOUND, [(LOCATION, "https://elsewhere.example.org/")]).into_response() };
    let led = answered("", elsewhere).await;
    assert_eq!(led.exit, 1, "{}{}", led.out, led.err);
    assert!(
        led.out.contains("leads to   https://elsewhere.example.org/\n"),
        "{}",
        led.out
    );
    assert!(
        led.out.contains("a message  is dead") && led.out.contains("webhooks follow nobody"),
        "{}",
        led.out
    );

    let busy = |_| async { (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "120")]).into_response() };
    let busy = answered("", busy).await;
    assert_eq!(busy.exit, 5, "{}{}", busy.out, busy.err);
    assert!(busy.out.contains("asks for   a pause of 120 s\n"), "{}", busy.out);
    assert!(busy.out.contains("a message  is tried again"), "{}", busy.out);

    let slow = answered("--time-limit 300ms", |_| std::future::pending()).await;
    assert_eq!(slow.exit, 5, "{}{}", slow.out, slow.err);
    assert!(
        slow.out.contains("did not answer within 300ms; it may have arrived\n"),
        "{}",
        slow.out
    );
    assert!(
        slow.out.contains("a message  is tried again") && slow.out.contains("answer every request"),
        "{}",
        slow.out
    );
}

#[tokio::test]
async fn a_program_is_told_the_same_as_one_object() {
    let said = answered("--json", |_| async {
        (StatusCode::UNAUTHORIZED, "bad signature").into_response()
    })
    .await;
    assert_eq!(said.exit, 1, "{}{}", said.out, said.err);
    let told = &said.out;
    assert_eq!(told.lines().count(), 1, "{told}");
    for part in [
        "\"message\":\"dead\",\"code\":\"http_401\"",
        "\"type\":\"dev.steadfast.webhook.test\",\"signatures\":1,\"addresses\":[\"127.0.0.1\"]",
        "\"tls\":null,\"status\":401,\"location\":null,\"answer\":\"bad signature\"",
        "\"fix\":\"compare the secret on both sides",
    ] {
        assert!(told.contains(part), "{part} is not in {told}");
    }
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_makes_messages_wait() {
    let url = format!("http://127.0.0.1:{}/", free_port());
    let said = call(&url, "--allow-private --allow-plaintext").run().await;
    assert_eq!(said.exit, 5, "{}{}", said.out, said.err);
    assert!(said.out.contains("why        Connection refused"), "{}", said.out);
    assert!(
        said.out.contains("a message  waits") && said.out.contains("nobody answers at the address"),
        "{}",
        said.out
    );
}

#[tokio::test]
async fn where_webhooks_may_not_go_the_test_does_not_go_either() {
    let server = Server::start(|_| async { StatusCode::OK.into_response() });
    let here = server.address();
    for (url, more, cause, help) in [
        (
            format!("https://{here}/hunter2"),
            "",
            "this machine itself",
            "add --allow-private if it is yours",
        ),
        (
            format!("http://{here}/hunter2"),
            "--allow-private",
            "is not encrypted",
            "or add --allow-plaintext for a server",
        ),
        (
            "https://169.254.169.254/hunter2".to_owned(),
            "--allow-private",
            "hand out credentials",
            "no webhook may go there",
        ),
        (
            "https://ann:hunter2@example.org/".to_owned(),
            "",
            "has a user or a password in it",
            "remove them",
        ),
        (
            "hunter2".to_owned(),
            "",
            "a webhook's URL cannot be read",
            "write one as https://",
        ),
    ] {
        let said = call(&url, more).run().await;
        said.refused(2, cause, help);
        assert!(!said.err.contains("hunter2"), "{}", said.err);
    }
    assert_eq!(server.connections(), 0);
}
