//! A service over HTTP: what a request becomes, and what is answered.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::{Extension, Router};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast::sqlx::{Pool, Sqlite};
use steadfast::{Failure, FailureClass, Owner, Steadfast, Tx};
use tower::ServiceExt;

struct Notes;

#[derive(Clone, Serialize, Deserialize)]
struct Note {
    id: String,
    text: String,
}

#[derive(Deserialize)]
struct Page {
    page: u32,
}

#[allow(clippy::unused_async)]
#[steadfast::service(db = Sqlite)]
impl Notes {
    #[command(
        "notes.write",
        route = "POST /notes",
        status = 201,
        location = "/notes/{id}",
        mismatch = 409
    )]
    async fn write(&self, _: &mut Tx<Db>, note: Note) -> Result<Note, Failure> {
        Ok(note)
    }

    #[command("notes.move", route = "PUT /notes/{id}/to/{place}", key = optional)]
    async fn rearrange(&self, _: &mut Tx<Db>, place: u32, owner: &Owner, id: &str) -> Result<String, Failure> {
        Ok(format!("{} {id} {place}", owner.user()))
    }

    #[command("notes.burn", route = "DELETE /notes/{id}")]
    async fn burn(&self, _: &mut Tx<Db>, id: u32) -> Result<(), Failure> {
        assert!(id > 0);
        Ok(())
    }

    #[command("notes.pin", route = "POST /pins", accept = [json, form], key_field = "id")]
    async fn pin(&self, tx: &mut Tx<Db>, note: Note) -> Result<String, Failure> {
        let key = tx.key().map(|key| key.value().to_owned());
        Ok(format!("{} as {key:?}", note.text))
    }

    #[command("notes.großeltern", route = "PUT /großeltern/{größe}")]
    async fn resize(&self, _: &mut Tx<Db>, größe: &str) -> Result<String, Failure> {
        Ok(größe.to_owned())
    }

    #[command("notes.post", route = "POST /forms", accept = form)]
    async fn post(&self, _: &mut Tx<Db>, note: Note) -> Result<String, Failure> {
        Ok(note.text)
    }

    #[query("notes.lost")]
    async fn lost(&self, _: &Pool<Db>) -> Result<(), Failure> {
        Err(Failure::definitive(FailureClass::NotFound, "lost", "it is not there"))
    }

    #[query("notes.list", route = "GET /notes", max_age = "2m")]
    async fn list(&self, _: &Pool<Db>, page: Page) -> Result<u32, Failure> {
        Ok(page.page)
    }

    #[query("notes.mine", route = "GET /notes/{id}", authorize = nobody_named_13)]
    async fn mine(&self, _: &Pool<Db>, owner: &Owner, id: u32) -> Result<String, Failure> {
        Ok(format!("{} {id}", owner.user()))
    }
}

async fn nobody_named_13(parts: http::request::Parts) -> Result<(), Failure> {
    match parts.uri.path().ends_with("13") {
        true => Err(Failure::definitive(FailureClass::Forbidden, "unlucky", "not this one")),
        false => Ok(()),
    }
}

async fn app() -> Router {
    let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await.unwrap();
    Notes
        .on(&sf)
        .routes()
        .layer(Extension(Owner::new("tenant-1", "user-a")))
}

async fn send(app: &Router, method: Method, path: &str, body: &str) -> Response {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("idempotency-key", "k")
        .header(CONTENT_TYPE, "application/json; charset=utf-8");
    let request = request.body(Body::from(body.to_owned())).unwrap();
    app.clone().oneshot(request).await.unwrap()
}

