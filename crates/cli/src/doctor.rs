//! `steadfast doctor`: what endangers a promise, and what to do about it.

use serde::Serialize;
use steadfast::{Check, Verdict};

use crate::Context;
use crate::database::{Access, on_database};
use crate::error::{Exit, Result};
use crate::output::{Color, escape};

#[derive(Serialize)]
struct Shown<'c> {
    check: &'c str,
    verdict: &'static str,
    found: &'c str,
    fix: Option<&'c str>,
}

pub(crate) async fn run(context: &Context) -> Result<Exit> {
    let checks = on_database!(context, Access::Read, builder => match builder {
        Ok(builder) => builder.examine().await,
        Err(error) if error.exit == Exit::Usage => return Err(error),
        Err(error) => vec![Check::fail("reachable", error.line(), error.help())],
    });
    if context.output.is_json {
        let shown: Vec<_> = checks.iter().map(shown).collect();
        context.output.objects(&shown)?;
    } else {
        context.output.print(&describe(context, &checks))?;
    }
    let has_failed = checks.iter().any(|check| check.verdict == Verdict::Fail);
    Ok(if has_failed { Exit::Unhealthy } else { Exit::Ok })
}

fn shown(check: &Check) -> Shown<'_> {
    Shown {
        check: check.name,
        verdict: check.verdict.as_str(),
        found: &check.found,
        fix: check.fix.as_deref(),
    }
}

fn describe(context: &Context, checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let color = match check.verdict {
            Verdict::Ok => Color::Green,
            Verdict::Warn => Color::Yellow,
            Verdict::Fail => Color::Red,
        };
        let verdict = context.output.paint(color, &format!("{:4}", check.verdict.as_str()));
        text += &format!("{verdict}  {:width$}  {}\n", check.name, escape(&check.found));
        if let Some(fix) = &check.fix {
            text += &format!("      fix: {}\n", escape(fix));
        }
    }
    text
}
