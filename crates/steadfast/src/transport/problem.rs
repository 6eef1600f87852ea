//! Errors over HTTP: RFC 9457 problems, and the one table of status codes.

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Code, Error};
use crate::failure::rules::kind_of_status;
use crate::failure::{Failure, FailureClass, FailureKind};

/// Where problem types are described when nothing else is configured: a path [`routes`](super::routes) serves.
pub(crate) const PROBLEM_BASE: &str = "/problems";

/// The status of each code, and the rule it follows.
pub(crate) fn status_of(code: Code) -> StatusCode {
    match code {
        // The caller's request (draft-ietf-httpapi-idempotency-key-header-07, section 2.7).
        Code::KeyMissing => StatusCode::BAD_REQUEST, // "missing … SHOULD reply with 400"
        Code::KeyInvalid => StatusCode::BAD_REQUEST, // RFC 9651: a field that fails to parse is a bad request
        Code::InFlight => StatusCode::CONFLICT,      // "still being processed … SHOULD reply with 409"
        Code::Mismatch => StatusCode::UNPROCESSABLE_ENTITY, // "different request payload … SHOULD reply with 422"
        Code::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE, // RFC 9110, 15.5.14
        Code::MediaTypeRefused => StatusCode::UNSUPPORTED_MEDIA_TYPE, // RFC 9110, 15.5.16
        Code::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS, // RFC 6585, 4
        Code::BodyRefused | Code::InputInvalid => StatusCode::BAD_REQUEST, // RFC 9110, 15.5.1
        // The handler's own word.
        Code::HandlerFailed => StatusCode::UNPROCESSABLE_ENTITY, // refined by the failure's class, below
        // Not now (RFC 9110, 15.6.4): nothing was changed, and Retry-After says when to come back.
        Code::Unreachable
        | Code::ConnectionLost
        | Code::PoolExhausted
        | Code::Locked
        | Code::ReadOnly
        | Code::Full
        | Code::TimeLimit
        | Code::CommitUnknown
        | Code::Conflict
        | Code::RecordTooNew
        | Code::AnswerLocked
        | Code::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        // A fault in the service (RFC 9110, 15.6.1): nothing was changed, and retrying alone does not help.
        Code::NoTransaction
        | Code::TransactionTaken
        | Code::TransactionEscaped
        | Code::OwnerMissing
        | Code::NotInTransaction
        | Code::OperationUnnamed
        | Code::TransactionBroken
        | Code::AnswerNotReplayable
        | Code::AnswerTooLarge
        | Code::HandlerPanicked
        | Code::CommitRefused
        | Code::NameInvalid
        | Code::AnswerChanged
        | Code::AnswerTampered
        | Code::Database
        | Code::NotPermitted
        | Code::TablesMissing
        | Code::OperationTaken
        | Code::TargetTaken
        | Code::EventInvalid
        | Code::LeaseLost
        | Code::ConfigurationInvalid
        | Code::RetryInvalid => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The class of a definitive failure that a handler expressed as a status; `None` for those that may pass.
///
/// They are those of the answers we get from others, but for 409: what conflicts here and now may not later.
pub(crate) fn class_of(status: StatusCode) -> Option<FailureClass> {
    match kind_of_status(status)? {
        FailureKind::Definitive(class) if status != StatusCode::CONFLICT => Some(class),
        _ => None,
    }
}

/// The status of a failure, and the rule it follows: RFC 9110, 15.5 and 15.6.
fn status_of_failure(kind: FailureKind) -> StatusCode {
    match kind {
        FailureKind::Definitive(FailureClass::Validation) => StatusCode::BAD_REQUEST,
        FailureKind::Definitive(FailureClass::BusinessRule) => StatusCode::UNPROCESSABLE_ENTITY,
        FailureKind::Definitive(FailureClass::NotFound) => StatusCode::NOT_FOUND,
        FailureKind::Definitive(FailureClass::Forbidden) => StatusCode::FORBIDDEN,
        // Not now: it may be tried again.
        FailureKind::Transient | FailureKind::Snooze => StatusCode::SERVICE_UNAVAILABLE,
        // In conflict with the state of things: somebody ended it. Trying again does not help, and it is never stored.
        FailureKind::Cancelled => StatusCode::CONFLICT,
        // It may have happened. A client that reads 503 takes it for undone; of a 500 it cannot tell, and neither can we.
        FailureKind::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// An error as a response. `status` where the route wants another one than the table's.
pub(crate) fn problem(error: &Error, base: &str, status: Option<StatusCode>) -> Response {
    let status = status.unwrap_or_else(|| status_of(error.code()));
    let body = json!({
        "type": format!("{base}/{}", error.code()),
        "title": error.code().title(),
        "status": status.as_u16(),
        "detail": error.to_string(),
        "code": error.code().as_str(),
    });
    let mut response = respond(status, &body);
    ask_to_come_back(&mut response, error.retry_after());
    response
}

/// In whole seconds, rounded up: never earlier than meant.
fn ask_to_come_back(response: &mut Response, after: Option<Duration>) {
    if let Some(after) = after {
        let seconds = after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0));
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
    }
}

fn respond(status: StatusCode, body: &serde_json::Value) -> Response {
    let headers = [(CONTENT_TYPE, "application/problem+json"), (CACHE_CONTROL, "no-store")];
    (status, headers, body.to_string()).into_response()
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        match self.failure() {
            Some(failure) => failure_response(failure),
            None => problem(&self, PROBLEM_BASE, None),
        }
    }
}

/// A handler may return a [`Failure`] as it is. The cause behind it stays on the server.
impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = failure_response(&self);
        if let Some(cause) = self.source() {
            tracing::warn!(code = self.code(), %cause, "the handler failed");
        }
        // The idempotent layer looks in here whether the database asks for a repetition.
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

fn failure_response(failure: &Failure) -> Response {
    let status = status_of_failure(failure.kind());
    let body = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("error"),
        "status": status.as_u16(),
        "detail": failure.message(),
        "code": failure.code(),
    });
    let mut response = respond(status, &body);
    // Nobody else is asked to: it would not help, or may be done twice.
    let soon = failure.retry_after().unwrap_or(Duration::from_secs(1));
    ask_to_come_back(&mut response, failure.is_transient().then_some(soon));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_says_when_to_come_back_and_nothing_else_does() {
        for &code in Code::ALL {
            let error = Error::new(code, "x");
            let says_when = problem(&error, PROBLEM_BASE, None).headers().contains_key(RETRY_AFTER);
            let may_pass = matches!(status_of(code).as_u16(), 409 | 429 | 503);
            assert_eq!(says_when, may_pass, "{code}");
        }
    }

    #[test]
    fn an_unknown_outcome_is_a_500_that_promises_nothing() {
        let response = Failure::from(Error::new(Code::CommitUnknown, "no reply")).into_response();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!response.headers().contains_key(RETRY_AFTER));
    }

    #[test]
    fn a_snooze_says_when_to_come_back_and_a_cancellation_does_not() {
        let snoozed = Failure::snooze(Duration::from_millis(2_500)).into_response();
        assert_eq!(snoozed.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(snoozed.headers()[RETRY_AFTER], "3");
        let for_ever = Failure::snooze(Duration::MAX).into_response();
        assert_eq!(for_ever.headers()[RETRY_AFTER], u64::MAX.to_string());
        let cancelled = Failure::cancelled().into_response();
        assert_eq!(cancelled.status(), StatusCode::CONFLICT);
        assert!(!cancelled.headers().contains_key(RETRY_AFTER));
        assert_eq!(class_of(cancelled.status()), None, "it is not stored");
    }

    #[test]
    fn statuses_that_may_pass_have_no_class() {
        for status in [200, 204, 302, 408, 409, 423, 425, 429, 500, 502, 503] {
            assert_eq!(
                class_of(StatusCode::from_u16(status).expect("a status")),
                None,
                "{status}"
            );
        }
        for status in [400, 401, 402, 403, 404, 405, 410, 412, 415, 418, 422, 451] {
            assert!(
                class_of(StatusCode::from_u16(status).expect("a status")).is_some(),
                "{status}"
            );
        }
    }
}
