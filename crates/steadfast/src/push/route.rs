//! The door of live clients: `GET /events`.

use axum::extract::{FromRequestParts, Request, WebSocketUpgrade};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use http::header::{HOST, ORIGIN, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderName};

use super::name::{StreamName, parameters};
use super::place::Returning;
use super::{Push, sse, websocket};
use crate::failure::{Failure, FailureClass};
use crate::store::Database;

/// Where a client says where it was: in a header, or in a parameter if it cannot set headers.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const LAST_EVENT_ID_PARAMETER: &str = "last_event_id";

impl<Db: Database> Push<Db> {
    /// Serves live clients: server-sent events to those who `GET` it, WebSocket to those who ask for an upgrade.
    ///
    /// The function is asked for each connection. It gets the request without its body, finds out who it is, and answers which
    /// streams that client hears, or the response that refuses it. After about an hour a client has to come back, and is asked
    /// about again.
    ///
    /// A client that comes back with `Last-Event-ID`, or `?last_event_id=` where it cannot set headers, hears everything since, in
    /// order and once. Where that cannot be, since it was away for more than a day, has missed more than a thousand entries or is
    /// too slow, it hears `resync`, and has to fetch what it shows anew. The guide's page on push shows a whole client.
    pub fn route<S, F, Fut>(&self, authorize: F) -> MethodRouter<S>
    where
        S: Clone + Send + Sync + 'static,
        F: Fn(Parts) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<StreamName>, Response>> + Send + 'static,
    {
        let push = self.clone();
        get(move |request: Request| {
            let (push, authorize) = (push.clone(), authorize.clone());
            async move {
                let (parts, _) = request.into_parts();
                match authorize(parts.clone()).await {
                    Ok(streams) => push.answer(parts, &streams).await,
                    Err(refusal) => refusal,
                }
            }
        })
    }

    async fn answer(&self, mut parts: Parts, streams: &[StreamName]) -> Response {
        let returning = returning(&parts);
        if !wants_websocket(&parts.headers) {
            return sse::answer(self, streams, &returning).await;
        }
        if let Err(refusal) = check_origin(&parts.headers, &self.options.origins) {
            return refusal.into_response();
        }
        match WebSocketUpgrade::from_request_parts(&mut parts, &()).await {
            Ok(upgrade) => websocket::answer(self, upgrade, streams, &returning).await,
            Err(refusal) => refusal.into_response(),
        }
    }
}

/// Where the client says that it was. A browser that comes back by itself sets the header, so that counts.
fn returning(request: &Parts) -> Returning {
    if let Some(header) = request.headers.get(LAST_EVENT_ID) {
        return header.to_str().map_or(Returning::Unreadable, Returning::read);
    }
    let parameters = parameters(request);
    let parameter = parameters.iter().find(|(name, _)| name == LAST_EVENT_ID_PARAMETER);
    parameter.map_or(Returning::Never, |(_, place)| Returning::read(place))
}

fn wants_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(UPGRADE).and_then(|upgrade| upgrade.to_str().ok());
    upgrade.is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("websocket"))
}

/// Refuses pages of strangers. Browsers let any page connect by WebSocket to anywhere, and send the user's cookies along; what
/// they do not let a page do is to say another origin than its own. Who says none is no browser.
fn check_origin(headers: &HeaderMap, allowed: &[String]) -> Result<(), Failure> {
    let Some(origin) = headers.get(ORIGIN) else {
        return Ok(());
    };
    let origin = origin.to_str().unwrap_or_default();
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let is_own = origin
        .split_once("://")
        .is_some_and(|(_, origin)| host.is_some_and(|host| host.eq_ignore_ascii_case(origin)));
    if is_own || allowed.iter().any(|allowed| allowed == origin) {
        return Ok(());
    }
    let message = format!("pages of {origin:?} may not connect here; the service can allow them by `allow_origin`");
    Err(Failure::definitive(FailureClass::Forbidden, "origin_refused", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_strangers_may_not_connect_by_websocket() {
        let check = |origin: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, "shop.example.com:8080".parse().expect("a header"));
            if let Some(origin) = origin {
                headers.insert(ORIGIN, origin.parse().expect("a header"));
            }
            check_origin(&headers, &["https://app.example.com".to_owned()]).is_ok()
        };
        for origin in [
            None,
            Some("http://shop.example.com:8080"),
            Some("https://SHOP.example.com:8080"),
            Some("https://app.example.com"),
        ] {
            assert!(check(origin), "{origin:?}");
        }
        for origin in [
            "https://evil.example",
            "https://shop.example.com",
            "https://shop.example.com:8080.evil.example",
            "http://app.example.com",
            "null",
            "",
        ] {
            assert!(!check(Some(origin)), "{origin:?}");
        }
    }

    #[test]
    fn a_client_that_comes_back_says_where_it_was_in_a_header_or_a_parameter() {
        let read = |uri: &str, header: Option<&str>| {
            let mut request = http::Request::get(uri);
            if let Some(header) = header {
                request = request.header("Last-Event-ID", header);
            }
            let (parts, ()) = request.body(()).expect("a request").into_parts();
            returning(&parts)
        };
        let at = |number| Returning::From([(StreamName::topic("a"), number)].into_iter().collect());
        assert_eq!(read("/events", None), Returning::Never);
        assert_eq!(read("/events", Some("topic:a=7")), at(7));
        assert_eq!(read("/events?last_event_id=topic%3Aa%3D7", None), at(7));
        assert_eq!(read("/events?last_event_id=topic%3Aa%3D7", Some("topic:a=9")), at(9));
        assert_eq!(read("/events", Some("7")), Returning::Unreadable);
    }
}
