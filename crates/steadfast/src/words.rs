//! Words in messages: what is known, and what was probably meant.
//!
//! The macros compile this same file (`crates/macros/src/words.rs` is a link to it).

/// `a`, `b` or `c`, for a message.
pub(crate) fn list(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// The known word that was probably meant: at most a third of it is different.
pub(crate) fn did_you_mean(word: &str, known: &[&str]) -> String {
    let near = known.iter().map(|known| (distance(word, known), known));
    match near.min_by_key(|(distance, _)| *distance) {
        Some((distance, known)) if distance <= known.len().div_ceil(3) => format!("; did you mean `{known}`?"),
        _ => String::new(),
    }
}

/// How many letters must be added, removed or replaced to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (column, known) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *known);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_nearly_known_is_guessed_and_others_are_not() {
        let known = ["retention", "route", "scope"];
        assert_eq!(did_you_mean("retenion", &known), "; did you mean `retention`?");
        assert_eq!(did_you_mean("rout", &known), "; did you mean `route`?");
        assert_eq!(did_you_mean("timeout", &known), "");
    }

    #[test]
    fn words_are_listed_as_a_person_would() {
        assert_eq!(list(&["a"]), "`a`");
        assert_eq!(list(&["a", "b", "c"]), "`a`, `b` or `c`");
    }
}
