//! `steadfast jobs list | show | batch`: what is to be done later, and where it stands.

use std::time::SystemTime;

use serde::Serialize;
use steadfast::{Database, JobId, JobList, JobState, ListedJob, LookedJob, Steadfast};

use crate::Context;
use crate::database::{Access, on_database};
use crate::deliveries::{ambiguous, shorten};
use crate::error::{CliError, Exit, Result};
use crate::job_change::{self, Decision};
use crate::job_options::{BatchOptions, FilterOptions, JobsVerb, ListOptions, ShowOptions};
use crate::output::{escape, relative};
use crate::suggest::nearest;

/// How many messages may begin alike, so that all of them are seen.
const CANDIDATES_MAX: usize = 10;

pub(crate) async fn run(context: &Context, verb: &JobsVerb) -> Result<Exit> {
    match verb {
        JobsVerb::List(options) => list(context, options).await,
        JobsVerb::Show(options) => show(context, options).await,
        JobsVerb::Batch(options) => batch(context, options).await,
        JobsVerb::Retry(options) => job_change::change(context, options, Decision::Retry).await,
        JobsVerb::RunNow(options) => job_change::change(context, options, Decision::RunNow).await,
        JobsVerb::Cancel(options) => job_change::change(context, options, Decision::Cancel).await,
        JobsVerb::Reschedule(options) => job_change::reschedule(context, options).await,
        JobsVerb::Snooze(options) => job_change::snooze(context, options).await,
    }
}

/// A job as it is shown to programs.
#[derive(Serialize)]
struct Shown {
    id: String,
    name: String,
    queue: Option<String>,
    priority: &'static str,
    state: &'static str,
    attempts: u32,
    enqueued_at: Option<String>,
    due_at: Option<String>,
    holder: Option<String>,
    leased_until: Option<String>,
    finished_at: Option<String>,
    detail: Option<String>,
    cancel_requested_at: Option<String>,
    cancel_requested_by: Option<String>,
    cancel_reason: Option<String>,
    failed_at: Option<String>,
    code: Option<String>,
    error: Option<String>,
    #[serde(skip)]
    when: String,
}

impl Shown {
    fn new(job: &ListedJob, now: SystemTime) -> Self {
        let moment = |at: Option<SystemTime>| at.map(steadfast::rfc3339);
        let failure = job.last_failure.as_ref();
        let died_at = failure
            .filter(|_| job.state == JobState::Dead)
            .map(|failure| failure.at);
        let at = job.finished_at.or(died_at).or(job.leased_until).or(job.due_at);
        Self {
            id: job.id.to_string(),
            name: job.name.clone(),
            queue: job.queue.clone(),
            priority: job.priority.as_str(),
            state: job.state.as_str(),
            attempts: job.attempts,
            enqueued_at: moment(job.enqueued_at),
            due_at: moment(job.due_at),
            holder: job.holder.clone(),
            leased_until: moment(job.leased_until),
            finished_at: moment(job.finished_at),
            detail: job.detail.clone(),
            cancel_requested_at: moment(job.cancel_request.as_ref().map(|request| request.at)),
            cancel_requested_by: job.cancel_request.as_ref().map(|request| request.operator.clone()),
            cancel_reason: job.cancel_request.as_ref().map(|request| request.reason.clone()),
            failed_at: moment(failure.map(|failure| failure.at)),
            code: failure.map(|failure| failure.code.clone()),
            error: failure.map(|failure| failure.message.clone()),
            when: at.map(|at| relative(at, now)).unwrap_or_default(),
        }
    }

    /// Who wants it no more, while it is running.
    fn cancel_request(&self) -> String {
        let said = |text: &Option<String>| escape(text.as_deref().unwrap_or_default());
        format!(
            "cancel requested by {}: {}",
            said(&self.cancel_requested_by),
            said(&self.cancel_reason)
        )
    }

    fn row(&self) -> Vec<String> {
        let what = match (&self.detail, &self.code, &self.error) {
            _ if self.cancel_requested_at.is_some() => self.cancel_request(),
            (Some(detail), ..) => escape(detail),
            (None, Some(code), Some(error)) => shorten(&format!("{}: {}", escape(code), escape(error))),
            _ => String::new(),
        };
        vec![
            self.id.clone(),
            escape(&self.name),
            self.queue.as_deref().map(escape).unwrap_or_default(),
            self.priority.to_owned(),
            self.state.to_owned(),
            self.attempts.to_string(),
            self.when.clone(),
            what,
        ]
    }
}

/// The jobs that fit, but for their state.
pub(crate) fn narrow<'c, Db: Database>(mut list: JobList<'c, Db>, filter: &FilterOptions) -> JobList<'c, Db> {
    if let Some(name) = &filter.name {
        list = list.name(name);
    }
    if let Some(queue) = &filter.queue {
        list = list.queue(queue);
    }
    if let Some(priority) = filter.priority {
        list = list.priority(priority);
    }
    if let Some(code) = &filter.code {
        list = list.code(code);
    }
    if let Some(age) = filter.since {
        list = list.enqueued_within(age);
    }
    list
}

