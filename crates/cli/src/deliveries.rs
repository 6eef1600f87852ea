//! `steadfast outbox list | show` and `steadfast dead list | groups | show | export`: what waits, what has died, and why.

use std::time::SystemTime;

use serde::Serialize;
use steadfast::{Database, DeadGroup, DeliveryList, ListedDelivery, LookedMessage, MessageId, Steadfast};

use crate::Context;
use crate::database::{Access, on_database};
use crate::delivery_options::{DeadListOptions, ExportOptions, FilterOptions, ListOptions, PageOptions, ShowOptions};
use crate::error::{CliError, Exit, Result};
use crate::output::{escape, relative};
use crate::suggest::nearest;

/// How much of an error fits a table.
const ERROR_SHOWN: usize = 60;

/// A delivery as it is shown to programs.
#[derive(Serialize)]
struct Shown {
    id: String,
    target: String,
    #[serde(rename = "type")]
    event_type: Option<String>,
    ordering_key: Option<String>,
    state: &'static str,
    attempts: u32,
    published_at: Option<String>,
    due_at: Option<String>,
    holder: Option<String>,
    leased_until: Option<String>,
    finished_at: Option<String>,
    detail: Option<String>,
    failed_at: Option<String>,
    code: Option<String>,
    error: Option<String>,
    fingerprint: Option<String>,
    #[serde(skip)]
    when: String,
}

impl Shown {
    fn new(delivery: &ListedDelivery, now: SystemTime) -> Self {
        let moment = |at: Option<SystemTime>| at.map(steadfast::rfc3339);
        let failure = delivery.last_failure.as_ref();
        let at = delivery
            .finished_at
            .or(failure
                .filter(|_| delivery.state == steadfast::DeliveryState::Dead)
                .map(|failure| failure.at))
            .or(delivery.leased_until)
            .or(delivery.due_at);
        Self {
            id: delivery.id.to_string(),
            target: delivery.target.clone(),
            event_type: delivery.event_type.clone(),
            ordering_key: delivery.ordering_key.clone(),
            state: delivery.state.as_str(),
            attempts: delivery.attempts,
            published_at: moment(delivery.published_at),
            due_at: moment(delivery.due_at),
            holder: delivery.holder.clone(),
            leased_until: moment(delivery.leased_until),
            finished_at: moment(delivery.finished_at),
            detail: delivery.detail.clone(),
            failed_at: moment(failure.map(|failure| failure.at)),
            code: failure.map(|failure| failure.code.clone()),
            error: failure.map(|failure| failure.message.clone()),
            fingerprint: failure.map(|failure| failure.fingerprint.clone()),
            when: at.map(|at| relative(at, now)).unwrap_or_default(),
        }
    }

    /// What is known besides: why it ended, or how it failed.
    fn word(&self) -> String {
        match (&self.detail, &self.code, &self.error) {
            (Some(detail), ..) => escape(detail),
            (None, Some(code), Some(error)) => shorten(&format!("{}: {}", escape(code), escape(error))),
            _ => String::new(),
        }
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            escape(&self.target),
            self.event_type.as_deref().map(escape).unwrap_or_default(),
            self.state.to_owned(),
            self.attempts.to_string(),
            self.when.clone(),
            self.word(),
        ]
    }
}

const HEADER: [&str; 7] = ["message", "target", "type", "state", "attempts", "when", "what"];

pub(crate) fn shorten(text: &str) -> String {
    if text.chars().count() <= ERROR_SHOWN {
        return text.to_owned();
    }
    text.chars().take(ERROR_SHOWN - 1).chain(['…']).collect()
}

/// The deliveries that fit.
pub(crate) fn narrow<'c, Db: Database>(mut list: DeliveryList<'c, Db>, filter: &FilterOptions) -> DeliveryList<'c, Db> {
    if let Some(target) = &filter.target {
        list = list.target(target);
    }
    if let Some(event_type) = &filter.event_type {
        list = list.event_type(event_type);
    }
    if let Some(key) = &filter.ordering_key {
        list = list.ordering_key(key);
    }
    if let Some(code) = &filter.code {
        list = list.code(code);
    }
    if let Some(fingerprint) = &filter.fingerprint {
        list = list.fingerprint(fingerprint);
    }
    if let Some(age) = filter.since {
        list = list.published_within(age);
    }
    list
}

