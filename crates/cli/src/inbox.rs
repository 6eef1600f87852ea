//! `steadfast inbox list | show | stats`: which messages from elsewhere were handled, and until when that is remembered.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use steadfast::{
    ConsumerStats, Database, DeliveryState, InboxList, InboxPlace, InboxRecord, InboxStats, ListedDelivery, Steadfast,
};
use steadfast_terminal::table;

use crate::Context;
use crate::database::{Access, on_database};
use crate::error::{CliError, Exit, Result};
use crate::inbox_options::{InboxVerb, ListOptions, ShowOptions, WhoseOptions};
use crate::output::{escape, relative, rounded};
use crate::suggest::nearest;

/// How many records are named when several fit.
const CANDIDATES_MAX: u32 = 10;

pub(crate) async fn run(context: &Context, verb: &InboxVerb) -> Result<Exit> {
    match verb {
        InboxVerb::List(options) => list(context, options).await,
        InboxVerb::Show(options) => show(context, options).await,
        InboxVerb::Stats(whose) => stats(context, whose).await,
    }
}

/// A record as it is shown to programs.
#[derive(Serialize)]
struct Shown {
    consumer: String,
    source: String,
    message_id: String,
    received_at: String,
    /// The message, if it was kept to be worked on later.
    kept: Option<String>,
    place: String,
    #[serde(skip)]
    received: String,
}

impl Shown {
    fn new(record: &InboxRecord, now: SystemTime) -> Self {
        Self {
            consumer: record.consumer.clone(),
            source: record.source.clone(),
            message_id: record.message_id.clone(),
            received_at: steadfast::rfc3339(record.received_at),
            kept: record.kept.map(|id| id.to_string()),
            place: InboxPlace::from(record).to_string(),
            received: relative(record.received_at, now),
        }
    }

    fn row(&self) -> Vec<String> {
        vec![
            escape(&self.consumer),
            escape(&self.source),
            escape(&self.message_id),
            self.received.clone(),
            self.kept.clone().unwrap_or_else(|| "no".to_owned()),
        ]
    }
}

async fn list(context: &Context, options: &ListOptions) -> Result<Exit> {
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let mut list = narrow(sf.inbox(), &options.whose).limit(options.limit);
        if let Some(age) = options.since {
            list = list.received_within(age);
        }
        if let Some(age) = options.until {
            list = list.received_before(age);
        }
        if let Some(last) = &options.after {
            list = list.after(last.clone());
        }
        let page = list.page().await?;
        if page.records.is_empty() {
            check_names(&sf, &options.whose).await?;
        }
        let shown: Vec<_> = page.records.iter().map(|record| Shown::new(record, page.now)).collect();
        let header = ["consumer", "source", "message id", "received", "kept as"];
        context.output.records(&shown, &header, Shown::row)?;
        if let Some(last) = shown.last().filter(|_| page.has_more) {
            context.output.remark(&format!("there are more: add --after {}", last.place));
        }
        Ok(Exit::Ok)
    })
}

fn narrow<'l, Db: Database>(mut list: InboxList<'l, Db>, whose: &WhoseOptions) -> InboxList<'l, Db> {
    if let Some(consumer) = &whose.consumer {
        list = list.consumer(consumer);
    }
    if let Some(source) = &whose.source {
        list = list.source(source);
    }
    list
}

/// Fails if a filter that let nothing through names what is not there: then it was probably meant otherwise.
///
/// A consumer is known by its records, or by the nodes that work on its deliveries if it has none yet; a source by records alone.
async fn check_names<Db: Database>(sf: &Steadfast<Db>, whose: &WhoseOptions) -> Result<()> {
    if whose.consumer.is_none() && whose.source.is_none() {
        return Ok(());
    }
    let stats = sf.inbox_stats().await?;
    let is_absent =
        async |list: InboxList<'_, Db>| -> Result<bool> { Ok(list.limit(1).page().await?.records.is_empty()) };
    if let Some(name) = &whose.consumer
        && is_absent(sf.inbox().consumer(name)).await?
    {
        let targets = sf.targets().await?;
        let names = targets.iter().map(|target| &*target.name);
        let known: Vec<_> = stats.consumers.iter().map(|one| &*one.consumer).chain(names).collect();
        if !known.contains(&&**name) {
            return Err(unknown("consumer", name, nearest(name, known)));
        }
    }
    if let Some(name) = &whose.source
        && is_absent(sf.inbox().source(name)).await?
    {
        let known = stats.consumers.iter().map(|one| &*one.source);
        return Err(unknown("source", name, nearest(name, known)));
    }
    Ok(())
}

fn unknown(what: &str, name: &str, near: Option<&str>) -> CliError {
    let help = match near {
        Some(near) => format!("did you mean {}?", escape(near)),
        None => format!("`steadfast inbox stats` shows every {what} that has records"),
    };
    CliError::new(
        Exit::NotFound,
        format!("the inbox knows no {what} {}", escape(name)),
        help,
    )
}

