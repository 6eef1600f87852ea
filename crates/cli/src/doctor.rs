//! `steadfast doctor`: what endangers a promise, and what to do about it.

use serde::Serialize;
use steadfast::{Check, Verdict};

use crate::Context;
use crate::brokers::{self, Examined};
use crate::database::{Access, on_database};
use crate::error::{Exit, Result};
use crate::output::{Color, escape};
use crate::outside_options::DoctorOptions;

#[derive(Serialize)]
struct Shown<'c> {
    check: &'c str,
    verdict: &'static str,
    found: &'c str,
    fix: Option<&'c str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    broker: Option<&'c str>,
}

pub(crate) async fn run(context: &Context, options: &DoctorOptions) -> Result<Exit> {
    let brokers = brokers::examine(context, options).await?;
    // Who only asks for brokers needs no database.
    let checks = match context.config.has_database() || brokers.is_empty() {
        true => examine(context).await?,
        false => Vec::new(),
    };
    if context.output.is_json {
        let mut shown: Vec<_> = checks.iter().map(|check| shown(check, None)).collect();
        for Examined { broker, checks } in &brokers {
            shown.extend(checks.iter().map(|check| self::shown(check, Some(broker))));
        }
        context.output.objects(&shown)?;
    } else {
        let mut text = describe(context, &checks);
        for Examined { broker, checks } in &brokers {
            let gap = if text.is_empty() { "" } else { "\n" };
            text += &format!("{gap}{}\n{}", escape(broker), describe(context, checks));
        }
        context.output.print(&text)?;
    }
    let mut all = brokers.iter().flat_map(|broker| &broker.checks).chain(&checks);
    let has_failed = all.any(|check| check.verdict == Verdict::Fail);
    Ok(if has_failed { Exit::Unhealthy } else { Exit::Ok })
}

async fn examine(context: &Context) -> Result<Vec<Check>> {
    Ok(on_database!(context, Access::Read, builder => match builder {
        Ok(builder) => builder.examine().await,
        Err(error) if error.exit == Exit::Usage => return Err(error),
        Err(error) => vec![Check::fail("reachable", error.line(), error.help())],
    }))
}

fn shown<'c>(check: &'c Check, broker: Option<&'c str>) -> Shown<'c> {
    Shown {
        check: check.name,
        verdict: check.verdict.as_str(),
        found: &check.found,
        fix: check.fix.as_deref(),
        broker,
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
