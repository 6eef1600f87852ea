//! `steadfast audit`: who did what, when and why.

use std::time::SystemTime;

use serde::Serialize;
use steadfast::AuditRecord;

use crate::Context;
use crate::database::{Access, on_database};
use crate::error::{Exit, Result};
use crate::options::AuditOptions;
use crate::output::{escape, relative};

#[derive(Serialize)]
struct Shown {
    id: i64,
    at: String,
    actor: String,
    action: String,
    subject: String,
    reason: String,
    #[serde(skip)]
    when: String,
}

impl Shown {
    fn new(entry: AuditRecord, now: SystemTime) -> Self {
        Self {
            id: entry.id,
            at: steadfast::rfc3339(entry.at),
            actor: entry.actor,
            action: entry.action,
            subject: entry.subject,
            reason: entry.reason,
            when: relative(entry.at, now),
        }
    }

    fn row(&self) -> Vec<String> {
        let words = [&self.actor, &self.action, &self.subject, &self.reason];
        let mut row = vec![self.id.to_string(), self.when.clone()];
        row.extend(words.map(|word| escape(word)));
        row
    }
}

pub(crate) async fn run(context: &Context, options: AuditOptions) -> Result<Exit> {
    let page = on_database!(context, Access::Read, builder => {
        let sf = builder?.build().await?;
        let mut list = sf.audit_entries().limit(options.limit);
        if let Some(actor) = options.actor {
            list = list.actor(actor);
        }
        if let Some(action) = options.action {
            list = list.action(action);
        }
        if let Some(age) = options.since {
            list = list.written_within(age);
        }
        if let Some(id) = options.before {
            list = list.before(id);
        }
        list.page().await?
    });
    let now = page.now;
    let shown: Vec<_> = page.entries.into_iter().map(|entry| Shown::new(entry, now)).collect();
    let header = ["id", "when", "actor", "action", "subject", "reason"];
    context.output.records(&shown, &header, Shown::row)?;
    if let Some(last) = page.next {
        context.output.remark(&format!("there are more: add --before {last}"));
    }
    Ok(Exit::Ok)
}
