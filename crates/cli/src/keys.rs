//! `steadfast keys`: which commands have ended, and how one is forgotten.

use std::time::SystemTime;

use serde::Serialize;
use steadfast::{Database, KeyAnswer, KeyState, ListedKey, Steadfast};

use crate::Context;
use crate::confirm::confirm;
use crate::database::{Access, on_database};
use crate::error::{CliError, Exit, Result};
use crate::options::{ForgetOptions, ListOptions, ShowOptions, State};
use crate::output::{escape, relative};

/// How many keys are named when a prefix fits several.
const CANDIDATES_MAX: u32 = 10;

/// The digits of an id in a table: enough to tell a billion keys apart.
const SHORT: usize = 12;

/// A key as it is shown to programs.
#[derive(Serialize)]
struct Shown {
    id: String,
    operation: String,
    scope: &'static str,
    tenant: String,
    user: String,
    key: String,
    state: &'static str,
    status: u16,
    answer_bytes: u64,
    created_at: String,
    expires_at: String,
    expired: bool,
    #[serde(skip)]
    created: String,
    #[serde(skip)]
    expires: String,
}

impl Shown {
    fn new(key: &ListedKey, now: SystemTime) -> Self {
        Self {
            id: key.id.to_string(),
            operation: key.operation.clone(),
            scope: key.scope.as_str(),
            tenant: key.owner.tenant().to_owned(),
            user: key.owner.user().to_owned(),
            key: key.value.clone(),
            state: key.state.as_str(),
            status: key.status,
            answer_bytes: key.answer_bytes,
            created_at: steadfast::rfc3339(key.created_at),
            expires_at: steadfast::rfc3339(key.expires_at),
            expired: key.is_expired,
            created: relative(key.created_at, now),
            expires: if key.is_expired {
                format!("expired {}", relative(key.expires_at, now))
            } else {
                relative(key.expires_at, now)
            },
        }
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.id[..SHORT].to_owned(),
            escape(&self.operation),
            escape(&self.tenant),
            escape(&self.user),
            escape(&self.key),
            self.state.to_owned(),
            self.status.to_string(),
            self.created.clone(),
            self.expires.clone(),
        ]
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        vec![
            ("id", self.id.clone()),
            ("operation", escape(&self.operation)),
            ("scope", self.scope.to_owned()),
            ("tenant", escape(&self.tenant)),
            ("user", escape(&self.user)),
            ("key", escape(&self.key)),
            ("state", format!("{}, status {}", self.state, self.status)),
            ("answer", format!("{} bytes", self.answer_bytes)),
            ("created", format!("{}, {}", self.created, self.created_at)),
            ("expires", format!("{}, {}", self.expires, self.expires_at)),
        ]
    }
}

pub(crate) async fn list(context: &Context, options: ListOptions) -> Result<Exit> {
    let page = on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let mut list = sf.keys().limit(options.limit);
        if let Some(operation) = options.operation {
            list = list.operation(operation);
        }
        if let Some(tenant) = options.tenant {
            list = list.tenant(tenant);
        }
        if let Some(user) = options.user {
            list = list.user(user);
        }
        if let Some(state) = options.state {
            list = list.state(state.into());
        }
        if let Some(age) = options.since {
            list = list.stored_within(age);
        }
        if let Some(last) = options.after {
            list = list.after(last);
        }
        list.page().await?
    });
    let shown: Vec<_> = page.keys.iter().map(|key| Shown::new(key, page.now)).collect();
    let header = [
        "id",
        "operation",
        "tenant",
        "user",
        "key",
        "state",
        "status",
        "created",
        "expires",
    ];
    context.output.records(&shown, &header, Shown::row)?;
    if let Some(last) = page.next {
        context.output.remark(&format!("there are more: add --after {last}"));
    }
    Ok(Exit::Ok)
}

impl From<State> for KeyState {
    fn from(state: State) -> Self {
        match state {
            State::Completed => KeyState::Completed,
            State::Failed => KeyState::Failed,
        }
    }
}

/// A key with its answer, as it is shown to programs.
#[derive(Serialize)]
struct WithAnswer {
    #[serde(flatten)]
    key: Shown,
    /// The body as text.
    answer: Option<String>,
    /// The body in hexadecimal digits, where it is not text.
    answer_hex: Option<String>,
}

