//! One spelling for each JSON text: RFC 8785, except that numbers keep their digits.
//!
//! A retry may come from another client library, with members in another order and other white space;
//! it is still the same wish. RFC 8785 sends every number through an IEEE double, so that
//! `9007199254740993` and `9007199254740992` become one. For money that is a wrong replay, so here the
//! decimal digits themselves are written in RFC 8785's form: the result is the same for every number
//! of up to 15 digits, and longer ones stay apart. Two members of one name are refused, because two
//! parsers would read two different wishes.

use std::fmt::{self, Write};

/// How deep arrays and objects may nest; `serde_json` refuses the same depth.
pub(crate) const DEPTH_MAX: usize = 128;

/// Why a text is not JSON we accept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JsonError {
    what: String,
    position: usize,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.position)
    }
}

/// Rewrites `text` in its canonical form, keeping only the top-level members that `keep` accepts.
pub(crate) fn canonical(text: &[u8], keep: impl Fn(&str) -> bool) -> Result<String, JsonError> {
    let text = std::str::from_utf8(text).map_err(|error| JsonError {
        what: "the text is not UTF-8".into(),
        position: error.valid_up_to(),
    })?;
    let mut reader = Reader { text, position: 0 };
    let mut out = String::with_capacity(text.len());
    reader.skip_space();
    reader.value(&mut out, 0, &keep)?;
    reader.skip_space();
    if reader.position < text.len() {
        return Err(reader.error("there is more text after the value"));
    }
    Ok(out)
}

struct Reader<'t> {
    text: &'t str,
    position: usize,
}

