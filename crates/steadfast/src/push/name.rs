//! The names of streams.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use sha2::{Digest, Sha256};

use crate::error::{Code, Error, Result};

/// How long a name may be. Names stand in headers and in the notices of PostgreSQL.
const LENGTH_MAX: usize = 200;

const KINDS: [&str; 3] = ["user", "tenant", "topic"];

/// The name of a stream that live clients follow: of a user, of a tenant, or of a topic.
///
/// ```
/// use steadfast::StreamName;
///
/// assert_eq!(StreamName::topic("orders").to_string(), "topic:orders");
/// assert_eq!(StreamName::user("ada@example.com").to_string(), "user:ada@example.com");
/// // Whatever a header could not carry is escaped.
/// assert_eq!(StreamName::user("Zoë, 7").to_string(), "user:Zo%C3%AB%2C%207");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamName(Arc<str>);

impl StreamName {
    /// What is for one user.
    pub fn user(id: impl AsRef<str>) -> Self {
        Self::of("user", id.as_ref())
    }

    /// What is for everybody of a tenant.
    pub fn tenant(id: impl AsRef<str>) -> Self {
        Self::of("tenant", id.as_ref())
    }

    /// What is about a topic, for those who may hear of it.
    pub fn topic(name: impl AsRef<str>) -> Self {
        Self::of("topic", name.as_ref())
    }

    /// Reads a name as it is written: `user:7`, `tenant:acme` or `topic:orders`.
    ///
    /// # Errors
    /// SF102 if it is none.
    pub fn parse(text: &str) -> Result<Self> {
        let is_name = text.split_once(':').is_some_and(|(kind, id)| {
            KINDS.contains(&kind) && !id.is_empty() && id.bytes().all(|byte| is_plain(byte) || byte == b'%')
        });
        if is_name && text.len() <= LENGTH_MAX {
            return Ok(Self(text.into()));
        }
        let shown: String = text.chars().take(LENGTH_MAX).collect();
        Err(Error::new(
            Code::InputInvalid,
            format!("{shown:?} is no stream; write `user:`, `tenant:` or `topic:` and its id"),
        ))
    }

    /// The streams that a request names, as in `GET /events?stream=topic:orders&stream=user:7`. To name them is not to be allowed
    /// to hear them: check that.
    ///
    /// ```
    /// use steadfast::StreamName;
    ///
    /// let (request, ()) = http::Request::get("/events?stream=topic:orders&stream=user:7").body(())?.into_parts();
    /// assert_eq!(StreamName::requested(&request)?, [StreamName::topic("orders"), StreamName::user("7")]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// SF102 if one of them is none.
    pub fn requested(request: &Parts) -> Result<Vec<Self>> {
        parameters(request)
            .iter()
            .filter(|(name, _)| name == "stream")
            .map(|(_, value)| Self::parse(value))
            .collect()
    }

    /// The name as it is stored and sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn of(kind: &str, id: &str) -> Self {
        let mut name = format!("{kind}:");
        for byte in id.bytes() {
            if is_plain(byte) {
                name.push(char::from(byte));
            } else {
                name.push_str(&format!("%{byte:02X}"));
            }
        }
        if name.len() > LENGTH_MAX {
            let hash = Sha256::digest(id);
            let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            name = format!("{kind}:sha256-{hex}");
        }
        Self(name.into())
    }
}

/// What stands in a name as it is. The rest is escaped: the comma and the equals sign part places from each other.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~:@/+".contains(&byte)
}

impl Borrow<str> for StreamName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The parameters of a request; none if they cannot be read.
pub(super) fn parameters(request: &Parts) -> Vec<(String, String)> {
    let query = request.uri.query().unwrap_or_default();
    serde_urlencoded::from_str(query).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ids_never_have_the_same_name() {
        assert_ne!(StreamName::user("a b"), StreamName::user("a%20b"));
        assert_ne!(StreamName::user("x".repeat(500)), StreamName::user("x".repeat(501)));
        assert_ne!(StreamName::user("7"), StreamName::tenant("7"));
        assert!(StreamName::topic("x".repeat(500)).as_str().len() <= LENGTH_MAX);
    }

    #[test]
    fn a_name_reads_as_it_is_written_and_nothing_else_does() {
        for name in [
            StreamName::user("Zoë, 7"),
            StreamName::topic("a/b"),
            StreamName::tenant("x".repeat(999)),
        ] {
            assert_eq!(StreamName::parse(name.as_str()).expect("a name"), name);
        }
        for text in [
            "",
            "orders",
            "user:",
            "admin:7",
            "topic:a b",
            "topic:a,b",
            "topic:a=b",
            "topic:a\nb",
            &format!("topic:{}", "x".repeat(500)),
        ] {
            let error = StreamName::parse(text).expect_err(text);
            assert!(error.to_string().contains("is no stream"), "{error}");
        }
    }
}
