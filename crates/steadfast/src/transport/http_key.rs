//! Where the key is in an HTTP request.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use crate::error::{Code, Error, Result};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// What clients sent before there was a draft.
const X_IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("x-idempotency-key");

/// The key's value in a header, if there is one.
///
/// The draft makes it a structured string in quotes; nearly all clients send it bare, so both are read.
pub(super) fn of_header(headers: &HeaderMap) -> Result<Option<String>> {
    let mut values = headers
        .get_all(IDEMPOTENCY_KEY)
        .iter()
        .chain(headers.get_all(X_IDEMPOTENCY_KEY));
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(invalid(
            "the request has more than one idempotency key; send exactly one Idempotency-Key header",
        ));
    }
    read(value).map(Some)
}

/// The one value of a key that may be in a header and in a member of the body.
pub(super) fn one(of_header: Option<String>, of_body: Option<Value>, field: &str) -> Result<Option<String>> {
    match (of_header, of_body) {
        (header, None | Some(Value::Null)) => Ok(header),
        (Some(header), Some(Value::String(member))) if header != member => Err(invalid(&format!(
            "the Idempotency-Key header and {field:?} in the body are different; send one of them, or the same in both"
        ))),
        (_, Some(Value::String(member))) => Ok(Some(member)),
        (_, Some(_)) => Err(invalid(&format!(
            "{field:?} in the body is the idempotency key, and it is not text; send a string"
        ))),
    }
}

fn read(value: &HeaderValue) -> Result<String> {
    let text = value
        .to_str()
        .map_err(|_| invalid("the idempotency key is not visible ASCII; send 1 to 255 visible ASCII characters"))?
        .trim();
    match text.strip_prefix('"') {
        Some(quoted) => unquote(quoted),
        None if text.contains([';', ',', '"']) => Err(invalid(
            "the idempotency key contains one of ; , \" which separate parameters and lists; send it as a quoted string",
        )),
        None => Ok(text.to_owned()),
    }
}

/// Reads the rest of an RFC 8941 string, after its first quote.
fn unquote(quoted: &str) -> Result<String> {
    let mut text = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                return match characters.as_str() {
                    "" => Ok(text),
                    _ => Err(invalid(
                        "the idempotency key has parameters; send only the quoted string",
                    )),
                };
            }
            '\\' => match characters.next() {
                Some(escaped @ ('"' | '\\')) => text.push(escaped),
                _ => return Err(invalid("the idempotency key has an escape other than \\\" and \\\\")),
            },
            _ => text.push(character),
        }
    }
    Err(invalid(
        "the idempotency key begins with a quote and does not end with one",
    ))
}

fn invalid(message: &str) -> Error {
    Error::new(Code::KeyInvalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(values: &[(&'static str, &'static [u8])]) -> Result<Option<String>> {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(*name, HeaderValue::from_bytes(value).expect("a header value"));
        }
        of_header(&headers)
    }

    #[test]
    fn a_key_is_read_bare_or_quoted_from_both_headers() {
        for (name, value, key) in [
            ("idempotency-key", &b"k-1"[..], "k-1"),
            ("idempotency-key", b"\"k-1\"", "k-1"),
            ("idempotency-key", b"  k-1 ", "k-1"),
            ("x-idempotency-key", b"k-1", "k-1"),
            ("idempotency-key", br#""a\"b\\c;d,e""#, "a\"b\\c;d,e"),
        ] {
            assert_eq!(found(&[(name, value)]).expect(key).as_deref(), Some(key));
        }
        assert_eq!(found(&[]).expect("no header"), None);
    }

    #[test]
    fn a_key_in_two_places_is_text_and_the_same_in_both() {
        use serde_json::json;
        let text = |text: &str| Some(text.to_owned());
        for (header, member, key) in [
            (text("a"), Some(json!("a")), text("a")),
            (text("a"), None, text("a")),
            (text("a"), Some(json!(null)), text("a")),
            (None, Some(json!("b")), text("b")),
            (None, None, None),
        ] {
            assert_eq!(one(header, member, "request_id").expect("one key"), key);
        }
        for (header, member) in [(text("a"), json!("b")), (None, json!(7)), (text("a"), json!(["a"]))] {
            let refused = one(header, Some(member), "request_id").expect_err("no one key");
            assert_eq!(refused.code(), Code::KeyInvalid);
            assert!(refused.to_string().contains("request_id"));
        }
    }

    #[test]
    fn doubled_parametrised_and_non_ascii_keys_are_refused() {
        for values in [
            &[("idempotency-key", &b"a"[..]), ("idempotency-key", b"a")][..],
            &[("idempotency-key", b"a"), ("x-idempotency-key", b"a")],
            &[("idempotency-key", b"\"a\";v=1")],
            &[("idempotency-key", b"a;v=1")],
            &[("idempotency-key", b"a,b")],
            &[("idempotency-key", b"\"a")],
            &[("idempotency-key", b"\"a\\n\"")],
            &[("idempotency-key", b"\xc3\xa9")],
        ] {
            assert_eq!(
                found(values).expect_err("refused").code(),
                Code::KeyInvalid,
                "{values:?}"
            );
        }
    }
}
