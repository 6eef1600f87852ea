//! One table of cases through every way in: a service over HTTP and in Rust, and the same written by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::extract::Request;
use axum::routing::post;
use axum::{Extension, Json, Router};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use steadfast::{CmdTx, Error, Failure, FailureClass, Owner, Reply, Steadfast, StoreFailures, Tx};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use super::Db;
use crate::harness::{Harness, fresh};

/// What the handler is to do, after it has left its effect.
#[derive(Clone, Serialize, Deserialize)]
struct Wish {
    then: Then,
    /// Makes one wish another.
    note: String,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Then {
    Succeed,
    Refuse,
    AskForPatience,
    Panic,
    Hold,
}

fn wish(then: Then) -> Wish {
    Wish {
        then,
        note: String::new(),
    }
}

/// The handler behind every door.
async fn act(tx: &mut Tx<Db>, gate: &Gate, wish: &Wish) -> Result<String, Failure> {
    let nonce = uuid::Uuid::now_v7().to_string();
    sqlx::query("INSERT INTO effects (tag, nonce) VALUES ('k', $1)")
        .bind(&nonce)
        .execute(tx.db())
        .await?;
    match wish.then {
        Then::Succeed => Ok(nonce),
        Then::Refuse => Err(Failure::definitive(
            FailureClass::BusinessRule,
            "out_of_stock",
            "nothing is left",
        )),
        Then::AskForPatience => Err(Failure::transient("later", "not now")),
        Then::Panic => panic!("the handler panicked, as it was told to"),
        Then::Hold => {
            gate.running.add_permits(1);
            let _released = gate.release.acquire().await;
            Ok(nonce)
        }
    }
}

/// Where a handler says that it runs, and waits until it may end.
#[derive(Clone)]
struct Gate {
    running: Arc<Semaphore>,
    release: Arc<Semaphore>,
}

struct Effects {
    gate: Gate,
}

#[steadfast::service]
impl Effects {
    #[command("effects.make", route = "POST /make", authorize = may, body_limit = 1000)]
    async fn make(&self, tx: &mut Tx<Db>, wish: &Wish) -> Result<String, Failure> {
        act(tx, &self.gate, wish).await
    }

    #[command("effects.keep", route = "POST /keep", store_failures = definitive)]
    async fn keep(&self, tx: &mut Tx<Db>, wish: Wish) -> Result<String, Failure> {
        act(tx, &self.gate, &wish).await
    }
}

/// Whether the caller may, right now.
#[derive(Clone)]
struct Right(Arc<AtomicBool>);

async fn may(parts: Parts) -> Result<(), Failure> {
    match parts.extensions.get::<Right>() {
        Some(Right(right)) if right.load(Ordering::Relaxed) => Ok(()),
        _ => Err(Failure::definitive(
            FailureClass::Forbidden,
            "not_yours",
            "you may not do this",
        )),
    }
}

/// The ways in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Door {
    ServiceHttp,
    ServiceRust,
    LayerHttp,
    PlainRust,
}

const HTTP: [Door; 2] = [Door::ServiceHttp, Door::LayerHttp];
const ALL: [Door; 4] = [Door::ServiceHttp, Door::ServiceRust, Door::LayerHttp, Door::PlainRust];

#[derive(Clone, Copy)]
enum Operation {
    Make,
    Keep,
}

/// What a caller sees, through whichever door.
#[derive(Debug, PartialEq)]
enum Ended {
    Done { nonce: String, replayed: bool },
    Refused { code: String, replayed: bool },
}

impl Ended {
    #[track_caller]
    fn nonce(self) -> String {
        match self {
            Ended::Done { nonce, .. } => nonce,
            refused => panic!("{refused:?}"),
        }
    }
}

fn replayed(nonce: &str) -> Ended {
    Ended::Done {
        nonce: nonce.to_owned(),
        replayed: true,
    }
}

fn refused(code: &str) -> Ended {
    Ended::Refused {
        code: code.to_owned(),
        replayed: false,
    }
}

/// All doors to one database.
#[derive(Clone)]
struct Scene {
    sf: Steadfast<Db>,
    owner: Owner,
    gate: Gate,
    right: Right,
    service: EffectsService<Db>,
}

impl Scene {
    fn new(harness: &Harness<Db>) -> Self {
        let gate = Gate {
            running: Arc::new(Semaphore::new(0)),
            release: Arc::new(Semaphore::new(0)),
        };
        Self {
            sf: harness.sf.clone(),
            owner: harness.owner.clone(),
            right: Right(Arc::new(AtomicBool::new(true))),
            service: Effects { gate: gate.clone() }.on(&harness.sf),
            gate,
        }
    }

