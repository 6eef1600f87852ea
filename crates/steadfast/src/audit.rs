//! Who did what, when and why: entries that commit with what they are about and are never changed.

use std::time::{Duration, SystemTime};

use crate::clock::Timestamp;
use crate::error::Result;
use crate::page;
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};

/// One entry of the audit table.
///
/// ```
/// use steadfast::AuditEntry;
///
/// let entry = AuditEntry::new("ops@example.com", "key.evict", "orders.place 1f3a…").because("customer asked twice");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    pub(crate) actor: String,
    pub(crate) action: String,
    pub(crate) subject: String,
    pub(crate) reason: String,
}

impl AuditEntry {
    /// Somebody did something to something.
    pub fn new(actor: impl Into<String>, action: impl Into<String>, subject: impl Into<String>) -> Self {
        Self {
            actor: actor.into(),
            action: action.into(),
            subject: subject.into(),
            reason: String::new(),
        }
    }

    /// Why.
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }
}

/// An entry as it stands in the audit table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditRecord {
    /// Its number; later entries have higher ones.
    pub id: i64,
    /// When it was written, by the database's clock.
    pub at: SystemTime,
    /// Who.
    pub actor: String,
    /// Did what.
    pub action: String,
    /// To what.
    pub subject: String,
    /// Why; may be empty.
    pub reason: String,
}

/// The columns of an entry: id, moment, actor, action, subject, reason.
pub(crate) type AuditRow = (i64, i64, String, String, String, String);

impl From<AuditRow> for AuditRecord {
    fn from((id, at, actor, action, subject, reason): AuditRow) -> Self {
        Self {
            id,
            at: Timestamp(at).into(),
            actor,
            action,
            subject,
            reason,
        }
    }
}

/// Which entries are wanted, as a store is asked for them.
pub(crate) struct AuditFilter {
    pub(crate) before: i64,
    pub(crate) actor: Option<String>,
    pub(crate) action: Option<String>,
    pub(crate) since: Option<Timestamp>,
    pub(crate) limit: u32,
}

/// Some audit entries, and where to go on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AuditPage {
    /// The entries, newest first.
    pub entries: Vec<AuditRecord>,
    /// The last entry of this page, if there are more: pass it to [`AuditList::before`].
    pub next: Option<i64>,
    /// The database's time when they were read.
    pub now: SystemTime,
}

/// Which audit entries to list: [`Steadfast::audit_entries`].
#[must_use = "nothing is listed until `page`"]
pub struct AuditList<'c, Db: Database> {
    steadfast: &'c Steadfast<Db>,
    filter: AuditFilter,
    written_within: Option<Duration>,
}

impl<'c, Db: Database> AuditList<'c, Db> {
    pub(crate) fn new(steadfast: &'c Steadfast<Db>) -> Self {
        let filter = AuditFilter {
            before: i64::MAX,
            actor: None,
            action: None,
            since: None,
            limit: page::LENGTH,
        };
        Self {
            steadfast,
            filter,
            written_within: None,
        }
    }

    /// Only what this actor did.
    pub fn actor(mut self, actor: impl Into<String>) -> Self {
        self.filter.actor = Some(actor.into());
        self
    }

    /// Only this action, such as `key.evict`.
    pub fn action(mut self, action: impl Into<String>) -> Self {
        self.filter.action = Some(action.into());
        self
    }

    /// Only what was written within this time, by the database's clock.
    pub fn written_within(mut self, age: Duration) -> Self {
        self.written_within = Some(age);
        self
    }

    /// Goes on with entries before this one, the last of the page before.
    pub fn before(mut self, id: i64) -> Self {
        self.filter.before = id;
        self
    }

    /// At most so many entries, 1 to 1,000; 50 by default.
    pub fn limit(mut self, limit: u32) -> Self {
        self.filter.limit = page::length(limit);
        self
    }

    /// Reads one page.
    ///
    /// # Errors
    /// If the role may not read the audit (SF123), or the database does not answer.
    pub async fn page(mut self) -> Result<AuditPage> {
        let now = self.steadfast.clock().at(self.steadfast.store().now().await?);
        self.filter.since = self.written_within.map(|age| now.before(age));
        let mut rows = self.steadfast.store().list_audit(&self.filter).await?;
        let has_more = page::cut(&mut rows, self.filter.limit);
        let entries: Vec<_> = rows.into_iter().map(AuditRecord::from).collect();
        Ok(AuditPage {
            next: entries.last().map(|entry| entry.id).filter(|_| has_more),
            entries,
            now: now.into(),
        })
    }
}
