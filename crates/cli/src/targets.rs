//! `steadfast targets`: where messages go, whether anybody works on it, and how one is paused or removed.

use std::time::SystemTime;

use serde::Serialize;
use steadfast::ListedTarget;

use crate::Context;
use crate::change::{NamedChange, check_reason};
use crate::confirm::confirm;
use crate::database::{Access, on_database};
use crate::deliveries::check_names;
use crate::delivery_options::{FilterOptions, TargetOptions, TargetsVerb};
use crate::error::{Exit, Result};
use crate::output::{escape, relative};

/// A target as it is shown to programs.
#[derive(Serialize)]
struct Shown {
    name: String,
    patterns: Vec<String>,
    since: Option<String>,
    seen_at: Option<String>,
    known: bool,
    paused_at: Option<String>,
    paused_by: Option<String>,
    paused_reason: Option<String>,
    waiting: u64,
    dead: u64,
    exact: bool,
    #[serde(skip)]
    cells: [String; 3],
}

impl Shown {
    fn new(target: &ListedTarget) -> Self {
        let paused = target.paused.as_ref();
        let seen = target
            .seen_at
            .map_or("never".to_owned(), |at| relative(at, SystemTime::now()));
        Self {
            name: target.name.clone(),
            patterns: target.patterns.clone(),
            since: target.since.map(steadfast::rfc3339),
            seen_at: target.seen_at.map(steadfast::rfc3339),
            known: target.is_known,
            paused_at: paused.map(|paused| steadfast::rfc3339(paused.at)),
            paused_by: paused.map(|paused| paused.by.clone()),
            paused_reason: paused.map(|paused| paused.reason.clone()),
            waiting: target.waiting.number,
            dead: target.dead.number,
            exact: !(target.waiting.is_capped || target.dead.is_capped),
            cells: [seen, target.waiting.to_string(), target.dead.to_string()],
        }
    }

    fn row(&self) -> Vec<String> {
        let [seen, waiting, dead] = self.cells.clone();
        let paused = match (&self.paused_by, &self.paused_reason) {
            (Some(by), Some(reason)) => format!("by {}: {}", escape(by), escape(reason)),
            _ => "no".to_owned(),
        };
        vec![
            escape(&self.name),
            escape(&self.patterns.join(", ")),
            seen,
            waiting,
            dead,
            paused,
        ]
    }
}

pub(crate) async fn run(context: &Context, verb: &TargetsVerb) -> Result<Exit> {
    match verb {
        TargetsVerb::List => list(context).await,
        TargetsVerb::Pause(options) => change(context, options, "paused").await,
        TargetsVerb::Resume(options) => change(context, options, "resumed").await,
        TargetsVerb::Remove(options) => change(context, options, "removed").await,
    }
}

async fn list(context: &Context) -> Result<Exit> {
    let targets = on_database!(context, Access::Read, builder => builder?.build().await?.targets().await?);
    let shown: Vec<_> = targets.iter().map(Shown::new).collect();
    let header = ["target", "wants", "seen", "waiting", "dead", "paused"];
    context.output.records(&shown, &header, Shown::row)?;
    Ok(Exit::Ok)
}

async fn change(context: &Context, options: &TargetOptions, done: &'static str) -> Result<Exit> {
    let (name, reason) = (&*options.name, &*options.because.reason);
    check_reason(reason)?;
    let operator = context.config.operator()?;
    if done == "removed" {
        let question = format!(
            "Remove the target {}? No new deliveries are written for it.",
            escape(name)
        );
        if !confirm(context, &question)? {
            context.output.remark("nothing was changed");
            return Ok(Exit::Failed);
        }
    }
    on_database!(context, Access::Write, builder => {
        let sf = builder?.build().await?;
        let filter = FilterOptions {
            target: Some(name.to_owned()),
            ..FilterOptions::default()
        };
        check_names(&sf, &filter).await?;
        match done {
            "paused" => sf.pause_target(name, operator, reason).await?,
            "resumed" => sf.resume_target(name, operator, reason).await?,
            _ => sf.remove_target(name, operator, reason).await?,
        }
    });
    let meaning = match done {
        "paused" => "what is worked on ends; what is published meanwhile waits",
        "resumed" => "what has waited is delivered",
        _ => "no new deliveries are written for it",
    };
    let changed = NamedChange {
        name,
        done,
        operator,
        reason,
    };
    changed.show(context, meaning)
}
