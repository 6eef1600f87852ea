//! `steadfast operations`: bulk operations, how far they are, and going on with them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use steadfast::{BulkOperation, BulkState, BulkVerb, Database, OperationId, Steadfast};
use steadfast_terminal::Bar;

use crate::Context;
use crate::change::check_reason;
use crate::database::{Access, on_database};
use crate::deliveries::ambiguous;
use crate::delivery_options::OperationsVerb;
use crate::error::{CliError, Exit, Result};
use crate::output::escape;

/// An operation as it is shown to programs.
#[derive(Serialize)]
struct Shown {
    id: String,
    verb: &'static str,
    filter: serde_json::Value,
    state: &'static str,
    done: u64,
    expected: u64,
    batches: u64,
    operator: String,
    reason: String,
    created_at: String,
    updated_at: String,
}

impl From<&BulkOperation> for Shown {
    fn from(operation: &BulkOperation) -> Self {
        Self {
            id: operation.id.to_string(),
            verb: operation.verb.as_str(),
            filter: operation.filter.clone(),
            state: operation.state.as_str(),
            done: operation.done,
            expected: operation.expected,
            batches: operation.batches,
            operator: operation.operator.clone(),
            reason: operation.reason.clone(),
            created_at: steadfast::rfc3339(operation.created_at),
            updated_at: steadfast::rfc3339(operation.updated_at),
        }
    }
}

impl Shown {
    fn row(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.verb.to_owned(),
            self.state.to_owned(),
            format!("{} of {}", self.done, self.expected),
            self.created_at.clone(),
            escape(&self.operator),
            escape(&self.filter.to_string()),
            escape(&self.reason),
        ]
    }

    /// What is told to a person, with what the audit says: by whom and why.
    fn lines(&self, operator: &str, reason: &str) -> Vec<(&'static str, String)> {
        vec![
            ("operation", self.id.clone()),
            (
                "state",
                format!(
                    "{}, {} of {} {}",
                    self.state,
                    self.done,
                    self.expected,
                    noun(&self.filter)
                ),
            ),
            ("verb", format!("{} {}", self.verb, escape(&self.filter.to_string()))),
            ("audit", format!("by {}: {}", escape(operator), escape(reason))),
        ]
    }
}

/// What an operation is about.
fn noun(filter: &serde_json::Value) -> &'static str {
    match filter["role"].as_str() {
        Some("job") => "jobs",
        _ => "deliveries",
    }
}

pub(crate) async fn run(context: &Context, verb: &OperationsVerb) -> Result<Exit> {
    match verb {
        OperationsVerb::List { limit } => list(context, *limit).await,
        OperationsVerb::Resume { id } => {
            on_database!(context, Access::Write, builder => {
                let sf = builder?.build().await?;
                let id = find(&sf, id).await?;
                work(context, &sf, id).await
            })
        }
        OperationsVerb::Cancel { id, because } => {
            check_reason(&because.reason)?;
            on_database!(context, Access::Write, builder => {
                let sf = builder?.build().await?;
                let id = find(&sf, id).await?;
                let operator = context.config.operator()?;
                let cancelled = sf.bulk_operation(id).cancel(operator, &because.reason).await?;
                let shown = Shown::from(&cancelled);
                context.output.record(&shown, &shown.lines(operator, &because.reason))?;
                Ok(Exit::Ok)
            })
        }
    }
}

async fn list(context: &Context, limit: u32) -> Result<Exit> {
    let operations =
        on_database!(context, Access::Read, builder => builder?.build().await?.bulk_operations(limit).await?);
    let shown: Vec<_> = operations.iter().map(Shown::from).collect();
    let header = [
        "operation",
        "verb",
        "state",
        "done",
        "began",
        "operator",
        "filter",
        "reason",
    ];
    context.output.records(&shown, &header, Shown::row)?;
    Ok(Exit::Ok)
}

/// Works on an operation until it has ended, or until Ctrl-C, which stops it between two batches.
pub(crate) async fn work<Db: Database>(context: &Context, sf: &Steadfast<Db>, id: OperationId) -> Result<Exit> {
    let bar = Bar::default();
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let interrupt = is_interrupted.clone();
    let listening = tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            interrupt.store(true, Ordering::Relaxed);
        }
    });
    let watch = |progress: &BulkOperation| {
        let part = progress.done as f64 / progress.expected.max(1) as f64;
        let noun = noun(&progress.filter);
        bar.show(part, &format!("{} of {} {noun}", progress.done, progress.expected));
        match is_interrupted.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let ended = sf.bulk_operation(id).resume(watch).await;
    listening.abort();
    bar.clear();
    let ended = ended?;
    let shown = Shown::from(&ended);
    context
        .output
        .record(&shown, &shown.lines(&shown.operator, &shown.reason))?;
    let left = ended.expected.saturating_sub(ended.done);
    if ended.state == BulkState::Done && ended.verb == BulkVerb::Requeue && left > 0 {
        context.output.remark(&format!(
            "{left} stay as they are: somebody else has changed them meanwhile, the inbox may have forgotten them since, or they are unique \
             jobs whose key another one has by now"
        ));
    }
    if ended.state == BulkState::Running {
        let how = format!(
            "it was stopped; `steadfast operations resume {id}` goes on, `steadfast operations cancel {id}` ends it"
        );
        context.output.remark(&how);
        return Ok(Exit::Failed);
    }
    Ok(Exit::Ok)
}

/// The one operation whose id begins so.
async fn find<Db: Database>(sf: &Steadfast<Db>, prefix: &str) -> Result<OperationId> {
    let found = sf.bulk_operations_beginning(prefix).await?;
    let ids: Vec<_> = found.iter().map(|operation| operation.id).collect();
    match &ids[..] {
        [] => Err(CliError::new(
            Exit::NotFound,
            format!("there is no operation whose id begins with {}", escape(prefix)),
            "`steadfast operations list` shows them",
        )),
        [id] => Ok(*id),
        several => Err(ambiguous(prefix, several)),
    }
}
