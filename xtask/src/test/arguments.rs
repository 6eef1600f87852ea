//! What cargo test is called with: our part, and the part after `--` that the person has written.

use std::ffi::OsString;

/// The whole workspace, unless a package is named; then what the person said, and what to skip
/// last, since it is for the test binaries.
pub(super) fn for_cargo_test(extra: &[OsString], skipped: &[String]) -> Vec<OsString> {
    let middle = extra
        .iter()
        .position(|argument| argument == "--")
        .unwrap_or(extra.len());
    let (for_cargo, for_tests) = (&extra[..middle], extra.get(middle + 1..).unwrap_or_default());
    let names_package = for_cargo.iter().any(|argument| {
        let argument = argument.to_string_lossy();
        argument.starts_with("-p") || argument.starts_with("--package") || argument == "--manifest-path"
    });
    let mut arguments: Vec<OsString> = vec!["test".into()];
    if !names_package {
        arguments.push("--workspace".into());
    }
    arguments.push("--all-features".into());
    arguments.extend_from_slice(for_cargo);
    if !for_tests.is_empty() || !skipped.is_empty() {
        arguments.push("--".into());
    }
    arguments.extend_from_slice(for_tests);
    arguments.extend(skipped.iter().flat_map(|path| ["--skip".into(), path.into()]));
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(extra: &str, skipped: &[&str]) -> String {
        let extra: Vec<_> = extra.split_whitespace().map(OsString::from).collect();
        let skipped: Vec<_> = skipped.iter().map(|path| (*path).to_owned()).collect();
        let arguments = for_cargo_test(&extra, &skipped);
        arguments
            .iter()
            .map(|argument| argument.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn without_arguments_everything_is_tested() {
        assert_eq!(arguments("", &[]), "test --workspace --all-features");
    }

    #[test]
    fn a_service_that_is_not_run_is_skipped() {
        assert_eq!(
            arguments("", &["postgres::", "::postgres"]),
            "test --workspace --all-features -- --skip postgres:: --skip ::postgres"
        );
    }

    #[test]
    fn the_second_part_goes_to_the_test_binaries() {
        let all = "test --workspace --all-features --lib outbox -- --nocapture --skip postgres::";
        assert_eq!(arguments("--lib outbox -- --nocapture", &["postgres::"]), all);
        assert_eq!(
            arguments("-- --nocapture", &[]),
            "test --workspace --all-features -- --nocapture"
        );
    }

    #[test]
    fn a_named_package_is_tested_alone() {
        assert_eq!(arguments("-p steadfast", &[]), "test --all-features -p steadfast");
        assert_eq!(arguments("--package=shop", &[]), "test --all-features --package=shop");
    }
}
