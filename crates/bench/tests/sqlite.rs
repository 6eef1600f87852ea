//! The whole way of a bench, on SQLite and with tiny slices. It looks at the form of the figures, never at a time.

use std::process::Command;

use serde_json::{Value, json};

/// Fields that every figure has; `null` where there is none.
const FIELDS: &[&str] = &[
    "bench",
    "database",
    "case",
    "per_second",
    "p50_ms",
    "p99_ms",
    "baseline",
    "ratio",
    "goal",
    "holds",
];

fn bench(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_steadfast-bench"))
        .args(["command", "--database", "sqlite", "--rounds", "1", "--seconds", "0.02"])
        .args(["--directory", env!("CARGO_TARGET_TMPDIR")])
        .args(arguments)
        .output()
        .expect("the bench runs");
    let printed = String::from_utf8(output.stdout).expect("it prints text");
    (output.status.success(), printed)
}

#[test]
fn every_figure_is_one_line_of_json_with_its_fields() {
    let (succeeded, printed) = bench(&["--json"]);
    assert!(succeeded);
    let figures: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    for figure in &figures {
        for field in FIELDS {
            assert!(figure.get(field).is_some(), "{figure} has no {field}");
        }
        assert_eq!(figure["bench"], "command");
        assert_eq!(figure["database"], "sqlite");
    }
    let cases: Vec<_> = figures.iter().filter_map(|figure| figure["case"].as_str()).collect();
    assert_eq!(
        cases,
        [
            "bare",
            "one commit a command",
            "group commit",
            "group commit slowest caller",
            "replay"
        ]
    );
    assert_eq!(figures[2]["baseline"], "one commit a command");
    assert_eq!(figures[3]["at_most"], true);
}

#[test]
fn one_case_is_shown_in_a_table_with_its_baseline() {
    let (succeeded, printed) = bench(&["--case", "one commit"]);
    assert!(succeeded);
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines.len(), 3, "a header and two cases:\n{printed}");
    assert!(lines[2].starts_with("sqlite    one commit a command"), "{printed}");
}

#[test]
fn a_bench_without_a_database_says_so() {
    let output = Command::new(env!("CARGO_BIN_EXE_steadfast-bench"))
        .args(["retry", "--rounds", "1", "--seconds", "0.02", "--json"])
        .output()
        .expect("the bench runs");
    let printed = String::from_utf8(output.stdout).expect("it prints text");
    let figures: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    assert_eq!(figures.len(), 3, "{printed}");
    assert!(
        figures
            .iter()
            .all(|figure| figure["bench"] == "retry" && figure["database"].is_null())
    );
}

#[test]
fn a_name_that_no_case_has_is_an_error() {
    let (succeeded, printed) = bench(&["--case", "unheard of"]);
    assert!(!succeeded && printed.is_empty());
}

#[test]
fn jobs_are_measured_beside_what_people_write_by_hand() {
    let amounts = ["--jobs", "20", "--scheduled", "5", "--finished", "10"];
    let output = Command::new(env!("CARGO_BIN_EXE_steadfast-bench"))
        .args([
            "jobs",
            "--database",
            "sqlite",
            "--rounds",
            "1",
            "--seconds",
            "0.02",
            "--json",
        ])
        .args(["--directory", env!("CARGO_TARGET_TMPDIR")])
        .args(amounts)
        .output()
        .expect("the bench runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).expect("it prints text");
    let compared: Vec<_> = printed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"))
        .map(|figure| {
            (
                figure["case"].clone(),
                figure["baseline"].clone(),
                figure["goal"].clone(),
            )
        })
        .filter(|(_, baseline, _)| !baseline.is_null())
        .map(|(case, baseline, goal)| json!([case, baseline, goal]))
        .collect();
    let full = "claim and finish, 10 finished and 5 scheduled";
    let expected = json!([
        ["enqueue", "bare insert", 0.85],
        ["start, one process p50_ms", "start by hand", null],
        ["start, another process p50_ms", "start by hand", null],
        ["drain", "drain by hand", null],
        ["drain in transactions", "bare transaction", 0.8],
        [full, "claim and finish, empty table", 0.77],
    ]);
    assert_eq!(Value::from(compared), expected);
}
