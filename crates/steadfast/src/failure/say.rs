//! Those who know better than the table: handlers, about one result, and types of errors, about themselves.

use super::{Failure, FailureClass, FailureKind};
use std::time::Duration;

/// What a handler says about one result, whatever [`CLASSIFICATION`](crate::CLASSIFICATION) would.
///
/// ```
/// use steadfast::{Failure, FailureExt, FailureKind};
///
/// fn quantity(text: &str) -> Result<u32, Failure> {
///     text.parse().definitive() // without this, `?` would call it transient
/// }
/// assert!(matches!(quantity("x").unwrap_err().kind(), FailureKind::Definitive(_)));
///
/// # fn read() -> std::io::Result<()> { Err(std::io::ErrorKind::NotFound.into()) }
/// let failure = read().retry_if(|error| error.kind() != std::io::ErrorKind::NotFound).unwrap_err();
/// assert!(matches!(failure.kind(), FailureKind::Definitive(_)));
/// ```
pub trait FailureExt<T, E>: Sized {
    /// Never again. A class that is known is kept, otherwise it is [`FailureClass::BusinessRule`].
    ///
    /// # Errors
    /// The failure, if there is one.
    fn definitive(self) -> Result<T, Failure>
    where
        E: Into<Failure>;

    /// It may succeed later.
    ///
    /// # Errors
    /// The failure, if there is one.
    fn transient(self) -> Result<T, Failure>
    where
        E: Into<Failure>;

    /// It may have happened.
    ///
    /// # Errors
    /// The failure, if there is one.
    fn unknown(self) -> Result<T, Failure>
    where
        E: Into<Failure>;

    /// Transient if this says so about the error, otherwise [`definitive`](Self::definitive).
    ///
    /// # Errors
    /// The failure, if there is one.
    fn retry_if(self, is_transient: impl FnOnce(&E) -> bool) -> Result<T, Failure>
    where
        E: Into<Failure>;

    /// What the error says about itself.
    ///
    /// # Errors
    /// The failure, if there is one.
    fn classified(self) -> Result<T, Failure>
    where
        E: Classify;
}

impl<T, E> FailureExt<T, E> for Result<T, E> {
    fn definitive(self) -> Result<T, Failure>
    where
        E: Into<Failure>,
    {
        self.map_err(|error| definitive(error.into()))
    }

    fn transient(self) -> Result<T, Failure>
    where
        E: Into<Failure>,
    {
        self.map_err(|error| error.into().with_kind(FailureKind::Transient))
    }

    fn unknown(self) -> Result<T, Failure>
    where
        E: Into<Failure>,
    {
        self.map_err(|error| error.into().with_kind(FailureKind::Unknown))
    }

    fn retry_if(self, is_transient: impl FnOnce(&E) -> bool) -> Result<T, Failure>
    where
        E: Into<Failure>,
    {
        match self {
            Err(error) if is_transient(&error) => Err(error).transient(),
            ended => ended.definitive(),
        }
    }

    fn classified(self) -> Result<T, Failure>
    where
        E: Classify,
    {
        self.map_err(|error| {
            let mut failure = Failure::of(error.kind());
            failure.code = error.code().map(Into::into);
            failure.message = error.message();
            failure.retry_after = error.retry_after();
            failure.with_source(error)
        })
    }
}

fn definitive(failure: Failure) -> Failure {
    match failure.kind() {
        FailureKind::Definitive(_) => failure,
        FailureKind::Transient | FailureKind::Snooze | FailureKind::Cancelled | FailureKind::Unknown => {
            failure.with_kind(FailureKind::Definitive(FailureClass::BusinessRule))
        }
    }
}

/// An error of yours that knows what kind of failure it is. [`.classified()?`](FailureExt::classified) asks it.
///
/// `?` alone cannot: it takes every error there is, and Rust has no way to ask one of them whether it has this trait.
/// A type that is no [`std::error::Error`] can do without: `impl From<OrderError> for Failure`.
///
/// ```
/// use steadfast::{Classify, Failure, FailureClass, FailureExt, FailureKind};
///
/// #[derive(Debug)]
/// enum CardError { Declined, Busy }
/// # impl std::fmt::Display for CardError {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("card") }
/// # }
/// # impl std::error::Error for CardError {}
///
/// impl Classify for CardError {
///     fn kind(&self) -> FailureKind {
///         match self {
///             CardError::Declined => FailureKind::Definitive(FailureClass::BusinessRule),
///             CardError::Busy => FailureKind::Transient,
///         }
///     }
/// }
///
/// fn pay(ended: Result<(), CardError>) -> Result<(), Failure> {
///     Ok(ended.classified()?)
/// }
/// assert!(pay(Err(CardError::Busy)).unwrap_err().is_transient());
/// assert_eq!(pay(Err(CardError::Declined)).unwrap_err().code(), "refused");
/// ```
pub trait Classify: std::error::Error + Send + Sync + 'static {
    /// Whether trying again can help.
    fn kind(&self) -> FailureKind;

    /// A word of its own for programs; otherwise the kind's.
    fn code(&self) -> Option<&'static str> {
        None
    }

    /// What the caller may read; otherwise the kind's words. The text of the error itself stays on the server.
    fn message(&self) -> Option<String> {
        None
    }

    /// How long to wait at least.
    fn retry_after(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Code, Error};

    fn failure(ended: Result<(), Failure>) -> Failure {
        ended.expect_err("it has failed")
    }

    #[test]
    fn what_a_handler_says_goes_over_what_the_table_says() {
        let kind = |ended| failure(ended).kind();
        let lost = || Err(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()));
        let missing = || Err(sqlx::Error::RowNotFound);
        let refused = FailureKind::Definitive(FailureClass::BusinessRule);
        let not_found = FailureKind::Definitive(FailureClass::NotFound);
        assert_eq!(kind(lost().unknown()), FailureKind::Unknown);
        assert_eq!(kind(lost().definitive()), refused);
        assert_eq!(kind(missing().transient()), FailureKind::Transient);
        assert_eq!(kind(missing().definitive()), not_found, "a known class is kept");
        assert_eq!(kind(missing().retry_if(|_| true)), FailureKind::Transient);
        assert_eq!(kind(lost().retry_if(|_| false)), refused);
        assert!(Ok::<_, sqlx::Error>(1).retry_if(|_| false).is_ok());
    }

    #[test]
    fn another_kind_brings_other_words_and_keeps_the_source() {
        let unknown = failure(Err(Error::new(Code::Conflict, "lost")).unknown());
        assert!(!unknown.message().contains("nothing was changed"), "{unknown}");
        assert!(unknown.source().is_some_and(|source| source.is::<Error>()));
        let own_words = failure(Err(Failure::transient("busy", "later")).definitive());
        assert_eq!((own_words.code(), own_words.message()), ("busy", "later"));
    }
}
