//! What `#[steadfast::service]`, `#[derive(Event)]` and `retry!` refuse, and the exact words: one file in `fail/` for each kind of
//! mistake. What they take without a word is in `pass/`, and in `tests/service`.
//!
//! The words of rustc itself differ between its versions: the files are those of the toolchain of this workspace. After a
//! change of ours, `TRYBUILD=overwrite cargo test -p steadfast --all-features --test ui` writes them anew; read them.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::collections::BTreeSet;

use steadfast::Diagnostic;

#[test]
fn mistakes_are_said_at_their_place_with_code_and_advice() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/fail/*.rs");
    cases.pass("tests/ui/pass/*.rs");
}

/// Every code that is said is explained, and every code that is explained is said somewhere here.
#[test]
fn every_code_of_compile_time_has_a_case() {
    let mut said = BTreeSet::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ui/fail")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        said.extend(
            words
                .filter(|word| word.len() == 5 && word.starts_with("SF"))
                .map(str::to_owned),
        );
    }
    // What needs a build without a feature is a unit test of the macro.
    said.insert("SF013".to_owned());
    let explained: BTreeSet<_> = Diagnostic::ALL
        .iter()
        .map(|diagnostic| diagnostic.code.to_owned())
        .collect();
    assert_eq!(said, explained);
}
