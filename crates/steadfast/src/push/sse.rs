//! Server-sent events, as the HTML standard has them.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};

use super::Push;
use super::name::StreamName;
use super::place::Returning;
use super::subscription::{Subscription, Tale, Told};
use crate::error::Error;
use crate::store::Database;
use crate::telemetry;

/// How soon a browser comes back that has lost its connection, and one that could not be served.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_LATER: Duration = Duration::from_secs(5);

/// A line that says nothing, so that whoever is in between sees that the connection lives.
const HEARTBEAT: &str = ":\n\n";

/// Answers with what comes, for as long as the client listens.
pub(super) async fn answer<Db: Database>(push: &Push<Db>, streams: &[StreamName], returning: &Returning) -> Response {
    match push.subscribe(streams, returning).await {
        Ok(subscription) => {
            let heartbeat = push.options.heartbeat;
            let begin = Some((subscription, Some(opening())));
            let tell = move |state: Option<(Subscription<Db>, Option<String>)>| async move {
                let (mut subscription, opening) = state?;
                let text = match opening {
                    Some(opening) => opening,
                    None => next(&mut subscription, heartbeat).await?,
                };
                let text = Ok::<_, Infallible>(Bytes::from(text));
                Some((text, Some((subscription, None))))
            };
            respond(Body::from_stream(stream::unfold(begin, tell)))
        }
        // Browsers come back by themselves after the end of an answer, and never after an error.
        Err(error) if error.retry_after().is_some() => respond(Body::from(come_back(&error))),
        Err(error) => {
            telemetry::subscription_failed(&error);
            error.into_response()
        }
    }
}

fn respond(body: Body) -> Response {
    let headers = [
        (CONTENT_TYPE.as_str(), "text/event-stream"),
        (CACHE_CONTROL.as_str(), "no-store"),
        // nginx would wait until there is more.
        ("x-accel-buffering", "no"),
    ];
    (headers, body).into_response()
}

fn opening() -> String {
    format!("retry: {}\n\n", RETRY.as_millis())
}

fn come_back(error: &Error) -> String {
    format!(": {} {error}\nretry: {}\n\n", error.code(), RETRY_LATER.as_millis())
}

/// What comes next, or a sign of life.
async fn next<Db: Database>(subscription: &mut Subscription<Db>, heartbeat: Duration) -> Option<String> {
    match tokio::time::timeout(heartbeat, subscription.next()).await {
        Ok(told) => Some(write(&told?)),
        Err(_) => Some(HEARTBEAT.to_owned()),
    }
}

fn write(told: &[Told]) -> String {
    let mut text = String::new();
    for Told { tale, place } in told {
        // A string takes whatever is written.
        let _ = match tale {
            Tale::Ready => write!(text, "event: ready\nid: {place}\ndata: {{}}\n\n"),
            Tale::Resync => write!(text, "event: resync\nid: {place}\ndata: {{}}\n\n"),
            Tale::Entry(entry) => write!(text, "id: {place}\ndata: {}\n\n", String::from_utf8_lossy(&entry.json)),
        };
    }
    text
}
