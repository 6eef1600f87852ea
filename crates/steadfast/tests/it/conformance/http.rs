//! Door one: what an HTTP client sees.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::body::Body;
use axum::extract::{Path, Request};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use http::header::{CONTENT_TYPE, SET_COOKIE};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use steadfast::{CmdTx, Code, Failure, FailureClass, Idempotent, KeyRequirement, Owner, Scope, StoreFailures};
use tower::ServiceExt;

use super::Db;
use crate::harness::{Harness, TestDatabase, fresh};

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    fn is_replayed(&self) -> bool {
        self.headers
            .get("idempotent-replayed")
            .is_some_and(|value| value == "true")
    }

    /// Fails unless it is a problem of this code, then gives its detail.
    #[track_caller]
    fn problem(&self, code: Code) -> String {
        assert_eq!(self.headers[CONTENT_TYPE], "application/problem+json", "{self:?}");
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(body["code"], code.as_str(), "{body}");
        assert_eq!(body["status"], self.status.as_u16());
        assert_eq!(body["type"], format!("/problems/{code}"));
        assert!(body["title"].is_string());
        body["detail"].as_str().unwrap().to_owned()
    }
}

async fn send(router: &Router, request: Request) -> Answer {
    let response = router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: body.collect().await.unwrap().to_bytes().to_vec(),
    }
}

fn request(key: &str, body: &str) -> Request {
    Request::post("/effects/7?dry=no")
        .header(CONTENT_TYPE, "application/json")
        .header("idempotency-key", key)
        .body(Body::from(body.to_owned()))
        .unwrap()
}

/// Leaves an effect tagged with the key, and answers 201 with a nonce.
async fn make(mut tx: CmdTx<Db>, headers: HeaderMap, Path(id): Path<u32>) -> Result<Response, Failure> {
    let nonce = uuid::Uuid::now_v7().to_string();
    effect(&mut tx, headers["idempotency-key"].to_str().unwrap()).await?;
    let headers = [
        ("location", format!("/effects/{id}")),
        ("etag", format!("\"{nonce}\"")),
        ("set-cookie", "session=canary".to_owned()),
        ("x-request-id", nonce.clone()),
    ];
    Ok((StatusCode::CREATED, headers, Json(nonce)).into_response())
}

async fn effect(tx: &mut CmdTx<Db>, tag: &str) -> Result<(), Failure> {
    sqlx::query("INSERT INTO effects (tag) VALUES ($1)")
        .bind(tag)
        .execute(tx.db())
        .await?;
    Ok(())
}

fn app_with(harness: &Harness<Db>, configure: impl FnOnce(Idempotent<Db>) -> Idempotent<Db>) -> Router {
    Router::new()
        .route("/effects/{id}", post(make).layer(configure(harness.sf.idempotent())))
        .layer(Extension(harness.owner.clone()))
}

fn app(harness: &Harness<Db>) -> Router {
    app_with(harness, |layer| layer)
}

/// A route whose handler writes an effect and then answers whatever the test wants.
fn app_answering<R: IntoResponse>(
    harness: &Harness<Db>,
    configure: impl FnOnce(Idempotent<Db>) -> Idempotent<Db>,
    answer: impl Fn() -> R + Clone + Send + Sync + 'static,
) -> Router {
    let handler = async move |mut tx: CmdTx<Db>| {
        effect(&mut tx, "k").await.unwrap();
        answer().into_response()
    };
    Router::new()
        .route("/effects/{id}", post(handler).layer(configure(harness.sf.idempotent())))
        .layer(Extension(harness.owner.clone()))
}

