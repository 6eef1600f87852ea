//! What came out, for people (a table) and for programs (a line of JSON for each figure).
//!
//! Rates and latencies are medians over the rounds: one disturbed round does not move them.

use serde::Serialize;

use crate::measure::{Aim, Measurement, Slice};
use crate::meter::Used;
use crate::options::Database;
use crate::statistics::{Spread, median};

/// One figure. Its JSON is the public form of a result: fields are added, never renamed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    bench: &'static str,
    database: Option<&'static str>,
    case: String,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    baseline: Option<String>,
    ratio: Option<f64>,
    goal: Option<f64>,
    holds: Option<bool>,
    /// The goal is a bound from above; without this it is one from below.
    #[serde(skip_serializing_if = "is_false")]
    at_most: bool,
    #[serde(flatten)]
    ratio_spread: Option<RatioSpread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wal_bytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    statements: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<f64>,
    rounds: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct RatioSpread {
    ratio_min: f64,
    ratio_quartile_1: f64,
    ratio_quartile_3: f64,
    ratio_max: f64,
}

impl Figure {
    /// The figures of a series: one for each aim of each case, and one for a case that aims at nothing.
    pub(crate) fn of_series(
        bench: &'static str,
        database: Option<Database>,
        measurements: &[Measurement],
    ) -> Vec<Self> {
        let figures = measurements.iter().flat_map(|measurement| {
            let plain = Self::plain(bench, database, measurement);
            let aims = measurement.case.aims.iter();
            let mut figures: Vec<_> = aims
                .map(|aim| plain.clone().aimed(aim, measurement, measurements))
                .collect();
            if figures.is_empty() {
                figures.push(plain);
            }
            figures
        });
        figures.collect()
    }

    fn plain(bench: &'static str, database: Option<Database>, measurement: &Measurement) -> Self {
        let slices = &measurement.slices;
        let middle = |of: fn(&Slice) -> f64| median(slices.iter().map(of)).unwrap_or(0.0);
        let known = |of: fn(&Slice) -> Option<f64>| median(slices.iter().filter_map(of)).map(|used| rounded(used, 1));
        Self {
            bench,
            database: database.map(Database::name),
            case: measurement.case.name.clone(),
            per_second: rounded(middle(|slice| slice.per_second), 1),
            p50_ms: rounded(middle(|slice| f64::from(slice.p50_us)) / 1e3, 3),
            p99_ms: rounded(middle(|slice| f64::from(slice.p99_us)) / 1e3, 3),
            baseline: None,
            ratio: None,
            goal: None,
            holds: None,
            at_most: false,
            ratio_spread: None,
            wal_bytes: known(|slice| slice.used.wal_bytes),
            cpu_us: known(|slice| slice.used.cpu_us),
            statements: known(|slice| slice.used.statements),
            memory_bytes: known(|slice| slice.used.memory_bytes),
            rounds: slices.len(),
        }
    }

    fn aimed(mut self, aim: &Aim, measurement: &Measurement, all: &[Measurement]) -> Self {
        match aim {
            Aim::Ratio { baseline, goal } => {
                let others = slices_of(all, baseline);
                self.baseline = Some(baseline.clone());
                let ratios = ratios(&measurement.slices, others, |slice| Some(slice.per_second));
                self.set_ratio(Spread::of(ratios));
                self.hold(self.ratio, *goal);
            }
            Aim::Slowest { at_most } => {
                let multiple = |slice: &Slice| f64::from(slice.max_us) / f64::from(slice.p50_us.max(1));
                self.case.push_str(" slowest caller");
                self.at_most = true;
                self.set_ratio(Spread::of(measurement.slices.iter().map(multiple)));
                self.hold(self.ratio, Some(*at_most));
            }
            Aim::WalBytes { at_most } => {
                self.case.push_str(" wal_bytes");
                self.at_most = true;
                self.hold(self.wal_bytes, Some(*at_most));
            }
            Aim::Median { at_most } => {
                self.case.push_str(" p50_ms");
                self.at_most = true;
                self.hold(Some(self.p50_ms), Some(*at_most));
            }
            Aim::MedianOf { baseline, at_most } => {
                let ratios = ratios(&measurement.slices, slices_of(all, baseline), |slice| {
                    Some(f64::from(slice.p50_us))
                });
                self.case.push_str(" p50_ms");
                self.baseline = Some(baseline.clone());
                self.at_most = true;
                self.set_ratio(Spread::of(ratios));
                self.hold(self.ratio, *at_most);
            }
            Aim::Statements { baseline, at_most } => {
                self.compare_used(measurement, all, baseline, *at_most, |used| used.statements);
            }
            Aim::Memory { baseline, at_most } => {
                self.compare_used(measurement, all, baseline, *at_most, |used| used.memory_bytes);
            }
        }
        self
    }

