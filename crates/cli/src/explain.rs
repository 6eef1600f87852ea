//! `steadfast explain`: what a code means. It needs no database and no network.

use serde::Serialize;
use steadfast::{Code, Diagnostic};

use crate::Context;
use crate::error::{CliError, Exit, Result};
use crate::suggest::nearest;

/// A code of run time, or of compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Explained {
    code: &'static str,
    title: &'static str,
    explanation: &'static str,
}

impl Explained {
    /// All of them, those of compile time first, as they are numbered.
    fn all() -> impl Iterator<Item = Self> {
        let early = Diagnostic::ALL.iter().map(|diagnostic| Self {
            code: diagnostic.code,
            title: diagnostic.title,
            explanation: diagnostic.explanation,
        });
        let late = Code::ALL.iter().map(|code| Self {
            code: code.as_str(),
            title: code.title(),
            explanation: code.explanation(),
        });
        early.chain(late)
    }

    /// Takes `SF301`, `sf301` and `301`.
    fn find(wanted: &str) -> Option<Self> {
        Self::all().find(|one| one.code.eq_ignore_ascii_case(wanted) || one.number() == wanted)
    }

    fn number(self) -> &'static str {
        self.code.trim_start_matches("SF")
    }
}

pub(crate) fn run(context: &Context, wanted: Option<&str>) -> Result<Exit> {
    let Some(wanted) = wanted else {
        let all: Vec<_> = Explained::all().collect();
        context.output.records(&all, &["code", "means"], |one| {
            vec![one.code.to_owned(), one.title.to_owned()]
        })?;
        return Ok(Exit::Ok);
    };
    let one = Explained::find(wanted).ok_or_else(|| unknown(wanted))?;
    if context.output.is_json {
        context.output.objects(&[one])?;
    } else {
        let Explained {
            code,
            title,
            explanation,
        } = one;
        context.output.print(&format!("{code}: {title}\n\n{explanation}\n"))?;
    }
    Ok(Exit::Ok)
}

fn unknown(wanted: &str) -> CliError {
    let number = wanted.trim_start_matches(|c: char| !c.is_ascii_digit());
    let nearest = nearest(number, Explained::all().map(Explained::number)).and_then(Explained::find);
    let help = match nearest {
        Some(nearest) => format!("did you mean {}, {}?", nearest.code, nearest.title),
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
            assert_eq!(Explained::find(wanted).map(|one| one.code), Some("SF301"));
        }
        assert_eq!(Explained::find("SF001").map(|one| one.code), Some("SF001"));
        assert_eq!(Explained::find("SF30"), None);
    }

    #[test]
    fn a_code_that_is_not_there_is_answered_by_one_that_may_be_meant() {
        assert!(unknown("SF3O1").help().starts_with("did you mean SF301, "));
        assert!(unknown("SF309").help().starts_with("did you mean SF30"));
        assert_eq!(unknown("tables").help(), "`steadfast explain` lists all codes");
    }
}
