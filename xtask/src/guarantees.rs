//! `cargo xtask guarantees`: every promise in docs/guarantees.md names tests that exist.
//!
//! The promises stand in tables whose last column is headed `Tests`. A name in backticks in that
//! column is the name of a test function; a renamed test must not leave a promise without proof.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Context, Error, Result};
use crate::workspace;

const PAGE: &str = "docs/guarantees.md";
const COLUMN: &str = "Tests";

pub(crate) fn run() -> Result<()> {
    let page = fs::read_to_string(workspace::root().join(PAGE)).context(format!("{PAGE} could not be read"))?;
    let names = named_tests(&page);
    if names.is_empty() {
        return Err(Error::new(format!(
            "{PAGE} names no test; write them in backticks in the last column, {COLUMN}"
        )));
    }
    let functions = functions()?;
    let problems: Vec<_> = names.iter().filter_map(|name| problem(name, &functions)).collect();
    if problems.is_empty() {
        eprintln!("  {PAGE} names {} tests, and all of them exist", names.len());
        return Ok(());
    }
    Err(Error::new(format!(
        "{PAGE} and the tests disagree:\n  {}",
        problems.join("\n  ")
    )))
}

fn problem(name: &str, functions: &BTreeSet<String>) -> Option<String> {
    if !is_sentence(name) {
        return Some(format!(
            "`{name}` is not the name of a test; a test name is a sentence, `like_this_one`"
        ));
    }
    (!functions.contains(name)).then(|| format!("`{name}` is no function in crates/*/tests, crates/*/src or xtask"))
}

/// Snake case with at least three words.
fn is_sentence(name: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.split('_').all(is_word) && name.split('_').count() >= 3
}

/// What stands in backticks in the last column of every table whose last header is `Tests`.
fn named_tests(page: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut table_of_tests = None;
    for line in page.lines() {
        let Some(cell) = last_cell(line) else {
            table_of_tests = None;
            continue;
        };
        // The first row of a table is its header.
        if *table_of_tests.get_or_insert(cell == COLUMN) {
            names.extend(cell.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    names
}

fn last_cell(line: &str) -> Option<&str> {
    let row = line.trim().strip_prefix('|')?;
    row.strip_suffix('|').unwrap_or(row).rsplit('|').next().map(str::trim)
}

/// The name of every function in the Rust files where tests may live.
fn functions() -> Result<BTreeSet<String>> {
    let root = workspace::root();
    let mut places = vec![root.join("xtask/src")];
    for entry in fs::read_dir(root.join("crates"))
        .context("crates could not be read")?
        .flatten()
    {
        places.extend([entry.path().join("tests"), entry.path().join("src")]);
    }
    let mut functions = BTreeSet::new();
    for file in rust_files(places) {
        let text = fs::read_to_string(&file).context(format!("{} could not be read", file.display()))?;
        functions.extend(text.lines().filter_map(function_name).map(str::to_owned));
    }
    Ok(functions)
}

/// The name in `fn name(` or `fn name<`, in a line that is not a comment.
fn function_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = match line.strip_prefix("fn ") {
        Some(rest) => rest,
        None => line.split_once(" fn ").filter(|_| !line.starts_with("//"))?.1,
    };
    let end = rest.find(['(', '<'])?;
    Some(rest[..end].trim())
}

fn rust_files(mut places: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    while let Some(place) = places.pop() {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() => places.push(path),
                path if path.extension() == Some(Path::new("rs").as_os_str()) => files.push(path),
                _ => {}
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "\
# Guarantees

| Word | Meaning |
|---|---|
| key | `not_in_this_table` |

| Promise | Why | Tests |
|---------|-----|:-----:|
| once | `not_this_column` | `a_key_runs_once`, `a_replay_is_equal`<br>`a_crash_is_survived` |
| told | later | none yet |

`not_in_any_table`
";

    #[test]
    fn only_the_column_of_tests_counts() {
        let names: Vec<_> = named_tests(EXAMPLE).into_iter().collect();
        assert_eq!(names, ["a_crash_is_survived", "a_key_runs_once", "a_replay_is_equal"]);
    }

    #[test]
    fn a_page_without_such_a_table_names_nothing() {
        assert!(named_tests("| Promise | Proof |\n|---|---|\n| x | `a_b_c` |\n").is_empty());
    }

    #[test]
    fn a_test_name_has_three_words() {
        assert!(is_sentence("a_key_runs_once"));
        for name in ["runs_once", "cargo test", "A_key_runs", "a__key", "it::a_key_runs"] {
            assert!(!is_sentence(name), "{name}");
        }
    }

    #[test]
    fn functions_are_found_where_they_are_declared() {
        assert_eq!(
            function_name("    async fn a_key_runs_once() {"),
            Some("a_key_runs_once")
        );
        assert_eq!(
            function_name("fn for_each_store<S: Store>(store: S)"),
            Some("for_each_store")
        );
        assert_eq!(function_name("// see fn a_key_runs_once()"), None);
        assert_eq!(function_name("let name = 1;"), None);
    }

    #[test]
    fn a_missing_test_is_named() {
        let functions = BTreeSet::from(["a_key_runs_once".to_owned()]);
        assert_eq!(problem("a_key_runs_once", &functions), None);
        assert!(problem("a_key_runs_twice", &functions).is_some_and(|text| text.contains("a_key_runs_twice")));
    }
}
