//! Values in headers and URLs.

use std::borrow::Cow;
use std::fmt::Write;

/// A value as a header of HTTP or NATS has it, by the bindings of CloudEvents: what is not printable ASCII, and `"`, `%` and
/// the space, as a percent sign and two digits for each byte.
pub(crate) fn percent_encoded<'v>(value: impl Into<Cow<'v, str>>) -> Cow<'v, str> {
    let value = value.into();
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'%');
    if value.bytes().all(is_plain) {
        return value;
    }
    let mut encoded = String::with_capacity(value.len() + 8);
    for byte in value.bytes() {
        // A String takes everything.
        let _ = match is_plain(byte) {
            true => encoded.write_char(char::from(byte)),
            false => write!(encoded, "%{byte:02X}"),
        };
    }
    encoded.into()
}

/// The value behind what a URL has, or nothing if it is none of UTF-8.
pub(crate) fn percent_decoded(encoded: &str) -> Option<String> {
    let mut parts = encoded.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_printable_whatever_the_value_is() {
        assert_eq!(percent_encoded("order-17"), "order-17");
        assert_eq!(
            percent_encoded("Euro € \"100%\"\r\n"),
            "Euro%20%E2%82%AC%20%22100%25%22%0D%0A"
        );
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let odd = "Euro € \"100%\"\r\n";
        assert_eq!(percent_decoded(&percent_encoded(odd)).as_deref(), Some(odd));
        for wrong in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(percent_decoded(wrong), None, "{wrong}");
        }
    }
}
