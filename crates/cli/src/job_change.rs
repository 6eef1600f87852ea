//! `steadfast jobs retry | run-now | cancel | reschedule | snooze`: what is to become of one job, or of all that fit, as a bulk
//! operation.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use steadfast::{BulkVerb, Cancellation, Cron, Database, JobState, Steadfast};

use crate::Context;
use crate::change::check_reason;
use crate::confirm::confirm;
use crate::database::{Access, on_database};
use crate::error::{CliError, Exit, Result};
use crate::job_options::{ChangeOptions, RescheduleOptions, SnoozeOptions};
use crate::jobs::{check_queue, find, narrow};
use crate::operations;
use crate::output::escape;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Retry,
    RunNow,
    Cancel,
    Reschedule(Due),
    Snooze(Duration),
}

/// Further ahead than any job may be due.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// When jobs are due.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    At(SystemTime),
    In(Duration),
}

impl Decision {
    fn bulk_verb(self, now: SystemTime) -> BulkVerb {
        match self {
            Self::Retry | Self::RunNow => BulkVerb::Requeue,
            Self::Cancel => BulkVerb::Skip,
            Self::Reschedule(Due::At(at)) => BulkVerb::Reschedule(at),
            Self::Reschedule(Due::In(delay)) => BulkVerb::Reschedule(now + delay.min(FOREVER)),
            Self::Snooze(time) => BulkVerb::Snooze(time),
        }
    }

    /// The state that is meant if none is named.
    fn state(self) -> Option<JobState> {
        match self {
            Self::Retry => Some(JobState::Dead),
            Self::RunNow => Some(JobState::Scheduled),
            Self::Cancel | Self::Reschedule(_) | Self::Snooze(_) => None,
        }
    }

    /// Which these are, if no state is named.
    fn states(self) -> &'static str {
        match self {
            Self::Retry | Self::RunNow | Self::Cancel => "waiting or dead",
            Self::Reschedule(_) | Self::Snooze(_) => "waiting",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::RunNow => "run_now",
            Self::Cancel => "cancel",
            Self::Reschedule(_) => "reschedule",
            Self::Snooze(_) => "snooze",
        }
    }
}

/// What was decided, as it is shown to programs.
#[derive(Serialize)]
struct Decided<'d> {
    id: String,
    verb: &'static str,
    due_at: Option<String>,
    operator: &'d str,
    reason: &'d str,
}

impl Decided<'_> {
    fn show(&self, context: &Context, done: &str, meaning: String) -> Result<Exit> {
        let audit = format!("by {}: {}", escape(self.operator), escape(self.reason));
        let lines = [(done, self.id.clone()), ("meaning", meaning), ("audit", audit)];
        context.output.record(self, &lines)?;
        Ok(Exit::Ok)
    }
}

pub(crate) async fn change(context: &Context, options: &ChangeOptions, decision: Decision) -> Result<Exit> {
    if let Some(reason) = &options.reason {
        check_reason(reason)?;
    }
    if options.id.is_none() && options.filter.is_empty() && !options.all {
        return Err(CliError::new(
            Exit::Usage,
            "it is not said which jobs",
            "name a job by its id, add a filter such as --queue, or --all",
        ));
    }
    if decision == Decision::Retry && matches!(options.filter.state, Some(state) if !is_failed(state)) {
        return Err(CliError::new(
            Exit::Usage,
            "only jobs that have failed are retried",
            "add --state dead or --state waiting_retry; `steadfast jobs run-now` takes those that were not tried yet",
        ));
    }
    let access = if options.dry_run { Access::Read } else { Access::Write };
    on_database!(context, access, builder => {
        let sf = builder?.build().await?;
        match &options.id {
            Some(id) => change_one(context, &sf, id, options.reason(), decision).await,
            None => change_all(context, &sf, options, decision).await,
        }
    })
}

fn is_failed(state: JobState) -> bool {
    matches!(state, JobState::Dead | JobState::WaitingRetry)
}

