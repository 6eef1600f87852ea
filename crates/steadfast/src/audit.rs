//! Who did what, when and why: entries that commit with what they are about and are never changed.

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