/// One record with what became of its message, as it is shown to programs.
#[derive(Serialize)]
struct Looked {
    #[serde(flatten)]
    record: Shown,
    /// `handled` at once, or the state of its delivery, or `ended` if nobody knows any more how.
    state: &'static str,
    handled_at: Option<String>,
    attempts: Option<u32>,
    code: Option<String>,
    error: Option<String>,
    detail: Option<String>,
    remembered_until: String,
    /// Whether it is remembered for longer, since its delivery has not ended.
    held: bool,
    #[serde(skip)]
    handled: String,
    #[serde(skip)]
    remembered: String,
    #[serde(skip)]
    advice: Option<String>,
}

impl Looked {
    fn new(record: &InboxRecord, delivery: Option<&ListedDelivery>, retention: Duration, now: SystemTime) -> Self {
        let state = delivery.map(|delivery| delivery.state);
        let is_held = matches!(
            state,
            Some(DeliveryState::Pending | DeliveryState::Leased | DeliveryState::Dead)
        );
        let handled_at = match (record.kept, state) {
            (None, _) => Some(record.received_at),
            (Some(_), Some(DeliveryState::Delivered)) => delivery.and_then(|delivery| delivery.finished_at),
            _ => None,
        };
        let until = record.received_at + retention;
        let failure = delivery.and_then(|delivery| delivery.last_failure.as_ref());
        Self {
            state: match (record.kept, state) {
                (None, _) => "handled",
                (Some(_), Some(state)) => state.as_str(),
                (Some(_), None) => "ended",
            },
            handled_at: handled_at.map(steadfast::rfc3339),
            attempts: delivery.map(|delivery| delivery.attempts),
            code: failure.map(|failure| failure.code.clone()),
            error: failure.map(|failure| failure.message.clone()),
            detail: delivery.and_then(|delivery| delivery.detail.clone()),
            remembered_until: steadfast::rfc3339(until),
            held: is_held,
            handled: match (handled_at, state) {
                (Some(at), _) => format!("{}, {}", relative(at, now), steadfast::rfc3339(at)),
                (None, Some(DeliveryState::Pending | DeliveryState::Leased)) => "not yet".to_owned(),
                (None, Some(_)) => "no".to_owned(),
                (None, None) => "it has ended, longer ago than messages are kept".to_owned(),
            },
            remembered: remembered(is_held, until, now),
            advice: record.kept.filter(|_| delivery.is_some()).map(|id| match state {
                Some(DeliveryState::Dead) if until <= now => format!(
                    "look whether it was handled by other means, then `steadfast dead requeue {id} --force --reason ..`"
                ),
                Some(DeliveryState::Dead) => {
                    format!("`steadfast dead show {id}` shows it; `steadfast dead requeue {id} --reason ..`")
                }
                Some(DeliveryState::Pending | DeliveryState::Leased) => {
                    format!("`steadfast why {id}` says what it waits for")
                }
                _ => format!("`steadfast outbox show {id}` shows it"),
            }),
            record: Shown::new(record, now),
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let record = &self.record;
        let mut lines = vec![
            ("consumer", escape(&record.consumer)),
            ("source", escape(&record.source)),
            ("message id", escape(&record.message_id)),
            ("received", format!("{}, {}", record.received, record.received_at)),
            ("handled", self.handled.clone()),
        ];
        if let Some(id) = &record.kept {
            let attempts = match self.attempts {
                Some(1) => ", 1 attempt".to_owned(),
                Some(count) => format!(", {count} attempts"),
                None => String::new(),
            };
            lines.push(("kept as", format!("{id}: {}{attempts}", self.state)));
        }
        if let (Some(code), Some(error)) = (&self.code, &self.error) {
            lines.push(("failure", format!("{}: {}", escape(code), escape(error))));
        }
        lines.extend(self.detail.as_ref().map(|detail| ("detail", escape(detail))));
        lines.push(("remembered", self.remembered.clone()));
        lines.extend(self.advice.clone().map(|advice| ("do", advice)));
        lines
    }
}

/// Until when a record stays: a purge takes those whose time is over, but not those of what is still to do or dead.
fn remembered(is_held: bool, until: SystemTime, now: SystemTime) -> String {
    let moment = steadfast::rfc3339(until);
    match (is_held, until > now) {
        (true, true) => format!("until its delivery has ended, and at least until {moment}"),
        (true, false) => format!(
            "until its delivery has ended; its time was over {}, {moment}",
            relative(until, now)
        ),
        (false, true) => format!("until {moment}, {}", relative(until, now)),
        (false, false) => format!(
            "until the next purge; its time was over {}, {moment}",
            relative(until, now)
        ),
    }
}

async fn show(context: &Context, options: &ShowOptions) -> Result<Exit> {
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let (record, now) = find(&sf, options).await?;
        let message = match record.kept {
            Some(id) => sf.message(id).look().await?,
            None => None,
        };
        // Others may keep the same message.
        let deliveries = message.map(|message| message.deliveries).unwrap_or_default();
        let delivery = deliveries.iter().find(|delivery| delivery.target == record.consumer);
        let retention = steadfast::parse_duration(context.config.inbox_retention())?;
        let shown = Looked::new(&record, delivery, retention, now);
        context.output.record(&shown, &shown.lines())?;
        Ok(Exit::Ok)
    })
}

