//! What a message belongs to: who says it, what it is all about, and the trace it is part of.

use std::sync::Arc;

use super::message::Message;
use crate::command::Key;
use crate::error::{Code, Error, Result};

/// How long a correlation id may be: it stands in every row, on every line of the logs and in headers of brokers.
const CORRELATION_ID_LENGTH_MAX: usize = 255;

/// Where a message comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Who says it, as CloudEvents means it.
    pub(crate) source: Arc<str>,
    pub(crate) correlation_id: Option<Arc<str>>,
    pub(crate) causation_id: Option<Arc<str>>,
    pub(crate) traceparent: Option<Arc<str>>,
}

impl Origin {
    pub(crate) fn of(source: Arc<str>) -> Self {
        Self {
            source,
            correlation_id: None,
            causation_id: None,
            traceparent: None,
        }
    }

    /// A message has brought it about.
    pub(crate) fn follow(&mut self, message: &Message) {
        self.correlation_id.clone_from(&message.origin.correlation_id);
        self.causation_id = Some(message.first_id().into());
        self.traceparent.clone_from(&message.origin.traceparent);
    }

    /// The same for a message of the command with this key, if nothing else has brought it about.
    pub(crate) fn or_command(&self, key: Option<&Key>) -> Self {
        let mut origin = self.clone();
        if let Some(key) = key {
            origin.causation_id.get_or_insert_with(|| key.short().into());
        }
        origin
    }

    /// # Errors
    /// SF032 if nobody could use it.
    pub(crate) fn set_correlation_id(&mut self, id: &str) -> Result<()> {
        if !is_correlation_id(id) {
            return Err(Error::new(
                Code::EventInvalid,
                format!(
                    "the correlation id {:?} cannot be used; write 1 to {CORRELATION_ID_LENGTH_MAX} printable ASCII characters \
                     without spaces",
                    id.chars().take(60).collect::<String>()
                ),
            ));
        }
        self.correlation_id = Some(id.into());
        Ok(())
    }

    /// # Errors
    /// SF032 if it is none.
    pub(crate) fn set_traceparent(&mut self, traceparent: &str) -> Result<()> {
        if !is_traceparent(traceparent) {
            return Err(Error::new(
                Code::EventInvalid,
                format!(
                    "{:?} is no traceparent; write it as W3C Trace Context does, as in \
                     00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                    traceparent.chars().take(60).collect::<String>()
                ),
            ));
        }
        self.traceparent = Some(traceparent.into());
        Ok(())
    }

    /// What a request says about itself. What cannot be used is left out: a header of a proxy is no reason to refuse.
    #[cfg(feature = "axum")]
    pub(crate) fn read(&mut self, headers: &http::HeaderMap) {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let ids = ["x-correlation-id", "x-request-id"].into_iter().filter_map(header);
        self.correlation_id = ids.into_iter().find(|id| is_correlation_id(id)).map(Arc::from);
        self.traceparent = header("traceparent").filter(|text| is_traceparent(text)).map(Arc::from);
    }
}

/// Whether this can say who publishes: a URI or a path, as CloudEvents wants it.
pub(crate) fn check_source(source: &str) -> Result<()> {
    if (1..=255).contains(&source.len()) && source.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err(Error::new(
        Code::ConfigurationInvalid,
        format!("{source:?} cannot say who publishes; write a URI or a path of 1 to 255 characters, as in \"/shop\""),
    ))
}

fn is_correlation_id(id: &str) -> bool {
    (1..=CORRELATION_ID_LENGTH_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether this is a `traceparent` of version 00: version, trace, parent and flags, in lower-case hexadecimal.
fn is_traceparent(text: &str) -> bool {
    let is_hex =
        |part: &str, length| part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_some_id = |part: &str, length| is_hex(part, length) && part.bytes().any(|byte| byte != b'0');
    let parts: Vec<_> = text.split('-').collect();
    matches!(*parts, ["00", trace, parent, flags]
        if is_some_id(trace, 32) && is_some_id(parent, 16) && is_hex(flags, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_w3c_writes_it() {
        assert!(is_traceparent(
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        ));
        for wrong in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
        ] {
            assert!(!is_traceparent(wrong), "{wrong}");
        }
    }

    #[test]
    fn what_nobody_could_use_as_an_id_is_refused() {
        let mut origin = Origin::of("/shop".into());
        origin.set_correlation_id("order-7").expect("an id");
        for wrong in ["", "two words", "line\nbreak", "é", &"x".repeat(256)] {
            let error = origin.set_correlation_id(wrong).expect_err(wrong);
            assert_eq!(error.code(), Code::EventInvalid);
        }
        assert_eq!(origin.correlation_id.as_deref(), Some("order-7"));
        assert!(check_source("https://shop.example/orders").is_ok());
        assert!(check_source("").is_err() && check_source("my shop").is_err());
    }
}