    /// What it used up, as multiples of what another case did.
    fn compare_used(
        &mut self,
        measurement: &Measurement,
        all: &[Measurement],
        baseline: &str,
        at_most: f64,
        of: fn(&Used) -> Option<f64>,
    ) {
        let ratios = ratios(&measurement.slices, slices_of(all, baseline), |slice| of(&slice.used));
        self.baseline = Some(baseline.to_owned());
        self.at_most = true;
        self.set_ratio(Spread::of(ratios));
        self.hold(self.ratio, Some(at_most));
    }

    fn set_ratio(&mut self, spread: Option<Spread>) {
        self.ratio = spread.map(|spread| rounded(spread.median, 3));
        self.ratio_spread = spread.map(|spread| RatioSpread {
            ratio_min: rounded(spread.min, 3),
            ratio_quartile_1: rounded(spread.quartile_1, 3),
            ratio_quartile_3: rounded(spread.quartile_3, 3),
            ratio_max: rounded(spread.max, 3),
        });
    }

    /// What was not measured does not hold.
    fn hold(&mut self, value: Option<f64>, goal: Option<f64>) {
        self.goal = goal;
        self.holds = goal.map(|goal| match (value, self.at_most) {
            (Some(value), true) => value <= goal,
            (Some(value), false) => value >= goal,
            (None, _) => false,
        });
    }

    /// Whether it has no goal, or keeps it.
    pub(crate) fn is_fine(&self) -> bool {
        self.holds.unwrap_or(true)
    }

    /// One line, without its end.
    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    fn row(&self) -> [String; COLUMNS.len()] {
        let optional = |number: Option<f64>| number.map(|number| format!("{number:.0}")).unwrap_or_default();
        let spread = self.ratio_spread.map(|spread| {
            let (low, high) = (spread.ratio_quartile_1, spread.ratio_quartile_3);
            format!("{low:.2}..{high:.2}")
        });
        let sign = if self.at_most { "≤" } else { "≥" };
        let verdict = self.holds.map(|holds| if holds { "✓" } else { "✗" });
        [
            self.database.unwrap_or_default().to_owned(),
            self.case.clone(),
            format!("{:.0}", self.per_second),
            format!("{:.2}", self.p50_ms),
            format!("{:.2}", self.p99_ms),
            optional(self.wal_bytes),
            optional(self.cpu_us),
            self.statements
                .map(|statements| format!("{statements:.1}"))
                .unwrap_or_default(),
            self.memory_bytes
                .map(|bytes| format!("{:.1}", bytes / 1024.0))
                .unwrap_or_default(),
            self.baseline.clone().unwrap_or_default(),
            self.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
            spread.unwrap_or_default(),
            self.goal.map(|goal| format!("{sign} {goal}")).unwrap_or_default(),
            verdict.unwrap_or_default().to_owned(),
        ]
    }
}

