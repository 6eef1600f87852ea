//! A message as a request: CloudEvents 1.0 in binary mode, signed.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use super::guard::Endpoint;
use super::signature::{self, SigningKey};
use crate::broker::header::percent_encoded;
use crate::outbox::EventCx;

const USER_AGENT: &str = concat!("steadfast/", env!("CARGO_PKG_VERSION"));

/// The request of this attempt: its time is now, its id that of the message.
pub(super) fn request(
    endpoint: &Endpoint,
    keys: &[SigningKey],
    event: &EventCx,
) -> Result<Request<Full<Bytes>>, http::Error> {
    let id = event.id().to_string();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let timestamp = now.as_secs();
    let mut request = Request::post(endpoint.path.as_str())
        .header("host", &endpoint.authority)
        .header("user-agent", USER_AGENT)
        .header("content-type", "application/json")
        .header("idempotency-key", &id)
        .header("webhook-id", &id)
        .header("webhook-timestamp", timestamp);
    if !keys.is_empty() {
        let signatures = signature::signatures(keys, &id, timestamp, event.payload());
        request = request.header("webhook-signature", signatures);
    }
    for (name, value) in event.headers() {
        request = request.header(name, &*percent_encoded(value));
    }
    request.body(Full::new(event.message().payload.clone()))
}
