//! `steadfast schedules`: what makes jobs by the clock, when it is due next, and what is to become of it.

use std::io::{self, IsTerminal};
use std::time::SystemTime;

use serde::Serialize;
use steadfast::{Cron, Database, ListedSchedule, LookedSchedule, Steadfast, Timing, rfc3339};

use crate::Context;
use crate::change::check_reason;
use crate::confirm::confirm;
use crate::database::{Access, on_database};
use crate::deliveries::shorten;
use crate::error::{CliError, Exit, Result};
use crate::output::{escape, relative};
use crate::schedule_options::{BackfillOptions, DecideOptions, SchedulesVerb, ShowOptions};

pub(crate) async fn run(context: &Context, verb: &SchedulesVerb) -> Result<Exit> {
    match verb {
        SchedulesVerb::List => list(context).await,
        SchedulesVerb::Show(options) => show(context, options).await,
        SchedulesVerb::Pause(options) => decide(context, options, Decision::Pause).await,
        SchedulesVerb::Resume(options) => decide(context, options, Decision::Resume).await,
        SchedulesVerb::Trigger(options) => decide(context, options, Decision::Trigger).await,
        SchedulesVerb::Backfill(options) => backfill(context, options).await,
        SchedulesVerb::Remove(options) => decide(context, options, Decision::Remove).await,
    }
}

/// A schedule as it is shown to programs.
#[derive(Serialize)]
struct Shown {
    name: String,
    source: &'static str,
    timing: String,
    time_zone: Option<String>,
    missed: Option<&'static str>,
    overlap: Option<&'static str>,
    job: String,
    paused_at: Option<String>,
    paused_by: Option<String>,
    paused_reason: Option<String>,
    handled: String,
    last_tick: Option<String>,
    last_job: Option<String>,
    next: Vec<String>,
    trouble: Option<String>,
    #[serde(skip)]
    cells: [String; 2],
}

impl Shown {
    fn new(schedule: &ListedSchedule, count: usize) -> Self {
        let moment = |at: Option<SystemTime>| at.map(rfc3339);
        let since = |at: Option<SystemTime>| at.map(|at| relative(at, schedule.now));
        let paused = schedule.paused.as_ref();
        let next = schedule.next_runs(count.max(1));
        let cells = [
            since(schedule.last_tick).unwrap_or_else(|| "never".to_owned()),
            since(next.first().copied()).unwrap_or_default(),
        ];
        Self {
            name: schedule.name.clone(),
            source: schedule.source.as_str(),
            timing: schedule.written.clone(),
            time_zone: schedule.time_zone.clone(),
            missed: schedule.missed.map(steadfast::Missed::as_str),
            overlap: schedule.overlap.map(steadfast::Overlap::as_str),
            job: schedule.job.clone(),
            paused_at: moment(paused.map(|paused| paused.at)),
            paused_by: paused.map(|paused| paused.by.clone()),
            paused_reason: paused.map(|paused| paused.reason.clone()),
            handled: rfc3339(schedule.handled),
            last_tick: moment(schedule.last_tick),
            last_job: schedule.last_job.map(|id| id.to_string()),
            next: next.into_iter().map(rfc3339).collect(),
            trouble: schedule.trouble.clone(),
            cells,
        }
    }

    fn timing(&self) -> String {
        match &self.time_zone {
            Some(zone) => format!("{} {}", escape(&self.timing), escape(zone)),
            None => escape(&self.timing),
        }
    }

    fn row(&self) -> Vec<String> {
        let [last, next] = self.cells.clone();
        let note = match (&self.trouble, &self.paused_by, &self.paused_reason) {
            (Some(trouble), ..) => shorten(&format!("cannot be read: {}", escape(trouble))),
            (None, Some(by), Some(reason)) => shorten(&format!("paused by {}: {}", escape(by), escape(reason))),
            _ => String::new(),
        };
        let name = escape(&self.name);
        vec![name, self.timing(), escape(&self.job), last, next, note]
    }
}

async fn list(context: &Context) -> Result<Exit> {
    let schedules = on_database!(context, Access::Read, builder => builder?.build().await?.schedules().list().await?);
    let shown: Vec<_> = schedules.iter().map(|schedule| Shown::new(schedule, 1)).collect();
    let header = ["schedule", "due", "job", "last", "next", "note"];
    context.output.records(&shown, &header, Shown::row)?;
    Ok(Exit::Ok)
}

