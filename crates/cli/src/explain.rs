//! `steadfast explain`: what a code means. It needs no database and no network.

use serde::Serialize;
use steadfast::Code;

use crate::Context;
use crate::error::{CliError, Exit, Result};
use crate::suggest::nearest;

#[derive(Serialize)]
struct Shown {
    code: &'static str,
    title: &'static str,
    explanation: &'static str,
}

impl From<&Code> for Shown {
    fn from(code: &Code) -> Self {
        Self {
            code: code.as_str(),
            title: code.title(),
            explanation: code.explanation(),
        }
    }
}

pub(crate) fn run(context: &Context, wanted: Option<&str>) -> Result<Exit> {
    let Some(wanted) = wanted else {
        let all: Vec<_> = Code::ALL.iter().map(Shown::from).collect();
        context.output.records(&all, &["code", "means"], |code| {
            vec![code.code.to_owned(), code.title.to_owned()]
        })?;
        return Ok(Exit::Ok);
    };
    let code = find(wanted).ok_or_else(|| unknown(wanted))?;
    if context.output.is_json {
        context.output.objects(&[Shown::from(&code)])?;
    } else {
        let (title, explanation) = (code.title(), code.explanation());
        context.output.print(&format!("{code}: {title}\n\n{explanation}\n"))?;
    }
    Ok(Exit::Ok)
}

/// Takes `SF301`, `sf301` and `301`.
fn find(wanted: &str) -> Option<Code> {
    let is_meant = |code: &&Code| {
        let name = code.as_str();
        name.eq_ignore_ascii_case(wanted) || number_of(**code) == wanted
    };
    Code::ALL.iter().find(is_meant).copied()
}

fn number_of(code: Code) -> &'static str {
    code.as_str().trim_start_matches("SF")
}

fn unknown(wanted: &str) -> CliError {
    let number = wanted.trim_start_matches(|c: char| !c.is_ascii_digit());
    let nearest = nearest(number, Code::ALL.iter().map(|code| number_of(*code))).and_then(find);
    let help = match nearest {
        Some(nearest) => format!("did you mean {nearest}, {}?", nearest.title()),
        None => "`steadfast explain` lists all codes".to_owned(),
    };
    CliError::new(Exit::NotFound, format!("there is no code {wanted:?}"), help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_found_however_it_is_written() {
        for wanted in ["SF301", "sf301", "301"] {
            assert_eq!(find(wanted), Some(Code::TablesMissing));
        }
        assert_eq!(find("SF30"), None);
    }

    #[test]
    fn a_code_that_is_not_there_is_answered_by_one_that_may_be_meant() {
        assert!(unknown("SF3O1").help().starts_with("did you mean SF301, "));
        assert!(unknown("SF302").help().starts_with("did you mean SF30"));
        assert_eq!(unknown("tables").help(), "`steadfast explain` lists all codes");
    }
}
