//! What the shop refuses by itself, as RFC 9457 problems. Steadfast's own have codes that begin with SF.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// A refusal: what a program reads (`status`, `code`) and what a person reads (`detail`).
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code,
        });
        let headers = [(CONTENT_TYPE, "application/problem+json"), (CACHE_CONTROL, "no-store")];
        let mut response = (self.status, headers, body.to_string()).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            // RFC 9110, 15.5.2: a 401 says how to authenticate.
            let challenge = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// For paths the shop does not have.
pub(crate) async fn no_such_path() -> Problem {
    let detail = "there is nothing at this path; the shop has /, /orders, /payments and /stock";
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}

/// For paths of a worker that are the shop's.
pub(crate) async fn not_in_a_worker() -> Problem {
    let detail = "this is a worker, which sells nothing; it has /livez, /readyz and /metrics, and /lab with --lab";
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}

/// For paths of a warehouse that are the shop's.
pub(crate) async fn not_in_a_warehouse() -> Problem {
    let detail =
        "this is a warehouse, which sells nothing; it has /stock, /livez, /readyz and /metrics, and /lab with --lab";
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}

/// For the stock of a shop that keeps none.
pub(crate) async fn stock_elsewhere() -> Problem {
    let detail = "the stock of this shop is kept by a warehouse; ask that: GET /stock";
    Problem::new(StatusCode::NOT_FOUND, "stock_elsewhere", detail)
}

/// For paths it has, with a method they do not.
pub(crate) async fn no_such_method() -> Problem {
    let detail = "this path does not take this method; the header Allow names those it takes";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}