async fn json(response: Response) -> Value {
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

const NOTE: &str = r#"{"id":"a/b","text":"tea"}"#;

#[tokio::test]
async fn an_answer_has_its_status_and_location_and_so_has_its_replay() {
    let app = app().await;
    for is_replayed in [false, true] {
        let answer = send(&app, Method::POST, "/notes", NOTE).await;
        assert_eq!(answer.status(), StatusCode::CREATED);
        assert_eq!(answer.headers()[LOCATION], "/notes/a%2Fb");
        assert_eq!(answer.headers().contains_key("idempotent-replayed"), is_replayed);
        assert_eq!(json(answer).await["text"], "tea");
    }
    let other = send(&app, Method::POST, "/notes", r#"{"id":"c","text":"jam"}"#).await;
    assert_eq!(other.status(), StatusCode::CONFLICT);
}

#[tokio::test]
async fn arguments_come_from_the_path_by_name_also_under_another_one() {
    let app = Router::new().nest("/of/{tenant}", app().await);
    let moved = send(&app, Method::PUT, "/of/me/notes/x%20y/to/7", "").await;
    assert_eq!(json(moved).await, "user-a x y 7");
}

#[tokio::test]
async fn a_path_in_another_language_is_found_as_requests_have_it() {
    let resized = send(&app().await, Method::PUT, "/gro%C3%9Feltern/gr%C3%B6%C3%9Fer", "").await;
    assert_eq!(json(resized).await, "größer");
}

#[tokio::test]
async fn nothing_is_answered_with_204_and_no_body() {
    let burnt = send(&app().await, Method::DELETE, "/notes/1", "").await;
    assert_eq!(burnt.status(), StatusCode::NO_CONTENT);
    assert!(burnt.into_body().collect().await.unwrap().to_bytes().is_empty());
}

#[tokio::test]
async fn a_query_is_read_from_the_query_string_and_may_be_kept_by_its_caller() {
    let app = app().await;
    let listed = send(&app, Method::GET, "/notes?page=3", "").await;
    assert_eq!(listed.headers()[CACHE_CONTROL], "private, max-age=120");
    assert_eq!(json(listed).await, 3);
    let mine = send(&app, Method::GET, "/notes/5", "").await;
    assert!(!mine.headers().contains_key(CACHE_CONTROL));
    assert_eq!(json(mine).await, "user-a 5");
    assert_eq!(
        send(&app, Method::GET, "/notes/13", "").await.status(),
        StatusCode::FORBIDDEN
    );
}

#[tokio::test]
async fn an_input_that_does_not_fit_is_refused_and_says_which_part() {
    let app = app().await;
    for (method, path, body, says) in [
        (
            Method::POST,
            "/notes",
            "{}",
            "the body of POST /notes is not usable: missing field `id`",
        ),
        (
            Method::DELETE,
            "/notes/x",
            "",
            "id of DELETE /notes/{id} is not usable: invalid digit",
        ),
        (
            Method::GET,
            "/notes?page=x",
            "",
            "the query string of GET /notes is not usable",
        ),
    ] {
        let refused = send(&app, method, path, body).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        let problem = json(refused).await;
        assert_eq!(problem["code"], "SF102", "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(says), "{problem}");
    }
}

#[tokio::test]
async fn a_body_of_another_type_is_refused_with_those_that_are_taken() {
    let app = app().await;
    for (path, media_type, takes) in [
        (
            "/notes",
            "application/x-www-form-urlencoded",
            "send application/json as",
        ),
        (
            "/notes",
            "text/plain",
            "says that it is \"text/plain\"; send application/json as",
        ),
        ("/notes", "", "does not say what it is; send application/json as"),
        (
            "/forms",
            "application/json",
            "send application/x-www-form-urlencoded as",
        ),
        (
            "/pins",
            "text/plain",
            "send application/json or application/x-www-form-urlencoded as",
        ),
    ] {
        let request = Request::post(path).header("idempotency-key", "k");
        let request = match media_type {
            "" => request,
            media_type => request.header(CONTENT_TYPE, media_type),
        };
        let refused = app
            .clone()
            .oneshot(request.body(Body::from(NOTE)).unwrap())
            .await
            .unwrap();
        assert_eq!(refused.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
        let problem = json(refused).await;
        assert_eq!(problem["code"], "SF124");
        assert!(problem["detail"].as_str().unwrap().contains(takes), "{problem}");
    }
}

#[tokio::test]
async fn a_form_is_taken_where_it_is_accepted() {
    let form = Request::post("/pins")
        .header("idempotency-key", "k")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let pinned = app()
        .await
        .oneshot(form.body(Body::from("id=a&text=green+tea")).unwrap());
    assert_eq!(json(pinned.await.unwrap()).await, r#"green tea as Some("k")"#);
}

#[tokio::test]
async fn a_key_may_be_a_member_of_the_body() {
    let app = app().await;
    let pin = async |key: Option<&str>, body: &str| {
        let request = Request::post("/pins").header(CONTENT_TYPE, "application/json");
        let request = match key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        };
        app.clone()
            .oneshot(request.body(Body::from(body.to_owned())).unwrap())
            .await
            .unwrap()
    };
    for is_replayed in [false, true] {
        let pinned = pin(None, NOTE).await;
        assert_eq!(pinned.headers().contains_key("idempotent-replayed"), is_replayed);
        assert_eq!(json(pinned).await, r#"tea as Some("a/b")"#);
    }
    assert!(
        pin(Some("a/b"), NOTE)
            .await
            .headers()
            .contains_key("idempotent-replayed")
    );
    for (key, body, code) in [
        (None, r#"{"text":"tea"}"#, "SF100"),
        (None, r#"{"id":7,"text":"tea"}"#, "SF101"),
        (Some("other"), NOTE, "SF101"),
        (None, "[]", "SF100"),
        (None, "nonsense", "SF106"),
        (None, r#"{"id":"a/b","text":"jam"}"#, "SF104"),
    ] {
        assert_eq!(json(pin(key, body).await).await["code"], code, "{key:?} {body}");
    }
}

#[tokio::test]
async fn a_query_that_fails_in_rust_has_failed_now_and_is_no_replay() {
    let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await.unwrap();
    let lost = Notes.on(&sf).lost().await.unwrap_err();
    assert_eq!(lost.failure().unwrap().code(), "lost");
    assert!(!lost.is_replayed());
}

#[tokio::test]
async fn a_query_that_wants_its_owner_says_so_where_there_is_none() {
    let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await.unwrap();
    let refused = send(&Notes.on(&sf).routes(), Method::GET, "/notes/5", "").await;
    let problem = json(refused).await;
    assert_eq!(problem["code"], "SF023");
    assert!(
        problem["detail"].as_str().unwrap().starts_with("GET /notes/{id}"),
        "{problem}"
    );
}