/// Fails if a filter that let nothing through names a queue that is not there: then it was probably meant otherwise.
pub(crate) async fn check_queue<Db: Database>(sf: &Steadfast<Db>, filter: &FilterOptions) -> Result<()> {
    let Some(name) = &filter.queue else {
        return Ok(());
    };
    let queues = sf.list_queues().await?;
    if queues.iter().any(|queue| queue.name == *name) {
        return Ok(());
    }
    let help = match nearest(name, queues.iter().map(|queue| &*queue.name)) {
        Some(near) => format!("did you mean {near}?"),
        None => "`steadfast queues list` shows them".to_owned(),
    };
    let what = format!("there is no queue {}", escape(name));
    Err(CliError::new(Exit::NotFound, what, help))
}

async fn list(context: &Context, options: &ListOptions) -> Result<Exit> {
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let mut list = narrow(sf.jobs(), &options.filter).limit(options.limit);
        if let Some(state) = options.filter.state {
            list = list.state(state);
        }
        if let Some(batch) = options.batch {
            list = list.batch(batch);
        }
        if let Some(last) = options.after {
            list = list.after(last);
        }
        let page = list.page().await?;
        if page.jobs.is_empty() {
            check_queue(&sf, &options.filter).await?;
        }
        let shown: Vec<_> = page.jobs.iter().map(|job| Shown::new(job, page.now)).collect();
        let header = ["job", "name", "queue", "priority", "state", "attempts", "when", "what"];
        context.output.records(&shown, &header, Shown::row)?;
        if let Some(last) = page.next {
            context.output.remark(&format!("there are more: add --after {last}"));
        }
        Ok(Exit::Ok)
    })
}

/// A job with everything that is known of it, as it is shown to programs.
#[derive(Serialize)]
struct Looked {
    #[serde(flatten)]
    job: Shown,
    version: u32,
    unique_key: Option<String>,
    limit_key: Option<String>,
    correlation_id: Option<String>,
    causation_id: Option<String>,
    traceparent: Option<String>,
    redacted: Vec<String>,
    payload: serde_json::Value,
    failures: Vec<Failed>,
    told_at: Option<String>,
    progress: Option<Progressed>,
    output: Option<serde_json::Value>,
    log: Vec<Line>,
    log_dropped: u64,
}

/// How far it is.
#[derive(Serialize)]
struct Progressed {
    done: u64,
    total: Option<u64>,
    doing: Option<String>,
}

impl Progressed {
    fn line(&self) -> String {
        let how_far = match self.total {
            Some(total) => format!("{} of {total}", self.done),
            None => self.done.to_string(),
        };
        match &self.doing {
            Some(doing) => format!("{how_far}: {}", escape(doing)),
            None => how_far,
        }
    }
}

/// A line that it has told.
#[derive(Serialize)]
struct Line {
    at: String,
    attempt: u32,
    text: String,
}

/// An attempt that failed.
#[derive(Serialize)]
struct Failed {
    attempt: u32,
    at: String,
    failure: String,
    code: String,
    error: String,
}

