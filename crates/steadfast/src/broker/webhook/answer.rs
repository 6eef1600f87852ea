//! What an answer means for the message.

use std::time::{Duration, SystemTime};

use bytes::Buf;
use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::broker::Confirmation;
use crate::failure::{Failure, FailureClass};

/// For how long the other side may put a message off. Whoever asks for more has made a mistake.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How much of an answer is kept, to show what the other side said.
const KEPT_MAX: usize = 4 * 1024;

/// How much of an answer is read, so that the connection can be used again. It is closed if there is more.
const READ_MAX: usize = 64 * 1024;

/// How long that may take. The status has come by then: nobody waits for more than a courtesy.
const READ_TIME_MAX: Duration = Duration::from_secs(1);

/// What the other side answered.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Read,
}

/// What was read of its body.
#[derive(Default)]
struct Read {
    text: Vec<u8>,
    /// Whether that was all.
    is_whole: bool,
}

impl Answer {
    /// Reads an answer, as far as it is worth it.
    pub(super) async fn read(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        Self {
            status: head.status,
            headers: head.headers,
            body: read(body).await,
        }
    }

    /// Whether it was read to its end.
    pub(super) fn is_whole(&self) -> bool {
        self.body.is_whole
    }

    /// The beginning of its words, on one line.
    pub(super) fn words(&self) -> String {
        let text = String::from_utf8_lossy(&self.body.text).replace(char::is_control, " ");
        text.trim().to_owned()
    }

    /// What it means for the message that was sent to this endpoint.
    pub(super) fn verdict(&self, origin: &str) -> Result<Confirmation, Failure> {
        let status = self.status;
        if status.is_success() {
            return Ok(Confirmation::new(status.to_string()));
        }
        let says = match &*self.words() {
            "" => String::new(),
            words => format!(": {words}"),
        };
        if status.is_redirection() {
            let message =
                format!("{origin} answered {status}, and webhooks follow nobody; give them its new URL{says}");
            return Err(Failure::definitive(FailureClass::NotFound, "redirected", message));
        }
        let code = format!("http_{}", status.as_u16());
        let message = format!("{origin} answered {status}{says}");
        Err(match status.as_u16() {
            // No answer to a request: somebody in between has mixed something up.
            ..200 => Failure::unknown(code, message),
            408 | 425 | 429 | 500.. => {
                let failure = Failure::transient(code, message);
                match retry_after(&self.headers) {
                    Some(after) => failure.with_retry_after(after),
                    None => failure,
                }
            }
            404 | 410 => Failure::definitive(FailureClass::NotFound, code, message),
            401 | 403 => Failure::definitive(FailureClass::Forbidden, code, message),
            _ => Failure::definitive(FailureClass::Validation, code, message),
        })
    }
}

async fn read(mut body: Incoming) -> Read {
    let mut read = Read::default();
    let mut length = 0;
    let reading = async {
        while length < READ_MAX {
            match body.frame().await {
                None => read.is_whole = true,
                Some(Ok(frame)) => {
                    let Ok(mut data) = frame.into_data() else { continue };
                    length += data.len();
                    let kept = data.len().min(KEPT_MAX - read.text.len());
                    read.text.extend_from_slice(&data.copy_to_bytes(kept));
                    continue;
                }
                Some(Err(_)) => {}
            }
            break;
        }
    };
    // What has been read by then is what there is.
    let _ = tokio::time::timeout(READ_TIME_MAX, reading).await;
    read
}

/// When to come back: a number of seconds or a date. A date is held against the other side's own clock if it shows it.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let asked = text(RETRY_AFTER)?;
    if let Ok(seconds) = asked.parse() {
        return Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
    }
    let then = httpdate::parse_http_date(asked).ok()?;
    let now = text(DATE).and_then(|date| httpdate::parse_http_date(date).ok());
    let now = now.unwrap_or_else(SystemTime::now);
    // What is over is now.
    Some(then.duration_since(now).unwrap_or_default().min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureKind;
    use http::HeaderValue;

    fn judged(status: u16, headers: &[(HeaderName, &'static str)], text: &str) -> Result<Confirmation, Failure> {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        let answer = Answer {
            status: StatusCode::from_u16(status).expect("a status"),
            headers: headers.collect(),
            body: Read {
                text: text.into(),
                is_whole: true,
            },
        };
        answer.verdict("https://example.org")
    }

    fn refused(status: u16) -> Failure {
        judged(status, &[], "").expect_err("no success")
    }

    #[test]
    fn every_success_confirms_the_message() {
        for (status, place) in [(200, "200 OK"), (202, "202 Accepted"), (204, "204 No Content")] {
            assert_eq!(
                judged(status, &[], "ignored").expect("a success"),
                Confirmation::new(place)
            );
        }
    }

    #[test]
    fn what_may_pass_is_tried_again_and_what_does_not_is_not() {
        for status in [408, 425, 429, 500, 501, 502, 503, 504, 599] {
            assert_eq!(refused(status).kind(), FailureKind::Transient, "{status}");
        }
        for status in [400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 451] {
            assert!(matches!(refused(status).kind(), FailureKind::Definitive(_)), "{status}");
        }
        for status in [300, 301, 302, 303, 304, 307, 308] {
            let failure = refused(status);
            assert!(matches!(failure.kind(), FailureKind::Definitive(_)), "{status}");
            assert_eq!(failure.code(), "redirected");
        }
        assert_eq!(refused(404).code(), "http_404");
    }

    #[test]
    fn the_other_sides_words_are_kept_on_one_line() {
        let failure = judged(422, &[], "no such\r\nsku\0").expect_err("a 422");
        let message = "https://example.org answered 422 Unprocessable Entity: no such  sku";
        assert_eq!(failure.message(), message);
    }

    #[test]
    fn retry_after_is_a_number_or_a_date() {
        let asked = |status, headers: &[_]| judged(status, headers, "").expect_err("no success").retry_after();
        let date = (DATE, "Fri, 31 Dec 1999 23:59:00 GMT");
        let later = (RETRY_AFTER, "Fri, 31 Dec 1999 23:59:59 GMT");
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(asked(429, &[(RETRY_AFTER, " 120 ")]), seconds(120));
        assert_eq!(asked(503, &[(RETRY_AFTER, "0")]), seconds(0));
        assert_eq!(
            asked(503, &[date.clone(), later.clone()]),
            seconds(59),
            "by their clock"
        );
        assert_eq!(asked(503, &[later]), seconds(0), "by ours it is over");
        let far = asked(503, &[(RETRY_AFTER, "Fri, 31 Dec 2100 23:59:59 GMT")]);
        assert_eq!(far, Some(RETRY_AFTER_MAX));
        assert_eq!(asked(503, &[(RETRY_AFTER, "18446744073709551615")]), far);
        for nothing in ["", "-1", "1.5", "soon", "99999999999999999999"] {
            assert_eq!(asked(429, &[(RETRY_AFTER, nothing)]), None, "{nothing:?}");
        }
    }
}