/// A schedule with everything that is known of it, as it is shown to programs.
#[derive(Serialize)]
struct Looked {
    #[serde(flatten)]
    schedule: Shown,
    version: u32,
    created_at: String,
    changed_at: String,
    redacted: Vec<String>,
    payload: serde_json::Value,
    made: Vec<Tick>,
    #[serde(skip)]
    local: Vec<String>,
}

/// A tick, and its job if it has one.
#[derive(Serialize)]
struct Tick {
    at: String,
    job: Option<String>,
    #[serde(skip)]
    local: String,
}

impl Looked {
    fn new(looked: &LookedSchedule, count: usize) -> Self {
        let LookedSchedule {
            schedule,
            version,
            redacted,
            payload,
            made,
            ..
        } = looked;
        let local = |at| local(schedule.timing.as_ref(), at);
        Self {
            version: *version,
            created_at: rfc3339(schedule.created_at),
            changed_at: rfc3339(schedule.changed_at),
            redacted: redacted.clone(),
            payload: serde_json::from_str(payload).unwrap_or_else(|_| payload.clone().into()),
            made: made
                .iter()
                .map(|made| Tick {
                    at: rfc3339(made.at),
                    job: Some(made.job.to_string()),
                    local: local(made.at),
                })
                .collect(),
            local: schedule.next_runs(count).into_iter().map(local).collect(),
            schedule: Shown::new(schedule, count),
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let schedule = &self.schedule;
        let known = |word: Option<&'static str>| word.unwrap_or("not known to this version");
        let mut lines = vec![
            ("schedule", format!("{}, {}", escape(&schedule.name), schedule.source)),
            ("due", schedule.timing()),
            ("missed", known(schedule.missed).to_owned()),
            ("overlap", known(schedule.overlap).to_owned()),
            ("makes", format!("{}, version {}", escape(&schedule.job), self.version)),
            ("payload", escape(&self.payload.to_string())),
        ];
        if !self.redacted.is_empty() {
            lines.push(("redacted", escape(&self.redacted.join(", "))));
        }
        if let Some(trouble) = &schedule.trouble {
            lines.push(("trouble", escape(trouble)));
        }
        if let (Some(at), Some(by), Some(reason)) = (&schedule.paused_at, &schedule.paused_by, &schedule.paused_reason)
        {
            lines.push(("paused", format!("at {at} by {}: {}", escape(by), escape(reason))));
        }
        lines.push(("handled", format!("every tick up to {}", schedule.handled)));
        lines.extend(self.local.iter().map(|at| ("next", at.clone())));
        let made = self.made.iter();
        lines.extend(made.map(|made| {
            (
                "made",
                format!("{}  {}", made.local, made.job.as_deref().unwrap_or_default()),
            )
        }));
        lines
    }
}

/// A moment as the clocks of the schedule show it.
fn local(timing: Option<&Timing>, at: SystemTime) -> String {
    match timing {
        Some(Timing::Cron(cron)) => cron.local(at),
        _ => rfc3339(at),
    }
}

async fn show(context: &Context, options: &ShowOptions) -> Result<Exit> {
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let looked = look(&sf, &options.name).await?;
        let shown = Looked::new(&looked, options.count as usize);
        context.output.record(&shown, &shown.lines())?;
        Ok(Exit::Ok)
    })
}

async fn look<Db: Database>(sf: &Steadfast<Db>, name: &str) -> Result<LookedSchedule> {
    if let Some(looked) = sf.schedules().look(name).await? {
        return Ok(looked);
    }
    let schedules = sf.schedules().list().await?;
    let known: Vec<_> = schedules.iter().map(|schedule| &*schedule.name).collect();
    let advice = match crate::suggest::nearest(name, known) {
        Some(near) => format!("did you mean {}?", escape(near)),
        None => "`steadfast schedules list` shows them".to_owned(),
    };
    let message = format!("there is no schedule {}", escape(name));
    Err(CliError::new(Exit::NotFound, message, advice))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Decision {
    Pause,
    Resume,
    Trigger,
    Remove,
}

/// What was decided, as it is shown to programs.
#[derive(Serialize)]
struct Decided<'d> {
    name: &'d str,
    done: &'static str,
    job: Option<String>,
    operator: &'d str,
    reason: &'d str,
}

