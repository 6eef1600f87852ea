//! What a run reports when it cannot go on: one sentence with all its causes, for the person at the terminal.

use std::fmt;

/// Nothing here is handled by code, so any error will do.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// The result of everything that touches the world.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Says what was being done when the world said no.
pub(crate) trait Context<T> {
    fn context(self, doing: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for Result<T, E> {
    fn context(self, doing: impl fmt::Display) -> Result<T> {
        self.map_err(|error| {
            let error: Error = error.into();
            let mut sentence = format!("{doing}: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                sentence.push_str(&format!(": {cause}"));
                source = cause.source();
            }
            sentence.into()
        })
    }
}
