//! `steadfast outbox requeue | skip` and `steadfast dead requeue | discard`: one delivery by its id, or all that fit, as a
//! bulk operation.

use std::io::Read;
use std::path::Path;

use serde::Serialize;
use steadfast::{BulkVerb, Database, DeliveryList, DeliveryState, MessageId, Steadfast};

use crate::Context;
use crate::confirm::confirm;
use crate::database::{Access, on_database};
use crate::deliveries::{check_names, find, narrow};
use crate::delivery_options::{ChangeOptions, RequeueOptions};
use crate::error::{CliError, Exit, Result};
use crate::operations;
use crate::output::escape;

pub(crate) async fn requeue(context: &Context, options: &RequeueOptions, state: DeliveryState) -> Result<Exit> {
    if options.edited.is_some() && options.change.id.is_none() {
        return Err(CliError::new(
            Exit::Usage,
            "--edited is for one delivery",
            "name the message: `steadfast dead requeue ID --target NAME --edited FILE --reason ..`",
        ));
    }
    if options.force && options.change.id.is_none() {
        return Err(CliError::new(
            Exit::Usage,
            "--force is for one delivery",
            "look at each of them, and name its message: `steadfast dead requeue ID --force --reason ..`",
        ));
    }
    let edited = options.edited.as_deref().map(read_payload).transpose()?;
    let how = How {
        edited,
        is_forced: options.force,
    };
    run(context, &options.change, BulkVerb::Requeue, Some(state), how).await
}

/// How one delivery is requeued.
#[derive(Default)]
struct How {
    /// With this payload.
    edited: Option<String>,
    /// Even if the inbox may have forgotten its message.
    is_forced: bool,
}

pub(crate) async fn skip(context: &Context, options: &ChangeOptions) -> Result<Exit> {
    run(context, options, BulkVerb::Skip, None, How::default()).await
}

pub(crate) async fn discard(context: &Context, options: &ChangeOptions) -> Result<Exit> {
    let state = Some(DeliveryState::Dead);
    run(context, options, BulkVerb::Discard, state, How::default()).await
}

async fn run(
    context: &Context,
    options: &ChangeOptions,
    verb: BulkVerb,
    state: Option<DeliveryState>,
    how: How,
) -> Result<Exit> {
    if let Some(reason) = &options.reason {
        check_reason(reason)?;
    }
    if options.id.is_none() && options.filter.is_empty() && !options.all {
        return Err(CliError::new(
            Exit::Usage,
            "it is not said which deliveries",
            "name a message by its id, add a filter such as --target, or --all",
        ));
    }
    let access = if options.dry_run { Access::Read } else { Access::Write };
    on_database!(context, access, builder => {
        let sf = builder?.build().await?;
        match &options.id {
            Some(id) => {
                let id = find(&sf, id).await?;
                change_one(context, &sf, id, options, verb, how).await
            }
            None => change_all(context, &sf, options, verb, state).await,
        }
    })
}

pub(crate) fn check_reason(reason: &str) -> Result<()> {
    if reason.trim().is_empty() {
        return Err(CliError::new(
            Exit::Usage,
            "the reason is empty",
            "write --reason \"why\" for the audit",
        ));
    }
    Ok(())
}

fn read_payload(file: &Path) -> Result<String> {
    let mut payload = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().read_to_string(&mut payload).map(drop)
    } else {
        std::fs::read_to_string(file).map(|text| payload = text)
    };
    read.map(|()| payload).map_err(|error| {
        CliError::new(
            Exit::Usage,
            format!("the payload {} cannot be read", file.display()),
            "name a file with JSON, or - for standard input",
        )
        .because(&error)
    })
}

/// A target, a queue or a breaker that was changed, as it is shown to programs.
#[derive(Serialize)]
pub(crate) struct NamedChange<'c> {
    pub(crate) name: &'c str,
    pub(crate) done: &'static str,
    pub(crate) operator: &'c str,
    pub(crate) reason: &'c str,
}

impl NamedChange<'_> {
    pub(crate) fn show(&self, context: &Context, meaning: &str) -> Result<Exit> {
        let audit = format!("by {}: {}", escape(self.operator), escape(self.reason));
        let lines = [
            (self.done, escape(self.name)),
            ("meaning", meaning.to_owned()),
            ("audit", audit),
        ];
        context.output.record(self, &lines)?;
        Ok(Exit::Ok)
    }
}

/// A delivery that was changed, as it is shown to programs.
#[derive(Serialize)]
struct Changed<'c> {
    id: String,
    target: &'c str,
    verb: &'static str,
    replaced_by: Option<String>,
    operator: &'c str,
    reason: &'c str,
}