#[tokio::test]
async fn every_retry_gets_the_first_answer_byte_for_byte() {
    let harness = fresh::<Db>().await;
    let app = app(&harness);
    let first = send(&app, request("k", r#"{"a":1,"b":2}"#)).await;
    assert_eq!(first.status, StatusCode::CREATED);
    assert!(!first.is_replayed());
    assert_eq!(
        first.headers[SET_COOKIE], "session=canary",
        "the first response is the handler's own"
    );
    for spelling in [r#"{"a":1,"b":2}"#, r#"{ "b": 2.0, "a": 1 }"#] {
        let again = send(&app, request("k", spelling)).await;
        assert!(again.is_replayed());
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        for name in ["content-type", "location", "etag"] {
            assert_eq!(again.headers[name], first.headers[name]);
        }
        assert_eq!(again.headers["cache-control"], "no-store");
    }
    assert_eq!(harness.effects().await, 1);
    harness.assert_effects_match_keys().await;
}

#[tokio::test]
async fn only_allow_listed_headers_are_stored() {
    let harness = fresh::<Db>().await;
    let app = app(&harness);
    send(&app, request("k", "{}")).await;
    let again = send(&app, request("k", "{}")).await;
    assert!(!again.headers.contains_key(SET_COOKIE) && !again.headers.contains_key("x-request-id"));
    let like = if Db::IS_SQLITE {
        "CAST(headers AS TEXT) LIKE '%canary%'"
    } else {
        "encode(headers, 'escape') LIKE '%canary%'"
    };
    let leaked = format!("SELECT count(*) FROM {} WHERE {like}", Db::table("keys"));
    assert_eq!(Db::count(&harness.admin, &leaked).await, 0);
}

#[tokio::test]
async fn a_key_is_needed_once_and_well_formed() {
    let harness = fresh::<Db>().await;
    let app = app(&harness);
    let bare = || Request::post("/effects/7").header(CONTENT_TYPE, "application/json");
    let answer = send(&app, bare().body(Body::from("{}")).unwrap()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.problem(Code::KeyMissing).contains("POST /effects/{id}"));
    let long = "k".repeat(256);
    for bad in [
        &b""[..],
        b"\"\"",
        b"a b",
        b"\"a\";v=1",
        b"a,b",
        b"\xc3\xa9",
        b"\"open",
        long.as_bytes(),
    ] {
        let answer = send(
            &app,
            bare().header("idempotency-key", bad).body(Body::from("{}")).unwrap(),
        )
        .await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        answer.problem(Code::KeyInvalid);
    }
    let twice = bare().header("idempotency-key", "a").header("idempotency-key", "a");
    send(&app, twice.body(Body::from("{}")).unwrap())
        .await
        .problem(Code::KeyInvalid);
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));

    let quoted = bare()
        .header("idempotency-key", "\"k\"")
        .body(Body::from("{}"))
        .unwrap();
    let legacy = bare().header("x-idempotency-key", "k").body(Body::from("{}")).unwrap();
    let quoted = send(&app, quoted).await;
    assert_eq!(quoted.status, StatusCode::CREATED);
    let handler_reads_other_header = send(&app, legacy).await;
    assert!(
        handler_reads_other_header.is_replayed(),
        "bare, quoted and legacy are one key"
    );
}

#[tokio::test]
async fn an_optional_key_runs_in_a_transaction_without_protection() {
    let harness = fresh::<Db>().await;
    let app = app_answering(&harness, |layer| layer.key(KeyRequirement::Optional), || "done");
    let bare = || Request::post("/effects/7").body(Body::empty()).unwrap();
    for _ in 0..2 {
        let answer = send(&app, bare()).await;
        assert_eq!((answer.status, answer.is_replayed()), (StatusCode::OK, false));
    }
    assert_eq!((harness.effects().await, harness.keys().await), (2, 0));
    let failing = app_answering(
        &harness,
        |layer| layer.key(KeyRequirement::Optional),
        || StatusCode::IM_A_TEAPOT,
    );
    assert_eq!(send(&failing, bare()).await.status, StatusCode::IM_A_TEAPOT);
    assert_eq!(harness.effects().await, 2, "a refusal rolls back");
}