/// The columns, and whether they hold numbers and are aligned to the right.
const COLUMNS: [(&str, bool); 14] = [
    ("database", false),
    ("case", false),
    ("per second", true),
    ("p50 ms", true),
    ("p99 ms", true),
    ("WAL bytes", true),
    ("CPU µs", true),
    ("statements", true),
    ("memory KiB", true),
    ("against", false),
    ("ratio", true),
    ("quartiles", false),
    ("goal", false),
    ("holds", false),
];

/// The figures for people. A column that none of them fills is left out.
pub(crate) fn table(figures: &[Figure]) -> String {
    let header = COLUMNS.map(|(name, _)| name.to_owned());
    let rows: Vec<_> = [header].into_iter().chain(figures.iter().map(Figure::row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let is_filled = |column: &usize| rows.iter().skip(1).any(|row| !row[*column].is_empty());
    let columns: Vec<_> = (0..COLUMNS.len()).filter(is_filled).collect();
    let line = |row: &[String; COLUMNS.len()]| {
        let cells = columns.iter().map(|&column| {
            let (cell, width) = (&row[column], width(column));
            match COLUMNS[column] {
                (_, true) => format!("{cell:>width$}"),
                (_, false) => format!("{cell:width$}"),
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn slices_of<'m>(all: &'m [Measurement], case: &str) -> &'m [Slice] {
    let found = all.iter().find(|other| other.case.name == case);
    found.map_or(&[][..], |found| &found.slices)
}

/// A number of one case as multiples of that of another, round by round.
fn ratios(slices: &[Slice], baselines: &[Slice], of: impl Fn(&Slice) -> Option<f64>) -> impl Iterator<Item = f64> {
    let rounds = slices.iter().zip(baselines);
    let known = rounds.filter_map(move |(slice, baseline)| Some((of(slice)?, of(baseline)?)));
    let comparable = known.filter(|(_, baseline)| *baseline > 0.0);
    comparable.map(|(slice, baseline)| slice / baseline)
}

fn rounded(number: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (number * scale).round() / scale
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::measure::Case;
    use crate::meter::Used;

    fn measurement(case: Case, rates: &[f64]) -> Measurement {
        let slice = |per_second: &f64| Slice {
            per_second: *per_second,
            p50_us: 1_000,
            p99_us: 2_500,
            max_us: 12_000,
            used: Used {
                wal_bytes: Some(780.04),
                statements: Some(per_second / 100.0),
                ..Used::default()
            },
        };
        Measurement {
            case,
            slices: rates.iter().map(slice).collect(),
        }
    }

    fn figures(measurements: &[Measurement]) -> Vec<Value> {
        let figures = Figure::of_series("command", Some(Database::Postgres), measurements);
        let lines = figures.iter().map(|figure| figure.to_json().expect("plain numbers"));
        lines
            .map(|line| serde_json::from_str(&line).expect("a line of JSON"))
            .collect()
    }

    #[test]
    fn a_ratio_is_taken_within_a_round() {
        let bare = measurement(Case::new("bare"), &[100.0, 1_000.0, 200.0]);
        let command = measurement(Case::new("command").against("bare", 0.7), &[80.0, 700.0, 180.0]);
        let figures = figures(&[bare, command]);
        // 0.8, 0.7 and 0.9; the ratio of the medians would be 180 / 200.
        assert_eq!(figures[1]["ratio"], 0.8);
        assert_eq!(figures[1]["ratio_min"], 0.7);
        assert_eq!(figures[1]["ratio_max"], 0.9);
        assert_eq!(figures[1]["holds"], true);
    }

    #[test]
    fn a_line_of_json_has_the_agreed_form() {
        let bare = measurement(Case::new("bare"), &[200.0]);
        let command = measurement(Case::new("command").against("bare", 0.7), &[100.0]);
        let lines = Figure::of_series("command", Some(Database::Postgres), &[bare, command]);
        assert_eq!(
            lines[1].to_json().expect("plain numbers"),
            r#"{"bench":"command","database":"postgres","case":"command","per_second":100.0,"p50_ms":1.0,"p99_ms":2.5,"#
                .to_owned()
                + r#""baseline":"bare","ratio":0.5,"goal":0.7,"holds":false,"#
                + r#""ratio_min":0.5,"ratio_quartile_1":0.5,"ratio_quartile_3":0.5,"ratio_max":0.5,"#
                + r#""wal_bytes":780.0,"statements":1.0,"rounds":1}"#
        );
        assert_eq!(lines[0].holds, None);
        assert!(lines[0].is_fine() && !lines[1].is_fine());
    }

    #[test]
    fn a_goal_from_above_holds_below_it() {
        let case = Case::new("command")
            .aiming(Aim::WalBytes { at_most: 800.0 })
            .aiming(Aim::Slowest { at_most: 10.0 })
            .aiming(Aim::Median { at_most: 3.0 });
        let figures = figures(&[measurement(case, &[100.0])]);
        let form = |figure: &Value| json!([figure["case"], figure["at_most"], figure["goal"], figure["holds"]]);
        assert_eq!(form(&figures[0]), json!(["command wal_bytes", true, 800.0, true]));
        assert_eq!(form(&figures[1]), json!(["command slowest caller", true, 10.0, false]));
        assert_eq!(figures[1]["ratio"], 12.0);
        assert_eq!(form(&figures[2]), json!(["command p50_ms", true, 3.0, true]));
    }

    #[test]
    fn medians_are_compared_from_above() {
        let no_later = Aim::MedianOf {
            baseline: "theirs".to_owned(),
            at_most: Some(1.0),
        };
        let theirs = measurement(Case::new("theirs"), &[100.0]);
        let mut ours = measurement(Case::new("ours").aiming(no_later), &[100.0]);
        ours.slices[0].p50_us = 500;
        let figures = figures(&[theirs, ours]);
        let form = json!([
            figures[1]["case"],
            figures[1]["baseline"],
            figures[1]["ratio"],
            figures[1]["holds"]
        ]);
        assert_eq!(form, json!(["ours p50_ms", "theirs", 0.5, true]));
    }

    #[test]
    fn statements_are_compared_within_a_round() {
        let no_more = Aim::Statements {
            baseline: "one".to_owned(),
            at_most: 1.1,
        };
        let one = measurement(Case::new("one"), &[100.0, 400.0]);
        let figures = figures(&[one, measurement(Case::new("many").aiming(no_more), &[105.0, 420.0])]);
        assert_eq!(figures[1]["ratio"], 1.05);
        assert_eq!(
            (&figures[1]["at_most"], &figures[1]["holds"]),
            (&json!(true), &json!(true))
        );
    }

    #[test]
    fn each_comparison_is_a_figure_and_a_missing_baseline_does_not_hold() {
        let case = Case::new("command").against("bare", 0.7).against("gone", 1.25);
        let figures = figures(&[measurement(Case::new("bare"), &[100.0]), measurement(case, &[100.0])]);
        assert_eq!(figures.len(), 3);
        assert_eq!(figures[2]["ratio"], Value::Null);
        assert_eq!(figures[2]["holds"], false);
    }

    #[test]
    fn the_table_lines_up_and_shows_the_verdict() {
        let bare = measurement(Case::new("bare"), &[12_345.6]);
        let command = measurement(Case::new("command").against("bare", 0.7), &[9_876.0]);
        let figures = Figure::of_series("command", Some(Database::Postgres), &[bare, command]);
        let table = table(&figures);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].starts_with("database  case     per second"), "{table}");
        assert!(lines[1].starts_with("postgres  bare          12346"), "{table}");
        assert!(lines[2].ends_with("0.80  0.80..0.80  ≥ 0.7  ✓"), "{table}");
        assert!(!table.contains("memory"), "nobody has measured it: {table}");
    }
}
