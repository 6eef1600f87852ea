//! Who asks. Three demo tokens stand in for a real authentication.

use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use steadfast::Owner;

use crate::problem::Problem;

/// Token and tenant; a token is also the name of its user.
pub(crate) const TOKENS: [(&str, &str); 3] = [("user-a", "tenant-1"), ("user-b", "tenant-1"), ("user-c", "tenant-2")];

/// Turns the bearer token into an [`Owner`]. It sits outside the idempotent layer: nobody reaches a key, let alone a
/// stored answer, without having said who he is.
pub(crate) async fn authenticate(mut request: Request, next: Next) -> Response {
    let Some(owner) = find_owner(request.headers()) else {
        let detail = "send one of the demo tokens: Authorization: Bearer user-a (or user-b, user-c)";
        return Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail).into_response();
    };
    request.extensions_mut().insert(owner);
    next.run(request).await
}

fn find_owner(headers: &HeaderMap) -> Option<Owner> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let (user, tenant) = TOKENS.into_iter().find(|(user, _)| *user == token.trim())?;
    scheme.eq_ignore_ascii_case("bearer").then(|| Owner::new(tenant, user))
}
