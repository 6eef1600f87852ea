//! The names of events and of the targets that react to them.
//!
//! The macros compile this same file (`crates/macros/src/name.rs` is a link to it): what an attribute accepts at compile
//! time and what a call accepts at run time cannot differ.

/// Names stand in rows, in indexes and on lines of logs.
const LENGTH_MAX: usize = 100;

/// Whether rows can be stored under a name. What is wrong is said with what to write instead.
///
/// A space, an `@` and a `*` have a meaning of their own where names are put together, so there are none.
pub(crate) fn check(name: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-' | '.');
    let wrong = match name.chars().find(|c| !is_allowed(*c)) {
        _ if name.is_empty() => "is no name".to_owned(),
        Some(c) => format!("has {c:?} in it"),
        None if name.len() > LENGTH_MAX => format!("has {} characters", name.len()),
        None if name.split('.').any(str::is_empty) => "has an empty part".to_owned(),
        None => return Ok(()),
    };
    Err(format!(
        "{name:?} {wrong}; write 1 to {LENGTH_MAX} lower-case letters, digits, `_` and `-`, in parts with a dot between them, as in \"order.placed\""
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_words_with_dots_between_them() {
        let longest = "a".repeat(LENGTH_MAX);
        for name in ["order.placed", "a", "order_2.line-item.placed", "7", &longest] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        let too_long = "a".repeat(LENGTH_MAX + 1);
        for (name, says) in [
            ("", "\"\" is no name; "),
            ("OrderPlaced", "\"OrderPlaced\" has 'O' in it; "),
            ("order placed", "\"order placed\" has ' ' in it; "),
            ("order.*", "\"order.*\" has '*' in it; "),
            ("bestellung.geändert", "\"bestellung.geändert\" has 'ä' in it; "),
            (".placed", "\".placed\" has an empty part; "),
            ("order..placed", "\"order..placed\" has an empty part; "),
            ("order.", "\"order.\" has an empty part; "),
            (&too_long, &format!("{too_long:?} has 101 characters; ")),
        ] {
            let said = check(name).expect_err(name);
            assert!(said.starts_with(says), "{said}");
        }
    }
}