impl WithAnswer {
    fn new(key: Shown, answer: Option<KeyAnswer>) -> Self {
        let body = answer.map(|answer| String::from_utf8(answer.body.into()));
        let (answer, answer_hex) = match body {
            Some(Ok(text)) => (Some(text), None),
            Some(Err(error)) => (None, Some(hex(error.as_bytes()))),
            None => (None, None),
        };
        Self {
            key,
            answer,
            answer_hex,
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let body = match (&self.answer, &self.answer_hex) {
            (Some(text), _) => escape(text),
            (None, Some(hex)) => format!("{hex} (hexadecimal)"),
            (None, None) => "(no longer handed out: its retention is over)".to_owned(),
        };
        let mut lines = self.key.lines();
        lines.push(("body", body));
        lines
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) async fn show(context: &Context, options: &ShowOptions) -> Result<Exit> {
    on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let (key, now) = find(&sf, &options.id).await?;
        let shown = Shown::new(&key, now);
        if options.answer {
            let shown = WithAnswer::new(shown, key.look_up(&sf).outcome().await?);
            context.output.record(&shown, &shown.lines())?;
        } else {
            context.output.record(&shown, &shown.lines())?;
        }
    });
    Ok(Exit::Ok)
}

/// A key that was forgotten, as it is shown to programs.
#[derive(Serialize)]
struct Forgotten {
    id: String,
    operation: String,
    key: String,
    forgotten: bool,
    operator: String,
    reason: String,
}

pub(crate) async fn forget(context: &Context, options: &ForgetOptions) -> Result<Exit> {
    if options.reason.trim().is_empty() {
        return Err(CliError::new(
            Exit::Usage,
            "the reason is empty",
            "write --reason \"why\" for the audit",
        ));
    }
    on_database!(context, Access::Write, builder => forget_in(context, &builder?.build().await?, options).await)
}

async fn forget_in<Db: Database>(context: &Context, sf: &Steadfast<Db>, options: &ForgetOptions) -> Result<Exit> {
    let operator = context.config.operator()?;
    let (key, _) = find(sf, &options.id).await?;
    let name = format!("{} {}", escape(&key.operation), escape(&key.value));
    let question = format!("Forget {name}? What the command did stays, and the next one with this key executes again.");
    if !confirm(context, &question)? {
        context.output.remark("nothing was changed");
        return Ok(Exit::Failed);
    }
    if !key.look_up(sf).evict(operator, &options.reason).await? {
        return Err(not_found(&options.id));
    }
    let meaning = "what the command did stays; the next one with this key executes again".to_owned();
    let entry = format!("key.evict by {}: {}", escape(operator), escape(&options.reason));
    let forgotten = Forgotten {
        id: key.id.to_string(),
        operation: key.operation,
        key: key.value,
        forgotten: true,
        operator: operator.to_owned(),
        reason: options.reason.clone(),
    };
    let lines = [("forgotten", name), ("meaning", meaning), ("audit", entry)];
    context.output.record(&forgotten, &lines)?;
    Ok(Exit::Ok)
}

/// The one key whose id begins so, and the time it was read at.
async fn find<Db: Database>(sf: &Steadfast<Db>, prefix: &str) -> Result<(ListedKey, SystemTime)> {
    let page = sf.keys().id_prefix(prefix)?.limit(CANDIDATES_MAX).page().await?;
    let mut keys = page.keys.into_iter();
    match (keys.next(), keys.next()) {
        (None, _) => Err(not_found(prefix)),
        (Some(key), None) => Ok((key, page.now)),
        (Some(first), Some(second)) => {
            let candidates = [first, second].into_iter().chain(keys);
            let candidates =
                candidates.map(|key| format!("\n  {}  {} {}", key.id, escape(&key.operation), escape(&key.value)));
            let more = if page.next.is_some() { "\n  …" } else { "" };
            Err(CliError::new(
                Exit::Conflict,
                format!("{prefix} is the beginning of several ids"),
                format!(
                    "write more digits of one of them:{}{more}",
                    candidates.collect::<String>()
                ),
            ))
        }
    }
}

fn not_found(prefix: &str) -> CliError {
    CliError::new(
        Exit::NotFound,
        format!("there is no key whose id begins with {prefix}"),
        "`steadfast keys list` shows the ids; a command that is still running, or failed without storing it, has no key",
    )
}
