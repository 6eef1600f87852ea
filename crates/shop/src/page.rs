//! The page at `/`: a few files in the binary, no build step, nothing inline, nothing from elsewhere.

use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};

/// Only our own files run, and nobody may frame the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page and its assets. The lab's part of it is only in the page that a lab serves.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(is_lab: bool) -> Router<S> {
    let lab = if is_lab { include_str!("page/lab.html") } else { "" };
    let index = include_str!("page/index.html").replace("<!-- lab -->", lab);
    Router::new()
        .route("/", file("text/html; charset=utf-8", index))
        .route(
            "/shop.js",
            file("text/javascript; charset=utf-8", include_str!("page/shop.js")),
        )
        .route(
            "/shop.css",
            file("text/css; charset=utf-8", include_str!("page/shop.css")),
        )
        .route("/shop.svg", file("image/svg+xml", include_str!("page/shop.svg")))
}

fn file<S, T>(media_type: &'static str, text: T) -> MethodRouter<S>
where
    S: Clone + Send + Sync + 'static,
    T: IntoResponse + Clone + Send + Sync + 'static,
{
    let headers = [
        (CONTENT_TYPE, media_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-cache"),
    ];
    get(async move || (headers, text))
}
