//! The guide says what the program says.

use steadfast::Code;

#[test]
fn the_page_of_errors_has_every_code_in_the_librarys_own_words() {
    let page = include_str!("../../../../docs/guide/errors.md");
    let mut codes: Vec<_> = Code::ALL.iter().collect();
    codes.sort_by_key(|code| code.as_str());
    let section = |code: &Code| format!("## {code}: {}\n\n{}\n", code.title(), code.explanation());
    let expected = codes.into_iter().map(section).collect::<Vec<_>>().join("\n");
    let (_, sections) = page.split_once("\n## ").unwrap();
    assert_eq!(
        format!("## {sections}"),
        expected,
        "write the sections of docs/guide/errors.md as on the right"
    );
}