impl Reader<'_> {
    fn error(&self, what: impl Into<String>) -> JsonError {
        JsonError {
            what: what.into(),
            position: self.position,
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.position).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.position += usize::from(found);
        found
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.position += 1;
        }
    }

    fn value(&mut self, out: &mut String, depth: usize, keep: &dyn Fn(&str) -> bool) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'{' | b'[') if depth == DEPTH_MAX => {
                Err(self.error(format!("the value is nested deeper than {DEPTH_MAX}")))
            }
            Some(b'{') => self.object(out, depth, keep),
            Some(b'[') => self.array(out, depth),
            Some(b'"') => {
                let string = self.string()?;
                write_string(out, &string);
                Ok(())
            }
            Some(b'-' | b'0'..=b'9') => self.number(out),
            _ => self.word(out),
        }
    }

    fn word(&mut self, out: &mut String) -> Result<(), JsonError> {
        let rest = &self.text[self.position..];
        for word in ["true", "false", "null"] {
            if rest.starts_with(word) {
                self.position += word.len();
                out.push_str(word);
                return Ok(());
            }
        }
        Err(self.error("a value is expected"))
    }

    fn array(&mut self, out: &mut String, depth: usize) -> Result<(), JsonError> {
        self.position += 1;
        out.push('[');
        self.skip_space();
        if !self.take(b']') {
            loop {
                self.skip_space();
                self.value(out, depth + 1, &|_| true)?;
                self.skip_space();
                if self.take(b']') {
                    break;
                }
                if !self.take(b',') {
                    return Err(self.error("`,` or `]` is expected"));
                }
                out.push(',');
            }
        }
        out.push(']');
        Ok(())
    }

    fn object(&mut self, out: &mut String, depth: usize, keep: &dyn Fn(&str) -> bool) -> Result<(), JsonError> {
        self.position += 1;
        let mut members: Vec<(String, String)> = Vec::new();
        self.skip_space();
        if !self.take(b'}') {
            loop {
                self.skip_space();
                if self.peek() != Some(b'"') {
                    return Err(self.error("a member name in quotes is expected"));
                }
                let name = self.string()?;
                self.skip_space();
                if !self.take(b':') {
                    return Err(self.error("`:` is expected"));
                }
                self.skip_space();
                let mut value = String::new();
                self.value(&mut value, depth + 1, &|_| true)?;
                members.push((name, value));
                self.skip_space();
                if self.take(b'}') {
                    break;
                }
                if !self.take(b',') {
                    return Err(self.error("`,` or `}` is expected"));
                }
            }
        }
        // RFC 8785 sorts by UTF-16 code units, which differs from UTF-8 order beyond the first plane.
        members.sort_by(|left, right| left.0.encode_utf16().cmp(right.0.encode_utf16()));
        if let Some(twins) = members.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(self.error(format!(
                "the member {:?} appears twice in an object that ends",
                twins[0].0
            )));
        }
        out.push('{');
        let mut first = true;
        for (name, value) in members.iter().filter(|(name, _)| keep(name)) {
            if !std::mem::take(&mut first) {
                out.push(',');
            }
            write_string(out, name);
            out.push(':');
            out.push_str(value);
        }
        out.push('}');
        Ok(())
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.position += 1;
        let mut string = String::new();
        loop {
            let rest = &self.text[self.position..];
            let Some(character) = rest.chars().next() else {
                return Err(self.error("a string does not end"));
            };
            match character {
                '"' => {
                    self.position += 1;
                    return Ok(string);
                }
                '\\' => string.push(self.escape()?),
                '\0'..='\u{1f}' => return Err(self.error("a control character in a string is not escaped")),
                _ => {
                    string.push(character);
                    self.position += character.len_utf8();
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        self.position += 1;
        let Some(byte) = self.peek() else {
            return Err(self.error("a string does not end"));
        };
        self.position += 1;
        Ok(match byte {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex()?;
                let unit = match first {
                    0xD800..=0xDBFF => {
                        if !(self.take(b'\\') && self.take(b'u')) {
                            return Err(self.error("a surrogate stands alone"));
                        }
                        let second = self.hex()?;
                        if !(0xDC00..=0xDFFF).contains(&second) {
                            return Err(self.error("a surrogate stands alone"));
                        }
                        0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
                    }
                    unit => unit,
                };
                char::from_u32(unit).ok_or_else(|| self.error("a surrogate stands alone"))?
            }
            _ => return Err(self.error("an unknown escape")),
        })
    }

    fn hex(&mut self) -> Result<u32, JsonError> {
        let digits = self
            .text
            .as_bytes()
            .get(self.position..self.position + 4)
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .ok_or_else(|| self.error("four hexadecimal digits are expected"))?;
        self.position += 4;
        Ok(digits
            .iter()
            .fold(0, |unit, &digit| unit * 16 + (digit as char).to_digit(16).unwrap_or(0)))
    }

    fn digits(&mut self) -> Result<&str, JsonError> {
        let start = self.position;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.position += 1;
        }
        if start == self.position {
            return Err(self.error("a digit is expected"));
        }
        Ok(&self.text[start..self.position])
    }

    fn number(&mut self, out: &mut String) -> Result<(), JsonError> {
        let negative = self.take(b'-');
        let mut digits = self.digits()?.to_owned();
        if digits.len() > 1 && digits.starts_with('0') {
            return Err(self.error("a number starts with 0"));
        }
        let mut point = digits.len() as i64;
        if self.take(b'.') {
            digits.push_str(self.digits()?);
        }
        if self.take(b'e') || self.take(b'E') {
            let minus = self.take(b'-');
            let _plus = !minus && self.take(b'+');
            let exponent: i32 = self
                .digits()?
                .parse()
                .map_err(|_| self.error("the exponent is too large"))?;
            point += i64::from(if minus { -exponent } else { exponent });
        }
        let leading = digits.len() - digits.trim_start_matches('0').len();
        let significant = digits.trim_start_matches('0').trim_end_matches('0');
        write_number(out, negative, significant, point - leading as i64);
        Ok(())
    }
}

/// Writes `0.{digits} × 10^point` the way ECMAScript (and so RFC 8785) writes a number.
fn write_number(out: &mut String, negative: bool, digits: &str, point: i64) {
    if digits.is_empty() {
        out.push('0');
        return;
    }
    if negative {
        out.push('-');
    }
    let count = digits.len() as i64;
    let zeros = |out: &mut String, count: i64| out.extend(std::iter::repeat_n('0', count as usize));
    if count <= point && point <= 21 {
        out.push_str(digits);
        zeros(out, point - count);
    } else if 0 < point && point <= 21 {
        let (whole, fraction) = digits.split_at(point as usize);
        let _ = write!(out, "{whole}.{fraction}");
    } else if -6 < point && point <= 0 {
        out.push_str("0.");
        zeros(out, -point);
        out.push_str(digits);
    } else {
        let (first, rest) = digits.split_at(1);
        out.push_str(first);
        if !rest.is_empty() {
            let _ = write!(out, ".{rest}");
        }
        let _ = write!(out, "e{:+}", point - 1);
    }
}

