//! What user code returns when it cannot do what was asked.
//!
//! A failure has a kind, which says whether trying again can help. `?` finds it out by one table,
//! [`CLASSIFICATION`](rules::CLASSIFICATION), and keeps the error as the source; a handler that knows better says so
//! ([`FailureExt`](say::FailureExt)). When to try again is the next module's: [`retry`](crate::retry).

pub(crate) mod rules;
pub(crate) mod say;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use http::header::{HeaderMap, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};

use crate::error::{BoxError, Error};

/// Why something was not done.
///
/// ```
/// use steadfast::{Failure, FailureClass, FailureKind};
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
///
/// fn first(rows: Result<u32, steadfast::sqlx::Error>) -> Result<u32, Failure> {
///     Ok(rows?)
/// }
/// let failure = first(Err(steadfast::sqlx::Error::RowNotFound)).unwrap_err();
/// assert_eq!(failure.kind(), FailureKind::Definitive(FailureClass::NotFound));
/// ```
///
/// How `?` classifies is [`CLASSIFICATION`](crate::CLASSIFICATION).
pub struct Failure {
    kind: FailureKind,
    /// `None`: the kind's own words.
    code: Option<Cow<'static, str>>,
    message: Option<String>,
    retry_after: Option<Duration>,
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
    /// Not now, and that is nobody's fault: it is tried again later, and no attempt is spent.
    Snooze,
    /// Somebody wants it no more.
    Cancelled,
    /// It may have happened. It is only safe to try again under a key that the other side knows.
    Unknown,
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
        Self::of(FailureKind::Definitive(class)).saying(code, message)
    }

    /// Not now: the same command may succeed later.
    pub fn transient(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::of(FailureKind::Transient).saying(code, message)
    }

    /// It may have happened, and nobody can tell: it is only tried again under a key.
    pub fn unknown(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::of(FailureKind::Unknown).saying(code, message)
    }

    /// A handler has panicked.
    pub(crate) fn panicked() -> Self {
        Self::transient("panicked", "the handler panicked")
    }

    /// Come back after this long. No attempt is spent.
    pub fn snooze(after: Duration) -> Self {
        Self::of(FailureKind::Snooze).with_retry_after(after)
    }

    /// Somebody wants it no more.
    pub fn cancelled() -> Self {
        Self::of(FailureKind::Cancelled)
    }

    /// What an answer from outside says: nothing if it is a success or a redirection, otherwise its failure, with its
    /// `Retry-After` if that is a number of seconds. (A date would be the other side's clock against ours.)
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::{Failure, FailureKind};
    /// # use axum::http::{HeaderMap, HeaderValue, StatusCode};
    ///
    /// let headers = HeaderMap::from_iter([("retry-after".parse()?, HeaderValue::from(7))]);
    /// let failure = Failure::check_status(StatusCode::TOO_MANY_REQUESTS, &headers).unwrap_err();
    /// assert_eq!((failure.kind(), failure.retry_after()), (FailureKind::Transient, Some(Duration::from_secs(7))));
    /// assert!(Failure::check_status(StatusCode::CREATED, &headers).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The failure that [`CLASSIFICATION`](crate::CLASSIFICATION) makes of a status from 400 on.
    pub fn check_status(status: StatusCode, headers: &HeaderMap) -> Result<(), Self> {
        match rules::kind_of_status(status) {
            Some(kind) => {
                let mut failure = Self::of(kind);
                failure.retry_after = headers.get(RETRY_AFTER).and_then(seconds);
                Err(failure)
            }
            None => Ok(()),
        }
    }

    /// Only its kind is known.
    pub(crate) fn of(kind: FailureKind) -> Self {
        Self {
            kind,
            code: None,
            message: None,
            retry_after: None,
            source: None,
        }
    }

    fn saying(mut self, code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self.message = Some(message.into());
        self
    }

    /// Not before this long from now.
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// The error behind it; for logs, never for callers.
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same failure, of another kind. What was said in words of its own stays.
    pub(crate) fn with_kind(mut self, kind: FailureKind) -> Self {
        self.kind = kind;
        self
    }

    /// Whether trying again can help.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Whether the same command may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, FailureKind::Transient | FailureKind::Snooze)
    }

    /// The handler's own word for this failure, or its kind's.
    pub fn code(&self) -> &str {
        self.code.as_deref().unwrap_or(self.kind.words().0)
    }

    /// What the caller may read.
    pub fn message(&self) -> &str {
        self.message.as_deref().unwrap_or(self.kind.words().1)
    }

    /// How long to wait at least, if somebody said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
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

