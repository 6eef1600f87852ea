//! What user code returns when it cannot do what was asked.
//!
//! Two kinds: *transient*, which may succeed later and is never stored, and *definitive*, which never will and
//! may be stored and replayed. `?` turns any error into a transient failure and keeps it as the source; a
//! handler that knows better says so.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{BoxError, Error};

/// Why a handler did not do what was asked.
///
/// ```
/// use steadfast::{Failure, FailureClass};
///
/// fn reserve(stock: u32, quantity: u32) -> Result<u32, Failure> {
///     stock.checked_sub(quantity).ok_or_else(|| {
///         Failure::definitive(FailureClass::BusinessRule, "out_of_stock", format!("only {stock} left"))
///     })
/// }
/// assert!(!reserve(1, 2).unwrap_err().is_transient());
///
/// fn parse(text: &str) -> Result<u32, Failure> {
///     Ok(text.parse()?) // what `?` does not know is transient
/// }
/// assert!(parse("x").unwrap_err().is_transient());
/// ```
pub struct Failure {
    kind: FailureKind,
    code: Cow<'static, str>,
    message: String,
    source: Option<BoxError>,
}

/// Whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// It may succeed later, unchanged.
    Transient,
    /// It never will.
    Definitive(FailureClass),
}

/// The kinds of definitive failures that can be stored and replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// The input is not acceptable.
    Validation,
    /// The state of the business does not allow it.
    BusinessRule,
    /// Something the command names does not exist.
    NotFound,
    /// The caller may not do this.
    Forbidden,
}

impl Failure {
    /// Never again: the same command will fail the same way.
    pub fn definitive(class: FailureClass, code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Definitive(class),
            code: code.into(),
            message: message.into(),
            source: None,
        }
    }

    /// Not now: the same command may succeed later.
    pub fn transient(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Transient,
            code: code.into(),
            message: message.into(),
            source: None,
        }
    }

    /// Whether trying again can help.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Whether the same command may succeed later.
    pub fn is_transient(&self) -> bool {
        self.kind == FailureKind::Transient
    }

    /// The handler's own word for this failure.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// What the caller may read.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The error that `?` turned into this failure; for logs, never for callers.
    pub fn source(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.source.as_deref()
    }

    /// The error of ours that `?` turned into this failure.
    pub(crate) fn into_error(self) -> Option<Error> {
        self.source?.downcast().ok().map(|error| *error)
    }
}

/// Any error is a transient failure that keeps it as its source. Its text stays on the server.
impl<E> From<E> for Failure
where
    E: std::error::Error + Send + Sync + 'static,
{
    fn from(error: E) -> Self {
        Self {
            kind: FailureKind::Transient,
            code: Cow::Borrowed("internal"),
            message: "the request could not be completed; nothing was changed, and it can be tried again".into(),
            source: Some(Box::new(error)),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}: {}", self.kind, self.code, self.message)?;
        match &self.source {
            Some(source) => write!(f, " (caused by: {source})"),
            None => Ok(()),
        }
    }
}

/// A definitive failure as it is stored with its key.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredFailure {
    class: FailureClass,
    code: String,
    message: String,
}

impl StoredFailure {
    pub(crate) fn new(class: FailureClass, failure: &Failure) -> Self {
        Self {
            class,
            code: failure.code.to_string(),
            message: failure.message.clone(),
        }
    }

    pub(crate) fn into_failure(self) -> Failure {
        Failure::definitive(self.class, self.code, self.message)
    }
}
