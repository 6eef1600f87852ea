//! Reads SPDX licence expressions, as far as crates use them.
//!
//! `AND` binds tighter than `OR`; the slash of old manifests means `OR`. `WITH` an exception only
//! ever adds rights, so a licence with one is acceptable when the licence is.

use crate::error::{Error, Result};

/// Licences that ask for no more than a notice.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether the allowed licences are enough to use something under this expression.
pub(super) fn is_acceptable(expression: &str) -> Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut reader = Reader {
        words: spaced.split_whitespace().collect(),
        expression,
    };
    reader.words.reverse();
    let acceptable = reader.any()?;
    match reader.words.pop() {
        None => Ok(acceptable),
        Some(word) => Err(reader.surprised_by(Some(word))),
    }
}

/// What is left to read, the next word last.
struct Reader<'a> {
    words: Vec<&'a str>,
    expression: &'a str,
}

impl<'a> Reader<'a> {
    /// `a OR b`. Both sides are read even if the first suffices.
    fn any(&mut self) -> Result<bool> {
        let mut acceptable = self.all()?;
        while self.take("OR") {
            acceptable |= self.all()?;
        }
        Ok(acceptable)
    }

    /// `a AND b`.
    fn all(&mut self) -> Result<bool> {
        let mut acceptable = self.one()?;
        while self.take("AND") {
            acceptable &= self.one()?;
        }
        Ok(acceptable)
    }

    /// `( … )`, `licence`, or `licence WITH exception`.
    fn one(&mut self) -> Result<bool> {
        if self.take("(") {
            let acceptable = self.any()?;
            let closed = self.take(")");
            let next = self.words.last().copied();
            return closed.then_some(acceptable).ok_or_else(|| self.surprised_by(next));
        }
        let acceptable = ALLOWED.contains(&self.name()?.trim_end_matches('+'));
        if self.take("WITH") {
            self.name()?;
        }
        Ok(acceptable)
    }

    fn name(&mut self) -> Result<&'a str> {
        match self.words.pop() {
            Some(word) if !["AND", "OR", "WITH", "(", ")"].contains(&word) => Ok(word),
            other => Err(self.surprised_by(other)),
        }
    }

    fn take(&mut self, word: &str) -> bool {
        self.words.pop_if(|next| *next == word).is_some()
    }

    fn surprised_by(&self, word: Option<&str>) -> Error {
        let what = word.map_or_else(
            || "it ends too early".to_owned(),
            |word| format!("`{word}` is out of place"),
        );
        Error::new(format!("in `{}`, {what}", self.expression))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(expression: &str) -> bool {
        is_acceptable(expression).expect("a sound expression")
    }

    #[test]
    fn one_of_two_suffices() {
        assert!(accepts("MIT OR GPL-3.0-only"));
        assert!(accepts("GPL-3.0-only OR MIT"));
        assert!(!accepts("GPL-3.0-only OR LGPL-2.1-or-later"));
    }

    #[test]
    fn both_of_two_are_needed() {
        assert!(accepts("Apache-2.0 AND ISC"));
        assert!(!accepts("MIT AND GPL-3.0-only"));
    }

    #[test]
    fn and_binds_tighter_than_or() {
        assert!(accepts("MIT OR Apache-2.0 AND GPL-3.0-only"));
        assert!(!accepts("(MIT OR Apache-2.0) AND GPL-3.0-only"));
        assert!(accepts("(MIT OR Apache-2.0) AND Unicode-3.0"));
    }

    #[test]
    fn the_old_slash_means_or() {
        assert!(accepts("MIT/Apache-2.0"));
        assert!(accepts("GPL-3.0 / MIT"));
    }

    #[test]
    fn an_exception_adds_rights() {
        assert!(accepts("Apache-2.0 WITH LLVM-exception OR BSL-1.0"));
        assert!(!accepts("GPL-2.0 WITH Classpath-exception-2.0"));
    }

    #[test]
    fn a_broken_expression_is_an_error() {
        for broken in ["", "MIT OR", "OR MIT", "(MIT", "MIT)", "MIT Apache-2.0", "()"] {
            assert!(is_acceptable(broken).is_err(), "{broken}");
        }
    }
}