impl Looked {
    fn new(looked: LookedJob, now: SystemTime) -> Self {
        let read = |json: &str| serde_json::from_str(json).unwrap_or_else(|_| json.into());
        let lines = looked.log.into_iter().map(|line| Line {
            at: steadfast::rfc3339(line.at),
            attempt: line.attempt,
            text: line.text,
        });
        let failures = looked.failures.into_iter().map(|failed| Failed {
            attempt: failed.attempt,
            at: steadfast::rfc3339(failed.at),
            failure: failed.failure,
            code: failed.code,
            error: failed.message,
        });
        Self {
            job: Shown::new(&looked.job, now),
            version: looked.version,
            unique_key: looked.unique_key,
            limit_key: looked.limit_key,
            correlation_id: looked.correlation_id,
            causation_id: looked.causation_id,
            traceparent: looked.traceparent,
            redacted: looked.redacted,
            payload: read(&looked.payload),
            failures: failures.collect(),
            told_at: looked.told_at.map(steadfast::rfc3339),
            progress: looked.progress.map(|progress| Progressed {
                done: progress.done,
                total: progress.total,
                doing: progress.doing,
            }),
            output: looked.output.as_deref().map(read),
            log: lines.collect(),
            log_dropped: looked.log_dropped,
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let job = &self.job;
        let attempts = match job.attempts {
            1 => "1 attempt".to_owned(),
            count => format!("{count} attempts"),
        };
        let mut lines = vec![
            ("job", job.id.clone()),
            ("name", format!("{}, version {}", escape(&job.name), self.version)),
            ("state", format!("{}, {attempts}", job.state)),
        ];
        lines.push(("priority", job.priority.to_owned()));
        let known = [
            ("queue", &job.queue),
            ("unique key", &self.unique_key),
            ("limit key", &self.limit_key),
            ("enqueued", &job.enqueued_at),
            ("due", &job.due_at),
            ("run by", &job.holder),
            ("lease ends", &job.leased_until),
            ("ended", &job.finished_at),
            ("because", &job.detail),
            ("correlation", &self.correlation_id),
            ("causation", &self.causation_id),
            ("trace", &self.traceparent),
        ];
        if let Some(at) = &job.cancel_requested_at {
            lines.push(("cancel", format!("{}, {at}", job.cancel_request())));
        }
        let known = known.into_iter();
        lines.extend(known.filter_map(|(name, value)| Some((name, escape(value.as_deref()?)))));
        lines.push(("payload", escape(&self.payload.to_string())));
        if !self.redacted.is_empty() {
            lines.push(("redacted", escape(&self.redacted.join(", "))));
        }
        let failures = self.failures.iter();
        if let Some(progress) = &self.progress {
            lines.push(("progress", progress.line()));
        }
        if let Some(output) = &self.output {
            lines.push(("output", escape(&output.to_string())));
        }
        if self.log_dropped > 0 {
            lines.push(("log", format!("{} older lines are not kept", self.log_dropped)));
        }
        let log = self.log.iter();
        lines.extend(log.map(|line| {
            (
                "log",
                format!("{} attempt {}: {}", line.at, line.attempt, escape(&line.text)),
            )
        }));
        lines.extend(failures.map(|failed| {
            let Failed {
                attempt, at, failure, ..
            } = failed;
            let (code, error) = (escape(&failed.code), escape(&failed.error));
            (
                "failed",
                format!("attempt {attempt} at {at}: {failure} {code}: {error}"),
            )
        }));
        lines
    }
}

async fn show(context: &Context, options: &ShowOptions) -> Result<Exit> {
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let id = find(&sf, &options.id).await?;
        let mut look_up = sf.job(id);
        if options.reveal {
            look_up = look_up.revealed();
        }
        let looked = look_up.look().await?.ok_or_else(|| not_found(&options.id))?;
        let shown = Looked::new(looked, SystemTime::now());
        context.output.record(&shown, &shown.lines())?;
        Ok(Exit::Ok)
    })
}

/// How the jobs of a batch ended, as it is shown to programs.
#[derive(Serialize)]
struct Counted {
    id: String,
    jobs: u64,
    left: u64,
    completed: u64,
    cancelled: u64,
    dead: u64,
    discarded: u64,
    forgotten: u64,
    /// Where the job stands that waits for all of them.
    callback: Option<&'static str>,
}

async fn batch(context: &Context, options: &BatchOptions) -> Result<Exit> {
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let id = options.id;
        let counts = sf.batch(id).counts().await?.ok_or_else(|| {
            CliError::new(
                Exit::NotFound,
                format!("there is no batch {id}, or it is forgotten"),
                "write the whole id; `steadfast jobs show` has that of the job which waits for its end",
            )
        })?;
        let callback = sf.job(id.callback()).look().await?;
        let shown = Counted {
            id: id.to_string(),
            jobs: counts.jobs,
            left: counts.left,
            completed: counts.completed,
            cancelled: counts.cancelled,
            dead: counts.dead,
            discarded: counts.discarded,
            forgotten: counts.forgotten(),
            callback: callback.map(|job| job.job.state.as_str()),
        };
        let lines = [
            ("batch", shown.id.clone()),
            ("jobs", shown.jobs.to_string()),
            ("left", shown.left.to_string()),
            ("completed", shown.completed.to_string()),
            ("cancelled", shown.cancelled.to_string()),
            ("dead", shown.dead.to_string()),
            ("discarded", shown.discarded.to_string()),
            ("forgotten", shown.forgotten.to_string()),
            ("at its end", shown.callback.unwrap_or("nothing").to_owned()),
        ];
        context.output.record(&shown, &lines)?;
        Ok(Exit::Ok)
    })
}

/// The one job whose id begins so.
pub(crate) async fn find<Db: Database>(sf: &Steadfast<Db>, prefix: &str) -> Result<JobId> {
    let mut jobs = Vec::new();
    let messages = sf.messages_beginning(prefix).await?;
    if messages.len() > CANDIDATES_MAX {
        // There may be more, and jobs among them.
        return Err(ambiguous(prefix, &messages));
    }
    for id in messages {
        let id: JobId = id.to_string().parse()?;
        if sf.job(id).look().await?.is_some() {
            jobs.push(id);
        }
    }
    match &jobs[..] {
        [] => Err(not_found(prefix)),
        [id] => Ok(*id),
        several => Err(ambiguous(prefix, several)),
    }
}

fn not_found(prefix: &str) -> CliError {
    CliError::new(
        Exit::NotFound,
        format!("there is no job whose id begins with {}", escape(prefix)),
        "`steadfast jobs list` shows those that are still to do; what has ended is kept for a while only",
    )
}