    async fn ask(&self, door: Door, operation: Operation, key: &str, wish: &Wish) -> Ended {
        let (owner, service) = (&self.owner, &self.service);
        match (door, operation) {
            (Door::ServiceHttp | Door::LayerHttp, operation) => {
                self.send(door, request(operation, Some(key), wish), Some(owner)).await
            }
            (Door::ServiceRust, Operation::Make) => of_rust(service.make(owner, key, wish).await),
            (Door::ServiceRust, Operation::Keep) => of_rust(service.keep(owner, key, wish.clone()).await),
            (Door::PlainRust, operation) => {
                let command = match operation {
                    Operation::Make => self.sf.command("effects.make", key),
                    Operation::Keep => self
                        .sf
                        .command("effects.keep", key)
                        .store_failures(StoreFailures::Definitive),
                };
                let run = command
                    .owner(owner)
                    .input(wish)
                    .run(async |tx| act(tx, &self.gate, wish).await);
                of_rust(run.await)
            }
        }
    }

    async fn send(&self, door: Door, request: Request, owner: Option<&Owner>) -> Ended {
        let mut app = match door {
            Door::LayerHttp => self.by_hand(),
            _ => self.service.routes(),
        };
        app = app.layer(Extension(self.right.clone()));
        if let Some(owner) = owner {
            app = app.layer(Extension(owner.clone()));
        }
        of_http(app.oneshot(request).await.unwrap()).await
    }

    /// What the service's routes are, without it.
    fn by_hand(&self) -> Router {
        let gate = self.gate.clone();
        let handler = async move |mut tx: CmdTx<Db>, Json(wish): Json<Wish>| act(&mut tx, &gate, &wish).await.map(Json);
        let make = self
            .sf
            .idempotent()
            .operation("effects.make")
            .authorize(may)
            .body_limit(1000);
        let keep = self
            .sf
            .idempotent()
            .operation("effects.keep")
            .store_failures(StoreFailures::Definitive);
        Router::new()
            .route("/make", post(handler.clone()).route_layer(make))
            .route("/keep", post(handler).route_layer(keep))
    }
}

fn request(operation: Operation, key: Option<&str>, wish: &Wish) -> Request {
    let path = match operation {
        Operation::Make => "/make",
        Operation::Keep => "/keep",
    };
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    let request = match key {
        Some(key) => request.header("idempotency-key", key),
        None => request,
    };
    request.body(Body::from(serde_json::to_vec(wish).unwrap())).unwrap()
}

fn of_rust(ended: Result<Reply<String>, Error>) -> Ended {
    match ended {
        Ok(Reply { value, replayed }) => Ended::Done { nonce: value, replayed },
        Err(error) => Ended::Refused {
            code: error.failure().map_or(error.code().as_str(), Failure::code).to_owned(),
            replayed: error.is_replayed(),
        },
    }
}

async fn of_http(response: axum::response::Response) -> Ended {
    let (parts, body) = response.into_parts();
    let body: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
    let replayed = parts.headers.contains_key("idempotent-replayed");
    match parts.status.is_success() {
        true => Ended::Done {
            nonce: body.as_str().unwrap().to_owned(),
            replayed,
        },
        false => Ended::Refused {
            code: body["code"].as_str().unwrap().to_owned(),
            replayed,
        },
    }
}

/// Runs a case once for each door, each on a database of its own.
async fn through(doors: &[Door], case: impl AsyncFn(&Scene, &Harness<Db>, Door)) {
    for &door in doors {
        let harness = fresh::<Db>().await;
        case(&Scene::new(&harness), &harness, door).await;
    }
}

#[tokio::test]
async fn through_every_door_a_wish_is_done_once_and_replayed() {
    through(&ALL, async |scene, harness, door| {
        let first = scene.ask(door, Operation::Make, "k", &wish(Then::Succeed)).await;
        assert!(
            matches!(first, Ended::Done { replayed: false, .. }),
            "{door:?}: {first:?}"
        );
        let nonce = first.nonce();
        for _ in 0..2 {
            let again = scene.ask(door, Operation::Make, "k", &wish(Then::Succeed)).await;
            assert_eq!(again, replayed(&nonce), "{door:?}");
        }
        assert_eq!((harness.effects().await, harness.keys().await), (1, 1), "{door:?}");
    })
    .await;
}

#[tokio::test]
async fn through_every_door_a_key_stands_for_one_wish() {
    through(&ALL, async |scene, harness, door| {
        scene
            .ask(door, Operation::Make, "k", &wish(Then::Succeed))
            .await
            .nonce();
        let other = Wish {
            note: "another".into(),
            ..wish(Then::Succeed)
        };
        assert_eq!(
            scene.ask(door, Operation::Make, "k", &other).await,
            refused("SF104"),
            "{door:?}"
        );
        assert_eq!(harness.effects().await, 1, "{door:?}");
    })
    .await;
}

