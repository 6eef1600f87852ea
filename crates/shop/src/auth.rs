//! Who asks. Three demo tokens stand in for a real authentication.

use axum::Extension;
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, COOKIE, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use steadfast::Owner;

use crate::problem::Problem;

/// Token and tenant; a token is also the name of its user.
pub(crate) const TOKENS: [(&str, &str); 3] = [("user-a", "tenant-1"), ("user-b", "tenant-1"), ("user-c", "tenant-2")];

/// The cookie that `/events/{user}` knows a page's user by.
const SESSION: &str = "shop_session";

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

/// Keeps the token in a cookie: a page cannot send a header with what it hears live. Each user has a path, and so a cookie, of
/// his own: a browser may have a window open for each.
pub(crate) async fn begin_session(Extension(owner): Extension<Owner>) -> impl IntoResponse {
    let user = owner.user();
    let cookie = format!("{SESSION}={user}; Path=/events/{user}; HttpOnly; SameSite=Strict");
    (StatusCode::NO_CONTENT, [(SET_COOKIE, cookie)])
}

pub(crate) fn find_session(headers: &HeaderMap) -> Option<Owner> {
    let cookies = headers.get(COOKIE)?.to_str().ok()?;
    let session = cookies
        .split(';')
        .filter_map(|cookie| cookie.trim().split_once('='))
        .find(|(name, _)| *name == SESSION)?;
    owner_of(session.1)
}

fn owner_of(token: &str) -> Option<Owner> {
    let (user, tenant) = TOKENS.into_iter().find(|(user, _)| *user == token)?;
    Some(Owner::new(tenant, user))
}

pub(crate) fn find_owner(headers: &HeaderMap) -> Option<Owner> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    owner_of(token.trim()).filter(|_| scheme.eq_ignore_ascii_case("bearer"))
}