/// Fails if a filter that let nothing through names what is not there: then it was probably meant otherwise.
pub(crate) async fn check_names<Db: Database>(sf: &Steadfast<Db>, filter: &FilterOptions) -> Result<()> {
    if filter.target.is_none() && filter.event_type.is_none() {
        return Ok(());
    }
    let targets = sf.targets().await?;
    if let Some(name) = &filter.target
        && !targets.iter().any(|target| target.name == *name)
    {
        let known = targets.iter().map(|target| &*target.name);
        return Err(unknown("target", name, nearest(name, known)));
    }
    let patterns = || {
        targets
            .iter()
            .flat_map(|target| target.patterns.iter().map(String::as_str))
    };
    let fits = |pattern: &str, name: &str| match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    };
    if let Some(name) = &filter.event_type
        && !patterns().any(|pattern| fits(pattern, name))
    {
        return Err(unknown("type of events", name, nearest(name, patterns())));
    }
    Ok(())
}

fn unknown(what: &str, name: &str, near: Option<&str>) -> CliError {
    let help = match near {
        Some(near) => format!("did you mean {near}?"),
        None => "`steadfast targets list` shows the targets, and which types they want".to_owned(),
    };
    CliError::new(Exit::NotFound, format!("there is no {what} {}", escape(name)), help)
}

pub(crate) async fn list(context: &Context, options: &ListOptions) -> Result<Exit> {
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let mut list = sf.deliveries();
        if let Some(state) = options.state {
            list = list.state(state.into());
        }
        show_page(context, &sf, list, &options.filter, &options.page).await
    })
}

pub(crate) async fn dead(context: &Context, options: &DeadListOptions) -> Result<Exit> {
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        show_page(context, &sf, sf.dead_letters(), &options.filter, &options.page).await
    })
}

async fn show_page<Db: Database>(
    context: &Context,
    sf: &Steadfast<Db>,
    list: DeliveryList<'_, Db>,
    filter: &FilterOptions,
    options: &PageOptions,
) -> Result<Exit> {
    let mut list = narrow(list, filter).limit(options.limit);
    if let Some(last) = &options.after {
        list = list.after(last.clone());
    }
    let page = list.page().await?;
    if page.deliveries.is_empty() {
        check_names(sf, filter).await?;
    }
    let shown: Vec<_> = page
        .deliveries
        .iter()
        .map(|delivery| Shown::new(delivery, page.now))
        .collect();
    context.output.records(&shown, &HEADER, Shown::row)?;
    if let Some(last) = page.next {
        context.output.remark(&format!("there are more: add --after {last}"));
    }
    Ok(Exit::Ok)
}

/// A group as it is shown to programs.
#[derive(Serialize)]
struct ShownGroup {
    fingerprint: String,
    count: u64,
    code: String,
    error: String,
    targets: Vec<String>,
    example: String,
    first_at: String,
    last_at: String,
}

impl From<DeadGroup> for ShownGroup {
    fn from(group: DeadGroup) -> Self {
        Self {
            fingerprint: group.fingerprint,
            count: group.count,
            code: group.code,
            error: group.message,
            targets: group.targets,
            example: group.example.to_string(),
            first_at: steadfast::rfc3339(group.first_at),
            last_at: steadfast::rfc3339(group.last_at),
        }
    }
}

impl ShownGroup {
    fn row(&self) -> Vec<String> {
        vec![
            self.fingerprint.clone(),
            self.count.to_string(),
            escape(&self.targets.join(", ")),
            self.last_at.clone(),
            self.example.clone(),
            shorten(&format!("{}: {}", escape(&self.code), escape(&self.error))),
        ]
    }
}

pub(crate) async fn groups(context: &Context, filter: &FilterOptions) -> Result<Exit> {
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let groups = narrow(sf.dead_letters(), filter).groups().await?;
        if groups.is_empty() {
            check_names(&sf, filter).await?;
        }
        let shown: Vec<_> = groups.into_iter().map(ShownGroup::from).collect();
        let header = ["fingerprint", "count", "targets", "last", "example", "what"];
        context.output.records(&shown, &header, ShownGroup::row)?;
        Ok(Exit::Ok)
    })
}

pub(crate) async fn show(context: &Context, options: &ShowOptions) -> Result<Exit> {
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let id = find(&sf, &options.id).await?;
        let mut look_up = sf.message(id);
        if options.reveal {
            look_up = look_up.revealed();
        }
        let message = look_up.look().await?.ok_or_else(|| not_found(&options.id))?;
        if context.output.is_json {
            context.output.objects(&[message.to_json()])?;
        } else {
            context.output.record(&(), &lines(&message))?;
        }
        Ok(Exit::Ok)
    })
}

