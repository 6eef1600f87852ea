//! `steadfast why`: what keeps each delivery of a message where it is, and what to do.

use std::fmt::Write as _;

use serde::Serialize;
use steadfast::{Reason, Why};

use crate::Context;
use crate::database::{Access, on_database};
use crate::deliveries::find;
use crate::error::{CliError, Exit, Result};
use crate::output::escape;

/// A reason as it is shown to programs.
#[derive(Serialize)]
struct Shown {
    id: String,
    target: Option<String>,
    state: Option<&'static str>,
    why: &'static str,
    what: String,
    remedy: Option<String>,
}

impl Shown {
    fn new(why: &Why, delivery: Option<(&str, &'static str)>, reason: &Reason) -> Self {
        Self {
            id: why.message.id.to_string(),
            target: delivery.map(|(target, _)| target.to_owned()),
            state: delivery.map(|(_, state)| state),
            why: reason.word.as_str(),
            what: reason.what.clone(),
            remedy: (!reason.remedy.is_empty()).then(|| reason.remedy.clone()),
        }
    }
}

pub(crate) async fn run(context: &Context, id: &str) -> Result<Exit> {
    let (id, why) = on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let id = find(&sf, id).await?;
        (id, sf.why(id).await?)
    });
    let why = why.ok_or_else(|| {
        CliError::new(
            Exit::NotFound,
            format!("there is no message {id}"),
            "it was purged a moment ago",
        )
    })?;
    let reasons = why.deliveries.iter().flat_map(|delivery| {
        let key = (&*delivery.target, delivery.state.as_str());
        delivery.reasons.iter().map(move |reason| (Some(key), reason))
    });
    let none = why.no_target.iter().map(|reason| (None, reason));
    let shown: Vec<_> = reasons
        .chain(none)
        .map(|(delivery, reason)| Shown::new(&why, delivery, reason))
        .collect();
    if context.output.is_json {
        context.output.objects(&shown)?;
    } else {
        context.output.print(&told(&why, &shown))?;
    }
    Ok(Exit::Ok)
}

/// The same for people.
fn told(why: &Why, shown: &[Shown]) -> String {
    let mut text = format!("{} {}\n", why.message.id, escape(&why.message.event_type));
    let mut last = None;
    for reason in shown {
        if let Some(target) = &reason.target
            && last != Some(target)
        {
            let _ = writeln!(text, "{} is {}", escape(target), reason.state.unwrap_or_default());
            last = Some(target);
        }
        let _ = writeln!(text, "  {}: {}", reason.why, escape(&reason.what));
        if let Some(remedy) = &reason.remedy {
            let _ = writeln!(text, "  do: {}", escape(remedy));
        }
    }
    text
}
