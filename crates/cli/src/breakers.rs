//! `steadfast breakers`: breakers that processes share, and how one is held open or closed. Those that are not shared live in their
//! process alone.

use serde::Serialize;
use steadfast::breaker::SharedBreaker;

use crate::Context;
use crate::change::{NamedChange, check_reason};
use crate::database::{Access, on_database};
use crate::error::{Exit, Result};
use crate::job_options::{BreakersVerb, NamedOptions};
use crate::output::{escape, rounded};

/// A breaker as it is shown to programs.
#[derive(Serialize)]
struct Shown {
    name: String,
    state: &'static str,
    open_for_seconds: Option<f64>,
    openings: u32,
    #[serde(skip)]
    open_for: String,
}

impl Shown {
    fn new(breaker: &SharedBreaker) -> Self {
        Self {
            name: breaker.name.clone(),
            state: breaker.state.as_str(),
            open_for_seconds: breaker.open_for.map(|time| time.as_secs_f64()),
            openings: breaker.openings,
            open_for: breaker.open_for.map(rounded).unwrap_or_default(),
        }
    }

    fn row(&self) -> Vec<String> {
        let openings = self.openings.to_string();
        vec![
            escape(&self.name),
            self.state.to_owned(),
            self.open_for.clone(),
            openings,
        ]
    }
}

pub(crate) async fn run(context: &Context, verb: &BreakersVerb) -> Result<Exit> {
    match verb {
        BreakersVerb::List => list(context).await,
        BreakersVerb::Open(options) => order(context, options, true).await,
        BreakersVerb::Close(options) => order(context, options, false).await,
    }
}

async fn list(context: &Context) -> Result<Exit> {
    let breakers = on_database!(context, Access::Read, builder => builder?.build().await?.shared_breakers().await?);
    let shown: Vec<_> = breakers.iter().map(Shown::new).collect();
    let header = ["breaker", "state", "open for", "openings"];
    context.output.records(&shown, &header, Shown::row)?;
    Ok(Exit::Ok)
}

async fn order(context: &Context, options: &NamedOptions, is_open: bool) -> Result<Exit> {
    let (name, reason) = (&*options.name, &*options.because.reason);
    check_reason(reason)?;
    let operator = context.config.operator()?;
    on_database!(context, Access::Write, builder => {
        let sf = builder?.build().await?;
        match is_open {
            true => sf.open_breaker(name, operator, reason).await?,
            false => sf.close_breaker(name, operator, reason).await?,
        }
    });
    let (done, meaning) = match is_open {
        true => ("opened", "nobody is let through, in any process, until it is closed"),
        false => ("closed", "it judges by itself again, in every process"),
    };
    let changed = NamedChange {
        name,
        done,
        operator,
        reason,
    };
    changed.show(context, meaning)
}