#[tokio::test]
async fn through_every_door_a_duplicate_in_flight_is_told_to_come_back() {
    through(&ALL, async |scene, harness, door| {
        let first = scene.clone();
        let held = tokio::spawn(async move { first.ask(door, Operation::Make, "k", &wish(Then::Hold)).await });
        let _running = scene.gate.running.acquire().await.unwrap();
        let duplicate = scene.ask(door, Operation::Make, "k", &wish(Then::Hold)).await;
        assert_eq!(duplicate, refused("SF103"), "{door:?}");
        scene.gate.release.add_permits(1);
        let nonce = held.await.unwrap().nonce();
        let again = scene.ask(door, Operation::Make, "k", &wish(Then::Hold)).await;
        assert_eq!(again, replayed(&nonce), "{door:?}");
        assert_eq!(harness.effects().await, 1, "{door:?}");
    })
    .await;
}

#[tokio::test]
async fn through_every_door_a_failure_leaves_nothing_and_frees_the_key() {
    through(&ALL, async |scene, harness, door| {
        for (then, code) in [
            (Then::Refuse, "out_of_stock"),
            (Then::AskForPatience, "later"),
            (Then::Panic, "SF029"),
        ] {
            for _ in 0..2 {
                let ended = scene.ask(door, Operation::Make, "k", &wish(then)).await;
                assert_eq!(ended, refused(code), "{door:?}");
            }
        }
        assert_eq!((harness.effects().await, harness.keys().await), (0, 0), "{door:?}");
        scene
            .ask(door, Operation::Make, "k", &wish(Then::Succeed))
            .await
            .nonce();
    })
    .await;
}

#[tokio::test]
async fn through_every_door_a_definitive_failure_is_kept_where_that_is_wanted() {
    through(&ALL, async |scene, harness, door| {
        let first = scene.ask(door, Operation::Keep, "k", &wish(Then::Refuse)).await;
        assert_eq!(first, refused("out_of_stock"), "{door:?}");
        let kept = Ended::Refused {
            code: "out_of_stock".into(),
            replayed: true,
        };
        assert_eq!(
            scene.ask(door, Operation::Keep, "k", &wish(Then::Refuse)).await,
            kept,
            "{door:?}"
        );
        let later = scene.ask(door, Operation::Keep, "l", &wish(Then::AskForPatience)).await;
        assert_eq!(later, refused("later"), "{door:?}");
        assert_eq!((harness.effects().await, harness.keys().await), (0, 1), "{door:?}");
    })
    .await;
}

#[tokio::test]
async fn through_every_door_a_bad_key_is_refused() {
    through(&ALL, async |scene, harness, door| {
        for key in ["a b", &"k".repeat(256)] {
            let ended = scene.ask(door, Operation::Make, key, &wish(Then::Succeed)).await;
            assert_eq!(ended, refused("SF101"), "{door:?}");
        }
        assert_eq!(harness.effects().await, 0, "{door:?}");
    })
    .await;
}

#[tokio::test]
async fn over_http_what_a_request_lacks_is_said_before_anything_starts() {
    through(&HTTP, async |scene, harness, door| {
        let good = wish(Then::Succeed);
        let large = Wish {
            note: "x".repeat(1000),
            ..good.clone()
        };
        for (key, wish, owner, code) in [
            (None, &good, Some(&scene.owner), "SF100"),
            (Some("k"), &good, None, "SF023"),
            (Some("k"), &large, Some(&scene.owner), "SF105"),
        ] {
            let ended = scene.send(door, request(Operation::Make, key, wish), owner).await;
            assert_eq!(ended, refused(code), "{door:?}");
        }
        assert_eq!((harness.effects().await, harness.keys().await), (0, 0), "{door:?}");
    })
    .await;
}

#[tokio::test]
async fn over_http_a_right_that_was_taken_away_takes_the_answer_away() {
    through(&HTTP, async |scene, harness, door| {
        let nonce = scene
            .ask(door, Operation::Make, "k", &wish(Then::Succeed))
            .await
            .nonce();
        scene.right.0.store(false, Ordering::Relaxed);
        let ended = scene.ask(door, Operation::Make, "k", &wish(Then::Succeed)).await;
        assert_eq!(ended, refused("not_yours"), "{door:?}");
        scene.right.0.store(true, Ordering::Relaxed);
        let again = scene.ask(door, Operation::Make, "k", &wish(Then::Succeed)).await;
        assert_eq!(again, replayed(&nonce), "{door:?}");
        assert_eq!(harness.effects().await, 1, "{door:?}");
    })
    .await;
}

/// A retry goes through the door it came by, or through one of the same kind: what a service does is what is done by hand.
#[tokio::test]
async fn a_service_and_the_same_by_hand_answer_each_others_keys() {
    let harness = fresh::<Db>().await;
    let scene = Scene::new(&harness);
    for (key, first, then) in [
        ("h", Door::ServiceHttp, Door::LayerHttp),
        ("r", Door::ServiceRust, Door::PlainRust),
    ] {
        let nonce = scene
            .ask(first, Operation::Make, key, &wish(Then::Succeed))
            .await
            .nonce();
        let again = scene.ask(then, Operation::Make, key, &wish(Then::Succeed)).await;
        assert_eq!(again, replayed(&nonce), "{first:?}, then {then:?}");
    }
}
