//! The fault lab, only there with `--lab`: a request says by the header `Shop-Fault` which accident happens to it, and the
//! command line by `--fault` which happens to deliveries and to jobs.
//!
//! [`arm`] reads the header before the idempotent layer; the handler strikes after its write, and the crash
//! points inside Steadfast are struck by its observer, [`LabObserver`]. [`delivery`] does the same for reactions and jobs.

mod clock;
mod delivery;
mod fault;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use steadfast::testing::{Observer, Point, WorkId, WorkPoint};
use steadfast::{Failure, Key};
use tokio::sync::watch;

use crate::auth::TOKENS;
use crate::problem::Problem;
use crate::{jobs, sinks, sources};
use fault::Fault;

pub(crate) use clock::{Clock, ClockService};
pub(crate) use delivery::{DeliveryFault, after_job, after_reaction};

const SHOP_FAULT: &str = "shop-fault";

/// The accidents that are prepared, and the requests that are held.
#[derive(Default)]
pub(crate) struct Lab {
    armed: Mutex<Vec<Weak<Armed>>>,
    released: watch::Sender<()>,
    /// Cloned by each request and each delivery that is held, so that its count says how many there are.
    held: Arc<()>,
    deliveries: Vec<DeliveryFault>,
}

/// The accidents of one request. It travels in the request's extensions, and so lives exactly as long as the command,
/// whether or not its client still waits.
struct Armed {
    lab: Arc<Lab>,
    key: String,
    faults: Vec<Fault>,
}

/// Sees commands and deliveries pass the points where the lab may kill the process.
pub(crate) struct LabObserver(pub(crate) Arc<Lab>);

impl Observer for LabObserver {
    fn reached(&self, point: Point, key: &Key) {
        self.0.reached(point, key);
    }

    fn worked(&self, point: WorkPoint, id: &WorkId<'_>) {
        self.0.worked(point, id);
    }
}

impl Lab {
    /// A lab in which these accidents happen to deliveries.
    pub(crate) fn new(deliveries: Vec<DeliveryFault>) -> Self {
        Self {
            deliveries,
            ..Self::default()
        }
    }

    /// A command has come to a crash point. Its key says which one it is.
    fn reached(&self, point: Point, key: &Key) {
        let armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_doomed = armed
            .iter()
            .filter_map(Weak::upgrade)
            .any(|armed| armed.key == key.value() && armed.faults.contains(&Fault::Kill(point.as_str())));
        drop(armed);
        if is_doomed {
            fault::kill(point.as_str());
        }
    }

    fn arm(self: &Arc<Self>, key: String, faults: Vec<Fault>) -> Arc<Armed> {
        let armed = Arc::new(Armed {
            lab: self.clone(),
            key,
            faults,
        });
        let mut all = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&armed));
        armed
    }
}

/// Reads the header and prepares the accident, before the key is claimed.
pub(crate) async fn arm(State(lab): State<Arc<Lab>>, mut request: Request, next: Next) -> Response {
    let headers = request.headers();
    if headers.contains_key(SHOP_FAULT) {
        let text: Vec<_> = headers
            .get_all(SHOP_FAULT)
            .iter()
            .map(|value| value.to_str().unwrap_or("(not ASCII)"))
            .collect();
        match Fault::read_all(&text.join(",")) {
            Ok(faults) => {
                let armed = lab.arm(key_value(headers), faults);
                request.extensions_mut().insert(armed.clone());
                return ARMED.scope(armed, next.run(request)).await;
            }
            Err(detail) => return Problem::new(StatusCode::BAD_REQUEST, "unknown_fault", detail).into_response(),
        }
    }
    next.run(request).await
}

/// The key as Steadfast will read it; of one that it will refuse, anything.
fn key_value(headers: &HeaderMap) -> String {
    let header = headers
        .get("idempotency-key")
        .or_else(|| headers.get("x-idempotency-key"));
    let text = header.and_then(|value| value.to_str().ok()).unwrap_or_default().trim();
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    quoted.unwrap_or(text).to_owned()
}

tokio::task_local! {
    /// The accidents of the request that this task works for. A key would not do: two requests with one key are two requests,
    /// and only one of them runs the handler.
    static ARMED: Arc<Armed>;
}

/// To be called with the row written and the transaction open: everything may happen here, if it was prepared for this
/// request. (A client that hangs up before the handler comes here takes its accident with it.)
pub(crate) async fn after_write() -> Result<(), Failure> {
    let Ok(armed) = ARMED.try_with(Arc::clone) else {
        return Ok(());
    };
    for fault in &armed.faults {
        fault.strike(&armed.lab).await?;
    }
    Ok(())
}

/// `GET /lab` and `POST /lab/release`. Neither touches the database, so they answer while a held command has the writer.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(lab: Arc<Lab>) -> Router<S> {
    Router::new()
        .route("/lab", get(describe))
        .route("/lab/release", post(release))
        .with_state(lab)
}

async fn release(State(lab): State<Arc<Lab>>) -> Json<Value> {
    let released = lab.released.receiver_count();
    lab.released.send_replace(());
    Json(json!({ "released": released }))
}

async fn describe(State(lab): State<Arc<Lab>>) -> Json<Value> {
    let tokens: Vec<_> = TOKENS
        .iter()
        .map(|(user, tenant)| json!({ "header": format!("Authorization: Bearer {user}"), "tenant": tenant }))
        .collect();
    let sinks = [&sinks::TARGETS[..], &sinks::WAREHOUSE_TARGETS].concat();
    Json(json!({
        "faults": fault::KNOBS.map(|(example, meaning)| json!({ "header": format!("Shop-Fault: {example}"), "meaning": meaning })),
        "kill_points": fault::kill_points(),
        "deliveries": {
            "flag": format!("--fault {}", delivery::GRAMMAR),
            "faults": delivery::KNOBS.map(|(example, meaning)| json!({ "flag": format!("--fault {example}"), "meaning": meaning })),
            "kill_points": delivery::kill_points(),
            "targets": delivery::TARGETS,
            "jobs": jobs::NAMES,
            "sinks": sinks,
            "sources": sources::NAMES,
            "fed_by_sources": delivery::FED,
            "here": lab.deliveries.iter().map(ToString::to_string).collect::<Vec<_>>(),
        },
        "routes": [
            { "example": "POST /lab/release", "meaning": "let every held request and delivery go on; needs no database" },
            { "example": "POST /lab/clock {\"advance\":\"24h\"}", "meaning": "move the time of all processes on this database" },
            { "example": "GET /lab/clock", "meaning": "how far the time has been moved" },
        ],
        "tokens": tokens,
        "held": Arc::strong_count(&lab.held) - 1,
        "try": "curl -i -X POST $SHOP/orders -H 'Authorization: Bearer user-a' -H 'Idempotency-Key: k-1' \
                -H 'Content-Type: application/json' -d '{\"sku\":\"tea\",\"quantity\":1}' -H 'Shop-Fault: kill=before_commit'",
    }))
}