fn write_string(out: &mut String, string: &str) {
    out.push('"');
    for character in string.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", character as u32);
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> Result<String, JsonError> {
        canonical(text.as_bytes(), |_| true)
    }

    #[test]
    fn the_examples_of_rfc_8785_come_out_as_printed_there() {
        let text = "{\"numbers\": [1E30, 4.50, 2e-3, 0.000000000000000000000000001, 56],\
            \"string\": \"\\u20ac$\\u000F\\u000aA'\\u0042\\u0022\\u005c\\\\\\\"\\/\",\
            \"literals\": [null, true, false]}";
        assert_eq!(
            form(text).expect("valid"),
            "{\"literals\":[null,true,false],\"numbers\":[1e+30,4.5,0.002,1e-27,56],\
             \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}"
        );
        let order = r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#;
        assert_eq!(
            form(order).expect("valid"),
            "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}"
        );
    }

    #[test]
    fn equal_numbers_have_one_spelling_and_unequal_ones_stay_apart() {
        for (spellings, expected) in [
            (&["1", "1.0", "10e-1", "1E0", "0.1e1", "1e+0"][..], "1"),
            (&["0", "-0", "0.000", "0e5", "-0.0e-3"], "0"),
            (&["100", "1e2", "1.00E+2"], "100"),
            (&["-12.5", "-1.25e1", "-125e-1"], "-12.5"),
            (&["1e21"], "1e+21"),
            (&["1e20"], "100000000000000000000"),
            (&["0.000001"], "0.000001"),
            (&["0.0000001"], "1e-7"),
            (&["1.5e400"], "1.5e+400"),
        ] {
            for spelling in spellings {
                assert_eq!(form(spelling).as_deref(), Ok(expected), "{spelling}");
            }
        }
        assert_ne!(form("9007199254740993"), form("9007199254740992"));
        assert_ne!(form("0.12345678901234567890"), form("0.12345678901234567891"));
    }

    #[test]
    fn a_canonical_text_is_its_own_canonical_form() {
        for text in [
            r#" { "b" : [ 1 , { "z" : null , "a" : "\u0041" } ] , "a" : -0.50 } "#,
            "[]",
            "\"\\u0000\"",
            "123456789012345678901234567890.5",
            "5e-324",
        ] {
            let once = form(text).expect("valid");
            assert_eq!(form(&once).expect("canonical"), once);
            let _: serde_json::Value = serde_json::from_str(&once).expect("still JSON");
        }
    }

    #[test]
    fn member_order_and_white_space_do_not_matter_but_values_do() {
        assert_eq!(form(r#"{"a":1,"b":[1,2]}"#), form("{ \"b\" : [1, 2],\n\"a\":1.0 }"));
        assert_ne!(form(r#"{"a":1,"b":[1,2]}"#), form(r#"{"a":1,"b":[2,1]}"#));
        assert_ne!(form(r#"{"a":"1"}"#), form(r#"{"a":1}"#));
    }

    #[test]
    fn only_kept_members_of_the_top_level_remain() {
        let kept = canonical(br#"{"a":1,"at":"now","b":{"at":2}}"#, |name| name != "at");
        assert_eq!(kept.as_deref(), Ok(r#"{"a":1,"b":{"at":2}}"#));
    }

    #[test]
    fn doubled_members_are_refused_however_they_are_spelled() {
        for text in [r#"{"a":1,"a":1}"#, r#"{"a":1,"\u0061":2}"#, r#"[{"x":{"b":1,"b":2}}]"#] {
            assert!(form(text).expect_err(text).to_string().contains("appears twice"));
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_position() {
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "-",
            "+1",
            "1e",
            "nul",
            "tru",
            "NaN",
            "\"",
            "\"\\x\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\\udc00\"",
            "\"\n\"",
            "1 2",
            "[1}",
            "\u{feff}1",
            "'a'",
            "1e99999999999999",
            "\"\\u00g0\"",
            "\"\\u+123\"",
            "{\"a\":1,}",
        ] {
            assert!(form(text).is_err(), "{text:?}");
        }
        assert!(canonical(b"\"\xff\"", |_| true).is_err());
        assert!(
            form(&"[".repeat(100_000))
                .expect_err("deep")
                .to_string()
                .contains("nested deeper")
        );
        assert!(form(&format!("{}1{}", "[".repeat(128), "]".repeat(128))).is_ok());
        assert!(form(&format!("{}1{}", "[".repeat(129), "]".repeat(129))).is_err());
    }
}
