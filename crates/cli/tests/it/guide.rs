//! The guide says what the program says.

use steadfast::{Code, Diagnostic};

#[test]
fn the_page_of_errors_has_every_code_in_the_librarys_own_words() {
    let page = include_str!("../../../../docs/guide/errors.md");
    let early = Diagnostic::ALL.iter().map(|one| (one.code, one.title, one.explanation));
    let late = Code::ALL
        .iter()
        .map(|code| (code.as_str(), code.title(), code.explanation()));
    let mut codes: Vec<_> = early.chain(late).collect();
    codes.sort_unstable();
    let section = |(code, title, explanation)| format!("## {code}: {title}\n\n{explanation}\n");
    let expected = codes.into_iter().map(section).collect::<Vec<_>>().join("\n");
    let (_, sections) = page.split_once("\n## ").unwrap();
    assert_eq!(
        format!("## {sections}"),
        expected,
        "write the sections of docs/guide/errors.md as on the right"
    );
}