async fn decide(context: &Context, options: &DecideOptions, decision: Decision) -> Result<Exit> {
    let (operator, reason) = (context.config.operator()?, &*options.because.reason);
    check_reason(reason)?;
    let name = &*options.name;
    on_database!(context, Access::Write, builder => {
        let sf = builder?.build().await?;
        look(&sf, name).await?;
        if decision == Decision::Remove
            && !confirm(context, &format!("Remove the schedule {}? It makes no more jobs.", escape(name)))?
        {
            context.output.remark("nothing was changed");
            return Ok(Exit::Failed);
        }
        let schedules = sf.schedules();
        let mut job = None;
        let (done, meaning) = match decision {
            Decision::Pause => {
                schedules.pause(name, operator, reason).await?;
                ("paused", "no jobs are made of its ticks; services see it within a minute")
            }
            Decision::Resume => {
                schedules.resume(name, operator, reason).await?;
                ("resumed", "what it has missed is up to its policy; services see it within a minute")
            }
            Decision::Trigger => {
                job = Some(schedules.trigger(name, operator, reason).await?.to_string());
                ("triggered", "the job stands beside those of its ticks")
            }
            Decision::Remove => {
                schedules.remove(name, operator, reason).await?;
                ("removed", "it makes no more jobs, unless a program that declares it starts")
            }
        };
        let mut lines = vec![(done, escape(name)), ("meaning", meaning.to_owned())];
        lines.extend(job.clone().map(|job| ("job", job)));
        lines.push(("audit", format!("by {}: {}", escape(operator), escape(reason))));
        context.output.record(&Decided { name, done, job, operator, reason }, &lines)?;
        Ok(Exit::Ok)
    })
}

async fn backfill(context: &Context, options: &BackfillOptions) -> Result<Exit> {
    let reason = options.reason.as_deref().unwrap_or_default();
    if !options.dry_run {
        check_reason(reason)?;
    }
    let access = if options.dry_run { Access::Read } else { Access::Write };
    on_database!(context, access, builder => {
        let sf = builder?.build().await?;
        let looked = look(&sf, &options.name).await?;
        let timing = looked.schedule.timing.as_ref();
        let from = moment(timing, &options.from)?;
        let until = moment(timing, &options.until)?;
        let backfill = sf.schedules().backfill(&options.name, from, until);
        let ticks = backfill.preview().await?;
        let missing = ticks.iter().filter(|tick| tick.job.is_none()).count();
        let is_wanted = missing > 0 && !options.dry_run && wants(context, &options.name, missing)?;
        let made = match is_wanted {
            true => backfill.run(context.config.operator()?, reason).await?,
            false => Vec::new(),
        };
        let shown: Vec<_> = ticks
            .iter()
            .map(|tick| {
                let new = made.iter().find(|made| made.at == tick.at).map(|made| made.job);
                Filled {
                    at: rfc3339(tick.at),
                    local: local(timing, tick.at),
                    job: tick.job.or(new).map(|job| job.to_string()),
                    made: new.is_some(),
                    note: match (tick.job, new) {
                        (_, Some(_)) => "made now",
                        (Some(_), _) => "had a job",
                        (None, None) => "to be made",
                    },
                }
            })
            .collect();
        context.output.records(&shown, &["tick", "local", "job", "note"], |tick| {
            let job = tick.job.clone().unwrap_or_default();
            vec![tick.at.clone(), tick.local.clone(), job, tick.note.to_owned()]
        })?;
        context.output.remark(&match (missing, is_wanted) {
            (0, _) => "every tick had a job; nothing was made".to_owned(),
            (count, false) => format!("{count} to be made; nothing was made: add --yes"),
            (_, true) => format!("{} jobs were made", made.len()),
        });
        Ok(Exit::Ok)
    })
}

/// A tick of the stretch, as it is shown to programs.
#[derive(Serialize)]
struct Filled {
    at: String,
    local: String,
    job: Option<String>,
    made: bool,
    #[serde(skip)]
    note: &'static str,
}

/// Whether jobs are to be made. Where nobody can be asked, only `--yes` says so.
fn wants(context: &Context, name: &str, count: usize) -> Result<bool> {
    if !context.is_confirmed && !io::stdin().is_terminal() {
        return Ok(false);
    }
    confirm(
        context,
        &format!("Make {count} jobs of ticks of the schedule {}?", escape(name)),
    )
}

/// A moment, in the schedule's time zone unless it says its own.
fn moment(timing: Option<&Timing>, text: &str) -> Result<SystemTime> {
    Ok(match timing {
        Some(Timing::Cron(cron)) => cron.moment(text)?,
        _ => Cron::parse("@hourly", "UTC")?.moment(text)?,
    })
}