async fn change_one<Db: Database>(
    context: &Context,
    sf: &Steadfast<Db>,
    id: MessageId,
    options: &ChangeOptions,
    verb: BulkVerb,
    how: How,
) -> Result<Exit> {
    let (operator, reason) = (context.config.operator()?, options.reason());
    let target = match &options.filter.target {
        Some(target) => target.clone(),
        None => only_target(sf, id, verb).await?,
    };
    let name = format!("{id} to {}", escape(&target));
    if verb != BulkVerb::Requeue {
        let question = match verb {
            BulkVerb::Skip => format!("Skip the delivery of {name}? It is never made, and those behind it go on."),
            _ => format!("Discard the delivery of {name}? It is never made, and those behind it go on."),
        };
        if !confirm(context, &question)? {
            context.output.remark("nothing was changed");
            return Ok(Exit::Failed);
        }
    }
    let mut delivery = sf.delivery(id, &target);
    if how.is_forced {
        delivery = delivery.forced();
    }
    let mut replaced_by = None;
    match (verb, how.edited) {
        (BulkVerb::Requeue, Some(payload)) => {
            let new = delivery.requeue_edited(operator, reason, payload.trim()).await?;
            replaced_by = Some(new.to_string());
        }
        (BulkVerb::Requeue, None) => delivery.requeue(operator, reason).await?,
        (BulkVerb::Skip, _) => delivery.skip(operator, reason).await?,
        _ => delivery.discard(operator, reason).await?,
    }
    let (done, meaning) = match verb {
        BulkVerb::Requeue => (
            "requeued",
            "it is due now, with all its attempts, in its old place of the order",
        ),
        BulkVerb::Skip => ("skipped", "it is never made; those behind it go on"),
        _ => ("discarded", "it is given up for good; those behind it go on"),
    };
    let mut lines = vec![(done, name), ("meaning", meaning.to_owned())];
    lines.extend(
        replaced_by
            .clone()
            .map(|new| ("edited", format!("as message {new}, which replaces it for this target"))),
    );
    lines.push(("audit", format!("by {}: {}", escape(operator), escape(reason))));
    let changed = Changed {
        id: id.to_string(),
        target: &target,
        verb: verb.as_str(),
        replaced_by,
        operator,
        reason,
    };
    context.output.record(&changed, &lines)?;
    Ok(Exit::Ok)
}

/// The target that must be meant, if it is not said: the only one that the message is still on its way to.
async fn only_target<Db: Database>(sf: &Steadfast<Db>, id: MessageId, verb: BulkVerb) -> Result<String> {
    let message = sf.message(id).look().await?;
    let deliveries = message.map(|message| message.deliveries).unwrap_or_default();
    let fits = |state: DeliveryState| match verb {
        BulkVerb::Discard => state == DeliveryState::Dead,
        _ => matches!(
            state,
            DeliveryState::Pending | DeliveryState::Leased | DeliveryState::Dead
        ),
    };
    let mut targets: Vec<_> = deliveries
        .iter()
        .filter(|delivery| fits(delivery.state))
        .map(|delivery| delivery.target.clone())
        .collect();
    match (targets.pop(), targets.is_empty()) {
        (Some(target), true) => Ok(target),
        (Some(target), false) => {
            let names: Vec<_> = targets.iter().chain([&target]).map(|name| escape(name)).collect();
            Err(CliError::new(
                Exit::Conflict,
                format!("{id} is on its way to several targets"),
                format!("add --target with one of {}", names.join(", ")),
            ))
        }
        (None, _) => Err(CliError::new(
            Exit::NotFound,
            format!("no delivery of {id} can be changed so"),
            format!("`steadfast outbox show {id}` shows where each of them stands"),
        )),
    }
}

/// How many would be changed, as it is shown to programs.
#[derive(Serialize)]
struct Counted {
    deliveries: u64,
    exact: bool,
    verb: &'static str,
    changed: bool,
}

async fn change_all<Db: Database>(
    context: &Context,
    sf: &Steadfast<Db>,
    options: &ChangeOptions,
    verb: BulkVerb,
    state: Option<DeliveryState>,
) -> Result<Exit> {
    let list = || -> DeliveryList<'_, Db> {
        let list = match state {
            // Jobs are among the dead letters too.
            Some(DeliveryState::Dead) => sf.dead_letters(),
            Some(state) => sf.deliveries().state(state),
            None => sf.deliveries(),
        };
        narrow(list, &options.filter)
    };
    let count = list().count_for(verb).await?;
    if count.number == 0 {
        check_names(sf, &options.filter).await?;
    }
    if verb == BulkVerb::Requeue {
        let left = list().count().await?.number.saturating_sub(count.number);
        if left > 0 {
            context.output.remark(&format!(
                "{left} more stay as they are: they have expired, or came from elsewhere longer ago than the inbox remembers; look \
                 at each of them, and requeue it with --edited or --force, or discard it"
            ));
        }
    }
    if options.dry_run || count.number == 0 {
        let counted = Counted {
            deliveries: count.number,
            exact: !count.is_capped,
            verb: verb.as_str(),
            changed: false,
        };
        context
            .output
            .record(&counted, &[("deliveries", format!("{count}, not changed"))])?;
        return Ok(Exit::Ok);
    }
    let what = state.map_or("pending or dead", DeliveryState::as_str);
    let verb_word = match verb {
        BulkVerb::Requeue => "Requeue",
        BulkVerb::Skip => "Skip",
        _ => "Discard",
    };
    if !confirm(context, &format!("{verb_word} {count} {what} deliveries?"))? {
        context.output.remark("nothing was changed");
        return Ok(Exit::Failed);
    }
    let operator = context.config.operator()?;
    let operation = list().start(verb, operator, options.reason()).await?;
    operations::work(context, sf, operation.id).await
}
