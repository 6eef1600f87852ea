//! Stored answers that the database cannot read.

use axum::body::Body;
use axum::extract::Request;
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use steadfast::{CmdTx, Code, Encryption, Error, Failure, FailureClass, Reply, Steadfast, StoreFailures, Tx};
use tower::ServiceExt;

use super::Db;
use crate::harness::{Harness, PoolSize, TestDatabase, fresh};

const CANARY: &str = "canary-in-the-answer";
const OLD: [u8; 32] = [1; 32];
const NEW: [u8; 32] = [2; 32];

fn encryption(key: [u8; 32]) -> Encryption {
    Encryption::new(key).unwrap()
}

/// Another process on the same database, with these keys.
async fn process(harness: &Harness<Db>, encryption: Option<Encryption>) -> Steadfast<Db> {
    let builder = Steadfast::builder(Db::another_pool(harness, PoolSize::default()));
    match encryption {
        Some(encryption) => builder.encryption(encryption),
        None => builder,
    }
    .build()
    .await
    .unwrap()
}

async fn effect(conn: &mut <Db as sqlx::Database>::Connection, tag: &str) -> Result<(), Failure> {
    let insert = sqlx::query("INSERT INTO effects (tag) VALUES ($1)").bind(tag);
    insert.execute(conn).await?;
    Ok(())
}

/// The door for plain Rust: answers with the canary.
async fn call(harness: &Harness<Db>, sf: &Steadfast<Db>, key: &str) -> Result<Reply<String>, Error> {
    sf.command("effects.make", key)
        .owner(&harness.owner)
        .input(&"tea")
        .run(async |tx: &mut Tx<Db>| {
            effect(tx.db(), key).await?;
            Ok(format!("{CANARY} \0 {key}"))
        })
        .await
}

/// The same for a failure that is kept.
async fn fail(harness: &Harness<Db>, sf: &Steadfast<Db>, key: &str) -> Error {
    sf.command("effects.refuse", key)
        .owner(&harness.owner)
        .store_failures(StoreFailures::Definitive)
        .run(async |tx: &mut Tx<Db>| -> Result<(), Failure> {
            effect(tx.db(), key).await?;
            Err(Failure::definitive(FailureClass::BusinessRule, "refused", CANARY))
        })
        .await
        .unwrap_err()
}