fn seconds(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Any error is a failure of the kind that [`CLASSIFICATION`](crate::CLASSIFICATION) gives it, and keeps it as its source.
/// Its text stays on the server. The failure of a command that was called inside is passed on as it is.
impl<E> From<E> for Failure
where
    E: std::error::Error + Send + Sync + 'static,
{
    fn from(error: E) -> Self {
        let error: BoxError = Box::new(error);
        match error.downcast::<Error>() {
            Ok(ours) => ours.into_failure().unwrap_or_else(|ours| rules::classify(ours.into())),
            Err(error) => rules::classify(error),
        }
    }
}

impl FailureKind {
    /// Code and message of a failure that has none of its own. None promises that nothing was changed: where we can know
    /// that, it is an [`Error`] that says so.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Transient => ("internal", "the request could not be completed; it can be tried again"),
            Self::Definitive(FailureClass::Validation) => ("invalid", "the request is not acceptable as it is"),
            Self::Definitive(FailureClass::BusinessRule) => ("refused", "what is there does not allow this"),
            Self::Definitive(FailureClass::NotFound) => ("not_found", "what was asked for does not exist"),
            Self::Definitive(FailureClass::Forbidden) => ("forbidden", "this is not allowed"),
            Self::Snooze => ("not_yet", "it is too early for this; it can be tried again later"),
            Self::Cancelled => ("cancelled", "this was cancelled"),
            Self::Unknown => (
                "outcome_unknown",
                "whether this took effect is not known; send the same request with the same key, or look before you repeat it",
            ),
        }
    }
}

/// As it stands in tables and logs: `transient`, `definitive (not found)`.
impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transient => "transient",
            Self::Definitive(FailureClass::Validation) => "definitive (validation)",
            Self::Definitive(FailureClass::BusinessRule) => "definitive (business rule)",
            Self::Definitive(FailureClass::NotFound) => "definitive (not found)",
            Self::Definitive(FailureClass::Forbidden) => "definitive (forbidden)",
            Self::Snooze => "snooze",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}: {}", self.kind, self.code(), self.message())?;
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
            code: failure.code().to_owned(),
            message: failure.message().to_owned(),
        }
    }

    pub(crate) fn into_failure(self) -> Failure {
        Failure::definitive(self.class, self.code, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn an_unknown_outcome_is_never_told_as_nothing_changed() {
        let failure = Failure::from(Error::new(Code::CommitUnknown, "lost"));
        assert_eq!(failure.kind(), FailureKind::Unknown);
        assert!(!failure.message().contains("nothing was changed"), "{failure}");
        assert!(!failure.is_transient());
    }

    #[test]
    fn the_failure_of_a_command_inside_is_passed_on_as_it_is() {
        let inner = Failure::definitive(FailureClass::BusinessRule, "out_of_stock", "nothing is left");
        let outer = Failure::from(Error::failed(inner, false));
        assert_eq!(outer.kind(), FailureKind::Definitive(FailureClass::BusinessRule));
        assert_eq!((outer.code(), outer.message()), ("out_of_stock", "nothing is left"));
    }

    #[test]
    fn an_error_of_ours_says_when_to_come_back() {
        let failure = Failure::from(Error::new(Code::Full, "no space"));
        assert_eq!(failure.retry_after(), Some(Duration::from_secs(10)));
    }

    #[test]
    fn a_retry_after_that_is_not_a_number_is_left_alone() {
        let headers = |value: &'static str| HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]);
        let asked = |value| {
            let failure = Failure::check_status(StatusCode::SERVICE_UNAVAILABLE, &headers(value)).expect_err("a 503");
            failure.retry_after()
        };
        assert_eq!(asked(" 120 "), Some(Duration::from_secs(120)));
        for value in ["", "-1", "1.5", "Fri, 31 Dec 1999 23:59:59 GMT", "99999999999999999999"] {
            assert_eq!(asked(value), None, "{value:?}");
        }
    }
}