/// A message, for people.
fn lines(message: &LookedMessage) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("message", message.id.to_string()),
        (
            "type",
            format!("{}, version {}", escape(&message.event_type), message.version),
        ),
        ("published", steadfast::rfc3339(message.published_at)),
    ];
    let known = [
        ("key", &message.ordering_key),
        ("correlation", &message.correlation_id),
        ("causation", &message.causation_id),
        ("trace", &message.traceparent),
    ];
    lines.extend(
        known
            .into_iter()
            .filter_map(|(name, value)| Some((name, escape(value.as_deref()?)))),
    );
    lines.extend(message.expires_at.map(|at| ("expires", steadfast::rfc3339(at))));
    lines.extend(message.replaces.map(|id| ("replaces", id.to_string())));
    if let Some(incoming) = &message.incoming {
        let known = [
            ("came as", incoming.message_id()),
            ("came from", incoming.place()),
            ("came with", incoming.correlation_id()),
        ];
        let known = known
            .into_iter()
            .filter_map(|(name, value)| Some((name, escape(value?))));
        lines.extend(known);
        let headers = incoming.headers().iter();
        lines.extend(headers.map(|(name, value)| ("header", format!("{}: {}", escape(name), escape(value)))));
    }
    lines.push(("payload", escape(&message.payload)));
    if !message.redacted.is_empty() {
        lines.push(("redacted", escape(&message.redacted.join(", "))));
    }
    for delivery in &message.deliveries {
        let shown = Shown::new(delivery, SystemTime::now());
        let at = shown
            .finished_at
            .as_ref()
            .or(shown.leased_until.as_ref())
            .or(shown.due_at.as_ref());
        let at = at.map_or_else(String::new, |at| format!(" at {at}"));
        let word = match (&shown.detail, &shown.holder) {
            (Some(detail), _) => format!(": {}", escape(detail)),
            (None, Some(holder)) => format!(", held by {}", escape(holder)),
            _ => String::new(),
        };
        let what = match shown.state {
            "pending" => format!("pending, due{at}"),
            "leased" => format!("leased, until{}{word}", at.trim_start_matches(" at")),
            "dead" => "dead".to_owned(),
            ended => format!("{ended}{at}{word}"),
        };
        lines.push((
            "delivery",
            format!("{}: {what}, {}", escape(&delivery.target), attempts(delivery.attempts)),
        ));
    }
    for failed in &message.failures {
        let what = format!(
            "{} attempt {} at {}: {} {}: {}",
            escape(&failed.target),
            failed.attempt,
            steadfast::rfc3339(failed.at),
            escape(&failed.failure),
            escape(&failed.code),
            escape(&failed.message)
        );
        lines.push(("failure", what));
    }
    lines
}

fn attempts(count: u32) -> String {
    format!("{count} {}", if count == 1 { "attempt" } else { "attempts" })
}

pub(crate) async fn export(context: &Context, options: &ExportOptions) -> Result<Exit> {
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let mut trouble = None;
        // A reader that has seen enough ends it.
        let each = |letter: serde_json::Value| {
            if trouble.is_none() {
                trouble = context.output.objects(&[letter]).err();
            }
            Ok(())
        };
        let count = narrow(sf.dead_letters(), &options.filter).export(options.reveal, each).await?;
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        if count == 0 {
            check_names(&sf, &options.filter).await?;
        }
        Ok(Exit::Ok)
    })
}

/// The one message whose id begins so.
pub(crate) async fn find<Db: Database>(sf: &Steadfast<Db>, prefix: &str) -> Result<MessageId> {
    let found = sf.messages_beginning(prefix).await?;
    match &found[..] {
        [] => Err(not_found(prefix)),
        [id] => Ok(*id),
        several => Err(ambiguous(prefix, several)),
    }
}

/// Several ids begin so.
pub(crate) fn ambiguous<T: std::fmt::Display>(prefix: &str, candidates: &[T]) -> CliError {
    const NAMED_MAX: usize = 10;
    let named: String = candidates
        .iter()
        .take(NAMED_MAX)
        .map(|id| format!("\n  {id}"))
        .collect();
    let more = if candidates.len() > NAMED_MAX { "\n  …" } else { "" };
    CliError::new(
        Exit::Conflict,
        format!("{} is the beginning of several ids", escape(prefix)),
        format!("write more digits of one of them:{named}{more}"),
    )
}

fn not_found(prefix: &str) -> CliError {
    CliError::new(
        Exit::NotFound,
        format!("there is no message whose id begins with {}", escape(prefix)),
        "`steadfast outbox list` shows those that are still to do; what was delivered is kept for a while only",
    )
}