/// The one record that fits, and the time it was read at.
async fn find<Db: Database>(sf: &Steadfast<Db>, options: &ShowOptions) -> Result<(InboxRecord, SystemTime)> {
    let id = &*options.message_id;
    let list = narrow(sf.inbox(), &options.whose).message_id(id);
    let page = list.limit(CANDIDATES_MAX).page().await?;
    let mut records = page.records;
    if records.len() > 1 {
        let name = |record: &InboxRecord| {
            format!(
                "\n  --consumer {} --source {}",
                escape(&record.consumer),
                escape(&record.source)
            )
        };
        let named: String = records.iter().map(name).collect();
        let more = if page.has_more { "\n  …" } else { "" };
        return Err(CliError::new(
            Exit::Conflict,
            format!("several records are of a message with the id {}", escape(id)),
            format!("add which is meant:{named}{more}"),
        ));
    }
    if let Some(record) = records.pop() {
        return Ok((record, page.now));
    }
    check_names(sf, &options.whose).await?;
    Err(CliError::new(
        Exit::NotFound,
        format!("there is no record of a message with the id {}", escape(id)),
        "it was never received, or longer ago than the inbox remembers, or its consumer allows duplicates; what nobody could \
         read is in `steadfast dead list` under the name of its source",
    ))
}

/// How the inbox is doing, as it is shown to programs.
#[derive(Serialize)]
struct ShownStats<'s> {
    records: u64,
    /// Whether there may be more than were counted.
    at_least: bool,
    retention_seconds: u64,
    oldest_at: Option<String>,
    consumers: Vec<ShownConsumer<'s>>,
}

#[derive(Serialize)]
struct ShownConsumer<'s> {
    consumer: &'s str,
    source: &'s str,
    records: u64,
    oldest_at: String,
    newest_at: String,
}

async fn stats(context: &Context, whose: &WhoseOptions) -> Result<Exit> {
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let stats = sf.inbox_stats().await?;
        let fits = |wanted: &Option<String>, name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
        let chosen: Vec<_> = stats
            .consumers
            .iter()
            .filter(|one| fits(&whose.consumer, &one.consumer) && fits(&whose.source, &one.source))
            .collect();
        if chosen.is_empty() {
            check_names(&sf, whose).await?;
        }
        if context.output.is_json {
            context.output.objects(&[shown_stats(&stats, &chosen)])?;
        } else {
            context.output.print(&describe(&stats, &chosen))?;
        }
        Ok(Exit::Ok)
    })
}

fn shown_stats<'s>(stats: &InboxStats, chosen: &[&'s ConsumerStats]) -> ShownStats<'s> {
    ShownStats {
        records: chosen.iter().map(|one| one.records).sum(),
        at_least: stats.records.is_capped,
        retention_seconds: stats.retention.as_secs(),
        oldest_at: chosen.iter().map(|one| one.oldest).min().map(steadfast::rfc3339),
        consumers: chosen
            .iter()
            .map(|one| ShownConsumer {
                consumer: &one.consumer,
                source: &one.source,
                records: one.records,
                oldest_at: steadfast::rfc3339(one.oldest),
                newest_at: steadfast::rfc3339(one.newest),
            })
            .collect(),
    }
}

fn describe(stats: &InboxStats, chosen: &[&ConsumerStats]) -> String {
    let now = SystemTime::now();
    let mut text = String::new();
    if !chosen.is_empty() {
        let row = |one: &&ConsumerStats| {
            vec![
                escape(&one.consumer),
                escape(&one.source),
                one.records.to_string(),
                relative(one.oldest, now),
                relative(one.newest, now),
            ]
        };
        let rows: Vec<_> = chosen.iter().map(row).collect();
        text += &format!(
            "{}\n",
            table(&["consumer", "source", "records", "oldest", "newest"], &rows)
        );
    }
    let count: u64 = chosen.iter().map(|one| one.records).sum();
    let count = match stats.records.is_capped {
        true => format!(
            "{count} of the {} that were counted; there may be more",
            stats.records.number
        ),
        false => count.to_string(),
    };
    let oldest = chosen.iter().map(|one| one.oldest).min();
    let oldest = oldest.map_or_else(
        || "none".to_owned(),
        |at| format!("{}, {}", relative(at, now), steadfast::rfc3339(at)),
    );
    text += &format!("records    {count}\n");
    text += &format!("oldest     {oldest}\n");
    text += &format!(
        "retention  {}: what comes again later than that is taken for new\n",
        rounded(stats.retention)
    );
    text
}
