//! The rules for what comes in. Its types are read by Steadfast, which refuses what does not fit.

use steadfast::{Failure, FailureClass};

/// A rule is broken: which one, and what to send instead.
pub(crate) fn invalid(detail: impl Into<String>) -> Failure {
    Failure::definitive(FailureClass::Validation, "invalid", detail)
}

/// Checks a text of a person: so many characters, none of them a control character.
///
/// PostgreSQL cannot store NUL at all, and no other control character belongs into one line of text.
pub(crate) fn check_text(name: &str, text: &str, length_max: usize) -> Result<(), Failure> {
    let length = text.chars().count();
    if length == 0 || length > length_max {
        return Err(invalid(format!(
            "{name} has {length} characters; send 1 to {length_max}"
        )));
    }
    if text.chars().any(char::is_control) {
        return Err(invalid(format!("{name} has a control character; send printable text")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_short_and_printable() {
        for good in ["x", "Earl Grey № 5", &"ä".repeat(64)] {
            assert!(check_text("sku", good, 64).is_ok(), "{good:?}");
        }
        for bad in ["", "a\0b", "a\nb", "\u{7f}", &"a".repeat(65)] {
            assert!(check_text("sku", bad, 64).is_err(), "{bad:?}");
        }
    }
}