#[tokio::test]
async fn another_request_under_the_same_key_is_refused_and_tells_nothing() {
    let harness = fresh::<Db>().await;
    let app = app(&harness);
    let first = send(&app, request("k", r#"{"card":4242}"#)).await;
    let nonce = String::from_utf8(first.body).unwrap();
    let other = |uri: &str, media: &str, body: &str| {
        Request::post(uri.to_owned())
            .header(CONTENT_TYPE, media)
            .header("idempotency-key", "k")
            .body(Body::from(body.to_owned()))
            .unwrap()
    };
    for request in [
        other("/effects/7?dry=no", "application/json", r#"{"card":4243}"#),
        other("/effects/8?dry=no", "application/json", r#"{"card":4242}"#),
        other("/effects/7?dry=yes", "application/json", r#"{"card":4242}"#),
        other("/effects/7?dry=no", "text/plain", r#"{"card":4242}"#),
        other("/effects/7?dry=no", "application/vnd.shop.v2+json", r#"{"card":4242}"#),
    ] {
        let answer = send(&app, request).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
        let detail = answer.problem(Code::Mismatch);
        assert!(!detail.contains("4242") && !detail.contains(&nonce));
    }
    let charset = other(
        "/effects/7?dry=no",
        "application/json; charset=utf-8",
        r#"{"card":4242}"#,
    );
    assert!(
        send(&app, charset).await.is_replayed(),
        "JSON is JSON with and without its charset"
    );
    assert_eq!(harness.effects().await, 1);

    let agreed = app_with(&harness, |layer| layer.mismatch(StatusCode::CONFLICT));
    let answer = send(&agreed, request("k", "{}")).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    answer.problem(Code::Mismatch);
}

#[tokio::test]
async fn bodies_that_are_not_json_are_compared_as_they_are() {
    let harness = fresh::<Db>().await;
    let app = app(&harness);
    let form = |body: &str| {
        Request::post("/effects/7")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header("idempotency-key", "k")
            .body(Body::from(body.to_owned()))
            .unwrap()
    };
    assert_eq!(send(&app, form("a=1&b=2")).await.status, StatusCode::CREATED);
    assert!(send(&app, form("a=1&b=2")).await.is_replayed());
    send(&app, form("b=2&a=1")).await.problem(Code::Mismatch);
}

#[tokio::test]
async fn json_that_two_readers_could_read_differently_is_refused() {
    let harness = fresh::<Db>().await;
    let app = app(&harness);
    let deep = "[".repeat(100_000);
    for bad in [
        " ",
        "{",
        r#"{"a":1,"a":2}"#,
        "nonsense",
        "{} {}",
        &deep,
        "1e99999999999999999999",
    ] {
        let answer = send(&app, request("k", bad)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert!(answer.problem(Code::BodyRefused).contains("at byte"));
    }
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));
    for (key, fine) in [("n1", "9007199254740993"), ("n2", r#""\u0000""#), ("n3", "1e400")] {
        assert_eq!(
            send(&app, request(key, fine)).await.status,
            StatusCode::CREATED,
            "{fine}"
        );
    }
    send(&app, request("n1", "9007199254740992"))
        .await
        .problem(Code::Mismatch);
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_before_anything_starts() {
    let harness = fresh::<Db>().await;
    let app = app_with(&harness, |layer| layer.body_limit(10));
    let answer = send(&app, request("k", "\"0123456789\"")).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    answer.problem(Code::BodyTooLarge);
    assert_eq!(
        send(&app, request("k", "\"01234567\"")).await.status,
        StatusCode::CREATED
    );
}

#[tokio::test]
async fn a_failed_request_rolls_back_and_keeps_its_own_answer() {
    for status in [400, 404, 408, 409, 422, 423, 425, 429, 500, 502, 503] {
        let harness = fresh::<Db>().await;
        let status = StatusCode::from_u16(status).unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let counted = runs.clone();
        let app = app_answering(
            &harness,
            |layer| layer,
            move || {
                counted.fetch_add(1, Ordering::Relaxed);
                (status, "the handler's own words")
            },
        );
        for _ in 0..2 {
            let answer = send(&app, request("k", "{}")).await;
            assert_eq!((answer.status, answer.is_replayed()), (status, false));
            assert_eq!(answer.body, b"the handler's own words");
        }
        assert_eq!(runs.load(Ordering::Relaxed), 2);
        assert_eq!((harness.effects().await, harness.keys().await), (0, 0), "{status}");
    }
}

#[tokio::test]
async fn stored_failures_are_the_definitive_ones_and_a_5xx_never_is() {
    let harness = fresh::<Db>().await;
    for (status, is_stored) in [
        (400, true),
        (403, true),
        (404, true),
        (422, true),
        (418, true),
        (408, false),
        (409, false),
        (423, false),
        (425, false),
        (429, false),
        (500, false),
        (503, false),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let app = app_answering(
            &harness,
            |layer| layer.store_failures(StoreFailures::Definitive),
            move || (status, "no"),
        );
        let key = format!("k{}", status.as_u16());
        let (first, again) = (
            send(&app, request(&key, "{}")).await,
            send(&app, request(&key, "{}")).await,
        );
        assert_eq!((first.status, first.is_replayed()), (status, false));
        assert_eq!((again.status, again.is_replayed()), (status, is_stored));
        assert_eq!(again.body, b"no");
    }
    assert_eq!(
        (harness.effects().await, harness.keys().await),
        (0, 5),
        "the key and nothing else"
    );
}

#[tokio::test]
async fn classes_of_stored_failures_follow_the_status() {
    let harness = fresh::<Db>().await;
    let forbidden_only =
        |layer: Idempotent<Db>| layer.store_failures(StoreFailures::Classes(vec![FailureClass::Forbidden]));
    for (status, is_stored) in [(StatusCode::FORBIDDEN, true), (StatusCode::NOT_FOUND, false)] {
        let app = app_answering(&harness, forbidden_only, move || status);
        let key = format!("k{}", status.as_u16());
        send(&app, request(&key, "{}")).await;
        assert_eq!(send(&app, request(&key, "{}")).await.is_replayed(), is_stored);
    }
}

#[tokio::test]
async fn answers_are_bytes_and_a_handler_of_today_does_not_change_them() {
    let harness = fresh::<Db>().await;
    let body: &'static [u8] = b"\x00\xff{\"nul\":\"\\u0000\"}\r\n";
    let yesterday = app_answering(
        &harness,
        |layer| layer,
        move || ([(CONTENT_TYPE, "application/octet-stream")], body),
    );
    let today = app_answering(&harness, |layer| layer, || Json("another type"));
    assert_eq!(send(&yesterday, request("k", "{}")).await.body, body);
    let again = send(&today, request("k", "{}")).await;
    assert!(again.is_replayed());
    assert_eq!(again.body, body);
    assert_eq!(again.headers[CONTENT_TYPE], "application/octet-stream");
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn a_redirect_and_an_empty_answer_are_successes() {
    let harness = fresh::<Db>().await;
    let empty = app_answering(&harness, |layer| layer, || StatusCode::NO_CONTENT);
    let redirect = app_answering(
        &harness,
        |layer| layer,
        || (StatusCode::SEE_OTHER, [("location", "/there")]),
    );
    for (key, app) in [("a", empty), ("b", redirect)] {
        let (first, again) = (
            send(&app, request(key, "{}")).await,
            send(&app, request(key, "{}")).await,
        );
        assert_eq!((again.status, again.is_replayed()), (first.status, true));
        assert_eq!(again.headers.get("location"), first.headers.get("location"));
    }
}

#[tokio::test]
async fn answers_that_cannot_be_replayed_are_refused_and_nothing_changed() {
    let harness = fresh::<Db>().await;
    let stream = || {
        let parts = futures_util::stream::iter([Ok::<_, std::io::Error>("a"), Ok("b")]);
        Body::from_stream(parts).into_response()
    };
    let answer = send(&app_answering(&harness, |layer| layer, stream), request("k", "{}")).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    answer.problem(Code::AnswerNotReplayable);
    let encoded = || ([("content-encoding", "gzip")], "not for everybody");
    let answer = send(&app_answering(&harness, |layer| layer, encoded), request("k", "{}")).await;
    answer.problem(Code::AnswerNotReplayable);
    let huge = || "x".repeat(1024 * 1024 + 1);
    let answer = send(&app_answering(&harness, |layer| layer, huge), request("k", "{}")).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    answer.problem(Code::AnswerTooLarge);
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));
    let fits = || "x".repeat(1024 * 1024);
    assert_eq!(
        send(&app_answering(&harness, |layer| layer, fits), request("k", "{}"))
            .await
            .status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_refusal_that_is_not_stored_may_be_of_any_shape() {
    let harness = fresh::<Db>().await;
    let streamed = || {
        let parts = futures_util::stream::iter([Ok::<_, std::io::Error>("not "), Ok("here")]);
        (StatusCode::NOT_FOUND, Body::from_stream(parts))
    };
    let answer = send(&app_answering(&harness, |layer| layer, streamed), request("k", "{}")).await;
    assert_eq!(
        (answer.status, answer.body.as_slice()),
        (StatusCode::NOT_FOUND, &b"not here"[..])
    );
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));
}

#[tokio::test]
async fn the_layer_mounted_twice_is_told_and_not_waited_for() {
    let harness = fresh::<Db>().await;
    let app = app(&harness)
        .route_layer(harness.sf.idempotent())
        .layer(Extension(harness.owner.clone()));
    let answer = send(&app, request("k", "{}")).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(answer.problem(Code::ConfigurationInvalid).contains("twice"));
}

#[tokio::test]
async fn a_panic_is_a_500_without_its_words_and_the_key_is_free() {
    let harness = fresh::<Db>().await;
    let panicking = app_answering(&harness, |layer| layer, || -> StatusCode { panic!("card 4242") });
    let answer = send(&panicking, request("k", "{}")).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!answer.problem(Code::HandlerPanicked).contains("4242"));
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));
    assert_eq!(
        send(&app(&harness), request("k", "{}")).await.status,
        StatusCode::CREATED
    );
}

#[tokio::test]
async fn authorisation_is_checked_again_on_replay() {
    let harness = fresh::<Db>().await;
    let allowed = Arc::new(Mutex::new(true));
    let rights = allowed.clone();
    let app = app_with(&harness, |layer| {
        layer.authorize(move |parts| {
            let is_allowed = *rights.lock().unwrap() && parts.headers.contains_key("idempotency-key");
            async move {
                if is_allowed {
                    Ok(())
                } else {
                    Err((StatusCode::FORBIDDEN, "no longer yours"))
                }
            }
        })
    });
    assert_eq!(send(&app, request("k", "{}")).await.status, StatusCode::CREATED);
    assert!(send(&app, request("k", "{}")).await.is_replayed());
    *allowed.lock().unwrap() = false;
    let reading = send(&app, Request::get("/effects/7").body(Body::empty()).unwrap()).await;
    assert_eq!(reading.status, StatusCode::FORBIDDEN, "reading too");
    let revoked = send(&app, request("k", "{}")).await;
    assert_eq!(
        (revoked.status, revoked.body.as_slice()),
        (StatusCode::FORBIDDEN, &b"no longer yours"[..])
    );
}

#[tokio::test]
async fn a_request_without_an_owner_is_a_fault_that_names_the_route() {
    let harness = fresh::<Db>().await;
    let anonymous = Router::new().route("/effects/{id}", post(make).layer(harness.sf.idempotent()));
    let answer = send(&anonymous, request("k", "{}")).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(answer.problem(Code::OwnerMissing).contains("POST /effects/{id}"));
    let global = Router::new().route(
        "/effects/{id}",
        post(make).layer(harness.sf.idempotent().scope(Scope::Global)),
    );
    assert_eq!(send(&global, request("k", "{}")).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn owners_who_choose_the_same_key_do_not_meet() {
    let harness = fresh::<Db>().await;
    let app_of = |tenant: &str, user: &str| {
        Router::new()
            .route("/effects/{id}", post(make).layer(harness.sf.idempotent()))
            .layer(Extension(Owner::new(tenant, user)))
    };
    let mut bodies = Vec::new();
    for (tenant, user) in [("t1", "a"), ("t1", "b"), ("t2", "a")] {
        let app = app_of(tenant, user);
        let (first, again) = (
            send(&app, request("k", "{}")).await,
            send(&app, request("k", "{}")).await,
        );
        assert!(!first.is_replayed() && again.is_replayed());
        assert_eq!(first.body, again.body);
        bodies.push(first.body);
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 3);
}

#[tokio::test]
async fn an_operation_has_a_name_of_its_own_or_its_routes() {
    let harness = fresh::<Db>().await;
    let named = |path: &str| {
        Router::new()
            .route(
                path,
                post(make).layer(harness.sf.idempotent().operation("effects.make")),
            )
            .layer(Extension(harness.owner.clone()))
    };
    assert_eq!(
        send(&named("/effects/{id}"), request("k", "{}")).await.status,
        StatusCode::CREATED
    );
    // A parameter of the route was renamed; neither the operation nor the request was.
    assert!(
        send(&named("/effects/{number}"), request("k", "{}"))
            .await
            .is_replayed()
    );

    let unnamed = harness.sf.idempotent();
    let service = tower::Layer::layer(&unnamed, app(&harness));
    let response = service.oneshot(request("k", "{}")).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn mistakes_in_wiring_are_told_with_the_route_and_the_fix() {
    let harness = fresh::<Db>().await;
    let without_layer = Router::new().route("/effects/{id}", post(make));
    let detail = send(&without_layer, request("k", "{}"))
        .await
        .problem(Code::NoTransaction);
    assert!(
        detail.contains("POST /effects/{id}") && detail.contains("sf.idempotent()"),
        "{detail}"
    );

    async fn twice(_: CmdTx<Db>, _: CmdTx<Db>) {}
    let twice = Router::new()
        .route("/effects/{id}", post(twice).layer(harness.sf.idempotent()))
        .layer(Extension(harness.owner.clone()));
    send(&twice, request("k", "{}")).await.problem(Code::TransactionTaken);

    let held: Arc<Mutex<Option<CmdTx<Db>>>> = Arc::default();
    let keep = held.clone();
    let escaping = async move |mut tx: CmdTx<Db>| {
        effect(&mut tx, "k").await.unwrap();
        *keep.lock().unwrap() = Some(tx);
    };
    let escaping = Router::new()
        .route("/effects/{id}", post(escaping).layer(harness.sf.idempotent()))
        .layer(Extension(harness.owner.clone()));
    let answer = send(&escaping, request("k", "{}")).await;
    answer.problem(Code::TransactionEscaped);
    drop(held.lock().unwrap().take());
    assert_eq!((harness.effects().await, harness.keys().await), (0, 0));
}

#[tokio::test]
async fn requests_that_change_nothing_pass_through_untouched() {
    let harness = fresh::<Db>().await;
    let app: Router = Router::new()
        .route("/", get(async || "read"))
        .layer(harness.sf.idempotent());
    let answer = send(&app, Request::get("/").body(Body::empty()).unwrap()).await;
    assert_eq!((answer.status, answer.body.as_slice()), (StatusCode::OK, &b"read"[..]));
}

#[tokio::test]
async fn a_failure_of_the_handler_is_a_problem_and_its_cause_stays_on_the_server() {
    let harness = fresh::<Db>().await;
    async fn broken(mut tx: CmdTx<Db>) -> Result<(), Failure> {
        sqlx::query("SELECT secret_column FROM nowhere")
            .execute(tx.db())
            .await?;
        Ok(())
    }
    let app = Router::new()
        .route("/effects/{id}", post(broken).layer(harness.sf.idempotent()))
        .layer(Extension(harness.owner.clone()));
    let answer = send(&app, request("k", "{}")).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.headers.contains_key("retry-after"));
    assert!(!String::from_utf8(answer.body).unwrap().contains("nowhere"));
}

#[tokio::test]
async fn a_conflict_reported_by_a_failure_runs_the_handler_again() {
    let harness = fresh::<Db>().await;
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let app = app_answering(
        &harness,
        |layer| layer,
        move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Failure::from(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into())).into_response(),
            _ => StatusCode::CREATED.into_response(),
        },
    );
    assert_eq!(send(&app, request("k", "{}")).await.status, StatusCode::CREATED);
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert_eq!(harness.effects().await, 1);
}

#[tokio::test]
async fn a_browser_of_another_origin_may_read_the_headers() {
    let harness = fresh::<Db>().await;
    let app = app(&harness);
    let mut cross = request("k", "{}");
    cross
        .headers_mut()
        .insert("origin", "https://example.com".parse().unwrap());
    let answer = send(&app, cross).await;
    assert!(
        answer.headers["access-control-expose-headers"]
            .to_str()
            .unwrap()
            .contains("Idempotent-Replayed")
    );
}

#[tokio::test]
async fn an_operator_can_ask_whether_it_lives_is_ready_and_what_a_problem_means() {
    let harness = fresh::<Db>().await;
    let app: Router = harness.sf.routes();
    let ask = async |uri: &str| send(&app, Request::get(uri).body(Body::empty()).unwrap()).await;
    assert_eq!(ask("/livez").await.status, StatusCode::OK);
    assert_eq!(ask("/readyz").await.status, StatusCode::OK);
    let explained = String::from_utf8(ask("/problems/SF104").await.body).unwrap();
    assert!(
        explained.contains("SF104") && explained.contains("422") && explained.contains("new key"),
        "{explained}"
    );
    assert_eq!(ask("/problems/SF999").await.status, StatusCode::NOT_FOUND);

    let migrations = Db::table("migrations");
    harness
        .run(&format!("DELETE FROM {migrations} WHERE version > 1"))
        .await;
    let verbose = ask("/readyz?verbose").await;
    assert_eq!(verbose.status, StatusCode::SERVICE_UNAVAILABLE);
    let verbose = String::from_utf8(verbose.body).unwrap();
    assert!(
        verbose.contains("[+] database ok") && verbose.contains("[-] tables SF301"),
        "{verbose}"
    );

    harness.sf.stop();
    assert!(
        String::from_utf8(ask("/readyz?verbose").await.body)
            .unwrap()
            .contains("[-] running SF119")
    );
    assert_eq!(
        ask("/livez").await.status,
        StatusCode::OK,
        "a stopping process still lives"
    );
}

#[tokio::test]
async fn unknown_paths_and_methods_keep_their_own_answers() {
    let harness = fresh::<Db>().await;
    let app = Router::new()
        .route("/effects/{id}", post(make))
        .route_layer(harness.sf.idempotent())
        .layer(Extension(harness.owner.clone()));
    let ask = async |method: &str, uri: &str| {
        let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
        send(&app, request).await.status
    };
    assert_eq!(ask("POST", "/nowhere").await, StatusCode::NOT_FOUND);
    assert_eq!(ask("POST", "/effects/7").await, StatusCode::BAD_REQUEST);
    let on_method = Router::new().route("/effects/{id}", post(make).route_layer(harness.sf.idempotent()));
    let put = Request::put("/effects/7").body(Body::empty()).unwrap();
    assert_eq!(send(&on_method, put).await.status, StatusCode::METHOD_NOT_ALLOWED);
}
