//! What comes in, read into types and checked. Every refusal is a problem, never a line of plain text.

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::{Form, Json};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::problem::Problem;

/// A request body that can say whether it keeps the rules.
pub(crate) trait Rules: DeserializeOwned {
    /// Whether it may also come as a form.
    const TAKES_FORMS: bool = false;

    /// Which rule is broken, and what to send instead.
    fn check(&self) -> Result<(), String>;
}

/// A body that was read and keeps the rules.
pub(crate) struct Input<T>(pub(crate) T);

impl<T: Rules, S: Send + Sync> FromRequest<S> for Input<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let value: T = if T::TAKES_FORMS && is_form(&request) {
            let Form(value) = Form::from_request(request, state)
                .await
                .map_err(|rejection| refuse(rejection.status(), rejection.body_text()))?;
            value
        } else {
            let Json(value) = Json::from_request(request, state)
                .await
                .map_err(|rejection| refuse(rejection.status(), rejection.body_text()))?;
            value
        };
        value.check().map_err(Problem::unprocessable)?;
        Ok(Self(value))
    }
}

fn is_form(request: &Request) -> bool {
    let media_type = request.headers().get(CONTENT_TYPE);
    media_type.is_some_and(|value| value.as_bytes().starts_with(b"application/x-www-form-urlencoded"))
}

/// axum's words in the shop's form.
fn refuse(status: StatusCode, detail: String) -> Problem {
    match status {
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Problem::new(status, "unsupported_media_type", detail),
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(status, "too_large", detail),
        _ => Problem::unprocessable(detail),
    }
}

/// The id in a path. What is no id names nothing, so it is a 404 like any other unknown one.
pub(crate) struct Id(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = Path::<String>::from_request_parts(parts, state).await.ok();
        text.and_then(|Path(text)| Uuid::parse_str(&text).ok())
            .map(|id| Self(id.to_string()))
            .ok_or_else(|| Problem::not_found("this is not the id of anything; ids are UUIDs"))
    }
}

/// Checks a text of a person: so many characters, none of them a control character.
///
/// PostgreSQL cannot store NUL at all, and no other control character belongs into one line of text.
pub(crate) fn check_text(name: &str, text: &str, length_max: usize) -> Result<(), String> {
    let length = text.chars().count();
    if length == 0 || length > length_max {
        return Err(format!("{name} has {length} characters; send 1 to {length_max}"));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("{name} has a control character; send printable text"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_short_and_printable() {
        for good in ["x", "Earl Grey № 5", &"ä".repeat(64)] {
            assert_eq!(check_text("sku", good, 64), Ok(()), "{good:?}");
        }
        for bad in ["", "a\0b", "a\nb", "\u{7f}", &"a".repeat(65)] {
            assert!(check_text("sku", bad, 64).is_err(), "{bad:?}");
        }
    }
}
