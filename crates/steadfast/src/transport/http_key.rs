//! Where the key is in an HTTP request.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::error::{Code, Error, Result};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// What clients sent before there was a draft.
const X_IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("x-idempotency-key");

/// The key's value, if the request has one.
///
/// The draft makes it a structured string in quotes; nearly all clients send it bare, so both are read.
pub(super) fn find(headers: &HeaderMap) -> Result<Option<String>> {
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
        find(&headers)
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