async fn change_one<Db: Database>(
    context: &Context,
    sf: &Steadfast<Db>,
    id: &str,
    reason: &str,
    decision: Decision,
) -> Result<Exit> {
    let operator = context.config.operator()?;
    let id = find(sf, id).await?;
    let (done, meaning) = match decision {
        Decision::Retry => {
            sf.job(id).retry(operator, reason).await?;
            ("due now", "it is the same job, with all its attempts")
        }
        Decision::RunNow => {
            sf.job(id).run_now(operator, reason).await?;
            ("due now", "it is the same job, with all its attempts")
        }
        Decision::Cancel => {
            if !confirm(context, &format!("Cancel the job {id}? It is not run again."))? {
                context.output.remark("nothing was changed");
                return Ok(Exit::Failed);
            }
            match sf.job(id).cancel(operator, reason).await? {
                Cancellation::Done => ("cancelled", "it is not run again"),
                Cancellation::Requested => (
                    "requested",
                    "it is running, and told to stop; it may end completed, but it is not tried again",
                ),
            }
        }
        Decision::Reschedule(due) => {
            match due {
                Due::At(at) => sf.job(id).reschedule(at, operator, reason).await?,
                Due::In(delay) => sf.job(id).reschedule_in(delay, operator, reason).await?,
            }
            return show_due(context, sf, id, decision, (operator, reason)).await;
        }
        Decision::Snooze(time) => {
            sf.job(id).snooze(time, operator, reason).await?;
            return show_due(context, sf, id, decision, (operator, reason)).await;
        }
    };
    let decided = Decided {
        id: id.to_string(),
        verb: decision.word(),
        due_at: None,
        operator,
        reason,
    };
    decided.show(context, done, meaning.to_owned())
}

/// How many would be changed, as it is shown to programs.
#[derive(Serialize)]
struct Counted {
    jobs: u64,
    exact: bool,
    verb: &'static str,
    changed: bool,
}

async fn change_all<Db: Database>(
    context: &Context,
    sf: &Steadfast<Db>,
    options: &ChangeOptions,
    decision: Decision,
) -> Result<Exit> {
    let state = options.filter.state.or(decision.state());
    let list = || {
        let list = narrow(sf.jobs(), &options.filter);
        match state {
            Some(state) => list.state(state),
            None => list,
        }
    };
    let count = list().count_for(decision.bulk_verb(SystemTime::now())).await?;
    if count.number == 0 {
        check_queue(sf, &options.filter).await?;
    }
    if options.dry_run || count.number == 0 {
        let counted = Counted {
            jobs: count.number,
            exact: !count.is_capped,
            verb: decision.word(),
            changed: false,
        };
        context
            .output
            .record(&counted, &[("jobs", format!("{count}, not changed"))])?;
        return Ok(Exit::Ok);
    }
    let which = state.map_or(decision.states(), JobState::as_str);
    let question = match decision {
        Decision::Retry | Decision::RunNow => format!("Run {count} {which} jobs now, with all their attempts?"),
        Decision::Cancel => format!("Cancel {count} {which} jobs? They are never run."),
        Decision::Reschedule(_) => format!("Say when {count} {which} jobs are run?"),
        Decision::Snooze(time) => format!("Put {count} {which} jobs off by {time:?}?"),
    };
    if !confirm(context, &question)? {
        context.output.remark("nothing was changed");
        return Ok(Exit::Failed);
    }
    let operator = context.config.operator()?;
    // By the clock of the database, as everything that is due.
    let now = sf.transact(async |tx| Ok(tx.now().await?)).await?;
    let operation = list()
        .start(decision.bulk_verb(now), operator, options.reason())
        .await?;
    operations::work(context, sf, operation.id).await
}

pub(crate) async fn reschedule(context: &Context, options: &RescheduleOptions) -> Result<Exit> {
    let due = match &options.at {
        Some(at) => Due::At(moment(at, &options.tz)?),
        None => Due::In(options.delay.unwrap_or_default()),
    };
    change(context, &options.change, Decision::Reschedule(due)).await
}

pub(crate) async fn snooze(context: &Context, options: &SnoozeOptions) -> Result<Exit> {
    change(context, &options.change, Decision::Snooze(options.time)).await
}

/// Reads a moment as `steadfast cron next` does.
fn moment(text: &str, zone: &str) -> Result<SystemTime> {
    Ok(Cron::parse("* * * * *", zone)?.moment(text)?)
}

/// Says when a job is due by now.
async fn show_due<Db: Database>(
    context: &Context,
    sf: &Steadfast<Db>,
    id: steadfast::JobId,
    decision: Decision,
    (operator, reason): (&str, &str),
) -> Result<Exit> {
    let due_at = sf.job(id).look().await?.and_then(|looked| looked.job.due_at);
    let due_at = due_at.map(steadfast::rfc3339);
    let meaning = match &due_at {
        Some(at) => format!("it is due at {at}; its attempts stay counted"),
        None => "somebody has run it meanwhile".to_owned(),
    };
    let decided = Decided {
        id: id.to_string(),
        verb: decision.word(),
        due_at,
        operator,
        reason,
    };
    decided.show(context, "put off", meaning)
}