/// The caller's own transaction.
async fn call_as_guest(harness: &Harness<Db>, sf: &Steadfast<Db>, key: &str) -> Result<Reply<String>, Error> {
    let mut tx = sf.pool().begin().await.unwrap();
    let reply = sf
        .on(&mut tx)
        .command("effects.guest", key)
        .owner(&harness.owner)
        .run_once(async |db| {
            effect(db, key).await?;
            Ok(format!("{CANARY} as a guest"))
        })
        .await?;
    tx.commit().await.unwrap();
    Ok(reply)
}

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// The door for HTTP: answers with bytes that are no text, and the canary in two headers.
async fn send(harness: &Harness<Db>, sf: &Steadfast<Db>, key: &str) -> Answer {
    let handler = async |mut tx: CmdTx<Db>, headers: HeaderMap| {
        let key = headers["idempotency-key"].to_str().unwrap();
        effect(tx.db(), key).await?;
        let headers = [("location", format!("/{CANARY}")), ("etag", format!("\"{CANARY}\""))];
        let body = [CANARY.as_bytes(), b"\0\xff"].concat();
        Ok::<_, Failure>((StatusCode::CREATED, headers, body))
    };
    let app = Router::new()
        .route("/effects", post(handler).layer(sf.idempotent()))
        .layer(Extension(harness.owner.clone()));
    let request = Request::post("/effects")
        .header("idempotency-key", key)
        .body(Body::empty())
        .unwrap();
    let (parts, body) = app.oneshot(request).await.unwrap().into_parts();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

/// Asks for four commands that have ended, by every door, and to look one up. What each of them says, by its code.
async fn ask_everywhere(harness: &Harness<Db>, sf: &Steadfast<Db>) -> [Code; 5] {
    let answer = send(harness, sf, "http").await;
    let problem: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    let code = *Code::ALL.iter().find(|code| problem["code"] == code.as_str()).unwrap();
    let is_told_to_come_back = answer.headers.contains_key("retry-after");
    let may_pass = answer.status == StatusCode::SERVICE_UNAVAILABLE;
    assert_eq!(is_told_to_come_back, may_pass, "{answer:?}");
    assert!(!String::from_utf8_lossy(&answer.body).contains("canary"), "{answer:?}");
    let looked_up = sf.key("effects.make", "rust").owner(&harness.owner).outcome().await;
    [
        code,
        call(harness, sf, "rust").await.unwrap_err().code(),
        fail(harness, sf, "failed").await.code(),
        call_as_guest(harness, sf, "guest").await.unwrap_err().code(),
        looked_up.unwrap_err().code(),
    ]
}

/// Lets four commands end, one by each door.
async fn act_everywhere(harness: &Harness<Db>, sf: &Steadfast<Db>) {
    assert_eq!(send(harness, sf, "http").await.status, StatusCode::CREATED);
    assert!(!call(harness, sf, "rust").await.unwrap().replayed);
    assert_eq!(fail(harness, sf, "failed").await.code(), Code::HandlerFailed);
    assert!(!call_as_guest(harness, sf, "guest").await.unwrap().replayed);
    assert_eq!((harness.effects().await, harness.keys().await), (3, 4));
}

/// Fails unless every door replays what the first execution answered, byte for byte.
async fn assert_replayed_everywhere(harness: &Harness<Db>, sf: &Steadfast<Db>) {
    let answer = send(harness, sf, "http").await;
    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(answer.headers["idempotent-replayed"], "true");
    assert_eq!(answer.headers["location"], format!("/{CANARY}"));
    assert_eq!(answer.headers["etag"], format!("\"{CANARY}\""));
    assert_eq!(answer.headers["content-type"], "application/octet-stream");
    assert_eq!(answer.body, [CANARY.as_bytes(), b"\0\xff"].concat());

    let reply = call(harness, sf, "rust").await.unwrap();
    assert_eq!((reply.value, reply.replayed), (format!("{CANARY} \0 rust"), true));
    let failed = fail(harness, sf, "failed").await;
    assert!(failed.is_replayed());
    assert_eq!(failed.failure().unwrap().message(), CANARY);
    let guest = call_as_guest(harness, sf, "guest").await.unwrap();
    assert_eq!((guest.value, guest.replayed), (format!("{CANARY} as a guest"), true));

    let looked_up = sf.key("effects.make", "rust").owner(&harness.owner).outcome().await;
    let stored = serde_json::to_vec(&format!("{CANARY} \0 rust")).unwrap();
    assert_eq!(looked_up.unwrap().unwrap().body, stored);
    assert_eq!((harness.effects().await, harness.keys().await), (3, 4));
}

#[tokio::test]
async fn an_encrypted_answer_is_nowhere_in_the_database() {
    let harness = fresh::<Db>().await;
    act_everywhere(&harness, &process(&harness, Some(encryption(NEW))).await).await;
    assert!(!Db::holds(&harness, CANARY).await);
    assert!(
        Db::holds(&harness, "effects.make").await,
        "what is not encrypted is found"
    );

    call(&harness, &process(&harness, None).await, "plain").await.unwrap();
    assert!(Db::holds(&harness, CANARY).await, "a plain answer is found");
}

#[tokio::test]
async fn every_door_replays_an_encrypted_answer_byte_for_byte() {
    let harness = fresh::<Db>().await;
    let sf = process(&harness, Some(encryption(NEW))).await;
    act_everywhere(&harness, &sf).await;
    assert_replayed_everywhere(&harness, &sf).await;
    assert_replayed_everywhere(&harness, &process(&harness, Some(encryption(NEW))).await).await;
}

#[tokio::test]
async fn a_rotated_key_reads_what_the_old_one_wrote_and_writes_with_the_new_one() {
    let harness = fresh::<Db>().await;
    act_everywhere(&harness, &process(&harness, Some(encryption(OLD))).await).await;
    let rotated = process(&harness, Some(encryption(NEW).rotated_from(OLD).unwrap())).await;
    assert_replayed_everywhere(&harness, &rotated).await;

    call(&harness, &rotated, "after").await.unwrap();
    let new = process(&harness, Some(encryption(NEW))).await;
    assert!(call(&harness, &new, "after").await.unwrap().replayed);
    let old = process(&harness, Some(encryption(OLD))).await;
    assert_eq!(
        call(&harness, &old, "after").await.unwrap_err().code(),
        Code::AnswerLocked
    );
}

#[tokio::test]
async fn plain_answers_are_replayed_after_encryption_was_switched_on() {
    let harness = fresh::<Db>().await;
    act_everywhere(&harness, &harness.sf).await;
    assert_replayed_everywhere(&harness, &process(&harness, Some(encryption(NEW))).await).await;
}

#[tokio::test]
async fn without_its_key_an_encrypted_answer_is_a_503_and_nothing_runs() {
    let harness = fresh::<Db>().await;
    let sf = process(&harness, Some(encryption(NEW))).await;
    act_everywhere(&harness, &sf).await;
    for other in [None, Some(encryption(OLD))] {
        let other = process(&harness, other).await;
        assert_eq!(ask_everywhere(&harness, &other).await, [Code::AnswerLocked; 5]);
        let status = send(&harness, &other, "http").await.status;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_replayed_everywhere(&harness, &sf).await;
}

#[tokio::test]
async fn a_tampered_answer_is_an_error_and_nothing_runs() {
    let keys = Db::table("keys");
    let last_bit = if Db::IS_SQLITE {
        // SQLite changes no byte of a blob: the last one becomes one that it is not.
        "CAST(substr(body, 1, length(body) - 1) || iif(substr(body, -1) = x'00', x'01', x'00') AS BLOB)"
    } else {
        "set_byte(body, length(body) - 1, get_byte(body, length(body) - 1) # 1)"
    };
    for change in [
        format!("body = {last_bit}"),
        "body = substr(body, 1, length(body) - 1)".to_owned(),
        "body = substr(body, 1, 10)".to_owned(),
        "status = status + 1".to_owned(),
        "state = CASE state WHEN 'failed' THEN 'completed' ELSE 'failed' END".to_owned(),
        // The answer of another key.
        format!("body = (SELECT k.body FROM {keys} AS k WHERE k.value = 'other')"),
    ] {
        let harness = fresh::<Db>().await;
        let sf = process(&harness, Some(encryption(NEW))).await;
        act_everywhere(&harness, &sf).await;
        call(&harness, &sf, "other").await.unwrap();
        harness.run(&format!("UPDATE {keys} SET {change}")).await;
        assert_eq!(
            ask_everywhere(&harness, &sf).await,
            [Code::AnswerTampered; 5],
            "{change}"
        );
        let status = send(&harness, &sf, "http").await.status;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!((harness.effects().await, harness.keys().await), (4, 5), "{change}");
    }
}

/// The request of one row under the key of another: the fingerprint fits, and the answer was made for neither.
#[tokio::test]
async fn an_encrypted_answer_cannot_be_given_to_another_request() {
    let harness = fresh::<Db>().await;
    let sf = process(&harness, Some(encryption(NEW))).await;
    let ask = async |input: &str| {
        let command = sf.command("effects.make", input).owner(&harness.owner).input(&input);
        command.run(async |_| Ok(format!("{CANARY} for {input}"))).await
    };
    ask("tea").await.unwrap();
    ask("jam").await.unwrap();
    let keys = Db::table("keys");
    harness
        .run(&format!(
            "UPDATE {keys} SET (fingerprint, body) = (SELECT fingerprint, body FROM {keys} AS k WHERE k.value = 'jam') WHERE value = 'tea'"
        ))
        .await;
    let command = sf.command("effects.make", "tea").owner(&harness.owner).input(&"jam");
    let moved = command.run(async |_| Ok(String::new())).await.unwrap_err();
    assert_eq!(moved.code(), Code::AnswerTampered);
    assert!(ask("jam").await.unwrap().replayed);
}
